"""Layers without a product in a step for Flax Linen."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Implementation, Merge, Precision
from prnn_jax._cells.activations import GivenActivation
from prnn_jax._given import checks
from prnn_jax._layers.flax import shared_linear
from prnn_jax._layers.flax.carry import Carry, ControlOptions, one_step
from prnn_jax._layers.flax.linen_layer import make_hashable
from prnn_jax._layers.flax.variables import params_of
from prnn_jax._layers.keywords import InTheirOwnName, in_its_own_name
from prnn_jax._layers.linear import Given, alike
from prnn_jax._linear.qrnn import Pooling
from prnn_jax._linear.table import CELLS, Initializer, LinearCell


class LinearLayer(InTheirOwnName, nn.Module):
    """All that these layers share; a layer is a row of the table and its options."""

    features: int
    use_bias: bool = True
    kernel_init: Initializer | None = None
    bias_init: Initializer | None = None
    bidirectional: bool = False
    merge: Merge = "concat"
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    deterministic: bool | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Precision = None
    implementation: Implementation | None = None

    _cell: ClassVar[LinearCell]

    def __post_init__(self):
        make_hashable(self)
        super().__post_init__()

    @nn.compact
    @in_its_own_name
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        deterministic: bool | None = None,
        **controls: Unpack[ControlOptions],
    ) -> Any:
        """Runs the layer over whole sequences, as `linen.RNN` does.

        Args:
          inputs: `[*batch, time, in_features]`, any number of batch axes, also none;
            `[time, *batch, in_features]` if time_major.
          return_carry: overrides the layer's own, as do the next three.
          time_major: overrides the layer's own.
          reverse: overrides the layer's own.
          keep_order: overrides the layer's own.
          deterministic: to be given here or to the layer, if that has zoneout; whose
            random numbers are those of `dropout`.
          **controls: initial_carry, seq_lengths, mask, resets and reset_carry, as for
            `prnn_jax.linen.LSTM`.

        Returns:
          `[*batch, time, features]` (twice as wide if bidirectional and merged by
          "concat"), or `(carry, outputs)` with return_carry. Both are in the dtype of
          the computation.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        checks.is_array(type(self).__name__, "inputs", inputs)
        in_features = (1, *jnp.shape(inputs))[-1]
        options = self._options(
            in_features,
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
        )
        arrays = self._draw(self.param, in_features)
        key = None
        if options.noise:
            is_off = nn.merge_param("deterministic", self.deterministic, deterministic)
            key = None if is_off else self.make_rng("dropout")
        return options.call(inputs, arrays, key, **controls)

    @classmethod
    def from_params(cls, params: Any, **options: Any) -> tuple[Self, dict[str, Any]]:
        """A layer for these parameters, such as `prnn_jax.init` gives, and they.

            layer, variables = MinGRU.from_params(params)
            y = layer.apply(variables, x)

        Args:
          params: arguments of the function by name; for the IndRNN also `Params`. A
            leading axis of 2 makes a bidirectional layer. What else they tell, need not
            be said: features, use_bias, peepholes, the width of a QRNN.
          **options: other attributes of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        given = Given.of(name, cls._cell, params, options)
        options = {"param_dtype": given.dtype, **given.options, **options}
        layer = cls(given.hidden_size, **options)
        spec = layer._options(given.input_size)
        return layer, {"params": spec.kept(name, given.arrays)}

    @nn.nowrap
    def to_params(self, variables: Any) -> dict[str, Any]:
        """The parameters, as arguments of the function.

        Args:
          variables: of the layer, as `init` gives them.
        """
        arrays = params_of(type(self).__name__, variables, self._cell.names[0])
        return self._cell.bind(arrays)

    @nn.nowrap
    def initialize_carry(self, rng: Any, input_shape: tuple[int, ...]) -> Carry:
        """A carry of zeros in param_dtype, as Flax's cells make it.

        Args:
          rng: as Flax has it; nothing is drawn.
          input_shape: of one time step, `[*batch, in_features]`.
        """
        del rng
        shape = one_step(type(self).__name__, input_shape)
        return self._options(shape[-1]).initial_carry(shape)

    @nn.nowrap
    def _draw(self, make: Callable, in_features: int) -> dict[str, Any]:
        """The parameters, each by `make(name, draw)`, where draw is of a key."""
        options = self._options(in_features)
        draws = options.draws(self.param_dtype, self.kernel_init, self.bias_init)
        return {name: make(name, draw) for name, draw in draws.items()}

    @nn.nowrap
    def _options(self, in_features: int, **call: Any) -> shared_linear.Options:
        """All options, with what a call overrides."""
        sizes = "in_features", "features"
        return shared_linear.Options.of(self, sizes, in_features, **call)

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        return alike(op, cls._cell, layers)

    @classmethod
    def _takes(cls, arrays: Mapping[str, Array]) -> int:
        """Input features, by the parameters."""
        return cls._cell.input_size(arrays)

    @nn.nowrap
    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        return {**self._options(self.features).told, "param_dtype": self.param_dtype}


class MinGRU(LinearLayer):
    r"""Minimal GRU over whole sequences; the equation is `prnn_jax.min_gru`'s.

    A carry is h, and if bidirectional a pair of them, forward and backward. Outputs and
    carries are in the dtype of the computation. The parameters have the names and
    shapes of the function's arguments; if bidirectional, each has a leading axis of 2.

    Attributes:
      features: size of the state.
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

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    activation: GivenActivation = "linear"

    _cell: ClassVar = CELLS["min_gru"]


