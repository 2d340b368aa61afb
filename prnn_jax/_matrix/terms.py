"""What a recurrence with a matrix as its state takes at each step, and that state."""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import jax.numpy as jnp
from jax import Array, lax


class Terms(NamedTuple):
    """Sequences `[*batch, time, ...]` whose batch axes fit each other.

    Attributes:
      q, k, v: `[*batch, time, d_k]`, twice, and `[*batch, time, d_v]`.
      log_f: `[*batch, time]`: log of what is left of the state.
      log_i: log of what k and v count, if what is read is normalised (mLSTM).
      beta: how much of what k reads v replaces (delta rule); then without log_i.
    """

    q: Array
    k: Array
    v: Array
    log_f: Array
    log_i: Array | None = None
    beta: Array | None = None

    def along_time(self, f: Callable[[Array, int], Array]) -> "Terms":
        """f(x, axis) of each that there is, axis that of time."""
        q, k, v = (f(x, -2) for x in self[:3])
        log_f, *gates = (None if x is None else f(x, -1) for x in self[3:])
        return Terms(q, k, v, cast(Array, log_f), *gates)


class Memory(NamedTuple):
    """The state of such a recurrence: S, or e^m S if it is normalised.

    Attributes:
      s: `[*batch, d_k, d_v]`.
      n: `[*batch, d_k]`, what S would be if all v were 1; with a factor e^m as S.
      m: `[*batch]`.
    """

    s: Array
    n: Array | None = None
    m: Array | None = None


def most(dtype) -> float:
    """What |m| may be for the square of e^m to be a number, which division has."""
    return 0.45 * math.log(float(jnp.finfo(dtype).max))


def stopped(m: Array, epsilon: float) -> Array:
    """m, or where h does not depend on it, a constant: epsilon alone is not by e^m."""
    return m if epsilon else lax.stop_gradient(m)


def normalised(q: Array, read: Array, by_n: Array, m: Array, epsilon: float) -> Array:
    """What S gives for q / √d_k, divided by what n gives, or by 1 if that is less.

    By no less than what n gives with rounding alone, whose square is a number. Both
    are of q itself, which 16 bits would round once more, and the rest is times √d_k.
    """
    root = q.shape[-1] ** 0.5
    one = jnp.exp(-jnp.minimum(m, most(m.dtype)))
    return read / (jnp.maximum(abs(by_n), root * one) + root * epsilon)[..., None]
