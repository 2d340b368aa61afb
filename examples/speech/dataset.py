"""Reading a corpus: a JSONL manifest per split beside the audio files.

A manifest line is {"audio_filepath", "offset", "duration", "text", "speaker", ...} with
times in seconds and the path relative to the manifest. Many clips may share an audio
file; a clip without "offset" is a whole file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from . import text
from .config import FeatureConfig
from .features import log_mel, normalise

DIGITS = Path(__file__).parent / "corpus"  # the corpus in the repository
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Clip:
    """A line of a manifest."""

    audio: Path
    offset: float
    duration: float
    text: str
    speaker: str


@dataclass(frozen=True)
class Utterance:
    """A clip ready for the model: normalised features [frames, mel_bins], labels."""

    clip: Clip
    features: np.ndarray
    labels: np.ndarray


def read_manifest(path: Path) -> list[Clip]:
    """The clips in the order of the file."""
    clips = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        clips.append(
            Clip(
                audio=path.parent / entry["audio_filepath"],
                offset=entry.get("offset", 0.0),
                duration=entry["duration"],
                text=entry["text"],
                speaker=entry.get("speaker", "unknown"),
            )
        )
    return clips


def read_audio(clips: list[Clip], sample_rate: int) -> Iterator[np.ndarray]:
    """Samples of each clip, float32.

    A file is decoded once from its start, not sought in: an Opus decoder needs some
    packets to settle after a seek. Clips of one file should therefore be neighbours.
    """
    path, recording = None, np.zeros(0, np.float32)
    for clip in clips:
        if clip.audio != path:
            path = clip.audio
            recording, rate = soundfile.read(path, dtype="float32")
            if rate != sample_rate:
                raise ValueError(f"{path}: {sample_rate} Hz expected, got {rate}")
        start = round(clip.offset * sample_rate)
        samples = recording[start : start + round(clip.duration * sample_rate)]
        if len(samples) != round(clip.duration * sample_rate):
            raise ValueError(f"{path}: ends before the clip at {clip.offset} s does")
        yield samples


def load(manifest: Path, config: FeatureConfig) -> list[Utterance]:
    """All clips of a manifest, in its order. Everything is held in memory."""
    clips = read_manifest(manifest)
    return [
        Utterance(clip, normalise(log_mel(samples, config)), text.encode(clip.text))
        for clip, samples in zip(
            clips, read_audio(clips, config.sample_rate), strict=True
        )
    ]


def fits(labels: np.ndarray, output_frames: int) -> bool:
    """Whether CTC can align the labels at all.

    Every label takes a frame, and between two equal labels there is a blank. The loss
    of an utterance that does not fit is a huge constant that drowns all the others.
    """
    repeats = int(np.sum(labels[1:] == labels[:-1]))
    return len(labels) > 0 and len(labels) + repeats <= output_frames
