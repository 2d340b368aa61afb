"""The public functions whose recurrence has no product: element by element."""

from typing import Any, Unpack

import jax
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import (
    Implementation,
    Lengths,
    LinearCellOptions,
    MaskedY,
    Precision,
    Resets,
)
from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._given.params import Params, described
from prnn_jax._linear.run import for_factors, gates_of, input_of, linear, projected
from prnn_jax._linear.ways import in_directions, in_fewer_steps

__all__ = ["indrnn", "linear_recurrence", "min_gru", "min_lstm"]


def linear_recurrence(
    a: ArrayLike,
    b: ArrayLike,
    h_0: ArrayLike | None = None,
    *,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: ArrayLike | None = None,
    reverse: bool = False,
    time_major: bool = False,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    r"""The linear recurrence with gates, element by element.

    .. math:: h_t = a_t h_{t-1} + b_t

    What minGRU, minLSTM, SRU, QRNN, RG-LRU, LRU and diagonal state space models such as
    S5 are, once their gates are made, which for all steps is done at once. On a CPU it
    takes one pass over the arrays, on a GPU one or two; elsewhere it is a
    `jax.lax.associative_scan`. The state is float32 between the steps of 16-bit arrays.

    Args:
      a: `[*batch, time, features]`, or `[features]`, the same at all steps; real or
        complex, as all arrays.
      b: `[*batch, time, features]`.
      h_0: `[*batch, features]`; zeros if not given. In the dtype of b, or, where that
        has 16 bits, float32: the last h is, too, and calls that hand it on give the
        bits of one.
      lengths: `[*batch]`, how many steps of each row count, from its beginning, as in
        `lstm`: h is zero at the others, and `reverse` begins at the last that counts.
      mask: `[*batch, time]`: where zero, the step does not count, as in `lstm`: the
        state stays. In place of lengths, and without resets.
      masked_y: what h is there: "hold" for the last before it, or "zero".
      resets: `[*batch, time]`: where not zero, the state is replaced before that step,
        in the order of processing, as in `lstm`.
      reset_to: what it is replaced with, as h_0; zeros if not given.
      reverse: from the last step to the first.
      time_major: a, b, h, mask and resets are `[time, *batch, ...]`.
      implementation: "native", "scan" (`lax.scan`), or None: native in float32,
        bfloat16, float16 and complex64, an associative scan elsewhere.

    Returns:
      h `[*batch, time, features]`, and the last h `[*batch, features]`.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    arguments = locals()
    return linear("linear_recurrence", **arguments)


def indrnn(
    x: ArrayLike,
    params: Params,
    h_0: ArrayLike | None = None,
    *,
    activation: GivenActivation = "relu",
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Independently recurrent network: each unit sees its own state alone.

    .. math:: h' = f(x W_{ih} + b_{ih} + b_{hh} + u h)

    (Li et al. 2018, CVPR, arXiv:1803.04831).

    Args:
      x: `[*batch, time, input]`.
      params: `Params(w_ih, w_hh, b_ih, b_hh)` with `w_ih [input, hidden]`, biases
        `[hidden]` or None, and u, `[hidden]`, as w_hh: in float32 also beside 16 bits,
        as Flax' and Keras' layers leave it; then the recurrence is in float32.
      h_0: `[*batch, hidden]`; zeros if not given.
      activation: f, a name or an `Activation`, as of `rnn`.
      precision: of the product with w_ih, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, but that `lax.scan` runs it where no
        engine does; and `bidirectional` and `merge` as of `lstm`: then the params and
        h_0 have a leading axis of 2, and y is `[*batch, time, 2*hidden]`.

    Returns:
      y `[*batch, time, hidden]`, every h, and the last h `[*batch, hidden]`.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    f = applied("indrnn", "activation", activation)
    is_params = isinstance(params, Params)
    w_hh: Any = params.w_hh if is_params else None
    lead = 1 + bool(options.get("bidirectional"))
    check(
        len(getattr(w_hh, "shape", ())) == lead,
        "indrnn: params must be prnn_jax.Params whose w_hh is u, "
        f"[{'2, ' * (lead - 1)}hidden], got "
        f"{list(getattr(w_hh, 'shape', ())) or described(params)}.",
    )

    def one(op: str, weights: dict, h_0: Any, options: dict) -> tuple[Array, Array]:
        u, own = weights["w_hh"], {k: w for k, w in weights.items() if k != "w_hh"}

        def run(x: Any, options: dict, _) -> tuple[Array, Array]:
            x, _ = input_of(op, x, options)
            a_x = projected(op, x, own, "hidden", u.shape[0], precision)
            if u.dtype == float32_at_least(x.dtype):
                (a_x,) = for_factors(a_x)
            names = {"of_a": "w_hh", "of_b": "x", "dtype": x.dtype}
            return linear(op, u, a_x, h_0, f=f, **names, **options)

        return in_fewer_steps(op, run, x, h_0, options)

    names = "w_ih", "w_hh", "b_ih", "b_hh"
    weights = {name: getattr(params, name) for name in names}
    return in_directions("indrnn", one, weights, h_0, **options)


def min_gru(
    x: ArrayLike,
    w_ih: ArrayLike,
    b_ih: ArrayLike | None = None,
    h_0: ArrayLike | None = None,
    *,
    activation: GivenActivation = "linear",
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Minimal GRU, whose gates see the input alone.

    .. math:: h' = (1 - z) h + z f(a_h) \qquad z = σ(a_z)

    with :math:`a = x W_{ih} + b_{ih}` (Feng et al. 2024, arXiv:2410.01201).

    Args:
      x: `[*batch, time, input]`.
      w_ih: `[input, 2*hidden]`, the columns of z before those of the candidate.
      b_ih: `[2*hidden]`, or None for zero.
      h_0: `[*batch, hidden]`; zeros if not given.
      activation: f, a name or an `Activation`.
      precision: of the product with w_ih, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y is
        `[*batch, time, 2*hidden]`.

    Returns:
      y `[*batch, time, hidden]`, every h, and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    f = applied("min_gru", "activation", activation)

    def one(op: str, weights: dict, h_0: Any, options: dict) -> tuple[Array, Array]:
        given, _ = input_of(op, x, options)
        z, candidate = for_factors(*gates_of(op, given, weights, 2, precision))
        z = jax.nn.sigmoid(z)
        dtype = given.dtype
        return linear(op, 1 - z, z * f(candidate), h_0, dtype=dtype, **options)

    weights = {"w_ih": w_ih, "b_ih": b_ih}
    return in_directions("min_gru", one, weights, h_0, **options)


def min_lstm(
    x: ArrayLike,
    w_ih: ArrayLike,
    b_ih: ArrayLike | None = None,
    h_0: ArrayLike | None = None,
    *,
    activation: GivenActivation = "linear",
    precision: Precision = None,
    **options: Unpack[LinearCellOptions],
) -> tuple[Array, Array]:
    r"""Minimal LSTM, whose gates see the input alone and add up to 1.

    .. math::
      h' = \frac{f}{f + i} h + \frac{i}{f + i} φ(a_g) \qquad i, f = σ(a_i), σ(a_f)

    with :math:`a = x W_{ih} + b_{ih}` (Feng et al. 2024, arXiv:2410.01201).

    Args:
      x: `[*batch, time, input]`.
      w_ih: `[input, 3*hidden]`, the columns of i, f and g.
      b_ih: `[3*hidden]`, or None for zero.
      h_0: `[*batch, hidden]`; zeros if not given.
      activation: φ, a name or an `Activation`.
      precision: of the product with w_ih, as in `jax.lax.dot`.
      **options: as of `linear_recurrence`, and `bidirectional` and `merge` as of
        `lstm`: then all arrays but x have a leading axis of 2, and y is
        `[*batch, time, 2*hidden]`.

    Returns:
      y `[*batch, time, hidden]`, every h, and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    phi = applied("min_lstm", "activation", activation)

    def one(op: str, weights: dict, h_0: Any, options: dict) -> tuple[Array, Array]:
        given, _ = input_of(op, x, options)
        i, f, g = for_factors(*gates_of(op, given, weights, 3, precision))
        # f / (f + i) is 1 / (1 + i / f), and log of i / f is log σ(a_i) - log σ(a_f).
        keeps, enters = _shares(jax.nn.log_sigmoid(f) - jax.nn.log_sigmoid(i))
        dtype = given.dtype
        return linear(op, keeps, enters * phi(g), h_0, dtype=dtype, **options)

    weights = {"w_ih": w_ih, "b_ih": b_ih}
    return in_directions("min_lstm", one, weights, h_0, **options)


@jax.custom_jvp
def _shares(a: Array) -> tuple[Array, Array]:
    """σ(a) and 1 - σ(a), both and their derivative exact where one is near 1."""
    return jax.nn.sigmoid(a), jax.nn.sigmoid(-a)


@_shares.defjvp
def _shares_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple:
    keeps, enters = _shares(*primals)
    tangent = keeps * enters * tangents[0]
    return (keeps, enters), (tangent, -tangent)
