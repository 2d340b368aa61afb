"""Layers without a product in a step for Equinox."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Self, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.options import (
    Implementation,
    Merge,
    Precision,
    State,
)
from prnn_jax._cells.activations import GivenActivation
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks, statics
from prnn_jax._layers.equinox.arrays import batch_axes, check_sequence, promoted
from prnn_jax._layers.equinox.options import ControlOptions, LinearOptions
from prnn_jax._layers.equinox.training import Training
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._layers.linear import Given, Spec, alike, own_of
from prnn_jax._linear.call import LinearCall
from prnn_jax._linear.qrnn import Pooling
from prnn_jax._linear.table import CELLS, LinearCell


class LinearLayer(eqx.Module):
    """All that these layers share; a layer is a row of the table and its options."""

    training: Training | None
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)
    reverse: bool = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)
    merge: Merge = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)
    implementation: Implementation | None = eqx.field(static=True)

    _cell: ClassVar[LinearCell]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        **options: Unpack[LinearOptions],
    ):
        given: dict[str, Any] = dict(options)
        key = given.pop("key", None)
        checks.key(type(self).__name__, key)
        self.input_size = statics.hashable(input_size)
        self.hidden_size = statics.hashable(hidden_size)
        self.use_bias = statics.hashable(use_bias)
        self.reverse = statics.hashable(given.pop("reverse", False))
        self.bidirectional = statics.hashable(given.pop("bidirectional", False))
        self.merge = given.pop("merge", "concat")
        self.precision = statics.hashable(given.pop("precision", None))
        self.implementation = given.pop("implementation", None)
        is_off = given.pop("inference", False)
        own = own_of(type(self).__name__, self._cell, type(self), given)
        for name, value in own.items():
            if name not in self._cell.names:
                setattr(self, name, value)
        spec = self._spec(own)
        self.training = Training.of(spec.noise, is_off)
        draws = spec.draws(jnp.result_type(float) if dtype is None else dtype)
        keys = dict(zip(draws, jax.random.split(key, len(draws)), strict=True))
        for name in self._cell.names:
            drawn = draws[name](keys[name]) if name in draws else None
            setattr(self, name, drawn)

    @classmethod
    def from_params(cls, params: Any, **options: Any) -> Self:
        """A layer with these parameters, such as `prnn_jax.init` gives.

        Args:
          params: arguments of the function by name; for the IndRNN also `Params`. A
            leading axis of 2 makes a bidirectional layer. What else they tell, need not
            be said: sizes, use_bias, peepholes, the width of a QRNN.
          **options: other arguments of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        given = Given.of(name, cls._cell, params, options)
        make: Any = functools.partial(cls, given.input_size, given.hidden_size)
        options = {"dtype": given.dtype, **given.options, **options}
        layer = eqx.filter_eval_shape(make, **options, key=jax.random.key(0))
        kept = layer._spec().kept(name, given.arrays)

        def where(layer):
            return [getattr(layer, name) for name in kept]

        return eqx.tree_at(where, layer, [jnp.asarray(a) for a in kept.values()])

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, as arguments of the function."""
        return self._cell.bind(self._arrays())

    @property
    def output_size(self) -> int:
        """Features of ys."""
        both = self.bidirectional and self.merge == "concat"
        return (2 if both else 1) * self.hidden_size

    @in_its_own_name
    def __call__(
        self,
        xs: Array,
        state: State | None = None,
        *,
        reset_to: State | None = None,
        time_major: bool = False,
        key: Array | None = None,
        inference: bool | None = None,
        **controls: Unpack[ControlOptions],
    ) -> tuple[Array, Any]:
        """Runs the layer over a whole sequence.

        Args:
          xs: `[time, input_size]`, or `[*batch, time, input_size]`.
          state: before the first step: h `[*batch, hidden_size]` (c for SRU; for QRNN
            `(c, x)`, x the last width - 1 inputs); if bidirectional with a leading axis
            of 2, forward before backward. Zeros if not given.
          reset_to: what resets replace it with; zeros if not given.
          time_major: xs, ys, mask and resets are `[time, *batch, ...]`.
          key: for zoneout; needed if the layer has some, except at inference.
          inference: overrides the layer's own.
          **controls: lengths `[*batch]`, mask or resets `[*batch, time]`, as for
            `prnn_jax.equinox.LSTM`.

        Returns:
          ys `[*batch, time, hidden_size]` (twice as wide if bidirectional and merged by
          "concat"), and the last state. With arrays of several dtypes, both are in that
          to which JAX promotes them.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        spec = self._spec()
        time_major = statics.flag(spec.name, "time_major", time_major)
        check_sequence(spec.name, xs, self.input_size, time_major=time_major)
        arrays = promoted((xs, self._arrays(), state, reset_to))
        xs, params, state, reset_to = arrays
        if self.training is not None:
            key = self.training.key(spec.name, key, inference)
        states = {"state_0": state, "reset_to": reset_to}
        return spec.run(xs, params, key, time_major=time_major, **states, **controls)

    def zeros(self, *batch: int) -> Any:
        """A state of zeros, in the dtype of the parameters."""
        dtype = getattr(self, self._cell.names[0]).dtype
        return self._spec().zeros(batch_axes(batch), dtype)

    def _arrays(self) -> dict[str, Array | None]:
        return {name: getattr(self, name) for name in self._cell.names}

    def _spec(self, own: dict | None = None) -> Spec:
        sizes = "input_size", "hidden_size"
        return Spec.of(self, sizes, self.input_size, own=own)

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _named(cls) -> LinearCellName:
        """The cell as `prnn_jax.stack` takes it."""
        name: Any = cls._cell.name
        return name

    def _call(self) -> LinearCall:
        """As what is dropped knows it."""
        return LinearCall(self._named(), bidirectional=self.bidirectional)

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        return alike(op, cls._cell, layers)

    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        return self._spec().told

    def _for_stack(self) -> dict[str, Any]:
        """Arguments of `prnn_jax.stack` that each layer has."""
        return self._spec().for_stack()


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
      w_gates: `[hidden_size, 2*hidden_size]`, as of the function.
      b_gates: `[2*hidden_size]`, or None.
      decay: `[hidden_size]`, Λ.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state, which is that of the input.
      use_bias: whether there are biases.
      dtype: as for `MinGRU`.
      c: how much r may speed the decay up.
      **options: all other arguments of `MinGRU`, but activation.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    w_gates: Array
    b_gates: Array | None
    decay: Array
    c: float = eqx.field(static=True, default=8.0)

    _cell = CELLS["rg_lru"]
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
