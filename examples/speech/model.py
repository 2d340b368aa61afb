"""A small Deep Speech 2 (Amodei et al. 2016): convolution, recurrent layers, CTC.

Or a transducer: then what is CTC's output layer is the encoder's part of the joint one.

The convolution looks back only, so padding behind an utterance never reaches it, and a
stream can be cut anywhere. What the network is to know of the future comes from layers
that run backwards, or from `Lookahead`, which waits for some frames.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from prnn_jax import nnx as prnn

from .config import FeatureConfig, ModelConfig
from .text import Alphabet, Vocabulary
from .transducer import Transducer

FRAME_STRIDE = 2  # frames of features for one of the output


def output_frames(frames):
    """How many frames leave the model for each of the numbers that enter it."""
    return -(-frames // FRAME_STRIDE)


class Statistic(nnx.Variable):
    """Measured on the corpus, not trained."""


class Normalise(nnx.Module):
    """Zero mean and unit variance of each mel bin over the corpus; 0 in the padding.

    Raw log-mel energies of 0 are a loud sound: padding has to come after this.
    """

    def __init__(self, mel_bins: int):
        self.mean = Statistic(jnp.zeros(mel_bins))
        self.deviation = Statistic(jnp.ones(mel_bins))

    def measure(self, features: Sequence[jax.Array]) -> None:
        """Takes mean and deviation from a corpus."""
        frames = jnp.concatenate([jnp.asarray(f) for f in features])
        self.mean[...], self.deviation[...] = frames.mean(0), frames.std(0) + 1e-3

    def __call__(self, features: jax.Array, frames: jax.Array) -> jax.Array:
        """features [batch, time, mel_bins], of which `frames` [batch] count."""
        normal = (features - self.mean[...]) / self.deviation[...]
        return jnp.where(is_before(features.shape[1], frames)[..., None], normal, 0)


class FrontEnd(nnx.Module):
    """A convolution over time, half as many frames come out."""

    WIDTH = 11
    BEFORE = WIDTH - FRAME_STRIDE  # frames needed of what came earlier

    def __init__(
        self,
        mel_bins: int,
        channels: int,
        rngs: nnx.Rngs,
        *,
        is_deep: bool = False,
        dtype: jax.typing.DTypeLike = jnp.float32,
    ):
        # Of frames that augmentation has hidden nothing would be left but zeros, in all
        # layers; and a layer norm of zeros multiplies gradients by 300 in each.
        bias = nnx.initializers.normal(0.1) if is_deep else nnx.initializers.zeros
        self.conv = nnx.Conv(
            mel_bins,
            channels,
            (self.WIDTH,),
            strides=(FRAME_STRIDE,),
            padding="VALID",
            bias_init=bias,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm = nnx.LayerNorm(channels, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, time / 2, channels] of x [batch, BEFORE + time, mel_bins]."""
        return jax.nn.relu(self.norm(self.conv(x)))


class Lookahead(nnx.Module):
    """Each frame, mixed with some frames to come, feature by feature.

    The row convolution of Wang et al. 2016 (arXiv:1609.03193).
    """

    def __init__(self, frames: int, size: int):
        self.frames = frames
        self.weights = nnx.Param(jnp.zeros((frames + 1, size)).at[0].set(1.0))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, time, size] of x [batch, time + frames, size]."""
        time = x.shape[1] - self.frames
        weights = self.weights[...].astype(x.dtype)
        return sum(weights[n] * x[:, n : n + time] for n in range(self.frames + 1))


class Recogniser(nnx.Module):
    """Log-mel [batch, time, mel_bins] to logits [batch, output time, labels].

    Of a transducer to what it hears, [batch, output time, joint_size]. Both in float32,
    whatever the network computes with.

    vocabulary: what its labels are; without it, one of subwords writes no texts.
    """

    def __init__(
        self,
        model: ModelConfig,
        features: FeatureConfig,
        rngs: nnx.Rngs,
        vocabulary: Vocabulary | None = None,
    ):
        both, dtype = model.direction == "both", jnp.dtype(model.dtype)
        if vocabulary is None and model.vocabulary == "characters":
            vocabulary = Alphabet(model.characters)
        self.vocabulary = vocabulary
        digest = getattr(vocabulary, "digest", None)
        # Characters are in the settings, subwords are not: checkpoints keep this.
        self.subwords = nnx.data(
            None if digest is None else Statistic(jnp.asarray(digest))
        )
        self.normalise = Normalise(features.mel_bins)
        self.front_end = FrontEnd(
            features.mel_bins,
            model.channels,
            rngs,
            is_deep=model.skip_connections,
            dtype=dtype,
        )
        self.recurrent = prnn.Stack(
            model.cell,
            model.channels,
            model.hidden_size,
            model.layers,
            bidirectional=both,
            dropout_rate=model.dropout,
            norm=True,
            skip_connections=model.skip_connections,
            reserve=model.reserve,
            implementation=model.implementation,
            deterministic=True,
            dtype=dtype,
            rngs=rngs,
        )
        self.recurrent.dropout_rngs = nnx.data(None)  # come with each call
        size = model.hidden_size * (2 if both else 1)
        self.lookahead = Lookahead(0 if both else model.lookahead, size)
        self.norm = nnx.LayerNorm(size, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(model.dropout, deterministic=True)
        is_transducer = model.kind == "transducer"
        width = model.joint_size if is_transducer else model.labels
        self.out = nnx.Linear(size, width, dtype=dtype, rngs=rngs)
        self.transducer = Transducer(model, rngs) if is_transducer else nnx.data(None)

    def __call__(self, features: jax.Array, frames: jax.Array) -> jax.Array:
        """The output; `frames` [batch] of each row are speech, the others padding."""
        return self.output(self.normalise(features, frames), frames)

    def output(
        self, x: jax.Array, frames: jax.Array, dropout: nnx.Rngs | None = None
    ) -> jax.Array:
        """Of normalised features; with random numbers for dropout, as in training."""
        testing = dropout is None
        # Before it nothing; behind it what makes the number of frames even.
        x = jnp.pad(x, ((0, 0), (FrontEnd.BEFORE, FRAME_STRIDE - 1), (0, 0)))
        x = self.recurrent(
            self.front_end(x),
            seq_lengths=output_frames(frames),
            deterministic=testing,
            rngs=dropout,
        )
        x = self.lookahead(jnp.pad(x, ((0, 0), (0, self.lookahead.frames), (0, 0))))
        x = self.dropout(self.norm(x), deterministic=testing, rngs=dropout)
        return self.decided(x)

    def decided(self, x: jax.Array) -> jax.Array:
        """The output of normed and mixed frames, [..., size]."""
        return self.out(x).astype(jnp.float32)


def is_before(size: int, lengths: jax.Array) -> jax.Array:
    """[batch, size]: True at the positions that are before the end of the row."""
    return jnp.arange(size) < jnp.asarray(lengths)[:, None]
