"""Cells that a graph of ONNX writes out in products, sums and activations.

So PyTorch's exporter does with LSTMCell and GRUCell, and tf2onnx with many layers of
Keras. Each that is found becomes the node of ONNX that computes the same of one step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prnn_jax._given.params import Params
from prnn_jax.convert._onnx.graph import Node, Scope
from prnn_jax.convert._onnx.linear import Product, products, side_by_side, terms
from prnn_jax.convert._onnx.params import to_onnx
from prnn_jax.convert._onnx.squashed import (
    Squashed,
    as_attributes,
    is_alike,
    squashed_by,
)
from prnn_jax.convert._onnx.steps import as_steps

#: What PyTorch calls the matrices of x and of h, which tells them apart.
_NAMES = "weight_ih", "weight_hh"


def written_cells(nodes: Sequence[Node]) -> Iterator[Node]:
    """The cells among some nodes; of one that is unrolled, its first step."""
    kinds = _lstm, _gru, _rnn
    made = [cell for n in nodes for kind in kinds if (cell := kind(n)) is not None]
    return as_steps([cell for cell in made if not _has_more_axes(cell)], nodes)


def _has_more_axes(cell: Node) -> bool:
    """Whether h is of more axes than x and h before: each row with each other one."""
    names = cell.proto.output[0], cell.input(0), cell.input(5)
    made, *given = (cell.place.sizes(name) for name in names)
    if not made or not all(given):
        return False
    several = sum(size > 1 for size in made[:-1])
    return several > max(sum(n != 1 for n in sizes[:-1]) for sizes in given if sizes)


# ---- the cells -----------------------------------------------------------------------


def _lstm(node: Node) -> Node | None:
    """h' = σ(a_o) tanh(c') and c' = σ(a_f) c + σ(a_i) tanh(a_g), or with others."""
    read = _Reader(node.scope)
    for gate, squashed in read.pair(node.proto, "Mul"):
        a_o, output = read.inside(gate), read.inside_or_linear(squashed)
        if a_o is None:
            continue
        for kept, added in read.pair_of(output.input, "Add"):
            for forget, c in read.pair_of(kept, "Mul"):
                for enter, candidate in read.pair_of(added, "Mul"):
                    a_i, a_f = read.inside(enter), read.inside(forget)
                    a = a_i, a_f, read.inside_or_linear(candidate), a_o
                    made = _lstm_of(node, a, c, output)
                    if made is not None:
                        return made
    return None


def _lstm_of(
    node: Node, gates: Sequence[Squashed | None], c: str, output: Squashed
) -> Node | None:
    i, f, candidate, o = gates
    sides = _sides(node, gates)
    if sides is None or not i or not candidate or not is_alike(i, f, o):
        return None
    x, h = _x_and_h(node, sides, len(gates), c)
    if x is None or h is None:
        return None
    params = Params(x.weight, h.weight, x.bias, h.bias)
    options = as_attributes("LSTM", [i, candidate, output])
    inputs, outputs = [x.input, h.input, c], ["", output.input]
    return _as_node(node, "LSTM", params, inputs, outputs, **options)


def _gru(node: Node) -> Node | None:
    """h' = n + z (h - n), or z h + (1 - z) n."""
    read = _Reader(node.scope)
    for one, other in read.pair(node.proto, "Add"):
        for gate, difference in read.pair_of(one, "Mul"):
            h, subtracted = read.of(difference, "Sub") or ("", "")
            if subtracted == other and (made := _gru_of(node, h, gate, other)):
                return made
        for gate, h in read.pair_of(one, "Mul"):
            for rest, n in read.pair_of(other, "Mul"):
                whole, subtracted = read.of(rest, "Sub") or ("", "")
                is_rest = subtracted == gate and read.is_one(whole)
                if is_rest and (made := _gru_of(node, h, gate, n)):
                    return made
    return None


def _gru_of(node: Node, h: str, gate: str, n: str) -> Node | None:
    """With n = tanh(a_xn + r a_hn), or tanh(a_xn + (r h) w)."""
    read = _Reader(node.scope)
    a_z, a_n = read.inside(gate), read.inside_or_linear(n)
    if a_z is None:
        return None
    for r, of_x, of_h, reset_after in _resets(read, h, a_n.input):
        a_r = read.inside(r)
        sides = _sides(node, [a_r, a_z]) if is_alike(a_z, a_r) else None
        for x, y in () if sides is None else (sides, sides[::-1]):
            if x.input != of_x.input or not read.is_same(y.input, h):
                continue
            x, y = side_by_side([x, of_x]), side_by_side([y, of_h])
            hidden = len(y.weight)
            if x.width == y.width == 3 * hidden:
                params = Params(x.weight, y.weight, x.bias, y.bias)
                options = as_attributes("GRU", [a_z, a_n])
                options["linear_before_reset"] = int(reset_after)
                return _as_node(node, "GRU", params, [x.input, h], **options)
    return None


