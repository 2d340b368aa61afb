"""What the recurrent layers' engine is worth in training: the time of a step."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

import prnn_jax

from . import in_torch
from .batches import Batch
from .config import RunConfig
from .model import Recogniser, output_frames
from .optimizer import make_optimizer
from .train import prepare


class StepTime(NamedTuple):
    """Milliseconds of a training step: median, and a tenth are below and above."""

    what: str
    p10_ms: float
    p50_ms: float
    p90_ms: float
    utterances_per_second: float


def time_steps(config: RunConfig, batch: Batch, repeats: int) -> list[StepTime]:
    """Times whole training steps: forward, loss, backward, optimizer.

    PyTorch's does without augmentation.
    """
    ways = {
        f"prnn_jax ({_engine(config, batch)})": _jax_way(config, batch, None),
        "lax.scan": _jax_way(config, batch, "scan"),
    }
    if torch_way := _torch_way(config, batch):
        ways[in_torch.label()] = torch_way
    times = []
    for what, ms in milliseconds(ways, repeats, warm_up=1).items():
        p10, p50, p90 = np.percentile(ms, [10, 50, 90]).tolist()
        times.append(StepTime(what, p10, p50, p90, 1e3 * len(batch.rows) / p50))
    return times


def milliseconds(
    ways: dict[str, Callable[[], object]], repeats: int, warm_up: int
) -> dict[str, np.ndarray]:
    """Of each call. The ways take turns, so that a busy moment hits all alike."""
    for way in ways.values():
        for _ in range(warm_up):  # and compiles
            way()
    times = np.zeros((repeats, len(ways)))
    for repeat in range(repeats):
        for column, way in enumerate(ways.values()):
            start = time.perf_counter()
            way()
            times[repeat, column] = 1e3 * (time.perf_counter() - start)
    return dict(zip(ways, times.T, strict=True))


def _jax_way(config: RunConfig, batch: Batch, implementation) -> Callable[[], object]:
    model = dataclasses.replace(config.model, implementation=implementation)
    training = prepare(
        dataclasses.replace(config, model=model),
        make_optimizer(config.train, steps=1000),
        Recogniser(model, config.features, nnx.Rngs(config.train.seed)),
    )
    return lambda: jax.block_until_ready(training.step(training.state, batch, 0))


def _torch_way(config: RunConfig, batch: Batch) -> Callable[[], object] | None:
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(config.train.seed))
    network = in_torch.network(config.model, recogniser)
    if network is None:
        return None
    import torch

    network.train()
    features, frames, labels, label_lengths, _ = map(torch.from_numpy, batch)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        config.train.learning_rate,
        weight_decay=config.train.weight_decay,
    )

    def step():
        optimizer.zero_grad()
        log_probabilities = network(features, frames).log_softmax(-1).transpose(0, 1)
        loss = torch.nn.functional.ctc_loss(
            log_probabilities, labels, output_frames(frames), label_lengths
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.train.clip_norm)
        optimizer.step()
        return loss.item()

    return step


def _engine(config: RunConfig, batch: Batch) -> str:
    return prnn_jax.explain(
        config.model.cell,
        batch=len(batch.rows),
        time=output_frames(batch.features.shape[1]),
        hidden_size=config.model.hidden_size,
        dtype=config.model.dtype,
        groups=2 if config.model.direction == "both" else 1,
        training=True,
    ).engine
