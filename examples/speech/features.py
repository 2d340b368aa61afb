"""Log-mel features in numpy.

Frames are not centred: frame t depends on the samples from t * hop to t * hop + window
only, so a stream gives the same frames as the whole recording.
"""

from functools import lru_cache

import numpy as np

from .config import FeatureConfig

# Added to the energies before the logarithm; far below any audible frame.
_ENERGY_FLOOR = 1e-6


def frame_count(samples: int, config: FeatureConfig) -> int:
    """How many whole windows fit into that many samples."""
    return max(0, (samples - config.window) // config.hop + 1)


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
    return np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)


def log_mel(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """Log-mel energies [frames, mel_bins] of `samples` in [-1, 1]."""
    if frame_count(len(samples), config) == 0:
        return np.zeros((0, config.mel_bins), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, config.window)
    hann = np.hanning(config.window + 1)[:-1].astype(np.float32)
    spectrum = np.fft.rfft(windows[:: config.hop] * hann, config.fft_size)
    energies = np.abs(spectrum).astype(np.float32) ** 2 @ mel_matrix(config)
    return np.log(energies + _ENERGY_FLOOR)


def normalise(features: np.ndarray) -> np.ndarray:
    """Zero mean and unit variance of each mel bin over the utterance.

    To be done before padding: 0 is then the mean, whereas a padding of 0 in raw
    log-mel energies is a loud noise at the end of every short utterance.
    """
    mean, deviation = features.mean(0), features.std(0)
    return ((features - mean) / (deviation + 1e-3)).astype(np.float32)
