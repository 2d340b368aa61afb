"""What the recurrent layers' engine is worth in training: time and memory of a step."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import prnn_jax

from . import in_torch, lattice
from .batches import Batch
from .config import RunConfig
from .model import Recogniser, output_frames
from .optimizer import make_optimizer
from .train import prepare
from .transducer import Transducer


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
        ways["PyTorch"] = torch_way
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


def activation_bytes(config: RunConfig, batch: Batch) -> dict[str, int]:
    """Bytes that the recurrent layers keep of an utterance for their backward pass.

    Of the arrays that the compiled forward pass hands over (what `jax.vjp`'s function
    holds): what they grow by from half the batch to all of it, so without parameters.
    """
    size, frames = len(batch.rows), output_frames(batch.features.shape[1])
    stack = Recogniser(config.model, config.features, nnx.Rngs(0)).recurrent
    params = [layer.params for layer in stack.layers]
    found = {}
    for name, options in {
        "prnn_jax": {},
        "prnn_jax, reserve=lean": {"reserve": "lean"},
        "lax.scan": {"implementation": "scan"},
    }.items():

        @jax.jit
        def kept(x, params, options=options):
            def run(x, params):
                both = config.model.direction == "both"
                return prnn_jax.stack(
                    config.model.cell, x, params, bidirectional=both, **options
                )[0]

            return jax.vjp(run, x, params)[1]

        half, whole = (
            sum(leaf.nbytes for leaf in jax.tree.leaves(kept(x, params)))
            for x in (
                jnp.zeros((rows, frames, config.model.channels))
                for rows in (size - size // 2, size)
            )
        )
        found[name] = (whole - half) // max(1, size // 2)
    return found


def loss_bytes(config: RunConfig, batch: Batch) -> dict[int, int]:
    """Bytes that a transducer's loss needs, with its gradient, beside what it is of.

    By how many frames' logits are there at once: some, and all. What the compiler says.
    """
    rows, frames = batch.features.shape[:2]
    frames = output_frames(frames)
    transducer = Transducer(config.model, nnx.Rngs(0))
    graph, weights = nnx.split(transducer)
    heard = jnp.zeros((rows, frames, config.model.joint_size))
    written = jnp.zeros((rows, batch.labels.shape[1] + 1, config.model.joint_size))
    found = {}
    for at_once in (lattice.FRAMES, frames):

        def loss(weights, heard, written, at_once=at_once):
            losses = lattice.loss(
                nnx.merge(graph, weights).joint,
                heard,
                written,
                batch.labels,
                output_frames(batch.frames),
                batch.label_lengths,
                at_once,
            )
            return losses.sum()

        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
        compiled = step.lower(weights, heard, written).compile()
        found[at_once] = compiled.memory_analysis().temp_size_in_bytes
    return found


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
        groups=2 if config.model.direction == "both" else 1,
        training=True,
    ).engine
