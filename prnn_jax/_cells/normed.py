"""The cells with layer norm inside of their steps, in jax.numpy.

As `_cells.table`, which has the others: the reference, and what `lax.scan` runs. There
the x part is normalised for all steps at once (`of_x`); the engines do it in each step.
A unit's own numbers are, as both take them, `PER_UNIT`; the first of them, all but the
gains of a_x, are the step's.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._given.checks import float32_at_least


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """How `normed` normalises: what differs between those who have it.

    - `LayerNorm()`: the LSTM of Ba et al. (2016, arXiv:1607.06450), haste's
      `LayerNormLSTM` and `LayerNormGRU`
    - `LayerNorm(of="sum", c="state")`: the LSTM of torchaudio's RNN-T
    - `LayerNorm(c="state")`: the LSTM of PyTorch's `benchmarks/fastrnns`
    - `LayerNorm(of="sum", over="gate", c="state", epsilon=1e-12)`: TensorFlow's
      `LayerNormBasicLSTMCell`

    Attributes:
      of: "parts" normalises :math:`x W_{ih}` and :math:`h W_{hh}` apart, each with
        gains of its own; "sum" the two together (LSTM only).
      over: "gates": mean and variance are those of all gates' values of a row
        together; "gate": of each gate's alone.
      c: what of an LSTM sees c normalised: its "output" alone; the "state", so that c
        is handed on as it is normalised; or None, nothing.
      epsilon: added to variances.
    """

    of: Literal["parts", "sum"] = "parts"
    over: Literal["gates", "gate"] = "gates"
    c: Literal["output", "state"] | None = "output"
    epsilon: float = 1e-5

    @property
    def attribute(self) -> str:
        """The same as C++ reads it: ffi/attributes.h."""
        bits = np.float32(self.epsilon).view(np.uint32)
        return f"{self.of} {self.over} {self.c or 'none'} {bits:08x}"


def standardised(a: Array, norm: LayerNorm, gates: int = 1) -> Array:
    """a `[..., gates*hidden]` with means 0 and variances 1; in float32 at least."""
    parts = gates if norm.over == "gate" else 1
    of_parts = a.shape[:-1], (parts, a.shape[-1] // parts)
    wide = a.astype(float32_at_least(a.dtype))
    wide = wide.reshape(*of_parts[0], *of_parts[1])
    wide = wide - wide.mean(-1, keepdims=True)
    variance = (wide**2).mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(variance + norm.epsilon)
    return wide.reshape(a.shape).astype(a.dtype)


#: By the states: gains of gates' products (or sums), the gates' shifts; of the LSTM the
#: gain and the shift of c, of the GRU what is added to a_x of n; gains of gates' a_x.
PER_UNIT = {"hc": (4, 4, 1, 1, 4), "h": (3, 3, 1, 3)}


def of_x(norm: LayerNorm, gates: int, raw: Array, own: Array, time_axis: int):
    """a_x as steps take it, and their own numbers, of x w_ih and of all numbers.

    Args:
      norm: of the cell.
      gates: likewise.
      raw: a sequence.
      own: `[N, U*hidden]`, or, as a state, of each row.
      time_axis: of the sequence.
    """
    own, gain = jnp.split(own, [own.shape[-1] - raw.shape[-1]], -1)
    if norm.of == "sum":
        return raw, own
    gain = gain if gain.ndim == 3 else gain[None]
    gain = jnp.expand_dims(gain, time_axis)
    return gain * standardised(raw, norm, gates), own


def divided(own: Array, *counts: int) -> list[Array]:
    """Numbers of units, so many of each kind."""
    hidden = own.shape[-1] // sum(counts)
    ends = [sum(counts[: n + 1]) * hidden for n in range(len(counts) - 1)]
    return jnp.split(own, ends, -1)


def _lstm(norm: LayerNorm, call, a_x, state, product, own):
    del call
    h, c = state
    gain, shift, gain_c, shift_c = divided(own, 4, 4, 1, 1)
    a = product(h, 0, 4)
    if norm.of == "sum":
        a, a_x = a_x + a, 0
    gates = jnp.split(a_x + (gain * standardised(a, norm, 4) + shift), 4, -1)
    i, f, o = map(jax.nn.sigmoid, (gates[0], gates[1], gates[3]))
    g = jnp.tanh(gates[2])
    c = f * c + i * g
    seen = c if norm.c is None else gain_c * standardised(c, norm) + shift_c
    h = o * jnp.tanh(seen)
    return (h, seen if norm.c == "state" else c), (i, f, g, o, *jnp.split(a, 4, -1))


def _gru(norm: LayerNorm, call, a_x, state, product, own):
    del call
    (h,) = state
    gain, shift, shift_n = divided(own, 3, 3, 1)
    a = product(h, 0, 3)
    h_r, h_z, h_n = jnp.split(gain * standardised(a, norm, 3) + shift, 3, -1)
    x_r, x_z, x_n = jnp.split(a_x, 3, -1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + shift_n + r * h_n)
    return (n + z * (h - n),), (r, z, n, *jnp.split(a, 3, -1))


STEPS: dict[str, Callable] = {"lstm": _lstm, "gru": _gru}


def step_of(cell: Literal["lstm", "gru"], norm: LayerNorm) -> Callable:
    """The step of a row of `_cells.table.CELLS`."""
    return functools.partial(STEPS[cell], norm)
