"""Persistent recurrent layers for JAX.

`lstm`, `gru` and `rnn` run a layer over a whole sequence; `recurrence` takes input that
is projected already; `explain` tells which engine runs a call. Layers for Flax and
Equinox are in `prnn_jax.nnx` and `prnn_jax.equinox`.
"""

from prnn_jax._ops import Params, gru, lstm, recurrence, rnn
from prnn_jax._plan import Plan, explain
from prnn_jax._recurrence import SAVED

__all__ = ["SAVED", "Params", "Plan", "explain", "gru", "lstm", "recurrence", "rnn"]
