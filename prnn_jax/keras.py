"""Recurrent layers for Keras 3 on its JAX backend.

`LSTM`, `GRU` and `SimpleRNN` are Keras' own layers of these names with another engine
inside: arguments, weights, configuration, states, masks and saved files are Keras', so
that `keras.layers.LSTM` in a model can be exchanged for `prnn_jax.keras.LSTM`, and
`keras.layers.Bidirectional`, which they may be in, for `prnn_jax.keras.Bidirectional`,
which runs both directions at once. A file that was saved with them is loaded where this
module has been imported.

`MinGRU`, `MinLSTM`, `SRU`, `QRNN`, `RGLRU`, `LRU` and `IndRNN`, which Keras has not,
are layers of its kind, and so are those that `layer_of` makes of a cell that
`prnn_jax.define_cell` has made. `keras.layers.Bidirectional` takes them too.

What no engine computes runs Keras' own code, and `layer.explain(...)` says why:
activations such as gelu, that `prnn_jax.Activation` has not, and, while training, the
masks of dropout that LSTM and GRU with recurrent_dropout draw for each gate.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._engine import plan
from prnn_jax._given.checks import check, in_dtype
from prnn_jax._given.params import BidirectionalParams, Params
from prnn_jax._layers.keras import (
    Layer,
    check_told,
    keras,
    registered,
    sizes,
    state_of,
    with_weights,
)
from prnn_jax._layers.keras_defined import layer_of
from prnn_jax._layers.keras_linear import LRU, QRNN, RGLRU, SRU, IndRNN, MinGRU, MinLSTM
from prnn_jax._layers.keras_own import OwnLayer
from prnn_jax._ops import recurrent
from prnn_jax.convert import stack_directions

__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "QRNN",
    "RGLRU",
    "SRU",
    "Bidirectional",
    "IndRNN",
    "MinGRU",
    "MinLSTM",
    "SimpleRNN",
    "layer_of",
]


@registered
class LSTM(Layer, keras.layers.LSTM):
    """`keras.layers.LSTM` on the engines of prnn_jax; see `prnn_jax.lstm`.

    All arguments are those of `keras.layers.LSTM`, and `clip`, a `prnn_jax.Clip`, and
    `implementation`, as of `prnn_jax.lstm`: "scan" for `model.export`, which takes no
    engine's calls. unroll and use_cudnn change nothing: with a mask Keras' unrolled
    loop computes something else than its own loop, whose numbers these are.
    recurrent_dropout runs Keras' own code while training.
    """

    _function = staticmethod(recurrent.lstm)


@registered
class GRU(Layer, keras.layers.GRU):
    """`keras.layers.GRU` on the engines of prnn_jax; see `prnn_jax.gru`.

    All arguments are those of `keras.layers.GRU`, and `clip` and `implementation`, as
    of `LSTM`. unroll and use_cudnn change nothing; recurrent_dropout runs Keras' own
    code while training.
    """

    _function = staticmethod(recurrent.gru)

    def _cell_options(self) -> dict[str, Any]:
        return super()._cell_options() | {"reset_after": self.cell.reset_after}


@registered
class SimpleRNN(Layer, keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN` on the engines of prnn_jax; see `prnn_jax.rnn`.

    All arguments are those of `keras.layers.SimpleRNN`, and `clip` and
    `implementation`, as of `LSTM`. unroll changes nothing.
    """

    _function = staticmethod(recurrent.rnn)


