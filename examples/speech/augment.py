"""Training batches as said by other voices, and partly hidden."""

import jax
import jax.numpy as jnp

from .config import AugmentConfig


def augment(key: jax.Array, x: jax.Array, config: AugmentConfig) -> jax.Array:
    """The same normalised features [batch, time, mel_bins], changed row by row.

    Each row is shifted by some mel bins, roughly what a longer or shorter vocal tract
    does, and loses a band of mel bins and a span of frames, as in SpecAugment (Park et
    al. 2019). 0 is the mean.
    """
    keys = jax.random.split(key, len(x))
    return jax.vmap(lambda key, row: _augment_row(key, row, config))(keys, x)


def _augment_row(key: jax.Array, x: jax.Array, config: AugmentConfig) -> jax.Array:
    keys = jax.random.split(key, 3)
    time, mel_bins = x.shape
    most = config.bins_shifted
    shift = jax.random.randint(keys[0], (), -most, most + 1)
    x = x[:, (jnp.arange(mel_bins) + shift).clip(0, mel_bins - 1)]
    bins = _span(keys[1], mel_bins, config.bins_hidden)
    frames = _span(keys[2], time, config.frames_hidden)
    return jnp.where(bins | frames[:, None], 0, x)


def _span(key: jax.Array, size: int, longest: int) -> jax.Array:
    """True for up to `longest` neighbours among `size`, anywhere."""
    at, length = jax.random.randint(key, (2,), 0, jnp.array([size, longest + 1]))
    position = jnp.arange(size)
    return (position >= at) & (position < at + length)
