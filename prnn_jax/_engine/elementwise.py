"""Recurrences without a product in a step, `y[s] = f(a[s] y[s - 1] + b[s])`.

Arrays are `[rows, time, width]`, one row for each of a batch, and may be complex if it
is linear; `a` may be `[rows, width]`, the same at all steps. One native call runs them
on a CPU or a GPU (`cuda/elementwise.cuh`); elsewhere a linear one is an associative
scan, any other a `lax.scan`. All derivatives are such recurrences again, and what is
parallel in time.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap

from prnn_jax._call.call import activations_attribute
from prnn_jax._cells.activations import Activations, Applied
from prnn_jax._engine import ffi, gpu
from prnn_jax._engine.by_platform import DEFAULT, by_platform
from prnn_jax._engine.modules import native
from prnn_jax._engine.plan import DTYPES
from prnn_jax._engine.sharding import aligned, partitioned, varying_axes
from prnn_jax._given.checks import float32_at_least


@dataclass(frozen=True)
class Elementwise:
    """What is static of such a recurrence; hashable.

    Attributes:
      reverse: whether it runs from the last step to the first.
      shifted: whether a step has the `a` of the step before it, and the first none
        (that is 1): the gradient of one that is not, and the other way round.
      f: an activation, or None for a linear recurrence.
      implementation: "native", "scan", or None for the best that the platform has.
    """

    reverse: bool = False
    shifted: bool = False
    f: Applied | None = None
    implementation: str | None = None

    bidirectional = False  # as `partitioned` asks of a call
    data_axes = {4: "btgx", 3: "bgx"}  # noqa: RUF012

    def opposite(self, *, shifted: bool) -> "Elementwise":
        """The linear recurrence that goes the other way."""
        return replace(self, reverse=not self.reverse, shifted=shifted, f=None)


def recur(how: Elementwise, a: Array, b: Array, y_0: Array) -> Array:
    """y of all steps; y_0 `[rows, width]`."""
    y_0 = _aligned(how, b, y_0)
    a = _aligned(how, b, a)
    if how.implementation == "scan":
        return _by_scan(how, a, b, y_0)
    return _recur(how, a, b, y_0)


def _aligned(how: Elementwise, b: Array, x: Array) -> Array:
    """What goes with b, sharded as b is, where the mesh is Explicit."""
    as_call: Any = how
    return aligned(as_call, b[..., None], x[..., None])[..., 0]


def before(how: Elementwise, y: Array, y_0: Array) -> Array:
    """What each step starts from, in the order of processing."""
    first = y_0[:, None]
    if how.reverse:
        return jnp.concatenate([y[:, 1:], first], 1)
    return jnp.concatenate([first, y[:, :-1]], 1)


def after(how: Elementwise, y: Array) -> Array:
    """What the step after each is, in the order of processing; zero after the last."""
    return before(replace(how, reverse=not how.reverse), y, jnp.zeros_like(y[:, 0]))


def end(how: Elementwise, y: Array, *, last: bool) -> Array:
    """The last or first step, in the order of processing."""
    return y[:, -1 if last != how.reverse else 0]


# ---- derivatives ---------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(how: Elementwise, a: Array, b: Array, y_0: Array) -> Array:
    return _batched(how)(a, b, y_0)


def _forward_rule(how: Elementwise, a, b, y_0):
    y = _recur(how, a, b, y_0)
    return y, (a, b if how.f is not None else None, y_0, y)


def _backward_rule(how: Elementwise, kept, dy):
    a, b, y_0, y = kept
    g: Any
    none = jnp.zeros_like(y_0)
    if how.shifted:
        g = _recur(how.opposite(shifted=False), a, dy, none)
        return _of_factors(a, after(how, g) * y), g, end(how, g, last=False)
    first = a if a.ndim == 2 else end(how, a, last=False)
    y_before = before(how, y, y_0)
    if how.f is None:
        g = _recur(how.opposite(shifted=True), a, dy, none)
    else:
        _, vjp = jax.vjp(how.f, _kept(_along(a), y_before) + b)
        (slope,) = vjp(jnp.ones_like(y))
        next_a = _along(a) if a.ndim == 2 else after(how, a)
        g = _recur(how.opposite(shifted=False), slope * next_a, slope * dy, none)
    return _of_factors(a, g * y_before), g, _kept(first, end(how, g, last=False))


_recur.defvjp(_forward_rule, _backward_rule)


def _kept(a: Array, y: Array) -> Array:
    """a y; of an a of 0 nothing, of a y that is infinite or no number either."""
    return a * jnp.where((a == 0) & ~jnp.isfinite(y), 0, y)


def _along(a: Array) -> Array:
    """`a` as it multiplies a sequence."""
    return a[:, None] if a.ndim == 2 else a


def _of_factors(a: Array, da: Array) -> Array:
    return da.sum(1) if a.ndim == 2 else da


# ---- vmap and meshes -----------------------------------------------------------------


@functools.cache
def _batched(how: Elementwise):
    """A mapped axis becomes part of the rows."""

    @custom_vmap
    def op(a, b, y_0):
        return _on_devices(how, a, b, y_0)

    @op.def_vmap
    def rule(size, mapped, *args):
        def fold(x: Array, is_mapped: bool) -> Array:
            x = x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
            return x.reshape(size * x.shape[1], *x.shape[2:])

        y = op(*map(fold, args, mapped))
        rows = args[1].shape[1 if mapped[1] else 0]  # -1 would not do of no elements
        return y.reshape(size, rows, *y.shape[1:]), True

    return op


def _on_devices(how: Elementwise, a: Array, b: Array, y_0: Array) -> Array:
    """Each device has its rows and its elements, which are groups of one unit."""

    def run(*columns: Array) -> Array:
        return _by_platform(how, *(x[..., 0] for x in columns))[..., None]

    columns = tuple(x[..., None] for x in (b, a, y_0))
    names = [Elementwise.data_axes[x.ndim] for x in columns]
    as_call: Any = how
    return partitioned(run, as_call, columns, names)[..., 0]


# ---- by platform ---------------------------------------------------------------------


def _by_platform(how: Elementwise, b: Array, a: Array, y_0: Array) -> Array:
    dtype = of_parts(b.dtype).name
    functions = {p: _ENGINES[p] for p in ffi.PLATFORMS if dtype in DTYPES[p]}
    if not functions:
        return _anywhere(how, b, a, y_0)
    if how.implementation != "native":
        functions[DEFAULT] = _anywhere
    return by_platform(functions, (how,), _like(b), b, a, y_0)


def _on_cpu(how: Elementwise, b: Array, a: Array, y_0: Array) -> Array:
    run = jax.ffi.ffi_call("prnn_elementwise", _like(b))
    return run(a, b, y_0, **_attributes(how, b, a))


def _on_gpu(how: Elementwise, b: Array, a: Array, y_0: Array) -> Array:
    of = b.shape, b.dtype, gpu.target_device()
    plan = cuda_plan(how, *of, constant=a.ndim == 2)
    rows, _, width = b.shape
    width *= _parts(b.dtype)
    # An array without elements would be none to XLA's FFI.
    floats = max(plan["floats_per_element"], 1)
    results = _like(b), _like(b, (rows, width, floats), jnp.float32)
    run = jax.ffi.ffi_call(gpu.target("prnn_elementwise"), results)
    chunks = np.int64(plan["chunks"])
    y, _ = run(a, b, y_0, **_attributes(how, b, a), chunks=chunks)
    return y


_ENGINES = {"cpu": _on_cpu, "cuda": _on_gpu}


def cuda_plan(
    how: Elementwise,
    shape: tuple[Any, ...],
    dtype: Any,
    device: dict[str, Any],
    *,
    constant: bool,
) -> dict[str, Any]:
    """How a GPU runs it (`cuda/elementwise_plan.h`): "chunks", "call_us" and more.

    A size that is not known is taken for a small one.

    Args:
      how: the call.
      shape: of b.
      dtype: of the arrays.
      device: the GPU.
      constant: whether `a` is the same at all steps.
    """
    rows, steps, width = (n if isinstance(n, int) else 1 for n in shape)
    value_bytes = of_parts(dtype).itemsize
    of = value_bytes, rows, steps, width * _parts(dtype), constant, how.f is None
    return native.cuda_elementwise_plan(*of, device)


def of_parts(dtype: Any) -> np.dtype:
    """The dtype of the two parts of complex numbers; that of real ones itself."""
    return jnp.finfo(dtype).dtype


def _parts(dtype: Any) -> int:
    return jnp.dtype(dtype).itemsize // of_parts(dtype).itemsize


def _attributes(how: Elementwise, b: Array, a: Array) -> dict[str, Any]:
    activation = ""
    if how.f is not None:
        activation = activations_attribute(Activations(candidate=how.f), b.dtype)
    return {
        "constant": a.ndim == 2,
        "reverse": how.reverse,
        "shifted": how.shifted,
        "activation": activation,
    }


def _like(b: Array, shape: tuple[Any, ...] | None = None, dtype: Any = None) -> Any:
    """The type of y, or of another result, which inside shard_map varies as b does."""
    shape, dtype = shape or b.shape, dtype or b.dtype
    if not varying_axes(b):
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.typeof(b).update(shape=shape, dtype=jnp.dtype(dtype))


def _anywhere(how: Elementwise, b: Array, a: Array, y_0: Array) -> Array:
    if how.f is not None or not isinstance(b.shape[1], int):  # time may be symbolic
        return _by_scan(how, a, b, y_0)
    wide = float32_at_least(b.dtype)
    factors = _factors(how, a, b).astype(wide)
    a, b = factors, b.astype(wide)
    # The initial state is the first step's.
    start = 0 if not how.reverse else -1
    b = b.at[:, start].add(_kept(factors[:, start], y_0.astype(wide)))

    def join(first, second):
        (a_1, ends_1, good_1, b_1), (a_2, ends_2, good_2, b_2) = first, second
        # Of many factors the product may be infinite; in steps, 0 times it is not NaN,
        # but for a factor that is no number itself. Nor is a product too small for a
        # number a 0 among them, which ends even a NaN.
        carried = jnp.where(ends_2 | (good_2 & (b_1 == 0)), 0, a_2 * b_1)
        ends = ends_1 | ends_2
        product = jnp.where(ends, 0, a_2 * a_1)
        return product, ends, good_1 & good_2, carried + b_2

    given = a, a == 0, jnp.isfinite(a), b
    *_, y = lax.associative_scan(join, given, reverse=how.reverse, axis=1)
    return y.astype(y_0.dtype)


def _factors(how: Elementwise, a: Array, b: Array) -> Array:
    """`a` of every step, as it is taken."""
    a = jnp.broadcast_to(_along(a), b.shape)
    return before(how, a, jnp.ones_like(a[:, 0])) if how.shifted else a


def _by_scan(how: Elementwise, a: Array, b: Array, y_0: Array) -> Array:
    """State is float32 at least, as in the engine."""
    wide = float32_at_least(b.dtype)

    def step(y, of_step):
        a, b = (x.astype(wide) for x in of_step)
        y = _kept(a, y) + b
        y = y if how.f is None else how.f(y)
        return y, y.astype(y_0.dtype)

    steps = tuple(jnp.moveaxis(x, 1, 0) for x in (_factors(how, a, b), b))
    _, y = lax.scan(step, y_0.astype(wide), steps, reverse=how.reverse)
    return jnp.moveaxis(y, 0, 1)
