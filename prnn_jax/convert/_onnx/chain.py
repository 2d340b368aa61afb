"""The layers of a network among the recurrent nodes of an ONNX graph.

What lies between two layers is run, on numbers that tell where each came from: so any
way of writing it is understood, and nothing is that computes.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from prnn_jax.convert._onnx.graph import Node, Scope

#: What may lie between the layers of one network: changes of layout and of direction.
_BETWEEN = (
    *("Squeeze", "Unsqueeze", "Transpose", "Reshape", "Flatten"),
    *("Identity", "Dropout", "Slice", "Concat"),
)
#: What sizes may be made with, of those of a sequence, for a change of layout.
_OF_SIZES = (
    *("Shape", "Add", "Cast", "Div", "Gather", "Mul", "Sub"),
    *("Squeeze", "Unsqueeze", "Reshape", "Identity", "Slice", "Concat"),
)
#: Of the numbers that are run; no graph writes such sizes by chance.
_TIME, _BATCH, _HIDDEN = 11, 7, 101
_DIRECTIONS = 2
#: From here on a bound of a Slice means all that there is.
_ALL = 2**31 - 1


class _Sizes(NamedTuple):
    """Of the numbers that are run: none is like another, but for a batch of 1."""

    time: int = _TIME
    batch: int = _BATCH
    hidden: int = _HIDDEN


class Layer(NamedTuple):
    """A node, or two that are a layer's directions.

    Attributes:
      forward: the node, or the one that runs from the first step to the last.
      backward: the one that runs against it, or None.
    """

    forward: Node
    backward: Node | None = None


@dataclass(frozen=True)
class _User:
    """A node that reads a sequence; `flipped`: from its last step to its first."""

    node: Node
    flipped: bool

    @property
    def goes_back(self) -> bool:
        return self.flipped != (self.node.attribute("direction") == "reverse")


def chain(nodes: Sequence[Node]) -> list[Layer]:
    """Layers in the order in which one follows another; of fewer nodes if none do."""
    outputs = {node.proto.output[0]: node for node in nodes if node.proto.output[0]}
    leaves = {node.name: _leaves(node, outputs) for node in nodes}
    first = [node for node in nodes if not leaves[node.name] & outputs.keys()]
    layer = _first_layer(first, leaves)
    found: list[Layer] = []
    while layer is not None:
        found.append(Layer(*(user.node for user in layer)))
        after = [n for n in nodes if leaves[n.name] == {_y(u.node) for u in layer}]
        users = [user for n in after if (user := _reads(n, layer)) is not None]
        layer = _as_layer(users)
    return found


def _y(node: Node) -> str:
    return node.proto.output[0]


def _as_layer(users: Sequence[_User]) -> tuple[_User, ...] | None:
    """What reads a sequence as one layer: a node, or one for each direction."""
    if len(users) == 1 and not users[0].flipped:
        return tuple(users)
    both = sorted(users, key=lambda user: user.goes_back)
    if len(both) != 2 or both[0].goes_back or not both[1].goes_back:
        return None
    kinds = [
        (user.node.proto.op_type, user.node.attribute("direction") == "bidirectional")
        for user in both
    ]
    return tuple(both) if kinds[0] == kinds[1] and not kinds[0][1] else None


def _first_layer(
    nodes: Sequence[Node], leaves: Mapping[str, set[str]]
) -> tuple[_User, ...] | None:
    """Of the nodes that read no other's output."""
    if len(nodes) == 1:
        return (_User(nodes[0], flipped=False),)
    if len(nodes) != 2 or leaves[nodes[0].name] != leaves[nodes[1].name]:
        return None
    (name,) = leaves[nodes[0].name] if len(leaves[nodes[0].name]) == 1 else (None,)
    if name is None:
        return None
    for source, time_axis in _sources(nodes[0].scope.sizes(name)):
        values = [_value(n.scope, n.input(0), {name: source}) for n in nodes]
        users = [
            _User(node, flipped)
            for node, value in zip(nodes, values, strict=True)
            for flipped in (False, True)
            if value is not None
            and _time_of(node, value) == source.shape[time_axis]
            and np.array_equal(value.ravel(), _read(node, source, time_axis, flipped))
        ]
        layer = _as_layer(users) if len(users) == 2 else None
        if layer is not None:
            return layer
    return None


