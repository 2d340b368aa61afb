"""What a Loop or a Scan of ONNX makes of a cell's states from one step to the next."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.graph import Node, Scope
from prnn_jax.convert._onnx.states import positions
from prnn_jax.convert._onnx.steps import next_states, numbers, takes_one_step
from prnn_jax.convert._onnx.values import ancestors, sources, value


def in_a_loop(node: Node, others: Sequence[Node]) -> str:
    """A state that a Loop or a Scan changes between its steps; empty if it does not."""
    body = node.place.loop
    if body is None:
        return ""
    pairs, given = body.carried or {}, numbers(node, 0)
    for n, other in enumerate(others):
        if other is not node and other.place is node.place:
            given |= numbers(other, n + 1)
    masks: list[list[tuple[str, bool]]] = []  # of each state; of one as it is, none
    told = ""
    for position, wanted in next_states(node, given).items():
        name = node.input(position)
        carried = sources(node.place, name) & pairs.keys()
        if not carried:
            if node.is_alone or (
                not node.is_written and takes_one_step(node)
            ):  # each step begins anew
                return name
            continue
        fed = {one: value(body, pairs[one], given) for one in carried}
        known = {one: new for one, new in fed.items() if new is not None}
        found = value(node.place, name, known)
        if wanted is not None and _is_equal(found, wanted):
            masks.append([])
            continue
        told = told or pairs[min(carried - known.keys() or carried)]
        masks.append([] if wanted is None else [*_masks(node, name, wanted, given)])
    if not told:
        return ""
    first, *rest = masks
    is_one = any(all(_has(body, one, each) for each in rest) for one in first)
    return "" if is_one else told


def unread_loops(nodes: Sequence[Node], found: Collection[Node]) -> list[str]:
    """Loops and Scans of which a step multiplies what the step before has made.

    But by way of nodes that have been found.
    """
    read = {name for node in found for name in node.proto.output if name}
    return [
        node.name
        for node in nodes
        if any(_recurs(body, read) for _, body in node.scope.subgraphs(node.proto))
    ]


def _recurs(body: Scope, read: set[str]) -> bool:
    """Whether a product is of what the step before has made, and makes the next."""
    for name, later in (body.carried or {}).items():
        for place, made in ancestors(body, later, read):
            if made.op_type in ("Gemm", "MatMul"):
                above = [
                    one for given in made.input for one in ancestors(place, given, read)
                ]
                if name in {*made.input}.union(*(one.input for _, one in above)):
                    return True
    return False


def _masks(
    node: Node, name: str, new: np.ndarray, given: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Masks that say where a state is the new one, and else the old one; what they say.

    A mask has one value for each row of a batch, which no state has a part in.
    """
    body = node.place
    if not body.carried or name not in body.carried:
        return
    later, old = body.carried[name], -1.0 - new
    known = {one: np.float32(state) for one, state in {**given, name: old}.items()}
    states = {*given, *(node.input(position) for position in positions(node))}
    for mask in _conditions(body, later, states):
        made = [
            value(body, later, {**known, mask: rows}, any_operator=True)
            for rows in (np.full((*new.shape[:-1], 1), kept) for kept in (True, False))
        ]
        for is_kept, (one, other) in ((True, made), (False, made[::-1])):
            if _is_equal(one, new) and _is_equal(other, old):
                yield mask, is_kept


def _has(scope: Scope, mask: tuple[str, bool], masks: Collection) -> bool:
    """Whether a mask is among others, maybe worked out anew."""
    return any(
        mask[1] == other[1] and _is_same(scope, mask[0], other[0]) for other in masks
    )


def _is_same(scope: Scope, name: str, other: str) -> bool:
    """Whether two values are one, or made by equal operators of values that are."""
    one, two = scope.maker(name), scope.maker(other)
    if name == other or one is None or two is None:
        return name == other
    (a, place), (b, _) = one, two
    pairs = zip(a.input, b.input, strict=False)
    return (
        (a.op_type, [*a.attribute], len(a.input), [*a.output].index(name))
        == (b.op_type, [*b.attribute], len(b.input), [*b.output].index(other))
    ) and all(_is_same(place, *pair) for pair in pairs)


def _conditions(scope: Scope, name: str, states: set[str]) -> Iterator[str]:
    """Truths, one for each row, that a value is made of and no state makes."""
    for place, proto in ancestors(scope, name, states):
        given = proto.input[0] if proto.op_type in ("Where", "Not", "Cast") else ""
        sizes = place.sizes(given) if given else None
        if sizes and sizes[-1] == 1:
            above = {given}.union(*(made.input for _, made in ancestors(place, given)))
            if not states & above:
                yield given


def _is_equal(one: np.ndarray | None, other: np.ndarray) -> bool:
    return one is not None and np.array_equal(one, other)
