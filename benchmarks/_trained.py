"""A network that others have trained, and the speech that it is tried on."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from prnn_jax import convert

_SPEECH = Path(__file__).parents[1] / "examples/speech/corpus/test"

Run = Callable[[np.ndarray], np.ndarray]


class Network(NamedTuple):
    """A trained network.

    Attributes:
      name: where it is in its package.
      call: what makes ours of it.
      imported: ours.
      x: `[time, 1, input]` or batch-major, as ours takes it.
      runtime: its own.
      run: that on x, giving what ours gives.
      approximates: what its runtime is off by itself, of the largest output; 0 where
        it computes as exactly as it can.
    """

    name: str
    call: str
    imported: convert.Imported
    x: np.ndarray
    runtime: str
    run: Run
    approximates: float = 0.0


@functools.cache
def _samples() -> np.ndarray:
    files = sorted(_SPEECH.glob("*.ogg"))
    return np.concatenate([soundfile.read(file, dtype="float32")[0] for file in files])


def spectra(steps: int, size: int) -> np.ndarray:
    """`[steps, size]` sizes of the lines of spectra of speech, in logarithms from 0."""
    starts = np.arange(steps)[:, None] * 160
    window = np.hanning(2 * size).astype(np.float32)
    frames = _samples()[starts + np.arange(2 * size)] * window
    return np.log1p(10 * np.abs(np.fft.rfft(frames)[:, 1:])).astype(np.float32)
