"""A cell of your own: an LSTM with layer norm inside of its gates.

`prnn_jax.normed` has this one at full speed (`LayerNorm(of="sum", over="gate")`); it is
here for what a step may do.
"""

import jax
import jax.numpy as jnp

import prnn_jax
import prnn_jax.nnx
from prnn_jax.testing import check_cell


def normed(a, gain):
    """Layer norm over the units (Ba et al. 2016, arXiv:1607.06450)."""
    centred = a - a.mean(-1, keepdims=True)
    return gain * centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def step(a_x, product, state, g_i, g_f, g_g, g_o, g_c):
    """One step; the gains are numbers of each unit's own."""
    h, c = state
    a = [x + r for x, r in zip(a_x, product(h), strict=True)]
    i, f, g, o = map(normed, a, (g_i, g_f, g_g, g_o))
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(normed(c, g_c)), c


lstm = prnn_jax.define_cell("normed_lstm", step, gates="ifgo", states="hc", per_unit=5)
check_cell(lstm)

# All that the package's own cells have: here lengths, two layers, dropout, gradients.
x = jax.random.normal(jax.random.key(0), (3, 20, 8))
layers = [lstm.init(jax.random.key(n), size, 16) for n, size in enumerate((8, 16))]
layers = [p._replace(peepholes=p.peepholes + 1) for p in layers]  # gains begin with 1


def loss(layers):
    """Of no use but to be differentiated."""
    key = jax.random.key(1)
    y, _ = prnn_jax.stack(lstm, x, layers, lengths=[20, 7, 12], dropout=0.1, key=key)
    return (y**2).sum()


gradient = jax.jit(jax.grad(loss))(layers)
assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
# And as a layer of Flax NNX; `linen`, `equinox` and `keras` have a layer_of, too.
NormedLSTM = prnn_jax.nnx.layer_of(lstm)
layer = NormedLSTM.from_params(layers[0])
assert layer(x, seq_lengths=[20, 7, 12]).shape == (3, 20, 16)
print("gradients of", len(jax.tree.leaves(gradient)), "arrays")
