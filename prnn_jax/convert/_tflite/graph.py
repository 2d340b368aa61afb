"""A file of LiteRT as a graph of ONNX, in which layers and cells are looked for.

Numbers are what the integers of the file stand for; so is what QUANTIZE and DEQUANTIZE
make. Operators that are not known stay as they are, in a domain of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from prnn_jax.convert._onnx.making import OPSET, Making
from prnn_jax.convert._onnx.nodes import TFLITE
from prnn_jax.convert._tflite.file import Operator, Subgraph, Tensor

#: What runs subgraphs that are no graphs of their own; the branches of an IF are.
_OF_LOOPS = "WHILE", "CALL_ONCE"


class Fused(NamedTuple):
    """A recurrent operator, and where it is."""

    operator: Operator
    tensors: Sequence[Tensor]

    def tensor(self, place: int) -> Tensor | None:
        """One of its inputs; None where there is none."""
        inputs = self.operator.inputs
        found = inputs[place] if place < len(inputs) else -1
        return None if found < 0 else self.tensors[found]


@dataclass
class Graph(Making):
    """A subgraph on its way to ONNX.

    Attributes:
      source: of the file.
      others: all of the file.
      fused: the recurrent operators by the names of their nodes, of all subgraphs.
      translators: by the kind of an operator, what adds its nodes.
    """

    source: Subgraph
    others: Sequence[Subgraph]
    fused: dict[str, Fused]
    translators: dict[str, Callable]

    def name(self, place: int) -> str:
        """Of a tensor; empty where there is none."""
        return self.source.tensors[place].name if place >= 0 else ""

    def value(self, operator: Operator, place: int) -> np.ndarray | None:
        """An input of an operator, if the file has its numbers."""
        inputs = operator.inputs
        found = inputs[place] if place < len(inputs) else -1
        return None if found < 0 else as_number(self.source.tensors[found])

    def rank(self, place: int) -> int | None:
        """Of a tensor, if it is known."""
        shape = self.source.tensors[place].shape
        return None if shape is None else len(shape)


def as_number(tensor: Tensor) -> np.ndarray | None:
    """A constant as graphs of ONNX have it here: integers in 64 bits, floats in 32."""
    value = tensor.value
    if value is None or value.dtype == np.bool_ or value.dtype == np.float64:
        return value
    is_integer = np.issubdtype(value.dtype, np.integer)
    return value.astype(np.int64 if is_integer else np.float32)


def as_onnx(
    graphs: Sequence[Subgraph], translators: dict[str, Callable]
) -> tuple[list[Any], dict[str, Fused]]:
    """Models of ONNX, one for each subgraph that no other one runs.

    Args:
      graphs: of the file.
      translators: by the kind of an operator, what adds its nodes to a `Graph`.

    Returns:
      The models, and by their nodes' names the recurrent operators.
    """
    from onnx import helper

    run = {n for graph in graphs for one in graph.operators for n in _runs(one)}
    fused: dict[str, Fused] = {}
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(TFLITE, 1)]
    models = []
    for n, graph in enumerate(graphs):
        if n in run and n > 0:
            continue
        made = translated(graph, graphs, fused, translators)
        models.append(helper.make_model(made, opset_imports=opsets, ir_version=8))
    return models, fused


def kept(graphs: Sequence[Subgraph]) -> dict[str, str]:
    """What is read of variables, and what these are then given, by name."""
    made = {}
    for graph in graphs:
        variables: dict[int, Any] = {}  # by the places of their handles
        given: dict[Any, str] = {}
        for one in graph.operators:
            if one.kind == "VAR_HANDLE" and one.outputs:
                names = one.option("Container", None), one.option("SharedName", None)
                variables[one.outputs[0]] = names if names[1] else one.outputs[0]
            if one.kind == "ASSIGN_VARIABLE" and min(one.inputs[:2], default=-1) >= 0:
                handle, value = one.inputs
                given[variables.get(handle, handle)] = graph.tensors[value].name
        for one in graph.operators:
            if one.kind == "READ_VARIABLE" and one.inputs and one.outputs:
                variable = variables.get(one.inputs[0], one.inputs[0])
                if variable in given:
                    made[graph.tensors[one.outputs[0]].name] = given[variable]
    return made


def _runs(operator: Operator) -> list[int]:
    """The subgraphs that an operator runs."""
    if operator.kind not in _OF_LOOPS:
        return []
    ends = "SubgraphIndex"
    return [n for name, n in operator.options.items() if name.endswith(ends)]


def translated(
    graph: Subgraph,
    others: Sequence[Subgraph],
    fused: dict[str, Fused],
    translators: dict[str, Callable],
    begin: Sequence[str] = (),
    end: Sequence[str] = (),
) -> Any:
    """A graph of ONNX; begin and end are names before its inputs and outputs."""
    made = Graph(graph, others, fused, translators, label=graph.name, domain=TFLITE)
    for tensor in graph.tensors:
        number = as_number(tensor)
        if number is not None and not tensor.is_variable:
            made.constants[tensor.name] = number
    for operator in (one for one in graph.operators if one.outputs):
        add = translators.get(operator.kind)
        if add is None or add(made, operator) is False:
            _unknown(made, operator)

    own = [made.name(place) for place in graph.inputs]
    inputs = [*begin, *own, *dict.fromkeys(made.given)]
    outputs = [*end, *(made.name(place) for place in graph.outputs)]
    known = {tensor.name: tensor.shape for tensor in graph.tensors}
    return made.graph(graph.name, inputs, outputs, known)


def _unknown(graph: Graph, operator: Operator) -> None:
    inputs = [graph.name(place) for place in operator.inputs]
    outputs = [graph.name(place) for place in operator.outputs]
    graph.add_all(operator.kind, inputs, outputs, domain=TFLITE)
