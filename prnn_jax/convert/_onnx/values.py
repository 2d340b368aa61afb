"""What a value in a graph of ONNX is made of, and what it is for given numbers."""

from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.graph import MOVE, Scope


def sources(scope: Scope, name: str) -> set[str]:
    """What a value is moved from, whole or in parts."""
    made = scope.maker(name)
    if made is None or name in made[1].kept:
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


def ancestors(
    scope: Scope, name: str, stop: Set[str] = frozenset()
) -> Iterator[tuple[Scope, Any]]:
    """The nodes that a value needs, the nearest first, and the graphs they are in.

    Nothing beyond the values of `stop`.
    """
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


def needs(scope: Scope, name: str, wanted: set[str], stop: set[str]) -> bool:
    """Whether a value is made of one of some, and not by way of others alone."""
    found = ancestors(scope, name, stop)
    return any(wanted & set(proto.output) for _, proto in found)


def are_alike(scope: Scope, name: str, other: str) -> bool:
    """Whether two values are of the same shape, as far as the model fixes it."""
    one, two = scope.sizes(name), scope.sizes(other)
    if not one or not two or len(one) != len(two):
        return False
    return all(a == b or not (a and b) for a, b in zip(one, two, strict=True))


def value(
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
