"""What the layers for Flax must know of their cells; needs no Flax itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

from prnn_jax._call.choose import GATED
from prnn_jax._cells.table import CELLS, AnyCell, Cell, CellName, Defined
from prnn_jax._given import statics
from prnn_jax._given.checks import check
from prnn_jax._ops import recurrent


@dataclass(frozen=True)
class Kind:
    """What a layer must know of its cell.

    Attributes:
      cell: its row of `_cells.table.CELLS`.
      function: the function of `prnn_jax` that runs it.
      carry: names of the states in the order of a carry: Flax's for the LSTM, that of
        the function for the others.
      options: attributes of a layer that are arguments of the function, of those that
        not all functions have.
      has_carry_init: whether it makes sense to draw its states.
    """

    cell: Cell
    function: Callable
    carry: str
    options: tuple[str, ...]
    has_carry_init: bool = True

    @classmethod
    def of_defined(cls, cell: Defined) -> Self:
        """That of a cell that `define_cell` has made."""
        row, function = CELLS[cell.row], cast("Callable", cell)
        return cls(row, function, row.state_names, ())

    @property
    def named(self) -> AnyCell:
        """The cell as `prnn_jax.stack` takes it."""
        function: Any = self.function
        return function if isinstance(function, Defined) else self.cell.function


LSTM = Kind(CELLS["lstm"], recurrent.lstm, "ch", GATED)
SLSTM = Kind(CELLS["slstm"], recurrent.slstm, "hcnm", (), has_carry_init=False)
GRU = Kind(CELLS["gru"], recurrent.gru, "h", (*GATED, "reset_after"))
RNN = Kind(CELLS["rnn_tanh"], recurrent.rnn, "h", ("activation", "clip", "cap", "skip"))
KINDS: dict[CellName, Kind] = {
    kind.cell.function: kind for kind in (GRU, LSTM, RNN, SLSTM)
}


def check_gru(reset_after: bool, recurrent_bias: bool) -> None:
    """Raises ValueError for options of a GRU that exclude each other."""
    after = statics.flag("GRU", "reset_after", reset_after)
    check(
        after or not statics.flag("GRU", "recurrent_bias", recurrent_bias),
        "GRU: recurrent_bias must be False without reset_after, where it would "
        "only be added to b_ih, got True.",
    )
