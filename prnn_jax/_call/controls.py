"""The controls of a recurrence: lengths, resets, masks.

`Controls` holds them as the engines take them. Each is None where a call has none.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from prnn_jax._call.arguments import Layout, as_states
from prnn_jax._call.call import Call
from prnn_jax._cells.table import State
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.statics import scalar


class Controls(NamedTuple):
    """Arrays that a recurrence may have besides its weights, input and state.

    Attributes:
      lengths: int32 `[batch, N, 1]`: steps that count, at the beginning of a row. y is
        zero at the others, and the state stays.
      resets: bool, a sequence of one value per group: whether the state is replaced
        before the step.
      reset_to: what it is replaced with: states.
      mask: `[batch, N, output]`: multiplies h where it enters the product with w_hh.
      zoneout: sequence of one value per unit and state: how much of the old state
        stays, from 0 to 1.
    """

    lengths: Array | None = None
    resets: Array | None = None
    reset_to: State | None = None
    mask: Array | None = None
    zoneout: Array | None = None

    @property
    def changes_product_input(self) -> bool:
        """Whether what a step multiplies is not simply the h before it."""
        return self.resets is not None or self.mask is not None


NONE = Controls()


def checked_lengths(op: str, lengths, batch: tuple[int, ...], time) -> Array:
    """int32 `[*batch]`, from 0 to time: an error elsewhere, or if traced the nearest.

    Raises:
      ValueError: in the words of function `op`.
    """
    lengths = check_lengths(op, lengths, batch, time)
    if not isinstance(lengths, Array):
        return jnp.asarray(np.asarray(lengths).astype(np.int32))
    return counted(lengths, time)


def check_lengths(
    op: str, lengths, batch: tuple[int, ...], time, name: str = "lengths"
) -> Any:
    """The same as they are given, a list as an array; `name` is the argument's.

    Raises:
      ValueError: in the words of function `op`.
    """
    lengths = whole_numbers(op, name, lengths)
    checks.shape(op, name, lengths, ("*batch",), batch)
    if not isinstance(lengths, Tracer) and lengths.size:
        known = np.asarray(lengths)
        least, most = int(known.min()), int(known.max())
        check(
            least >= 0 and most <= time,
            f"{op}: {name} must be from 0 to time = {time}, got "
            f"{least if least < 0 else most}.",
        )
    return lengths


def valid_steps(lengths: Array, time: int, *, time_major: bool) -> Array:
    """Which steps count: bool `[batch, time, N, 1]`, or time-major."""
    steps = jnp.arange(time, dtype=lengths.dtype)
    if time_major:
        return steps[:, None, None, None] < lengths[None]
    return steps[None, :, None, None] < lengths[:, None]


def steps_that_count(lengths: Array, time: int, *, time_major: bool) -> Array:
    """The same of lengths `[*batch]`: `[*batch, time, 1]`, or time-major."""
    steps = jnp.arange(time, dtype=lengths.dtype)
    of_rows = (1,) * lengths.ndim  # said, for those who promote no ranks
    if time_major:
        return (steps.reshape(time, *of_rows) < lengths[None])[..., None]
    return (steps.reshape(*of_rows, time) < lengths[..., None])[..., None]


def check_controls(
    op: str,
    call: Call,
    given: Layout,
    x: Array,
    *,
    lengths=None,
    resets=None,
    reset_to=None,
    recurrent_mask=None,
    zoneout=None,
) -> Controls:
    """The controls of a public call, checked, as the engines take them.

    Raises:
      ValueError: in the words of function `op`.
    """
    native = _Native(op, call, given, x)
    check(
        reset_to is None or resets is not None,
        f"{op}: reset_to is given without resets; give resets, or leave it out.",
    )
    if resets is not None:
        resets, reset_to = native.resets(resets), native.states("reset_to", reset_to)
    return Controls(
        lengths=None if lengths is None else native.lengths(lengths),
        resets=resets,
        reset_to=reset_to,
        mask=None if recurrent_mask is None else native.mask(recurrent_mask),
        zoneout=None if zoneout is None else native.zoneout(zoneout),
    )


def counting(call: Call, sequence: Array, controls: Controls) -> Array:
    """A sequence where it counts. It may be NaN elsewhere, and 0 * NaN is NaN."""
    if controls.lengths is None:
        return sequence
    time = sequence.shape[call.time_axis]
    counts = valid_steps(controls.lengths, time, time_major=call.time_major)
    return jnp.where(counts, sequence, 0)


class _Native:
    """Checks one control after the other and brings it into the engines' layout."""

    def __init__(self, op: str, call: Call, given: Layout, x: Array):
        self.op, self.call, self.given, self.x = op, call, given, x
        self.rows = math.prod(given.batch)
        self.dtype = x.dtype

    def lengths(self, lengths) -> Array:
        given = self.given
        lengths = checked_lengths(self.op, lengths, given.batch, given.time)
        shape = self.rows, given.groups, 1
        return jnp.broadcast_to(lengths.reshape(self.rows)[:, None, None], shape)

    def resets(self, resets) -> Array:
        given, call = self.given, self.call
        resets = as_array(self.op, "resets", resets)
        names = ("time", "*batch") if call.time_major else ("*batch", "time")
        sizes = (given.time, *given.batch)
        sizes = sizes if call.time_major else (*given.batch, given.time)
        checks.shape(self.op, "resets", resets, names, sizes)
        flags = jnp.asarray(resets).astype(bool).reshape(*given.order)
        shape = *given.order, given.groups, 1
        return jnp.broadcast_to(flags[..., None, None], shape)

    def states(self, name: str, states) -> State:
        given = self.given
        states = as_states(self.op, self.call, states, name)
        if states is None:
            widths = given.output, *(given.hidden,) * (given.state_count - 1)
            return tuple(
                jnp.zeros((self.rows, given.groups, n), self.dtype) for n in widths
            )
        states = tuple(self._as_state(name, n, x) for n, x in enumerate(states))
        return tuple(given.state_to_native(state) for state in states)

    def mask(self, mask) -> Array:
        mask = as_array(self.op, "recurrent_mask", mask)
        mask = self._as_state("recurrent_mask", 0, mask)
        checks.same_dtype(self.op, {"x": self.x, "recurrent_mask": mask})
        return lax.stop_gradient(self.given.state_to_native(mask))

    def zoneout(self, zoneout) -> Array:
        given, op, cell = self.given, self.op, self.call.table
        check(
            not cell.projects,  # its states are not of one width
            f"{op}: zoneout must be None for {cell.described}, which has none, got "
            f"{type(zoneout).__name__}.",
        )
        count = given.state_count
        parts = zoneout if isinstance(zoneout, (tuple, list)) else (zoneout,) * count
        check(
            len(parts) == count,
            f"{op}: zoneout must be a number, an array or a tuple of {count} of them, "
            f"one for each state, got {len(parts)} values.",
        )
        lead = self.x.shape[:-1]
        features = given.directions * given.features
        values = []
        for part in parts:
            if (known := scalar(part)) is not None:
                check(
                    0 <= known <= 1, f"{op}: zoneout must be from 0 to 1, got {known}."
                )
                part = known
            if known is not None or (isinstance(part, Tracer) and part.shape == ()):
                part = jnp.full((*lead, features), part, self.dtype)
            names = ("time", "*batch") if self.call.time_major else ("*batch", "time")
            part = as_array(op, "zoneout", part)
            checks.shape(
                op, "zoneout", part, (*names, "features of y"), (*lead, features)
            )
            # One axis at a time: the wish of Explicit meshes.
            part = part.astype(self.dtype).reshape(*given.order, features)
            values.append(part.reshape(*given.order, given.groups, given.hidden))
        return lax.stop_gradient(jnp.concatenate(values, -1))

    def _as_state(self, name: str, state: int, value: Any) -> Array:
        value = checks.jax_array(self.op, name, value)
        names, sizes = self.given.state_axes[state], self.given.state_shapes[state]
        checks.shape(self.op, name, value, names, sizes)
        checks.same_dtype_or_float32(self.op, ("x", self.x), {name: value})
        return value


