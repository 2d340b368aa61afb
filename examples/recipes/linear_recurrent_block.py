"""A block on a linear recurrence (RG-LRU): whole documents in a row, or as a stream."""

import jax
import jax.numpy as jnp
from flax import nnx

import prnn_jax.nnx


class Block(nnx.Module):
    """Layer norm and a gated RG-LRU (De et al. 2024, arXiv:2402.19427)."""

    def __init__(self, size: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(size, rngs=rngs)
        # RecurrentGemma's has heads=, and scale_first=False.
        self.lru = prnn_jax.nnx.RGLRU(size, size, return_carry=True, rngs=rngs)

    def __call__(self, x, h_0=None, resets=None):
        """The block's output and its last state."""
        given = self.norm(x)
        h, y = self.lru(given, initial_carry=h_0, resets=resets)
        return x + jax.nn.gelu(given) * y, h


block = Block(16, nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (4, 60, 16))

# The state begins anew with each document: the second is as it is alone.
resets = jnp.broadcast_to(jnp.arange(60) == 40, (4, 60))
whole, _ = block(x, resets=resets)
assert jnp.allclose(whole[:, 40:], block(x[:, 40:])[0], atol=1e-5)

gradient = nnx.jit(nnx.grad(lambda block: (block(x, resets=resets)[0] ** 2).mean()))
assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(block)))

# Step by step, the same numbers.
step, h, parts = nnx.jit(lambda block, x, h: block(x, h)), jnp.zeros((4, 16)), []
for t in range(40):
    part, h = step(block, x[:, t : t + 1], h)
    parts.append(part)
assert jnp.allclose(jnp.concatenate(parts, 1), whole[:, :40], atol=1e-5)
print("40 steps, one at a time and at once:", whole.shape)
