"""Cells that a graph of ONNX writes out in products, sums and activations.

So PyTorch's exporter does with LSTMCell and GRUCell. Each that is found becomes the
node of ONNX that computes the same of one step.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from prnn_jax._given.params import Params
from prnn_jax.convert._onnx import to_onnx
from prnn_jax.convert._onnx_graph import Node, Scope
from prnn_jax.convert._onnx_steps import as_steps

#: What PyTorch calls the matrices of x and of h, which tells them apart.
_NAMES = "weight_ih", "weight_hh"


class _Linear(NamedTuple):
    """A product with a constant matrix `[in, G*hidden]`, called `name`."""

    input: str
    weight: Any
    bias: Any
    name: str

    def of(self, columns: list[int]) -> "_Linear":
        """With some of its columns, in another order."""
        bias = None if self.bias is None else self.bias[columns]
        return self._replace(weight=self.weight[:, columns], bias=bias)


class _Piece(NamedTuple):
    """Some columns of a value, which a node takes out of it."""

    source: str
    node: Any
    name: str


def written_cells(nodes: Sequence[Node]) -> Iterator[Node]:
    """The cells among some nodes; of one that is unrolled, its first step."""
    found = [cell for n in nodes for cell in (_lstm(n), _gru(n)) if cell is not None]
    return as_steps(found)


# ---- the cells -----------------------------------------------------------------------


def _lstm(node: Node) -> Node | None:
    """h' = σ(a_o) tanh(c') and c' = σ(a_f) c + σ(a_i) tanh(a_g)."""
    read = _Reader(node.scope)
    for gate, squashed in read.pair(node.proto, "Mul"):
        a_o, c_next = read.inside(gate, "Sigmoid"), read.inside(squashed, "Tanh")
        if a_o is None or c_next is None:
            continue
        for kept, added in read.pair_of(c_next, "Add"):
            for forget, c in read.pair_of(kept, "Mul"):
                for enter, candidate in read.pair_of(added, "Mul"):
                    a = read.inside(enter, "Sigmoid"), read.inside(forget, "Sigmoid")
                    a = (*a, read.inside(candidate, "Tanh"), a_o)
                    made = _lstm_of(node, [read.piece(one) for one in a], c, c_next)
                    if made is not None:
                        return made
    return None


def _lstm_of(
    node: Node, pieces: list[_Piece | None], c: str, c_next: str
) -> Node | None:
    read, gates = _Reader(node.scope), [one for one in pieces if one is not None]
    sources = {gate.source for gate in gates}
    both = read.products(sources.pop()) if len(gates) == 4 and len(sources) == 1 else []
    if len(both) != 2:
        return None
    x, h = _x_and_h(read, both, c)
    columns = read.columns(gates, both[0].weight.shape[1])
    if x is None or h is None or columns is None:
        return None
    x, h = x.of(columns), h.of(columns)
    params = Params(x.weight, h.weight, x.bias, h.bias)
    return _as_node(node, "LSTM", params, [x.input, h.input, c], ["", c_next])


def _x_and_h(read: "_Reader", both: Sequence[_Linear], c: str) -> Sequence[Any]:
    """Which product is that of x and which that of h; None where nothing tells."""
    hidden = both[0].weight.shape[1] // 4
    if both[1].weight.shape[1] != 4 * hidden:
        return None, None
    for x, h in (both, both[::-1]):
        fits, other_fits = (len(one.weight) == hidden for one in (h, x))
        origin = read.scope.origin
        is_state = origin(h.input) == origin(c) != origin(x.input)
        is_named = all(n in one.name for n, one in zip(_NAMES, (x, h), strict=True))
        if fits and (not other_fits or is_state or is_named):
            return x, h
    return None, None


def _gru(node: Node) -> Node | None:
    """h' = n + z (h - n) with n = tanh(a_xn + r a_hn)."""
    read = _Reader(node.scope)
    for change, n in read.pair(node.proto, "Add"):
        for gate, difference in read.pair_of(change, "Mul"):
            h, subtracted = read.of(difference, "Sub") or ("", "")
            a_z, a_n = read.inside(gate, "Sigmoid"), read.inside(n, "Tanh")
            for a_xn, reset in read.pair_of(a_n, "Add") if subtracted == n else ():
                for r, a_hn in read.pair_of(reset, "Mul"):
                    a_r = read.inside(r, "Sigmoid")
                    made = _gru_of(node, h, (a_r, a_z), a_xn, a_hn)
                    if made is not None:
                        return made
    return None


def _gru_of(
    node: Node, h: str, sums: Sequence[str | None], a_xn: str, a_hn: str
) -> Node | None:
    read = _Reader(node.scope)
    of_x = _side_of_gru(read, sums, read.piece(a_xn))
    of_h = _side_of_gru(read, sums, read.piece(a_hn))
    if of_x is None or of_h is None or not read.is_same(of_h.input, h):
        return None
    hidden = len(of_h.weight)
    if any(one.weight.shape[1] != 3 * hidden for one in (of_x, of_h)):
        return None
    params = Params(of_x.weight, of_h.weight, of_x.bias, of_h.bias)
    return _as_node(node, "GRU", params, [of_x.input, h])


