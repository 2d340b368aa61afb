r"""Many steps at once, by products of matrices: the chunkwise form.

Of a chunk, with :math:`D_{ts} = \prod_{r=s+1}^{t} f_r` for :math:`s \le t` and
:math:`D_{t0}` from its beginning, what a step reads is

.. math:: h_t = D_{t0} S_0^T q_t + \sum_{s \le t} D_{ts} (q_t \cdot k_s) v_s

so that only S goes from chunk to chunk (Hua et al. 2022; Sun et al. 2023; Yang et al.
2024, of the delta rule: there v is what is written, which is the solution of a
triangular system). Sums of logarithms are of just the steps between, none a difference
of two: a gate that forgets all costs no accuracy of others.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._matrix.terms import Memory, Terms, most, normalised, stopped


def in_chunks(
    terms: Terms, state: Memory, size: int, epsilon: float, precision
) -> tuple[Array, Memory]:
    """As `in_steps`, some steps at a time."""
    time, wide = terms.log_f.shape[-1], state.s.dtype
    chunks = _divided(terms, size)
    q, k, v = chunks[:3]
    decay = _decays(chunks.log_f, chunks.log_i, state.m, epsilon)
    dot = functools.partial(
        jnp.einsum, precision=precision, preferred_element_type=wide
    )
    # float16 has no numbers as large as those that are made of it.
    narrow = wide if q.dtype == jnp.float16 else q.dtype
    scores = (dot("...td,...sd->...ts", q, k) * decay.within).astype(narrow)

    def read(values: Array, before: Array) -> Array:
        of_before = dot("...td,...de->...te", q, before.astype(narrow))
        of_chunk = dot("...ts,...se->...te", scores, values.astype(narrow))
        return of_chunk + decay.before[..., None] * of_before

    last = (decay.after[..., None] * k).astype(narrow)  # as what comes after sees it
    if chunks.beta is not None:
        written = _written(chunks, decay, dot)
        (values, before), s = _rewritten(written, decay.across, last, state.s, dot)
        return _joined(read(values, before), time), Memory(s)
    of_chunks = dot("...sd,...se->...de", last, v)
    before, s = _states(decay.across[..., None, None], of_chunks, state.s)
    h = read(v, before)
    if state.n is None or decay.m is None:
        return _joined(h, time), Memory(s)
    of_chunks = last.astype(wide).sum(-2)
    before, n = _states(decay.across[..., None], of_chunks, state.n)
    by_n = read(jnp.ones_like(v[..., :1]), before[..., None])[..., 0]
    h = normalised(q, h, by_n, decay.m, epsilon)
    return _joined(h, time), Memory(s, n, decay.last_m)


def _divided(terms: Terms, size: int) -> Terms:
    """The same `[chunks, *batch, size, ...]`; steps that are not there do nothing."""
    time = terms.log_f.shape[-1]
    count = (time + size - 1) // size  # what JAX knows to be one at least of any time

    def divided(x: Array | None, axis: int, empty: float = 0.0) -> Any:
        if x is None:
            return None
        axis += x.ndim
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, count * size - time)
        x = jnp.pad(x, widths, constant_values=empty)
        x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    q, k, v = (divided(x, -2) for x in terms[:3])
    log_f, beta = divided(terms.log_f, -1), divided(terms.beta, -1)
    return Terms(q, k, v, log_f, divided(terms.log_i, -1, -jnp.inf), beta)


def _joined(h: Array, time: int) -> Array:
    h = jnp.moveaxis(h, 0, -3)
    *batch, count, size, features = h.shape
    return h.reshape(*batch, count * size, features)[..., :time, :]


class _Decays(NamedTuple):
    """How much is left of what was written, by when and where.

    Attributes:
      within: `[chunks, ..., t, s]`: at step t of what step s writes.
      before: `[chunks, ..., t]`: at step t of the state before the chunk.
      after: `[chunks, ..., s]`: after the chunk of what step s writes.
      across: `[chunks, ...]`: after the chunk of the state before.
      m: `[chunks, ..., t]`: of each step, by whose e^m all is divided, or None.
      last_m: `[...]`: of the last state.
    """

    within: Array
    before: Array
    after: Array
    across: Array
    m: Array | None = None
    last_m: Array | None = None


def _decays(
    log_f: Array, log_i: Array | None, m_0: Array | None, epsilon: float
) -> _Decays:
    size = log_f.shape[-1]
    t, s = jnp.arange(size)[:, None], jnp.arange(size)
    upto = jnp.cumsum(log_f, -1)
    between = jnp.cumsum(jnp.where(t > s, log_f[..., :, None], 0), -2)
    between = jnp.where(t >= s, between, -jnp.inf)
    rest = between[..., -1, :]
    if log_i is None or m_0 is None:
        return _Decays(*map(jnp.exp, (between, upto, rest, upto[..., -1])))
    between, rest = between + log_i[..., None, :], rest + log_i
    floor = -most(log_f.dtype)
    # A chunk's last m is, of the one before it, the larger of a + m and b.
    ends = upto[..., -1], jnp.maximum(rest.max(-1), floor), m_0
    after = _largest(*(stopped(x, epsilon) for x in ends))
    before = jnp.concatenate([m_0[None], after[:-1]])
    upto = upto + before[..., None]
    m = jnp.maximum(jnp.maximum(upto, between.max(-1)), floor)
    m = stopped(m, epsilon)
    return _Decays(
        jnp.exp(between - m[..., None]),
        jnp.exp(upto - m),
        jnp.exp(rest - after[..., None]),
        jnp.exp(upto[..., -1] - after),
        m,
        after[-1],
    )


def _largest(a: Array, b: Array, m_0: Array) -> Array:
    """All m of m' = max(a + m, b)."""

    def body(m: Array, chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        m = jnp.maximum(chunk[0] + m, chunk[1])
        return m, m

    return lax.scan(body, m_0, (a, b))[1]


def _states(across: Array, of_chunks: Array, first: Array) -> tuple[Array, Array]:
    """The states before each chunk, and the last."""

    def body(s: Array, chunk: tuple[Array, Array]) -> tuple[Array, Array]:
        left, more = chunk
        return left * s + more, s

    last, before = lax.scan(body, first, (across, of_chunks))
    return before, last


# ---- the delta rule ------------------------------------------------------------------


def _written(chunks: Terms, decay: _Decays, dot: Callable) -> tuple[Array, Array]:
    """What a step writes, u - w S, of the state S before the chunk.

    Of what the steps of the chunk before it have written, it takes back what its k
    reads: (1 + A) written = beta v - beta D_t0 k S, with A below the diagonal.
    """
    _, k, v, _, _, beta = chunks
    wide, size = decay.before.dtype, k.shape[-2]
    beta = beta[..., None] if beta is not None else jnp.ones((), wide)
    t, s = jnp.arange(size)[:, None], jnp.arange(size)
    a = jnp.where(t > s, beta * decay.within * dot("...td,...sd->...ts", k, k), 0)
    right = beta * v, beta * decay.before[..., None] * k
    batch = jnp.broadcast_shapes(a.shape[:-2], *(x.shape[:-2] for x in right))
    a, *right = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, *right))
    both = lax.linalg.triangular_solve(
        a,
        jnp.concatenate(right, -1).astype(wide),
        left_side=True,
        lower=True,
        unit_diagonal=True,
    )
    u, w = jnp.split(both, [v.shape[-1]], -1)
    return u, w


def _rewritten(
    written: tuple[Array, Array],
    across: Array,
    last: Array,
    first: Array,
    dot: Callable,
) -> tuple[tuple[Array, Array], Array]:
    """What all steps write and the states before each chunk, and the last state."""

    def body(s: Array, chunk: Any) -> Any:
        (u, w), left, k = chunk
        values = u - dot("...td,...de->...te", w, s)
        more = dot("...sd,...se->...de", k, values.astype(k.dtype))
        return left[..., None, None] * s + more, (values, s)

    s, (values, before) = lax.scan(body, first, (written, across, last))
    return (values, before), s
