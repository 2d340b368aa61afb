"""Stochastic rounding: weights in 16 bits that train without a copy in float32."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._given import checks
from prnn_jax._given.checks import check

_DTYPES = "bfloat16", "float16"


def stochastic_round(key: Array, x: ArrayLike, dtype: Any = jnp.bfloat16) -> Array:
    r"""Rounds up or down at random, so that the mean of many roundings is x.

    With a and b the neighbours of x in `dtype`, :math:`a ≤ x < b`, the result is b with
    the probability :math:`(x - a) / (b - a)`, else a (Gupta et al. 2015,
    arXiv:1502.02551; nervanagpu has it). What `dtype` has stays as it is, so do NaN and
    infinities. A number beyond the largest of `dtype` becomes that, never infinity.
    The derivative is that of the mean, 1.

    The same key gives the same bits on every platform, under `jit` and on meshes, as
    `jax.random.bits` does.

    Args:
      key: of `jax.random`; another for each use.
      x: of float32, or of `dtype`, which has nothing to round.
      dtype: bfloat16 or float16.

    Returns:
      As x, of `dtype`.

    Raises:
      ValueError: key, x or dtype is of another type.
    """
    checks.one_of("stochastic_round", "dtype", jnp.dtype(dtype).name, _DTYPES)
    dtype = jnp.dtype(dtype)
    x = jnp.asarray(x)
    if x.dtype == dtype:
        return x
    check(
        x.dtype == jnp.float32,
        f"stochastic_round: x must be float32 or {dtype}, got {x.dtype}; round it to "
        "float32 first.",
    )
    checks.key("stochastic_round", key)
    return _rounded(dtype, jax.random.bits(key, x.shape, jnp.uint32), x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _rounded(dtype: Any, random: Array, x: Array) -> Array:
    dropped = 23 - jnp.finfo(dtype).nmant
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    # The bits of a float go on from one power of two to the next, as numbers do.
    below = (1 << dropped) - 1
    rounded = (bits + (random & below)) & ~jnp.uint32(below)
    if dtype == jnp.bfloat16:  # half of the bits; arithmetic may lose subnormals
        sign, largest = rounded & jnp.uint32(1 << 31), jnp.uint32(0x7F7F0000)
        whole = sign | jnp.minimum(rounded & jnp.uint32(0x7FFFFFFF), largest)
        out = lax.bitcast_convert_type((whole >> 16).astype(jnp.uint16), dtype)
        return jnp.where(jnp.isfinite(x), out, x.astype(dtype))
    out = lax.bitcast_convert_type(rounded, jnp.float32)
    # Below this, float16's numbers are equally far apart.
    is_small = jnp.abs(x) < jnp.float32(jnp.finfo(dtype).smallest_normal)
    out = jnp.where(is_small, _subnormal(x, random), out)
    largest = jnp.float32(jnp.finfo(dtype).max)
    out = jnp.where(jnp.isfinite(x), jnp.clip(out, -largest, largest), x)
    return out.astype(dtype)


@_rounded.defjvp
def _rounded_jvp(dtype: Any, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return _rounded(dtype, *primals), tangents[1].astype(dtype)


def _subnormal(x: Array, random: Array) -> Array:
    """x as a whole number of float16's smallest."""
    scaled = jnp.abs(x) * jnp.float32(2**24)
    whole = jnp.floor(scaled)
    draw = (random >> 8).astype(jnp.float32) * jnp.float32(2**-24)  # in [0, 1)
    whole = whole + (draw < scaled - whole).astype(jnp.float32)
    return jnp.copysign(whole * jnp.float32(2**-24), x)


def apply_updates(key: Array, params: Any, updates: Any) -> Any:
    """`optax.apply_updates` for weights of 16 bits: the sum is rounded stochastically.

    Rounded to the nearest, a weight of 1 in bfloat16 stays 1 whatever is added below
    1/256, in however many steps: training stalls. So rounded it moves as far as float32
    would in the mean, and needs no copy in float32, nor its memory.

    Let the optimizer's own numbers be float32 (`optax.adam(mu_dtype=jnp.float32)` and
    gradients cast to float32): those must not stall either.

    Args:
      key: of `jax.random`; another for each step.
      params: a tree of arrays; others than of bfloat16 and float16 are added to as
        optax does.
      updates: of the same structure, of float32 or narrower; None leaves a weight.

    Returns:
      As params.

    Raises:
      ValueError: the trees differ, or an update is not of its weight's shape.
    """
    leaves, structure = jax.tree.flatten(params, is_leaf=_is_none)
    given, of_updates = jax.tree.flatten(updates, is_leaf=_is_none)
    check(
        structure == of_updates,
        f"apply_updates: updates must be of the structure of params, {structure}, got "
        f"{of_updates}.",
    )
    checks.key("apply_updates", key)
    keys = jax.random.split(key, max(len(leaves), 1))
    moved = [_moved(*each) for each in zip(keys, leaves, given, strict=True)]
    return jax.tree.unflatten(structure, moved)


def _is_none(x: Any) -> bool:
    return x is None


def _moved(key: Array, param: Any, update: Any) -> Any:
    if param is None or update is None:
        return param
    param = jnp.asarray(param)
    check(
        jnp.shape(update) in ((), param.shape),
        f"apply_updates: an update must be of its weight's shape, {list(param.shape)}, "
        f"got {list(jnp.shape(update))}.",
    )
    if param.dtype.name not in _DTYPES:
        with jax.numpy_dtype_promotion("standard"):  # as said of narrower updates
            return (param + update).astype(param.dtype)
    exact = param.astype(jnp.float32) + jnp.asarray(update, jnp.float32)
    return stochastic_round(key, exact, param.dtype)
