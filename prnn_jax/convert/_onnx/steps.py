"""What a graph of ONNX makes of a cell's states from one step to the next.

A layer gives each step the h and c of the step before, as they are. Whether a graph
does so is found out on numbers that tell where each came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.graph import Node
from prnn_jax.convert._onnx.states import positions
from prnn_jax.convert._onnx.values import ancestors, are_alike, needs, sources, value

#: Rows of a batch that the graph has not fixed.
_BATCH = 7


def as_steps(cells: Sequence[Node], nodes: Sequence[Node]) -> Iterator[Node]:
    """Of the steps of each written cell the first; with what changes its states.

    Args:
      cells: all steps of all cells.
      nodes: of the model.
    """
    groups: list[list[Node]] = []
    shapes = _of_shapes_alone(nodes)
    for cell in (one for one in cells if one.proto.output[0] not in shapes):
        group = next((g for g in groups if _is_step_of_one(cell, g[0])), None)
        if group is None:
            groups.append(group := [])
        group.append(cell)
    for group in groups:
        outputs = {name for cell in group for name in _all_states(cell)}
        by_h = {cell.proto.output[0]: cell for cell in group}
        first = [cell for cell in group if not _follows(cell, by_h)]
        changed = {cell.name: _of_others(cell, outputs) for cell in first}
        between = next((name for name in changed.values() if name), "")
        # The tanh of a sum may be anything, unless it is what the next one reads.
        is_doubtful = group[0].proto.op_type == "RNN" and group[0].place.loop is None
        if is_doubtful and (between or len(first) == len(group)):
            continue
        for cell in first:
            if not changed[cell.name]:
                alone = len(group) == 1
                yield replace(_beginning(cell), changed=between, is_alone=alone)


def given_back(node: Node) -> str:
    """An output that is the next state of a step, as it seems, and not the cell's own.

    Of a model of one step, whose file does not say what its caller feeds back; and of
    any one that keeps its states from run to run itself.
    """
    if node.is_written and not node.is_alone:
        return ""
    top = node.place.top
    own = [set(_own(node, place)) for place in positions(node)]
    for n, names in enumerate(own):
        for one in sources(node.place, node.input(5 + n)) & top.kept.keys():
            if not names & sources(top, top.kept[one]):
                return top.kept[one]
    is_one_step = node.is_written or takes_one_step(node)
    if not is_one_step or node.place.loop is not None:
        return ""
    returned = {one for name in top.outputs for one in sources(top, name)}
    is_back = [bool(names & returned) for names in own]
    found = []
    for n, names in enumerate(own):
        others = own[0] if n else set()
        origin = sources(node.place, node.input(5 + n))
        inputs = {one for one in origin if top.maker(one) is None}
        found.append(
            [
                name
                for name in top.outputs
                if not is_back[n]
                and any(are_alike(top, name, one) for one in inputs)
                and needs(top, name, names - others, others - names)
            ]
        )
    if len(own) == 2 and not is_back[1] and not found[1]:
        return ""  # c is not given back at all: what is there is no state
    return next((name for names in found for name in names), "")


def _of_shapes_alone(nodes: Sequence[Node]) -> set[str]:
    """Values of which the model wants nothing but the shape."""
    read = {one for node in nodes for one in node.proto.input}
    read_whole = {
        one for n in nodes if n.proto.op_type != "Shape" for one in n.proto.input
    }
    scopes = {id(node.scope): node.scope for node in nodes}.values()
    return read - read_whole - {one for scope in scopes for one in scope.outputs}


# ---- steps of one cell ---------------------------------------------------------------


def _is_step_of_one(cell: Node, other: Node) -> bool:
    """Whether two cells are of one graph and have the same weights."""
    if cell.proto.op_type != other.proto.op_type or cell.place is not other.place:
        return False
    for position in (1, 2):
        one, two = cell.constant(position), other.constant(position)
        if one is None or two is None or not np.array_equal(one, two):
            return False
    # Which of the two biases is which may differ, where a first h of zeros is folded.
    biases = [_bias(one) for one in (cell, other)]
    return np.allclose(*biases, rtol=1e-5, atol=1e-6)


def _bias(cell: Node) -> Any:
    bias = cell.constant(3)
    return 0.0 if bias is None else np.asarray(bias).reshape(2, -1).sum(0)


def _own(node: Node, position: int) -> list[str]:
    """The outputs that are the next state, h or c, as an input has this one."""
    outputs = [*node.proto.output, "", "", ""]
    names = outputs[:2] if position == 5 else outputs[2:3]
    return [name for name in names if name]


def _all_states(node: Node) -> list[str]:
    return [*_own(node, 5), *_own(node, 6)]


def _follows(cell: Node, by_h: Mapping[str, Node]) -> bool:
    """Whether a cell's states are those of another one, as they are."""
    for name in sources(cell.place, cell.input(5)) & by_h.keys():
        given = numbers(by_h[name], 0)
        read = [cell.input(position) for position in positions(cell)]
        found = [value(cell.place, one, given) for one in read]
        pairs = zip(found, given.values(), strict=True)
        if all(one is not None and np.array_equal(one, two) for one, two in pairs):
            return True
    return False