def _sources(sizes: tuple[int, ...] | None) -> Iterator[tuple[np.ndarray, int]]:
    """Sequences that a graph may be given, and which axis is time."""
    shapes: list[tuple[tuple[int, ...], int]] = [((_TIME, _HIDDEN), 0)]
    shapes += [((_TIME, batch, _HIDDEN), 0) for batch in (_BATCH, 1)]
    shapes += [((batch, _TIME, _HIDDEN), 1) for batch in (_BATCH, 1)]
    if sizes is not None and len(sizes) in (2, 3):
        for time_axis in range(len(sizes) - 1):
            usual = [_BATCH] * (len(sizes) - 1) + [_HIDDEN]
            usual[time_axis] = _TIME
            fixed = tuple(n or m for n, m in zip(sizes, usual, strict=True))
            shapes.append((fixed, time_axis))
    for shape, time_axis in shapes:
        yield np.arange(np.prod(shape), dtype=np.float32).reshape(shape), time_axis


def _time_of(node: Node, value: np.ndarray) -> int:
    """How many steps a node sees in a value: with a batch of 1 its rows do not say."""
    axis = _time_axis(node)
    return value.shape[axis] if axis < value.ndim else 0


def _read(node: Node, source: np.ndarray, time_axis: int, flipped: bool) -> np.ndarray:
    """A sequence as a node reads it, in one row."""
    source = np.flip(source, time_axis) if flipped else source
    if source.ndim == 3:
        source = np.moveaxis(source, time_axis, _time_axis(node))
    return source.ravel()


def _reads(node: Node, layer: Sequence[_User]) -> _User | None:
    """The node as a reader of a layer's y, directions side by side; None if it is not.

    Batches are of several, or of 1, which a graph may squeeze; or sizes are those that
    the graph has fixed.
    """
    usual = _Sizes(), _Sizes(batch=1)
    for sizes in itertools.chain(usual, _fixed(layer[0].node)):
        given, parts = {}, []
        for n, user in enumerate(layer):
            first = 2 * n * math.prod(sizes)
            y, sequence = _numbers(user.node, sizes, first)
            given[_y(user.node)] = y
            parts.append(_flip(user.node, sequence) if user.flipped else sequence)
        expected = np.concatenate(parts, -1)
        value = _value(node.scope, node.input(0), given)
        if value is None:
            continue
        if np.array_equal(value, expected):
            return _User(node, flipped=False)
        if np.array_equal(value, _flip(node, expected)):
            return _User(node, flipped=True)
    return None


def _fixed(before: Node) -> Iterator[_Sizes]:
    """Those of a node's y that the graph has fixed, if it has, with usual others.

    So does PyTorch's exporter, unless it is told that they are dynamic.
    """
    sizes = before.scope.sizes(_y(before))
    if sizes is not None and len(sizes) == 4:
        first, second, third, hidden = sizes
        batch_first = bool(before.attribute("layout", 0))
        time, batch = (second, first) if batch_first else (first, third)
        yield _Sizes(time or _TIME, batch or _BATCH, hidden or _HIDDEN)


def _numbers(node: Node, sizes: _Sizes, first: int) -> tuple[np.ndarray, np.ndarray]:
    """A y as the node has it, and as a sequence of its directions side by side."""
    directions = 2 if node.attribute("direction") == "bidirectional" else 1
    batch_first = bool(node.attribute("layout", 0))
    time, batch, hidden = sizes
    rows = (batch, time) if batch_first else (time, batch)
    shape = (*rows, directions, hidden)
    y = (first + np.arange(np.prod(shape), dtype=np.float64)).reshape(shape)
    return y if batch_first else np.moveaxis(y, 2, 1), y.reshape(*rows, -1)


