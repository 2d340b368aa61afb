"""What a layer's a_x is made of, x w + b, for all steps at once.

The CPU engine makes a_x itself, a few steps before it needs them. Everything else is
here: the product by XLA, for all that is not the CPU engine, and what its gradients are
made of.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, valid_steps
from prnn_jax._call.primals import Input
from prnn_jax._engine.modules import native
from prnn_jax._engine.weight_products import OfProjection, Projection

#: Where the CPU engine makes a_x: from so many weights at most; or of so few rows, if
#: the weights are no more than that, for they are used once, as they lie in memory or
#: packed; or of so many rows for each weight that packing the weights does not show,
#: but without AVX-512 from so many weights at most. Elsewhere XLA's product is as fast
#: or faster, but in bfloat16 (benchmarks/projection.py).
MAX_WEIGHTS, MAX_ROWS = 3e5, {128: 2e6, 48: math.inf}
ROWS_PER_WEIGHT, MAX_WITHOUT_AVX512 = 1 / 4096, 6e5

#: In which types it does.
PROJECTED = "float32", "bfloat16", "float16"


def pre_activations(call: Call, source: Array | Input, controls: Controls) -> Array:
    """a_x, a sequence: as it is given, or the product by XLA."""
    if not isinstance(source, Input):
        return source
    x, w, b, _ = source
    x = _counting(call, x, controls)
    a = jnp.matmul(x, _side_by_side(w), precision=call.precision)
    if b is not None:
        a = a + b.reshape(b.size)[None, None]
    return a.reshape(*a.shape[:2], *w.shape[1:])


def projection(
    call: Call, source: Array | Input, controls: Controls, da_x: Array
) -> Projection | None:
    """What the gradients of what a_x was made of are products of."""
    if not isinstance(source, Input):
        return None
    return Projection(_counting(call, source.x, controls), source.w, da_x)


def gradients(source: Array | Input, of_source: OfProjection) -> Input:
    """Those products, as gradients of the source."""
    has_bias = isinstance(source, Input) and source.b is not None
    return Input(of_source.dx, of_source.dw, of_source.db if has_bias else None)


def native_input(source: Array | Input) -> Input | None:
    """As the CPU engine takes it to make a_x; None where it is to be given a_x."""
    if not isinstance(source, Input):
        return None
    x, w, b, prepared = source
    sizes: Any = (*x.shape, *w.shape)
    # Sizes may be known only when the program runs.
    if x.dtype.name not in PROJECTED or not all(
        isinstance(n, int) and n > 0 for n in sizes
    ):
        return None
    rows = x.shape[0] * x.shape[1]
    if prepared is None and not is_native_faster(rows, w.size, x.dtype):
        return None
    b = jnp.zeros(w.shape[1:], w.dtype) if b is None else b
    return Input(x, w, b, prepared)


def is_native_faster(rows: int, weights: int, dtype) -> bool:
    """Whether the CPU engine had better make a_x, of weights that are not prepared."""
    return (
        dtype == jnp.bfloat16
        or weights <= MAX_WEIGHTS
        or any(rows <= n and weights <= most for n, most in MAX_ROWS.items())
        or (
            rows >= weights * ROWS_PER_WEIGHT
            and (weights <= MAX_WITHOUT_AVX512 or _has_avx512())
        )
    )


def _has_avx512() -> bool:
    """Whether the CPU engine's instruction set is AVX-512 or has it as a part."""
    return native.instruction_set().startswith(("avx512", "amx"))


def _side_by_side(w: Array) -> Array:
    """The columns of all groups."""
    size, groups, columns = w.shape
    return w.reshape(size, groups * columns)


def _counting(call: Call, x: Array, controls: Controls) -> Array:
    """x where it counts: NaN elsewhere would come back from dw, as 0 * NaN."""
    if controls.lengths is None:
        return x
    time = x.shape[call.time_axis]
    # Under `vmap`, groups may have lengths of their own: x counts where any says so.
    longest = controls.lengths.max(1, keepdims=True)
    counts = valid_steps(longest, time, time_major=call.time_major)
    return jnp.where(counts[:, :, 0], x, 0)
