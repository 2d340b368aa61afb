"""Training: the loss, one step, and the loop over epochs, which goes on where it ended.

All that is random follows from the seed and the number of the epoch or step. So the
parameters, the optimizer's state and the number of the step are all that a checkpoint
has to hold, and a training that was killed gives the same losses, bit for bit, as one
that was not.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from . import lattice
from .augment import augment
from .batches import Batch, Shapes, pad, plan_batches
from .checkpoint import Checkpoints
from .config import Kind, RunConfig
from .dataset import Dataset, Skipped, Utterance, fits
from .devices import Devices
from .errors import SpeechError
from .evaluate import transcribe
from .metrics import character_error_rate
from .model import Recogniser, is_before, output_frames
from .optimizer import make_optimizer
from .programs import Ahead
from .subwords import expect_vocabulary
from .text import Vocabulary
from .transducer import Transducer


class TrainState(NamedTuple):
    """All that changes from one training step to the next, and what the model needs."""

    params: Any
    average: Any  # of params, over the last steps; this is tested
    statistics: Any
    optimizer: Any


class Training(NamedTuple):
    """A model ready to be trained. `step` is jitted."""

    graph: nnx.GraphDef
    state: TrainState
    step: Callable[[TrainState, Batch, int], tuple[TrainState, jax.Array]]

    def recogniser(self, state: TrainState) -> Recogniser:
        """The model to test."""
        return nnx.merge(self.graph, state.average, state.statistics)


class Progress(Protocol):
    """Whoever wants to know how the training goes; see progress.TrainingProgress."""

    def begin(self, step: int, steps: int) -> None:
        """Before this process' first, of `steps` in all; `step` are done already."""

    def step(self, step: int, epoch: int, loss: float) -> None:
        """After every training step."""

    def epoch(self, **values: float) -> None:
        """After every epoch, with epoch, step, dev_cer, seconds."""


def ctc_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """CTC loss per label, averaged over the rows that have labels."""
    losses = optax.ctc_loss(
        logits,
        ~is_before(logits.shape[1], output_frames(batch.frames)),
        batch.labels,
        ~is_before(batch.labels.shape[1], batch.label_lengths),
    )
    return _per_label(losses, batch, batch.label_lengths > 0)


def transducer_loss(
    transducer: Transducer,
    heard: jax.Array,
    batch: Batch,
    dropout: nnx.Rngs | None = None,
) -> jax.Array:
    """The transducer's loss per label, averaged over the rows with frames.

    Without labels, such a row is one that is to be silent.
    """
    losses = lattice.loss(
        transducer.joint,
        heard,
        transducer.predict(batch.labels, dropout),
        batch.labels,
        output_frames(batch.frames),
        batch.label_lengths,
    )
    return _per_label(losses, batch, batch.frames > 0)


def _per_label(losses: jax.Array, batch: Batch, used: jax.Array) -> jax.Array:
    of_each = losses / jnp.maximum(batch.label_lengths, 1)
    return jnp.sum(jnp.where(used, of_each, 0)) / jnp.maximum(used.sum(), 1)


def make_loss(config: RunConfig, graph: nnx.GraphDef) -> Callable[..., jax.Array]:
    """The loss of a batch, augmented: `(params, statistics, batch, key) -> loss`."""

    def loss_of(params, statistics, batch: Batch, key):
        recogniser = nnx.merge(graph, params, statistics)
        hide, drop = jax.random.split(key)
        x = recogniser.normalise(batch.features, batch.frames)
        x = augment(hide, x, config.augment)
        dropout = nnx.Rngs(dropout=drop)
        output = recogniser.output(x, batch.frames, dropout)
        if recogniser.transducer is not None:
            return transducer_loss(recogniser.transducer, output, batch, dropout)
        return ctc_loss(output, batch)

    return loss_of


