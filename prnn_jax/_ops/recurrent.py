"""The public functions."""

from collections.abc import Sequence

from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import (
    Implementation,
    Lengths,
    MaskedY,
    Merge,
    Options,
    Precision,
    Reserve,
    Resets,
    Zoneout,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._given.params import (
    Params,
    Prepared,
)
from prnn_jax._ops.run import call_of, run_layer

__all__ = ["gru", "lstm", "rnn", "slstm"]


def lstm(
    x: ArrayLike,
    params: Params | Prepared,
    state_0: Sequence[ArrayLike] | None = None,
    *,
    activation: GivenActivations = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: Sequence[ArrayLike] | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout: Zoneout = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    r"""Long short-term memory over a whole sequence.

    .. math::
      i, f, o = σ(a_i), σ(a_f), σ(a_o) \quad c' = f c + i \tanh(a_g) \quad
      h' = o \tanh(c')

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}` (Hochreiter & Schmidhuber
    1997, Neural Computation 9(8); Gers et al. 2000, ibid. 12(10)). With
    `params.peepholes` (Gers & Schmidhuber 2000, IJCNN), :math:`a_i` and :math:`a_f`
    have :math:`p_i c` and :math:`p_f c` added, and :math:`a_o` has :math:`p_o c'`. With
    `params.w_hr`, the recurrent projection (LSTMP, Sak et al. 2014, arXiv:1402.1128),
    :math:`h' = (o \tanh(c')) W_{hr}`: then h and y are not hidden wide but as wide as
    w_hr, and there is no zoneout.

    Args:
      x: `[*batch, time, input]`, any number of batch axes, also none.
      params: `Params`, gate order i f g o; or what `prepare` makes of them.
      state_0: `(h_0, c_0)`, each `[*batch, hidden]`; zeros if not given. Here and below
        h and what is shaped like it is `[*batch, projection]` with w_hr. In the dtype
        of x, or, where that has 16 bits, float32, in which the last state then is: h
        is rounded, as y is, c is not, and calls that hand it on give the bits of one.
      activation: in place of tanh: a name, or an `Activation` with numbers; or two, of
        the candidate :math:`a_g` and of :math:`c'`.
      gate_activation: in place of σ, as "hard_sigmoid" in old models of Keras.
      clip: bounds of pre-activations, of :math:`c'`, of h, or of gradients inside the
        steps; see `Clip`.
      lengths: whole numbers `[*batch]`, how many steps of each row count, from its
        beginning. At the others y is zero, and what x holds there, NaN too, reaches
        neither results nor gradients; the last state is that after the last step that
        counts, and `reverse` begins there. A length of 0 leaves state_0. Where values
        are known (outside `jit`), a length below 0 or above time is an error; inside
        `jit` it is taken for the nearest that is possible.
      mask: `[*batch, time]`, of any dtype: where zero, the step does not count. The
        state stays as it is, and what x holds there reaches nothing; other than with
        lengths, such steps may be anywhere. In place of lengths, and without resets.
      masked_y: y where a step does not count: "hold" for the last h before it, in the
        order of processing, or the initial one, as Keras has it; or "zero".
      resets: `[*batch, time]`, of any dtype: where not zero, the state is replaced
        before that step (in the order of processing), at step 0 too, and no gradient
        crosses. Resets at steps that do not count do nothing.
      reset_to: what it is replaced with, shaped as state_0; zeros if not given. Gets
        gradients.
      recurrent_mask: `[*batch, hidden]`, multiplies h where it enters the product with
        w_hh, the same at all steps: variational dropout (Gal & Ghahramani 2016,
        arXiv:1512.05287) if it is a Bernoulli draw over the share kept. Constant: gets
        no gradient.
      zoneout: how much of the old state stays, from 0 to 1 (Krueger et al. 2017,
        arXiv:1606.01305): :math:`s' = k s + (1 - k) s_{new}`. An array shaped as y,
        of Bernoulli draws while training; or a number, their mean, at inference, which
        may be traced; or a pair, for h and for c. Constant: gets no gradient.
      reverse: run from the last step to the first; y stays in the order of x.
      bidirectional: run both ways at once. The params have a leading axis of 2
        (`BidirectionalParams`, or `Params`), so have the states (and masks that are
        shaped as states), and y is `[*batch, time, 2*hidden]`, forward before backward.
      merge: of the two directions' y: "concat", or "sum" for `[*batch, time, hidden]`.
      time_major: x, y, mask, resets and zoneout are `[time, *batch, ...]`.
      reserve: what is kept for the backward pass: "fast" keeps the gates; "lean" keeps
        only the states, and makes a_x and the gates again, by products over many
        steps, in chunks of time.
      precision: of matrix products, as in `jax.lax.dot`. The native engine for the CPU
        multiplies and adds in full float32 whatever it says.
      implementation: "native", "scan" (`lax.scan`), or None: native where there is an
        engine for the platform and dtype, scan elsewhere (`explain` tells which).

    Returns:
      y `[*batch, time, hidden]`, every h, and the last state `(h_n, c_n)`. With
      time = 0, y is empty and the state is state_0.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = Options.of(locals())
    call = call_of("lstm", "lstm", options)
    return run_layer("lstm", call, x, params, options)


def slstm(
    x: ArrayLike,
    params: Params | Prepared,
    state_0: Sequence[ArrayLike] | None = None,
    *,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: Sequence[ArrayLike] | None = None,
    recurrent_mask: ArrayLike | None = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    r"""LSTM with an exponential input gate and a normalizer (sLSTM of the xLSTM).

    .. math::
      m' = \max(\log σ(a_f) + m, a_i) \quad
      i = e^{a_i - m'}, f = e^{\log σ(a_f) + m - m'} \quad
      c' = f c + i \tanh(a_z), n' = f n + i \quad h' = σ(a_o) c' / n'

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}` (Beck et al. 2024,
    arXiv:2405.04517, with the sigmoid as forget gate, as in the packages xlstm and
    flashrnn; the paper's other choice, :math:`e^{a_f}`, is a cell for `define_cell`).
    Where n is zero, as it is at the start, m' = a_i and f = 0. It is mostly used with
    heads (see `Params`); `convert.import_xlstm` has what is around it in an xLSTM.

    Args:
      x: `[*batch, time, input]`.
      params: `Params`, gate order i f z o; or what `prepare` makes of them.
      state_0: `(h_0, c_0, n_0, m_0)`, each `[*batch, hidden]`; zeros if not given. In
        16 bits c_0, n_0 and m_0 may be float32, as c_0 of `lstm`.
      lengths: `[*batch]`, as in `lstm`.
      mask: `[*batch, time]`, which steps count, as in `lstm`.
      masked_y: y where one does not, as in `lstm`.
      resets: `[*batch, time]`, as in `lstm`.
      reset_to: shaped as state_0, as in `lstm`.
      recurrent_mask: `[*batch, hidden]`, as in `lstm`.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      merge: as in `lstm`.
      time_major: as in `lstm`.
      reserve: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]`, every h, and the last state `(h_n, c_n, n_n, m_n)`.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = Options.of(locals())
    call = call_of("slstm", "slstm", options)
    return run_layer("slstm", call, x, params, options)


def gru(
    x: ArrayLike,
    params: Params | Prepared,
    state_0: ArrayLike | None = None,
    *,
    reset_after: bool = True,
    activation: GivenActivation = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout: Zoneout = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    r"""Gated recurrent unit over a whole sequence.

    .. math:: h' = (1 - z) n + z h \qquad r, z = σ(a_r), σ(a_z)

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}` and

    - reset after the product (cuDNN, PyTorch, Keras' default):
      :math:`n = \tanh(x W_{in} + b_{in} + r (h W_{hn} + b_{hn}))`
    - reset before it (Cho et al. 2014, arXiv:1406.1078; Haiku):
      :math:`n = \tanh(x W_{in} + b_{in} + (r h) W_{hn} + b_{hn})`

    Args:
      x: `[*batch, time, input]`.
      params: `Params`, gate order r z n; or what `prepare` makes of them.
      state_0: h_0 `[*batch, hidden]`; zeros if not given.
      reset_after: which of the two.
      activation: in place of tanh, as in `lstm`, but one.
      gate_activation: in place of σ, as in `lstm`.
      clip: bounds of pre-activations and gradients; see `Clip`.
      lengths: `[*batch]`, as in `lstm`.
      mask: `[*batch, time]`, which steps count, as in `lstm`.
      masked_y: y where one does not, as in `lstm`.
      resets: `[*batch, time]`, as in `lstm`.
      reset_to: shaped as state_0, as in `lstm`.
      recurrent_mask: `[*batch, hidden]`, as in `lstm`.
      zoneout: as in `lstm`.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      merge: as in `lstm`.
      time_major: as in `lstm`.
      reserve: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = Options.of(locals())
    call = call_of("gru", "gru", options)
    return run_layer("gru", call, x, params, options)


def rnn(
    x: ArrayLike,
    params: Params | Prepared,
    state_0: ArrayLike | None = None,
    *,
    activation: GivenActivation = "tanh",
    cap: float = 20.0,
    skip: float = 0.0,
    clip: Clip | None = None,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: ArrayLike | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout: Zoneout = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    r"""Elman network over a whole sequence, with a residual through time.

    .. math:: h' = f(x W_{ih} + b_{ih} + h W_{hh} + b_{hh} + s h)

    (Elman 1990, Cognitive Science 14(2); residual: Diamos et al. 2016, Persistent RNNs,
    ICML).

    Args:
      x: `[*batch, time, input]`.
      params: `Params` with one gate; or what `prepare` makes of them.
      state_0: h_0 `[*batch, hidden]`; zeros if not given.
      activation: f: "tanh", "relu", "clipped_relu", min(max(a, 0), cap), or another
        name or `Activation`.
      cap: of the clipped ReLU.
      skip: s, the scale of the residual.
      clip: bounds of pre-activations and gradients; see `Clip`.
      lengths: `[*batch]`, as in `lstm`.
      mask: `[*batch, time]`, which steps count, as in `lstm`.
      masked_y: y where one does not, as in `lstm`.
      resets: `[*batch, time]`, as in `lstm`.
      reset_to: shaped as state_0, as in `lstm`.
      recurrent_mask: `[*batch, hidden]`, as in `lstm`.
      zoneout: as in `lstm`.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      merge: as in `lstm`.
      time_major: as in `lstm`.
      reserve: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = Options.of(locals())
    call = call_of("rnn", "rnn", options)
    return run_layer("rnn", call, x, params, options)
