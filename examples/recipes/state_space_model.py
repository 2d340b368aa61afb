"""S5, a state space model whose diagonal is complex: in a row, or as a stream."""

import jax
import jax.numpy as jnp
from flax import nnx

import prnn_jax


class S5(nnx.Module):
    """h' = exp(λΔ) h + (exp(λΔ) - 1)/λ B x, y = 2 Re(C h') + d x.

    (Smith et al. 2023, arXiv:2208.04933), with λ that begins as in S4D-Lin.
    """

    def __init__(self, size: int, states: int, rngs: nnx.Rngs):
        def normal(*shape: int):
            return nnx.Param(jax.random.normal(rngs.params(), shape) / shape[1] ** 0.5)

        self.decay = nnx.Param(jnp.full(states, jnp.log(0.5)))
        self.angle = nnx.Param(jnp.pi * jnp.arange(states))
        self.log_step = nnx.Param(jnp.linspace(jnp.log(1e-3), jnp.log(0.1), states))
        self.b, self.c = normal(2, size, states), normal(2, states, size)
        self.d = nnx.Param(jnp.ones(size))

    def __call__(self, x, h_0=None, resets=None):
        """y and the last state, complex."""
        rate = jax.lax.complex(-jnp.exp(self.decay[...]), self.angle[...])
        a = jnp.exp(rate * jnp.exp(self.log_step[...]))
        b, c = (jax.lax.complex(w[0], w[1]) for w in (self.b, self.c))
        entering = x @ ((a - 1) / rate * b)
        h, last = prnn_jax.linear_recurrence(a, entering, h_0, resets=resets)
        return 2 * (h @ c).real + self.d[...] * x, last


layer = S5(8, 16, nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (4, 60, 8))

# The state begins anew with each episode: the second is as it is alone.
resets = jnp.broadcast_to(jnp.arange(60) == 40, (4, 60))
whole, _ = layer(x, resets=resets)
assert jnp.allclose(whole[:, 40:], layer(x[:, 40:])[0], atol=1e-5)

gradient = nnx.jit(nnx.grad(lambda layer: (layer(x, resets=resets)[0] ** 2).mean()))
assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(layer)))

# Step by step, the same numbers.
step, h = nnx.jit(lambda layer, x, h: layer(x, h)), jnp.zeros((4, 16), jnp.complex64)
parts = []
for t in range(40):
    part, h = step(layer, x[:, t : t + 1], h)
    parts.append(part)
assert jnp.allclose(jnp.concatenate(parts, 1), whole[:, :40], atol=1e-5)
print("40 steps, one at a time and at once:", whole.shape)
