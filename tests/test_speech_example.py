"""The speech example: its parts on known values, its corpus, a tiny training."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import soundfile
from flax import nnx
from speech_support import ALPHABET, FEATURES

from examples.speech import (
    audio,
    batches,
    corpora,
    dataset,
    features,
    metrics,
    runs,
    settings,
    text,
)
from examples.speech import train as training
from examples.speech.augment import augment
from examples.speech.checkpoint import opened
from examples.speech.config import (
    DIGITS,
    AugmentConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from examples.speech.decode import Speller
from examples.speech.evaluate import by_speaker, outputs, transcribe
from examples.speech.model import Recogniser, output_frames

CORPUS_BYTES_MAX = 6_000_000
SPLITS = ("train", "dev", "test")
NONE = AugmentConfig(bins_shifted=0, bins_hidden=0, frames_hidden=0)
TINY = RunConfig(
    augment=NONE,
    model=ModelConfig(layers=1, hidden_size=16, channels=8, dropout=0.0),
    train=TrainConfig(
        epochs=8,
        batch_size=8,
        buckets=1,
        warmup=0.0,
        learning_rate=1e-2,
    ),
)


@pytest.fixture(scope="module")
def manifests() -> dict[str, list[dict]]:
    return {
        split: [
            json.loads(line)
            for line in (DIGITS / f"{split}.jsonl").read_text().splitlines()
        ]
        for split in SPLITS
    }


@pytest.fixture(scope="module")
def utterances() -> list[dataset.Utterance]:
    """The dev utterances of one speaker."""
    clips = corpora.find_clips(DIGITS / "dev.jsonl")
    clips = [clip for clip in clips if clip.speaker == clips[0].speaker][:8]
    recording = audio.read(clips[0].audio, FEATURES.sample_rate)
    return [
        dataset.Utterance(
            clip,
            clip.text,
            features.log_mel(_cut(recording, clip), FEATURES),
            ALPHABET.encode(clip.text),
        )
        for clip in clips
    ]


def _cut(recording: np.ndarray, clip: corpora.Clip) -> np.ndarray:
    start = round(clip.offset * FEATURES.sample_rate)
    assert clip.duration is not None
    return recording[start : start + round(clip.duration * FEATURES.sample_rate)]


# Text, decoding, errors


def test_encode():
    assert ALPHABET.encode(" 'az").tolist() == [1, 2, 3, 28]
    assert ALPHABET.decode(ALPHABET.encode("one two")) == "one two"
    with pytest.raises(ValueError, match="A"):
        ALPHABET.encode("A")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ""),
        ("___", ""),
        ("aab", "ab"),
        ("a_a", "aa"),
        ("_aa_ab_", "aab"),
        ("one__  two", "one two"),
        ("thre_e", "three"),
    ],
)
def test_greedy(path, expected):
    labels = [text.BLANK if c == "_" else ALPHABET.encode(c)[0] for c in path]
    logits = np.eye(ALPHABET.labels)[np.array(labels, int)]
    assert Speller(ALPHABET)(logits) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "distance"),
    [
        ("", "", 0),
        ("abc", "", 3),
        ("", "abc", 3),
        ("kitten", "sitting", 3),
        ("intention", "execution", 5),
        ("flaw", "lawn", 2),
        ("one two", "one two", 0),
        ("one two", "onetwo", 1),
    ],
)
def test_edit_distance(reference, hypothesis, distance):
    rate = metrics.character_error_rate([reference, "x"], [hypothesis, "x"])
    assert rate * (len(reference) + 1) == pytest.approx(distance)


def test_character_error_rate_is_per_reference_character():
    # 1 edit in 3 characters and 3 in 7: not the mean of the two rates.
    references, texts = ["one", "one two"], ["on", "one x"]
    assert metrics.character_error_rate(references, texts) == pytest.approx(4 / 10)
    characters, of_words = metrics.error_rates(references, texts)
    assert characters.rate == pytest.approx(4 / 10)
    assert of_words.rate == pytest.approx(2 / 3)
    # Draws of two utterances have 1 edit in 3 characters, 3 in 7, or all of both.
    assert characters.low == pytest.approx(1 / 3)
    assert characters.high == pytest.approx(3 / 7)


def test_fits():
    three = ALPHABET.encode("three")  # 5 labels, and a blank between the two e
    assert dataset.fits(three, 6)
    assert not dataset.fits(three, 5)
    assert not dataset.fits(ALPHABET.encode(""), 5)


# Corpus


def test_voices_and_strings_are_held_out(manifests):
    for key in ("speaker", "text", "audio_filepath"):
        values = {s: {e[key] for e in entries} for s, entries in manifests.items()}
        assert not values["train"] & values["dev"]
        assert not values["train"] & values["test"]
        assert not values["dev"] & values["test"]


def test_corpus_is_small():
    files = [file for file in DIGITS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= CORPUS_BYTES_MAX


def test_manifests_cover_the_audio_files(manifests):
    for entries in manifests.values():
        end = {}
        for entry in entries:
            path = entry["audio_filepath"]
            assert entry["offset"] == pytest.approx(end.get(path, 0.0))
            end[path] = entry["offset"] + entry["duration"]
        for path, seconds in end.items():
            info = soundfile.info(DIGITS / path)
            assert info.samplerate == FEATURES.sample_rate
            assert info.frames == round(seconds * FEATURES.sample_rate)


@pytest.mark.parametrize("split", SPLITS)
def test_clips_decode(split):
    clips = corpora.find_clips(DIGITS / f"{split}.jsonl")
    recording = audio.read(clips[-1].audio, 8000)
    for clip in (clip for clip in clips if clip.audio == clips[-1].audio):
        samples = _cut(recording, clip)
        assert len(samples) == round(clip.duration * 8000)
        assert 0.1 < np.abs(samples).max() <= 1.1  # the codec may overshoot


def test_all_of_the_corpus_is_usable(manifests):
    for entry in manifests["train"]:
        frames = features.frame_count(round(8000 * entry["duration"]), FEATURES)
        assert dataset.fits(ALPHABET.encode(entry["text"]), output_frames(frames))


# Batches


def _utterance(frames: int, mel_bins: int = 3) -> dataset.Utterance:
    clip = corpora.Clip(Path("none.ogg"), "one", "nobody", 0.0, frames / 100)
    ones = np.ones((frames, mel_bins), np.float32)
    return dataset.Utterance(clip, "one", ones, ALPHABET.encode("one"))


def test_shapes_pad_least():
    lengths = [20, 30, 31, 100, 110, 200]
    shapes = batches.choose_shapes([_utterance(n) for n in lengths], buckets=3)
    assert shapes == batches.Shapes(frames=(32, 112, 208), labels=8)


@pytest.mark.parametrize(
    "rng", [None, np.random.default_rng(0)], ids=["sorted", "random"]
)
def test_batches_hold_every_utterance_once(rng):
    utterances = [_utterance(n) for n in (20, 30, 31, 100, 110, 200, 25)]
    shapes = batches.choose_shapes(utterances, buckets=2)
    rows = []
    for planned, frames in batches.plan_batches(utterances, shapes, 2, rng):
        shape = batches.Shapes((frames,), shapes.labels)
        batch = batches.pad(utterances, planned, shape, 2)
        assert batch.features.shape[1] in shapes.frames
        assert (batch.features.sum((1, 2)) == 3 * batch.frames).all()
        assert ((batch.rows < 0) == (batch.label_lengths == 0)).all()
        rows += [row for row in batch.rows if row >= 0]
    assert sorted(rows) == list(range(7))


def test_batches_refuse_what_is_too_long():
    with pytest.raises(ValueError, match="50 frames is longer"):
        next(batches.make_batches([_utterance(50)], batches.Shapes((32,), 8), 1))


def test_augment_hides_a_part_and_repeats():
    x = np.random.default_rng(0).standard_normal((4, 60, 40)).astype(np.float32)
    x[1, 50:] = 0  # padding
    before = x.copy()
    changed = np.asarray(augment(jax.random.key(0), x, AugmentConfig()))
    np.testing.assert_array_equal(x, before)
    assert (changed != x).any(axis=(1, 2)).all()
    assert not changed[1, 50:].any()
    again = augment(jax.random.key(0), x, AugmentConfig())
    np.testing.assert_array_equal(again, changed)
    np.testing.assert_array_equal(augment(jax.random.key(0), x, NONE), x)


# Training


def test_rows_that_only_fill_a_batch_have_no_effect(utterances):
    shapes = batches.choose_shapes(utterances, buckets=1)
    full = next(batches.make_batches(utterances, shapes, 8))
    filled = next(batches.make_batches(utterances, shapes, 12))
    recogniser = Recogniser(TINY.model, FEATURES, nnx.Rngs(0))
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)

    @jax.jit
    @jax.value_and_grad
    def gradients(params, batch):
        model = nnx.merge(graph, params, statistics)
        return training.ctc_loss(model(batch.features, batch.frames), batch)

    loss, grads = gradients(params, full)
    filled_loss, filled_grads = gradients(params, filled)
    # Sums over a batch of another size round differently; hence no exact equality.
    np.testing.assert_allclose(filled_loss, loss, rtol=1e-5)
    for expected, actual in zip(
        jax.tree.leaves(grads), jax.tree.leaves(filled_grads), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


class _Losses(list):
    """Keeps what train() tells."""

    def begin(self, step, steps):
        assert (step, steps) == (0, 8)

    def step(self, step, epoch, loss):
        self.append(loss)

    def epoch(self, **values):
        self.dev_cer = values["dev_cer"]


def test_training_lowers_the_loss_and_repeats(utterances, tmp_path):
    shapes = batches.choose_shapes(utterances, buckets=1)
    losses, again = _Losses(), _Losses()
    for run, found in ((tmp_path / "a", losses), (tmp_path / "b", again)):
        with opened(run) as checkpoints:
            model = training.train(
                TINY, utterances, utterances, shapes, checkpoints, found
            )
    assert len(losses) == 8
    assert losses[-1] < 0.7 * losses[0]
    assert 0 < losses.dev_cer <= 1.5
    assert again == losses

    settings.save(TINY, tmp_path / "a" / runs.CONFIG)
    loaded_config, loaded = runs.load(tmp_path / "a")
    assert loaded_config == TINY
    before = outputs(model, utterances, shapes, 8)
    after = outputs(loaded, utterances, shapes, 8)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)

    texts = transcribe(TINY, model, utterances, shapes)
    speaker = utterances[0].clip.speaker
    assert by_speaker(utterances, texts)[speaker][0] == len(utterances)


def test_patience_ends_a_training_that_gets_no_better(utterances, tmp_path):
    shapes = batches.choose_shapes(utterances, buckets=1)
    options = replace(TINY.train, learning_rate=0.0, patience=2)
    losses = _Losses()
    with opened(tmp_path) as checkpoints:
        training.train(
            replace(TINY, train=options),
            utterances,
            utterances,
            shapes,
            checkpoints,
            losses,
        )
        assert checkpoints.best == 1
    assert len(losses) == 3