def _side_of_gru(
    read: "_Reader", sums: Sequence[str | None], n: _Piece | None
) -> _Linear | None:
    """The product with x or with h whose parts the gates and the candidate have."""
    if n is None:
        return None
    parts = [read.piece(part) for a in sums if a for part in read.of(a, "Add")]
    gates = [part for part in parts if part is not None and part.source == n.source]
    products = read.products(n.source) if len(gates) == 2 else []
    if len(products) != 1:
        return None
    (product,) = products
    columns = read.columns([*gates, n], product.weight.shape[1])
    return None if columns is None else product.of(columns)


def _as_node(
    node: Node,
    cell: str,
    params: Params,
    inputs: list[str],
    outputs: Sequence[str] = (),
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
    options: dict[str, Any] = {"layout": 1, "hidden_size": len(params.w_hh)}
    if cell == "GRU":
        options["linear_before_reset"] = 1
    made = [node.proto.output[0], *outputs]
    proto = helper.make_node(cell, [x, *weights, "", *states], made, **options)
    tensors = [numpy_helper.from_array(a, n) for n, a in given.items() if a is not None]
    graph = helper.make_graph([proto], "cell", [], [], tensors)
    scope = Scope(graph, node.scope.opsets, node.scope)
    return Node(node.name, graph.node[0], scope, is_written=True)


def _as_row(bias: np.ndarray, width: int) -> np.ndarray | None:
    """A bias of so many columns; None if it is not the same in each row of a batch.

    As of an h that is zero in all rows, times weights.
    """
    if bias.ndim == 0 or bias.shape[-1] in (1, width):
        rows = np.broadcast_to(bias, (*bias.shape[:-1], width)).reshape(-1, width)
        if len(rows) and (rows == rows[0]).all():
            return rows[0]
    return None


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

    def inside(self, name: str, activation: str) -> str | None:
        """What an activation is of; None if it is another."""
        return next(iter(self.of(name, activation)), None)

    def products(self, name: str) -> list[_Linear]:
        """The products that a value is the sum of; none if it has other parts, too.

        A bias of all is the first one's.
        """
        found, biases = [], []
        for term in self._terms(name):
            product, known = self._product(term), self.scope.constant(term)
            if product is None and known is None:
                return []
            found += [] if product is None else [product]
            # A product of an h that begins with zeros is known, too, and a product.
            biases += [] if product is not None else [known]
        if not found:
            return []
        first, *others = found
        wide = first.weight.shape[1]
        biases += [] if first.bias is None else [first.bias]
        rows = [row for b in biases if (row := _as_row(b, wide)) is not None]
        if len(rows) < len(biases):
            return []
        return [first._replace(bias=sum(rows) if rows else None), *others]

    def _terms(self, name: str) -> list[str]:
        inputs = self.of(name, "Add")
        return [t for one in inputs for t in self._terms(one)] if inputs else [name]

    def _product(self, name: str) -> _Linear | None:
        made = self.scope.maker(name)
        if made is None or made[0].op_type not in ("Gemm", "MatMul"):
            return None
        node = Node("", *made)
        weight, bias = node.constant(1), node.constant(2)
        scales = [node.attribute(scale, 1.0) for scale in ("alpha", "beta")]
        is_plain = scales == [1.0, 1.0] and not node.attribute("transA", 0)
        is_known = weight is not None and (bias is not None or not node.input(2))
        if weight is None or weight.ndim != 2 or not is_plain or not is_known:
            return None
        weight = weight.T if node.attribute("transB", 0) else weight
        if bias is not None:
            bias = _as_row(bias, weight.shape[1])
            if bias is None:
                return None
        return _Linear(node.input(0), weight, bias, node.input(1))

    def piece(self, name: str | None) -> _Piece | None:
        """Columns of another value."""
        made = None if name is None else self.scope.maker(name)
        if name is None or made is None or made[0].op_type not in ("Split", "Slice"):
            return None
        return _Piece(made[0].input[0], made[0], name)

    def columns(self, pieces: Sequence[_Piece], width: int) -> list[int] | None:
        """Those of gates side by side, if these are all, each as wide as another."""
        row = np.arange(width, dtype=np.float32)[None]
        made = []
        for piece in pieces:
            others = {n: self.scope.constant(n) for n in piece.node.input[1:] if n}
            if any(value is None for value in others.values()):
                return None
            part = self.scope.run(piece.node, {piece.source: row, **others}, piece.name)
            if part is None or part.size * len(pieces) != width:
                return None
            made += [int(n) for n in part.ravel()]
        return made if sorted(made) == list(range(width)) else None
