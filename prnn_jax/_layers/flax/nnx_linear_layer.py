"""What NNX layers without a product in a step have in common."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Implementation, Merge, Precision
from prnn_jax._given import statics
from prnn_jax._layers.flax import shared_linear
from prnn_jax._layers.flax.carry import Carry, ControlOptions
from prnn_jax._layers.flax.nnx_shared import (
    refuse_params,
    rngs_with_params,
    stream_for,
)
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._layers.linear import Given, alike, own_of
from prnn_jax._linear.table import Initializer, LinearCell, OwnOptions


class LinearLayer(nnx.Module):
    """All that these layers share; a layer is a row of the table and its options."""

    _cell: ClassVar[LinearCell]
    #: Arguments with which nothing is drawn that takes long.
    _quick: ClassVar[dict[str, Any]] = {"kernel_init": jax.nn.initializers.zeros}

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        use_bias: bool = True,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        bidirectional: bool = False,
        merge: Merge = "concat",
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        deterministic: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Precision = None,
        implementation: Implementation | None = None,
        rngs: nnx.Rngs,
        **own: Unpack[OwnOptions],
    ):
        static = statics.hashable
        self.in_features = static(in_features)
        self.hidden_features = static(hidden_features)
        self.use_bias = static(use_bias)
        self.bidirectional = static(bidirectional)
        self.merge: Merge = merge
        self.time_major = static(time_major)
        self.return_carry = static(return_carry)
        self.reverse = static(reverse)
        self.keep_order = static(keep_order)
        self.deterministic = static(deterministic)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = static(precision)
        self.implementation: Implementation | None = implementation
        options = own_of(type(self).__name__, self._cell, type(self), own)
        for name, value in options.items():
            if name not in self._cell.names:
                setattr(self, name, value)
        spec = self._options(own=options)
        self.dropout_rngs = rngs.dropout.fork() if spec.noise else nnx.data(None)
        draws = spec.draws(param_dtype, kernel_init, bias_init)
        for name in self._cell.names:
            drawn = nnx.data(None)
            if name in draws:
                drawn = nnx.Param(draws[name](rngs.params()))
            setattr(self, name, drawn)

    @classmethod
    def from_params(
        cls, params: Any, *, rngs: nnx.Rngs | None = None, **options: Any
    ) -> Self:
        """A layer with these parameters, such as `prnn_jax.init` gives.

        Args:
          params: arguments of the function by name; for the IndRNN also `Params`. A
            leading axis of 2 makes a bidirectional layer. What else they tell, need not
            be said: sizes, use_bias, peepholes, the width of a QRNN.
          rngs: for the layer's zoneout.
          **options: other arguments of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        given = Given.of(name, cls._cell, params, options)
        make: Any = cls
        layer = make(
            given.input_size,
            given.hidden_size,
            **{
                **cls._quick,
                "param_dtype": given.dtype,
                **given.options,
                **options,
                "rngs": rngs_with_params(rngs),
            },
        )
        for of_layer, array in layer._options().kept(name, given.arrays).items():
            getattr(layer, of_layer)[...] = array
        return layer

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, as arguments of the function."""
        return self._cell.bind(self._arrays())

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_params(self, name)
        super().__setattr__(name, value)

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
        rngs: nnx.Rngs | None = None,
        **controls: Unpack[ControlOptions],
    ) -> Any:
        """Runs the layer over whole sequences, as `nnx.RNN` does.

        Args:
          inputs: `[*batch, time, in_features]`, any number of batch axes, also none;
            `[time, *batch, in_features]` if time_major.
          return_carry: overrides the layer's own, as do the next four.
          time_major: overrides the layer's own.
          reverse: overrides the layer's own.
          keep_order: overrides the layer's own.
          deterministic: overrides the layer's own.
          rngs: in place of the layer's own stream `dropout`, for zoneout.
          **controls: initial_carry, seq_lengths, mask, resets and reset_carry, as for
            `prnn_jax.nnx.LSTM`.

        Returns:
          `[*batch, time, hidden_features]` (twice as wide if bidirectional and merged
          by "concat"), or `(carry, outputs)` with return_carry. Both are in the dtype
          of the computation.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        options = self._options(
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
        )
        is_off = self.deterministic if deterministic is None else deterministic
        key = None
        if options.noise and not is_off:
            stream = self.dropout_rngs if rngs is None else rngs.dropout
            key = stream_for(self, "zoneout", stream)()
        return options.call(inputs, self._arrays(), key, **controls)

    def initialize_carry(self, input_shape: tuple[int, ...]) -> Carry:
        """A carry of zeros in param_dtype.

        Args:
          input_shape: of one time step, `[*batch, in_features]`.
        """
        return self._options().initial_carry(input_shape)

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `nnx.view` may change.

        Args:
          deterministic: if True, zoneout by its mean.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def _arrays(self) -> dict[str, Array | None]:
        held = {name: getattr(self, name) for name in self._cell.names}
        return {k: None if param is None else param[...] for k, param in held.items()}

    def _options(self, **call: Any) -> shared_linear.Options:
        """All options, with what a call overrides."""
        sizes = "in_features", "hidden_features"
        return shared_linear.Options.of(self, sizes, self.in_features, **call)

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        return alike(op, cls._cell, layers)

    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        return self._options().told
