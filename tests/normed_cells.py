"""Cells with layer norm, in all variants, and arrays for them."""

import jax
import numpy as np

from prnn_jax import LayerNorm, normed

IN, HIDDEN, TIME, BATCH = 5, 33, 7, 3
KEY = jax.random.key(0)

CELLS = {
    "lstm": normed("lstm"),
    "lstm_torchaudio": normed("lstm", LayerNorm(of="sum", c="state")),
    "lstm_basic": normed(
        "lstm", LayerNorm(of="sum", over="gate", c="state", epsilon=1e-12)
    ),
    "lstm_fastrnns": normed("lstm", LayerNorm(c="state")),
    "lstm_each_gate": normed("lstm", LayerNorm(over="gate", c=None, epsilon=1e-3)),
    "gru": normed("gru"),
    "gru_each_gate": normed("gru", LayerNorm(over="gate")),
}


def arrays_of(
    cell, *, directions=1, heads=0, batch=BATCH, hidden=HIDDEN, time=TIME, seed=7
):
    """x and params in float64, no number of which is one that it begins with."""
    rng = np.random.default_rng(seed)
    lead = (2,) * (directions - 1) + ((heads,) if heads else ())
    like = cell.init(
        KEY,
        IN,
        hidden * (heads or 1),
        bidirectional=directions == 2,
        heads=heads or None,
    )
    like = like._replace(b_hh=like.b_ih)
    draw = {
        name: rng.normal(size=a.shape)
        * (1 / np.sqrt(hidden) if a.ndim > len(lead) + 1 else 0.5)
        for name, a in like._asdict().items()
        if a is not None
    }
    draw["peepholes"] = np.asarray(like.peepholes) + 0.3 * draw["peepholes"]
    x = rng.normal(size=(batch, time, IN))
    return x, type(like)(**draw)
