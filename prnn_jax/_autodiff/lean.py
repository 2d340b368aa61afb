"""The lean backward pass: what the cell needs is made again instead of being kept.

Given the states before every step, the gates of all steps are one large product. It is
made chunk by chunk of time, the last first, so that the gates of a chunk are all that
exists of them, and with it the input projection. That is done in a loop, in which all
else is made, too: what does not depend on the cotangents XLA would find to be the
forward pass's own, or worth making early, and keep it.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._autodiff.per_unit import sum_over_steps
from prnn_jax._autodiff.projected import projected
from prnn_jax._call.before import befores_of
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting, valid_steps
from prnn_jax._call.primals import Input, Primals
from prnn_jax._cells.normed import of_x
from prnn_jax._cells.table import State
from prnn_jax._engine import ffi
from prnn_jax._engine.input_projection import pre_activations
from prnn_jax._engine.scan import grouped_product
from prnn_jax._engine.sharding import aligned
from prnn_jax._given.checks import float32_at_least

#: Into how many parts of equal size a sequence is cut at most, and below how many steps
#: a part is not worth a call.
MAX_CHUNKS, MIN_STEPS = 4, 16


def backward(call: Call, primals, kept, cotangents):
    """As `_engine.ffi.backward`, from what a forward pass with save="states" kept.

    Returns:
      The gradients; the reserve that a forward pass with save="all" would have kept,
      where the gradient of w_hh needs it; what `projected` makes of that; and the
      gradient of `Primals.per_unit`.
    """
    cell, controls = call.table, primals.controls
    dy, dstate_n = cotangents
    all_saved = replace(call, save="all").saved(zoneout=controls.zoneout is not None)
    hidden = primals.w_hh.shape[2] // cell.gates

    def buffers(values: int) -> Array:
        # To be overwritten. As zeros it would exist from the beginning of the program.
        return jnp.broadcast_to(dy[..., :1], (*dy.shape[:-1], values * hidden))

    da_x = buffers(cell.gates)
    da_h = None if cell.same_gradient else buffers(cell.gates)
    reserve = buffers(all_saved) if cell.product_inputs else None
    m, dh = (buffers(1), dy) if cell.projects else (None, None)
    dreset_to = jax.tree.map(jnp.zeros_like, controls.reset_to)
    dstate = aligned(call, dy, dstate_n)

    own = primals.per_unit
    dper_unit: Any = None
    if own is not None:
        dper_unit = jnp.zeros(own.shape, float32_at_least(own.dtype))

    def advance(chunk: _Chunk, carry):
        dstate, sequences, dreset_to, dper_unit = carry
        out = _backward_of_chunk(call, chunk, primals, kept, (dy, dstate))
        (da_x, da_h, dstate, more, dh), saved, m, of_units = out
        parts: Any = da_x, da_h, *(saved or (None,)), m, dh
        sequences = tuple(
            None if whole is None else chunk.put(whole, part)
            for whole, part in zip(sequences, parts, strict=True)
        )
        sums = jax.tree.map(jnp.add, (dreset_to, dper_unit), (more, of_units))
        return dstate, sequences, *sums

    time = dy.shape[call.time_axis]
    count, size, rest = _cutting(time)
    carry = dstate, (da_x, da_h, reserve, m, dh), dreset_to, dper_unit
    if count:

        def body(n, carry):
            from_start = n if call.reverse else count - 1 - n
            first = from_start * size + (0 if call.reverse else rest)
            return advance(_Chunk(call, time, first, size), carry)

        carry = lax.fori_loop(0, count, body, carry)
    if not count or rest:  # the forward pass begins with the rest
        first = count * size if call.reverse else 0
        carry = advance(_Chunk(call, time, first, rest), carry)
    dstate, (da_x, da_h, reserve, m, dh), dreset_to, dper_unit = carry
    if own is not None:
        dper_unit = dper_unit.astype(own.dtype)
    gradients = da_x, da_x if da_h is None else da_h, dstate, dreset_to, dh
    return gradients, () if reserve is None else (reserve,), m, dper_unit


def _backward_of_chunk(call: Call, chunk: "_Chunk", primals, kept, cotangents):
    """The gradients that the chunk gives, its reserve, its m, and that of the units."""
    source, state_0, controls = primals.source, primals.state_0, primals.controls
    y, saved = kept
    dy, dstate = cotangents
    fast = replace(call, lean=False, save="all")
    after = [y, *(jnp.split(saved[0], len(state_0) - 1, -1) if saved else ())]
    of_chunk = chunk.controls(controls)
    begins = tuple(
        chunk.state_before(x, x_0, controls.lengths)
        for x, x_0 in zip(after, state_0, strict=True)
    )
    after = tuple(map(chunk.cut, after))
    befores = befores_of(call, after, begins, of_chunk)
    a_x = chunk.a_x(source, of_chunk)
    primals = primals._replace(source=a_x, state_0=begins, controls=of_chunk)
    gates = _gates(fast, primals, befores)
    reserve = *gates, *after[1:]
    chunk_saved = (jnp.concatenate(reserve, -1),) if reserve else ()
    gradients = ffi.backward(
        fast,
        primals,
        (after[0], chunk_saved),
        (chunk.cut(dy), dstate),
    )
    of_units = None
    if call.table.norm is not None:
        *gradients, of_rows = gradients
        assert of_rows is not None
        gradients, of_units = (*gradients, None), of_rows.sum(0)
    elif primals.per_unit is not None:
        of_units = sum_over_steps(fast, befores, gates, gradients[0], of_chunk)
    return gradients, chunk_saved, projected(fast, chunk_saved, of_chunk), of_units


def _gates(call: Call, primals: Primals, befores: State):
    """The reserve of all steps of a chunk."""
    source, w_hh, b_hh, _, controls, per_unit, w_hr = primals
    a_x: Any = source
    hidden = w_hh.shape[2] // call.table.gates
    axis, time = call.time_axis, a_x.shape[call.time_axis]
    mask = controls.mask
    mask = None if mask is None else jnp.expand_dims(mask, axis)

    def product(h, first, last):
        columns = slice(first * hidden, last * hidden)
        h = h if mask is None else mask * h
        a = grouped_product(h, w_hh[..., columns], call.precision)
        return a + b_hh[None, None, :, columns]

    def project(m):
        assert w_hr is not None
        return grouped_product(m, w_hr, call.precision)

    cell, own, raw = call.table, (), ()
    if per_unit is not None and cell.norm is not None:
        a_x = counting(call, a_x, controls)
        raw = jnp.split(a_x, cell.gates, -1) if cell.norm.of == "parts" else ()
        a_x, per_unit = of_x(cell.norm, cell.gates, a_x, per_unit, axis)
    if per_unit is not None:
        own = (per_unit[None, None],)
    by_name = {"project": project} if cell.projects else {}
    made, reserve = cell.step(call, a_x, befores, product, *own, **by_name)
    reserve = *reserve, *raw
    if cell.keeps_made and controls.zoneout is not None:
        reserve = made[:1]
    if controls.lengths is not None:
        counts = valid_steps(controls.lengths, time, time_major=call.time_major)
        reserve = tuple(jnp.where(counts, gate, 0) for gate in reserve)
    return reserve


# ---- chunks of time ------------------------------------------------------------------


def _cutting(time) -> tuple[int, Any, Any]:
    """How many chunks of how many steps, and how many are left beside them."""
    if not isinstance(time, int):  # known only when the program runs
        return 0, time, time
    count = min(MAX_CHUNKS, time // MIN_STEPS)
    if count < 2:
        return 0, time, time
    return count, time // count, time % count


@dataclass(frozen=True)
class _Chunk:
    """Consecutive steps in the order of processing.

    Attributes:
      time: steps of the whole sequence.
      first: where the chunk begins in it, possibly known only at run time. The second
        half of a bidirectional call's groups takes the mirror image of the chunk.
      size: steps of the chunk.
    """

    call: Call
    time: Any
    first: Any
    size: Any

    @property
    def is_whole(self) -> bool:
        """Whether it is all there is."""
        return self.size == self.time

    @property
    def firsts(self) -> tuple:
        """Where the chunk begins, for each half of the groups that has its own."""
        mirrored = self.time - self.size - self.first
        return (self.first, mirrored) if self.call.bidirectional else (self.first,)

    def cut(self, x: Any) -> Any:
        """The chunk's part of a sequence; None of None."""
        if x is None or self.is_whole:
            return x
        halves = map(self._slice, self._halves(x, 2), self.firsts)
        return jnp.concatenate(list(halves), 2)

    def put(self, x: Array, part: Array) -> Array:
        """The sequence with the chunk's part of it replaced."""
        if self.is_whole:
            return part
        halves = zip(self._halves(part, 2), self.firsts, strict=True)
        for n, (half, first) in enumerate(halves):
            at = [0, 0, n * half.shape[2], 0]
            at[self.call.time_axis] = first
            x = lax.dynamic_update_slice(x, half, at)
        return x

    def controls(self, controls: Controls) -> Controls:
        """As the chunk's call takes them."""
        lengths = controls.lengths
        if lengths is not None:
            halves = zip(self._halves(lengths, 1), self.firsts, strict=True)
            left = [jnp.clip(half - first, 0, self.size) for half, first in halves]
            lengths = jnp.concatenate(left, 1)
        resets, zoneout = self.cut(controls.resets), self.cut(controls.zoneout)
        return controls._replace(lengths=lengths, resets=resets, zoneout=zoneout)

    def state_before(self, after: Array, x_0: Array, lengths: Array | None) -> Array:
        """Before the chunk, in the order of processing: of one of the states.

        Args:
          after: the state after each step, a sequence.
          x_0: the initial state.
        """
        if self.is_whole:
            return x_0
        axis = self.call.time_axis
        halves = []
        for n, first in enumerate(self.firsts):
            sequence, begins = self._halves(after, 2)[n], self._halves(x_0, 1)[n]
            if self.call.reverse == bool(n):
                at, is_within = first - 1, first > 0
            else:
                at, ends = first + self.size, self.time
                if lengths is not None:
                    ends = self._halves(lengths, 1)[n]
                is_within = at < ends
            at = jnp.clip(at, 0, self.time - 1)
            there = lax.dynamic_index_in_dim(sequence, at, axis, keepdims=False)
            there = there.astype(begins.dtype)
            halves.append(jnp.where(is_within, there, begins))
        return jnp.concatenate(halves, 1)

    def a_x(self, source: Array | Input, controls: Controls) -> Array:
        """Of the chunk, whose controls are these."""
        if not isinstance(source, Input):
            return self.cut(source)
        parts = []
        for n, first in enumerate(self.firsts):
            b, lengths = (
                None if x is None else self._halves(x, axis)[n]
                for x, axis in ((source.b, 0), (controls.lengths, 1))
            )
            w = self._halves(source.w, 1)[n]
            side = Input(self._slice(source.x, first), w, b)
            given = Controls(lengths=lengths)
            parts.append(pre_activations(self.call, side, given))
        return jnp.concatenate(parts, 2)

    def _slice(self, x: Array, first) -> Array:
        if self.is_whole:
            return x
        return lax.dynamic_slice_in_dim(x, first, self.size, self.call.time_axis)

    def _halves(self, x: Array, axis: int) -> list[Array]:
        """The groups that have the same steps."""
        return jnp.split(x, len(self.firsts), axis)
