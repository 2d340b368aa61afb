"""Layers without a product in a step for Flax NNX."""

import math
from typing import Any

from prnn_jax._cells.activations import GivenActivation
from prnn_jax._layers.flax.nnx_linear_layer import LinearLayer
from prnn_jax._linear.qrnn import Pooling
from prnn_jax._linear.table import CELLS


class MinGRU(LinearLayer):
    r"""Minimal GRU over whole sequences; the equation is `prnn_jax.min_gru`'s.

    A carry is h, and if bidirectional a pair of them, forward and backward. Outputs and
    carries are in the dtype of the computation.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 2*hidden_features]`, as of the function. If
        bidirectional, each has a leading axis of 2: forward, backward.
      b_ih: `nnx.Param` `[2*hidden_features]`, or None.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      use_bias: whether there are biases.
      kernel_init: of what multiplies the input; by default as the cell's paper has it,
        or, where it has nothing of its own, normal with the variance 1/in_features.
      bias_init: of the biases; by default zeros.
      bidirectional: run both ways.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      time_major: inputs and outputs are `[time, *batch, features]`.
      return_carry: return `(carry, outputs)`.
      reverse: run from the last step to the first.
      keep_order: of a reversed layer's outputs: whether they are in the order of the
        inputs; by default, as in Flax, in that of processing.
      deterministic: no random zoneout, which the QRNN may have.
      dtype: of the computation; by default that of inputs and params together.
      param_dtype: of the parameters; in 16 bits what factors are made of is float32.
      precision: of matrix products, as in `jax.lax.dot`.
      implementation: "native", "scan" or None, as in `prnn_jax.linear_recurrence`.
      activation: of the candidate, as of the function.
      rngs: for the parameters, and the stream `dropout` for zoneout.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["min_gru"]
    activation: GivenActivation = "linear"


class MinLSTM(LinearLayer):
    r"""Minimal LSTM over whole sequences; the equation is `prnn_jax.min_lstm`'s.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 3*hidden_features]`, as of the function.
      b_ih: `nnx.Param` `[3*hidden_features]`, or None.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: of the candidate, as of the function.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["min_lstm"]
    activation: GivenActivation = "linear"


class SRU(LinearLayer):
    r"""Simple recurrent unit over whole sequences; the equation is `prnn_jax.sru`'s.

    A carry is c. As in its paper, weights begin uniform with the variance
    1/in_features, and the highway's scale is :math:`\sqrt{1 + 2 e^b}`, b being
    highway_bias.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 3*hidden_features]`, as of the function.
      b_ih: `nnx.Param` `[2*hidden_features]`, or None.
      peepholes: `nnx.Param` `[2*hidden_features]`, or None.
      w_skip: `nnx.Param` `[in_features, hidden_features]`; None where these are one.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: of c on its way out, as of the function.
      peepholes: whether the gates see the state, and a scan runs the layer; they begin
        with zero.
      highway_bias: what the bias of r begins with.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["sru"]
    activation: GivenActivation = "linear"
    highway_bias: float = 0.0
    peepholes: Any = False


class QRNN(LinearLayer):
    r"""Quasi-recurrent network over whole sequences; equations: `prnn_jax.qrnn`'s.

    A carry is `(c, x)`, x being the last width - 1 inputs.

    Attributes:
      w_ih: `nnx.Param` `[width, in_features, gates*hidden_features]`, as of the
        function.
      b_ih: `nnx.Param` `[gates*hidden_features]`, or None.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: of the candidate, as of the function.
      width: how many inputs a step sees.
      pooling: "f", "fo" or "ifo", as of the function.
      zoneout_rate: share of c that stays as it is at a step, drawn for each; a layer
        that is deterministic takes the mean of old and new, weighted by the rate.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["qrnn"]
    activation: GivenActivation = "tanh"
    width: int = 2
    pooling: Pooling = "fo"
    zoneout_rate: float = 0.0


class RGLRU(LinearLayer):
    r"""Real-gated linear recurrent unit; the equation is `prnn_jax.rg_lru`'s.

    Λ begins so that :math:`σ(Λ)^c` is uniform from 0.9 to 0.999, as in its paper.

    Attributes:
      w_gates: `nnx.Param` `[hidden_features, 2*hidden_features]`, or with heads
        `[heads, size, 2*size]`, as of the function.
      b_gates: `nnx.Param` `[2*hidden_features]`, or None.
      decay: `nnx.Param` `[hidden_features]`, Λ.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state, which is that of the input.
      c: how much r may speed the decay up.
      heads: blocks on the diagonal of the gates' weights, as RecurrentGemma has them;
        None for gates that see all units.
      scale_first: as of the function: False is RecurrentGemma's code. A sequence begins
        in each call without an initial_carry, and at resets.
      **options: all other arguments of `MinGRU`, but activation.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["rg_lru"]
    c: float = 8.0
    heads: int | None = None
    scale_first: bool = True


class LRU(LinearLayer):
    r"""Linear recurrent unit over whole sequences; the equation is `prnn_jax.lru`'s.

    A carry is h, its real parts before its imaginary ones. As in its paper, λ begins in
    a ring, and γ so that :math:`|h|` is as large as x; the radii are quantiles of the
    paper's distribution.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 2*state_size]`, B, as of the function.
      w_out: `nnx.Param` `[2*state_size, hidden_features]`, C.
      nu_log: `nnx.Param` `[state_size]`.
      theta_log: `nnx.Param` `[state_size]`.
      gamma_log: `nnx.Param` `[state_size]`.
      skip: `nnx.Param` `[hidden_features]`; None where in_features is another.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the output.
      state_size: complex numbers of the state; by default hidden_features.
      r_min: of λ's magnitude, the least that it begins with.
      r_max: the most.
      max_phase: of λ, the most that it begins with, in radians.
      **options: all other arguments of `MinGRU`, but activation. There is no bias.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["lru"]
    skip: Any = None
    state_size: int | None = None
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * math.pi


class IndRNN(LinearLayer):
    r"""Independently recurrent network; the equation is `prnn_jax.indrnn`'s.

    Attributes:
      w_ih: `nnx.Param` `[in_features, hidden_features]`.
      b_ih: `nnx.Param` `[hidden_features]`, or None.
      w_hh: `nnx.Param` `[hidden_features]`, u.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: as of the function.
      steps: T, the steps of a sequence: u begins uniform from 0 to :math:`2^{1/T}`, as
        in the paper, so that nothing grows beyond twofold; None for from 0 to 1.
      **options: all other arguments of `MinGRU`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _cell = CELLS["indrnn"]
    activation: GivenActivation = "relu"
    steps: int | None = None