def prepare(
    config: RunConfig,
    optimizer: optax.GradientTransformation,
    recogniser: Recogniser,
    results: jax.sharding.Sharding | None = None,
) -> Training:
    """The recogniser's training step, and its state before the first.

    results: on which devices a step's are to be.
    """
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)
    root = jax.random.key(config.train.seed)
    loss_of = make_loss(config, graph)

    @partial(jax.jit, out_shardings=results)
    def step(state: TrainState, batch: Batch, number) -> tuple[TrainState, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(
            state.params, state.statistics, batch, jax.random.fold_in(root, number)
        )
        updates, moments = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        average = optax.incremental_update(
            params, state.average, 1 - config.train.average
        )
        # Gradients may be NaN where the loss is not: then so is this.
        loss = loss + 0 * optax.tree.norm(gradients)
        return TrainState(params, average, state.statistics, moments), loss

    return Training(
        graph, TrainState(params, params, statistics, optimizer.init(params)), step
    )


def train(
    config: RunConfig,
    utterances: Sequence[Utterance],
    dev: Sequence[Utterance],
    shapes: Shapes,
    checkpoints: Checkpoints,
    progress: Progress,
    vocabulary: Vocabulary | None = None,
    begin: Callable[[Recogniser], object] = lambda recogniser: None,
) -> Recogniser:
    """Trains a recogniser, from the last checkpoint on; returns the best one.

    vocabulary: what the labels are; the characters of the settings, if not given.
    begin: gives one of which there is no checkpoint the weights to begin with.
    """
    options, devices = config.train, Devices(config.train.devices)
    recogniser = Recogniser(
        config.model, config.features, nnx.Rngs(options.seed), vocabulary
    )
    some = utterances[:: max(1, len(utterances) // 2000)]  # of all speakers
    recogniser.normalise.measure([u.features for u in some])
    if not checkpoints.last:
        begin(recogniser)
    plan = _plan(config, utterances, shapes, epoch=1)
    steps = len(plan)
    if options.accumulate > options.epochs * steps:
        raise SpeechError(
            f"expected train.accumulate of at most {options.epochs * steps}, which are "
            f"all batches: else nothing is ever learnt; got {options.accumulate}"
        )
    optimizer = make_optimizer(options, options.epochs * steps)
    training = prepare(config, optimizer, recogniser, devices.whole)
    state, done = devices.copy(training.state), checkpoints.last or 0
    if done:
        state = checkpoints.restore(done, state)
        expect_vocabulary(training.recogniser(devices.local(state)))
    progress.begin(done, options.epochs * steps)
    left = plan if done < options.epochs * steps else []
    compiled = Ahead(
        training.step,
        {
            frames: (state, devices.share(batch), np.int32(0))
            for frames, batch in _empty(config, utterances, shapes, left).items()
        },
    )

    for epoch in range(done // steps + 1, options.epochs + 1):
        best = checkpoints.best or done
        if options.patience and done - best >= options.patience * steps:
            break
        start = time.perf_counter()
        plan = _plan(config, utterances, shapes, epoch)
        versions = draw_versions(config, utterances, epoch)
        for rows, frames in plan[done % steps :]:
            shape = Shapes((frames,), shapes.labels)
            batch = pad(utterances, rows, shape, options.batch_size, versions)
            step = compiled[frames]
            state, loss = step(state, devices.share(batch), np.int32(done))
            done += 1
            if not np.isfinite(loss):
                raise _not_finite(done, [utterances[row] for row in rows], checkpoints)
            progress.step(done, epoch, float(loss))
            if done % options.save_every == 0 and done % steps:
                checkpoints.save(done, state)
        recogniser = training.recogniser(devices.local(state))
        texts = transcribe(config, recogniser, dev, shapes)
        dev_cer = character_error_rate([u.text for u in dev], texts)
        seconds = time.perf_counter() - start
        progress.epoch(epoch=epoch, step=done, dev_cer=dev_cer, seconds=seconds)
        checkpoints.save(done, state, dev_cer)
    best_state = checkpoints.restore(checkpoints.best, state)
    return training.recogniser(devices.local(best_state))


def usable(loaded: Dataset, kind: Kind = "ctc") -> Dataset:
    """What there is with labels that the loss can align; the others are skipped, too.

    A transducer can write all of them in one frame.
    """
    skipped, fit = list(loaded.skipped), []
    for utterance in loaded.utterances:
        frames, labels = output_frames(min(utterance.lengths)), utterance.labels
        if frames > 0 if kind == "transducer" else fits(labels, frames):
            fit.append(utterance)
        elif not utterance.text:
            skipped.append(Skipped(utterance.clip, "has no text"))
        else:
            reason = f"{frames} output frames are too few for {len(labels)} labels"
            skipped.append(Skipped(utterance.clip, reason))
    return Dataset(fit, skipped)


def draw_versions(
    config: RunConfig, utterances: Sequence[Utterance], epoch: int
) -> np.ndarray | None:
    """Which version of each utterance an epoch takes, where there are some."""
    if not utterances[0].versions:
        return None
    rng = np.random.default_rng((config.train.seed, epoch, 1))
    return rng.integers(len(utterances[0].versions), size=len(utterances))


def _empty(config: RunConfig, utterances, shapes: Shapes, plan) -> dict[int, Batch]:
    """A batch of nothing for each number of frames in a plan."""
    nobody = np.zeros(0, np.int32)
    return {
        n: pad(utterances, nobody, Shapes((n,), shapes.labels), config.train.batch_size)
        for n in dict.fromkeys(n for _, n in plan)
    }


def _plan(config: RunConfig, utterances, shapes: Shapes, epoch: int):
    rng = np.random.default_rng((config.train.seed, epoch))
    return plan_batches(utterances, shapes, config.train.batch_size, rng)


def _not_finite(
    step: int, utterances: Sequence[Utterance], checkpoints: Checkpoints
) -> SpeechError:
    names = ", ".join(str(u.clip) for u in utterances[:3])
    kept = checkpoints.last
    return SpeechError(
        f"loss or gradient is not finite at step {step}, with {names}, ...: look at "
        "these, or begin another run with a lower train.learning-rate; "
        + (f"the checkpoint of step {kept} is kept" if kept else "nothing is saved yet")
    )
