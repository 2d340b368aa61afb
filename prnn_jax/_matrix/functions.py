"""The public functions whose state is a matrix."""

from typing import Unpack, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import GivenState, MatrixOptions
from prnn_jax._given.checks import float32_at_least, known_options
from prnn_jax._matrix.run import recur
from prnn_jax._matrix.terms import Terms

__all__ = ["delta_rule", "linear_attention", "mlstm"]


def mlstm(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    i: ArrayLike,
    f: ArrayLike,
    state_0: GivenState | None = None,
    *,
    epsilon: float = 0.0,
    **options: Unpack[MatrixOptions],
) -> tuple[Array, tuple[Array, Array, Array]]:
    r"""The LSTM with a matrix for its memory, of xLSTM.

    .. math::

       S_t &= σ(f_t) S_{t-1} + e^{i_t} k_t v_t^T \\
       n_t &= σ(f_t) n_{t-1} + e^{i_t} k_t \\
       h_t &= \frac{S_t^T q_t / \sqrt{d_k}}{\max(|n_t^T q_t / \sqrt{d_k}|, 1)}

    (Beck et al. 2024, NeurIPS, arXiv:2405.04517, there transposed: C). Heads are a
    batch axis. A state is kept divided by :math:`e^{m_t}`, where
    :math:`m_t = \max(\log σ(f_t) + m_{t-1}, i_t)`, at a reset :math:`i_t`, so that no
    exponential overflows; m is at least -39 or so in float32.

    Args:
      q: `[*batch, time, d_k]`.
      k: `[*batch, time, d_k]`.
      v: `[*batch, time, d_v]`.
      i: `[*batch, time]`, of the input gate before its exponential.
      f: `[*batch, time]`, of the forget gate before σ.
      state_0: S `[*batch, d_k, d_v]`, n `[*batch, d_k]` and m `[*batch]`; zeros if not
        given. Where epsilon is 0, the m that is returned is a constant to `jax.grad`,
        and so is the factor of S and n.
      epsilon: added to the denominator, whose numerator and itself are divided by
        :math:`e^{m_t}`: 1e-6 in the authors' own kernels, 0 in their paper.
      **options: as of `linear_attention`.

    Returns:
      h `[*batch, time, d_v]`, and the last state, float32 of 16-bit arrays.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    known_options("mlstm", options, MatrixOptions)
    qkv, gates = {"q": q, "k": k, "v": v}, {"i": i, "f": f}
    more = {"is_normalised": True, "epsilon": epsilon, **options}
    h, last = recur("mlstm", qkv, gates, state_0, _mlstm, **more)
    return h, cast(tuple[Array, Array, Array], tuple(last))


def linear_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    log_f: ArrayLike | None = None,
    state_0: ArrayLike | None = None,
    **options: Unpack[MatrixOptions],
) -> tuple[Array, Array]:
    r"""Linear attention whose memory fades by a factor of each step.

    .. math:: S_t = f_t S_{t-1} + k_t v_t^T, \qquad h_t = S_t^T q_t

    (Katharopoulos et al. 2020, ICML, without a factor; RetNet, Sun et al. 2023, a
    constant one; Mamba-2, Dao and Gu 2024, ICML: q is C, k is B, v is Δ x and log_f is
    Δ A). Many steps are taken at once, by products of matrices. Heads are a batch
    axis; arrays that heads share have an axis of 1 there, or, of the first axes, none.

    Args:
      q: `[*batch, time, d_k]`, multiplied by what scale there is.
      k: `[*batch, time, d_k]`.
      v: `[*batch, time, d_v]`.
      log_f: `[*batch, time]`, the logarithms of f; 0 if not given. In the dtype of q,
        or float32.
      state_0: S `[*batch, d_k, d_v]`; zeros if not given. Likewise.
      **options: lengths, `[*batch]`, where an axis may be 1: how many steps of each
        row count, from its beginning, as in `lstm`; resets, `[*batch, time]` likewise:
        where not zero, the state is replaced by zeros before that step, as by a factor
        of 0, so that NaN stays NaN; reverse: from the last step to the first;
        time_major: arrays are `[time, *batch, ...]`; precision: of products, as in
        `jax.lax.dot`; chunk_size: how many steps are taken at once, 64 if not given
        (NaN of one is in all of them, in those before it, too); implementation: "scan"
        for one step after the other (`lax.scan`), or None. On a CPU a forward pass of
        few heads alone may be faster that way; gradients are not.

    Returns:
      h `[*batch, time, d_v]`, and the last S, float32 of 16-bit arrays.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    known_options("linear_attention", options, MatrixOptions)
    qkv, gates = {"q": q, "k": k, "v": v}, {} if log_f is None else {"log_f": log_f}
    h, last = recur("linear_attention", qkv, gates, state_0, _attention, **options)
    return h, last.s


def delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    log_f: ArrayLike | None = None,
    state_0: ArrayLike | None = None,
    **options: Unpack[MatrixOptions],
) -> tuple[Array, Array]:
    r"""Linear attention that replaces what it has for a key, and does not add to it.

    .. math::

       S_t &= f_t S_{t-1} + β_t k_t (v_t - f_t S_{t-1}^T k_t)^T \\
       h_t &= S_t^T q_t

    DeltaNet (Schlag et al. 2021, ICML; Yang et al. 2024, NeurIPS, arXiv:2406.06484),
    and with f Gated DeltaNet (Yang et al. 2025, ICLR, arXiv:2412.06464). Keys are of
    length 1 there, and β is from 0 to 1, or to 2.

    Args:
      q: `[*batch, time, d_k]`, multiplied by what scale there is.
      k: `[*batch, time, d_k]`.
      v: `[*batch, time, d_v]`.
      beta: `[*batch, time]`, in the dtype of q, or float32.
      log_f: `[*batch, time]`, the logarithms of f; 0 if not given. Likewise.
      state_0: S `[*batch, d_k, d_v]`; zeros if not given. Likewise.
      **options: as of `linear_attention`.

    Returns:
      h `[*batch, time, d_v]`, and the last S, float32 of 16-bit arrays.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    known_options("delta_rule", options, MatrixOptions)
    qkv, gates = {"q": q, "k": k, "v": v}, {"beta": beta}
    if log_f is not None:
        gates["log_f"] = log_f
    h, last = recur("delta_rule", qkv, gates, state_0, _delta, **options)
    return h, last.s


# ---- what each takes at a step -------------------------------------------------------


def _mlstm(q: Array, k: Array, v: Array, i: Array, f: Array) -> Terms:
    return Terms(q, k, v, jax.nn.log_sigmoid(f), log_i=i)


def _attention(q: Array, k: Array, v: Array, log_f: Array | None = None) -> Terms:
    return Terms(q, k, v, _or_zeros(log_f, q))


def _delta(
    q: Array, k: Array, v: Array, beta: Array, log_f: Array | None = None
) -> Terms:
    return Terms(q, k, v, _or_zeros(log_f, q), beta=beta)


def _or_zeros(log_f: Array | None, q: Array) -> Array:
    if log_f is not None:
        return log_f
    return jnp.zeros(q.shape[:-1], float32_at_least(q.dtype))
