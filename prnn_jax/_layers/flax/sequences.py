"""What layers for Flax do to the arrays of a call; needs no Flax itself."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.controls import counted


def in_order_of_processing(y: Array, lengths: Any, *, time_major: bool) -> Array:
    """y of a reversed layer, last step first; what is past the end stays there."""
    axis = 0 if time_major else y.ndim - 2
    if lengths is None:
        return jnp.flip(y, axis)
    time = y.shape[axis]
    lengths = jnp.asarray(lengths)
    lengths = jnp.expand_dims(counted(lengths, time), axis)
    steps = lax.broadcasted_iota(jnp.int32, y.shape[:-1], axis)
    order = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    return jnp.take_along_axis(y, order[..., None], axis)


def promoted(arrays: tuple, dtype: Any) -> tuple:
    """Arrays in one floating dtype, by default that to which JAX promotes them all."""
    if dtype is None:
        dtype = jnp.result_type(*[x for x in arrays if x is not None])
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
    return tuple(None if x is None else jnp.asarray(x, dtype) for x in arrays)
