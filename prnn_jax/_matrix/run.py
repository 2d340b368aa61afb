"""Runs a checked call: the order of its steps, and how many are taken at once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.options import Implementation, Lengths, Precision, Resets
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.sharding import match_varying
from prnn_jax._given import checks, statics
from prnn_jax._matrix.chunks import in_chunks
from prnn_jax._matrix.given import Given
from prnn_jax._matrix.steps import in_steps
from prnn_jax._matrix.terms import Memory, Terms

#: Steps at once where a call does not say: of the order of d_k, where the products of
#: a chunk with itself cost as much as those with the state.
CHUNK = 64


class How(NamedTuple):
    """What of a call is known when its program is made."""

    reverse: bool
    time_major: bool
    chunk: int  # steps at once; 1: one after the other
    epsilon: float
    precision: Any


def recur(
    op: str,
    qkv: dict[str, Any],
    gates: dict[str, Any],
    state: Any,
    terms_of: Any,
    *,
    is_normalised: bool = False,
    epsilon: float = 0.0,
    lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    time_major: bool = False,
    chunk_size: int | None = None,
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, Memory]:
    """h and the last state, of a call in the words of function `op`.

    Args:
      terms_of: makes the terms of q, k, v and the gates by name.
      is_normalised: whether the state has n and m.
    """
    checks.one_of(op, "implementation", implementation, (None, "scan"))
    chunk = CHUNK if chunk_size is None else statics.size(op, "chunk_size", chunk_size)
    how = How(
        statics.flag(op, "reverse", reverse),
        statics.flag(op, "time_major", time_major),
        1 if implementation == "scan" else chunk,
        statics.number(op, "epsilon", epsilon),
        statics.hashable(statics.precision(op, precision)),
    )
    given = Given.of(op, qkv, gates, lengths, resets, time_major=how.time_major)
    first = given.memory(op, state, is_normalised=is_normalised)
    controls = given.counts, given.resets
    arrays = (given.q, given.k, given.v), given.gates, first, controls
    arrays = match_varying(arrays)
    # Whatever a program wants promoted: ranks and dtypes are known here.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return _compiled(how, terms_of, *arrays)


@compiled_once(static_argnums=(0, 1))
def _compiled(
    how: How,
    terms_of: Any,
    qkv: tuple[Array, Array, Array],
    gates: dict[str, Array],
    first: Memory | None,
    controls: tuple[Array | None, Array | None],
) -> tuple[Array, Memory]:
    counts, resets = controls
    dtype = qkv[0].dtype
    if counts is not None:
        # What is there may be NaN, and 0 * NaN would come back as a gradient.
        q, k, v = (jnp.where(counts[..., None], x, 0) for x in qkv)
        qkv = q, k, v
        gates = {name: jnp.where(counts, gate, 0) for name, gate in gates.items()}
    terms = terms_of(*qkv, **gates)
    log_f, log_i = terms.log_f, terms.log_i
    if resets is not None:
        log_f = jnp.where(resets, -jnp.inf, log_f)
    if counts is not None:
        log_f = jnp.where(counts, log_f, 0)
        log_i = None if log_i is None else jnp.where(counts, log_i, -jnp.inf)
    others = *(x.sum(-1) for x in qkv), log_i, terms.beta
    for x in others:  # of all batch axes
        log_f = log_f if x is None else log_f + jnp.zeros_like(x, log_f.dtype)
    terms = terms._replace(log_f=log_f, log_i=log_i)
    first = _zeros(terms) if first is None else first
    if how.reverse:
        terms = terms.along_time(jnp.flip)
    more = how.epsilon, how.precision
    time = log_f.shape[-1]
    chunk = min(how.chunk, time) if isinstance(time, int) else how.chunk
    if chunk <= 1:
        h, last = in_steps(terms, first, *more)
    else:
        h, last = in_chunks(terms, first, chunk, *more)
    h = jnp.flip(h, -2) if how.reverse else h
    if counts is not None:
        h = jnp.where(counts[..., None], h, 0)
    h = jnp.moveaxis(h, -2, 0) if how.time_major else h
    return h.astype(dtype), last


def _zeros(terms: Terms) -> Memory:
    """Sharded as what is added to them."""
    rows, (k, v) = terms.log_f.sum(-1)[..., None], (x.sum(-2) for x in terms[1:3])
    n = jnp.zeros_like(k * rows, rows.dtype)
    s = jnp.zeros_like(n[..., None] * v[..., None, :], rows.dtype)
    return (
        Memory(s) if terms.log_i is None else Memory(s, n, jnp.zeros_like(rows[..., 0]))
    )