def _of_others(cell: Node, outputs: set[str]) -> str:
    """A state that is made of other steps' states; empty if none is."""
    names = [cell.input(position) for position in positions(cell)]
    made = [n for n in names if n and needs(cell.place, n, outputs, set())]
    return next((n for n in made if n not in outputs), (made or [""])[0])


def numbers(node: Node, n: int) -> dict[str, np.ndarray]:
    """A node's outputs, none of which has a number that another one has."""
    made: dict[str, np.ndarray] = {}
    directions = 2 if node.attribute("direction") == "bidirectional" else 1
    hidden = node.attribute("hidden_size", 1)
    layout, of_x = node.attribute("layout", 0), node.place.sizes(node.input(0))
    for place, position in enumerate(positions(node)):
        for name in _own(node, position):
            batch = [(of_x or (0, 0))[0 if layout else 1] or _BATCH]
            if node.is_written:
                of_state = node.place.sizes(name) or (0, 0)
                batch = [size or _BATCH for size in of_state[:-1]]
                shape = *batch, hidden
            else:
                shape = *batch, directions, hidden
            state = (2 * n + place) * 2.0**18 + np.arange(np.prod(shape)).reshape(shape)
            if not node.is_written:
                state = state if layout else np.moveaxis(state, 1, 0)
                if name == node.proto.output[0]:  # Y, of one step
                    state = np.expand_dims(state, 1 if layout else 0)
            made[name] = state
    return made


def next_states(node: Node, given: Mapping[str, Any]) -> dict[int, Any]:
    """By a state's position what it is to be after a step; None if no output has it."""
    made: dict[int, Any] = {}
    for position in positions(node):
        if node.input(position):
            own = _own(node, position)
            made[position] = given[own[-1]] if own else None
            if own and own[-1] == node.proto.output[0] and not node.is_written:
                axis = 1 if node.attribute("layout", 0) else 0
                made[position] = np.squeeze(made[position], axis)
    return made


def takes_one_step(node: Node) -> bool:
    """Whether the x of a node of ONNX is of one step, as far as the model says."""
    sizes = node.place.sizes(node.input(0))
    return bool(sizes) and sizes[1 if node.attribute("layout", 0) else 0] == 1


# ---- a first step of zeros, which an exporter has folded -----------------------------


def _beginning(cell: Node) -> Node:
    """A cell; without states if these are those after a first step from zeros."""
    if not _is_second_step(cell):
        return cell
    proto = type(cell.proto)()
    proto.CopyFrom(cell.proto)
    del proto.input[5:]
    return replace(cell, proto=proto)


def _is_second_step(cell: Node) -> bool:
    """Whether a cell's states are what it makes of an x and of zeros."""
    weight = np.asarray(cell.constant(1))
    x = _read_by(cell, weight[0].T)
    shape = None if x is None else cell.place.shape(x)
    if x is None or shape is None or shape[-1:] != weight.shape[-1:]:
        return False
    made = np.random.default_rng(0).standard_normal(shape).astype(weight.dtype)
    found = [
        value(cell.place, cell.input(position), {x: made}, any_operator=True)
        for position in positions(cell)
    ]
    wanted = _first_step(cell, made)
    # Roundings of sums of numbers near 1; another step differs in the first digit.
    return all(
        one is not None and one.shape == two.shape and np.allclose(one, two, atol=1e-4)
        for one, two in zip(found, wanted, strict=True)
    )


def _read_by(cell: Node, weight: np.ndarray) -> str | None:
    """What a product with a matrix reads, among those that a cell's h is made of."""
    for scope, made in ancestors(cell.place, cell.input(5), set()):
        node = Node("", made, scope)
        if made.op_type in ("Gemm", "MatMul") and scope.constant(made.input[0]) is None:
            other = node.constant(1)
            if other is not None and other.ndim == 2:
                other = other.T if node.attribute("transB", 0) else other
                if np.array_equal(np.sort(other, 1), np.sort(weight, 1)):
                    return made.input[0]
    return None


def _first_step(cell: Node, x: np.ndarray) -> list[np.ndarray]:
    """What a written cell makes of an x and of zeros: h, and c of the LSTM.

    With the usual activations; of others it is nothing that the graph makes.
    """
    (weight,), bias = np.asarray(cell.constant(1)), cell.constant(3)
    a = x @ weight.T
    of_x, of_h = np.split(np.zeros(2 * a.shape[-1]) if bias is None else bias[0], 2)
    if cell.proto.op_type == "LSTM":
        i, o, _, g = np.split(a + of_x + of_h, 4, -1)
        c = _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]
    if cell.proto.op_type == "RNN":
        return [np.tanh(a + of_x + of_h)]
    (z, r, n), (bz, br, bn) = np.split(a + of_x, 3, -1), np.split(of_h, 3)
    reset = _sigmoid(r + br) if cell.attribute("linear_before_reset", 0) else 1.0
    return [(1 - _sigmoid(z + bz)) * np.tanh(n + reset * bn)]


def _sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))
