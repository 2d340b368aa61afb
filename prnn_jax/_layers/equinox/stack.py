"""Several layers for Equinox, one on top of the other; and a layer as RL has it."""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.noise import check_noise
from prnn_jax._call.options import Lengths, Resets, State
from prnn_jax._cells.table import AnyCell, Defined
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._layers import imported
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.equinox.arrays import check_sequence
from prnn_jax._layers.equinox.defined import layer_of
from prnn_jax._layers.equinox.layer import Layer
from prnn_jax._layers.equinox.linear_layer import LinearLayer
from prnn_jax._layers.equinox.options import StackOptions
from prnn_jax._layers.equinox.training import Training
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._ops import layer_stack, stack_parts
from prnn_jax.convert import Imported

# Arguments of a stack that its layers do not have, or not in it.
_OWN = (
    *("dropout", "recurrent_dropout", "zoneout"),
    *("norm", "skip_connections", "inference"),
)


#: What may be stacked.
OneCell = AnyCell | LinearCellName | type[Layer | LinearLayer]


class Stack(eqx.Module):
    r"""Layers of one kind, each on what the one before it gives: `prnn_jax.stack`.

    `Stack(LSTM, 3, 5, num_layers=4, key=key)`. Many layers compile in the time of one.
    The state is that of a layer with one more axis, before all others, of num_layers.

    Attributes:
      first: the first layer.
      rest: the others, as one layer whose arrays have one more axis, of num_layers - 1;
        None if there are no others.
      first_norm: layer norm of the first layer's input, or None.
      rest_norm: of the other layers' inputs, stacked; or None.

    Args:
      layer: `LSTM`, `MinGRU` and so on, or "lstm", "min_gru" and so on, or what
        `prnn_jax.define_cell` has made.
      input_size: size of the input at each step.
      hidden_size: size of each layer's state.
      num_layers: how many.
      dropout: share of what a layer hands to the next that becomes zero while training.
      recurrent_dropout: as for `LSTM`, in each layer.
      zoneout: as for `LSTM`, in each layer.
      norm: whether there is a layer norm before each layer.
      skip_connections: add a layer's input to its output, where they are as wide.
      inference: whether nothing is dropped; `eqx.nn.inference_mode` sets it.
      key: for the parameters, split into one for each layer.
      **options: arguments of the layer: use_bias, dtype, bidirectional, merge, heads,
        reserve, precision, implementation, and what only its own kind has.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    first: Layer | LinearLayer
    rest: Layer | LinearLayer | None
    first_norm: stack_parts.Norm | None
    rest_norm: stack_parts.Norm | None
    training: Training | None
    num_layers: int = eqx.field(static=True)
    skip_connections: bool = eqx.field(static=True)

    # The layers' classes, by cell; prnn_jax.equinox has them.
    _layers: ClassVar[dict[str, type[Layer | LinearLayer]]] = {}

    @functools.partial(in_its_own_name, refuses=("reverse", "zoneout_rate"))
    def __init__(
        self,
        layer: OneCell,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        zoneout: float | tuple[float, ...] = 0.0,
        norm: bool = False,
        skip_connections: bool = False,
        inference: bool = False,
        key: Array,
        **options: Unpack[StackOptions],
    ):
        kind: Any = self._class_of(layer)
        num_layers = statics.size("Stack", "num_layers", num_layers)
        norm = statics.flag("Stack", "norm", norm)
        skip_connections = statics.flag("Stack", "skip_connections", skip_connections)
        check(
            not options.get("reverse"),
            "Stack: reverse must be False, got True; flip xs and ys, or use "
            "bidirectional=True.",
        )
        check(
            "zoneout_rate" not in options,
            "Stack: zoneout_rate is no option of a stack; zoneout is.",
        )

        def make(input_size: int, key: Array) -> Layer | LinearLayer:
            return kind(input_size, hidden_size, key=key, **options)

        keys = jax.random.split(key, num_layers)
        self.first = make(input_size, keys[0])
        width, dtype = self.first.output_size, jax.tree.leaves(self.first)[0].dtype
        self.rest = self.first_norm = self.rest_norm = None
        if num_layers > 1:
            self.rest = eqx.filter_vmap(lambda key: make(width, key))(keys[1:])
        if norm:
            shape = input_size
            self.first_norm = _begins(shape, dtype)
        if norm and num_layers > 1:
            shape = num_layers - 1, width
            self.rest_norm = _begins(shape, dtype)
        call = self.first._call()
        noise = check_noise("Stack", call, dropout, recurrent_dropout, zoneout)
        self.training = Training.of(noise, inference)
        self.num_layers = num_layers
        states = [jax.eval_shape(one.zeros) for one in (self.first, self.rest) if one]
        check(
            states[0] == states[-1],
            f"Stack: input_size must be {width}, for several layers whose states have "
            f"inputs in them, as the first's has of x, got {input_size}; a projection "
            "before the stack makes x as wide.",
        )
        self.skip_connections = skip_connections

    @classmethod
    def from_params(
        cls,
        layer: OneCell | Imported,
        layers: Sequence[Params | Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Self:
        """A stack of layers with these parameters, or of a network from elsewhere.

            network = prnn_jax.convert.import_pytorch(module)
            stack = Stack.from_params(network)

        Args:
          layer: as for `Stack`; or a network, with its parameters and options, but for
            time_major, which is an argument of each call.
          layers: the parameters of each, as for a layer's from_params.
          **options: other arguments of the stack and of its layers.

        Raises:
          ValueError: shapes do not fit each other, the cell or the options; says what
            was expected.
        """
        layer, layers, options = imported.stack_of(
            "Stack.from_params", layer, layers, options, time_major=False
        )
        make: Any = cls._class_of(layer)
        own = {n: options.pop(n) for n in _OWN if n in options}
        options = {**make._alike("Stack.from_params", layers), **options}
        made = [make.from_params(params, **options) for params in layers]
        check(bool(made), "Stack.from_params: layers must be at least one, got none.")
        first = made[0]
        for n, one in enumerate(made[1:], 1):
            check(
                one.input_size == first.output_size,
                f"Stack.from_params: layer {n} must be for an input of "
                f"{first.output_size} features, got one for {one.input_size}.",
            )
        options |= first._told()
        draw: Any = functools.partial(
            cls, make, first.input_size, first.hidden_size, len(made), **own, **options
        )
        stack = eqx.filter_eval_shape(draw, key=jax.random.key(0))
        rest = None
        if made[1:]:
            rest = jax.tree.map(lambda *arrays: jnp.stack(arrays), *made[1:])

        def where(stack):
            return stack.first, stack.rest, stack.first_norm, stack.rest_norm

        norms = [
            None if n is None else _begins(n.scale.shape, n.scale.dtype)
            for n in (stack.first_norm, stack.rest_norm)
        ]
        return eqx.tree_at(
            where, stack, (first, rest, *norms), is_leaf=lambda x: x is None
        )

    @classmethod
    def _class_of(cls, layer: Any) -> type[Layer | LinearLayer]:
        """The class of a layer, or of a cell, the user's or one by its name."""
        if isinstance(layer, Defined):
            cell: Any = layer
            return layer_of(cell)
        layer = cls._layers.get(layer, layer) if isinstance(layer, str) else layer
        check(
            isinstance(layer, type) and issubclass(layer, (Layer, LinearLayer)),
            "Stack: layer must be a class of this module, such as LSTM, or one of "
            f"{', '.join(map(repr, cls._layers))}, got {layer!r}.",
        )
        return layer

    @property
    def layers(self) -> tuple[stack_parts.Layer, ...]:
        """The parameters, for `prnn_jax.stack`."""
        first = stack_parts.Layer(self.first.params, self.first_norm)
        if self.rest is None:
            return (first,)
        return first, stack_parts.Layer(self.rest.params, self.rest_norm, stacked=True)

    @property
    def params(self) -> tuple[Any, ...]:
        """The parameters of each layer, without norms."""
        if self.rest is None:
            return (self.first.params,)
        rest = self.rest.params
        each = (
            jax.tree.map(lambda a, n=n: a[n], rest) for n in range(self.num_layers - 1)
        )
        return self.first.params, *each

    @in_its_own_name
    def __call__(
        self,
        xs: Array,
        state: State | None = None,
        *,
        lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_to: State | None = None,
        time_major: bool = False,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> tuple[Array, Any]:
        """Runs the layers over a whole sequence.

        Args:
          xs: `[time, input_size]`, or `[*batch, time, input_size]`.
          state: as for a layer, with an axis num_layers before all others. Zeros if
            not given.
          lengths: `[*batch]`, as for a layer.
          mask: `[*batch, time]`, as for a layer.
          resets: `[*batch, time]`, as for a layer.
          reset_to: shaped as state, as for a layer.
          time_major: as for a layer.
          key: for dropout, recurrent dropout and zoneout; needed if there are some,
            except at inference.
          inference: overrides the stack's own.

        Returns:
          ys of the last layer and the last states, shaped as state.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        first = self.first
        time_major = statics.flag("Stack", "time_major", time_major)
        check_sequence("Stack", xs, first.input_size, time_major=time_major)
        given = xs, self.layers, state, reset_to
        arrays = promoted(given, apart=first._float32_params())
        xs, layers, state, reset_to = arrays
        noise: dict[str, Any] = {}
        if self.training is not None:
            rates = self.training.noise
            noise = {
                "dropout": rates.dropout,
                "recurrent_dropout": rates.recurrent_dropout,
                "zoneout": rates.zoneout,
                "key": self.training.key("Stack", key, inference),
            }
        ys, states = layer_stack.stack(
            first._named(),
            xs,
            layers,
            self._apart("state", state),
            lengths=lengths,
            mask=mask,
            resets=resets,
            reset_to=self._apart("reset_to", reset_to),
            skip_connections=self.skip_connections,
            time_major=time_major,
            **noise,
            **first._for_stack(),
        )
        whole = [jax.tree.map(lambda a: a[None], states[0]), *states[1:]]
        return ys, jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *whole)

    def zeros(self, *batch: int) -> Any:
        """A state of zeros, in the dtype of the parameters."""

        def repeated(state):
            return jnp.zeros((self.num_layers, *state.shape), state.dtype)

        return jax.tree.map(repeated, self.first.zeros(*batch))

    def _apart(self, name: str, state: Any) -> list | None:
        """A state in the form of `layers`."""
        for array in jax.tree.leaves(state):
            check(
                array.shape[:1] == (self.num_layers,),
                f"Stack: {name} must have the axis of the {self.num_layers} layers "
                f"before all others, got {list(array.shape)}.",
            )
        if state is None:
            return None
        parts = [operator.itemgetter(0), operator.itemgetter(slice(1, None))]
        parts = parts[: len(self.layers)]
        return [jax.tree.map(part, state) for part in parts]


def _begins(shape: Any, dtype: Any) -> stack_parts.Norm:
    """Norms before training."""
    return stack_parts.Norm(jnp.ones(shape, dtype), jnp.zeros(shape, dtype))
