"""What a convolution over time sees: the last few inputs of each step."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.controls import as_array, checked_lengths
from prnn_jax._engine.sharding import aligned_state
from prnn_jax._given import checks, statics
from prnn_jax._linear.run import Steps


def steps_of(op: str, x: Array, options: Mapping[str, Any]) -> Steps:
    """The axes of the input of a call with such options."""
    return Steps.of(op, "x", x, "input", options.get("time_major", False))


def windows(
    op: str,
    x: Array,
    width: int,
    x_0: Any,
    x_to: Any,
    options: Mapping[str, Any],
    names: tuple[str, str] = ("x_0", "x of reset_to"),
) -> tuple[list[Array], Array]:
    """What each step sees, and what came before the next.

    Args:
      op: the function, for messages.
      x: the input, zero where a step does not count.
      width: of the convolution.
      x_0: inputs before the first.
      x_to: inputs that a reset puts in place of those before it.
      options: of one direction.
      names: of x_0 and x_to, for messages.

    Returns:
      As many sequences as the convolution is wide, the oldest inputs first; and, shaped
      as x_0, the last inputs.
    """
    steps = steps_of(op, x, options)
    reverse = statics.flag(op, "reverse", options.get("reverse", False))
    lengths, resets = options.get("lengths"), options.get("resets")
    if lengths is not None:
        lengths = checked_lengths(op, lengths, steps.batch, steps.time)
    if x_0 is not None:
        x_0 = checks.jax_array(op, names[0], x_0)
    dtype = x.dtype if x_0 is None else x_0.dtype
    x_0, x_to = (
        _window(op, name, x, steps, width, w)
        for name, w in zip(names, (x_0, x_to), strict=True)
    )
    if x.size == 0 or width == 1:
        return [x] * width, x_0.astype(dtype)
    if resets is None and not (reverse and lengths is not None):
        taps = _slices(x, x_0, steps, reverse=reverse)
    else:
        if resets is not None:
            resets = as_array(op, "resets", resets)
            checks.shape(op, "resets", resets, steps.names, steps.sizes)
            resets = jnp.asarray(resets)
        taps = _gathered(x, x_0, x_to, steps, lengths, resets, reverse=reverse)
    newer = taps[1:]
    if lengths is None:
        last = 0 if reverse else steps.time - 1
        ends = [lax.index_in_dim(t, last, steps.axis, keepdims=False) for t in newer]
        return taps, jnp.stack(ends, -2).astype(dtype)
    last = jnp.maximum(0 * lengths if reverse else lengths - 1, 0)
    at = steps.along(last[..., None])
    ends = [jnp.take_along_axis(t, at, steps.axis).squeeze(steps.axis) for t in newer]
    x_n = jnp.stack(ends, -2)
    x_n = jnp.where(lengths[..., None, None] > 0, x_n, x_0)
    return taps, x_n.astype(dtype)


def _window(
    op: str, name: str, x: Array, steps: Steps, width: int, given: Any
) -> Array:
    """`[*batch, width - 1, input]`, checked, or zeros."""
    sizes = (*steps.batch, width - 1, x.shape[-1])
    if given is None:
        given = jnp.zeros(sizes, x.dtype)
    given = checks.jax_array(op, name, given)
    checks.same_dtype_or_float32(op, ("x", x), {name: given})
    checks.shape(op, name, given, ("*batch", "width - 1", "input"), sizes)
    return aligned_state(x, steps.axis, given.astype(x.dtype))


def _slices(x: Array, x_0: Array, steps: Steps, *, reverse: bool) -> list[Array]:
    """The inputs of each age, the oldest first, of rows that all begin at one end."""
    axis, time, before = steps.axis, steps.time, x_0.shape[-2]
    x_0 = jnp.moveaxis(x_0, -2, axis)
    parts = [x, jnp.flip(x_0, axis)] if reverse else [x_0, x]
    padded = jnp.concatenate(parts, axis)
    ages = range(before, -1, -1)
    starts = ages if reverse else [before - age for age in ages]
    return [lax.slice_in_dim(padded, n, n + time, axis=axis) for n in starts]


def _gathered(
    x: Array,
    x_0: Array,
    x_to: Array,
    steps: Steps,
    lengths: Array | None,
    resets: Array | None,
    *,
    reverse: bool,
) -> list[Array]:
    """The same where each row has beginnings of its own."""
    axis, time, before = steps.axis, steps.time, x_0.shape[-2]
    # On an Explicit mesh, where x is.
    t = lax.broadcasted_iota(jnp.int32, steps.sizes, axis)
    t = t + jnp.zeros_like(x[..., 0], jnp.int32)
    ends = time if lengths is None else steps.along(lengths)
    number = ends - 1 - t if reverse else t  # of the step, in the order of processing
    latest = jnp.zeros_like(t)  # of the resets up to here, from 1; 0 for none
    if resets is not None:
        latest = jnp.where(
            resets.astype(bool), number + 1, 0
        )  # past the end, none above 0
        latest = lax.cummax(latest, axis, reverse=reverse)
    since = number - jnp.maximum(latest - 1, 0)
    windows = [jnp.moveaxis(window, -2, axis) for window in (x_0, x_to)]
    everything = jnp.concatenate([windows[0], x, windows[1]], axis)

    def of_age(age: int) -> Array:
        in_x = before + (t + age if reverse else t - age)
        in_window = before + since - age + jnp.where(latest > 0, before + time, 0)
        at = jnp.where(since >= age, in_x, in_window)
        at = jnp.clip(at, 0, time + 2 * before - 1)
        return jnp.take_along_axis(everything, at[..., None], axis)

    return [of_age(age) for age in range(before, -1, -1)]
