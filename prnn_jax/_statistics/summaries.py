"""Numbers that say how many values are how large."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from prnn_jax._engine.sharding import sharding_of_sum
from prnn_jax._given.checks import float32_at_least

#: The exponents of a histogram's bins, but for the first and the last.
LEAST, MOST = -40, 40
_BINS = MOST - LEAST + 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ValueStatistics:
    r"""How large values are, over all rows, steps that count, and units.

    Every value is counted once: zeros + histogram.sum() + nonfinite is count. Counts
    are int32.

    Attributes:
      count: how many values there are.
      largest: largest finite magnitude, in the values' dtype; 0 where there is none.
      zeros: how many are zero.
      nonfinite: how many are infinite or NaN.
      first_nonfinite: the first step with such a value in any row, as an index of time
        in x: in the order of processing, which is backward in time for a layer that
        runs in reverse, and the other way round for gradients. -1 if there is none.
      largest_by_step: `[time]`, the largest finite magnitude at each step of x, 0 where
        there is none: of gradients, how they vanish or explode on their way back. None
        of the parameters', which are sums over steps.
      histogram: `[83]`, of the finite values that are not zero. Bin k = 1 … 81 has
        those with :math:`2^e ≤ |v| < 2^{e+1}`, e = k - 41 (`exponents[k]`): -40 … 40.
        Bin 0 has what is smaller, bin 82 what is larger. Subnormal numbers are counted
        as what they are, also where the processor takes them for zero.
      dtype: of the values, a name.
    """

    count: Array
    largest: Array
    zeros: Array
    nonfinite: Array
    first_nonfinite: Array
    largest_by_step: Array | None
    histogram: Array
    dtype: str = field(metadata={"static": True})

    @property
    def exponents(self) -> np.ndarray:
        """e of each bin of the histogram: -41 for the first, which is open below."""
        return np.arange(LEAST - 1, MOST + 2)


def summary(
    values: Array, counts: Array, at: Array, *, last: bool, time: int | None
) -> ValueStatistics:
    """Statistics of values.

    Args:
      values: of any shape.
      counts: bool, broadcastable to it: which of them count.
      at: int32, likewise: the step of each, one for all along the last axis.
      last: whether the first step in the order of processing is the last one in time.
      time: how many steps there are; None of what is of none.
    """
    dtype, shape = values.dtype, values.shape
    counts, at = jnp.broadcast_to(counts, shape), jnp.broadcast_to(at, shape)
    finite = jnp.isfinite(values)
    wrong = counts & ~finite
    bits = _magnitude_bits(values)
    exponents, zero = _exponents(bits, dtype), bits == 0
    # Bits are in the order of magnitudes, and no processor flushes them to zero.
    largest = jnp.where(counts & finite, bits, 0)
    if last:
        first = jnp.max(jnp.where(wrong, at, -1), initial=-1)
    else:
        never = jnp.iinfo(jnp.int32).max
        first = jnp.min(jnp.where(wrong, at, never), initial=never)
        first = jnp.where(first == never, -1, first)
    bins = jnp.clip(exponents, LEAST - 1, MOST + 1) - (LEAST - 1)
    bins = jnp.where(counts & finite & ~zero, bins, _BINS)  # one that there is not
    empty = jnp.zeros(_BINS, jnp.int32)
    # On an Explicit mesh JAX asks where the sum over all devices is to be: on each.
    on: Any = sharding_of_sum(values)
    where: Any = {}
    if on is not None:
        where["out_sharding"] = NamedSharding(on.mesh, P(None))
    by_step = None
    if time is not None:
        of_units = jnp.max(largest, -1, initial=0)
        by_step = jnp.zeros(time, bits.dtype).at[at[..., 0]].max(of_units, **where)
        by_step = lax.bitcast_convert_type(by_step, dtype)
    return ValueStatistics(
        count=_number(counts),
        largest=lax.bitcast_convert_type(jnp.max(largest, initial=0), dtype),
        zeros=_number(counts & zero),
        nonfinite=_number(wrong),
        first_nonfinite=first,
        largest_by_step=by_step,
        histogram=empty.at[bins].add(1, mode="drop", **where),
        dtype=dtype.name,
    )


def saturated(function, a: Array, counts: Array, below: float) -> Array:
    """The share of values at which a function's derivative is below so much."""
    a = a.astype(float32_at_least(a.dtype))
    _, slope = jax.jvp(function, (a,), (jnp.ones_like(a),))
    counts = jnp.broadcast_to(counts, a.shape)
    flat, number = _number(counts & (jnp.abs(slope) < below)), _number(counts)
    return flat.astype(jnp.float32) / jnp.maximum(number, 1).astype(jnp.float32)


def _number(true: Array) -> Array:
    return jnp.sum(true, dtype=jnp.int32)


def _magnitude_bits(values: Array) -> Array:
    """The bits of |v|: no operation of a processor that flushes subnormal numbers."""
    width = jnp.finfo(values.dtype).bits
    bits = lax.bitcast_convert_type(values, f"uint{width}")
    return bits & jnp.asarray(2 ** (width - 1) - 1, bits.dtype)


def _exponents(bits: Array, dtype: Any) -> Array:
    """e of 2^e ≤ |v| < 2^(e+1), of finite values, by the bits of |v|."""
    info = jnp.finfo(dtype)
    of_bits = (bits >> jnp.asarray(info.nmant, bits.dtype)).astype(jnp.int32)
    # Of a subnormal number, where its first bit is.
    leading = info.bits - 1 - lax.clz(bits).astype(jnp.int32)
    exponents = jnp.where(
        of_bits > 0, of_bits - 1 + int(info.minexp), leading + info.minexp - info.nmant
    )
    return exponents.astype(jnp.int32)
