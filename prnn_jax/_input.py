"""What a layer's a_x is made of, x w + b, for all steps at once.

The CPU engine makes a_x itself, a few steps before it needs them. Everything else is
here: the product by XLA, for all that is not the CPU engine, and what its gradients are
made of.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from prnn_jax._call import Call
from prnn_jax._controls import Controls, valid_steps
from prnn_jax._products import OfProjection, Projection

#: Where the CPU engine makes a_x: from so many weights at most; or by so few
#: multiply-adds, by bytes of a weight, with the weights as they lie in memory; or of so
#: few rows and weights that it is made at once, and weights are packed to be used once;
#: or of so many rows for each weight that packing the weights does not show. Elsewhere
#: XLA's product is as fast or faster, but in bfloat16 (benchmarks/projection.py).
MAX_WEIGHTS, MAX_IN_PLACE = 3e5, {4: 4.2e6, 2: 3.4e7}
MAX_AT_ONCE, ROWS_PER_WEIGHT = (128, 2e6), 1 / 4096

#: In which types it does.
PROJECTED = "float32", "bfloat16", "float16"


class Input(NamedTuple):
    """What a_x = x w + b is made of, for N groups.

    Attributes:
      x: `[batch, time, input]`, or time-major.
      w: `[input, N, G*hidden]`.
      b: `[N, G*hidden]`, or None for zero.
      prepared: both matrices of the layer as `_ffi.prepare` packs them, or None.
    """

    x: Array
    w: Array
    b: Array | None
    prepared: Array | None = None


def pre_activations(call: Call, source: Array | Input, controls: Controls) -> Array:
    """a_x, a sequence: as it is given, or the product by XLA."""
    if not isinstance(source, Input):
        return source
    x, w, b, _ = source
    x = _counting(call, x, controls)
    a = jnp.matmul(x, _side_by_side(w), precision=call.precision)
    if b is not None:
        a = a + b.reshape(-1)
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
    is_faster = (
        prepared is not None
        or x.dtype == jnp.bfloat16
        or w.size <= MAX_WEIGHTS
        or rows * w.size <= MAX_IN_PLACE[x.dtype.itemsize]
        or (rows <= MAX_AT_ONCE[0] and w.size <= MAX_AT_ONCE[1])
        or rows >= w.size * ROWS_PER_WEIGHT
    )
    if not is_faster:
        return None
    b = jnp.zeros(w.shape[1:], w.dtype) if b is None else b
    return Input(x, w, b, prepared)


def _side_by_side(w: Array) -> Array:
    """The columns of all groups."""
    size, groups, columns = w.shape
    return w.reshape(size, groups * columns)


def _counting(call: Call, x: Array, controls: Controls) -> Array:
    """x where it counts: NaN elsewhere would come back from dw, as 0 * NaN."""
    if controls.lengths is None:
        return x
    time = x.shape[call.time_axis]
    counts = valid_steps(controls.lengths, time, time_major=call.time_major)
    return jnp.where(counts[:, :, 0], x, 0)
