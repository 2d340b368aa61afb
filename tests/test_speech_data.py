"""What the speech example reads: corpora in several layouts, texts, settings."""

import importlib
import json
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from speech_support import ALPHABET, noise, recordings, written_config

from examples.speech import (
    audio,
    corpora,
    dataset,
    layouts,
    settings,
    splits,
    subwords,
    text,
)
from examples.speech import train as training
from examples.speech.__main__ import main
from examples.speech.config import (
    DataConfig,
    DecodeConfig,
    FeatureConfig,
    ModelConfig,
    RunConfig,
)
from examples.speech.errors import SpeechError
from examples.speech.features import mel_matrix
from examples.speech.report import Report


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    return written_config(tmp_path_factory.mktemp("speech"))


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_layouts_give_the_same_utterances(layout, tmp_path):
    source = layouts.LAYOUTS[layout](tmp_path, "dev", recordings())
    data = DataConfig(cache=tmp_path / "cache")
    for _ in range(2):  # made, then kept
        loaded = dataset.load(source, data, FeatureConfig(), ALPHABET)
        assert not loaded.skipped
        texts = sorted(utterance.text for utterance in loaded.utterances)
        assert texts == sorted(recording.text for recording in recordings())
        for utterance in loaded.utterances:
            number = [r.text for r in recordings()].index(utterance.text)
            # MP3 adds some hundredths of a second.
            assert abs(len(utterance.features) - (58 + 10 * number)) <= 8
        assert len({utterance.clip.speaker for utterance in loaded.utterances}) == 2


def test_what_cannot_be_used_is_skipped_with_its_reason(tmp_path):
    def entry(name, samples, said="one", **more):
        if samples is not None:
            soundfile.write(tmp_path / name, samples, 8000, **more)
        return {"audio_filepath": name, "text": said}

    second = noise(1.0)
    entries = [
        entry("good.wav", second),
        entry("stereo8.wav", np.stack([second, second], 1), subtype="PCM_U8"),
        entry("empty.wav", second[:0]),
        entry("one.wav", second[:1]),
        entry(
            "nan.wav", np.where(np.arange(8000) == 7, np.nan, second), subtype="FLOAT"
        ),
        entry("missing.wav", None),
        entry("digits.wav", second, said="one 2"),
        entry("late.wav", second) | {"offset": 0.5, "duration": 1.0},
        entry("early.wav", second) | {"offset": -0.5},
        entry("text.wav", second),
    ]
    (tmp_path / "text.wav").write_text("no sound")
    manifest = tmp_path / "all.jsonl"
    manifest.write_text("\n".join(map(json.dumps, entries)))
    data = DataConfig(cache=tmp_path / "cache")
    loaded = dataset.load(manifest, data, FeatureConfig(), ALPHABET)
    names = [utterance.clip.audio.name for utterance in loaded.utterances]
    assert names == ["good.wav", "stereo8.wav"]
    reasons = {clip.audio.stem: reason for clip, reason in loaded.skipped}
    for name, reason in {
        "empty": "lasts 0.00 s",
        "one": "lasts 0.00 s",
        "nan": "NaN",
        "missing": "there is no such file",
        "digits": "no label for '2'",
        "late": "ends at 1.00 s",
        "early": "begins at -0.50 s",
        "text": "cannot be read",
    }.items():
        assert reason in reasons.pop(name)
    assert not reasons


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("wrong.txt", "one", "expected a manifest"),
        ("empty.jsonl", "", "no recordings with texts"),
        ("cut.jsonl", '{"text": "one"}\n{"text": "tw', "line 1: expected an object"),
        ("list.jsonl", "[1, 2]", "line 1: expected an object.*`jq -c .\\[\\]` makes"),
        ("latin.jsonl", b"\xe9", "expected text in UTF-8"),
        ("no_columns.tsv", "path\tage\n", "no column sentence"),
        ("no_path.tsv", "path\tsentence\n\tone\n", "no recordings with texts"),
        ("null.jsonl", '{"audio_filepath": "a", "text": null}', "no recordings with"),
        ("number.jsonl", '{"audio_filepath": "a", "text": 1}', "the text is 1"),
        ("deep.jsonl", "[" * 100_000, "line 1: expected an object"),
        (
            "long.jsonl",
            '{"audio_filepath": "a", "text": "one", "offset": 1e308}',
            "1e\\+308 are no seconds",
        ),
        (
            "half.jsonl",
            r'{"audio_filepath": "a\ud800", "text": "one"}',
            "surrogates not allowed",
        ),
        (
            "nan.jsonl",
            '{"audio_filepath": "a", "text": "one", "duration": NaN}',
            "nan are no seconds",
        ),
    ],
)
def test_a_list_that_cannot_be_read(name, content, message, tmp_path):
    if content is not None:
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SpeechError, match=message):
        corpora.find_clips(tmp_path / name)


