"""Every number of a run, as frozen dataclasses. `settings.py` reads and writes them."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import text
from .errors import SpeechError

Kind = Literal["ctc", "transducer"]

DIGITS = Path(__file__).parent / "corpus"  # the corpus in the repository


@dataclass(frozen=True)
class DataConfig:
    """Where recordings and texts are; `corpora.py` lists the layouts it can read."""

    train: Path = DIGITS / "train.jsonl"
    dev: Path = DIGITS / "dev.jsonl"
    test: Path = DIGITS / "test.jsonl"
    cache: Path = Path("runs/features")
    """Features are made once and kept here."""
    programs: Path = Path("runs/programs")
    """So are the programs that XLA compiles: the next run begins at once."""
    min_seconds: float = 0.1
    max_seconds: float = 20.0
    """What is shorter or longer is skipped."""

    def __post_init__(self):
        _expect(
            0 <= self.min_seconds < self.max_seconds,
            "data.min_seconds below max_seconds",
            (self.min_seconds, self.max_seconds),
        )


@dataclass(frozen=True)
class FeatureConfig:
    """Log-mel features. The defaults are for telephone bandwidth."""

    sample_rate: int = 8000
    """Recordings of other rates are resampled to this one."""
    window_ms: int = 25
    hop_ms: int = 10
    fft_size: int = 256
    mel_bins: int = 40
    low_hz: float = 60.0
    high_hz: float = 3800.0

    def __post_init__(self):
        _expect(self.sample_rate > 0, "features.sample_rate above 0", self.sample_rate)
        _expect(self.hop > 0, "features.hop_ms of a sample at least", self.hop_ms)
        _expect(
            0 < self.window <= self.fft_size,
            f"features.fft_size that a window of {self.window} samples fits into",
            self.fft_size,
        )
        _expect(
            0 <= self.low_hz < self.high_hz <= self.sample_rate / 2,
            "features.low_hz below high_hz, and that at most half the sample rate",
            (self.low_hz, self.high_hz),
        )
        _expect(self.mel_bins > 0, "features.mel_bins above 0", self.mel_bins)

    @property
    def window(self) -> int:
        """Samples a frame looks at."""
        return self.sample_rate * self.window_ms // 1000

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.sample_rate * self.hop_ms // 1000

    @property
    def hop_seconds(self) -> float:
        """As long as those samples are: at 22050 Hz that is not quite `hop_ms`."""
        return self.hop / self.sample_rate


@dataclass(frozen=True)
class ModelConfig:
    """The recogniser. One that runs forward only can follow a stream."""

    kind: Kind = "ctc"
    """A transducer also knows what it has written, as a language model would."""
    cell: Literal["lstm", "gru", "rnn", "slstm"] = "lstm"
    direction: Literal["forward", "both"] = "forward"
    layers: int = 2
    hidden_size: int = 192
    lookahead: int = 10
    """Output frames of 20 ms that a forward model waits for before it decides."""
    channels: int = 128
    """Of the convolution in front of the recurrent layers."""
    skip_connections: bool = False
    """Each layer adds to what it is given; a hundred of them can be trained."""
    reserve: Literal["fast", "lean"] = "fast"
    """What is kept for the backward pass: "lean" makes the gates again."""
    predictor_size: int = 128
    """Units of the LSTM that reads what a transducer has written."""
    predictor_projection: int = 64
    """What it hands on of these; and the size of what stands for a label in it."""
    predictor_layer_norm: bool = False
    """Layer norm in the gates of that LSTM, which then hands on all of its units."""
    joint_size: int = 128
    """Of the layer in which a transducer joins what it has heard and written."""
    dropout: float = 0.2
    characters: str = " 'abcdefghijklmnopqrstuvwxyz"
    """What can be written; accents that are not here are left out of texts, and texts
    with other characters are skipped."""
    vocabulary: Literal["characters", "bpe", "unigram"] = "characters"
    """What a label is: one of these, or a subword by SentencePiece."""
    vocabulary_size: int = 256
    """How many labels there are, the blank among them, if they are subwords."""
    vocabulary_file: Path | None = None
    """A model of SentencePiece; none: it is made of the training texts."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the network computes with. Parameters and losses are float32 in any case."""
    implementation: Literal["native", "scan"] | None = None
    """The recurrent layers' engine; None takes the best there is."""

    def __post_init__(self):
        for name in (
            *("layers", "hidden_size", "channels"),
            *("predictor_size", "predictor_projection", "joint_size"),
        ):
            value = getattr(self, name)
            _expect(value > 0, f"model.{name} above 0", value)
        _expect(self.lookahead >= 0, "model.lookahead of 0 or more", self.lookahead)
        _expect(
            0 <= self.dropout < 1,
            "model.dropout from 0, below 1",
            self.dropout,
        )
        _expect(
            len(set(self.characters)) == len(self.characters) > 0,
            "model.characters, each once",
            self.characters,
        )
        letters = self.characters.replace(" ", "")
        never = [c for c in letters if text.normalise(c, letters) != c]
        _expect(
            not never,
            "model.characters as texts have them: lower case, no punctuation but ', "
            "letters as Unicode's NFKC has them; these never come",
            "".join(never),
        )
        size = self.vocabulary_size
        _expect(size > 1, "model.vocabulary_size above 1", size)
        _expect(
            self.vocabulary_file is None or self.vocabulary != "characters",
            "model.vocabulary of bpe or unigram with a model.vocabulary_file",
            self.vocabulary,
        )

    @property
    def labels(self) -> int:
        """Of the network, with the blank."""
        if self.vocabulary == "characters":
            return len(self.characters) + 1
        return self.vocabulary_size


