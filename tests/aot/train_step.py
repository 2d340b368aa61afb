"""Compiles a training step for a GPU that is not there, and says what came of it.

`python train_step.py TARGET IMPLEMENTATION DTYPE`, run by tests/test_cuda_aot.py in a
process of its own, because XLA reads its environment when JAX is imported. Prints one
line of JSON; XLA's dumps lie where XLA_FLAGS says.
"""

import importlib
import json
import sys

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import prnn_jax.nnx as prnn

BATCH, TIME, FEATURES, HIDDEN, LABELS = 16, 128, 80, 512, 32


class Model(nnx.Module):
    """One layer of each cell, the first in both directions."""

    def __init__(self, implementation: str | None, dtype, rngs: nnx.Rngs):
        options = {
            "implementation": implementation,
            "dtype": dtype,
            "param_dtype": dtype,
            "rngs": rngs,
        }
        self.lstm = prnn.LSTM(FEATURES, HIDDEN, bidirectional=True, **options)
        self.gru = prnn.GRU(2 * HIDDEN, HIDDEN, **options)
        self.rnn = prnn.RNN(HIDDEN, HIDDEN, **options)
        self.out = nnx.Linear(HIDDEN, LABELS, rngs=rngs)

    def __call__(self, x):
        return self.out(self.rnn(self.gru(self.lstm(x))).astype(jnp.float32))


def device(target: str):
    """A device as the target's text describes it."""
    for plugin in ("xla_cuda13", "xla_cuda12"):
        try:
            importlib.import_module(f"jax_plugins.{plugin}")
        except ModuleNotFoundError:
            continue
        break
    jax.devices()  # initialises the plugins
    topology = topologies.get_topology_desc(
        "one_gpu", platform="cuda", target_config=target, topology="1x1x1"
    )
    return topology.devices[0]


def train_step(implementation: str | None, dtype):
    """The step, and the types of its arguments."""
    model = nnx.eval_shape(lambda: Model(implementation, dtype, nnx.Rngs(0)))
    graph, params = nnx.split(model, nnx.Param)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(params, state, x, labels):
        def loss(params):
            logits = nnx.merge(graph, params)(x)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    x = jax.ShapeDtypeStruct((BATCH, TIME, FEATURES), dtype)
    labels = jax.ShapeDtypeStruct((BATCH, TIME), jnp.int32)
    return step, (params, jax.eval_shape(optimizer.init, params), x, labels)


def main() -> None:
    target, implementation, dtype = sys.argv[1:]
    with open(target) as file:
        sharding = SingleDeviceSharding(device(file.read()))
    step, arguments = train_step(
        None if implementation == "None" else implementation, jnp.dtype(dtype)
    )
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), arguments
    )
    compiled = jax.jit(step).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    report = {
        "text": compiled.as_text(),
        "temp_bytes": memory.temp_size_in_bytes,
        "sequence_size": BATCH * TIME * HIDDEN,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
