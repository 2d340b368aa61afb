"""Log-mel features in numpy.

Frames are not centred: frame t depends on the samples from t * hop to t * hop + window
only, so a stream gives the same frames as the whole recording.
"""

from functools import lru_cache

import numpy as np

from .config import FeatureConfig
from .errors import SpeechError

# Added to the energies before the logarithm; far below any audible frame.
ENERGY_FLOOR = 1e-6


def frame_count(samples, config: FeatureConfig):
    """How many whole windows fit into that many samples, or each of these numbers."""
    frames = (samples - config.window) // config.hop + 1
    return max(0, frames) if isinstance(samples, int) else frames


def hz_to_mel(hz):
    """HTK's mel scale."""
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)


def mel_to_hz(mel):
    """The inverse of `hz_to_mel`."""
    return 700.0 * np.expm1(np.asarray(mel) / 1127.0)


@lru_cache(maxsize=4)
def mel_matrix(config: FeatureConfig) -> np.ndarray:
    """Triangles of height 1, evenly spaced in mel: [fft_size // 2 + 1, mel_bins]."""
    low, high = hz_to_mel(config.low_hz), hz_to_mel(config.high_hz)
    corners = mel_to_hz(np.linspace(low, high, config.mel_bins + 2))
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    hz = np.fft.rfftfreq(config.fft_size, 1 / config.sample_rate)[:, None]
    rising, falling = (hz - left) / (centre - left), (right - hz) / (right - centre)
    matrix = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    if deaf := np.sum(matrix.max(0) == 0):
        raise SpeechError(
            f"{deaf} of {config.mel_bins} mel bins see no line of the spectrum: "
            "take a larger features.fft_size or fewer features.mel_bins"
        )
    return matrix


def hann(config: FeatureConfig) -> np.ndarray:
    """The window, periodic."""
    return np.hanning(config.window + 1)[:-1].astype(np.float32)


def log_mel(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """Log-mel energies [frames, mel_bins] of `samples` in [-1, 1]."""
    if frame_count(len(samples), config) == 0:
        return np.zeros((0, config.mel_bins), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, config.window)
    spectrum = np.fft.rfft(windows[:: config.hop] * hann(config), config.fft_size)
    energies = np.abs(spectrum).astype(np.float32) ** 2 @ mel_matrix(config)
    return np.log(energies + ENERGY_FLOOR)
