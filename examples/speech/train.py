"""Training: the loss, one training step, and the loop over epochs."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from .batches import Batch, Shapes, augment, make_batches
from .config import FeatureConfig, ModelConfig, RunConfig, TrainConfig
from .dataset import Utterance, fits
from .evaluate import Transcriber, error_rate
from .model import Recogniser, output_frames


class TrainState(NamedTuple):
    """All that changes from one training step to the next."""

    params: nnx.State
    dropout: nnx.State  # counters of the random streams
    optimizer: Any


class Training(NamedTuple):
    """A model ready to be trained. `step(state, batch) -> (state, loss)` is jitted."""

    graph: nnx.GraphDef
    state: TrainState
    step: Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]


class Progress(Protocol):
    """Whoever wants to know how the training goes; see report.TrainingProgress."""

    def step(self, epoch: int, loss: float) -> None:
        """After every training step."""

    def epoch(self, **values: float) -> None:
        """After every epoch, with epoch, loss, dev_cer, seconds."""


def usable(utterances: Sequence[Utterance]) -> list[Utterance]:
    """The utterances with labels that CTC can align."""
    return [u for u in utterances if fits(u.labels, output_frames(len(u.features)))]


def ctc_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """CTC loss per character, averaged over the rows that have labels."""
    time_is_past = _past(logits.shape[1], output_frames(batch.frames))
    label_is_past = _past(batch.labels.shape[1], batch.label_lengths)
    losses = optax.ctc_loss(logits, time_is_past, batch.labels, label_is_past)
    used = batch.label_lengths > 0
    per_character = losses / jnp.maximum(batch.label_lengths, 1)
    return jnp.sum(jnp.where(used, per_character, 0)) / jnp.maximum(used.sum(), 1)


def _past(size: int, lengths: jax.Array) -> jax.Array:
    return (jnp.arange(size) >= lengths[:, None]).astype(jnp.float32)


def make_optimizer(config: TrainConfig, steps: int) -> optax.GradientTransformation:
    """AdamW under a linear warm-up and a cosine decay over `steps`."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=int(config.warmup * steps),
        decay_steps=steps,
        end_value=0.02 * config.learning_rate,
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(rate, weight_decay=config.weight_decay),
    )


def prepare(
    model: ModelConfig,
    features: FeatureConfig,
    optimizer: optax.GradientTransformation,
    seed: int,
) -> Training:
    """A fresh model, its optimizer state and its training step."""
    recogniser = Recogniser(model, features, nnx.Rngs(seed))
    graph, params, dropout = nnx.split(recogniser, nnx.Param, ...)

    def loss_of(params, dropout, batch: Batch):
        recogniser = nnx.merge(graph, params, dropout, copy=True)
        loss = ctc_loss(recogniser(batch.features, batch.frames), batch)
        return loss, nnx.state(recogniser, nnx.Not(nnx.Param))

    @jax.jit
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        (loss, dropout), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state.params, state.dropout, batch
        )
        updates, moments = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, dropout, moments), loss

    return Training(graph, TrainState(params, dropout, optimizer.init(params)), step)


def count_steps(
    config: TrainConfig, utterances: Sequence[Utterance], shapes: Shapes
) -> int:
    """Training steps of one epoch."""
    return sum(1 for _ in make_batches(utterances, shapes, config.batch_size))


def train(
    config: RunConfig,
    utterances: Sequence[Utterance],
    dev: Sequence[Utterance],
    shapes: Shapes,
    progress: Progress,
) -> Recogniser:
    """Trains a recogniser; reports to `progress` after every step and every epoch."""
    rng = np.random.default_rng(config.train.seed)
    steps = config.train.epochs * count_steps(config.train, utterances, shapes)
    training = prepare(
        config.model,
        config.features,
        make_optimizer(config.train, steps),
        config.train.seed,
    )
    state, start = training.state, time.perf_counter()
    recogniser = nnx.merge(training.graph, state.params, state.dropout)
    transcriber = Transcriber(recogniser, shapes, config.train.batch_size)

    for epoch in range(1, config.train.epochs + 1):
        losses = []
        for batch in make_batches(utterances, shapes, config.train.batch_size, rng):
            if config.train.augment:
                batch = augment(batch, rng)
            state, loss = training.step(state, batch)
            losses.append(float(loss))
            if not np.isfinite(losses[-1]):
                raise FloatingPointError(f"loss {losses[-1]} in epoch {epoch}")
            progress.step(epoch, losses[-1])
        seconds = time.perf_counter() - start
        nnx.update(recogniser, state.params)
        progress.epoch(
            epoch=epoch,
            loss=float(np.mean(losses)),
            dev_cer=error_rate(dev, transcriber(dev)),
            seconds=seconds,
        )
    return recogniser
