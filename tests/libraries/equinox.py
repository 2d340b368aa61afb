"""Cells of Equinox, scanned."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from support import quick_jit

from libraries.layer import HIDDEN, IN, Layer, library
from prnn_jax import convert


class Equinox(Layer):
    @functools.cached_property
    def _module(self):
        cell = getattr(library("equinox").nn, self.cell)
        make = functools.partial(cell, IN, HIDDEN, dtype=self.dtype, **self.options)
        return library("equinox").filter_eval_shape(make, key=jax.random.key(0))

    @functools.cached_property
    def _run(self):
        def run(cell, x, state):
            def step(state, x):
                state = jax.vmap(cell)(x, state)
                return state, state[0] if isinstance(state, tuple) else state

            state, y = jax.lax.scan(step, state, jnp.swapaxes(x, 0, 1))
            return jnp.swapaxes(y, 0, 1), state

        return quick_jit(run)

    def arrays(self, draw):
        arrays = {n: a for n, a in vars(self._module).items() if hasattr(a, "dtype")}
        return {name: jnp.asarray(draw(a.shape)) for name, a in arrays.items()}

    def run(self, arrays, x, state):
        eqx = library("equinox")
        cell = self._module
        for name, array in arrays.items():
            cell = eqx.tree_at(operator.attrgetter(name), cell, array)
        state = tuple(s[0] for s in state)
        state = state if len(state) > 1 else state[0]
        y, state = jax.tree.map(np.asarray, self._run(cell, x, state))
        state = state if isinstance(state, tuple) else (state,)
        return y, tuple(s[None] for s in state)

    def read(self, arrays):
        return (convert.from_equinox(self.cell, {**vars(self._module), **arrays}),)

    def write(self, layers):
        return convert.to_equinox(self.cell, *layers)
