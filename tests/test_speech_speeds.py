"""Training of the speech example on speech that is faster and slower."""

from pathlib import Path

import numpy as np
import pytest
from speech_support import ALPHABET, FEATURES, written_config

from examples.speech import batches, commands, corpora, dataset, layouts, runs, settings
from examples.speech import train as training
from examples.speech.__main__ import main
from examples.speech.config import AugmentConfig, DataConfig, RunConfig, TrainConfig
from examples.speech.errors import SpeechError
from examples.speech.features import log_mel
from examples.speech.progress import read

SPEEDS = 0.9, 1.0, 1.1


def tone(hz: float, seconds: float) -> np.ndarray:
    times = np.arange(round(8000 * seconds)) / 8000
    return (0.3 * np.sin(2 * np.pi * hz * times)).astype(np.float32)


@pytest.fixture
def tones(tmp_path) -> dataset.Dataset:
    """Two tones at three speeds; the second recording is too short."""
    source = layouts.manifest(
        tmp_path,
        "train",
        [
            layouts.Recording(tone(1000, seconds), 8000, "one", "s")
            for seconds in (1.0, 0.05, 1.5)
        ],
    )
    data = DataConfig(cache=tmp_path / "features")
    return dataset.load(source, data, FEATURES, ALPHABET, SPEEDS)


def test_faster_is_shorter_and_higher(tones):
    assert len(tones.skipped) == 1
    for utterance, seconds in zip(tones.utterances, (1.0, 1.5), strict=True):
        np.testing.assert_array_equal(utterance.versions[1], utterance.features)
        for features, speed in zip(utterance.versions, SPEEDS, strict=True):
            expected = log_mel(tone(1000 * speed, seconds / speed), FEATURES)
            # In the middle the same tone, but for its phase; rounded to a sample.
            assert abs(len(features) - len(expected)) <= 1
            middle = len(features) // 2
            loud = expected[middle] > expected[middle].max() - 3
            difference = features[middle] - expected[middle]
            assert np.abs(difference[loud]).max() < 0.1
            assert features[middle].argmax() == expected[middle].argmax()
    assert tones.utterances[0].lengths == (109, 98, 89)


def test_batches_have_room_for_the_slowest_and_take_what_is_drawn(tones):
    shapes = batches.choose_shapes(tones.utterances, buckets=1)
    assert shapes.frames == (176,)  # 165 of the longer one
    batch = batches.pad(tones.utterances, np.array([1, 0]), shapes, 3, np.array([2, 0]))
    longer, shorter = tones.utterances[1].versions[0], tones.utterances[0].versions[2]
    assert batch.frames.tolist() == [len(longer), len(shorter), 0]
    np.testing.assert_array_equal(batch.features[0, : len(longer)], longer)
    np.testing.assert_array_equal(batch.features[1, : len(shorter)], shorter)


def test_what_the_fastest_has_no_frames_for_is_left_out():
    labels = ALPHABET.encode("abcdefghij")
    slow, fast = np.zeros((24, 40)), np.zeros((18, 40))
    clip = corpora.Clip(Path("none.ogg"), "")
    for versions, fits in (((slow,), True), ((slow, fast), False)):
        utterance = dataset.Utterance(clip, "", slow, labels, versions)
        loaded = training.usable(dataset.Dataset([utterance], []))
        assert bool(loaded.utterances) == fits


def test_each_epoch_draws_again(tones):
    many = tones.utterances * 100
    draws = [training.draw_versions(RunConfig(), many, epoch) for epoch in (1, 2, 1)]
    assert all(sorted(set(draw.tolist())) == [0, 1, 2] for draw in draws)
    np.testing.assert_array_equal(draws[0], draws[2])
    assert (draws[0] != draws[1]).any()
    other = RunConfig(train=TrainConfig(seed=1))
    assert (training.draw_versions(other, many, 1) != draws[0]).any()


def test_a_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    config = written_config(tmp_path)
    with config.open("a") as file:
        file.write("[augment]\nspeeds = [0.9, 1.0, 1.1]\n")
    assert settings.load(config).augment.speeds == SPEEDS
    arguments = ["train", "--config", str(config), "--run"]
    main([*arguments, str(tmp_path / "whole")])
    take = commands.TrainingProgress.step

    def step(self, number, epoch, loss):
        take(self, number, epoch, loss)
        if number > 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(commands.TrainingProgress, "step", step)
        with pytest.raises(SystemExit, match="interrupted"):
            main([*arguments, str(tmp_path / "in-two")])
    main([*arguments, str(tmp_path / "in-two")])
    main([*arguments, str(tmp_path / "as-it-is"), "--augment.speeds", "1.0"])
    curves = [
        [r["loss"] for r in read(tmp_path / run / runs.METRICS) if r["kind"] == "step"]
        for run in ("whole", "in-two", "as-it-is")
    ]
    assert len(curves[0]) == 6
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


@pytest.mark.parametrize("speeds", [(), (1.0, 1.0), (0.0, 1.0), (1.0, 3.0)])
def test_speeds_that_cannot_be_meant(speeds):
    with pytest.raises(SpeechError, match=r"augment.speeds from 0.5 to 2, each once"):
        AugmentConfig(speeds=speeds)
