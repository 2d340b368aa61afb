"""Recordings of any format and rate that soundfile and soxr know, as one channel."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import numpy as np
import soundfile
import soxr

#: What soundfile raises: the last of raw samples, which do not say their rate.
UNREADABLE = OSError, soundfile.SoundFileError, TypeError
#: Whole numbers of 32 bits written as floats are below; the energy of more has no end.
_LOUDEST = 1e10
#: More samples than a recording has: what libsndfile says where a file does not.
_UNKNOWN = 2**48


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
    with opened(file) as sound:
        samples = np.concatenate([np.zeros(0, np.float32), *blocks(sound, 2**16)])
        return resample(samples, sound.samplerate, sample_rate)


class _Forward(soundfile.SoundFile):
    """Read from its start to its end.

    soundfile seeks to where it is after each read, which not every FLAC can, and after
    which an MP3 goes on with other samples.
    """

    #: Whether it has as many samples as it says. A WAV that is written into a pipe says
    #: so before its writer knows.
    says_its_length = True

    def seekable(self) -> bool:
        return False


@contextmanager
def opened(file: Path) -> Iterator[_Forward]:
    """A recording, for `blocks`; ValueError says what ails it."""
    check_file(file)
    failed: list[OSError] = []
    try:
        is_pipe = not file.is_file()
        with _Forward(os.fsencode(file)) as sound:
            if sound.format != "MP3" or is_pipe:
                sound.says_its_length = not (is_pipe and "WAV" in sound.format)
                yield sound
                return
        # Of an MP3 that does not say its length, libsndfile guesses it from the first
        # frame, and reads no further; of what comes through a pipe it does not.
        with _Forward(_piped(file, failed)) as sound:
            yield sound
        if failed:
            raise failed[0]
    except UNREADABLE as error:
        first = failed[0] if failed else error
        said = getattr(first, "error_string", first)  # without the name once more
        raise ValueError(f"cannot be read: {said}") from None


def blocks(sound: _Forward, size: int) -> Iterator[np.ndarray]:
    """All samples, float32, mean of the channels, so many at a time."""
    count, rate = 0, sound.samplerate
    while len(block := sound.read(size, dtype="float32", always_2d=True)):
        check(block)
        count += len(block)
        yield block.mean(1)
    if sound.says_its_length and count < sound.frames < _UNKNOWN:
        raise ValueError(
            f"ends after {count / rate:.2f} s of the {sound.frames / rate:.2f} s that "
            "it should have: it is cut off, or damaged"
        )


def _piped(file: Path, failed: list[OSError]) -> int:
    """A pipe that the file comes out of; `failed` gets why not all of it does."""
    out, into = os.pipe()

    def feed():
        with suppress(BrokenPipeError), os.fdopen(into, "wb") as pipe:
            try:
                with file.open("rb") as source:
                    shutil.copyfileobj(source, pipe, 2**16)
            except BrokenPipeError:  # nobody wants the rest
                return
            except OSError as error:
                failed.append(error)

    Thread(target=feed, daemon=True).start()
    return out


def resample(samples: np.ndarray, rate: float, to: float) -> np.ndarray:
    """The same sound at another rate."""
    if rate == to or not len(samples):
        return samples
    return soxr.resample(samples, rate, to).astype(np.float32)


def write(file: Path, samples: np.ndarray, sample_rate: int) -> None:
    """Writes a recording in the format that its name ends in."""
    soundfile.write(file, samples, sample_rate)
