"""Parameters of other libraries' layers as `Params`, and back.

A library's layer is one row in a table, which says where and how it keeps what; the two
functions that read and write by it are the same for all. Nothing here imports a
library: arrays come and go by the names that the layer has for them.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._cells.table import CELLS
from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams, MultiHeadParams, Params

Arrays = Mapping[str, Any]  # an array, or None for a bias that is not there

#: Our gates, in our order, of the cells that other libraries have.
GATES = {
    "rnn" if cell.function == "rnn" else name: cell.gate_names
    for name, cell in CELLS.items()
    if name != "slstm"
}


@dataclass(frozen=True)
class Layout:
    """Where and how a layer keeps its parameters.

    Attributes:
      cell: "lstm", "gru" (r after the product), "gru_reset_before" or "rnn".
      w_ih: names of the arrays that make up w_ih side by side: one, or one per gate, in
        our order.
      w_hh: the same for w_hh. The same name for both: one array, w_ih above w_hh.
      bias: the same for b_ih, or for the one bias that all gates have.
      bias_n: name of the GRU's bias inside the product with r, None if it has none, or
        if it is a part of bias_hh.
      transposed: whether weights are `[gates*hidden, in]`.
      bias_hh: as bias, for a whole b_hh. The same name for both: one array, b_ih before
        b_hh.
      order: of the gates within an array, where it is not ours, e.g. "igfo".
      negated: gates whose parameters have the opposite sign of ours, so that the gate
        is 1 minus ours.
      forget_bias: what the layer adds to f's bias when it runs.
      optional_bias: whether the layer may be without biases.
      w_hr: as w_ih, of a layer with a projection.
    """

    cell: str
    w_ih: tuple[str, ...]
    w_hh: tuple[str, ...]
    bias: tuple[str, ...]
    bias_n: str | None = None
    transposed: bool = False
    bias_hh: tuple[str, ...] = ()
    order: str = ""
    negated: str = ""
    forget_bias: float = 0.0
    optional_bias: bool = False
    w_hr: tuple[str, ...] = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the arrays that are always there."""
        return tuple(dict.fromkeys((*self.w_ih, *self.w_hh, *self.w_hr)))

    @property
    def biases(self) -> tuple[str, ...]:
        """Names of the arrays that are there if the layer has biases."""
        bias_n = () if self.bias_n is None else (self.bias_n,)
        return tuple(dict.fromkeys((*self.bias, *self.bias_hh, *bias_n)))

    @property
    def names(self) -> tuple[str, ...]:
        """Of all arrays of the layer."""
        return (*self.weights, *self.biases)

    @property
    def gates(self) -> int:
        """Products per hidden unit."""
        return len(GATES[self.cell])

    def named(self, prefix: str = "", suffix: str = "") -> "Layout":
        """The same with longer names."""

        def longer(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(f"{prefix}{name}{suffix}" for name in names)

        return replace(
            self,
            w_ih=longer(self.w_ih),
            w_hh=longer(self.w_hh),
            bias=longer(self.bias),
            bias_n=None if self.bias_n is None else longer((self.bias_n,))[0],
            bias_hh=longer(self.bias_hh),
            w_hr=longer(self.w_hr),
        )


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
        "lstm",
        ("weight_ih",),
        ("weight_hh",),
        ("bias",),
        transposed=True,
        optional_bias=True,
    ),
    "GRUCell": Layout(
        "gru",
        ("weight_ih",),
        ("weight_hh",),
        ("bias",),
        "bias_n",
        transposed=True,
        optional_bias=True,
    ),
}


