"""TensorIterator and Loop of OpenVINO: steps of a cell as a node, others as Loop."""

from collections.abc import Callable, Mapping
from typing import Any

from prnn_jax.convert._openvino.graph import Graph, ends, graph_of
from prnn_jax.convert._openvino.network import Body, Layer, Port
from prnn_jax.convert._openvino.operators import TRANSLATORS as OPERATORS
from prnn_jax.convert._openvino.recurrent import KINDS, Around, add_node, is_read
from prnn_jax.convert._openvino.recurrent import TRANSLATORS as RECURRENT

#: What may be around a cell in a body: axes of 1 that come and go.
_OF_AXES = "Reshape", "Squeeze", "Unsqueeze"


def loop(graph: Graph, layer: Layer) -> Any:
    """Adds what a loop is: the steps of a cell, or a Loop."""
    body = layer.body
    if body is None:
        return False
    ports = *body.inputs, *body.outputs
    if any(port.axis is not None and not port.is_whole for port in ports):
        return False
    if layer.kind == "Loop" and _stops_early(graph, layer, body):
        return False
    cells = [one for one in body.network.layers if one.kind in KINDS]
    if len(cells) == 1 and KINDS[cells[0].kind].is_step:
        made = _Steps(graph, layer, body, cells[0])
        if is_read(graph, cells[0]) and made.is_layer():
            made.add()
            return None
    return _general(graph, layer, body)


def _stops_early(graph: Graph, layer: Layer, body: Body) -> bool:
    """Whether a Loop takes other steps than x has, as far as its file says."""
    count, goes_on = (graph.value(name) for name in layer.inputs[:2])
    if goes_on is not None and not goes_on.all():
        return True
    ends_at = {one.outputs[0].name: one for one in body.network.layers if one.outputs}
    conditions = [
        ends_at[port.inside].stored
        for port in body.outputs
        if port.purpose and port.inside in ends_at
    ]
    if any(one is not None and not one.all() for one in conditions):
        return True
    if count is None or not all(one is not None for one in conditions):
        return False
    sizes = [
        shape[port.axis]
        for port in body.inputs
        if port.axis is not None
        and (shape := graph.known.get(layer.inputs[port.outside]))
        and -len(shape) <= port.axis < len(shape)
    ]
    return any(size >= 0 and (count != size).any() for size in sizes)


class _Steps:
    """A loop that runs a cell alone, over all of its x, from one end or the other."""

    def __init__(self, graph: Graph, layer: Layer, body: Body, cell: Layer):
        self._graph, self._layer, self._body, self._cell = graph, layer, body, cell
        layers = body.network.layers
        self._makers = {value.name: one for one in layers for value in one.outputs}
        self._given = {port.inside: port for port in body.inputs if not port.purpose}
        self._later = body.back
        count = KINDS[cell.kind].states
        self._x, *self._states = (self._origin(n) for n in cell.inputs[: 1 + count])
        self._weights = cell.inputs[1 + count : 4 + count]
        self._made = [value.name for value in cell.outputs]

    def is_layer(self) -> bool:
        """Whether the loop is a layer's steps."""
        x = self._given.get(self._x)
        if x is None or x.axis not in (0, 1) or x.inside in self._later:
            return False
        shape = self._graph.known.get(self._layer.inputs[x.outside])
        rank_of = self._makers[self._x].outputs[0].shape
        of_cell = self._cell.outputs[0].shape
        are_read = [
            one is None or len(one) == rank
            for one, rank in ((shape, 3), (rank_of, 3), (of_cell, 2))
        ]
        others = {one.kind for one in self._body.network.layers} - {self._cell.kind}
        return (
            all(are_read)
            and others <= {"Parameter", "Result", "Const", "Convert", *_OF_AXES}
            and len(self._states) == len(self._made)
            and all(self._is_fed_back(n) for n in range(len(self._states)))
            and all(self._is_given(port, x) for port in self._body.outputs)
            and all(self._outer(name) is not None for name in self._weights if name)
        )

    def add(self) -> None:
        """Adds the node."""
        graph, x = self._graph, self._given[self._x]
        batch_first = x.axis == 1
        side = graph.constant([1 if batch_first else 0])
        axis = graph.constant([2 if batch_first else 1])
        one = graph.constant([0])
        label = self._layer.name
        states = [self._layer.inputs[self._given[s].outside] for s in self._states]
        weights = [self._outer(name) if name else "" for name in self._weights]
        around = Around(
            self._layer.inputs[x.outside],
            [graph.add("Unsqueeze", [s, side]) for s in states],
            [graph.add("Unsqueeze", [w, one]) if w else "" for w in weights],
            f"{label}/Y",
            [f"{label}/state#{n}" for n in range(len(states))],
            batch_first=batch_first,
            direction="forward" if x.stride > 0 else "reverse",
            name=f"{label}/{self._cell.name}",
        )
        add_node(graph, self._cell, around)
        for port in self._body.outputs:
            name = self._layer.outputs[port.outside].name
            if port.axis is not None:
                graph.add("Squeeze", [around.y, axis], name)
            else:
                place = self._made.index(self._origin(port.inside))
                graph.add("Squeeze", [around.states_n[place], side], name)

    def _is_fed_back(self, n: int) -> bool:
        state = self._states[n]
        port = self._given.get(state)
        return (
            port is not None
            and port.axis is None
            and self._origin(self._later.get(state, "")) == self._made[n]
        )

    def _is_given(self, port: Port, x: Port) -> bool:
        """Whether an output is h of all steps, in the order of x, or a last state."""
        made = self._origin(port.inside)
        if port.axis is None:
            return made in self._made
        along = port.axis == x.axis and port.stride == x.stride
        return along and made == self._made[0]

    def _origin(self, name: str) -> str:
        """What a value is, but for its axes of 1."""
        layer = self._makers.get(name)
        if layer is None or layer.kind not in _OF_AXES or not layer.inputs:
            return name
        return self._origin(layer.inputs[0])

    def _outer(self, name: str) -> str | None:
        """The name of a weight outside of the body; None of none."""
        port, layer = self._given.get(name), self._makers.get(name)
        if port is not None and port.axis is None and name not in self._later:
            return self._layer.inputs[port.outside]
        if layer is None:
            return None
        if layer.kind == "Convert":
            return self._outer(layer.inputs[0])
        if layer.stored is None:
            return None
        self._graph.constants[name] = layer.stored
        return name


