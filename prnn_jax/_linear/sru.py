"""The simple recurrent unit."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.options import LinearCellOptions, Precision
from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.linear_plan import BY_SCAN, check_native
from prnn_jax._engine.sharding import aligned_state, match_varying
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._linear.run import (
    Given,
    LinearControls,
    Steps,
    for_factors,
    gates_of,
    how,
    input_of,
    linear,
    projected,
)
from prnn_jax._linear.ways import Together, in_directions, in_fewer_steps


def sru(
    x: ArrayLike,
    w_ih: ArrayLike,
    b_ih: ArrayLike | None = None,
    c_0: ArrayLike | None = None,
    *,
    peepholes: ArrayLike | None = None,
    w_skip: ArrayLike | None = None,
    skip_scale: float = 1.0,
    activation: GivenActivation = "linear",
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Simple recurrent unit, with its highway from the input to the output.

    .. math::
      c' = f c + (1 - f) a_c \qquad y = r\, g(c') + (1 - r)\, s\, x \qquad
      f, r = σ(a_f), σ(a_r)

    with :math:`(a_c, a_f, a_r) = x W_{ih} + (0, b_{ih})` (Lei et al. 2018, EMNLP,
    arXiv:1709.02755, in its first version, where g is tanh). Without peepholes the
    gates see the input alone, and c is a `linear_recurrence`.

    With peepholes, as the paper was published, :math:`a_f` and :math:`a_r` have
    :math:`v_f c` and :math:`v_r c` added, c being the state before the step. Then f
    depends on the state, and c is not linear in it: the products are still made at once
    for all steps, but the steps themselves are a `jax.lax.scan` on every platform.

    Args:
      x: `[*batch, time, input]`.
      w_ih: `[input, 3*hidden]`, the columns of the candidate, of f and of r.
      b_ih: `[2*hidden]`, of f and r, or None for zero.
      c_0: `[*batch, hidden]`; zeros if not given.
      peepholes: `[2*hidden]`, v_f before v_r; or None.
      w_skip: `[input, hidden]`, which multiplies x in the highway; None takes x itself,
        as wide as hidden.
      skip_scale: s. The paper has :math:`\sqrt{1 + 2 e^b}`, where b is what the bias of
        r begins with.
      activation: g, a name or an `Activation`.
      precision: of the products, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y is
        `[*batch, time, 2*hidden]`. With a mask, "hold" is zero where nothing was
        before.

    Returns:
      y `[*batch, time, hidden]`, and the last c `[*batch, hidden]`.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    g = applied("sru", "activation", activation)
    scale = statics.number("sru", "skip_scale", skip_scale)

    def one(op: str, weights: dict, c_0: Any, options: dict) -> tuple[Array, Array]:
        def run(x: Any, options: dict, _: Together) -> tuple[Array, Array]:
            x, counts = input_of(op, x, options)
            c, r, last = _states(op, x, weights, c_0, precision, options)
            highway = _highway(op, x, weights["w_skip"], r, precision)
            y = r * g(c) + (1 - r) * (scale * highway)
            return y if counts is None else jnp.where(counts, y, 0), last

        return in_fewer_steps(op, run, x, None, options)

    weights = {"w_ih": w_ih, "b_ih": b_ih, "peepholes": peepholes, "w_skip": w_skip}
    return in_directions("sru", one, weights, c_0, **options)


def _states(
    op: str, x: Array, weights: dict, c_0: Any, precision: Any, options: dict
) -> tuple[Array, Array, Array]:
    """c and r of all steps, and the last c."""
    candidate, *gates = gates_of(op, x, {"w_ih": weights["w_ih"]}, 3, precision)
    hidden = candidate.shape[-1]
    for name in ("b_ih", "peepholes"):
        if weights[name] is not None:
            array = weights[name] = checks.jax_array(op, name, weights[name])
            checks.same_dtype(op, {"x": x, name: array})
            checks.shape(op, name, array, ("2*hidden",), (2 * hidden,))
    if weights["b_ih"] is not None:
        biases = jnp.split(weights["b_ih"], 2)
        biases = [jnp.broadcast_to(b, candidate.shape) for b in biases]
        gates = [a + b for a, b in zip(gates, biases, strict=True)]
    if weights["peepholes"] is None:
        a_f, a_r = gates
        a_f, made = for_factors(a_f, candidate)
        f, r = map(jax.nn.sigmoid, (a_f, a_r))
        names = {"of_b": "x", "of_h": "c_0", "dtype": x.dtype}
        c, last = linear(op, f, (1 - f) * made, c_0, **names, **options)
        return c, r, last
    return _seeing_states(op, candidate, gates, weights["peepholes"], c_0, **options)


def _highway(op: str, x: Array, w_skip: Any, like: Array, precision: Any) -> Array:
    hidden = like.shape[-1]
    if w_skip is not None:
        return projected(op, x, {"w_skip": w_skip}, "hidden", hidden, precision)
    check(
        x.shape[-1] == hidden,
        f"{op}: w_skip must be [input, hidden] = [{x.shape[-1]}, {hidden}] where the "
        "input is not as wide as the state, got None.",
    )
    return x


# ---- gates that see the state --------------------------------------------------------


def _seeing_states(
    op: str,
    candidate: Array,
    gates: list[Array],
    peepholes: Array,
    c_0: Any,
    *,
    lengths: Any = None,
    resets: Any = None,
    reset_to: Any = None,
    reverse: bool = False,
    time_major: bool = False,
    implementation: Any = None,
) -> tuple[Array, Array, Array]:
    static = how(op, reverse, implementation, None)
    check_native(op, static, candidate.dtype, refusal=BY_SCAN)
    names = {"of_a": "x", "of_b": "x", "of_h": "c_0"}
    given = Given.of(op, candidate, candidate, c_0, time_major=time_major, **names)
    controls = LinearControls.of(op, given, lengths, None, "hold", resets, reset_to)
    axis = given.steps.axis
    c_0 = aligned_state(candidate, axis, given.or_zeros())
    if controls.reset_to is not None:
        reset_to = aligned_state(candidate, axis, controls.reset_to)
        controls = controls._replace(reset_to=reset_to)
    arrays = candidate, *gates, peepholes, c_0, controls
    return _scanned(static.reverse, given.steps, *match_varying(arrays))


@compiled_once(static_argnums=(0, 1))
def _scanned(
    reverse: bool,
    steps: Steps,
    candidate: Array,
    a_f: Array,
    a_r: Array,
    peepholes: Array,
    c_0: Array,
    controls: LinearControls,
) -> tuple[Array, Array, Array]:
    dtype = candidate.dtype
    wide = float32_at_least(dtype)
    v_f, v_r = jnp.split(peepholes.astype(wide), 2)
    reset_to = controls.reset_to
    new = jnp.zeros((), wide) if reset_to is None else reset_to.astype(wide)
    resets = (
        None if controls.resets is None else controls.resets.astype(bool)[..., None]
    )
    sequences = candidate, a_f, a_r, controls.counting(steps), resets

    def step(c: Array, of_step: tuple) -> tuple[Array, tuple[Array, Array]]:
        a_c, a_f, a_r, counts, is_reset = of_step
        before = c if is_reset is None else jnp.where(is_reset, new, c)
        f, r = jax.nn.sigmoid(a_f + v_f * before), jax.nn.sigmoid(a_r + v_r * before)
        made = f * before + (1 - f) * a_c
        made = made if counts is None else jnp.where(counts, made, c)
        return made, (made.astype(dtype), r.astype(dtype))

    by_step = jax.tree.map(lambda x: jnp.moveaxis(x, steps.axis, 0), sequences)
    last, out = lax.scan(step, c_0.astype(wide), by_step, reverse=reverse)
    c, r = (jnp.moveaxis(x, 0, steps.axis) for x in out)
    return c, r, last.astype(c_0.dtype)
