"""What layers for Flax do to the arrays of a call; needs no Flax itself."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.controls import check_lengths, counted
from prnn_jax._given import checks
from prnn_jax._given.checks import check


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


def batch_of(
    name: str, inputs: Any, in_features: int | None, *, time_major: bool
) -> tuple[int, ...]:
    """Sizes of the batch axes of inputs.

    Raises:
      ValueError: inputs have too few axes, or not as many features, where these are
        known; in the words of layer `name`.
    """
    checks.is_array(name, "inputs", inputs)
    shape = jnp.shape(inputs)
    axes = "time, *batch" if time_major else "*batch, time"
    sizes = "" if in_features is None else f" with in_features={in_features}"
    check(
        len(shape) >= 2 and in_features in (None, shape[-1]),
        f"{name}: inputs must be [{axes}, in_features]{sizes}, got {list(shape)}.",
    )
    return shape[1:-1] if time_major else shape[:-2]


def check_seq_lengths(name: str, lengths: Any, x: Any, *, time_major: bool) -> None:
    """What Flax calls seq_lengths must be such, in the words of layer `name`."""
    if lengths is not None:
        time, *batch = x.shape[:-1] if time_major else (x.shape[-2], *x.shape[:-2])
        check_lengths(name, lengths, tuple(batch), time, "seq_lengths")
