"""The cells of Equinox."""

from collections.abc import Mapping
from typing import Any

from jax import Array

from prnn_jax._given.params import Params
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.layouts import EQUINOX


def from_equinox(cell: str, arrays: Mapping[str, Any]) -> Params:
    """A cell of `equinox.nn` as `Params`.

    Scanned over time, an LSTMCell computes `prnn_jax.lstm(x, params, (h, c))` and a
    GRUCell `prnn_jax.gru(x, params, h)`; states are in the same order. To have a layer
    for a cell, take `prnn_jax.equinox.LSTM.from_cell(cell)` and the like.

    Args:
      cell: "LSTMCell" or "GRUCell".
      arrays: the cell's, by attribute, e.g. `vars(cell)`, of which only arrays count:
        weight_ih `[G*hidden, input]`, weight_hh `[G*hidden, hidden]`, and, unless
        use_bias=False, bias `[G*hidden]` and of the GRUCell bias_n `[hidden]`.

    Returns:
      `Params` with b_ih or without a bias; from a GRUCell with bias also with b_hh,
      zero but for its last third.

    Raises:
      ValueError: arrays are missing, unknown, or of wrong shapes.
    """
    op = "from_equinox"
    layout = named_arrays.layout_of(op, EQUINOX, cell)
    named_arrays.check_mapping(op, "arrays", arrays, "vars(cell)")
    numbers = (bool, int)
    arrays = {n: a for n, a in arrays.items() if not isinstance(a, numbers)}
    return named_arrays.read(op, layout, arrays)


def to_equinox(cell: str, params: Params) -> dict[str, Array]:
    """The inverse of `from_equinox`.

        cell = eqx.nn.GRUCell(input_size, hidden_size, key=key)
        for name, array in to_equinox("GRUCell", params).items():
            cell = eqx.tree_at(lambda cell: getattr(cell, name), cell, array)

    The cell must have use_bias=False if params have no bias. b_ih and b_hh become one,
    their sum; only the last third of the GRU's b_hh stays apart.

    Args:
      cell: "LSTMCell" or "GRUCell" (of `prnn_jax.gru` with reset_after only).
      params: with the gates that the cell has, of one direction (`split_directions`).

    Raises:
      ValueError: shapes do not fit.
    """
    op = "to_equinox"
    layout = named_arrays.layout_of(op, EQUINOX, cell)
    return named_arrays.write(op, layout, params)