def _general(graph: Graph, layer: Layer, body: Body) -> Any:
    """Any other one, whose cell may be written out."""
    label = f"{layer.name}/body"
    made = graph_of(body.network, TRANSLATORS, label)
    count, condition = f"{label}/count", f"{label}/condition"
    kept, names, first = [], {}, []
    ports = {port.inside: port for port in body.inputs}
    for inside in ends(body.network)[0]:
        port = ports.get(inside)
        outer = "" if port is None or port.outside < 0 else layer.inputs[port.outside]
        if inside in body.back:
            names[inside] = len(kept)
            kept.append(inside)
            first.append(outer)
        elif not outer:
            made.add("Identity", [count], inside)
        elif port is not None and port.axis is not None:
            part = made.add("Gather", [outer, count], axis=port.axis)
            axis = made.constant([port.axis])
            made.add("Unsqueeze", [part, axis], inside)
        else:
            made.add("Identity", [outer], inside)
    later = body.back
    collected, after = [], []
    outputs = [f"{label}/unread#{n}" for n in range(len(kept))]
    for port in body.outputs:
        if port.outside < 0:
            continue
        name = layer.outputs[port.outside].name
        if port.axis is not None:
            part = made.add("Squeeze", [port.inside, made.constant([port.axis])])
            collected.append(part)
            after.append((f"{name}/steps", name, port.axis))
        else:
            place = next((names[n] for n in kept if later[n] == port.inside), None)
            if place is None:
                return False
            outputs[place] = name
    results = [condition, *(later[name] for name in kept), *collected]
    inner = made.graph(label, [count, condition, *kept], results, made.known)
    steps = [name for name, *_ in after]
    graph.add_all(
        "Loop", ["", "", *first], [*outputs, *steps], name=layer.name, body=inner
    )
    for stacked, name, axis in after:
        rank = graph.rank(name)
        if rank is None or not -rank <= axis < rank:
            graph.add_all("Stacked", [stacked], [name], domain=graph.domain)
            continue
        order = [*range(1, rank)]
        order.insert(axis % rank, 0)
        graph.add("Transpose", [stacked], name, perm=order)
    return None


TRANSLATORS: Mapping[str, Callable[[Graph, Layer], Any]] = {
    **OPERATORS,
    **RECURRENT,
    "TensorIterator": loop,
    "Loop": loop,
}