def _resets(
    read: "_Reader", h: str, a_n: str
) -> Iterator[tuple[str, Product, Product, bool]]:
    """Of a candidate: the reset gate, its products of x and h; whether after these."""
    of_n = products(read.scope, a_n)  # of x and of r h
    for of_x, of_h in (of_n, of_n[::-1]) if len(of_n) == 2 else ():
        for r, state in read.pair_of(of_h.input, "Mul"):
            if read.is_same(state, h):
                yield r, of_x, of_h, False
    parts = terms(read.scope, a_n)
    for n, part in enumerate(parts):
        for r, a_hn in read.pair_of(part, "Mul"):
            of_h = products(read.scope, a_hn)
            of_x = products(read.scope, [*parts[:n], *parts[n + 1 :]])
            are_two = len(of_h) == len(of_x) == 1
            if are_two and read.is_same(of_h[0].input, h) and read.inside(r):
                yield r, of_x[0], of_h[0], True


def _rnn(node: Node) -> Node | None:
    """h' = tanh(a); whether it is a state at all, the steps tell."""
    squashed = _Reader(node.scope).inside(node.proto.output[0])
    sides = None if squashed is None else _sides(node, [squashed])
    x, h = (None, None) if sides is None else _x_and_h(node, sides, 1, "")
    if squashed is None or x is None or h is None:
        return None
    params = Params(x.weight, h.weight, x.bias, h.bias)
    options = as_attributes("RNN", [squashed])
    return _as_node(node, "RNN", params, [x.input, h.input], **options)


# ---- the sides of x and of h ---------------------------------------------------------


def _sides(
    node: Node, gates: Sequence[Squashed | None]
) -> tuple[Product, Product] | None:
    """The two inputs that gates are sums of products of, with all their columns."""
    found = [products(node.scope, a.input) if a else [] for a in gates]
    if any(len(pair) != 2 for pair in found):
        return None
    names = [one.input for one in found[0]]
    sides = []
    for name in names:
        parts = [one for pair in found for one in pair if one.input == name]
        if len(parts) != len(gates) or len({part.width for part in parts}) != 1:
            return None
        sides.append(side_by_side(parts))
    return sides[0], sides[1]


def _x_and_h(node: Node, both: Sequence[Product], gates: int, c: str) -> Sequence[Any]:
    """Which product is that of x and which that of h; None where nothing tells."""
    hidden, origin = both[0].width // gates, node.scope.origin
    pairs = (node.scope.carried or {}).items()
    # A loop may hand on the sequence of x, too, as it is.
    carried = {one for one, later in pairs if origin(later) != one}
    for x, h in (both, both[::-1]):
        fits, other_fits = (len(one.weight) == hidden for one in (h, x))
        is_state = origin(h.input) == origin(c) != origin(x.input)
        is_carried = origin(h.input) in carried and origin(x.input) not in carried
        is_named = all(n in one.name for n, one in zip(_NAMES, (x, h), strict=True))
        if fits and (not other_fits or is_state or is_carried or is_named):
            return x, h
    return None, None


def _as_node(
    node: Node,
    cell: str,
    params: Params,
    inputs: list[str],
    outputs: Sequence[str] = (),
    **options: Any,
) -> Node:
    """ONNX's own node that has the parameters and reads x and the states.

    Its outputs are h and what is given besides.
    """
    from onnx import helper, numpy_helper

    arrays = to_onnx(cell, params)
    x, *states = inputs
    names = [f"{node.proto.output[0]}/{letter}" for letter in "WRB"]
    given = dict(zip(names, (arrays.get(letter) for letter in "WRB"), strict=True))
    weights = [name if given[name] is not None else "" for name in names]
    options |= {"layout": 1, "hidden_size": len(params.w_hh)}
    made = [node.proto.output[0], *outputs]
    proto = helper.make_node(cell, [x, *weights, "", *states], made, **options)
    tensors = [numpy_helper.from_array(a, n) for n, a in given.items() if a is not None]
    graph = helper.make_graph([proto], "cell", [], [], tensors)
    scope = Scope(graph, node.scope.opsets, node.scope)
    return Node(node.name, graph.node[0], scope, is_written=True)


# ---- what a value is made of ---------------------------------------------------------


class _Reader:
    """Of the operators that make a value, whatever the order of a sum's parts."""

    def __init__(self, scope: Scope):
        self.scope = scope

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names are of one value, or of equal constants."""
        one, two = self.scope.constant(name), self.scope.constant(other)
        if one is None or two is None:
            return name == other
        return np.array_equal(one, two)

    def of(self, name: str, operator: str) -> list[str]:
        """The inputs of the operator that makes a value; none if it is another."""
        made = self.scope.maker(name)
        return list(made[0].input) if made and made[0].op_type == operator else []

    def pair(self, node: Any, operator: str) -> list[tuple[str, str]]:
        """The two inputs of a sum or a product, in either order."""
        if node.op_type != operator or len(node.input) != 2:
            return []
        one, other = node.input
        return [(one, other), (other, one)]

    def pair_of(self, name: str | None, operator: str) -> list[tuple[str, str]]:
        """The same of what makes a value."""
        made = None if name is None else self.scope.maker(name)
        return [] if made is None else self.pair(made[0], operator)

    def inside(self, name: str) -> Squashed | None:
        """What an activation is of; None of what is none."""
        return squashed_by(self.scope, name)

    def inside_or_linear(self, name: str) -> Squashed:
        """The same; of what is none, the value itself."""
        return self.inside(name) or Squashed(name, "Affine", (1.0, 0.0))

    def is_one(self, name: str) -> bool:
        """Whether a value is 1."""
        known = self.scope.constant(name)
        return known is not None and bool((known == 1).all())
