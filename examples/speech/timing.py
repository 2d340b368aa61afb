"""What the recurrent layers' engine is worth in training: time and memory of a step."""

import dataclasses
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import prnn_jax

from .batches import Batch
from .config import RunConfig
from .model import Recogniser, output_frames
from .optimizer import make_optimizer
from .train import prepare


class StepTimes(NamedTuple):
    """Medians over interleaved repetitions, so that a busy moment hits both alike."""

    engine: str  # that implementation=None takes here
    engine_ms: float
    scan_ms: float

    def __str__(self):
        ratio = self.scan_ms / self.engine_ms
        return (
            f"{self.engine_ms:.1f} ms with the {self.engine} engine, "
            f"{self.scan_ms:.1f} ms with lax.scan ({ratio:.2f} times)"
        )


def time_steps(config: RunConfig, batch: Batch, repeats: int = 15) -> StepTimes:
    """Times whole training steps: forward, loss, backward, optimizer."""
    trainings = []
    for implementation in (None, "scan"):
        model = dataclasses.replace(config.model, implementation=implementation)
        training = prepare(
            dataclasses.replace(config, model=model),
            make_optimizer(config.train, steps=1000),
            Recogniser(model, config.features, nnx.Rngs(config.train.seed)),
        )
        jax.block_until_ready(training.step(training.state, batch, 0))  # compiles
        trainings.append(training)
    seconds = np.zeros((repeats, len(trainings)))
    for repeat in range(repeats):
        for column, training in enumerate(trainings):
            start = time.perf_counter()
            jax.block_until_ready(training.step(training.state, batch, repeat))
            seconds[repeat, column] = time.perf_counter() - start
    engine_ms, scan_ms = (1e3 * np.median(seconds, axis=0)).tolist()
    return StepTimes(_engine(config, batch), engine_ms, scan_ms)


def activation_bytes(config: RunConfig, batch: Batch) -> dict[str, int]:
    """Bytes per utterance that the recurrent layers keep for their backward pass.

    All that the forward pass hands over (what `jax.vjp`'s function holds), without
    parameters, by the way it is made.
    """
    time_steps = output_frames(batch.features.shape[1])
    found = {}
    for name, options in {
        "prnn_jax": {},
        "prnn_jax, reserve=lean": {"reserve": "lean"},
        "lax.scan": {"implementation": "scan"},
    }.items():
        stack = Recogniser(config.model, config.features, nnx.Rngs(0)).recurrent
        params = [layer.params for layer in stack.layers]
        x = jnp.zeros((len(batch.rows), time_steps, config.model.channels))

        def run(x, params, options=options):
            return prnn_jax.stack(
                config.model.cell,
                x,
                params,
                bidirectional=config.model.direction == "both",
                **options,
            )[0]

        kept = jax.eval_shape(lambda x, p, run=run: jax.vjp(run, x, p)[1], x, params)
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
        weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        found[name] = (total - weights) // len(batch.rows)
    return found


def _engine(config: RunConfig, batch: Batch) -> str:
    return prnn_jax.explain(
        config.model.cell,
        batch=len(batch.rows),
        time=output_frames(batch.features.shape[1]),
        hidden_size=config.model.hidden_size,
        groups=2 if config.model.direction == "both" else 1,
        training=True,
    ).engine
