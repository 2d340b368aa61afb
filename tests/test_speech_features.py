"""The speech example's features: frames, the mel scale, and what a model gets."""

import numpy as np
import pytest
from speech_support import FEATURES

from examples.speech import features
from examples.speech.config import FeatureConfig
from examples.speech.model import Normalise


@pytest.mark.parametrize(
    ("samples", "frames"), [(0, 0), (199, 0), (200, 1), (279, 1), (280, 2), (8000, 98)]
)
def test_frame_count(samples, frames):
    assert features.frame_count(samples, FEATURES) == frames
    assert features.log_mel(np.zeros(samples), FEATURES).shape == (frames, 40)


def test_frames_do_not_look_ahead():
    samples = np.random.default_rng(0).uniform(-1, 1, 2000)
    whole = features.log_mel(samples, FEATURES)
    start = features.log_mel(samples[:1000], FEATURES)
    # Not exact: BLAS may add in another order for another number of frames.
    np.testing.assert_allclose(start, whole[:11], rtol=1e-5, atol=1e-5)


def test_mel_scale():
    # 1127 ln(1 + 700/700) = 781.17; HTK puts 1000 Hz at 1000 mel.
    np.testing.assert_allclose(features.hz_to_mel([0, 700]), [0, 781.17], atol=0.01)
    assert features.hz_to_mel(1000) == pytest.approx(1000, abs=0.1)
    assert features.mel_to_hz(features.hz_to_mel(440)) == pytest.approx(440)


def test_mel_matrix_by_hand():
    # Two bins between 0 and 2100 Hz, of spectral lines at 0, 500, ..., 4000 Hz. In mel:
    # 0 ... 1127 ln 4, so the corners 700 (4^(k/3) - 1) are 0, 411.18, 1063.89, 2100 Hz.
    config = FeatureConfig(window_ms=2, fft_size=16, mel_bins=2, low_hz=0, high_hz=2100)
    expected = np.zeros((9, 2))
    expected[1] = (1063.89 - 500) / 652.71, (500 - 411.18) / 652.71
    expected[2] = (1063.89 - 1000) / 652.71, (1000 - 411.18) / 652.71
    expected[3] = 0, (2100 - 1500) / 1036.11
    expected[4] = 0, (2100 - 2000) / 1036.11
    np.testing.assert_allclose(features.mel_matrix(config), expected, atol=1e-5)


def test_every_mel_bin_sees_a_spectral_line():
    matrix = features.mel_matrix(FEATURES)
    assert matrix.shape == (129, 40)
    assert matrix.min() == 0
    assert (matrix.max(0) > 0).all()


def test_a_tone_is_loudest_in_its_mel_bin():
    tone = np.sin(2 * np.pi * 1000 * np.arange(2000) / FEATURES.sample_rate)
    low, high = features.hz_to_mel([FEATURES.low_hz, FEATURES.high_hz])
    centres = np.linspace(low, high, FEATURES.mel_bins + 2)[1:-1]
    nearest = np.abs(centres - features.hz_to_mel(1000)).argmin()
    assert (features.log_mel(tone, FEATURES).argmax(1) == nearest).all()


def test_a_hop_is_as_long_as_its_samples():
    config = FeatureConfig(sample_rate=22050, fft_size=1024)
    frames = len(features.log_mel(np.zeros(22050 * 60, np.float32), config))
    assert frames * config.hop_seconds == pytest.approx(60, abs=0.02)


def test_normalise():
    raw = np.random.default_rng(0).normal(-10, 3, (2, 500, 40)).astype(np.float32)
    normalise = Normalise(40)
    normalise.measure(list(raw))
    frames = np.asarray(normalise(raw, np.array([500, 500]))).reshape(1000, 40)
    np.testing.assert_allclose(frames.mean(0), 0, atol=1e-5)
    # 0.001 is added to the deviation, so that a constant bin has one.
    np.testing.assert_allclose(frames.std(0), 1, atol=1e-3)
    padded = np.asarray(normalise(raw, np.array([500, 200])))
    np.testing.assert_array_equal(padded[0], frames[:500])
    np.testing.assert_array_equal(padded[1, :200], frames[500:700])
    assert not padded[1, 200:].any()
    normalise.measure([np.ones((3, 40))])
    assert np.isfinite(normalise(np.ones((1, 3, 40)), np.array([3]))).all()
