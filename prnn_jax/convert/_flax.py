"""The cells of Flax, Linen and NNX."""

from collections.abc import Mapping
from typing import Any

from jax import Array

from prnn_jax._given.params import Params
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.layouts import NNX, Layout

_LSTM = Layout(
    "lstm",
    ("ii.kernel", "if.kernel", "ig.kernel", "io.kernel"),
    ("hi.kernel", "hf.kernel", "hg.kernel", "ho.kernel"),
    ("hi.bias", "hf.bias", "hg.bias", "ho.bias"),
)
_LINEN = {
    "LSTMCell": _LSTM,
    "OptimizedLSTMCell": _LSTM,
    "GRUCell": Layout(
        "gru",
        ("ir.kernel", "iz.kernel", "in.kernel"),
        ("hr.kernel", "hz.kernel", "hn.kernel"),
        ("ir.bias", "iz.bias", "in.bias"),
        "hn.bias",
    ),
    "SimpleCell": Layout("rnn", ("i.kernel",), ("h.kernel",), ("i.bias",)),
}


def from_linen(cell: str, params: Mapping[str, Mapping[str, Any]]) -> Params:
    """A cell of `flax.linen` as `Params`.

    What `nn.RNN(cell)` computes, with the cell's own activations, is

    - LSTMCell, OptimizedLSTMCell: `prnn_jax.lstm(x, params, (h, c))`. Flax's carry is
      the other way round, `(c, h)`.
    - GRUCell: `prnn_jax.gru(x, params, h)`.
    - SimpleCell: `prnn_jax.rnn(x, params, h)`, with skip=1.0 if residual, and with
      activation="relu" if that is the cell's.

    With reverse=True in both, Flax's outputs are in the order of processing unless
    keep_order; ours are always in the order of x.

    Args:
      cell: "LSTMCell", "OptimizedLSTMCell", "GRUCell" or "SimpleCell".
      params: of the cell alone: `variables["params"]["cell"]` of an `nn.RNN`, and
        `["forward_rnn"]["cell"]`, `["backward_rnn"]["cell"]` of an `nn.Bidirectional`,
        which `stack_directions` puts together. Kernels `[input, hidden]` and
        `[hidden, hidden]`, biases `[hidden]`: ii if ig io, hi hf hg ho with bias; ir iz
        in with bias, hr hz, hn with bias; i with bias, h.

    Returns:
      `Params` with b_ih, and from the GRUCell with b_hh, zero but for its last third.

    Raises:
      ValueError: arrays are missing, unknown, or of wrong shapes.
    """
    op = "from_linen"
    layout = named_arrays.layout_of(op, _LINEN, cell)
    wanted = 'e.g. variables["params"]["cell"] of an nn.RNN'
    named_arrays.check_mapping(op, "params", params, wanted)
    return named_arrays.read(op, layout, named_arrays.flat(params, "."))


def to_linen(cell: str, params: Params) -> dict[str, dict[str, Array]]:
    """The inverse of `from_linen`.

    Linen's cells have biases, zero where params have none. b_ih and b_hh become one,
    their sum; only the last third of the GRU's b_hh stays apart.

    Args:
      cell: "LSTMCell", "OptimizedLSTMCell", "GRUCell" (of `prnn_jax.gru` with
        reset_after only) or "SimpleCell".
      params: with the gates that the cell has, of one direction (`split_directions`).

    Raises:
      ValueError: shapes do not fit.
    """
    op = "to_linen"
    layout = named_arrays.layout_of(op, _LINEN, cell)
    return named_arrays.nested(named_arrays.write(op, layout, params), ".")


def from_nnx(cell: str, state: Mapping[str, Mapping[str, Any]]) -> Params:
    """A cell of `flax.nnx` as `Params`.

    What computes the same is said in `from_linen`. To have a layer for a cell, take
    `prnn_jax.nnx.LSTM.from_cell(cell)` and the like.

    Args:
      cell: "OptimizedLSTMCell", "LSTMCell", "GRUCell" or "SimpleCell".
      state: `nnx.state(cell, nnx.Param)`, or the same as dictionaries: dense_i with
        kernel `[input, G*hidden]` and dense_h with kernel `[hidden, G*hidden]`, one of
        them with bias `[G*hidden]`; of the LSTMCell `ii if_ ig io` and `hi hf hg ho`,
        each a gate.

    Returns:
      `Params` with b_ih alone: the GRUCell, unlike Linen's, has no bias that r
      multiplies.

    Raises:
      ValueError: arrays are missing, unknown, or of wrong shapes.
    """
    op = "from_nnx"
    layout = named_arrays.layout_of(op, NNX, cell)
    named_arrays.check_mapping(op, "state", state, "nnx.state(cell, nnx.Param)")
    return named_arrays.read(op, layout, named_arrays.flat(state, "."))


def to_nnx(cell: str, params: Params) -> dict[str, dict[str, Array]]:
    """The inverse of `from_nnx`, for `nnx.update(cell, ...)`.

    NNX's cells have a bias, zero where params have none. b_ih and b_hh become one,
    their sum.

    Args:
      cell: "OptimizedLSTMCell", "LSTMCell", "GRUCell" (of `prnn_jax.gru` with
        reset_after and without b_hh only) or "SimpleCell".
      params: with the gates that the cell has, of one direction (`split_directions`).

    Raises:
      ValueError: shapes do not fit, or the GRU has a b_hh.
    """
    op = "to_nnx"
    layout = named_arrays.layout_of(op, NNX, cell)
    return named_arrays.nested(named_arrays.write(op, layout, params), ".")