@dataclass(frozen=True)
class AugmentConfig:
    """How training batches are changed; 0 leaves out what it counts."""

    bins_shifted: int = 3
    """Up to so many mel bins up or down: a longer or shorter vocal tract."""
    bins_hidden: int = 6
    """A band of up to so many, as in SpecAugment."""
    frames_hidden: int = 10
    """A span of up to so many."""
    speeds: tuple[float, ...] = (1.0,)
    """In each epoch an utterance is as fast as one of these says, e.g. 0.9 1.0 1.1."""

    def __post_init__(self):
        for name in ("bins_shifted", "bins_hidden", "frames_hidden"):
            value = getattr(self, name)
            _expect(value >= 0, f"augment.{name} of 0 or more", value)
        _expect(
            len(set(self.speeds)) == len(self.speeds) > 0
            and all(0.5 <= speed <= 2 for speed in self.speeds),
            "augment.speeds from 0.5 to 2, each once, 1.0 for speech as it is",
            self.speeds,
        )


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Equal configurations give equal models."""

    epochs: int = 14
    batch_size: int = 32
    devices: int = 1
    """That share each batch, of all processes; losses differ by rounding only."""
    accumulate: int = 1
    """Batches whose gradients are averaged for one update."""
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls, to a fiftieth, after the warm-up."""
    warmup: float = 0.1
    """Share of all updates."""
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    average: float = 0.98
    """Decay of an exponential average of the parameters, to test with; 0: none."""
    buckets: int = 3
    """Padded lengths; each is compiled once."""
    save_every: int = 100
    """Steps from checkpoint to checkpoint; there is one after each epoch, too."""
    begin_with: Path | None = None
    """A run whose best weights this one begins with, for other speech or letters."""
    patience: int = 0
    """Stop after so many epochs without a better one; 0: never."""
    seed: int = 0

    def __post_init__(self):
        for name in (
            *("epochs", "batch_size", "devices"),
            *("accumulate", "buckets", "save_every"),
        ):
            value = getattr(self, name)
            _expect(value > 0, f"train.{name} above 0", value)
        _expect(
            self.batch_size % self.devices == 0,
            f"train.batch_size that {self.devices} devices share evenly",
            self.batch_size,
        )
        for name in ("learning_rate", "weight_decay", "patience"):
            value = getattr(self, name)
            _expect(value >= 0, f"train.{name} of 0 or more", value)
        _expect(self.clip_norm > 0, "train.clip_norm above 0", self.clip_norm)
        _expect(0 <= self.seed < 2**32, "train.seed from 0 to 2**32 - 1", self.seed)
        _expect(0 <= self.warmup <= 1, "train.warmup from 0 to 1", self.warmup)
        _expect(
            0 <= self.average < 1,
            "train.average from 0, below 1",
            self.average,
        )


@dataclass(frozen=True)
class DecodeConfig:
    """Beam search. Without a language model, one is made of the training texts.

    That of a transducer has none but its own, unless one is given or asked for.
    """

    beam: int = 32
    symbols: int = 4
    """The most labels that a transducer writes in an output frame."""
    arpa: Path | None = None
    """A word n-gram model that KenLM reads; its words are all that can be written."""
    order: int = 3
    """Of the model that is made of the training texts."""
    lm_weight: float = 0.5
    """Of the model's log-probabilities, which are to the base 10."""
    word_score: float = 0.0
    """Added for each word."""

    def __post_init__(self):
        _expect(self.beam > 0, "decode.beam above 0", self.beam)
        _expect(self.symbols > 0, "decode.symbols above 0", self.symbols)
        for name in ("lm_weight", "word_score"):
            value = getattr(self, name)
            _expect(math.isfinite(value), f"decode.{name} that is finite", value)
        _expect(self.order > 1, "decode.order above 1, as KenLM has it", self.order)


@dataclass(frozen=True)
class RunConfig:
    """Everything that makes a run."""

    data: DataConfig = field(default_factory=DataConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)


def _expect(holds: bool, expected: str, value: object) -> None:
    if not holds:
        raise SpeechError(f"expected {expected}, got {value!r}")
