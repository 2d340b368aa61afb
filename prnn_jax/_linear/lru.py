"""The linear recurrent unit, whose diagonal is complex."""

from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.options import LinearCellOptions, Options, Precision
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._linear.run import Steps, input_of, linear, projected
from prnn_jax._linear.ways import Together, in_directions, in_fewer_steps


def lru(
    x: ArrayLike,
    w_ih: ArrayLike,
    w_out: ArrayLike,
    nu_log: ArrayLike,
    theta_log: ArrayLike,
    gamma_log: ArrayLike | None = None,
    skip: ArrayLike | None = None,
    h_0: ArrayLike | None = None,
    *,
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Linear recurrent unit: a diagonal of complex numbers between two products.

    .. math::
      h' = λ h + e^{γ^{log}} (x B) \qquad y = \mathrm{Re}(h' C) + d x \qquad
      λ = \exp(-e^{ν^{log}} + i e^{θ^{log}})

    (Orvieto et al. 2023, ICML, arXiv:2303.06349). Of a complex number there are two
    parts in an array of real ones: all real parts before all imaginary ones. λ and h
    are float32 between the steps also where x is of 16 bits. What the paper's code has
    as B_re, B_im, C_re and C_im is here `concatenate([B_re.T, B_im.T], 1)` and
    `concatenate([C_re.T, C_im.T], 0)`.

    Args:
      x: `[*batch, time, input]`.
      w_ih: B, `[input, 2*state]`: the columns of its real part, then of its imaginary.
      w_out: C, `[2*state, hidden]`: the rows of its real part, then of its imaginary.
      nu_log: `[state]`. This, theta_log and gamma_log in float32 also beside 16 bits,
        of which λ would be another number; Flax' and Keras' layers leave them so.
      theta_log: `[state]`.
      gamma_log: `[state]`; None for :math:`\log \sqrt{1 - |λ|^2}`, with which the paper
        begins.
      skip: d, `[input]`, of an input as wide as y; or None for zero.
      h_0: `[*batch, 2*state]`; zeros if not given.
      precision: of the products, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y is
        `[*batch, time, 2*hidden]`. With a mask, "hold" is zero where nothing was
        before.

    Returns:
      y `[*batch, time, hidden]`, and the last h `[*batch, 2*state]`.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """

    def one(op: str, weights: dict, h_0: Any, options: dict) -> tuple[Array, Array]:
        def run(x: Any, options: dict, _: Together) -> tuple[Array, Array]:
            return _layer(op, x, weights, h_0, precision, options)

        return in_fewer_steps(op, run, x, None, options)

    weights = {"w_ih": w_ih, "w_out": w_out, "nu_log": nu_log, "theta_log": theta_log}
    weights |= {"gamma_log": gamma_log, "skip": skip}
    return in_directions("lru", one, weights, h_0, **options)


#: Of 16 bits a phase would be another one, the more so the longer ago it began.
_OF_LAMBDA = "nu_log", "theta_log", "gamma_log"


def _layer(
    op: str, x: Any, weights: dict, h_0: Any, precision: Precision, options: dict
) -> tuple[Array, Array]:
    x, _ = input_of(op, x, options)
    weights = _checked(op, x, weights)
    state = weights["nu_log"].shape[-1]
    wide = float32_at_least(x.dtype)
    # Beyond, |λ| is 0 or 1, and a derivative 0 · ∞.
    nu_log = jnp.clip(weights["nu_log"].astype(wide), -80, 80)
    nu, theta = jnp.exp(nu_log), jnp.exp(weights["theta_log"].astype(wide))
    gamma_log = weights["gamma_log"]
    if gamma_log is None:
        gamma_log = gamma_log_of(nu_log)
    gamma = jnp.exp(gamma_log.astype(wide))
    scaled = weights["w_ih"].astype(wide) * jnp.concatenate([gamma, gamma])[None]
    scaled = {"w_ih": scaled.astype(x.dtype)}
    b = _complex(projected(op, x, scaled, "2*state", 2 * state, precision))

    time_major = Options.of(options).time_major
    batch = Steps.of(op, "x", x, "input", time_major).batch
    given = {"h_0": h_0, "reset_to": options.get("reset_to")}
    states = {n: _state(op, n, x, h, (*batch, 2 * state)) for n, h in given.items()}
    options = {**options, "reset_to": states["reset_to"]}
    # λ itself, and not its logarithm, is what the steps multiply.
    of_lambda = lax.complex(
        jnp.exp(-nu) * jnp.cos(theta), jnp.exp(-nu) * jnp.sin(theta)
    )
    names = {"of_a": "nu_log", "of_b": "x"}
    h, last = linear(op, of_lambda, b, states["h_0"], **names, **options)

    real, imaginary = jnp.split(weights["w_out"], 2)
    y = jnp.matmul(
        _parts(h).astype(x.dtype),
        jnp.concatenate([real, -imaginary]),
        precision=statics.precision(op, precision),
    )
    if weights["skip"] is not None:
        y = y + jnp.broadcast_to(weights["skip"], x.shape) * x
    return y, _parts(last).astype(x.dtype if h_0 is None else jnp.result_type(h_0))


def gamma_log_of(nu_log: Array) -> Array:
    """log √(1 - |λ|²), with which γ begins: the state is then as large as x."""
    return 0.5 * jnp.log(-jnp.expm1(-2 * jnp.exp(nu_log)))


def _checked(op: str, x: Array, weights: dict) -> dict[str, Any]:
    """The arrays, which fit together; None where there is none."""
    out = {
        name: None
        if w is None and name in ("gamma_log", "skip")
        else checks.jax_array(op, name, w)
        for name, w in weights.items()
    }
    arrays = {name: w for name, w in out.items() if w is not None}
    of_lambda = {name: arrays[name] for name in _OF_LAMBDA if name in arrays}
    checks.same_dtype(
        op, {"x": x, **{n: w for n, w in arrays.items() if n not in of_lambda}}
    )
    checks.same_dtype_or_float32(op, ("x", x), of_lambda)
    (*_, state), (*_, hidden) = _shape(arrays["nu_log"]), _shape(arrays["w_out"])
    sizes = {
        "nu_log": ("state",),
        "w_ih": ("input", "2*state"),
        "w_out": ("2*state", "hidden"),
        "theta_log": ("state",),
        "gamma_log": ("state",),
        "skip": ("input",),
    }
    known = {"input": x.shape[-1], "state": state, "2*state": 2 * state}
    known["hidden"] = hidden
    for name, axes in sizes.items():
        if name in arrays:
            checks.shape(op, name, arrays[name], axes, tuple(known[n] for n in axes))
    check(
        "skip" not in arrays or x.shape[-1] == hidden,
        f"{op}: skip must be None where the input, {x.shape[-1]}, is not as wide as y, "
        f"{hidden}, got an array.",
    )
    return out


def _shape(array: Array) -> tuple[int, ...]:
    return array.shape or (0,)


def _state(op: str, name: str, x: Array, state: Any, shape: tuple) -> Array | None:
    """A state as complex numbers."""
    if state is None:
        return None
    state = checks.jax_array(op, name, state)
    checks.same_dtype_or_float32(op, ("x", x), {name: state})
    checks.shape(op, name, state, ("*batch", "2*state"), shape)
    return _complex(state)


def _complex(parts: Array) -> Array:
    wide = float32_at_least(parts.dtype)
    return lax.complex(*jnp.split(parts.astype(wide), 2, -1))


def _parts(numbers: Array) -> Array:
    return jnp.concatenate([numbers.real, numbers.imag], -1)
