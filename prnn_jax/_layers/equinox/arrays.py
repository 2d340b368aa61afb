"""What layers for Equinox do to the arrays of a call."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from prnn_jax._given import checks
from prnn_jax._given.checks import check


def check_sequence(name: str, xs: Array, input_size: int, *, time_major: bool) -> None:
    """Xs must be a sequence of inputs."""
    checks.is_array(name, "xs", xs)
    shape = jnp.shape(xs)
    axes = "time, *batch" if time_major else "*batch, time"
    check(
        len(shape) >= 2 and shape[-1] == input_size,
        f"{name}: xs must be [{axes}, input_size] with input_size={input_size}, got "
        f"{list(shape)}.",
    )


def batch_axes(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """What `zeros` was given: sizes one by one, or a shape."""
    is_shape = len(sizes) == 1 and isinstance(sizes[0], (tuple, list))
    return tuple(sizes[0]) if is_shape else sizes
