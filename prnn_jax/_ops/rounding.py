"""Weights rounded to integers of 8 bits, with a scale for each column.

The native engine does the same by itself (cpu/int8.h): here are the numbers that it
multiplies, for whatever else runs the layer.
"""

import jax.numpy as jnp
from jax import Array

from prnn_jax._given.params import Params

#: The largest integer; and how many values of a row there is room for.
MOST, MOST_INPUTS = 127, 16384


def rounded(params: Params) -> Params:
    """The layer whose matrices are s q: s is the largest of a column by 127."""
    names = "w_ih", "w_hh", "w_hr"
    matrices = {name: _rounded(getattr(params, name)) for name in names}
    return params._replace(**matrices)


def _rounded(weights: Array | None) -> Array | None:
    if weights is None:
        return None
    w = jnp.asarray(weights).astype(jnp.float32)
    scale = jnp.max(jnp.abs(w), axis=-2, keepdims=True) / MOST
    q = jnp.round(w / jnp.where(scale > 0, scale, 1))
    return (q * scale).astype(jnp.asarray(weights).dtype)
