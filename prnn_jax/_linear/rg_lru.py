"""The real-gated linear recurrent unit of Griffin."""

import functools
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._call.controls import as_array
from prnn_jax._call.options import LinearCellOptions, Options, Precision
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._linear.run import Steps, gates_of, input_of, linear
from prnn_jax._linear.ways import in_directions


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _entering(r: Array, decay: Array, c: float) -> Array:
    """√(1 - a²) of log a = c σ(r) log σ(decay), exact where a is near 1.

    So is its derivative, which goes to zero there: that of the root alone is infinite.
    """
    return jnp.sqrt(-jnp.expm1(2 * c * jax.nn.sigmoid(r) * jax.nn.log_sigmoid(decay)))


@_entering.defjvp
def _entering_jvp(c: float, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    r, decay = primals
    log_keeps = jax.nn.log_sigmoid(decay)
    log_a, share = c * jax.nn.sigmoid(r) * log_keeps, _entering(r, decay, c)
    is_shut = share == 0
    # -∂share/∂(log a) · log a = a² (-log a / share)
    slope = jnp.where(is_shut, 0, -log_a / jnp.where(is_shut, 1, share))
    slope = jnp.exp(2 * log_a) * slope
    # ∂ log(-log σ(Λ)) / ∂Λ, which goes to -1.
    is_over = log_keeps == 0
    of_decay = jax.nn.sigmoid(-decay) / jnp.where(is_over, 1, log_keeps)
    of_decay = jnp.where(is_over, -1, of_decay)
    return share, slope * (jax.nn.sigmoid(-r) * tangents[0] + of_decay * tangents[1])


def rg_lru(
    x: ArrayLike,
    w_gates: ArrayLike,
    b_gates: ArrayLike | None,
    decay: ArrayLike,
    h_0: ArrayLike | None = None,
    *,
    c: float = 8.0,
    scale_first: bool = True,
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Real-gated linear recurrent unit, of Griffin and RecurrentGemma.

    .. math::
      h' = a h + \sqrt{1 - a^2} (i x) \qquad a = σ(Λ)^{c r} \qquad
      r, i = σ(a_r), σ(a_i)

    with :math:`(a_r, a_i) = x W + b` (De et al. 2024, arXiv:2402.19427).

    Args:
      x: `[*batch, time, hidden]`.
      w_gates: `[hidden, 2*hidden]`, the columns of r before those of i; or of gates
        that are block-diagonal, as RecurrentGemma's, `[heads, size, 2*size]` of
        hidden = heads size, the columns of r in each before those of i.
      b_gates: `[2*hidden]`, or None for zero.
      decay: Λ, `[hidden]`; what RecurrentGemma's code keeps is -Λ. In float32 also
        beside 16 bits; Flax' and Keras' layers leave it so.
      h_0: `[*batch, hidden]`; zeros if not given.
      c: how much r may speed the decay up.
      scale_first: whether the root scales the input of a sequence's first step, too, as
        in the paper. In RecurrentGemma's code it does not: False. That is the first
        step that counts, if there is no h_0, and each at which resets are set.
      precision: of the product, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y is
        `[*batch, time, 2*hidden]`.

    Returns:
      y `[*batch, time, hidden]`, every h, and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """

    def one(op: str, weights: dict, h_0: Any, options: dict) -> tuple[Array, Array]:
        given, _ = input_of(op, x, options)
        decay = checks.jax_array(op, "decay", weights.pop("decay"))
        r, i = _gates_of_rg_lru(op, given, weights, precision)
        checks.shape(op, "decay", decay, ("hidden",), r.shape[-1:])
        checks.same_dtype_or_float32(op, ("x", given), {"decay": decay})
        # In 16 bits 1 - a² and log σ(Λ) would be zero long before they are.
        wide = float32_at_least(given.dtype)
        r = r.astype(wide)
        decay = jnp.broadcast_to(decay.astype(wide), r.shape)
        a = jnp.exp(c * jax.nn.sigmoid(r) * jax.nn.log_sigmoid(decay))
        share = _entering(r, decay, c)
        if not statics.flag(op, "scale_first", scale_first):
            share = jnp.where(_begins(op, given, h_0, options), 1, share)
        # Of a in 0.9 to 0.999 bfloat16 knows 25 numbers: a is float32 in the steps.
        b = share * (jax.nn.sigmoid(i) * given).astype(wide)
        return linear(op, a, b, h_0, dtype=given.dtype, **options)

    weights = {"w_gates": w_gates, "b_gates": b_gates, "decay": decay}
    return in_directions("rg_lru", one, weights, h_0, **options)


def _gates_of_rg_lru(
    op: str, x: Array, weights: dict, precision: Precision
) -> tuple[Array, ...]:
    """r and i before their sigmoids, of gates that see all units or those of a head."""
    w = checks.jax_array(op, "w_gates", weights["w_gates"])
    if w.ndim != 3:
        return tuple(gates_of(op, x, weights, 2, precision))
    heads, size = w.shape[:2]
    checks.same_dtype(op, {"x": x, "w_gates": w})
    check(
        w.shape == (heads, size, 2 * size) and heads * size == x.shape[-1],
        f"{op}: w_gates must be [heads, size, 2*size] of {x.shape[-1]} = heads * size "
        f"units, got {list(w.shape)}.",
    )
    of_heads = x.reshape(*x.shape[:-1], heads, size)
    lax_precision = statics.precision(op, precision)
    a = jnp.einsum("...hi,hij->...hj", of_heads, w, precision=lax_precision)
    r, i = (part.reshape(x.shape) for part in jnp.split(a, 2, -1))
    if weights["b_gates"] is None:
        return r, i
    b = checks.jax_array(op, "b_gates", weights["b_gates"])
    checks.same_dtype(op, {"x": x, "b_gates": b})
    checks.shape(op, "b_gates", b, ("2*hidden",), (2 * x.shape[-1],))
    of_r, of_i = (jnp.broadcast_to(part, x.shape) for part in jnp.split(b, 2))
    return r + of_r, i + of_i


def _begins(op: str, x: Array, h_0: Any, options: dict) -> Array:
    """Which steps begin a sequence, with an axis of features of 1."""
    given = Options.of(options)
    steps = Steps.of(op, "x", x, "hidden", given.time_major)
    counts = steps.counting(op, options)
    if counts is None:
        counts = jnp.ones((*steps.sizes, 1), bool)
    reverse = statics.flag(op, "reverse", given.reverse)
    number = lax.cumsum(counts.astype(jnp.int32), steps.axis, reverse=reverse)
    begins = counts & (number == 1) & (h_0 is None)
    if given.resets is None:
        return begins
    resets = as_array(op, "resets", given.resets)
    checks.shape(op, "resets", resets, steps.names, steps.sizes)
    return begins | jnp.asarray(resets).astype(bool)[..., None]
