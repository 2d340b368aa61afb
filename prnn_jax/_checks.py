"""Checks of what the caller gave.

Every message says what was expected, what came, and what to do.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def check(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def one_of(op: str, name: str, value, options: Sequence) -> None:
    """`value` must be among `options`."""
    listed = ", ".join(repr(option) for option in options)
    is_one = value is None or isinstance(value, str)  # an array is equal to nothing
    check(
        is_one and value in options,
        f"{op}: {name} must be one of {listed}, got {value!r}.",
    )


def dtype(op: str, value) -> np.dtype:
    """`value` as a dtype."""
    try:
        return jnp.dtype(value)
    except TypeError:
        raise ValueError(
            f"{op}: dtype must be one, such as jnp.float32 or 'bfloat16', got "
            f"{value!r}."
        ) from None


def array(op: str, name: str, value) -> Array:
    """`value` as an array of floats."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ValueError(
            f"{op}: {name} must be an array, got {type(value).__name__}; "
            "wrap it in jnp.asarray."
        )
    check(
        jnp.issubdtype(value.dtype, jnp.floating),
        f"{op}: {name} must have a floating dtype, got {value.dtype}; "
        f"convert it, e.g. {name}.astype(jnp.float32).",
    )
    return value


def same_dtype(op: str, arrays: dict[str, Array]) -> None:
    """All arrays must have one dtype."""
    dtypes = {name: x.dtype for name, x in arrays.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(
            f"{op}: all arrays must have the same dtype, got {listed}; cast them first."
        )


def shape(
    op: str, name: str, value: Array, names: Sequence[str], sizes: Sequence[int]
) -> None:
    """`value` must have the shape `sizes`, whose axes are called `names`."""
    if value.shape == tuple(sizes):
        return
    expected = f"[{', '.join(names)}] = {list(sizes)}"
    hint = ""
    if len(sizes) >= 2 and value.shape == (*sizes[:-2], sizes[-1], sizes[-2]):
        hint = "; transpose its last two axes"
    raise ValueError(f"{op}: {name} must be {expected}, got {list(value.shape)}{hint}.")


def platform() -> str:
    """The platform a call would run on, as far as is known while tracing."""
    device = getattr(jax.config, "jax_default_device", None)
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform
