"""The input projection x w + b, for all steps at once.

XLA's product, save for small ones on the CPU: there its fixed cost of some 60 µs would
be most of a short layer's time, and the engine's own product is used
(benchmarks/projection.py).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax import _ffi
from prnn_jax._call import Call
from prnn_jax._controls import Controls, valid_steps
from prnn_jax._forward_mode import reverse_mode_only
from prnn_jax._sharding import sharding_of_sum

#: Where the native product is used: of a few rows, which it multiplies by w where w is;
#: of more, if w is small enough for the second-level cache, up to so many multiply-adds
#: that XLA's fixed cost no longer shows.
FEW_ROWS, MAX_WEIGHTS, MAX_MULTIPLY_ADDS = 4, 3e5, 40e6


class Input(NamedTuple):
    """What a_x = x w + b is made of.

    Attributes:
      x: `[batch, time, input]`, or time-major.
      w: `[input, N*G*hidden]`, all groups side by side.
      b: `[N*G*hidden]`, or None for zero.
    """

    x: Array
    w: Array
    b: Array | None


def pre_activations(
    call: Call, source: Array | Input, controls: Controls, groups: int
) -> Array:
    """a_x, a sequence: as it is given, or made of what is given."""
    if not isinstance(source, Input):
        return source
    x, w, b = source
    if controls.lengths is not None:
        # NaN in the padding would come back from the gradient of w, as 0 * NaN.
        time = x.shape[call.time_axis]
        counts = valid_steps(controls.lengths, time, time_major=call.time_major)
        x = jnp.where(counts[:, :, 0], x, 0)
    a_x = project(call, x, w, b)
    return a_x.reshape(*x.shape[:2], groups, w.shape[1] // groups)


def project(call: Call, x: Array, w: Array, b: Array | None) -> Array:
    """x [batch, time, input] times w [input, columns], plus b [columns] where given.

    x and the result may be time-major.
    """
    if call.implementation == "scan" or not is_native(x, w):
        a = jnp.matmul(x, w, precision=call.precision)
        return a if b is None else a + b
    b = jnp.zeros((w.shape[1],), x.dtype) if b is None else b
    return _project(call, *reverse_mode_only((x, w, b)))


def is_native(x: Array, w: Array) -> bool:
    """Whether the native product is used on the CPU."""
    rows: Any = x.shape[0] * x.shape[1]
    if not isinstance(rows, int):  # of a size that is known when the program runs
        return False
    if rows <= FEW_ROWS:
        return rows > 0 and w.size > 0
    return 0 < w.size <= MAX_WEIGHTS and rows * w.size <= MAX_MULTIPLY_ADDS


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _project(call: Call, x: Array, w: Array, b: Array) -> Array:
    return _ffi.project(call, x, w, b)


def _forward_rule(call: Call, x, w, b):
    return _project(call, x, w, b), (x, w)


def _backward_rule(call: Call, residuals, da):
    x, w = residuals
    dx = jnp.matmul(da, w.T, precision=call.precision)
    dw = jnp.einsum(
        "abi,abc->ic",
        x,
        da,
        precision=call.precision,
        out_sharding=sharding_of_sum(w),
    )
    return dx, dw, da.sum((0, 1))


_project.defvjp(_forward_rule, _backward_rule)
