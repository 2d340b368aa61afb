"""Activations in a graph of ONNX, by their own operators or in several of others."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prnn_jax.convert._onnx.graph import Node, Scope

#: Those that an LSTM, GRU or RNN of ONNX may have: their numbers, where none are given.
_NUMBERS: dict[str, tuple[float, ...]] = {
    "Sigmoid": (),
    "Tanh": (),
    "Relu": (),
    "Softsign": (),
    "Softplus": (),
    "Elu": (1.0,),
    "LeakyRelu": (0.01,),
    "HardSigmoid": (0.2, 0.5),
}
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


class Squashed(NamedTuple):
    """What an activation, called `name` and with its numbers, is of."""

    input: str
    name: str
    numbers: tuple[float, ...] = ()


def is_alike(one: Squashed, *others: Squashed | None) -> bool:
    """Whether all have the same activation."""
    return all(other and other[1:] == one[1:] for other in others)


def squashed_by(scope: Scope, name: str) -> Squashed | None:
    """A value as the activation of another one; None if it is none."""
    made = scope.maker(name)
    if made is None:
        return None
    node = Node("", *made)
    kind = node.proto.op_type
    bounded = _hard_sigmoid(scope, name) if kind == "Relu" else None
    if kind in _NUMBERS and bounded is None:
        names = ("alpha", "beta")[: len(_NUMBERS[kind])]
        pairs = zip(names, _NUMBERS[kind], strict=True)
        numbers = tuple(float(node.attribute(*pair)) for pair in pairs)
        return Squashed(node.input(0), kind, numbers)
    return bounded or _hard_sigmoid(scope, name)


def as_attributes(cell: str, squashed: Sequence[Squashed]) -> dict[str, Any]:
    """Attributes of a node that has these activations; none if they are usual."""
    names = [one.name for one in squashed]
    if names == _USUAL.get(cell, ["Tanh"]):
        return {}
    alphas = [one.numbers[0] for one in squashed if one.numbers]
    betas = [one.numbers[1] for one in squashed if len(one.numbers) == 2]
    given = {"activation_alpha": alphas, "activation_beta": betas}
    return {"activations": names} | {key: some for key, some in given.items() if some}


def _hard_sigmoid(scope: Scope, name: str) -> Squashed | None:
    """min(max(alpha a + beta, 0), 1), whatever the order of its parts."""
    scale, shift = 1.0, 0.0
    bounds: dict[str, float] = {}
    while (made := scope.maker(name)) is not None:
        node = Node("", *made)
        known = [_number(node, n) for n in (0, 1)]
        source = 1 if known[0] is not None else 0
        number = known[1 - source]
        new = _bounds(node, number)
        if new is not None:
            if scale <= 0 or bounds.keys() & new.keys():
                return None
            bounds |= {side: scale * bound + shift for side, bound in new.items()}
        elif number is not None and node.proto.op_type == "Add":
            shift += scale * number
        elif number is not None and node.proto.op_type == "Mul":
            scale *= number
        else:
            break
        name = node.input(source)
    if len(bounds) < 2 or not np.allclose([bounds["min"], bounds["max"]], [0, 1]):
        return None
    return Squashed(name, "HardSigmoid", (scale, shift))


def _number(node: Node, position: int) -> float | None:
    """A constant input of one number; None of all others."""
    known = node.constant(position)
    return None if known is None or np.size(known) != 1 else float(known.item())


def _bounds(node: Node, number: float | None) -> dict[str, float] | None:
    """Those that a Clip, a Relu, a Min or a Max sets; None of other operators."""
    if node.proto.op_type == "Relu":
        return {"min": 0.0}
    if node.proto.op_type == "Clip":
        if len(node.proto.input) == 1:  # as before version 11 of the operators
            given = {side: node.attribute(side) for side in ("min", "max")}
            return {side: bound for side, bound in given.items() if bound is not None}
        places = {"min": 1, "max": 2}
        there = {side: n for side, n in places.items() if node.input(n)}
        bounds = {side: _number(node, n) for side, n in there.items()}
        known = {side: bound for side, bound in bounds.items() if bound is not None}
        return known if len(known) == len(there) else None
    side = {"Min": "max", "Max": "min"}.get(node.proto.op_type)
    if side is None or number is None or len(node.proto.input) != 2:
        return None
    return {side: number}
