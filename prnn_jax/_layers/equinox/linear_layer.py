"""What Equinox layers without a product in a step have in common."""

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
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks, statics
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.equinox.arrays import batch_axes, check_sequence
from prnn_jax._layers.equinox.options import ControlOptions, LinearOptions
from prnn_jax._layers.equinox.training import Training
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._layers.linear import Given, Spec, alike, own_of
from prnn_jax._linear.call import LinearCall
from prnn_jax._linear.table import LinearCell


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
          to which JAX promotes them, but for what may be float32 beside 16 bits.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        spec = self._spec()
        time_major = statics.flag(spec.name, "time_major", time_major)
        check_sequence(spec.name, xs, self.input_size, time_major=time_major)
        given = xs, self._arrays(), state, reset_to
        arrays = promoted(given, apart=self._float32_params())
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

    def _float32_params(self) -> tuple[str, ...]:
        """Which parameters may stay float32 beside 16 bits."""
        return self._cell.float32_params

    def _for_stack(self) -> dict[str, Any]:
        """Arguments of `prnn_jax.stack` that each layer has."""
        return self._spec().for_stack()