def as_array(op: str, name: str, value: Any) -> Any:
    """An array, or what is as good as one: numbers, and lists of them."""
    kind = type(value).__name__
    if isinstance(value, (list, tuple, int, float, bool)):
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
        try:
            value = jnp.asarray(value) if traced else np.asarray(value)
        except (TypeError, ValueError):  # of unequal lengths, of anything
            value = None
    dtype = getattr(value, "dtype", None)
    check(
        hasattr(value, "shape") and dtype is not None,
        f"{op}: {name} must be an array, got {kind}.",
    )
    is_foreign = str(dtype).startswith("torch.")
    hint = f"; give {checks.as_numpy(name, value)}" if is_foreign else ""
    check(
        _is_of_numbers(dtype),
        f"{op}: {name} must be an array of numbers, got {kind} of {dtype}{hint}.",
    )
    return value


def whole_numbers(op: str, name: str, value: Any) -> Any:
    """Such as are lengths."""
    value = as_array(op, name, value)
    check(
        jnp.issubdtype(value.dtype, jnp.integer),
        f"{op}: {name} must be whole numbers, got {value.dtype}; "
        f"convert them, e.g. {name}.astype(jnp.int32).",
    )
    return value


def counted(lengths: Any, time: int) -> Array:
    """Lengths of any integer dtype as int32, from 0 to time."""
    lengths = jnp.asarray(lengths)
    # A narrow type may not hold `time`, and int32 not what a wide one holds.
    if jnp.iinfo(lengths.dtype).bits < 32:
        lengths = lengths.astype(jnp.int32)
    return jnp.clip(lengths, 0, time).astype(jnp.int32)


def _is_of_numbers(dtype: Any) -> bool:
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:  # another library's
        return False
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_))
