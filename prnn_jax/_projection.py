"""The input projection x w + b, for all steps at once.

XLA's product, save for small ones on the CPU: there its fixed cost of some 60 µs would
be most of a short layer's time, and the engine's own product is used
(benchmarks/projection.py).
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax import _ffi
from prnn_jax._call import Call

#: Where the native product is used: fewer rows do not pay for packing w, and beyond so
#: many multiply-adds XLA's fixed cost no longer shows.
MIN_ROWS, MAX_MULTIPLY_ADDS = 32, 40e6


def project(call: Call, x: Array, w: Array, b: Array | None) -> Array:
    """x [rows, input] times w [input, columns], plus b [columns] where given."""
    rows, columns = x.shape[0], w.shape[1]
    small = rows >= MIN_ROWS and 0 < rows * w.size <= MAX_MULTIPLY_ADDS
    if call.implementation == "scan" or not small:
        a = jnp.matmul(x, w, precision=call.precision)
        return a if b is None else a + b
    return _project(call, x, w, jnp.zeros((columns,), x.dtype) if b is None else b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _project(call: Call, x: Array, w: Array, b: Array) -> Array:
    return _ffi.project(call, x, w, b)


def _forward_rule(call: Call, x, w, b):
    return _project(call, x, w, b), (x, w)


def _backward_rule(call: Call, residuals, da):
    x, w = residuals
    product = functools.partial(jnp.matmul, precision=call.precision)
    return product(da, w.T), product(x.T, da), da.sum(0)


_project.defvjp(_forward_rule, _backward_rule)
