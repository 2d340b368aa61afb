"""Recordings of any format and rate that soundfile and soxr know, as one channel."""

from pathlib import Path

import numpy as np
import soundfile
import soxr

#: What soundfile raises: the last of raw samples, which do not say their rate.
UNREADABLE = OSError, soundfile.SoundFileError, TypeError
#: Whole numbers of 32 bits written as floats are below; the energy of more has no end.
_LOUDEST = 1e10


def check_file(file: Path) -> None:
    """ValueError where libsndfile would only say that something is wrong."""
    try:
        is_folder, is_there = file.is_dir(), file.exists()
    except (OSError, ValueError):  # a name that none can have
        is_folder = is_there = False
    if is_folder:
        raise ValueError("is a folder, and no recording")
    if not is_there:
        raise ValueError("there is no such file")


def check(samples: np.ndarray) -> None:
    """ValueError for numbers that are no sound."""
    if not np.isfinite(samples).all():
        raise ValueError("has samples that are NaN or infinite")
    if (loudest := np.abs(samples).max(initial=0)) > _LOUDEST:
        raise ValueError(f"has samples of {loudest:.3g}, expected -1 to 1")


def read(file: Path, sample_rate: int) -> np.ndarray:
    """All samples of a file, float32, mean of its channels; ValueError says what ails.

    A file is decoded from its start, not sought in: an Opus decoder needs some packets
    to settle after a seek.
    """
    check_file(file)
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except UNREADABLE as error:
        raise ValueError(f"cannot be read: {error}") from None
    check(samples)
    return resample(samples.mean(1), rate, sample_rate)


def resample(samples: np.ndarray, rate: float, to: float) -> np.ndarray:
    """The same sound at another rate."""
    if rate == to or not len(samples):
        return samples
    return soxr.resample(samples, rate, to).astype(np.float32)


def write(file: Path, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a recording in the format that its name ends in."""
    soundfile.write(file, samples, sample_rate)
