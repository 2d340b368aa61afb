"""The cells with layer norm inside of their steps, in jax.numpy.

As `_cells.table`, which has the others: the reference, and what `lax.scan` runs. Their
x part is normalised outside of the recurrence, for all steps at once
(`_autodiff.normed`); what a step has besides a_x is, per unit, a gain and a shift of
each gate, and of an LSTM's c.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


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
    wide = a.astype(jnp.promote_types(a.dtype, jnp.float32))
    wide = wide.reshape(*of_parts[0], *of_parts[1])
    wide = wide - wide.mean(-1, keepdims=True)
    variance = (wide**2).mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(variance + norm.epsilon)
    return wide.reshape(a.shape).astype(a.dtype)


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
    gain, shift = divided(own, 3, 3)
    a = product(h, 0, 3)
    h_r, h_z, h_n = jnp.split(gain * standardised(a, norm, 3) + shift, 3, -1)
    x_r, x_z, x_n = jnp.split(a_x, 3, -1)
    r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    n = jnp.tanh(x_n + r * h_n)
    return (n + z * (h - n),), (r, z, n, *jnp.split(a, 3, -1))


#: Of gradients: all gates' side by side, and that of an LSTM's c as its output sees it.
GATES, SEEN = "gates", "seen"


def own_inputs(norm: LayerNorm, state_names: str, before, reserve):
    """What the numbers that a step has of a unit multiply, of all steps at once.

    Args:
      norm: of the cell.
      state_names: of the cell.
      before: the states before each step.
      reserve: of each step.

    Returns:
      Pairs: whose gradient they are factors of, `GATES` or `SEEN`, and the factors,
      None for 1.
    """
    gates = len(reserve) // 2
    inputs = standardised(jnp.concatenate(reserve[gates:], -1), norm, gates)
    if "c" not in state_names:  # r is between n and its share of the product
        one = jnp.ones_like(reserve[0])
        factors = jnp.concatenate([one, one, reserve[0]], -1)
        return [(GATES, inputs * factors), (GATES, factors)]
    i, f, g, _ = reserve[:4]
    c = standardised(f * before[1] + i * g, norm)  # as made, whatever zoneout mixed
    return [(GATES, inputs), (GATES, None), (SEEN, c), (SEEN, None)]


STEPS: dict[str, Callable] = {"lstm": _lstm, "gru": _gru}


def step_of(cell: Literal["lstm", "gru"], norm: LayerNorm) -> Callable:
    """The step of a row of `_cells.table.CELLS`."""
    return functools.partial(STEPS[cell], norm)
