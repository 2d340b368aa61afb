"""What a graph of ONNX makes of a cell's states from one step to the next.

A layer gives each step the h and c of the step before, as they are. Whether a graph
does so is found out on numbers that tell where each came from.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prnn_jax.convert._onnx_graph import MOVE, Node, Scope
from prnn_jax.convert._onnx_states import positions

#: Rows of a batch that the graph has not fixed.
_BATCH = 7


def as_steps(cells: Sequence[Node]) -> Iterator[Node]:
    """Of the steps of each written cell the first; with what changes its states."""
    groups: list[list[Node]] = []
    for cell in cells:
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
        for cell in first:
            if not changed[cell.name]:
                alone = len(group) == 1
                yield replace(_beginning(cell), changed=between, is_alone=alone)


def in_a_loop(node: Node, others: Sequence[Node]) -> str:
    """A state that a Loop or a Scan changes between its steps; empty if it does not."""
    body = _loop_around(node)
    if body is None:
        return ""
    pairs, given = body.carried or {}, _numbers(node, 0)
    for n, other in enumerate(others):
        if other is not node and other.place is node.place:
            given |= _numbers(other, n + 1)
    for position, wanted in _next_states(node, given).items():
        name = node.input(position)
        carried = sources(node.place, name) & pairs.keys()
        if not carried:
            if node.is_alone:  # each step begins anew
                return name
            continue
        fed = {one: _value(body, pairs[one], given) for one in carried}
        known = {one: value for one, value in fed.items() if value is not None}
        found = _value(node.place, name, known)
        if wanted is None or found is None or not np.array_equal(found, wanted):
            return pairs[min(carried - known.keys() or carried)]
    return ""


def given_back(node: Node) -> str:
    """An output that is the next state of a step, as it seems, and not the cell's own.

    Of a model of one step, whose file does not say what its caller feeds back.
    """
    is_one_step = node.is_alone if node.is_written else _is_one_step(node)
    if not is_one_step or _loop_around(node) is not None:
        return ""
    top = node.place.top
    own = [set(_own(node, place)) for place in positions(node)]
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
                and any(_are_alike(top, name, one) for one in inputs)
                and _needs(top, name, names - others, others - names)
            ]
        )
    if len(own) == 2 and not is_back[1] and not found[1]:
        return ""  # c is not given back at all: what is there is no state
    return next((name for names in found for name in names), "")


def _loop_around(node: Node) -> Scope | None:
    """The body of the Loop or the Scan that a node is in."""
    body: Scope | None = node.place
    while body is not None and body.carried is None:
        body = body.outer
    return body


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
        numbers = _numbers(by_h[name], 0)
        read = [cell.input(position) for position in positions(cell)]
        found = [_value(cell.place, one, numbers) for one in read]
        pairs = zip(found, numbers.values(), strict=True)
        if all(one is not None and np.array_equal(one, two) for one, two in pairs):
            return True
    return False


def _of_others(cell: Node, outputs: set[str]) -> str:
    """A state that is made of other steps' states; empty if none is."""
    names = [cell.input(position) for position in positions(cell)]
    made = [n for n in names if n and _needs(cell.place, n, outputs, set())]
    return next((n for n in made if n not in outputs), (made or [""])[0])


def _numbers(node: Node, n: int) -> dict[str, np.ndarray]:
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


def _next_states(node: Node, numbers: Mapping[str, Any]) -> dict[int, Any]:
    """By a state's position what it is to be after a step; None if no output has it."""
    made: dict[int, Any] = {}
    for position in positions(node):
        if node.input(position):
            own = _own(node, position)
            made[position] = numbers[own[-1]] if own else None
            if own and own[-1] == node.proto.output[0] and not node.is_written:
                axis = 1 if node.attribute("layout", 0) else 0
                made[position] = np.squeeze(made[position], axis)
    return made


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
    if x is None or shape is None:
        return False
    value = np.random.default_rng(0).standard_normal(shape).astype(weight.dtype)
    found = [
        _value(cell.place, cell.input(position), {x: value}, any_operator=True)
        for position in positions(cell)
    ]
    wanted = _first_step(cell, value)
    # Roundings of sums of numbers near 1; another step differs in the first digit.
    return all(
        one is not None and one.shape == two.shape and np.allclose(one, two, atol=1e-4)
        for one, two in zip(found, wanted, strict=True)
    )


