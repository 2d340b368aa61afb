"""A trained PyTorch network as layers of Flax NNX, Equinox and Keras."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import torch

import prnn_jax
import prnn_jax.equinox
import prnn_jax.keras
import prnn_jax.nnx

module = torch.nn.LSTM(40, 64, num_layers=2, batch_first=True).eval()
x = np.random.default_rng(0).standard_normal((3, 20, 40)).astype(np.float32)
with torch.no_grad():
    wanted = module(torch.from_numpy(x))[0].numpy()

network = prnn_jax.convert.import_pytorch(module)  # or a state_dict, or a file
of_nnx = prnn_jax.nnx.Stack.from_params(network)
of_equinox = prnn_jax.equinox.Stack.from_params(network)
of_keras = keras.Sequential(
    prnn_jax.keras.LSTM.from_params(params, return_sequences=True)
    for params in network.layers
)

for y in (network(x)[0], of_nnx(jnp.asarray(x)), of_equinox(jnp.asarray(x))[0]):
    np.testing.assert_allclose(y, wanted, atol=1e-5)
np.testing.assert_allclose(of_keras(x), wanted, atol=1e-5)
print("equal to PyTorch:", jax.tree.map(jnp.shape, network.layers[1]))
