"""Layers without a product in a step for Keras."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args

from jax import Array

from prnn_jax._call.options import Implementation, Merge, Precision
from prnn_jax._engine.plan import Plan
from prnn_jax._given.checks import check, one_of
from prnn_jax._layers.keras import as_asked, check_built, check_told, registered
from prnn_jax._layers.keras_own import OwnLayer, Weight
from prnn_jax._layers.linear import Given, Spec, check_option
from prnn_jax._linear.table import CELLS, LinearCell


class LinearLayer(OwnLayer):
    """What the layers without a product in a step share, for which see the table."""

    linear: ClassVar[LinearCell]

    # As a layer of any library.
    bidirectional = False
    merge: Merge = "concat"
    precision: Precision = None

    def __init__(
        self, *args: Any, implementation: Implementation | None = None, **options: Any
    ):
        choices = (None, *get_args(Implementation))
        one_of(type(self).__name__, "implementation", implementation, choices)
        super().__init__(*args, **options)
        self.implementation = implementation
        check(
            not self.stateful or dict(self.own).get("scale_first", True),
            f"{type(self).__name__}: scale_first must be True in a stateful layer, "
            "which does not know where a sequence begins, got False; give it its "
            "initial_state.",
        )
        self._is_first = True

    @property
    def _cell(self) -> LinearCell:
        return self.linear

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for options about a product in a step."""
        for option in options:
            check_option(type(self).__name__, option)

    def own_options(self) -> Mapping[str, Any]:
        """Options that not all layers have, and their defaults."""
        return self.linear.own

    def state_count(self) -> int:
        """How many states there are."""
        return 2 if self.linear.state == "state_0" else 1

    def _spec(self, input_size: int) -> Spec:
        own = dict(self.own)
        sizes = "input_size", "units"
        return Spec.of(self, sizes, input_size, own=own, reverse=self.go_backwards)

    def float32_weights(self) -> tuple[str, ...]:
        """Weights that stay float32 where the layer computes in 16 bits."""
        return self.linear.float32_params

    def weights_of(self, input_size: int) -> dict[str, Weight]:
        """The layer's weights by name."""
        spec = self._spec(input_size)
        begins = spec.cell.begins(spec)
        return {
            name: Weight(begins[name][1], begins[name][0], spec.cell.role(name))
            for name in spec.draws("float32")
        }

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        """Of the states, without the batch."""
        return self.linear.state_shapes(self._spec(input_size))

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        """As of `keras.layers.RNN`."""
        self._is_first = initial_state is None and not self.stateful
        return super().call(sequences, initial_state, mask, training)

    def run(self, x: Array, arrays: dict, state: Any, key: Any, **controls: Any) -> Any:
        """y and the last state."""
        if self._is_first and not dict(self.own).get("scale_first", True):
            state = None  # of zeros, from which a sequence that goes on may start, too
        spec = self._spec(x.shape[-1])
        return spec.run(x, arrays, key, time_major=False, state_0=state, **controls)

    @property
    def input_size(self) -> int:
        """Features of the input, of a layer that is built."""
        return self.linear.input_size(self._arrays())

    def _draws(self) -> bool:
        return bool(dict(self.own).get("zoneout_rate"))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config, asked = super().get_config(), self.implementation
        return config if asked is None else config | {"implementation": asked}

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, as arguments of the function."""
        check_built(self)
        return self.linear.bind(self._arrays())

    @classmethod
    def from_params(cls, params: Any, **options: Any) -> Self:
        """A layer with these parameters, such as `prnn_jax.init` gives.

        Args:
          params: arguments of the function by name, of one direction.
          **options: arguments of the layer but for units and use_bias, which params
            tell.

        Returns:
          The layer, built.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        check_told(name, options)
        given = Given.of(name, cls.linear, params, options)
        told = dict(given.options)
        check(
            not told.pop("bidirectional"),
            f"{name}: params must be of one direction; Bidirectional.from_params takes "
            "both.",
        )
        layer = cls(given.hidden_size, **{**told, **options})
        kept = layer._spec(given.input_size).kept(name, given.arrays)
        return layer._with_arrays(given.input_size, kept)

    def explain(self, batch: int, time: int, **options: Any) -> Plan:
        """Which engine runs a call, as `prnn_jax.explain`.

        Args:
          batch: rows.
          time: steps.
          **options: of `prnn_jax.explain`, such as training, platform and device.

        Raises:
          ValueError: as `prnn_jax.explain`.
        """
        own = dict(self.own)
        options["peepholes"] = bool(own.get("peepholes"))
        options["hidden_size"] = own.get("state_size") or self.units
        plan = self._explained(self.linear.name, batch, time, **options)
        return as_asked(plan, self.implementation)


