"""Saving and loading: orbax for NNX, tree_serialise_leaves for Equinox."""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx

import prnn_jax.equinox
import prnn_jax.nnx

x = jax.random.normal(jax.random.key(0), (2, 5, 8))
folder = Path(tempfile.mkdtemp())

model = prnn_jax.nnx.GRU(8, 16, rngs=nnx.Rngs(0))
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / "nnx", nnx.state(model))
    checkpointer.wait_until_finished()
    other = prnn_jax.nnx.GRU(8, 16, rngs=nnx.Rngs(1))
    nnx.update(other, checkpointer.restore(folder / "nnx", nnx.state(other)))
assert jnp.array_equal(other(x), model(x))

stack = prnn_jax.equinox.Stack("lstm", 8, 16, 3, key=jax.random.key(2))
eqx.tree_serialise_leaves(folder / "stack.eqx", stack)
like = eqx.filter_eval_shape(
    prnn_jax.equinox.Stack, "lstm", 8, 16, 3, key=jax.random.key(3)
)
loaded = eqx.tree_deserialise_leaves(folder / "stack.eqx", like)
assert jnp.array_equal(loaded(x)[0], stack(x)[0])
print("loaded models compute the same")
