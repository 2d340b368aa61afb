"""A stream, some steps or one at a time: prepared weights, and the state handed on."""

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax

layers = [
    prnn_jax.init("lstm", jax.random.key(n), 128 if n else 40, 128) for n in range(2)
]
x = jax.random.normal(jax.random.key(9), (1, 60, 40))
whole, _ = prnn_jax.stack("lstm", x, layers)

CHUNK = 10
prepared = [prnn_jax.prepare("lstm", p, batch=1, time=CHUNK) for p in layers]


@jax.jit  # compiled once: all chunks have one shape
def advance(state, chunk):
    """The next chunk's outputs, and the state after it."""
    y, state = prnn_jax.stack("lstm", chunk, prepared, state)
    return state, y


state = [(jnp.zeros((1, 128)), jnp.zeros((1, 128)))] * 2
pieces = []
for t in range(0, 60, CHUNK):
    state, y = advance(tuple(state), x[:, t : t + CHUNK])
    pieces.append(y)
np.testing.assert_allclose(jnp.concatenate(pieces, 1), whole, atol=1e-5)
print("chunk by chunk as in one call:", whole.shape)
