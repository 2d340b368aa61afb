"""Recurrent layers for Keras 3 on its JAX backend.

`LSTM`, `GRU` and `SimpleRNN` are Keras' own layers of these names with another engine
inside: arguments, weights, configuration, states, masks and saved files are Keras', so
that `keras.layers.LSTM` in a model can be exchanged for `prnn_jax.keras.LSTM`, and
`keras.layers.Bidirectional`, which they may be in, for `prnn_jax.keras.Bidirectional`,
which runs both directions at once. A file that was saved with them is loaded where this
module has been imported.

What no engine computes runs Keras' own code, and `layer.explain(...)` says why:
activations such as gelu, that `prnn_jax.Activation` has not, and, while training, the
masks of dropout that LSTM and GRU with recurrent_dropout draw for each gate.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from prnn_jax import _ops, _plan
from prnn_jax._checks import check
from prnn_jax.convert import from_keras, stack_directions
from prnn_jax.convert._keras import activations

try:
    import keras
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.keras needs Keras: pip install "prnn_jax[keras]".'
    ) from error

__all__ = ["GRU", "LSTM", "Bidirectional", "SimpleRNN"]

_OPTIONS = {"activation": "activation", "recurrent_activation": "gate_activation"}
_registered = keras.saving.register_keras_serializable(package="prnn_jax")
_ACTIVATIONS = {
    getattr(keras.activations, name): ours
    for name, ours in activations(of_keras_2=False).items()
    if hasattr(keras.activations, name)  # hard_tanh came after 3.0
}


class _Layer:
    """What the layers share: the loop over time, in place of Keras'."""

    _function: ClassVar[Callable]
    _options: dict[str, Any]

    # Of keras.layers.RNN:
    cell: Any
    go_backwards: bool
    zero_output_for_mask: bool
    name: str

    def __init__(self, *args: Any, **options: Any):
        backend = keras.backend.backend()
        check(
            backend == "jax",
            f"prnn_jax.keras: Keras' backend must be jax, got {backend}; set "
            "KERAS_BACKEND=jax in the environment before keras is imported.",
        )
        super().__init__(*args, **options)

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[Any, Any, list[Any]]:
        """All steps, for `call`: the last output, all of them, the last states."""
        if keras.tree.is_nested(mask):
            mask = mask[0]
        if self._refusal(bool(training), None if mask is None else jnp.ndim(mask)):
            loop: Any = super()
            return loop.inner_loop(sequences, initial_state, mask, training=training)
        states = list(map(jnp.asarray, keras.tree.flatten(initial_state)))
        x, cell, masks = jnp.asarray(sequences), self.cell, self._masks(mask)
        if training and cell.dropout:
            x = x * jnp.expand_dims(cell.get_dropout_mask(x[:, 0, :]), 1)
        if training and cell.recurrent_dropout:
            masks["recurrent_mask"] = cell.get_recurrent_dropout_mask(states[0])
        y, state = type(self)._function(
            x,
            self._params(x.dtype),
            _state_of(states),
            reverse=self.go_backwards,
            **masks,
            **self._cell_options(),
        )
        if self.go_backwards:  # the outputs are in the order of processing
            y = jnp.flip(y, 1)
        return y[:, -1], y, list(state) if isinstance(state, tuple) else [state]

    def explain(
        self, batch: int, time: int, *, training: bool = False, **options: Any
    ) -> _plan.Plan:
        """Which engine runs a call, as `prnn_jax.explain`; "scan" is Keras' own code.

        Args:
          batch: rows.
          time: steps.
          training: as in the call.
          **options: of `prnn_jax.explain`, such as platform and device.

        Raises:
          ValueError: the layer has no weights yet, or as `prnn_jax.explain`.
        """
        cell: Any = self.cell
        check(
            cell.built,
            f"{self.name}: the layer must be built, by a call or build(), before it "
            "can explain one.",
        )
        why = self._refusal(training, None)
        function: Any = type(self)._function.__name__
        plan = _plan.explain(
            function,
            batch=batch,
            time=time,
            hidden_size=cell.units,
            input_size=cell.kernel.shape[0],
            dtype=cell.compute_dtype,
            training=training,
            **({} if why else self._cell_options()),
            **options,
        )
        if not why:
            return plan
        return _plan.Plan("scan", plan.platform, (f"Keras' own code: {why}",))

    def _refusal(self, training: bool, mask_rank: int | None) -> str:
        """Why Keras' own code must run; empty where it need not."""
        cell: Any = self.cell
        for name in _OPTIONS:
            given = getattr(cell, name, keras.activations.tanh)
            if given not in _ACTIVATIONS:
                own = getattr(given, "__name__", given)
                known = ", ".join(function.__name__ for function in _ACTIVATIONS)
                return f"{name} must be one of {known}, got {own}"
        drops = training and (cell.recurrent_dropout or cell.dropout)
        if drops and getattr(cell, "dropout_mask_count", None):
            return "each gate has a dropout mask of its own"
        if mask_rank not in (None, 2):
            return f"the mask must be [batch, time], got {mask_rank} axes"
        return ""

    def _masks(self, mask: Any) -> dict[str, Any]:
        """Arguments of the function about Keras' mask."""
        if mask is None:
            return {}
        masked_y = "zero" if self.zero_output_for_mask else "hold"
        return {"mask": mask, "masked_y": masked_y}

    def _params(self, dtype: Any) -> Any:
        weights = [self.cell.kernel, self.cell.recurrent_kernel]
        if self.cell.use_bias:
            weights.append(self.cell.bias)
        arrays: list[Array] = [jnp.asarray(w, dtype) for w in weights]
        name = next(k.__name__ for k in type(self).__mro__ if k.__name__ in __all__)
        after = getattr(self.cell, "reset_after", True)
        return from_keras(name, arrays, reset_after=after)

    def _cell_options(self) -> dict[str, Any]:
        """Arguments of the function, and of `explain`, that not all cells have."""
        return {
            option: _ACTIVATIONS[getattr(self.cell, name)]
            for name, option in _OPTIONS.items()
            if hasattr(self.cell, name)
        }


