"""Checks of the calls whose recurrence has no product, and what they run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax import _checks, _options
from prnn_jax._checks import check
from prnn_jax._controls import checked_lengths, steps_that_count
from prnn_jax._eager import compiled_once
from prnn_jax._elementwise import Elementwise, recur
from prnn_jax._ffi import CPU_DTYPES
from prnn_jax._native import missing
from prnn_jax._sharding import match_varying


def how(op: str, reverse, implementation, f) -> Elementwise:
    _checks.one_of(op, "implementation", implementation, (None, "native", "scan"))
    reverse = _options.flag(op, "reverse", reverse)
    return Elementwise(reverse=reverse, f=f, implementation=implementation)


@dataclass(frozen=True)
class Given:
    """The arrays of a call, which fit together."""

    a: Array
    b: Array
    h_0: Array | None
    time_major: bool

    @classmethod
    def of(cls, op: str, a, b, h_0, *, time_major, of_a: str, of_b: str) -> "Given":
        time_major = _options.flag(op, "time_major", time_major)
        a, b = _checks.jax_array(op, of_a, a), _checks.jax_array(op, of_b, b)
        arrays = {of_a: a, of_b: b}
        if h_0 is not None:
            h_0 = arrays["h_0"] = _checks.jax_array(op, "h_0", h_0)
        _checks.same_dtype(op, arrays)
        steps = ("time", "*batch") if time_major else ("*batch", "time")
        names = ", ".join((*steps, "features"))
        check(b.ndim >= 2, f"{op}: {of_b} must be [{names}], got {list(b.shape)}.")
        check(
            a.shape in (b.shape, b.shape[-1:]),
            f"{op}: {of_a} must be [{names}] = {list(b.shape)} or [features] = "
            f"{list(b.shape[-1:])}, got {list(a.shape)}.",
        )
        given = cls(a, b, h_0, time_major)
        if h_0 is not None:
            _checks.shape(op, "h_0", h_0, ("*batch", "features"), given.state_shape)
        return given

    @property
    def batch(self) -> tuple[int, ...]:
        return self.b.shape[1:-1] if self.time_major else self.b.shape[:-2]

    @property
    def time(self) -> int:
        return self.b.shape[0 if self.time_major else -2]

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (*self.batch, self.b.shape[-1])


def gates_of(
    op: str,
    x: Any,
    weights: dict[str, Any],
    gates: int,
    precision: Any,
    options: Mapping[str, Any],
) -> list[Array]:
    """The pre-activations of each gate, made of the input alone.

    Args:
      weights: by name; w first, then a bias or None.
      options: of the public call, of which `lengths` and `time_major` matter.
    """
    (name, w), *_ = weights.items()
    columns = getattr(w, "shape", (0,))[-1:]
    check(
        len(getattr(w, "shape", ())) == 2
        and columns[0] % gates == 0
        and columns[0] > 0,
        f"{op}: {name} must be [input, {gates}*hidden] with hidden >= 1, got "
        f"{list(getattr(w, 'shape', ())) or type(w).__name__}.",
    )
    axes = options.get("lengths"), options.get("time_major", False)
    a = projected(op, x, weights, f"{gates}*hidden", columns[0], precision, *axes)
    return jnp.split(a, gates, -1)


def projected(
    op: str,
    x: Any,
    weights: dict[str, Any],
    wide: str,
    columns: int,
    precision: Any,
    lengths: Any,
    time_major: Any,
) -> Array:
    """x w and the biases, for all steps; `wide` is what the columns are called."""
    arrays = {
        name: _checks.jax_array(op, name, array)
        for name, array in {"x": x, **weights}.items()
        if array is not None
    }
    _checks.same_dtype(op, arrays)
    x, w, *biases = arrays.values()
    check(
        x.ndim >= 2, f"{op}: x must have axes of time and input, got {list(x.shape)}."
    )
    for name, array in list(arrays.items())[1:]:
        names, sizes = (wide,), (columns,)
        if array is w:
            names, sizes = ("input", wide), (x.shape[-1], columns)
        _checks.shape(op, name, array, names, sizes)
    if lengths is not None:  # or 0 * NaN would come back from the gradient of w
        time_major = _options.flag(op, "time_major", time_major)
        time = x.shape[0 if time_major else -2]
        batch = x.shape[1:-1] if time_major else x.shape[:-2]
        lengths = checked_lengths(op, lengths, batch, time)
        x = jnp.where(steps_that_count(lengths, time, time_major=time_major), x, 0)
    a = jnp.matmul(x, w, precision=_options.precision(op, precision))
    return sum(biases, start=a)


# ---- the call ------------------------------------------------------------------------


def run(
    op: str, how: Elementwise, given: Given, lengths, resets, reset_to
) -> tuple[Array, Array]:
    check(
        reset_to is None or resets is not None,
        f"{op}: reset_to is given without resets; give resets, or leave it out.",
    )
    dtype = given.b.dtype.name
    reason = missing or (
        f"the native engine takes {', '.join(CPU_DTYPES)}, not {dtype}"
        if dtype not in CPU_DTYPES
        else ""
    )
    check(
        how.implementation != "native" or not reason,
        f'{op}: implementation="native" is not available: {reason}. '
        'implementation="scan" always runs; None chooses.',
    )
    time, time_major = given.time, given.time_major
    h_0 = given.h_0
    if h_0 is None:
        h_0 = jnp.zeros(given.state_shape, given.b.dtype)
    if lengths is not None:
        lengths = checked_lengths(op, lengths, given.batch, time)
    if resets is not None:
        resets = jnp.asarray(resets)
        steps = ("time", "*batch") if time_major else ("*batch", "time")
        _checks.shape(op, "resets", resets, steps, given.b.shape[:-1])
        if reset_to is not None:
            reset_to = _checks.jax_array(op, "reset_to", reset_to)
            _checks.same_dtype(op, {"h_0": h_0, "reset_to": reset_to})
            names = ("*batch", "features")
            _checks.shape(op, "reset_to", reset_to, names, given.state_shape)
    arrays = match_varying((given.a, given.b, h_0, lengths, resets, reset_to))
    return _compiled(how, time_major, *arrays)


@compiled_once(static_argnums=(0, 1))
def _compiled(
    how: Elementwise,
    time_major: bool,
    a: Array,
    b: Array,
    h_0: Array,
    lengths: Array | None,
    resets: Array | None,
    reset_to: Array | None,
) -> tuple[Array, Array]:
    if b.size == 0:
        return b, h_0
    axis = 0 if time_major else b.ndim - 2
    time = b.shape[axis]

    def along(state: Array) -> Array:
        return jnp.expand_dims(state, axis)

    counts = True
    if lengths is not None:
        counts = steps_that_count(lengths, time, time_major=time_major)
        # At a step that does not count a linear state stays. What is there may be NaN.
        a = jnp.where(counts, a, 1 if how.f is None else 0)
        b = jnp.where(counts, b, 0)
    if resets is not None:
        is_reset = (resets != 0)[..., None] & counts
        if reset_to is not None:
            b = jnp.where(is_reset, b + a * along(reset_to), b)
        a = jnp.where(is_reset, 0, a)
    if lengths is not None and how.f is not None and how.reverse:
        # Each row begins at the last step that counts.
        last = jnp.arange(time, dtype=lengths.dtype).reshape(_shape_of_steps(axis, b))
        first = along(lengths[..., None]) == last + 1
        b = jnp.where(first, b + a * along(h_0), b)
        a = jnp.where(first, 0, a)
    y = _flat(how, time_major, a, b, h_0)
    ends = lax.index_in_dim(y, 0 if how.reverse else time - 1, axis, keepdims=False)
    if lengths is None:
        return y, ends
    if how.f is not None:
        if not how.reverse:
            at = jnp.maximum(lengths - 1, 0)[..., None]
            ends = jnp.take_along_axis(y, along(at), axis).squeeze(axis)
        ends = jnp.where(lengths[..., None] > 0, ends, h_0)
    return jnp.where(counts, y, 0), ends


def _shape_of_steps(axis: int, b: Array) -> tuple[int, ...]:
    """Of numbers of steps, beside b."""
    return tuple(size if n == axis else 1 for n, size in enumerate(b.shape))


def _flat(how: Elementwise, time_major: bool, a: Array, b: Array, h_0: Array) -> Array:
    """As rows: of a time-major call one, of all elements side by side."""
    if time_major:
        shape = 1, b.shape[0], math.prod(b.shape[1:])
    else:
        shape = math.prod(b.shape[:-2]), *b.shape[-2:]
    rows, _, width = shape
    of_a = a.reshape(shape) if a.ndim == b.ndim else None
    if of_a is None:
        of_a = jnp.broadcast_to(a, h_0.shape).reshape(rows, width)
    y = recur(how, of_a, b.reshape(shape), h_0.reshape(rows, width))
    return y.reshape(b.shape)
