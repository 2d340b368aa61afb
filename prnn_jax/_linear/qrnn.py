"""Quasi-recurrent networks: a convolution over time, then pooling with gates."""

from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.arguments import check_input
from prnn_jax._call.controls import as_array
from prnn_jax._call.options import LinearCellOptions, Precision
from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._linear.run import for_factors, gates_of, input_of, linear
from prnn_jax._linear.ways import Together, in_directions, in_fewer_steps
from prnn_jax._linear.windows import steps_of, windows

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
            taps, x_n = windows(op, x, width, x_0, x_to, options)
            columns = width * x.shape[-1]  # -1 would not do of no steps
            seen = jnp.stack(taps, -2).reshape(*x.shape[:-1], columns)
            gates = {"w_ih": flat, "b_ih": weights["b_ih"]}
            z, f, *others = gates_of(op, seen, gates, 1 + len(pooling), precision)
            z, f, *i = for_factors(z, f, *others[1:])
            f = jax.nn.sigmoid(f)
            enters = jax.nn.sigmoid(i[0]) if pooling == "ifo" else 1 - f
            if zoneout is not None:
                k = weights.get("zoneout", zoneout)
                if k.ndim:
                    names = (*steps_of(op, x, options).names, "hidden")
                    checks.shape(op, "zoneout", together(k), names, f.shape)
                    k = together(k)
                k = k.astype(f.dtype)
                f, enters = k + (1 - k) * f, (1 - k) * enters
            of_c = {**options, "of_b": "x", "of_h": "c_0", "reset_to": c_to}
            c, c_n = linear(op, f, enters * phi(z), c_0, dtype=x.dtype, **of_c)
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