def _flip(node: Node, sequence: np.ndarray) -> np.ndarray:
    return np.flip(sequence, _time_axis(node))


def _time_axis(node: Node) -> int:
    return 1 if node.attribute("layout", 0) else 0


# ---- what lies between ---------------------------------------------------------------


def _leaves(node: Node, outputs: Mapping[str, Node]) -> set[str]:
    """What a node's x is made of by changes of layout: outputs of others, inputs."""
    found: set[str] = set()
    todo: list[tuple[str, Scope]] = [(node.input(0), node.scope)]
    while todo:
        name, scope = todo.pop()
        made = scope.maker(name)
        if name in outputs or made is None or made[0].op_type not in _BETWEEN:
            found.add(name)
            continue
        proto, inner = made
        todo += [(one, inner) for one in _sequences(proto, inner)]
    return found


def _sequences(proto: Any, scope: Scope) -> Iterator[str]:
    """The inputs of a change of layout that are no options."""
    for one in proto.input if proto.op_type == "Concat" else proto.input[:1]:
        if one and scope.constant(one) is None:
            yield one


def _value(scope: Scope, name: str, given: Mapping[str, Any]) -> np.ndarray | None:
    """A value that is made of some by changes of layout; None if it is not."""
    if name in given:
        return given[name]
    known = scope.constant(name)
    if known is not None:
        return known
    made = scope.maker(name)
    if made is None or made[0].op_type not in _BETWEEN:
        return None
    proto, inner = made
    sequences = [*_sequences(proto, inner)]
    arguments = {
        one: (_value if one in sequences else _of_sizes)(inner, one, given)
        for one in proto.input
        if one
    }
    if any(value is None for value in arguments.values()):
        return None
    node = Node("", proto, inner)
    if proto.op_type == "Slice" and not (
        _keeps_all(node) or _is_of_directions(node, arguments[proto.input[0]])
    ):
        return None
    return inner.run(proto, arguments, name)


def _of_sizes(scope: Scope, name: str, given: Mapping[str, Any]) -> np.ndarray | None:
    """An option, such as Reshape's: constant, or made of the sizes of a sequence."""
    known, made = scope.constant(name), scope.maker(name)
    if known is not None or made is None or made[0].op_type not in _OF_SIZES:
        return known
    proto, inner = made
    of = _value if proto.op_type == "Shape" else _of_sizes
    arguments = {one: of(inner, one, given) for one in proto.input if one}
    if any(value is None for value in arguments.values()):
        return None
    return inner.run(proto, arguments, name)


def _of_slice(node: Node) -> tuple[Any, ...]:
    """starts, ends, axes and steps of a Slice; None where it has none, or not known."""
    if node.input(1):
        return tuple(node.constant(n) for n in (1, 2, 3, 4))
    names = "starts", "ends", "axes"  # before version 10 of the operators
    return (*(node.attribute(name) for name in names), None)


def _is_of_directions(node: Node, value: Any) -> bool:
    """Whether a Slice is along axes of 2 alone, which no other sizes are."""
    starts, _, axes, _ = _of_slice(node)
    if starts is None or (axes is None and node.input(3)):
        return False
    axes = range(len(starts)) if axes is None else axes
    return all(np.shape(value)[axis] == _DIRECTIONS for axis in axes)


def _keeps_all(node: Node) -> bool:
    """Whether a Slice keeps everything, in either direction, whatever the sizes."""
    starts, ends, _, steps = _of_slice(node)
    if starts is None or ends is None:
        return False
    steps = np.ones_like(starts) if steps is None else steps
    return all(
        (step == 1 and start == 0 and end >= _ALL)
        or (step == -1 and (start == -1 or start >= _ALL) and end <= -_ALL)
        for start, end, step in zip(starts, ends, steps, strict=True)
    )
