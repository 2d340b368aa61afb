"""A network of OpenVINO as a graph of ONNX, in which layers and cells are looked for.

Operators that are not known stay as they are, in a domain of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.making import OPSET, Making
from prnn_jax.convert._openvino.network import Layer, Network

#: Of operators that are not ONNX's.
DOMAIN = "openvino"
#: What does not change a constant, but for how it is stored.
_SAME = "Convert", "ConvertLike"
#: What moves numbers.
_MOVES = (
    *("Broadcast", "Concat", "Convert", "Gather", "Reshape", "Slice", "Squeeze"),
    *("StridedSlice", "Tile", "Unsqueeze"),
)
#: Of these, what takes a part, whose place is the second input.
_PARTS = "Gather", "Slice", "StridedSlice"


@dataclass
class Graph(Making):
    """A network on its way to ONNX.

    Attributes:
      source: of the file.
      translators: by the kind of a layer, what adds its nodes.
      makers: by its name, the layer that gives a value.
      known: sizes of values, -1 where they are not fixed; None if unknown.
    """

    source: Network
    translators: Mapping[str, Callable]
    makers: dict[str, Layer] = field(default_factory=dict)
    known: dict[str, tuple[int, ...] | None] = field(default_factory=dict)

    def __post_init__(self):
        for layer in self.source.layers:
            for value in layer.outputs:
                self.makers[value.name] = layer
                if value.is_float:
                    self.known[value.name] = value.shape

    def value(self, name: str) -> np.ndarray | None:
        """The numbers of a value, where the file has them."""
        layer = self.makers.get(name)
        for _ in range(len(self.makers)):
            if layer is None or layer.kind not in _SAME:
                break
            layer = self.makers.get(layer.inputs[0]) if layer.inputs else None
        return None if layer is None else layer.stored

    def rank(self, name: str) -> int | None:
        """How many axes a value has, where that is known."""
        constant, shape = self.value(name), self.known.get(name)
        if constant is not None:
            return constant.ndim
        return None if shape is None else len(shape)

    def is_all_steps(self, lengths: str, x: str, axis: int) -> bool:
        """Whether some lengths are of rows that all are as long as x."""
        leaves = self._leaves(lengths)
        if all(self._is_size(one, place, x, axis) for one, place in leaves):
            return True
        shape = self.known.get(x) or ()
        steps = shape[axis] if -len(shape) <= axis < len(shape) else -1
        known = [None if one is None else one.stored for one, _ in leaves]
        return steps > 0 and all(n is not None and (n == steps).all() for n in known)

    def is_zero(self, name: str) -> bool:
        """Whether a value is moved from zeros alone."""
        stored = [None if one is None else one.stored for one, _ in self._leaves(name)]
        return all(n is not None and not n.any() for n in stored)

    def _is_size(
        self, layer: Layer | None, place: int | None, x: str, axis: int
    ) -> bool:
        """Whether a layer's number at a place is how long x is along an axis.

        Of another value than x, whether it may be.
        """
        if layer is None or layer.kind != "ShapeOf" or place is None:
            return False
        (source, *_), shape = layer.inputs, self.known.get(x)
        if source == x:
            return place in (axis, axis - len(shape or ()))
        sizes = [
            one[n] if one is not None and -len(one) <= n < len(one) else -1
            for one, n in ((self.known.get(source), place), (shape, axis))
        ]
        return -1 in sizes or sizes[0] == sizes[1]

    def _leaves(
        self, name: str, place: int | None = None
    ) -> list[tuple[Layer | None, int | None]]:
        """What gives the numbers that a value is moved from, and which it is of them.

        That is None of several, and where it is not known.
        """
        layer = self.makers.get(name)
        if layer is None or layer.kind not in _MOVES or not layer.inputs:
            return [(layer, place)]
        if layer.kind in _PARTS and len(layer.inputs) > 1:
            begin = self.value(layer.inputs[1])
            place = None if begin is None or begin.size != 1 else int(begin.item())
        moved = layer.inputs if layer.kind == "Concat" else layer.inputs[:1]
        return [leaf for one in moved for leaf in self._leaves(one, place)]


def as_onnx(network: Network, translators: Mapping[str, Callable]) -> Any:
    """The model of ONNX.

    Args:
      network: of the file.
      translators: by the kind of a layer, what adds its nodes to a `Graph`.
    """
    from onnx import helper

    made = graph_of(network, translators)
    inputs, outputs = ends(network)
    graph = made.graph(
        network.name, [*inputs, *dict.fromkeys(made.given)], outputs, made.known
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def graph_of(
    network: Network, translators: Mapping[str, Callable], label: str = ""
) -> Graph:
    """What is made of all layers of a network."""
    made = Graph(network, translators, label=label, domain=DOMAIN)
    for layer in network.layers:
        if layer.stored is not None and layer.outputs:
            made.constants[layer.outputs[0].name] = layer.stored
        elif layer.outputs and layer.kind not in ("Parameter", "Const"):
            add = translators.get(layer.kind)
            if add is None or add(made, layer) is False:
                names = [value.name for value in layer.outputs]
                made.add_all(layer.kind, layer.inputs, names, domain=DOMAIN)
    return made


def ends(network: Network) -> tuple[list[str], list[str]]:
    """The names of a network's inputs and of its results."""
    inputs = [
        layer.outputs[0].name
        for layer in network.layers
        if layer.kind == "Parameter" and layer.outputs
    ]
    results = [
        one.inputs[0] for one in network.layers if one.kind == "Result" and one.inputs
    ]
    return inputs, list(dict.fromkeys(filter(None, results)))


def kept(network: Network) -> dict[str, str]:
    """What is read of states, and what these are then given, by name."""
    given = {
        layer.option("variable_id"): layer.inputs[0]
        for layer in network.layers
        if layer.kind == "Assign" and layer.inputs
    }
    return {
        layer.outputs[0].name: given[layer.option("variable_id")]
        for layer in network.layers
        if layer.kind == "ReadValue"
        and layer.outputs
        and layer.option("variable_id") in given
    }


def outputs_of(layer: Layer, count: int) -> Sequence[str]:
    """The names of a layer's outputs; empty where it has fewer."""
    names = [value.name for value in layer.outputs]
    return (names + [""] * count)[:count]
