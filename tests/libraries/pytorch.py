"""Layers of PyTorch."""

import functools

from libraries.layer import HIDDEN, IN, Layer, library
from prnn_jax import convert


class PyTorch(Layer):
    time_major = True

    @functools.cached_property
    def _module(self):
        make = getattr(library("torch").nn, self.cell)
        return make(
            IN,
            HIDDEN,
            num_layers=self.layers,
            bidirectional=self.bidirectional,
            **self.options,
        ).double()

    def arrays(self, draw):
        tensor = library("torch").from_numpy
        shapes = {name: tuple(a.shape) for name, a in self._module.state_dict().items()}
        return {name: tensor(draw(shape)) for name, shape in shapes.items()}

    def run(self, arrays, x, state):
        torch = library("torch")
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        self._module.load_state_dict(tensors)
        x, *state = (torch.from_numpy(array) for array in (x, *state))
        with torch.no_grad():
            y, state = self._module(x, tuple(state) if len(state) > 1 else state[0])
        state = state if isinstance(state, tuple) else (state,)
        return y.numpy(), tuple(s.numpy() for s in state)

    def read(self, arrays):
        return convert.from_pytorch(self.cell, arrays)

    def write(self, layers):
        return convert.to_pytorch(self.cell, layers)
