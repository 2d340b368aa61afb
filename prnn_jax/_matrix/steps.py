"""One step after the other: what `chunks.py` computes many at a time."""

import functools

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._matrix.terms import Memory, Terms, most, normalised, stopped


def in_steps(
    terms: Terms, state: Memory, epsilon: float, precision
) -> tuple[Array, Memory]:
    """h `[*batch, time, d_v]`, in the dtype of the state, and the last state."""
    first = terms.along_time(lambda x, axis: jnp.moveaxis(x, axis, 0))
    step = functools.partial(_step, epsilon=epsilon, precision=precision)
    state, h = lax.scan(step, state, first)
    return jnp.moveaxis(h, 0, -2), state


def _step(
    state: Memory, terms: Terms, *, epsilon: float, precision
) -> tuple[Memory, Array]:
    wide = state.s.dtype
    q, k, v = (x.astype(wide) for x in terms[:3])
    read = functools.partial(_read, precision=precision)
    if terms.log_i is None or state.n is None or state.m is None:
        s = jnp.exp(terms.log_f)[..., None, None] * state.s
        if terms.beta is not None:
            v = terms.beta[..., None] * (v - read(k, s))
        s = s + k[..., None] * v[..., None, :]
        return Memory(s), read(q, s)
    m = jnp.maximum(terms.log_f + state.m, terms.log_i)
    m = stopped(jnp.maximum(m, -most(wide)), epsilon)
    f = jnp.exp(terms.log_f + state.m - m)
    k = jnp.exp(terms.log_i - m)[..., None] * k
    s = f[..., None, None] * state.s + k[..., None] * v[..., None, :]
    n = f[..., None] * state.n + k
    h = normalised(q, read(q, s), (q * n).sum(-1), m, epsilon)
    return Memory(s, n, m), h


def _read(q: Array, s: Array, precision) -> Array:
    return jnp.einsum("...d,...de->...e", q, s, precision=precision)
