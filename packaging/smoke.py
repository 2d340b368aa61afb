"""A layer and its gradient, as installed: asked for by packaging/test_wheels."""

import shutil
import sys

import jax
from flax import nnx

import prnn_jax
import prnn_jax.nnx as prnn

is_pure = "--pure" in sys.argv
for compiler in ("cc", "gcc", "c++", "g++", "clang", "nvcc"):
    assert shutil.which(compiler) is None, f"{compiler} is on the PATH"

layer = prnn.LSTM(80, 256, bidirectional=True, rngs=nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (4, 100, 80))  # [batch, time, features]
y = layer(x)
assert y.shape == (4, 100, 512)
grads = nnx.grad(lambda layer: (layer(x) ** 2).mean())(layer)
assert all(bool((abs(leaf) > 0).any()) for leaf in jax.tree.leaves(grads))

plan = prnn_jax.explain("lstm", batch=4, time=100, hidden_size=256, groups=2)
assert plan.engine == ("scan" if is_pure else "native"), plan
params = prnn_jax.init("lstm", jax.random.key(1), 80, 256)


def value_and_grad(implementation):
    """Of a functional call, by one of the ways to run it."""

    def loss(params):
        y, _ = prnn_jax.lstm(x, params, implementation=implementation)
        return (y**2).mean()

    return jax.jit(jax.value_and_grad(loss))(params)


found, scan = value_and_grad(None if is_pure else "native"), value_and_grad("scan")
for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(scan), strict=True):
    assert jax.numpy.allclose(a, b, rtol=1e-4, atol=1e-6)
print(f"Python {sys.version.split()[0]}, jax {jax.__version__}: {plan.engine}", end="")
print("" if is_pure else f", {plan.instruction_set}")
