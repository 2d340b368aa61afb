"""Layers of Keras, on JAX."""

import functools

import jax.numpy as jnp
import numpy as np
from support import quick_jit

from libraries.layer import BATCH, HIDDEN, IN, TIME, Layer, library
from prnn_jax import convert


class Keras(Layer):
    @functools.cached_property
    def _layer(self):
        layers = library("keras").layers
        options = {"return_sequences": True, "return_state": True, **self.options}
        options |= {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}
        if self.function != "rnn":
            options["use_cudnn"] = False  # which has no float64
        layer = getattr(layers, self.cell)(HIDDEN, dtype=self.dtype, **options)
        sides = [layer]
        if self.bidirectional:
            layer = layers.Bidirectional(layer, dtype=self.dtype)
            sides = [layer.forward_layer, layer.backward_layer]
        if self.dtype == "float64" and "activation" not in options:
            # Keras' own tanh is float32 whatever the layer's dtype, with JAX below it.
            for side in sides:
                side.cell.activation = jnp.tanh
        layer.build((BATCH, TIME, IN))
        return layer

    @functools.cached_property
    def _run(self):
        def run(weights, others, x, state):
            call = self._layer.stateless_call
            return call(weights, others, x, initial_state=state)[0]

        return quick_jit(run)

    def arrays(self, draw):
        return [draw(weight.shape) for weight in self._layer.weights]

    def run(self, arrays, x, state):
        self._layer.set_weights(arrays)
        state = [s[d] for d in range(self.directions) for s in state]
        weights, others = (
            [variable.value for variable in variables]
            for variables in (
                self._layer.trainable_variables,
                self._layer.non_trainable_variables,  # seeds
            )
        )
        y, *state = self._run(weights, others, x, state)
        count = len(state) // self.directions
        y = y[:, ::-1] if self.options.get("go_backwards") else y
        return y, tuple(np.stack(state[k::count]) for k in range(count))

    @property
    def _reset_after(self):
        return {k: v for k, v in self.options.items() if k == "reset_after"}

    def read(self, arrays):
        return (convert.from_keras(self.cell, arrays, **self._reset_after),)

    def write(self, layers):
        return convert.to_keras(self.cell, *layers, **self._reset_after)


class KerasFloat32(Keras):
    """With its own activations."""

    dtype = "float32"
    tolerance = 1e-6  # some roundings of values below 1, over a few steps
