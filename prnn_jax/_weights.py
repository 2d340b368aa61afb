"""Parameters of other libraries' cells as `Params`, and back.

A library's cell is one row in a table, which says where the cell keeps what; the two
functions that read and write by it are the same for all. Nothing here imports a
library: arrays come and go by the names of the cell's own attributes.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._checks import check
from prnn_jax._ops import Params

Arrays = Mapping[str, Any]  # an array, or None for a bias that is not there


@dataclass(frozen=True)
class Layout:
    """Where a cell keeps its parameters. Gates are in our order, i f g o or r z n.

    Attributes:
      cell: "lstm", "gru" or "rnn"; the GRU applies r after the product.
      w_ih: names of the arrays that make up w_ih side by side: one, or one per gate.
      w_hh: the same for w_hh.
      bias: the same for the one bias that all gates have.
      bias_n: name of the GRU's bias inside the product with r, None if it has none.
      transposed: whether weights are `[gates*hidden, in]`.
    """

    cell: str
    w_ih: tuple[str, ...]
    w_hh: tuple[str, ...]
    bias: tuple[str, ...]
    bias_n: str | None = None
    transposed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of all arrays of the cell."""
        names = (*self.w_ih, *self.w_hh, *self.bias)
        return names if self.bias_n is None else (*names, self.bias_n)


#: Cells of `flax.nnx`.
NNX = {
    "OptimizedLSTMCell": Layout(
        "lstm", ("dense_i.kernel",), ("dense_h.kernel",), ("dense_h.bias",)
    ),
    "LSTMCell": Layout(
        "lstm",
        ("ii.kernel", "if_.kernel", "ig.kernel", "io.kernel"),
        ("hi.kernel", "hf.kernel", "hg.kernel", "ho.kernel"),
        ("hi.bias", "hf.bias", "hg.bias", "ho.bias"),
    ),
    "GRUCell": Layout(
        "gru", ("dense_i.kernel",), ("dense_h.kernel",), ("dense_i.bias",)
    ),
    "SimpleCell": Layout(
        "rnn", ("dense_i.kernel",), ("dense_h.kernel",), ("dense_i.bias",)
    ),
}

#: Cells of `equinox.nn`.
EQUINOX = {
    "LSTMCell": Layout(
        "lstm", ("weight_ih",), ("weight_hh",), ("bias",), transposed=True
    ),
    "GRUCell": Layout(
        "gru", ("weight_ih",), ("weight_hh",), ("bias",), "bias_n", transposed=True
    ),
}


def to_params(layout: Layout, arrays: Arrays) -> Params:
    """The arrays of a cell, by name, as `Params`."""

    def beside(names: tuple[str, ...], transposed: bool = False) -> Any:
        pieces = [arrays[name] for name in names if arrays[name] is not None]
        if transposed:
            pieces = [jnp.swapaxes(piece, -1, -2) for piece in pieces]
        return jnp.concatenate(pieces, -1) if pieces else None

    w_ih, w_hh = (
        beside(names, layout.transposed) for names in (layout.w_ih, layout.w_hh)
    )
    bias_n = None if layout.bias_n is None else arrays[layout.bias_n]
    return join_biases(w_ih, w_hh, beside(layout.bias), bias_n)


def from_params(layout: Layout, params: Params) -> Arrays:
    """`Params` as the arrays of a cell, by name.

    Raises:
      ValueError: the cell has no place for one of the biases.
    """
    check(
        layout.cell != "gru" or layout.bias_n is not None or params.b_hh is None,
        "from_params: the cell has no bias inside the product with r, so b_hh must be "
        "None, got an array.",
    )
    w_ih, w_hh, bias, bias_n = separate_biases(layout.cell, params)
    arrays: dict[str, Any] = {}
    for names, array in ((layout.w_ih, w_ih), (layout.w_hh, w_hh)):
        pieces = jnp.split(array, len(names), -1)
        if layout.transposed:
            pieces = [jnp.swapaxes(piece, -1, -2) for piece in pieces]
        arrays |= dict(zip(names, pieces, strict=True))
    count = len(layout.bias)
    pieces = [None] * count if bias is None else jnp.split(bias, count, -1)
    arrays |= dict(zip(layout.bias, pieces, strict=True))
    if layout.bias_n is not None:
        if bias is not None and bias_n is None:
            bias_n = jnp.zeros_like(jnp.split(bias, 3, -1)[2])
        arrays[layout.bias_n] = bias_n
    return arrays


def join_biases(
    w_ih: Array, w_hh: Array, bias: Array | None, bias_n: Array | None
) -> Params:
    """`Params` of a layer that keeps of b_hh only the last third, `bias_n`."""
    b_hh = None
    if bias_n is not None:
        zeros = jnp.zeros_like(bias_n)
        b_hh = jnp.concatenate([zeros, zeros, bias_n], -1)
    return Params(w_ih, w_hh, bias, b_hh)


def separate_biases(
    cell: str, params: Params
) -> tuple[Array, Array, Array | None, Array | None]:
    """The inverse of `join_biases`: w_ih, w_hh, bias, bias_n, none of them redundant.

    Args:
      cell: "lstm", "rnn", or "gru" for the one with r after the product; only that one
        has a bias_n.
      params: with any b_ih and b_hh.
    """
    w_ih, w_hh, b_ih, b_hh = params
    if b_hh is None:
        return w_ih, w_hh, b_ih, None
    bias_n = None
    if cell == "gru":
        b_r, b_z, bias_n = jnp.split(b_hh, 3, -1)
        b_hh = jnp.concatenate([b_r, b_z, jnp.zeros_like(bias_n)], -1)
    return w_ih, w_hh, b_hh if b_ih is None else b_ih + b_hh, bias_n


def stack_directions(directions: Sequence[Params]) -> Params:
    """A layer's params from those of a cell, or of a forward and a backward one."""
    if len(directions) == 1:
        return directions[0]
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *directions)


def split_directions(params: Params, bidirectional: bool) -> tuple[Params, ...]:
    """The inverse of `stack_directions`."""
    if not bidirectional:
        return (params,)
    return tuple(jax.tree.map(operator.itemgetter(d), params) for d in (0, 1))
