"""The recurrent operators of OpenVINO as nodes of a graph of ONNX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from prnn_jax.convert._onnx.making import must
from prnn_jax.convert._openvino.graph import Graph, outputs_of
from prnn_jax.convert._openvino.network import Layer


class Kind(NamedTuple):
    """A recurrent operator.

    Attributes:
      cell: the node of ONNX that is made of it.
      is_step: whether it takes one step alone.
    """

    cell: str
    is_step: bool = False

    @property
    def states(self) -> int:
        """How many it has."""
        return 2 if self.cell == "LSTM" else 1


KINDS = {
    **{f"{cell}Sequence": Kind(cell) for cell in ("LSTM", "GRU", "RNN")},
    **{f"{cell}Cell": Kind(cell, is_step=True) for cell in ("LSTM", "GRU", "RNN")},
}
#: Where ONNX has the gates f i c o of an LSTM: its own are i o f c.
_LSTM = 1, 3, 0, 2
_DIRECTIONS = "forward", "reverse", "bidirectional"
#: Activations, where an operator does not say them.
_USUAL = {"LSTM": "sigmoid, tanh, tanh", "GRU": "sigmoid, tanh", "RNN": "tanh"}


class Around(NamedTuple):
    """What a node is given and gives, each with its axis of directions.

    Attributes:
      x: `[batch, time, input]`, or `[time, batch, input]`.
      states: with an axis of directions, where the layout has it.
      weights: W, R and B `[directions, ...]`.
      y: the name of Y.
      states_n: those of the states after it.
      lengths: of the rows; empty for all steps.
      name: of the node, if it is not the layer's.
    """

    x: str
    states: Sequence[str]
    weights: Sequence[str]
    y: str
    states_n: Sequence[str]
    lengths: str = ""
    batch_first: bool = True
    direction: str = "forward"
    name: str = ""


def sequence(graph: Graph, layer: Layer) -> Any:
    """Adds the node, and what makes of its Y what the operator gives."""
    kind = KINDS[layer.kind]
    if not is_read(graph, layer):
        return False
    count = kind.states
    _check_inputs(layer, 2 + count, 5 + count)
    x, *states = layer.inputs[: 1 + count]
    lengths, *weights = layer.inputs[1 + count : 5 + count]
    y, *states_n = outputs_of(layer, 1 + count)
    if graph.is_all_steps(lengths, x, 1):
        lengths = ""
    direction = layer.option("direction", "forward").lower()
    named = f"{layer.name!r} has the direction {direction!r}"
    must(direction in _DIRECTIONS, named)
    whole = f"{layer.name}/Y"
    shape = graph.known.get(y)
    if shape is not None and len(shape) == 4:
        batch, directions, time, hidden = shape
        graph.shapes[whole] = [batch, time, directions, hidden]
    around = Around(x, states, weights, whole, states_n, lengths, direction=direction)
    add_node(graph, layer, around)
    graph.add("Transpose", [whole], y, perm=[0, 2, 1, 3])
    return None


def step(graph: Graph, layer: Layer) -> Any:
    """Adds the node of one step, and the axes that it has and the operator has not."""
    kind = KINDS[layer.kind]
    if not is_read(graph, layer):
        return False
    count = kind.states
    _check_inputs(layer, 3 + count, 4 + count)
    x, *states = layer.inputs[: 1 + count]
    weights = layer.inputs[1 + count : 4 + count]
    h, *others = outputs_of(layer, count)
    shape = graph.known.get(x)
    at = f"{layer.name}/step"
    if shape is not None and len(shape) == 2:
        graph.shapes[at] = [shape[0], 1, shape[1]]
    one, zero = graph.constant([1]), graph.constant([0])
    around = Around(
        graph.add("Unsqueeze", [x, one], at),
        [graph.add("Unsqueeze", [state, one]) for state in states],
        [graph.add("Unsqueeze", [w, zero]) if w else "" for w in weights],
        f"{layer.name}/Y",
        ["", *(f"{other}/1" if other else "" for other in others)],
    )
    add_node(graph, layer, around)
    graph.add("Squeeze", [around.y, graph.constant([1, 2])], h)
    for other, made in zip(others, around.states_n[1:], strict=True):
        if other:
            graph.add("Squeeze", [made, one], other)
    return None


def add_node(graph: Graph, layer: Layer, around: Around) -> None:
    """Adds the node itself, called as the layer."""
    cell = KINDS[layer.kind].cell
    directions = 2 if around.direction == "bidirectional" else 1
    after = layer.flag("linear_before_reset")
    w, r, b = (*around.weights, "", "", "")[:3]
    if cell == "LSTM":
        w, r = (_joined(graph, _parts(graph, one, 4), _LSTM) for one in (w, r))
    b = _bias(graph, cell, b, after) if b else ""
    options: dict[str, Any] = {}
    if cell == "GRU":
        options["linear_before_reset"] = int(after)
    clip = float(layer.option("clip", "0") or 0)
    if clip > 0 and np.isfinite(clip):
        options["clip"] = clip
    if layer.flag("input_forget"):
        options["input_forget"] = 1
    states = [*around.states, ""][:2] if cell == "LSTM" else around.states
    graph.add_all(
        cell,
        [around.x, w, r, b, around.lengths, *states],
        [around.y, *around.states_n],
        name=around.name or layer.name,
        layout=int(around.batch_first),
        direction=around.direction,
        hidden_size=layer.number("hidden_size"),
        activations=activations_of(layer) * directions,
        **options,
    )


def is_read(graph: Graph, layer: Layer) -> bool:
    """Whether an operator is one as it is read: of the oldest, some are others."""
    kind = KINDS[layer.kind]
    places = (3 if kind.is_step else 4) + 1 + kind.states
    # What else they have are peepholes, in an order that is not told.
    others = [graph.value(name) for name in layer.inputs[places:]]
    are_none = all(one is not None and not one.any() for one in others)
    return layer.option("weights_format", "fico") == "fico" and are_none


def _check_inputs(layer: Layer, least: int, most: int) -> None:
    """That a layer has what it needs; the last of a step, its bias, it may lack."""
    are_there = least <= len(layer.inputs) and all(layer.inputs[:least])
    must(are_there, f"{layer.name!r} ({layer.kind}) has no {most} inputs")


def _parts(graph: Graph, name: str, count: int, axis: int = 1) -> Sequence[str]:
    """Of a matrix or a bias, those of its gates."""
    names = [f"{graph.label}/gate#{len(graph.nodes)}.{n}" for n in range(count)]
    return graph.add_all("Split", [name], names, axis=axis)


def _joined(graph: Graph, parts: Sequence[str], order: Sequence[int]) -> str:
    return graph.add("Concat", [parts[n] for n in order], axis=1)


def _bias(graph: Graph, cell: str, name: str, after: bool) -> str:
    """Those of x and of h, of which OpenVINO has but the sum."""
    if cell == "RNN":
        gates, order = [name], [0]
    elif cell == "LSTM":
        gates, order = _parts(graph, name, 4), _LSTM
    else:
        gates, order = _parts(graph, name, 4 if after else 3), range(3)
    zeros = graph.add("Mul", [gates[0], graph.constant(0.0, np.float32)])
    of_h = [zeros] * len(order)
    if cell == "GRU" and after:
        of_h[2] = gates[3]
    return graph.add("Concat", [*(gates[n] for n in order), *of_h], axis=1)


def activations_of(layer: Layer) -> list[str]:
    """The names of a recurrent operator's activations."""
    usual = _USUAL[KINDS[layer.kind].cell]
    return layer.several("activations") or usual.split(", ")


TRANSLATORS: dict[str, Callable[[Graph, Layer], Any]] = {
    name: step if kind.is_step else sequence for name, kind in KINDS.items()
}
