"""All numbers of a run, as frozen dataclasses, and their JSON form."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class FeatureConfig:
    """Log-mel features. The defaults are for telephone bandwidth."""

    sample_rate: int = 8000
    window_ms: int = 25
    hop_ms: int = 10
    fft_size: int = 256
    mel_bins: int = 40
    low_hz: float = 60.0
    high_hz: float = 3800.0

    @property
    def window(self) -> int:
        """Samples a frame looks at."""
        return self.sample_rate * self.window_ms // 1000

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.sample_rate * self.hop_ms // 1000


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the recogniser; `channels` is for both convolutions."""

    cell: Literal["gru", "lstm", "rnn"] = "gru"
    layers: int = 2
    hidden_size: int = 96
    merge: Literal["concat", "sum"] = "concat"
    channels: int = 8
    dropout: float = 0.1
    implementation: Literal["native", "scan"] | None = None


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Equal configurations give equal models."""

    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: float = 0.1  # share of all training steps
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    augment: bool = True
    buckets: int = 3  # one compilation each
    seed: int = 0


@dataclass(frozen=True)
class RunConfig:
    """Everything that makes a run."""

    features: FeatureConfig = field(default_factory=FeatureConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def save(self, path: Path) -> None:
        """Writes JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "RunConfig":
        """What `save` wrote."""
        parts = json.loads(path.read_text())
        return cls(
            features=FeatureConfig(**parts["features"]),
            model=ModelConfig(**parts["model"]),
            train=TrainConfig(**parts["train"]),
        )
