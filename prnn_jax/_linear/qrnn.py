"""Quasi-recurrent networks: a convolution over time, then pooling with gates."""

from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.arguments import check_input
from prnn_jax._call.controls import as_array, checked_lengths
from prnn_jax._call.options import LinearCellOptions, Precision
from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._engine.sharding import aligned_state
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._linear.run import Steps, gates_of, input_of, linear
from prnn_jax._linear.ways import Together, in_directions, in_fewer_steps

#: Which gates there are besides the candidate z, by their letters.
Pooling = Literal["f", "fo", "ifo"]


def qrnn(
    x: ArrayLike,
    w_ih: ArrayLike,
    b_ih: ArrayLike | None = None,
    state_0: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    pooling: Pooling = "fo",
    zoneout: float | ArrayLike | None = None,
    activation: GivenActivation = "tanh",
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, tuple[Array, Array]]:
    r"""Quasi-recurrent network: gates of the last few inputs, pooled over time.

    .. math::
      a_t = \sum_{k=1}^{width} x_{t - width + k} W_k + b \qquad
      z, f, o, i = φ(a_z), σ(a_f), σ(a_o), σ(a_i)

    (Bradbury et al. 2017, ICLR, arXiv:1611.01576), and by `pooling`

    - "f": :math:`c' = f c + (1 - f) z \qquad y = c'`
    - "fo": :math:`c' = f c + (1 - f) z \qquad y = o c'`
    - "ifo": :math:`c' = f c + i z \qquad y = o c'`

    The convolution is a product over all steps at once, and c a `linear_recurrence`.

    Args:
      x: `[*batch, time, input]`.
      w_ih: `[width, input, gates*hidden]`, the last for the input of the step itself;
        the columns of z, f, o and i, as far as the pooling has them.
      b_ih: `[gates*hidden]`, or None for zero.
      state_0: `(c_0, x_0)`, c `[*batch, hidden]`, and `[*batch, width - 1, input]`, the
        inputs before the first, in the order of processing; zeros if not given.
      pooling: "f", "fo" or "ifo".
      zoneout: how much of the old c stays, from 0 to 1: k in
        :math:`c' = k c + (1 - k) c_{new}`, which for "f" and "fo" is what the paper
        does to f. An array `[*batch, time, hidden]` of Bernoulli draws while training;
        or a number, their mean, at inference, which may be traced. Constant: gets no
        gradient.
      activation: φ, a name or an `Activation`.
      precision: of the product, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y (and a zoneout
        array) is `[*batch, time, 2*hidden]`. reset_to is a state. A step that does not
        count is none that the convolution sees. With a mask, "hold" is zero where
        nothing was before, but for "f" c_0.

    Returns:
      y `[*batch, time, hidden]`, and the last state, shaped as state_0.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    checks.one_of("qrnn", "pooling", pooling, get_args(Pooling))
    phi = applied("qrnn", "activation", activation)
    _check_pair("qrnn", "state_0", state_0)
    _check_pair("qrnn", "reset_to", options.get("reset_to"))
    weights = {"w_ih": w_ih, "b_ih": b_ih}
    if zoneout is not None:
        zoneout = lax.stop_gradient(_zoneout(zoneout))
        if zoneout.ndim and options.get("bidirectional"):
            zoneout = jnp.stack(jnp.split(zoneout, 2, -1))
        if zoneout.ndim:
            weights["zoneout"] = zoneout

    def one(op: str, weights: dict, state_0: Any, options: dict) -> tuple[Array, Any]:
        c_0, x_0 = (None, None) if state_0 is None else state_0

        def run(x: Any, options: dict, together: Together) -> tuple[Array, Any]:
            c_to, x_to = options.get("reset_to") or (None, None)
            x, counts = input_of(op, x, options)
            width, flat = _flat(op, weights["w_ih"], x)
            seen, x_n = _windows(op, x, width, x_0, x_to, options)
            gates = {"w_ih": flat, "b_ih": weights["b_ih"]}
            z, f, *others = gates_of(op, seen, gates, 1 + len(pooling), precision)
            f = jax.nn.sigmoid(f)
            enters = jax.nn.sigmoid(others[1]) if pooling == "ifo" else 1 - f
            if zoneout is not None:
                k = weights.get("zoneout", zoneout)
                if k.ndim:
                    names = (*_steps(op, x, options).names, "hidden")
                    checks.shape(op, "zoneout", together(k), names, f.shape)
                    k = together(k)
                k = k.astype(f.dtype)
                f, enters = k + (1 - k) * f, (1 - k) * enters
            of_c = {**options, "of_b": "x", "of_h": "c_0", "reset_to": c_to}
            c, c_n = linear(op, f, enters * phi(z), c_0, **of_c)
            y = c if pooling == "f" else jax.nn.sigmoid(others[0]) * c
            y = y if counts is None else jnp.where(counts, y, 0)
            return y, (c_n, x_n)

        first = c_0 if pooling == "f" else None
        return in_fewer_steps(op, run, x, first, options)

    return in_directions("qrnn", one, weights, state_0, **options)


def _check_pair(op: str, name: str, state: Any) -> None:
    is_pair = isinstance(state, (tuple, list)) and len(state) == 2
    came = f"{len(state)} values" if isinstance(state, (tuple, list)) else None
    check(
        state is None or is_pair,
        f"{op}: {name} must be (c_0, x_0), got {came or type(state).__name__}.",
    )


def _zoneout(value: Any) -> Array:
    known = statics.scalar(value)
    check(
        known is None or 0 <= known <= 1,
        f"qrnn: zoneout must be from 0 to 1, got {known}.",
    )
    value = jnp.asarray(as_array("qrnn", "zoneout", value))
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    return value if is_float else value.astype(jnp.float32)


def _flat(op: str, w_ih: Any, x: Array) -> tuple[int, Array]:
    """The convolution's width, and w_ih as a matrix."""
    w_ih = checks.jax_array(op, "w_ih", w_ih)
    width, columns = w_ih.shape[:1], w_ih.shape[-1:]
    check_input(op, ("...",), x, w_ih.shape, (width, sum(columns)))
    check(
        w_ih.ndim == 3 and w_ih.shape[0] >= 1 and w_ih.shape[1] == x.shape[-1],
        f"{op}: w_ih must be [width, input, gates*hidden] with input = {x.shape[-1]}, "
        f"got {list(w_ih.shape)}.",
    )
    return w_ih.shape[0], w_ih.reshape(-1, w_ih.shape[-1])


