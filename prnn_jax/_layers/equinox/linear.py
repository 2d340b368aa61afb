"""Layers without a product in a step for Equinox."""

import math

import equinox as eqx
from jax import Array

from prnn_jax._cells.activations import GivenActivation
from prnn_jax._layers.equinox.linear_layer import LinearLayer
from prnn_jax._linear.qrnn import Pooling
from prnn_jax._linear.table import CELLS


class MinGRU(LinearLayer):
    r"""Minimal GRU over a whole sequence; the equation is `prnn_jax.min_gru`'s.

    Attributes:
      w_ih: `[input_size, 2*hidden_size]`, as of the function. If bidirectional, each
        has a leading axis of 2: forward, backward.
      b_ih: `[2*hidden_size]`, or None.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: of the parameters; by default float32, or float64 in JAX's 64-bit mode.
        In 16 bits what factors are made of is float32.
      reverse: run from the last step to the first; ys stays in the order of xs.
      bidirectional: run both ways.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      inference: whether nothing is dropped, where the QRNN has zoneout;
        `eqx.nn.inference_mode` sets it.
      precision: of matrix products, as in `jax.lax.dot`.
      implementation: "native", "scan" or None, as in `prnn_jax.linear_recurrence`.
      activation: of the candidate, as of the function.
      key: for the parameters, which begin as their paper has it, or, where it has
        nothing of its own, normal with the variance 1/input_size and zero biases.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    b_ih: Array | None
    activation: GivenActivation = eqx.field(static=True, default="linear")

    _cell = CELLS["min_gru"]
    __init__ = LinearLayer.__init__  # said again for type checkers


class MinLSTM(LinearLayer):
    r"""Minimal LSTM over a whole sequence; the equation is `prnn_jax.min_lstm`'s.

    Attributes:
      w_ih: `[input_size, 3*hidden_size]`, as of the function.
      b_ih: `[3*hidden_size]`, or None.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      activation: of the candidate, as of the function.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    b_ih: Array | None
    activation: GivenActivation = eqx.field(static=True, default="linear")

    _cell = CELLS["min_lstm"]
    __init__ = LinearLayer.__init__


class SRU(LinearLayer):
    r"""Simple recurrent unit over a whole sequence; the equation is `prnn_jax.sru`'s.

    The state is c. As in its paper, weights begin uniform with the variance
    1/input_size, and the highway's scale is :math:`\sqrt{1 + 2 e^b}`, b being
    highway_bias.

    Attributes:
      w_ih: `[input_size, 3*hidden_size]`, as of the function.
      b_ih: `[2*hidden_size]`, or None.
      peepholes: `[2*hidden_size]`, or None.
      w_skip: `[input_size, hidden_size]`; None where these are one.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      activation: of c on its way out, as of the function.
      peepholes: whether the gates see the state, and a scan runs the layer; they begin
        with zero.
      highway_bias: what the bias of r begins with.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    b_ih: Array | None
    w_skip: Array | None
    peepholes: Array | None = None
    activation: GivenActivation = eqx.field(static=True, default="linear")
    highway_bias: float = eqx.field(static=True, default=0.0)

    _cell = CELLS["sru"]
    __init__ = LinearLayer.__init__


class QRNN(LinearLayer):
    r"""Quasi-recurrent network over a whole sequence; equations: `prnn_jax.qrnn`'s.

    The state is `(c, x)`, x being the last width - 1 inputs.

    Attributes:
      w_ih: `[width, input_size, gates*hidden_size]`, as of the function.
      b_ih: `[gates*hidden_size]`, or None.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      activation: of the candidate, as of the function.
      width: how many inputs a step sees.
      pooling: "f", "fo" or "ifo", as of the function.
      zoneout_rate: share of c that keeps its value in a step, while training; at
        inference, its mean.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    b_ih: Array | None
    activation: GivenActivation = eqx.field(static=True, default="tanh")
    width: int = eqx.field(static=True, default=2)
    pooling: Pooling = eqx.field(static=True, default="fo")
    zoneout_rate: float = eqx.field(static=True, default=0.0)

    _cell = CELLS["qrnn"]
    __init__ = LinearLayer.__init__


class RGLRU(LinearLayer):
    r"""Real-gated linear recurrent unit; the equation is `prnn_jax.rg_lru`'s.

    Λ begins so that :math:`σ(Λ)^c` is uniform from 0.9 to 0.999, as in its paper.

    Attributes:
      w_gates: `[hidden_size, 2*hidden_size]`, or with heads `[heads, size, 2*size]`, as
        of the function.
      b_gates: `[2*hidden_size]`, or None.
      decay: `[hidden_size]`, Λ.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state, which is that of the input.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      c: how much r may speed the decay up.
      heads: blocks on the diagonal of the gates' weights, as RecurrentGemma has them;
        None for gates that see all units.
      scale_first: as of the function: False is RecurrentGemma's code. A sequence begins
        in each call without a state, and at resets.
      **options: all other arguments of `MinGRU`, but activation.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_gates: Array
    b_gates: Array | None
    decay: Array
    c: float = eqx.field(static=True, default=8.0)
    heads: int | None = eqx.field(static=True, default=None)
    scale_first: bool = eqx.field(static=True, default=True)

    _cell = CELLS["rg_lru"]
    __init__ = LinearLayer.__init__


class LRU(LinearLayer):
    r"""Linear recurrent unit over a whole sequence; the equation is `prnn_jax.lru`'s.

    The state is h, its real parts before its imaginary ones. As in its paper, λ begins
    in a ring, and γ so that :math:`|h|` is as large as x; the radii are quantiles of
    the paper's distribution.

    Attributes:
      w_ih: `[input_size, 2*state_size]`, B, as of the function.
      w_out: `[2*state_size, hidden_size]`, C.
      nu_log: `[state_size]`.
      theta_log: `[state_size]`.
      gamma_log: `[state_size]`.
      skip: `[hidden_size]`; None where input_size is another.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the output.
      use_bias: of no consequence: there is no bias.
      dtype: as for `MinGRU`.
      state_size: complex numbers of the state; by default hidden_size.
      r_min: of λ's magnitude, the least that it begins with.
      r_max: the most.
      max_phase: of λ, the most that it begins with, in radians.
      **options: all other arguments of `MinGRU`, but activation.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    w_out: Array
    nu_log: Array
    theta_log: Array
    gamma_log: Array
    skip: Array | None
    state_size: int | None = eqx.field(static=True, default=None)
    r_min: float = eqx.field(static=True, default=0.0)
    r_max: float = eqx.field(static=True, default=1.0)
    max_phase: float = eqx.field(static=True, default=2 * math.pi)

    _cell = CELLS["lru"]
    __init__ = LinearLayer.__init__


class IndRNN(LinearLayer):
    r"""Independently recurrent network; the equation is `prnn_jax.indrnn`'s.

    Attributes:
      w_ih: `[input_size, hidden_size]`.
      b_ih: `[hidden_size]`, or None.
      w_hh: `[hidden_size]`, u.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      activation: as of the function.
      steps: T, the steps of a sequence: u begins uniform from 0 to :math:`2^{1/T}`, as
        in the paper, so that nothing grows beyond twofold; None for from 0 to 1.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_ih: Array
    b_ih: Array | None
    w_hh: Array
    activation: GivenActivation = eqx.field(static=True, default="relu")
    steps: int | None = eqx.field(static=True, default=None)

    _cell = CELLS["indrnn"]
    __init__ = LinearLayer.__init__