def to_params(layout: Layout, arrays: Arrays) -> Params:
    """The arrays of a layer, by name, as `Params`."""
    w_ih, w_hh, bias, b_hh = (
        _beside(arrays, names, transposed) for names, transposed in _parts(layout)
    )
    if layout.w_ih == layout.w_hh:
        hidden = w_hh.shape[-1] // layout.gates
        w_ih, w_hh = _split(w_hh, [w_hh.shape[-2] - hidden], -2)
    if layout.bias == layout.bias_hh and bias is not None:
        bias, b_hh = _split(bias, 2)
    stored, ours = layout.order or GATES[layout.cell], GATES[layout.cell]
    w_ih, w_hh, bias, b_hh = (
        _reordered(array, stored, ours, layout.negated)
        for array in (w_ih, w_hh, bias, b_hh)
    )
    if layout.forget_bias:
        bias = _with_forget_bias(bias, layout.forget_bias)
    w_hr = _beside(arrays, layout.w_hr, layout.transposed)
    if layout.bias_hh:
        return Params(w_ih, w_hh, bias, b_hh, w_hr=w_hr)
    bias_n = None if layout.bias_n is None else arrays.get(layout.bias_n)
    return join_biases(w_ih, w_hh, bias, bias_n, w_hr=w_hr)


def from_params(layout: Layout, params: Params, op: str = "from_params") -> Arrays:
    """`Params` as the arrays of a layer, by name; None where it is without biases.

    A bias that params lack and the layer must have is zero. Where the layer has one
    bias for our two, it is their sum.

    Raises:
      ValueError: the layer has no place for one of the biases; says so as function op.
    """
    check(
        layout.cell != "gru"
        or bool(layout.bias_hh)
        or layout.bias_n is not None
        or params.b_hh is None,
        f"{op}: the cell has no bias inside the product with r, so b_hh must be None, "
        "got an array; if its last third is zero, add it to b_ih.",
    )
    check_no_peepholes(op, params)
    if not layout.w_hr:
        check_no_projection(op, params)
    if layout.bias_hh:
        w_ih, w_hh, bias, b_hh, *_ = params
        bias_n = None
    else:
        w_ih, w_hh, bias, bias_n = separate_biases(layout.cell, params)
        b_hh = None
    if not layout.optional_bias or bias is not None or b_hh is not None:
        zeros = _zeros_like(w_hh[..., 0, :])
        bias = zeros if bias is None else bias
        b_hh = zeros if b_hh is None and layout.bias_hh else b_hh
        if layout.bias_n is not None and bias_n is None:
            bias_n = _split(zeros, layout.gates)[-1]

    if layout.forget_bias:
        bias = _with_forget_bias(bias, -layout.forget_bias)
    stored, ours = layout.order or GATES[layout.cell], GATES[layout.cell]
    w_ih, w_hh, bias, b_hh = (
        _reordered(array, ours, stored, layout.negated)
        for array in (w_ih, w_hh, bias, b_hh)
    )
    if layout.w_ih == layout.w_hh:
        w_ih = w_hh = _joined([w_ih, w_hh], -2)
    if layout.bias == layout.bias_hh and bias is not None:
        bias = b_hh = _joined([bias, b_hh])
    arrays: dict[str, Any] = {}
    parts = zip(_parts(layout), (w_ih, w_hh, bias, b_hh), strict=True)
    for (names, transposed), array in parts:
        arrays |= _apart(array, names, transposed)
    arrays |= _apart(params.w_hr, layout.w_hr, layout.transposed)
    return arrays if layout.bias_n is None else arrays | {layout.bias_n: bias_n}


def check_no_peepholes(op: str, params: Params) -> None:
    """Raises ValueError where a layer would lose them."""
    check(
        params.peepholes is None,
        f"{op}: the layer has no peepholes, so params.peepholes must be None, got an "
        "array; prnn_jax.lstm takes it.",
    )


def check_no_projection(op: str, params: Params) -> None:
    """Raises ValueError where a layer would lose it."""
    check(
        params.w_hr is None,
        f"{op}: the layer has no projection, so params.w_hr must be None, got an "
        "array; prnn_jax.lstm takes it.",
    )


