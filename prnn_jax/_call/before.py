"""The states before each step, of all steps at once, from those after them."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls
from prnn_jax._cells.table import State


def before(
    call: Call, after: Array, first: Array, controls: Controls, state: int
) -> Array:
    """What a step starts from: the state after the one before, or what it was reset to.

    Args:
      after: the state after each step, a sequence of one value per unit; zeros or any
        numbers at steps that do not count.
      first: the initial state.
      state: which one it is of the cell's; 0 is h.
    """
    axis = call.time_axis
    time = after.shape[axis]
    first = jnp.expand_dims(first, axis)

    def side(after, first, lengths, against):
        shifted = _shifted(after, first, axis, against=against)
        if not against or lengths is None:
            return shifted
        # A row begins at the last step that counts.
        steps = jnp.arange(time, dtype=lengths.dtype)
        steps = jnp.expand_dims(steps, tuple(n for n in range(4) if n != axis))
        begins = steps == jnp.expand_dims(lengths, axis) - 1
        return jnp.where(begins, first, shifted)

    lengths = controls.lengths
    if not call.bidirectional:
        out = side(after, first, lengths, call.reverse)
    else:
        pairs = [None, None] if lengths is None else jnp.split(lengths, 2, 1)
        sides = jnp.split(after, 2, 2), jnp.split(first, 2, 2), pairs
        halves = zip(*sides, (call.reverse, not call.reverse), strict=True)
        out = jnp.concatenate([side(*half) for half in halves], 2)
    if controls.resets is None or controls.reset_to is None:
        return out
    reset_to = jnp.expand_dims(controls.reset_to[state], axis)
    return jnp.where(controls.resets, reset_to, out)


def befores_of(
    call: Call, after: Sequence[Array], firsts: State, controls: Controls
) -> State:
    """`before` of all states, in the dtype of what is kept of the steps."""
    dtype = after[0].dtype
    if controls.reset_to is not None:
        narrow = tuple(state.astype(dtype) for state in controls.reset_to)
        controls = controls._replace(reset_to=narrow)
    return tuple(
        before(call, state, first.astype(dtype), controls, n)
        for n, (state, first) in enumerate(zip(after, firsts, strict=True))
    )


def _shifted(after: Array, first: Array, axis: int, *, against: bool) -> Array:
    """By one step, with `first` where a row begins."""
    time = after.shape[axis]
    if isinstance(time, int):  # what falls out need not be copied
        kept = (1, time) if against else (0, time - 1)
        after = lax.slice_in_dim(after, *kept, axis=axis)
    pair = [after, first] if against else [first, after]
    out = jnp.concatenate(pair, axis)
    if isinstance(time, int):
        return out
    # As a size known only when the program runs, time - 1 might be below 0.
    start = 1 if against else 0
    return lax.slice_in_dim(out, start, start + time, axis=axis)