def test_a_manifest_of_another_system(tmp_path):
    """With the mark and the ends of lines of Windows, and one more within a text."""
    line = '{"audio_filepath": "%s.wav", "text": "one\u2028two"}'
    manifest = tmp_path / "all.jsonl"
    lines = "\ufeff" + "\r\n".join(line % name for name in "ab") + "\r\n"
    manifest.write_bytes(lines.encode())
    found = [(c.audio.name, c.text) for c in corpora.find_clips(manifest)]
    assert found == [("a.wav", "one\u2028two"), ("b.wav", "one\u2028two")]
    assert text.normalise(found[0][1]) == "one two"


def test_an_utterance_without_a_text_teaches_ctc_nothing():
    features = np.zeros((90, 40), np.float32)
    clip = corpora.Clip(Path("none.ogg"), "")
    silent = dataset.Utterance(clip, "", features, ALPHABET.encode(""))
    ((_, reason),) = training.usable(dataset.Dataset([silent], [])).skipped
    assert reason == "has no text"


def test_recordings_with_less_than_the_features_are_of(tmp_path, capsys):
    for rate, says in ((4000, "4000 Hz, which is nothing above 2000 Hz"), (8000, "")):
        source = layouts.manifest(tmp_path / str(rate), "dev", recordings(rate))
        config = RunConfig(data=DataConfig(cache=tmp_path / "features", dev=source))
        splits.load_split(config, "dev", Report(), tmp_path)
        assert says in (shown := capsys.readouterr().out)
        assert ("high_hz" in shown) == bool(says)


@pytest.mark.parametrize(
    ("written", "characters", "expected"),
    [
        ("  Déjà-vu,  DON’T! ", "", "deja vu don't"),
        ("‘Hello’, ‘don’t go’, the dogs’ don´t", "", "hello don't go the dogs' don't"),
        ("Мой чай. Ё́лка", "ёй", "мой чай ёлка"),
        ("Мой чай", "", "мои чаи"),
        ("u\u0308ber", "ü", "über"),
        ("über", "u\u0308", "u\u0308ber"),
        ("हिन्दी", "", "हिन्दी"),
        ("がっこう ガ", "", "がっこう ガ"),
        ("한국", "", "한국"),
        ("ไม่", "", "ไม่"),
        ("co\u00adoperate \ufeffa\u200bb", "", "cooperate a b"),
        ("می\u200cخواهم", "\u200c", "می\u200cخواهم"),
        ("می\u200cخواهم", "", "میخواهم"),
    ],
)
def test_texts_are_normalised(written, characters, expected):
    for form in ("NFC", "NFD"):
        of_form = unicodedata.normalize(form, written)
        assert text.normalise(of_form, characters) == expected