def _read_by(cell: Node, weight: np.ndarray) -> str | None:
    """What a product with a matrix reads, among those that a cell's h is made of."""
    for scope, made in _ancestors(cell.place, cell.input(5), set()):
        node = Node("", made, scope)
        if made.op_type in ("Gemm", "MatMul") and scope.constant(made.input[0]) is None:
            other = node.constant(1)
            if other is not None and other.ndim == 2:
                other = other.T if node.attribute("transB", 0) else other
                if np.array_equal(np.sort(other, 1), np.sort(weight, 1)):
                    return made.input[0]
    return None


def _first_step(cell: Node, x: np.ndarray) -> list[np.ndarray]:
    """What a written cell makes of an x and of zeros: h, and c of the LSTM."""
    (weight,), bias = np.asarray(cell.constant(1)), cell.constant(3)
    a = x @ weight.T
    of_x, of_h = np.split(np.zeros(2 * a.shape[-1]) if bias is None else bias[0], 2)
    if cell.proto.op_type == "LSTM":
        i, o, _, g = np.split(a + of_x + of_h, 4, -1)
        c = _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]
    (z, r, n), (bz, br, bn) = np.split(a + of_x, 3, -1), np.split(of_h, 3)
    return [(1 - _sigmoid(z + bz)) * np.tanh(n + _sigmoid(r + br) * bn)]


def _sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


# ---- what a value is made of ---------------------------------------------------------


def sources(scope: Scope, name: str) -> set[str]:
    """What a value is moved from, whole or in parts."""
    made = scope.maker(name)
    if made is None:
        return {name}
    proto, inner = made
    if proto.op_type == "If":
        place = list(proto.output).index(name)
        branches = [branch for _, branch in inner.subgraphs(proto)]
        return {n for one in branches for n in sources(one, one.outputs[place])}
    if proto.op_type not in MOVE:
        return {name}
    given = proto.input if proto.op_type == "Concat" else proto.input[:1]
    return {n for one in given for n in sources(inner, one)}


def _ancestors(scope: Scope, name: str, stop: set[str]) -> Iterator[tuple[Scope, Any]]:
    """The nodes that a value needs, the nearest first, and the graphs they are in."""
    todo, seen = deque([(scope, name)]), set()
    while todo:
        inner, one = todo.popleft()
        made = None if one in stop else inner.maker(one)
        if made is None or made[0].output[0] in seen:
            continue
        proto, place = made
        seen.add(proto.output[0])
        yield place, proto
        todo += [(place, given) for given in proto.input if given]
        for _, branch in place.subgraphs(proto):
            todo += [(branch, output) for output in branch.outputs]


def _needs(scope: Scope, name: str, wanted: set[str], stop: set[str]) -> bool:
    """Whether a value is made of one of some, and not by way of others alone."""
    found = _ancestors(scope, name, stop)
    return any(wanted & set(proto.output) for _, proto in found)


def _are_alike(scope: Scope, name: str, other: str) -> bool:
    """Whether two values are of the same shape, as far as the model fixes it."""
    one, two = scope.sizes(name), scope.sizes(other)
    if not one or not two or len(one) != len(two):
        return False
    return all(a == b or not (a and b) for a, b in zip(one, two, strict=True))


def _is_one_step(node: Node) -> bool:
    sizes = node.place.sizes(node.input(0))
    return bool(sizes) and sizes[1 if node.attribute("layout", 0) else 0] == 1


def _value(
    scope: Scope, name: str, given: Mapping[str, Any], *, any_operator: bool = False
) -> np.ndarray | None:
    """A value that is made of some by moves, or by any operator; None of others."""
    known = dict(given)

    def made_of(scope: Scope, name: str) -> np.ndarray | None:
        if name in known:
            return known[name]
        constant, made = scope.constant(name), scope.maker(name)
        if constant is not None or made is None:
            return constant
        proto, inner = made
        if proto.op_type == "If":
            place = list(proto.output).index(name)
            branches = [branch for _, branch in inner.subgraphs(proto)]
            values = (made_of(one, one.outputs[place]) for one in branches)
            return next((value for value in values if value is not None), None)
        if not any_operator and proto.op_type not in (*MOVE, "Shape"):
            return None
        parts = {one: made_of(inner, one) for one in proto.input if one}
        if any(value is None for value in parts.values()):
            return None
        known[name] = inner.run(proto, parts, name)
        return known[name]

    return made_of(scope, name)
