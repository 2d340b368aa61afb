"""Cells of Flax Linen and Flax NNX, under the layers that scan them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support import quick_jit

from libraries.layer import BATCH, HIDDEN, IN, TIME, Layer, library
from prnn_jax import convert


class _Cell(Layer):
    """A cell under a layer that scans it, with the carry (c, h) of Flax."""

    def _carries(self, state):
        carries = [tuple(s[d] for s in state[::-1]) for d in range(self.directions)]
        carries = [c if len(c) > 1 else c[0] for c in carries]
        return tuple(carries) if self.bidirectional else carries[0]

    def _state(self, carry):
        carries = carry if self.bidirectional else (carry,)
        carries = [c if isinstance(c, tuple) else (c,) for c in carries]
        return tuple(np.stack(s) for s in zip(*carries, strict=True))[::-1]


class Linen(_Cell):
    @functools.cached_property
    def _module(self):
        library("flax")
        linen = library("flax.linen")
        cell = getattr(linen, self.cell)

        def layer():
            return linen.RNN(cell(HIDDEN, param_dtype=self.dtype, **self.options))

        return linen.Bidirectional(layer(), layer()) if self.bidirectional else layer()

    @functools.cached_property
    def _run(self):
        def run(variables, x, carry):
            return self._module.apply(
                variables, x, initial_carry=carry, return_carry=True
            )

        return quick_jit(run)

    def arrays(self, draw):
        init = functools.partial(self._module.init, jax.random.key(0))
        shapes = jax.eval_shape(init, jnp.zeros((BATCH, TIME, IN)))["params"]
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), shapes)

    def run(self, arrays, x, state):
        carry, y = self._run({"params": arrays}, x, self._carries(state))
        return y, self._state(carry)

    def read(self, arrays):
        if not self.bidirectional:
            return (convert.from_linen(self.cell, arrays["cell"]),)
        sides = [arrays[f"{side}_rnn"]["cell"] for side in ("forward", "backward")]
        sides = [convert.from_linen(self.cell, side) for side in sides]
        return (convert.stack_directions(*sides),)

    def write(self, layers):
        if not self.bidirectional:
            return {"cell": convert.to_linen(self.cell, *layers)}
        sides = convert.split_directions(*layers)
        forward, backward = (convert.to_linen(self.cell, side) for side in sides)
        return {"forward_rnn": {"cell": forward}, "backward_rnn": {"cell": backward}}


class Nnx(_Cell):
    @functools.cached_property
    def _module(self):
        library("flax")
        nnx = library("flax.nnx")
        cell = getattr(nnx, self.cell)
        zeros = jax.nn.initializers.zeros
        return cell(
            IN,
            HIDDEN,
            kernel_init=zeros,
            recurrent_kernel_init=zeros,
            param_dtype=self.dtype,
            rngs=nnx.Rngs(0),
            **self.options,
        )

    @functools.cached_property
    def _run(self):
        nnx = library("flax.nnx")

        @nnx.jit
        def run(cell, x, carry):
            return nnx.RNN(cell, return_carry=True)(x, initial_carry=carry)

        return run

    def arrays(self, draw):
        nnx = library("flax.nnx")
        params = nnx.to_pure_dict(nnx.state(self._module, nnx.Param))
        return jax.tree.map(lambda a: jnp.asarray(draw(a.shape)), params)

    def run(self, arrays, x, state):
        library("flax.nnx").update(self._module, arrays)
        carry, y = self._run(self._module, x, self._carries(state))
        return y, self._state(carry)

    def read(self, arrays):
        return (convert.from_nnx(self.cell, arrays),)

    def write(self, layers):
        return convert.to_nnx(self.cell, *layers)