def _state_of(arrays: list[Any]) -> Any:
    """A state as the functions take it."""
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


@_registered
class LSTM(_Layer, keras.layers.LSTM):
    """`keras.layers.LSTM` on the engines of prnn_jax; see `prnn_jax.lstm`.

    All arguments are those of `keras.layers.LSTM`. unroll and use_cudnn change
    nothing; recurrent_dropout runs Keras' own code while training.
    """

    _function = staticmethod(_ops.lstm)


@_registered
class GRU(_Layer, keras.layers.GRU):
    """`keras.layers.GRU` on the engines of prnn_jax; see `prnn_jax.gru`.

    All arguments are those of `keras.layers.GRU`. unroll and use_cudnn change nothing;
    recurrent_dropout runs Keras' own code while training.
    """

    _function = staticmethod(_ops.gru)

    def _cell_options(self) -> dict[str, Any]:
        return super()._cell_options() | {"reset_after": self.cell.reset_after}


@_registered
class SimpleRNN(_Layer, keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN` on the engines of prnn_jax; see `prnn_jax.rnn`.

    All arguments are those of `keras.layers.SimpleRNN`. unroll changes nothing.
    """

    _function = staticmethod(_ops.rnn)


@_registered
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`, both of whose layers run in one call.

    All arguments are those of `keras.layers.Bidirectional`, and all it gives; the layer
    is one of this module. A `backward_layer` that is another cell than the layer's, and
    dropout while training, run as Keras runs them, one after the other.
    """

    # Of keras.layers.Bidirectional:
    forward_layer: Any
    backward_layer: Any
    merge_mode: Any
    return_sequences: bool
    return_state: bool
    stateful: bool

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
        sides, x = (self.forward_layer, self.backward_layer), jnp.asarray(sequences)
        state_0 = None
        if initial_state is not None:
            arrays = list(map(jnp.asarray, keras.tree.flatten(initial_state)))
            half = len(arrays) // 2
            pairs = zip(arrays[:half], arrays[half:], strict=True)
            state_0 = _state_of([jnp.stack(pair) for pair in pairs])
        y, state = type(sides[0])._function(
            x,
            stack_directions(*(side._params(x.dtype) for side in sides)),
            state_0,
            bidirectional=True,
            **sides[0]._masks(mask),
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
    ) -> _plan.Plan:
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
        check(
            isinstance(layer, _Layer),
            f"{self.name}: the layer must be one of prnn_jax.keras, got "
            f"{type(layer).__name__}.",
        )
        groups = 1 if self._refusal(training, None) else 2
        return layer.explain(batch, time, training=training, groups=groups, **options)

    def _refusal(self, training: bool, mask_rank: int | None) -> str:
        """Why Keras must run one layer after the other; empty where it need not."""
        forward, backward = sides = self.forward_layer, self.backward_layer
        if not all(isinstance(side, _Layer) for side in sides):
            return "the layers must be of prnn_jax.keras"

        def of(layer: Any) -> list[Any]:
            kind, cell = type(layer)._function, layer.cell
            return [kind, cell.units, cell.use_bias, layer._cell_options()]

        for side in sides:
            if why := side._refusal(training, mask_rank):
                return why
            if training and (side.cell.dropout or side.cell.recurrent_dropout):
                return "each layer draws its own dropout"
        if self.stateful or forward.go_backwards or not backward.go_backwards:
            return "the layers must run against each other, and keep no state"
        return "" if of(forward) == of(backward) else "the layers are not alike"
