"""The lean backward pass: gates are made again instead of being kept.

Given the states before every step, the gates of all steps are one large product. It is
made chunk by chunk of time, the last first, so that the gates of a chunk are all that
exists of them.
"""

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax import _ffi
from prnn_jax._before import before
from prnn_jax._call import Call
from prnn_jax._cells import State
from prnn_jax._controls import Controls, valid_steps
from prnn_jax._scan import grouped_product

#: Into how many parts of nearly equal size a sequence is cut at most, and below how
#: many steps a part is not worth a call.
MAX_CHUNKS, MIN_STEPS = 4, 16


def backward(call: Call, primals, kept, cotangents):
    """As `_ffi.backward`, from what a forward pass with save="states" kept.

    Returns:
      The gradients, and what a forward pass with save="all" would have kept.
    """
    a_x, w_hh, b_hh, state_0, controls = primals
    y, saved = kept
    dy, dstate = cotangents
    fast = replace(call, lean=False, save="all")
    axis, time = call.time_axis, y.shape[call.time_axis]
    befores = _states_before(call, y, saved, state_0, controls)

    # Two directions meet every time at different steps: they are one chunk. So is a
    # sequence whose length is known only when the program runs.
    chunks = 1
    if isinstance(time, int) and not call.bidirectional:
        chunks = max(min(MAX_CHUNKS, time // MIN_STEPS), 1)
    edges = [time * n // chunks for n in range(chunks + 1)]
    spans = list(itertools.pairwise(edges))
    spans = spans if call.reverse else spans[::-1]

    parts: dict[int, tuple] = {}
    dreset_to = None
    for first, last in spans:

        def cut(x: Any, first=first, last=last) -> Any:
            return None if x is None else lax.slice_in_dim(x, first, last, axis=axis)

        bent = _controls_of_chunk(controls, cut, first, last)
        chunk_a_x, chunk_y = cut(a_x), cut(y)
        chunk_befores = tuple(cut(state) for state in befores)
        gates = _gates(fast, chunk_a_x, w_hh, b_hh, chunk_befores, bent)
        # What the chunk begins with, in the order of processing.
        begins = state_0
        if (first, last) != spans[-1]:
            begins = _first_states(call, chunk_befores, bent)
        chunk = (chunk_a_x, w_hh, b_hh, begins, bent)
        states = () if not saved else (cut(saved[0]),)
        chunk_saved = (
            (jnp.concatenate([*gates, *states], -1),) if gates or states else ()
        )
        chunk_kept = chunk_y, chunk_saved
        da_x, da_h, dstate, dreset = _ffi.backward(
            fast, chunk, chunk_kept, (cut(dy), dstate)
        )
        dreset_to = dreset if dreset_to is None else _sum(dreset_to, dreset)
        parts[first] = (da_x, da_h, chunk_saved)
    ordered = [parts[first] for first in sorted(parts)]
    da_x, da_h, saved = jax.tree.map(lambda *x: jnp.concatenate(x, axis), *ordered)
    return (da_x, da_h, dstate, dreset_to), saved


def _states_before(call: Call, y, saved, state_0: State, controls) -> State:
    after = [y]
    if saved:
        after += jnp.split(saved[0], call.table.states - 1, -1)
    return tuple(
        before(call, x, x_0, controls, n)
        for n, (x, x_0) in enumerate(zip(after, state_0, strict=True))
    )


def _controls_of_chunk(controls: Controls, cut, first: int, last: int) -> Controls:
    lengths = controls.lengths
    if lengths is not None:
        lengths = jnp.clip(lengths - first, 0, last - first)
    return controls._replace(
        lengths=lengths, resets=cut(controls.resets), zoneout=cut(controls.zoneout)
    )


def _gates(call: Call, a_x, w_hh, b_hh, befores: State, controls: Controls):
    """The reserve of all steps of a chunk."""
    hidden = w_hh.shape[1]
    axis, time = call.time_axis, a_x.shape[call.time_axis]
    mask = controls.mask
    mask = None if mask is None else jnp.expand_dims(mask, axis)

    def product(h, first, last):
        columns = slice(first * hidden, last * hidden)
        h = h if mask is None else mask * h
        return grouped_product(h, w_hh[..., columns], call.precision) + b_hh[:, columns]

    _, reserve = call.table.step(call, a_x, befores, product)
    if controls.lengths is not None:
        counts = valid_steps(controls.lengths, time, time_major=call.time_major)
        reserve = tuple(jnp.where(counts, gate, 0) for gate in reserve)
    return reserve


def _first_states(call: Call, befores: State, controls: Controls) -> State:
    """The states before a chunk's first step in the order of processing."""
    axis, lengths = call.time_axis, controls.lengths
    last = befores[0].shape[axis] - 1

    def first(x: Array) -> Array:
        if lengths is None or not call.reverse:
            return lax.index_in_dim(x, last if call.reverse else 0, axis, False)
        at = jnp.expand_dims(jnp.maximum(lengths - 1, 0), axis)
        return jnp.squeeze(jnp.take_along_axis(x, at, axis), axis)

    states = tuple(first(x) for x in befores)
    if lengths is None:
        return states
    # Where nothing of a row lies in the chunk, no state has been kept.
    return tuple(jnp.where(lengths > 0, state, 0) for state in states)


def _sum(left: State | None, right: State | None) -> State | None:
    return jax.tree.map(jnp.add, left, right)
