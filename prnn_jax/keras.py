"""Recurrent layers for Keras 3 on its JAX backend.

`LSTM`, `GRU` and `SimpleRNN` are Keras' own layers of these names with another engine
inside: arguments, weights, configuration, states, masks and saved files are Keras', so
that `keras.layers.LSTM` in a model can be exchanged for `prnn_jax.keras.LSTM`, alone or
in `keras.layers.Bidirectional`. A file that was saved with them is loaded where this
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
from prnn_jax.convert import from_keras
from prnn_jax.convert._keras import activations

try:
    import keras
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.keras needs Keras: pip install "prnn_jax[keras]".'
    ) from error

__all__ = ["GRU", "LSTM", "SimpleRNN"]

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
        states = keras.tree.flatten(initial_state)
        x, h_0 = jnp.asarray(sequences), jnp.asarray(states[0])
        cell, masks = self.cell, {}
        if training and cell.dropout:
            x = x * jnp.expand_dims(cell.get_dropout_mask(x[:, 0, :]), 1)
        if training and cell.recurrent_dropout:
            masks["recurrent_mask"] = cell.get_recurrent_dropout_mask(h_0)
        if mask is not None:
            masks["mask"] = mask
            masks["masked_y"] = "zero" if self.zero_output_for_mask else "hold"
        y, state = type(self)._function(
            x,
            self._params(x.dtype),
            tuple(map(jnp.asarray, states)) if len(states) > 1 else h_0,
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
