"""A small corpus of noise, and the settings of a small run."""

import json
from pathlib import Path

import numpy as np

from examples.speech import (
    layouts,
    text,
)
from examples.speech.config import FeatureConfig, RunConfig

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
