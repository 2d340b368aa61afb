"""Steps that do not count anywhere in a sequence, as Keras' masks have them."""

import jax
import numpy as np

import prnn_jax

x = jax.random.normal(jax.random.key(0), (2, 6, 8))
mask = np.array([[1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0]], bool)
params = prnn_jax.init("gru", jax.random.key(1), 8, 16)

y, h = prnn_jax.gru(x, params, mask=mask)  # masked_y="zero" for zeros
alone, h_alone = prnn_jax.gru(x[0, mask[0]], params)
np.testing.assert_allclose(y[0, mask[0]], alone, atol=1e-6)
np.testing.assert_allclose(h[0], h_alone, atol=1e-6)
assert (y[1, 3:] == y[1, 2]).all()  # the last output, held
print("masked steps hold the state:", y.shape)
