"""Checks of the calls whose recurrence has no product, and what they run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._autodiff.forward_mode import elementwise_reverse_mode_only
from prnn_jax._call.arguments import check_input
from prnn_jax._call.controls import checked_lengths, steps_that_count
from prnn_jax._call.options import Implementation, Lengths, MaskedY, Options, Resets
from prnn_jax._call.step_mask import check_alone, which_count
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.elementwise import Elementwise, recur
from prnn_jax._engine.linear_plan import check_native
from prnn_jax._engine.sharding import match_varying
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check


def how(op: str, reverse, implementation, f) -> Elementwise:
    checks.one_of(op, "implementation", implementation, (None, "native", "scan"))
    reverse = statics.flag(op, "reverse", reverse)
    return Elementwise(reverse=reverse, f=f, implementation=implementation)


@dataclass(frozen=True)
class Steps:
    """The axes of a call's sequences, but for the features."""

    batch: tuple[int, ...]
    time: int
    time_major: bool

    @classmethod
    def of(cls, op: str, name: str, x: Array, features: str, time_major) -> "Steps":
        time_major = statics.flag(op, "time_major", time_major)
        axes = (*_names(time_major=time_major), features)
        check(
            x.ndim >= 2,
            f"{op}: {name} must be [{', '.join(axes)}], got {list(x.shape)}.",
        )
        if time_major:
            return cls(x.shape[1:-1], x.shape[0], True)
        return cls(x.shape[:-2], x.shape[-2], False)

    @property
    def axis(self) -> int:
        """Of time."""
        return 0 if self.time_major else len(self.batch)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the axes, in the words of messages."""
        return _names(time_major=self.time_major)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The same in numbers."""
        return self.along_time(self.batch, self.time)

    def along_time(self, batch: tuple, time: Any) -> tuple:
        """Something of time among such of the batch axes."""
        return (*batch[: self.axis], time, *batch[self.axis :])

    def along(self, state: Array) -> Array:
        """A state as one step of a sequence."""
        return jnp.expand_dims(state, self.axis)

    def counting(self, op: str, options: Mapping[str, Any]) -> Array | None:
        """Which steps count, by lengths or mask, with an axis of features of 1.

        None if all do.
        """
        lengths, mask = options.get("lengths"), options.get("mask")
        if mask is not None:
            return which_count(op, mask, self.batch, self.time, self)[..., None]
        if lengths is None:
            return None
        lengths = checked_lengths(op, lengths, self.batch, self.time)
        return steps_that_count(lengths, self.time, time_major=self.time_major)


def _names(*, time_major: bool) -> tuple[str, ...]:
    return ("time", "*batch") if time_major else ("*batch", "time")


@dataclass(frozen=True)
class Given:
    """The arrays of a call, which fit together.

    `dtype`: of y. Of 16 bits, h_0 may be float32, and `a` and `b` both.
    """

    a: Array
    b: Array
    h_0: Array | None
    steps: Steps
    dtype: Any

    @classmethod
    def of(
        cls,
        op: str,
        a,
        b,
        h_0,
        *,
        time_major,
        of_a: str,
        of_b: str,
        of_h: str = "h_0",
        dtype: Any = None,
    ) -> "Given":
        a, b = (_number(op, name, x) for name, x in ((of_a, a), (of_b, b)))
        checks.same_dtype(op, {of_a: a, of_b: b})
        dtype = b.dtype if dtype is None else dtype
        if h_0 is not None:
            h_0 = _number(op, of_h, h_0)
            like: Any = jax.ShapeDtypeStruct((), dtype)
            checks.same_dtype_or_float32(op, (of_b, like), {of_h: h_0})
        steps = Steps.of(op, of_b, b, "features", time_major)
        names = ", ".join((*steps.names, "features"))
        check(
            a.shape in (b.shape, b.shape[-1:]),
            f"{op}: {of_a} must be [{names}] = {list(b.shape)} or [features] = "
            f"{list(b.shape[-1:])}, got {list(a.shape)}.",
        )
        given = cls(a, b, h_0, steps, dtype)
        if h_0 is not None:
            checks.shape(op, of_h, h_0, ("*batch", "features"), given.state_shape)
        return given

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (*self.steps.batch, self.b.shape[-1])

    def or_zeros(self) -> Array:
        """The initial state."""
        if self.h_0 is not None:
            return self.h_0
        return jnp.zeros(self.state_shape, self.dtype)


