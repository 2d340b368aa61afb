"""A small corpus of noise, and the settings of a small run."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from examples.speech import lattice, layouts, text
from examples.speech.config import FeatureConfig, RunConfig
from examples.speech.model import output_frames
from examples.speech.stream import ChunkModel
from examples.speech.transducer import Transducer

FEATURES = FeatureConfig()  # 8 kHz: windows of 200 samples, every 80
ALPHABET = text.Alphabet(RunConfig().model.characters)
SETTINGS = """
[model]
layers = 1
hidden_size = 16
channels = 8
lookahead = 3
[train]
epochs = 2
batch_size = 2
buckets = 1
save_every = 2
"""


def noise(seconds: float, rate: int = 8000) -> np.ndarray:
    rng = np.random.default_rng(round(1000 * seconds))
    return (0.1 * rng.standard_normal(round(seconds * rate))).astype(np.float32)


def recordings(rate: int = 16000) -> list[layouts.Recording]:
    return [
        layouts.Recording(noise(0.6 + 0.1 * n, rate), rate, f"one {word}", f"s{n % 2}")
        for n, word in enumerate(["two", "three", "four", "five", "six"])
    ]


def written_config(folder: Path) -> Path:
    """The settings of a run on a corpus beside them."""
    source = layouts.manifest(folder, "train", recordings())
    data = [f"{name} = {json.dumps(str(source))}" for name in ("train", "dev", "test")]
    data.append(f"cache = {json.dumps(str(folder / 'features'))}")
    file = folder / "config.toml"
    file.write_text("\n".join(["[data]", *data]) + SETTINGS)
    return file


def streamed(model: ChunkModel, features: np.ndarray) -> np.ndarray:
    """What a model of chunks makes of a whole recording's features."""
    state, pieces = model.start, []
    for start in range(
        0, len(features) + 2 * model.lookahead + model.chunk, model.chunk
    ):
        part = features[start : start + model.chunk]
        padded = np.zeros((model.chunk, features.shape[1]), np.float32)
        padded[: len(part)] = part
        state, logits = model.advance(state, padded, len(part))
        pieces.append(logits)
    return np.concatenate(pieces)[model.lookahead :][: output_frames(len(features))]


def losses_of_texts(
    transducer: Transducer, heard: jax.Array, texts: list[np.ndarray]
) -> jax.Array:
    """-log P of each of these labels after one recording, [1, time, joint]."""
    time = heard.shape[1]
    labels = np.stack([np.pad(labels, (0, time - len(labels))) for labels in texts])
    return lattice.loss(
        transducer.joint,
        jnp.broadcast_to(heard, (len(texts), *heard.shape[1:])),
        transducer.predict(labels),
        labels,
        np.full(len(texts), time),
        np.array([len(labels) for labels in texts]),
    )
