"""Several networks at once by vmap: one native call, the networks side by side."""

import jax
import numpy as np

import prnn_jax

keys = jax.random.split(jax.random.key(0), 5)
x = jax.random.normal(jax.random.key(1), (3, 20, 8))

make = jax.vmap(lambda key: prnn_jax.init("gru", key, 8, 16))
ensemble = make(keys)  # Params, each array with an axis of 5 in front


@jax.jit
def predict(ensemble, x):
    """Mean and spread over the networks."""
    y, _ = jax.vmap(lambda params: prnn_jax.gru(x, params))(ensemble)
    return y.mean(0), y.std(0)


mean, spread = predict(ensemble, x)
one = jax.tree.map(lambda a: a[2], ensemble)
each = jax.vmap(lambda params: prnn_jax.gru(x, params)[0])(ensemble)
np.testing.assert_allclose(each[2], prnn_jax.gru(x, one)[0], atol=1e-6)
print("mean and spread of five:", mean.shape, spread.shape)
