"""The states before each step, of all steps at once, from those after them."""

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call import Call
from prnn_jax._controls import Controls


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

    def shifted(after, first, lengths, against):
        if not against:
            rest = jax.lax.slice_in_dim(after, 0, time - 1, axis=axis)
            return jnp.concatenate([first, rest], axis)
        rest = jax.lax.slice_in_dim(after, 1, time, axis=axis)
        later = jnp.concatenate([rest, first], axis)
        if lengths is None:
            return later
        # A row begins at the last step that counts.
        steps = jnp.arange(time, dtype=lengths.dtype)
        steps = jnp.expand_dims(steps, tuple(n for n in range(4) if n != axis))
        begins = steps == jnp.expand_dims(lengths, axis) - 1
        return jnp.where(begins, first, later)

    lengths = controls.lengths
    if not call.bidirectional:
        out = shifted(after, first, lengths, call.reverse)
    else:
        pairs = [None, None] if lengths is None else jnp.split(lengths, 2, 1)
        sides = jnp.split(after, 2, 2), jnp.split(first, 2, 2), pairs
        halves = zip(*sides, (call.reverse, not call.reverse), strict=True)
        out = jnp.concatenate([shifted(*half) for half in halves], 2)
    if controls.resets is None or controls.reset_to is None:
        return out
    reset_to = jnp.expand_dims(controls.reset_to[state], axis)
    return jnp.where(controls.resets, reset_to, out)