class MinLSTM(LinearLayer):
    r"""Minimal LSTM over whole sequences; the equation is `prnn_jax.min_lstm`'s.

    Attributes:
      features: size of the state, and all other attributes of `MinGRU`.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    activation: GivenActivation = "linear"

    _cell: ClassVar = CELLS["min_lstm"]


class SRU(LinearLayer):
    r"""Simple recurrent unit over whole sequences; the equation is `prnn_jax.sru`'s.

    A carry is c. As in its paper, weights begin uniform with the variance
    1/in_features, and the highway's scale is :math:`\sqrt{1 + 2 e^b}`, b being
    highway_bias.

    Attributes:
      features: size of the state, and all other attributes of `MinGRU`.
      activation: of c on its way out, as of the function.
      peepholes: whether the gates see the state, and a scan runs the layer; they begin
        with zero.
      highway_bias: what the bias of r begins with.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    activation: GivenActivation = "linear"
    peepholes: bool = False
    highway_bias: float = 0.0

    _cell: ClassVar = CELLS["sru"]


class QRNN(LinearLayer):
    r"""Quasi-recurrent network over whole sequences; equations: `prnn_jax.qrnn`'s.

    A carry is `(c, x)`, x being the last width - 1 inputs.

    Attributes:
      features: size of the state, and all other attributes of `MinGRU`.
      width: how many inputs a step sees.
      pooling: "f", "fo" or "ifo", as of the function.
      zoneout_rate: share of c that stays as it is at a step, drawn for each; a layer
        that is deterministic takes the mean of old and new, weighted by the rate.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    activation: GivenActivation = "tanh"
    width: int = 2
    pooling: Pooling = "fo"
    zoneout_rate: float = 0.0

    _cell: ClassVar = CELLS["qrnn"]


class RGLRU(LinearLayer):
    r"""Real-gated linear recurrent unit; the equation is `prnn_jax.rg_lru`'s.

    Λ begins so that :math:`σ(Λ)^c` is uniform from 0.9 to 0.999, as in its paper.

    Attributes:
      features: size of the state, which is that of the input, and all other attributes
        of `MinGRU` but activation.
      c: how much r may speed the decay up.
      heads: blocks on the diagonal of the gates' weights, as RecurrentGemma has them;
        None for gates that see all units.
      scale_first: as of the function: False is RecurrentGemma's code. A sequence begins
        in each call without an initial_carry, and at resets.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    c: float = 8.0
    heads: int | None = None
    scale_first: bool = True

    _cell: ClassVar = CELLS["rg_lru"]


class LRU(LinearLayer):
    r"""Linear recurrent unit; the equation is `prnn_jax.lru`'s.

    A carry is h, its real parts before its imaginary ones. As in its paper, λ begins in
    a ring, and γ so that :math:`|h|` is as large as x; the radii are quantiles of the
    paper's distribution.

    Attributes:
      features: size of the output, and all other attributes of `MinGRU` but activation.
        There is no bias.
      state_size: complex numbers of the state; by default features.
      r_min: of λ's magnitude, the least that it begins with.
      r_max: the most.
      max_phase: of λ, the most that it begins with, in radians.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    state_size: int | None = None
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * math.pi

    _cell: ClassVar = CELLS["lru"]


class IndRNN(LinearLayer):
    r"""Independently recurrent network; the equation is `prnn_jax.indrnn`'s.

    Attributes:
      features: size of the state, and all other attributes of `MinGRU`.
      activation: as of the function.
      steps: T, the steps of a sequence: u begins uniform from 0 to :math:`2^{1/T}`, as
        in the paper, so that nothing grows beyond twofold; None for from 0 to 1.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    activation: GivenActivation = "relu"
    steps: int | None = None

    _cell: ClassVar = CELLS["indrnn"]