def _steps(op: str, x: Array, options: dict) -> Steps:
    return Steps.of(op, "x", x, "input", options.get("time_major", False))


# ---- what a step sees ----------------------------------------------------------------


def _windows(
    op: str, x: Array, width: int, x_0: Any, x_to: Any, options: dict
) -> tuple[Array, Array]:
    """What each step sees, `[*steps, width*input]`, and what came before the next.

    Args:
      op: the function, for messages.
      x: the input, zero where a step does not count.
      width: of the convolution.
      x_0: inputs before the first.
      x_to: inputs that a reset puts in place of those before it.
      options: of one direction.
    """
    steps = _steps(op, x, options)
    reverse = statics.flag(op, "reverse", options.get("reverse", False))
    lengths, resets = options.get("lengths"), options.get("resets")
    if lengths is not None:
        lengths = checked_lengths(op, lengths, steps.batch, steps.time)
    x_0, x_to = (
        _window(op, name, x, steps, width, w)
        for name, w in (("x_0", x_0), ("x of reset_to", x_to))
    )
    if x.size == 0 or width == 1:
        return jnp.concatenate([x] * width, -1), x_0
    if resets is None and not (reverse and lengths is not None):
        taps = _slices(x, x_0, steps, reverse=reverse)
    else:
        if resets is not None:
            resets = jnp.asarray(resets)
            checks.shape(op, "resets", resets, steps.names, steps.sizes)
        taps = _gathered(x, x_0, x_to, steps, lengths, resets, reverse=reverse)
    seen = jnp.stack(taps, -2)
    if lengths is None:
        last = 0 if reverse else steps.time - 1
        x_n = lax.index_in_dim(seen, last, steps.axis, keepdims=False)[..., 1:, :]
    else:
        last = jnp.maximum(0 * lengths if reverse else lengths - 1, 0)
        at = steps.along(last[..., None, None])
        x_n = jnp.take_along_axis(seen, at, steps.axis).squeeze(steps.axis)
        x_n = jnp.where(lengths[..., None, None] > 0, x_n[..., 1:, :], x_0)
    return seen.reshape(*x.shape[:-1], -1), x_n


def _window(
    op: str, name: str, x: Array, steps: Steps, width: int, given: Any
) -> Array:
    """`[*batch, width - 1, input]`, checked, or zeros."""
    sizes = (*steps.batch, width - 1, x.shape[-1])
    if given is None:
        given = jnp.zeros(sizes, x.dtype)
    given = checks.jax_array(op, name, given)
    checks.same_dtype(op, {"x": x, name: given})
    checks.shape(op, name, given, ("*batch", "width - 1", "input"), sizes)
    return aligned_state(x, steps.axis, given)


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
