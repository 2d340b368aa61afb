"""Parts of the parameters: the input weights frozen, no weight decay of biases."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import prnn_jax.nnx as prnn

model = prnn.LSTM(8, 16, rngs=nnx.Rngs(0))
before = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))

# What is trained: all but w_ih. What decays: matrices, and no biases.
trained = nnx.All(nnx.Param, lambda path, _: path[-1] != "w_ih")
adamw = optax.adamw(
    1e-2, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda a: a.ndim > 1, p)
)
optimizer = nnx.Optimizer(model, adamw, wrt=trained)
x = jax.random.normal(jax.random.key(1), (4, 10, 8))


@nnx.jit
def step(model, optimizer):
    """Of what is trained alone there are gradients."""
    grads = nnx.grad(
        lambda model: jnp.mean(model(x) ** 2), argnums=nnx.DiffState(0, trained)
    )(model)
    optimizer.update(model, grads)


for _ in range(3):
    step(model, optimizer)
after = nnx.state(model, nnx.Param)
assert (before["w_ih"][...] == after["w_ih"][...]).all()
assert (before["w_hh"][...] != after["w_hh"][...]).any()
print("w_ih stayed, w_hh and the bias learned")