@pytest.mark.parametrize("vocabulary", ["characters", "bpe"])
def test_letters_of_an_alphabet_with_accents_stay(vocabulary, tmp_path):
    alphabet = " абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
    soundfile.write(tmp_path / "a.wav", noise(1.0), 8000)
    said = unicodedata.normalize("NFD", "Мой чай") + "\n"
    (tmp_path / "a.txt").write_text(said)
    data = DataConfig(cache=tmp_path / "cache", train=tmp_path)
    options = ModelConfig(
        characters=alphabet, vocabulary=vocabulary, vocabulary_size=12
    )
    labels = text.Alphabet(alphabet)
    if vocabulary == "bpe":
        pytest.importorskip("sentencepiece")
        texts = subwords.texts_of(RunConfig(data=data, model=options))
        labels = subwords.train(texts, options)
        assert labels.characters == "".join(sorted(alphabet))
    ((utterance,), _) = dataset.load(tmp_path, data, FeatureConfig(), labels)
    assert utterance.text == labels.decode(utterance.labels) == "мой чай"


def test_resampling_keeps_a_tone(tmp_path):
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)
    soundfile.write(tmp_path / "tone.flac", tone, 44100)
    samples = audio.read(tmp_path / "tone.flac", 8000)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    assert len(samples) == 8000
    # The filter has less to go by at both ends.
    np.testing.assert_allclose(samples[200:-200], expected[200:-200], atol=1e-3)


# Settings


def test_settings_come_back_from_their_file(config_file, tmp_path):
    config = settings.load(config_file)
    assert (config.model.layers, config.train.save_every) == (1, 2)
    settings.save(config, tmp_path / "again.toml")
    assert settings.load(tmp_path / "again.toml") == config
    dashes = replace(config, decode=DecodeConfig(word_score=-1.5))
    settings.save(dashes, tmp_path / "dashes.toml")
    assert settings.load(tmp_path / "dashes.toml") == dashes
    arguments = settings.with_files(["train", "--a", "1", "--config", str(config_file)])
    assert arguments[0] == "train"
    assert arguments[-2:] == ["--a", "1"]


def test_an_unknown_setting_names_the_nearest(tmp_path, capsys):
    file = tmp_path / "wrong.toml"
    file.write_text("[model]\nhiden_size = 3\n")
    with pytest.raises(SystemExit):
        settings.load(file)
    shown = capsys.readouterr()
    assert "--model.hiden_size" in shown.out + shown.err
    assert "--model.hidden-size" in shown.out + shown.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--features.sample-rate", "16000"], "fft_size that a window of 400"),
        (["--features.high-hz", "5000"], "at most half the sample rate"),
        (["--model.layers", "0"], "model.layers above 0, got 0"),
        (["--model.characters", "aab"], "model.characters, each once"),
        (["--model.characters", "abÄ.é"], "these never come, got 'Ä.'"),
        (["--train.batch-size", "0"], "train.batch_size above 0, got 0"),
        (["--train.learning-rate", "-1"], "train.learning_rate of 0 or more, got -1"),
        (["--train.clip-norm", "0"], "train.clip_norm above 0, got 0"),
        (["--data.min-seconds", "30"], r"min_seconds below max_seconds, got \(30"),
        (["--augment.bins-hidden", "-1"], "augment.bins_hidden of 0 or more, got -1"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_settings_that_cannot_be(options, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main(["train", "--run", str(tmp_path / "run"), *options])
    assert not (tmp_path / "run").exists()


def test_what_the_example_needs_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match=r"pip install 'prnn_jax\[speech\]'"):
        importlib.reload(sys.modules[main.__module__])


def test_batches_that_are_never_enough_for_an_update(config_file, tmp_path):
    arguments = ["--config", str(config_file), "--run", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"accumulate of at most 6, .* got 7"):
        main(["train", *arguments, "--train.accumulate", "7"])


def test_mel_bins_too_narrow_for_the_spectrum():
    with pytest.raises(SpeechError, match="see no line of the spectrum"):
        mel_matrix(FeatureConfig(mel_bins=120))
