"""Many documents in one row without padding: the state begins anew with each."""

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax

documents = [jax.random.normal(jax.random.key(n), (n + 3, 8)) for n in range(5)]
row = jnp.concatenate(documents)
starts = np.cumsum([0] + [len(d) for d in documents[:-1]])
resets = np.zeros(len(row), bool)
resets[starts] = True

params = prnn_jax.init("lstm", jax.random.key(9), 8, 16)
y, _ = prnn_jax.lstm(row, params, resets=resets)  # one call, no gradient crosses

for document, start in zip(documents, starts, strict=True):
    alone, _ = prnn_jax.lstm(document, params)
    np.testing.assert_allclose(y[start : start + len(document)], alone, atol=1e-6)
print("as if each document were alone:", y.shape)