@registered
class MinGRU(LinearLayer):
    """Minimal GRU; the equation is `prnn_jax.min_gru`'s.

    Args:
      units: size of the state.
      use_bias: whether there are biases.
      seed: of what is drawn.
      activation: as of the function, or one of Keras'.
      implementation: as of the function; "scan" for `model.export`.
      **options: of `keras.layers.RNN`: return_sequences, return_state, go_backwards,
        stateful, zero_output_for_mask, and those of every layer; and as of
        `keras.layers.GRU` initializer, regularizer and constraint of kernel and bias,
        where initializers of None are what the cell's paper has, or, where it says
        nothing, normal with the variance 1/features, and zeros.

    Raises:
      ValueError: options do not fit; says what was expected.
    """

    linear = CELLS["min_gru"]


@registered
class MinLSTM(LinearLayer):
    """Minimal LSTM; the equation is `prnn_jax.min_lstm`'s.

    All arguments are those of `MinGRU`.
    """

    linear = CELLS["min_lstm"]


@registered
class SRU(LinearLayer):
    """Simple recurrent unit; the equation is `prnn_jax.sru`'s.

    The highway's scale is that of the paper.

    Args:
      peepholes: whether the gates see the state, and a scan runs the layer.
      highway_bias: what the bias of r begins with.
      **options: all arguments of `MinGRU`.
    """

    linear = CELLS["sru"]


@registered
class QRNN(LinearLayer):
    """Quasi-recurrent network; the equations are `prnn_jax.qrnn`'s.

    States are c and the last inputs, `[batch, (width - 1)*features]`.

    Args:
      width: how many inputs a step sees.
      pooling: "f", "fo" or "ifo", as of the function.
      zoneout_rate: share of c that stays as it is at a step, drawn while training; else
        its mean.
      **options: all arguments of `MinGRU`.
    """

    linear = CELLS["qrnn"]


@registered
class RGLRU(LinearLayer):
    """Real-gated linear recurrent unit; the equation is `prnn_jax.rg_lru`'s.

    Args:
      c: how much r may speed the decay up.
      heads: blocks on the diagonal of the gates' weights, as RecurrentGemma has them;
        None for gates that see all units.
      scale_first: as of the function: False is RecurrentGemma's code. A sequence begins
        in each call without an initial_state.
      **options: all arguments of `MinGRU`, but activation; units are the features.
    """

    linear = CELLS["rg_lru"]


@registered
class LRU(LinearLayer):
    """Linear recurrent unit; the equation is `prnn_jax.lru`'s.

    The state is h, its real parts before its imaginary ones.

    Args:
      state_size: complex numbers of the state; by default units.
      r_min: of λ's magnitude, the least that it begins with.
      r_max: the most.
      max_phase: of λ, the most that it begins with, in radians.
      **options: all arguments of `MinGRU`, but activation. There is no bias.
    """

    linear = CELLS["lru"]


@registered
class IndRNN(LinearLayer):
    """Independently recurrent network; the equation is `prnn_jax.indrnn`'s.

    Args:
      steps: T, of a sequence: u begins uniform from 0 to 2^(1/T); to 1 if None.
      **options: all arguments of `MinGRU`.
    """

    linear = CELLS["indrnn"]
