"""Memory of a training step: what is kept for the backward pass, and what XLA plans."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import prnn_jax

from . import lattice
from .batches import Batch
from .config import RunConfig
from .model import Recogniser, output_frames
from .train import make_loss
from .transducer import Transducer

WAYS = {
    "prnn_jax": {"reserve": "fast"},
    "prnn_jax, reserve=lean": {"reserve": "lean"},
    "lax.scan": {"reserve": "fast", "implementation": "scan"},
}


def gradient_bytes(config: RunConfig, batch_size: int, frames: int) -> dict[str, int]:
    """Bytes that loss and gradient need for an utterance, by way.

    Temporary memory as the compiler counts it, of the whole network: what it grows by
    from half a batch to all of it, so without what weights and their gradients take.

    Args:
      batch_size: rows, at least 2.
      frames: of features in each.
    """
    found = {}
    for name, options in WAYS.items():
        model = dataclasses.replace(config.model, **options)
        recogniser = Recogniser(model, config.features, nnx.Rngs(0))
        graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)
        gradient = jax.jit(jax.value_and_grad(make_loss(config, graph)))
        half, whole = (
            gradient.lower(
                params, statistics, _batch(config, rows, frames), jax.random.key(0)
            )
            .compile()
            .memory_analysis()
            .temp_size_in_bytes
            for rows in (batch_size // 2, batch_size)
        )
        found[name] = (whole - half) // (batch_size - batch_size // 2)
    return found


def _batch(config: RunConfig, rows: int, frames: int) -> Batch:
    """Zeros, with a label for every eight frames."""
    return Batch(
        np.zeros((rows, frames, config.features.mel_bins), np.float32),
        np.full(rows, frames, np.int32),
        np.ones((rows, max(1, frames // 8)), np.int32),
        np.full(rows, max(1, frames // 8), np.int32),
        np.arange(rows, dtype=np.int32),
    )


def activation_bytes(config: RunConfig, batch: Batch) -> dict[str, int]:
    """Bytes that the recurrent layers keep of an utterance for their backward pass.

    Of the arrays that the compiled forward pass hands over (what `jax.vjp`'s function
    holds): what they grow by from half the batch to all of it, so without parameters.
    """
    size, frames = len(batch.rows), output_frames(batch.features.shape[1])
    stack = Recogniser(config.model, config.features, nnx.Rngs(0)).recurrent
    dtype = jnp.dtype(config.model.dtype)
    params = jax.tree.map(
        lambda array: array.astype(dtype), [layer.params for layer in stack.layers]
    )
    found = {}
    for name, options in WAYS.items():

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
                jnp.zeros((rows, frames, config.model.channels), dtype)
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
    written = jnp.zeros(
        (rows, batch.labels.shape[1] + 1, config.model.joint_size), config.model.dtype
    )
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
