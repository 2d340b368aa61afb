"""Several layers for Flax NNX, one on top of the other."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, Unpack, overload

from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Lengths, Resets
from prnn_jax._cells.table import AnyCell
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._layers import imported
from prnn_jax._layers.flax import shared, shared_stack
from prnn_jax._layers.flax.carry import CallOptions, Carry
from prnn_jax._layers.flax.nnx_layer import Layer, layer_of
from prnn_jax._layers.flax.nnx_linear_layer import LinearLayer
from prnn_jax._layers.flax.nnx_shared import (
    Rngs,
    StackOptions,
    rngs_with_params,
    stream_for,
)
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._ops import stack_parts
from prnn_jax.convert import Imported

# Arguments of a stack that its layers do not have, or not in it.
_OWN = (
    *("dropout_rate", "norm", "skip_connections"),
    *("recurrent_dropout_rate", "zoneout_rate", "deterministic"),
)


#: What may be stacked.
OneCell = AnyCell | LinearCellName | type[Layer | LinearLayer]


class _CallOptions(CallOptions, total=False):
    rngs: Rngs | None


class Stack(nnx.Module):
    r"""Layers of one kind, each on what the one before it gives: `prnn_jax.stack`.

        Stack("lstm", 80, 512, num_layers=5, bidirectional=True, rngs=rngs)

    Stands for an `nnx.Sequential` of `nnx.RNN`, with dropout, layer norm and skip
    connections between them. From eight layers on they compile like one.

    Attributes:
      layers: `nnx.List` of the layers, whose parameters these are.
      norms: `nnx.List` of a scale and a bias `nnx.Param` for each layer; empty without
        norm.

    Args:
      cell: "lstm", "slstm", "gru", "rnn" or the name of a cell without a product,
        "min_gru" and so on; what `prnn_jax.define_cell` has made; or the layer itself.
      in_features: size of the input at each step.
      hidden_features: size of each layer's state.
      num_layers: how many.
      dropout_rate: share of what a layer hands to the next that becomes zero while
        training (`deterministic=False`).
      norm: whether there is a layer norm before each layer.
      skip_connections: add a layer's input to its output, where they are as wide.
      recurrent_dropout_rate: as for `LSTM`, in each layer.
      zoneout_rate: as for `LSTM`, in each layer.
      deterministic: neither dropout nor random zoneout; `model.train()` and
        `model.eval()` set it.
      rngs: for the parameters, and the stream `dropout`.
      **options: other arguments of the layer: bidirectional, merge, heads, time_major,
        return_carry, dtype, param_dtype, kernel_init and so on, and what only its own
        kind has; but reverse, keep_order and carry_init.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    # The layers' classes, by cell; prnn_jax.nnx has them.
    _layers: ClassVar[dict[str, type[Layer | LinearLayer]]] = {}

    @functools.partial(in_its_own_name, refuses=("reverse", "keep_order", "carry_init"))
    def __init__(
        self,
        cell: OneCell,
        in_features: int,
        hidden_features: int,
        num_layers: int,
        *,
        dropout_rate: float = 0.0,
        norm: bool = False,
        skip_connections: bool = False,
        recurrent_dropout_rate: float = 0.0,
        zoneout_rate: float | tuple[float, ...] = 0.0,
        deterministic: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[StackOptions],
    ):
        make: Any = shared_stack.class_of("Stack", cell, self._layers, layer_of)
        for unfit in ("keep_order", "carry_init"):
            check(unfit not in options, f"Stack: {unfit} is no option of a stack.")
        first = make(in_features, hidden_features, rngs=rngs, **options)
        sizes = shared_stack.widths(first._options(), in_features, num_layers)
        rest = [make(n, hidden_features, rngs=rngs, **options) for n in sizes[1:]]
        self.layers = nnx.List([first, *rest])
        self.dropout_rate = shared_stack.check_rate("dropout_rate", dropout_rate)
        self.skip_connections = statics.flag(
            "Stack", "skip_connections", skip_connections
        )
        self.recurrent_dropout_rate = statics.hashable(recurrent_dropout_rate)
        self.zoneout_rate = statics.hashable(zoneout_rate)
        self.deterministic = statics.hashable(deterministic)
        norms = sizes if statics.flag("Stack", "norm", norm) else []
        self.norms = nnx.List(
            [
                nnx.Dict(
                    {
                        part: nnx.Param(value)
                        for part, value in shared_stack.norm_shapes(
                            first.param_dtype, width
                        ).items()
                    }
                )
                for width in norms
            ]
        )
        noise = shared_stack.noise_of(self._options(), self.dropout_rate)
        self.dropout_rngs = rngs.dropout.fork() if noise else nnx.data(None)

    @classmethod
    def from_params(
        cls,
        cell: OneCell | Imported,
        layers: Sequence[Params | Mapping[str, Any]] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> Self:
        """A stack of layers with these parameters, or of a network from elsewhere.

            network = prnn_jax.convert.import_pytorch(module)
            stack = Stack.from_params(network)

        Args:
          cell: as for `Stack`; or a network, with its parameters and options.
          layers: the parameters of each, as for a layer's from_params.
          rngs: for dropout.
          **options: other arguments of the stack and of its layers.

        Raises:
          ValueError: shapes do not fit each other, the cell or the options; says what
            was expected.
        """
        cell, layers, options = imported.stack_of(
            "Stack.from_params", cell, layers, options
        )
        make: Any = shared_stack.class_of("Stack", cell, cls._layers, layer_of)
        own = {n: options.pop(n) for n in _OWN if n in options}
        options = make._alike("Stack.from_params", layers) | options
        made = [make.from_params(params, **options) for params in layers]
        check(bool(made), "Stack.from_params: layers must be at least one, got none.")
        first = made[0]
        options |= first._told()
        if any(getattr(layer, "recurrent_bias", False) for layer in made):
            options["recurrent_bias"] = True
        sizes = shared_stack.widths(first._options(), first.in_features, len(made))
        for n, (layer, size) in enumerate(zip(made, sizes, strict=True)):
            shared_stack.check_width(n, size, layer.in_features)
        make_stack: Any = cls
        stack = make_stack(
            cell,
            first.in_features,
            first.hidden_features,
            len(made),
            rngs=rngs_with_params(rngs),
            **{
                **make._quick,
                "param_dtype": first.param_dtype,
                **own,
                **options,
            },
        )
        stack.layers = nnx.List(made)
        return stack

    @property
    def params(self) -> tuple[Any, ...]:
        """The parameters of each layer, without norms."""
        return tuple(layer.params for layer in self.layers)

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: Literal[True],
        **options: Unpack[_CallOptions],
    ) -> tuple[Carry, Array]: ...

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: bool | None = None,
        **options: Unpack[_CallOptions],
    ) -> Any: ...

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
        rngs: Rngs | None = None,
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
          return_carry: overrides the stack's own, as do the next two.
          time_major: overrides the stack's own.
          deterministic: overrides the stack's own.
          rngs: in place of the stack's own stream `dropout`.

        Returns:
          The outputs of the last layer, or `(carries, outputs)` with return_carry, a
          tuple of one carry for each layer.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        options = self._options(return_carry=return_carry, time_major=time_major)
        options.batch(inputs, self.layers[0].in_features)
        if deterministic is None:
            deterministic = self.deterministic
        key = None
        if shared_stack.noise_of(options, self.dropout_rate) and not deterministic:
            stream = rngs if rngs is not None else self.dropout_rngs
            stream = stream.dropout if isinstance(stream, nnx.Rngs) else stream
            key = stream_for(self.layers[0], "dropout", stream)()
        norms = [stack_parts.Norm(n["scale"][...], n["bias"][...]) for n in self.norms]
        return shared_stack.run(
            options,
            inputs,
            [layer.params for layer in self.layers],
            norms or [None] * len(self.layers),
            dropout_rate=self.dropout_rate,
            skip_connections=self.skip_connections,
            initial_carry=initial_carry,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_carry=reset_carry,
            key=key,
        )

    def initialize_carry(self, input_shape: tuple[int, ...]) -> tuple[Carry, ...]:
        """Zeros for each layer.

        Args:
          input_shape: of one time step, `[*batch, in_features]`.
        """
        depth = len(self.layers)
        return shared_stack.initial_carry(self._options(), input_shape, depth)

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `nnx.view` may change.

        Args:
          deterministic: if True, no dropout, and zoneout by its mean.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def _options(self, **call: Any) -> shared.Options:
        """Those of each layer, with the stack's own and what a call overrides."""
        return self.layers[0]._options(
            recurrent_dropout_rate=self.recurrent_dropout_rate,
            zoneout_rate=self.zoneout_rate,
            **call,
        )
