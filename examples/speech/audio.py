"""Recordings of any format and rate that soundfile and soxr know, as one channel."""

from pathlib import Path

import numpy as np
import soundfile
import soxr


def read(file: Path, sample_rate: int) -> np.ndarray:
    """All samples of a file, float32, mean of its channels; ValueError says what ails.

    A file is decoded from its start, not sought in: an Opus decoder needs some packets
    to settle after a seek.
    """
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not np.isfinite(samples).all():
        raise ValueError("has samples that are NaN or infinite")
    return resample(samples.mean(1), rate, sample_rate)


def resample(samples: np.ndarray, rate: float, to: float) -> np.ndarray:
    """The same sound at another rate."""
    if rate == to or not len(samples):
        return samples
    return soxr.resample(samples, rate, to).astype(np.float32)


def write(file: Path, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a recording in the format that its name ends in."""
    soundfile.write(file, samples, sample_rate)
