"""Cores of Haiku, unrolled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support import quick_jit

from libraries.layer import BATCH, HIDDEN, IN, TIME, Layer, library
from prnn_jax import convert


class Haiku(Layer):
    time_major = True

    @functools.cached_property
    def _functions(self):
        hk = library("haiku")

        def run(x, state):
            core = getattr(hk, self.cell)(HIDDEN, **self.options)
            if self.function == "lstm":
                state = hk.LSTMState(*state)
            else:
                (state,) = state
            y, state = hk.dynamic_unroll(core, x, state)
            return y, state if isinstance(state, tuple) else (state,)

        return hk.without_apply_rng(hk.transform(run))

    @functools.cached_property
    def _run(self):
        return quick_jit(self._functions.apply)

    def arrays(self, draw):
        x, h = jnp.zeros((TIME, BATCH, IN)), jnp.zeros((BATCH, HIDDEN))
        init = functools.partial(self._functions.init, jax.random.key(0))
        count = 2 if self.function == "lstm" else 1
        shapes = jax.eval_shape(init, x, (h,) * count)
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), shapes)

    def run(self, arrays, x, state):
        state = tuple(s[0] for s in state)
        y, state = jax.tree.map(np.asarray, self._run(arrays, x, state))
        return y, tuple(s[None] for s in state)

    def read(self, arrays):
        return (convert.from_haiku(self.cell, arrays),)

    def write(self, layers):
        return convert.to_haiku(self.cell, *layers)
