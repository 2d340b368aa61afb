"""How long a training step takes with the engine of the platform and with lax.scan."""

import dataclasses
import time
from typing import NamedTuple

import jax
import numpy as np

import prnn_jax

from .batches import Batch
from .config import RunConfig
from .model import output_frames
from .train import make_optimizer, prepare


class StepTimes(NamedTuple):
    """Medians over interleaved repetitions, so that a busy moment hits both alike."""

    engine: str  # that implementation=None takes here
    engine_ms: float
    scan_ms: float


def time_steps(config: RunConfig, batch: Batch, repeats: int = 15) -> StepTimes:
    """Times whole training steps: forward, loss, backward, optimizer."""
    trainings = []
    for implementation in (None, "scan"):
        model = dataclasses.replace(config.model, implementation=implementation)
        optimizer = make_optimizer(config.train, steps=1000)
        training = prepare(model, config.features, optimizer, config.train.seed)
        jax.block_until_ready(training.step(training.state, batch))  # compiles
        trainings.append(training)
    seconds = np.zeros((repeats, len(trainings)))
    for repeat in range(repeats):
        for column, training in enumerate(trainings):
            start = time.perf_counter()
            jax.block_until_ready(training.step(training.state, batch))
            seconds[repeat, column] = time.perf_counter() - start
    engine_ms, scan_ms = (1e3 * np.median(seconds, axis=0)).tolist()
    return StepTimes(_engine(config, batch), engine_ms, scan_ms)


def _engine(config: RunConfig, batch: Batch) -> str:
    return prnn_jax.explain(
        config.model.cell,
        batch=len(batch.rows),
        time=output_frames(batch.features.shape[1]),
        hidden_size=config.model.hidden_size,
        groups=2,
        training=True,
    ).engine