def _parts(layout: Layout) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Names of what makes up w_ih, w_hh, bias and b_hh, and whether transposed."""
    return (
        (layout.w_ih, layout.transposed),
        (layout.w_hh, layout.transposed),
        (layout.bias, False),
        (layout.bias_hh, False),
    )


def _beside(arrays: Arrays, names: tuple[str, ...], transposed: bool) -> Any:
    """The named arrays side by side, `[in, gates*hidden]`; None if there are none."""
    pieces = [arrays[name] for name in names if arrays.get(name) is not None]
    if transposed:
        pieces = [piece.swapaxes(-1, -2) for piece in pieces]
    return _joined(pieces) if pieces else None


def _apart(array: Any, names: tuple[str, ...], transposed: bool) -> Arrays:
    """The inverse of `_beside`."""
    if array is None or not names:
        return dict.fromkeys(names)
    pieces = _split(array, len(names))
    if transposed:
        pieces = [piece.swapaxes(-1, -2) for piece in pieces]
    return dict(zip(names, pieces, strict=True))


def _reordered(array: Any, source: str, target: str, negated: str) -> Any:
    """The gates of an array, some with the opposite sign; None stays None."""
    if array is None or (source == target and not negated):
        return array
    gates = dict(zip(source, _split(array, len(source)), strict=True))
    return _joined([-gates[g] if g in negated else gates[g] for g in target])


def _with_forget_bias(bias: Any, forget_bias: float) -> Array:
    """An LSTM's bias, gates in our order, with a number added to f's."""
    i, f, g, o = _split(bias, 4)
    return _joined([i, f + f.dtype.type(forget_bias), g, o])


def join_biases(
    w_ih: Array,
    w_hh: Array,
    bias: Array | None,
    bias_n: Array | None,
    peepholes: Array | None = None,
    w_hr: Array | None = None,
) -> Params:
    """`Params` of a layer that keeps of b_hh only the last third, `bias_n`."""
    b_hh = None
    if bias_n is not None:
        zeros = _zeros_like(bias_n)
        b_hh = _joined([zeros, zeros, bias_n])
    return Params(w_ih, w_hh, bias, b_hh, peepholes, w_hr)


def separate_biases(
    cell: str, params: Params
) -> tuple[Array, Array, Array | None, Array | None]:
    """The inverse of `join_biases`: w_ih, w_hh, bias, bias_n, none of them redundant.

    Args:
      cell: "lstm", "rnn", or "gru" for the one with r after the product; only that one
        has a bias_n.
      params: with any b_ih and b_hh.
    """
    w_ih, w_hh, b_ih, b_hh, *_ = params
    if b_hh is None:
        return w_ih, w_hh, b_ih, None
    bias_n = None
    if cell == "gru":
        b_r, b_z, bias_n = _split(b_hh, 3)
        b_hh = _joined([b_r, b_z, _zeros_like(bias_n)])
    return w_ih, w_hh, b_hh if b_ih is None else b_ih + b_hh, bias_n


def stack_directions(directions: Sequence[Params]) -> Params:
    """A layer's params from those of a cell, or of a forward and a backward one."""
    if len(directions) == 1:
        return directions[0]
    sides = [Params(*side) for side in directions]  # that they are of one type
    both = jax.tree.map(lambda *arrays: jnp.stack(arrays), *sides)
    return BidirectionalParams(*both)


def split_directions(params: Params, bidirectional: bool) -> tuple[Params, ...]:
    """The inverse of `stack_directions`."""
    if not bidirectional:
        return (params,)
    one = MultiHeadParams if jnp.ndim(params.w_hh) > 3 else Params
    sides = [jax.tree.map(operator.itemgetter(d), params) for d in (0, 1)]
    return tuple(one(*side) for side in sides)


# ---- NumPy's arrays are left to NumPy, which has nothing to compile ------------------


def _numpy(*arrays: Any) -> Any:
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _joined(arrays: Sequence[Any], axis: int = -1) -> Any:
    return _numpy(*arrays).concatenate(arrays, axis)


def _split(array: Any, places: int | Sequence[int], axis: int = -1) -> list[Any]:
    return _numpy(array).split(array, places, axis)


def _zeros_like(array: Any) -> Any:
    return _numpy(array).zeros_like(array)
