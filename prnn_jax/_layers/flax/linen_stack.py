"""Several layers for Flax Linen, one on top of the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, Unpack, overload

import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Lengths, Resets
from prnn_jax._cells.table import AnyCell
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._layers import imported
from prnn_jax._layers.flax import shared_stack
from prnn_jax._layers.flax.carry import CallOptions, Carry, one_step
from prnn_jax._layers.flax.linen_layer import Layer, layer_of, make_hashable
from prnn_jax._layers.flax.linen_linear import LinearLayer
from prnn_jax._layers.flax.variables import params_of
from prnn_jax._layers.keywords import InTheirOwnName, in_its_own_name
from prnn_jax._ops import stack_parts
from prnn_jax.convert import Imported

_ELSEWHERE = (
    *("features", "keep_order", "carry_init", "name", "parent"),
    *("recurrent_dropout_rate", "zoneout_rate", "deterministic"),
)
_SIZES = (
    "; a stack of Linen is not told the size of the input: "
    "Stack(cell, features, num_layers)"
)

#: What may be stacked.
OneCell = AnyCell | LinearCellName | type[Layer | LinearLayer]


class _Weights(nn.Module):
    """The parameters of a layer, under the names that it has for them."""

    layer: Layer | LinearLayer

    @nn.compact
    def __call__(self, in_features: int) -> Any:
        return self.layer._draw(self.param, in_features)


class _Norm(nn.Module):
    """Those of a layer norm."""

    dtype: Any

    @nn.compact
    def __call__(self, width: int) -> stack_parts.Norm:
        begins = shared_stack.norm_shapes(self.dtype, width)
        return stack_parts.Norm(
            *(self.param(part, lambda _, a=value: a) for part, value in begins.items())
        )


class Stack(InTheirOwnName, nn.Module):
    r"""Layers of one kind, each on what the one before it gives: `prnn_jax.stack`.

        Stack("lstm", 512, num_layers=5, options={"bidirectional": True})

    Stands for an `nn.Sequential` of `nn.RNN`, with dropout, layer norm and skip
    connections between them. From eight layers on they compile like one.

    Its parameters are those of each layer, under the names "layers_0", "layers_1" and
    so on, and with norm "norms_0" and so on, of `scale` and `bias`.

    Attributes:
      cell: "lstm", "slstm", "gru", "rnn" or the name of a cell without a product,
        "min_gru" and so on; what `prnn_jax.define_cell` has made; or the layer itself.
      features: size of each layer's state.
      num_layers: how many.
      dropout_rate: share of what a layer hands to the next that becomes zero, unless
        deterministic.
      norm: whether there is a layer norm before each layer.
      skip_connections: add a layer's input to its output, where they are as wide.
      recurrent_dropout_rate: as for `LSTM`, in each layer.
      zoneout_rate: as for `LSTM`, in each layer.
      deterministic: neither dropout nor random zoneout: to be given here or in the call
        if one of the rates is not 0.
      options: other attributes of the layers: bidirectional, merge, heads, time_major,
        return_carry, dtype, param_dtype, kernel_init and so on, and what only their own
        kind has; but reverse, keep_order and carry_init.

    Raises:
      ValueError: options do not fit, said by the first call.
    """

    cell: OneCell
    features: int
    num_layers: int
    dropout_rate: float = 0.0
    norm: bool = False
    skip_connections: bool = False
    recurrent_dropout_rate: float = 0.0
    zoneout_rate: float | tuple[float, ...] = 0.0
    deterministic: bool | None = None
    options: Mapping[str, Any] = FrozenDict()

    # The layers' classes, by cell; prnn_jax.linen has them.
    _layers: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __post_init__(self):
        make_hashable(self)
        super().__post_init__()

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: Literal[True],
        **options: Unpack[CallOptions],
    ) -> tuple[Carry, Array]: ...

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> Any: ...

    @nn.compact
    @in_its_own_name
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        initial_carry: Sequence[Carry] | None = None,
        seq_lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_carry: Sequence[Carry] | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Runs the layers over whole sequences.

        Args:
          inputs: as for a layer, and so all that is not said here.
          initial_carry: a tuple of carries, one for each layer. Zeros if not given.
          seq_lengths: as for a layer.
          mask: `[*batch, time]` of steps that count, as in `prnn_jax.lstm`; elsewhere a
            layer hands on its last output.
          resets: as for a layer.
          reset_carry: one for each layer.
          return_carry: overrides the stack's own, as does the next.
          time_major: overrides the stack's own.
          deterministic: to be given here or to the stack, if that drops anything; the
            random numbers are those of `dropout`.

        Returns:
          The outputs of the last layer, or `(carries, outputs)` with return_carry, a
          tuple of one carry for each layer.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        layer = self._layer()
        rate = shared_stack.check_rate("dropout_rate", self.dropout_rate, _SIZES)
        checks.is_array("Stack", "inputs", inputs)
        width = (1, *jnp.shape(inputs))[-1]
        options = self._of_layers(
            layer, width, return_carry=return_carry, time_major=time_major
        )
        options.batch(inputs)
        sizes = shared_stack.widths(options, width, self.num_layers)
        layers = [_Weights(layer, name=f"layers_{n}")(s) for n, s in enumerate(sizes)]
        norms: list[Any] = [None] * len(sizes)
        if statics.flag("Stack", "norm", self.norm):
            norms = [
                _Norm(layer.param_dtype, name=f"norms_{n}")(size)
                for n, size in enumerate(sizes)
            ]
        key = None
        if shared_stack.noise_of(options, rate):
            is_off = nn.merge_param("deterministic", self.deterministic, deterministic)
            key = None if is_off else self.make_rng("dropout")
        return shared_stack.run(
            options,
            inputs,
            layers,
            norms,
            dropout_rate=rate,
            skip_connections=statics.flag(
                "Stack", "skip_connections", self.skip_connections
            ),
            initial_carry=initial_carry,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_carry=reset_carry,
            key=key,
        )

    @classmethod
    def from_params(
        cls,
        cell: OneCell | Imported,
        layers: Sequence[Params | Mapping[str, Any]] | None = None,
        **attributes: Any,
    ) -> tuple[Self, dict[str, Any]]:
        """A stack of layers with these parameters, and they as its variables.

            network = prnn_jax.convert.import_pytorch(module)
            stack, variables = Stack.from_params(network)

        Args:
          cell: as for `Stack`; or a network, with its parameters and options.
          layers: the parameters of each, as for a layer's from_params.
          **attributes: others of the stack; the layers' are in `options`.

        Raises:
          ValueError: shapes do not fit each other, the cell or the options; says what
            was expected.
        """
        options = dict(attributes.pop("options", {}))
        cell, layers, options = imported.stack_of(
            "Stack.from_params", cell, layers, options
        )
        make: Any = shared_stack.class_of("Stack", cell, cls._layers, layer_of)
        alike = make._alike("Stack.from_params", layers)
        if not options.get("reset_after", True):
            alike.pop("recurrent_bias", None)  # there is one bias then
        options = alike | options
        made = [make.from_params(params, **options) for params in layers]
        check(bool(made), "Stack.from_params: layers must be at least one, got none.")
        first = made[0][0]
        options |= first._told()
        make_stack: Any = cls
        stack = make_stack(
            cell, first.features, len(made), options=options, **attributes
        )
        arrays = {f"layers_{n}": of["params"] for n, (_, of) in enumerate(made)}
        takes = [make._takes(arrays[f"layers_{n}"]) for n in range(len(made))]
        sizes = shared_stack.widths(first._options(takes[0]), takes[0], len(made))
        for n, size in enumerate(sizes):
            shared_stack.check_width(n, size, takes[n])
            if stack.norm:
                dtype = first.param_dtype
                arrays[f"norms_{n}"] = shared_stack.norm_shapes(dtype, size)
        return stack, {"params": arrays}

    @nn.nowrap
    def to_params(self, variables: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters of each layer, without norms.

        Args:
          variables: of the stack, as `init` gives them.
        """
        layer: Any = self._layer()
        params = params_of("Stack", variables, f"layers_{self.num_layers - 1}")
        return tuple(
            layer.to_params({"params": params[f"layers_{n}"]})
            for n in range(self.num_layers)
        )

    @nn.nowrap
    def initialize_carry(
        self, rng: Array | None, input_shape: tuple[int, ...]
    ) -> tuple[Carry, ...]:
        """Zeros for each layer.

        Args:
          rng: not looked at; Flax's cells have it.
          input_shape: of one time step, `[*batch, in_features]`.
        """
        del rng
        in_features = one_step("Stack", input_shape)[-1]
        options = self._of_layers(self._layer(), in_features)
        return shared_stack.initial_carry(options, input_shape, self.num_layers)

    @nn.nowrap
    def _of_layers(
        self, layer: Layer | LinearLayer, in_features: int, **call: Any
    ) -> shared_stack.Options:
        """Options of each layer, with the stack's own and what a call overrides."""
        return layer._options(
            in_features,
            recurrent_dropout_rate=self.recurrent_dropout_rate,
            zoneout_rate=self.zoneout_rate,
            **call,
        )

    @nn.nowrap
    def _layer(self) -> Layer | LinearLayer:
        """One layer, for its options and how its parameters are drawn."""
        make: Any = shared_stack.class_of("Stack", self.cell, self._layers, layer_of)
        for unfit in _ELSEWHERE:
            check(
                unfit not in self.options,
                f"Stack: options must not have {unfit}, which is "
                f"{'an attribute' if hasattr(self, unfit) else 'no option'} of the "
                "stack.",
            )
        return make(self.features, parent=None, **self.options)