@registered
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`, both of whose layers run in one call.

    All arguments are those of `keras.layers.Bidirectional`, and all it gives; the layer
    is one of this module, and says the implementation. A `backward_layer` that is
    another cell than the layer's, layers whose dtype is not this one's, and dropout
    while training run as Keras runs them, one after the other.
    """

    # Of keras.layers.Bidirectional:
    forward_layer: Any
    backward_layer: Any
    merge_mode: Any
    return_sequences: bool
    return_state: bool
    stateful: bool

    @classmethod
    def from_params(
        cls,
        layer: type[Layer | OwnLayer],
        params: Any,
        *,
        merge_mode: Any = "concat",
        **options: Any,
    ) -> Any:
        """A layer with these parameters, such as `prnn_jax.convert` gives.

        Args:
          layer: `prnn_jax.keras.LSTM` or another of this module.
          params: `BidirectionalParams`; of a cell without a product the arguments of
            its function by name, with a leading axis of 2.
          merge_mode: as ever.
          **options: arguments of the layer but for units and use_bias, which params
            tell.

        Returns:
          The layer, built.

        Raises:
          ValueError: params are of one direction, or have what Keras' layer has not;
            options have units or use_bias.
        """
        name = f"{cls.__name__}.from_params"
        check_told(name, options)
        if issubclass(layer, OwnLayer):
            return _of_sides(cls, layer, params, merge_mode, options)
        check(
            isinstance(params, BidirectionalParams),
            f"{name}: params must be BidirectionalParams, got {type(params).__name__}.",
        )
        inner: Any = layer(**sizes(params), **options)
        return with_weights(cls(inner, merge_mode=merge_mode), params)

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm` and the others with bidirectional."""
        both = self.forward_layer.params, self.backward_layer.params
        if isinstance(both[0], Params):
            return stack_directions(*both)
        return jax.tree.map(lambda *sides: jnp.stack(sides), *both)

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Both directions, as Keras merges them, and the states if it returns them."""
        if self._refusal(bool(training), None if mask is None else jnp.ndim(mask)):
            loop: Any = super()
            return loop.call(sequences, initial_state, mask=mask, training=training)
        sides = self.forward_layer, self.backward_layer
        x = sides[0]._floats(sequences)
        state_0 = None
        if initial_state is not None:
            arrays = [in_dtype(s, x.dtype) for s in keras.tree.flatten(initial_state)]
            half = len(arrays) // 2
            pairs = zip(arrays[:half], arrays[half:], strict=True)
            state_0 = state_of([jnp.stack(pair) for pair in pairs])
        y, state = type(sides[0])._function(
            x,
            stack_directions(*(side._params(x.dtype) for side in sides)),
            state_0,
            bidirectional=True,
            implementation=sides[0].implementation,
            **sides[0]._masks(mask, x),
            **sides[0]._cell_options(),
        )
        forward, backward = jnp.split(y, 2, -1)
        if not self.return_sequences:
            forward, backward = forward[:, -1], backward[:, 0]
        output = self._merged(forward, backward)
        if not self.return_state:
            return output
        both = state if isinstance(state, tuple) else (state,)
        states = (*(one[0] for one in both), *(one[1] for one in both))
        return (*output, *states) if self.merge_mode is None else (output, *states)

    def _can_attempt_fused_lstm(self, *call: Any) -> bool:
        return self._may_be_fused and super()._can_attempt_fused_lstm(*call)

    def _can_attempt_fused_gru(self, *call: Any) -> bool:
        return self._may_be_fused and super()._can_attempt_fused_gru(*call)

    @property
    def _may_be_fused(self) -> bool:
        """Whether Keras may call cuDNN, which knows neither clip nor the dtypes."""
        sides = self.forward_layer, self.backward_layer
        return not any(isinstance(side, Layer) for side in sides)

    def _merged(self, forward: Array, backward: Array) -> Any:
        match self.merge_mode:
            case "concat":
                return jnp.concatenate([forward, backward], -1)
            case "sum":
                return forward + backward
            case "ave":
                return (forward + backward) / 2
            case "mul":
                return forward * backward
        return forward, backward

    def explain(
        self, batch: int, time: int, *, training: bool = False, **options: Any
    ) -> plan.Plan:
        """Which engine runs a call, as `prnn_jax.explain`.

        Where the two layers run one after the other, what runs each of them; "scan" is
        Keras' own code.

        Args:
          batch: rows.
          time: steps.
          training: as in the call.
          **options: of `prnn_jax.explain`, such as platform and device.

        Raises:
          ValueError: the layers have no weights yet, or are not of this module; or as
            `prnn_jax.explain`.
        """
        layer = self.forward_layer
        if isinstance(layer, OwnLayer):
            return layer.explain(batch, time, training=training, **options)
        check(
            isinstance(layer, Layer),
            f"{self.name}: the layer must be one of prnn_jax.keras, got "
            f"{type(layer).__name__}.",
        )
        groups = 1 if self._refusal(training, None) else 2
        return layer.explain(batch, time, training=training, groups=groups, **options)

    def _refusal(self, training: bool, mask_rank: int | None) -> str:
        """Why Keras must run one layer after the other; empty where it need not."""
        forward, backward = sides = self.forward_layer, self.backward_layer
        if isinstance(forward, OwnLayer):
            return "each direction is a call"
        if not all(isinstance(side, Layer) for side in sides):
            return "the layers must be of prnn_jax.keras"

        def of(layer: Any) -> list[Any]:
            kind, cell, own = type(layer)._function, layer.cell, layer._cell_options()
            return [kind, cell.units, cell.use_bias, layer.implementation, own]

        for side in sides:
            if why := side._refusal(training, mask_rank):
                return why
            if side.compute_dtype != self.compute_dtype:
                return "the layers compute in another dtype than what is around them"
            if training and (side.cell.dropout or side.cell.recurrent_dropout):
                return "each layer draws its own dropout"
        if self.stateful or forward.go_backwards or not backward.go_backwards:
            return "the layers must run against each other, and keep no state"
        return "" if of(forward) == of(backward) else "the layers are not alike"


def _of_sides(
    make: type[Bidirectional],
    layer: type[OwnLayer],
    params: Any,
    merge_mode: Any,
    options: dict[str, Any],
) -> Any:
    """Two layers of a cell that Keras has not, with the parameters of each."""
    name = f"{make.__name__}.from_params"
    for array in jax.tree.leaves(params):
        check(
            array.shape[:1] == (2,),
            f"{name}: params must have a leading axis of 2, forward and backward, got "
            f"{list(array.shape)}.",
        )
    halves = [jax.tree.map(operator.itemgetter(n), params) for n in range(2)]
    if isinstance(params, Params):
        halves = [Params(*half) for half in halves]
    sides = [layer.from_params(half, **options) for half in halves]
    both: Any = make(sides[0], merge_mode=merge_mode)
    both.build((None, None, sides[0].input_size))
    for of_both, side in zip(
        (both.forward_layer, both.backward_layer), sides, strict=True
    ):
        of_both.set_weights(side.get_weights())
    return both
