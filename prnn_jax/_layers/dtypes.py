"""The dtype that a layer computes in, of several."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from prnn_jax._given.checks import in_dtype


def promoted(arrays: Any, dtype: Any = None, *, apart: Sequence[str] = ()) -> Any:
    """All arrays of a tree in one floating dtype.

    Args:
      arrays: the tree.
      dtype: by default that to which JAX promotes them all, but those apart.
      apart: names, in dicts and named tuples, of what stays float32 beside 16 bits, if
        it is.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    each = [(array, _name(path) in apart) for path, array in leaves]
    if dtype is None:
        dtype = jnp.result_type(*[array for array, is_apart in each if not is_apart])
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
    return structure.unflatten(
        in_dtype(array, dtype) if is_apart else jnp.asarray(array, dtype)
        for array, is_apart in each
    )


def _name(path: tuple[Any, ...]) -> Any:
    last = path[-1] if path else None
    return getattr(last, "name", getattr(last, "key", None))
