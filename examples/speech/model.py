"""A small Deep Speech 2 (Amodei et al. 2016): convolutions, recurrent layers, CTC."""

import jax
import jax.numpy as jnp
from flax import nnx

from prnn_jax import nnx as prnn

from . import text
from .config import FeatureConfig, ModelConfig

_CELLS = {"gru": prnn.GRU, "lstm": prnn.LSTM, "rnn": prnn.RNN}
FRAME_STRIDE = 2  # of the first convolution


def output_frames(frames):
    """How many frames leave the model for each of the numbers that enter it."""
    return -(-frames // FRAME_STRIDE)


class Recogniser(nnx.Module):
    """Features [batch, time, mel_bins] to logits [batch, output time, labels]."""

    def __init__(self, model: ModelConfig, features: FeatureConfig, rngs: nnx.Rngs):
        channels = model.channels
        strides = (FRAME_STRIDE, 2)
        self.conv_1 = nnx.Conv(1, channels, (11, 11), strides=strides, rngs=rngs)
        self.conv_2 = nnx.Conv(channels, channels, (5, 11), strides=(1, 2), rngs=rngs)
        self.conv_norm_1 = nnx.LayerNorm(channels, rngs=rngs)
        self.conv_norm_2 = nnx.LayerNorm(channels, rngs=rngs)

        size = channels * -(-features.mel_bins // 4)  # two strides of 2 over the bins
        norms, layers = [], []
        for _ in range(model.layers):
            norms.append(nnx.LayerNorm(size, rngs=rngs))
            layers.append(
                _CELLS[model.cell](
                    size,
                    model.hidden_size,
                    bidirectional=True,
                    merge=model.merge,
                    implementation=model.implementation,
                    rngs=rngs,
                )
            )
            size = model.hidden_size * (2 if model.merge == "concat" else 1)
        self.norms, self.layers = nnx.List(norms), nnx.List(layers)
        self.dropout = nnx.Dropout(model.dropout, rngs=rngs)
        self.norm_out = nnx.LayerNorm(size, rngs=rngs)
        self.out = nnx.Linear(size, text.LABELS, rngs=rngs)

    def __call__(self, features: jax.Array, frames: jax.Array) -> jax.Array:
        """Logits; `frames` [batch] of each row are speech, the others padding."""
        x = self.convolve(features, frames)
        x = self.recur(x, output_frames(frames))
        return self.out(self.norm_out(x))

    def convolve(self, features: jax.Array, frames: jax.Array) -> jax.Array:
        """The front-end: [batch, output time, channels * mel bins / 4]."""
        x = jax.nn.relu(self.conv_norm_1(self.conv_1(features[..., None])))
        # What the first convolution spilt past the end must not reach the second.
        x = jnp.where(_valid(x, output_frames(frames)), x, 0)
        x = jax.nn.relu(self.conv_norm_2(self.conv_2(x)))
        return x.reshape(*x.shape[:2], -1)

    def recur(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """The recurrent layers; `lengths` [batch] are in output frames."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = self.dropout(layer(norm(x), seq_lengths=lengths))
        return x


def _valid(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """True up to the end of each row of x [batch, time, ...]; broadcasts to x."""
    inside = jnp.arange(x.shape[1]) < lengths[:, None]
    return inside.reshape(inside.shape + (1,) * (x.ndim - 2))