def _number(op: str, name: str, value: Any) -> Array:
    return checks.jax_array(op, name, value, or_complex=True)


# ---- the input -----------------------------------------------------------------------


def input_of(op: str, x: Any, options: Mapping[str, Any]) -> tuple[Array, Array | None]:
    """x, zero where a step does not count, and which steps do, or None for all.

    For what a step that does not count holds may be NaN, and 0 * NaN would come back
    from the gradient of a weight.
    """
    x = checks.jax_array(op, "x", x)
    check(
        x.ndim >= 2, f"{op}: x must have axes of time and input, got {list(x.shape)}."
    )
    steps = Steps.of(op, "x", x, "input", options.get("time_major", False))
    counts = steps.counting(op, options)
    return (x if counts is None else jnp.where(counts, x, 0)), counts


def gates_of(
    op: str, x: Array, weights: dict[str, Any], gates: int, precision: Any
) -> list[Array]:
    """The pre-activations of each gate, made of the input alone.

    Args:
      weights: by name; w first, then a bias or None.
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
    a = projected(op, x, weights, f"{gates}*hidden", columns[0], precision)
    return jnp.split(a, gates, -1)


def projected(
    op: str, x: Array, weights: dict[str, Any], wide: str, columns: int, precision: Any
) -> Array:
    """x w and the biases, for all steps; `wide` is what the columns are called."""
    arrays = {
        name: checks.jax_array(op, name, array)
        for name, array in weights.items()
        if array is not None
    }
    checks.same_dtype(op, {"x": x, **arrays})
    w, *biases = arrays.values()
    check_input(op, ("...",), x, w.shape, ((), columns))
    for name, array in arrays.items():
        names, sizes = (wide,), (columns,)
        if array is w:
            names, sizes = ("input", wide), (x.shape[-1], columns)
        checks.shape(op, name, array, names, sizes)
    a = jnp.matmul(x, w, precision=statics.precision(op, precision))
    return sum((jnp.broadcast_to(bias, a.shape) for bias in biases), start=a)


def for_factors(*pre_activations: Array) -> list[Array]:
    """Of 16 bits in float32: of factors from 0.99 to 1 bfloat16 knows three."""
    return [a.astype(checks.float32_at_least(a.dtype)) for a in pre_activations]


# ---- the call ------------------------------------------------------------------------


class LinearControls(NamedTuple):
    """The controls of a call, checked; None where there is no such thing.

    Attributes:
      lengths: int32 `[*batch]`.
      counts: by a mask, `[*batch, time]`, or time-major, bool.
      resets: likewise.
      reset_to: as the initial state.
    """

    lengths: Array | None
    counts: Array | None
    resets: Array | None
    reset_to: Array | None

    @classmethod
    def of(
        cls, op: str, given: Given, lengths, mask, masked_y, resets, reset_to
    ) -> "LinearControls":
        check(
            reset_to is None or resets is not None,
            f"{op}: reset_to is given without resets; give resets, or leave it out.",
        )
        of_mask = {"mask": mask, "masked_y": masked_y}
        check_alone(op, Options(lengths=lengths, resets=resets, **of_mask))
        steps = given.steps
        if lengths is not None:
            lengths = checked_lengths(op, lengths, steps.batch, steps.time)
        if mask is not None:
            mask = which_count(op, mask, steps.batch, steps.time, steps)
        if resets is not None:
            resets = jnp.asarray(resets)
            checks.shape(op, "resets", resets, steps.names, steps.sizes)
        if reset_to is not None:
            reset_to = _number(op, "reset_to", reset_to)
            like: Any = jax.ShapeDtypeStruct((), given.dtype)
            checks.same_dtype_or_float32(op, ("h_0", like), {"reset_to": reset_to})
            names = ("*batch", "features")
            checks.shape(op, "reset_to", reset_to, names, given.state_shape)
        return cls(lengths, mask, resets, reset_to)

    def counting(self, steps: Steps) -> Array | None:
        """Which steps count, with an axis of features of 1; None if all do."""
        if self.lengths is not None:
            lengths, time_major = self.lengths, steps.time_major
            return steps_that_count(lengths, steps.time, time_major=time_major)
        return None if self.counts is None else self.counts[..., None]


def linear(
    op: str,
    a: Any,
    b: Any,
    h_0: Any,
    *,
    of_a: str = "a",
    of_b: str = "b",
    of_h: str = "h_0",
    dtype: Any = None,
    f: Any = None,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: Any = None,
    reverse: bool = False,
    time_major: bool = False,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    """h' = f(a h + b) in the words of function `op`; a mask only without f.

    Args:
      dtype: of y, if `a` and `b` may be float32 beside it.
    """
    static = how(op, reverse, implementation, f)
    names = {"of_a": of_a, "of_b": of_b, "of_h": of_h, "dtype": dtype}
    given = Given.of(op, a, b, h_0, time_major=time_major, **names)
    controls = LinearControls.of(op, given, lengths, mask, masked_y, resets, reset_to)
    check_native(op, static, given.b.dtype)
    arrays = given.a, given.b, given.or_zeros(), controls
    types = static, given.steps, masked_y, given.dtype
    return _compiled(*types, *match_varying(arrays))


@compiled_once(static_argnums=(0, 1, 2, 3))
def _compiled(
    how: Elementwise,
    steps: Steps,
    masked_y: MaskedY,
    dtype: Any,
    a: Array,
    b: Array,
    h_0: Array,
    controls: LinearControls,
) -> tuple[Array, Array]:
    """In float32 if an array is; then y is rounded to 16 bits, and no state is."""
    first = h_0.dtype
    wide = a.dtype if a.dtype.itemsize > first.itemsize else first
    a, b, h_0 = (x.astype(wide) for x in (a, b, h_0))
    if controls.reset_to is not None:
        controls = controls._replace(reset_to=controls.reset_to.astype(wide))
    y, last = _run(how, steps, masked_y, a, b, h_0, controls)
    return y.astype(dtype), last.astype(first)


def _run(
    how: Elementwise,
    steps: Steps,
    masked_y: MaskedY,
    a: Array,
    b: Array,
    h_0: Array,
    controls: LinearControls,
) -> tuple[Array, Array]:
    if b.size == 0:
        return b, h_0
    axis, time, along = steps.axis, steps.time, steps.along
    lengths = controls.lengths
    counts = controls.counting(steps)
    if counts is not None:
        # At a step that does not count a linear state stays. What is there may be NaN.
        a = jnp.where(counts, a, 1 if how.f is None else 0)
        b = jnp.where(counts, b, 0)
    if controls.resets is not None:
        is_reset = controls.resets.astype(bool)[..., None]
        if counts is not None:
            is_reset &= counts
        if controls.reset_to is not None:
            # Neither of the two is a number where there is no reset, maybe.
            kept = jnp.where(is_reset, a, 0)
            b = jnp.where(is_reset, b + kept * along(controls.reset_to), b)
        a = jnp.where(is_reset, 0, a)
    if lengths is not None and how.f is not None and how.reverse:
        # Each row begins at the last step that counts.
        last = jnp.arange(time, dtype=lengths.dtype).reshape(_shape_of_steps(axis, b))
        first = along(lengths[..., None]) == last + 1
        b = jnp.where(first, b + a * along(h_0), b)
        a = jnp.where(first, 0, a)
    y = _flat(how, steps.time_major, a, b, h_0)
    ends = lax.index_in_dim(y, 0 if how.reverse else time - 1, axis, keepdims=False)
    if lengths is not None and how.f is not None:
        if not how.reverse:
            at = jnp.maximum(lengths - 1, 0)[..., None]
            ends = jnp.take_along_axis(y, along(at), axis).squeeze(axis)
        ends = jnp.where(lengths[..., None] > 0, ends, h_0)
    if counts is None or (lengths is None and masked_y == "hold"):
        return y, ends
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
    arrays = of_a, b.reshape(shape), h_0.reshape(rows, width)
    y = recur(how, *elementwise_reverse_mode_only(how.implementation, arrays))
    return elementwise_reverse_mode_only(how.implementation, y).reshape(b.shape)
