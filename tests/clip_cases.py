"""Cells with bounds inside of their steps, and cases of them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from cases import CellCase
from half_support import Half

import prnn_jax
from prnn_jax import Activation, Clip

ALL = Clip(pre_activations=0.8, gradients=0.25)
LSTM = ALL._replace(state=(-0.4, 0.5))
CELLS = {
    "lstm": CellCase(prnn_jax.lstm, 4, "lstm_general", {"clip": LSTM}, states=2),
    "lstm_state": CellCase(
        prnn_jax.lstm, 4, "lstm_general", {"clip": Clip(state=0.4)}, states=2
    ),
    "lstm_peephole": CellCase(
        prnn_jax.lstm, 4, "lstm_peephole", {"clip": LSTM}, states=2, per_unit=3
    ),
    "lstm_general": CellCase(
        prnn_jax.lstm,
        4,
        "lstm_general",
        {"clip": LSTM, "gate_activation": "hard_sigmoid", "activation": "softsign"},
        states=2,
    ),
    "gru": CellCase(prnn_jax.gru, 3, "gru_general", {"clip": ALL}),
    "gru_gradients": CellCase(
        prnn_jax.gru, 3, "gru_general", {"clip": Clip(gradients=0.1)}
    ),
    "gru_reset_before": CellCase(
        prnn_jax.gru, 3, "gru_reset_before", {"clip": ALL, "reset_after": False}
    ),
    "rnn": CellCase(prnn_jax.rnn, 1, "rnn_general", {"clip": ALL, "skip": 0.5}),
    "rnn_scaled_tanh": CellCase(
        prnn_jax.rnn,
        1,
        "rnn_general",
        {"clip": ALL, "activation": Activation("scaled_tanh", 1.5, -0.75)},
    ),
}


@dataclass(frozen=True)
class Clipped(Half):
    """A case of a cell with bounds."""

    half: str = "float32"

    @property
    def table(self) -> CellCase:
        return CELLS[self.cell]

    def __str__(self) -> str:
        return f"clip-{super().__str__()}"


def assert_most_are_as_accurate(ours, of_scan, exact, half) -> None:
    """Gradients in 16 bits.

    Where a value is near a bound, rounding makes another gradient of its row, the
    scan's too. Most are near none.
    """
    for name, value in ours.items():
        errors, errors_of_scan = (
            np.abs(np.float64(a) - exact[name]) for a in (value, of_scan[name])
        )
        slack = float(jnp.finfo(half).eps) / 2 * abs(exact[name]).max()
        assert np.median(errors) <= 2 * np.median(errors_of_scan) + slack / 4, name
