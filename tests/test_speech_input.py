"""What people give the speech example that is not quite what it expects."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from speech_support import ALPHABET, noise, recordings

from examples.speech import (
    audio,
    checkpoint,
    corpora,
    dataset,
    layouts,
    ngram,
    runs,
    settings,
    splits,
    synth,
    ways,
)
from examples.speech import (
    report as reports,
)
from examples.speech.config import (
    DataConfig,
    DecodeConfig,
    FeatureConfig,
    RunConfig,
    TrainConfig,
)
from examples.speech.errors import SpeechError
from examples.speech.language_model import LanguageModel
from examples.speech.metrics import error_rates

SECOND = noise(1.0)


def test_a_folder_pairs_each_recording_with_its_own_text(tmp_path):
    for name, text in {
        "rec.wav": "one",
        "rec.1.wav": "two two",
        "br[1].wav": "three",
        "old.aif": "four",
        "page.oga": "five",
        "silent.wav": None,
        "raw.raw": "six",
    }.items():
        file = tmp_path / name
        formats = {"aif": "AIFF", "oga": "OGG"}
        if name.endswith("raw"):
            file.write_bytes(bytes(100))
        else:
            soundfile.write(file, SECOND, 8000, format=formats.get(name[-3:]))
        if text:
            file.with_suffix(".txt").write_text(text)
    found = {clip.audio.name: clip.text for clip in corpora.find_clips(tmp_path)}
    assert found == {
        "br[1].wav": "three",
        "old.aif": "four",
        "page.oga": "five",
        "raw.raw": "six",
        "rec.1.wav": "two two",
        "rec.wav": "one",
        "silent.wav": None,
    }
    data = DataConfig(cache=tmp_path / "cache")
    loaded = dataset.load(tmp_path, data, FeatureConfig(), ALPHABET)
    (silent, no_text), (raw, unread) = loaded.skipped
    assert (silent.audio.name, no_text) == ("silent.wav", "has no text")
    assert raw.audio.name == "raw.raw"
    assert unread.startswith("cannot be read: ")


def test_a_folder_behind_a_link_and_what_is_no_recording(tmp_path):
    source, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for folder in (source, elsewhere):
        folder.mkdir()
    (elsewhere / "b.wav").touch()
    (elsewhere / "b.txt").write_text("two")
    (elsewhere / "round").symlink_to(source)
    (source / "link").symlink_to(elsewhere)
    for name, content in {"a.wav": "", "a.txt": "one", "a.json": "{}"}.items():
        (source / name).write_text(content)
        (source / f"._{name}").write_bytes(b"\xe9")  # of macOS
    hidden = source / ".ipynb_checkpoints"
    hidden.mkdir()
    (hidden / "a-checkpoint.wav").touch()
    for name, content in {"c.m4a": "", "c.txt": "three", "README.txt": "four"}.items():
        (source / name).write_text(content)
    found = [(c.audio.name, c.text) for c in corpora.find_clips(source)]
    assert found == [("a.wav", "one"), ("c.m4a", "three"), ("b.wav", "two")]
    (elsewhere / "2-1.trans.txt").write_text("b TWO\nd FOUR\n")
    found = [(c.audio.name, c.text) for c in corpora.find_clips(source)]
    assert found == [("b.wav", "TWO"), ("d.flac", "FOUR"), ("a.wav", None)]
    (elsewhere / "b.flac").touch()  # of one name, the first is listed
    found = [(c.audio.name, c.text) for c in corpora.find_clips(source)]
    assert found[0] == ("b.flac", "TWO")
    assert ("b.wav", None) in found


def test_a_name_that_is_not_of_utf_8(tmp_path, capsys):
    file = tmp_path / os.fsdecode(b"caf\xe9.wav")
    soundfile.write(os.fsencode(file), SECOND, 8000)
    file.with_suffix(".txt").write_text("one")
    data = DataConfig(cache=tmp_path / "cache", test=tmp_path)
    config = RunConfig(data=data)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    ((utterance,), _) = splits.load_split(config, "test", reports.Report(), tmp_path)
    assert utterance.text == "one"
    file.with_suffix(".txt").write_text("1")
    with pytest.raises(SpeechError, match="nothing is left"):
        splits.load_split(config, "test", reports.Report(), tmp_path)
    assert r"caf\udce9.wav: no label for '1'" in capsys.readouterr().out
    assert b"caf\xe9.wav\tno label" in (tmp_path / "skipped-test.txt").read_bytes()
    settings_of_it = replace(config, data=replace(data, test=file))
    with pytest.raises(SpeechError, match="expected settings in UTF-8, got test = "):
        settings.save(settings_of_it, tmp_path / "config.toml")


@pytest.mark.parametrize("kind", ["common voice", "librispeech"])
def test_a_sentence_with_another_end_of_line_in_it(kind, tmp_path):
    said = "one\u2028two\x85three"
    if kind == "common voice":
        source = tmp_path / "train.tsv"
        text = f"path\tsentence\na.mp3\t{said}\n\tlost\nb\tfour\n"
        wanted = [("a.mp3", said), ("clips", None), ("b.mp3", "four")]
    else:
        source = tmp_path / "1-2.trans.txt"
        text = f"1-2-0 {said}\n\r\n1-2-1 four\r\n"
        wanted = [("1-2-0.flac", said), ("1-2-1.flac", "four")]
    source.write_bytes(text.encode())
    clips = corpora.find_clips(source if source.suffix == ".tsv" else tmp_path)
    assert [(clip.audio.name, clip.text) for clip in clips] == wanted


def test_settings_without_a_bound(tmp_path):
    config = RunConfig(
        data=DataConfig(max_seconds=np.inf), train=TrainConfig(clip_norm=np.inf)
    )
    settings.save(config, tmp_path / "config.toml")
    assert settings.load(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(seed=-1), "train.seed from 0"),
        (lambda: DecodeConfig(lm_weight=np.nan), "decode.lm_weight that is finite"),
        (lambda: DecodeConfig(word_score=np.inf), "decode.word_score that is finite"),
    ],
)
def test_numbers_that_mean_nothing(make, message):
    with pytest.raises(SpeechError, match=message):
        make()


def test_settings_that_are_no_toml(tmp_path):
    (tmp_path / "run.yaml").write_text("model:\n  layers: 2\n")
    with pytest.raises(SpeechError, match=r"run.yaml: expected settings in TOML; "):
        settings.arguments(tmp_path / "run.yaml")


def test_a_speaker_with_the_signs_of_markup(capsys):
    rate, _ = error_rates(["one"], ["one"])
    reports.Report().speakers({"[/]": (1, rate), "[bold]": (2, rate)})
    shown = capsys.readouterr().out
    assert "[/]" in shown
    assert "[bold]" in shown


def test_each_split_has_a_list_of_its_own(tmp_path):
    source = layouts.manifest(tmp_path / "same", "train", recordings())
    entries = source.read_text()
    source.write_text(entries + '{"audio_filepath": "no.wav", "text": "one"}\n')
    data = DataConfig(source, source, source, cache=tmp_path / "cache")
    config, report = RunConfig(data=data), reports.Report()
    splits.load_split(config, "train", report, tmp_path)
    (only_train,) = tmp_path.glob("skipped-*.txt")
    good = layouts.manifest(tmp_path / "good", "train", recordings())
    splits.load_split(config, "test", report, tmp_path, good)
    assert only_train.name == "skipped-train.txt"
    assert "no.wav\tthere is no such file" in only_train.read_text()


def test_texts_that_are_all_empty(tmp_path):
    soundfile.write(tmp_path / "a.wav", SECOND, 8000)
    (tmp_path / "a.txt").write_text("...")
    config = RunConfig(data=DataConfig(dev=tmp_path, cache=tmp_path / "cache"))
    with pytest.raises(SpeechError, match="all texts are empty"):
        splits.load_split(config, "dev", reports.Report(), tmp_path)


def test_a_manifest_may_have_a_loud_suffix(tmp_path):
    source = layouts.manifest(tmp_path, "train", recordings())
    loud = source.rename(source.with_suffix(".JSONL"))
    assert [c.text for c in corpora.find_clips(loud)] == [r.text for r in recordings()]


def test_a_corpus_is_not_spoken_without_espeak(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpeechError, match="synth needs the program espeak-ng"):
        synth.synthesise(tmp_path / "corpus", synth.SynthConfig(), 1)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(("name", "value"), [("train", -1), ("seed", -1)])
def test_a_corpus_of_less_than_nothing(name, value):
    with pytest.raises(SpeechError, match=f"expected --{name} of 0 or more, got -1"):
        synth.SynthConfig(**{name: value})


def test_a_picture_of_no_format(tmp_path):
    reports.check_picture(tmp_path / "a.PNG")
    for name in ("a.xyz", "a"):
        with pytest.raises(SpeechError, match=r"a name that ends in \..*\.png"):
            reports.check_picture(tmp_path / name)


def test_a_language_model_that_ends_early(tmp_path):
    pytest.importorskip("flashlight")
    ngram.write_arpa(["one two", "two"], 2, tmp_path / "lm.arpa")
    text = (tmp_path / "lm.arpa").read_text()
    (tmp_path / "lm.arpa").write_text(text[: text.index("\\1-grams:")])
    with pytest.raises(SpeechError, match=r"lm.arpa: ends before the words of its \\1"):
        LanguageModel(tmp_path / "lm.arpa", ALPHABET)


def test_a_run_goes_on_with_the_utterances_that_it_was_begun_with(tmp_path):
    source = layouts.manifest(tmp_path, "train", recordings())
    data = DataConfig(cache=tmp_path / "cache")
    utterances, _ = dataset.load(source, data, FeatureConfig(), ALPHABET)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "7.orbax-checkpoint-tmp").mkdir(parents=True)
    runs.expect_corpus(tmp_path, utterances[1:])
    runs.expect_corpus(tmp_path, utterances)  # nothing was learnt of the others
    (checkpoints / "7").mkdir()
    runs.expect_corpus(tmp_path, utterances)
    for others in (utterances[1:], utterances[::-1]):
        with pytest.raises(SpeechError, match=f"with 5 other.* are {len(others)}: to"):
            runs.expect_corpus(tmp_path, others)


def test_settings_that_change_nothing_of_a_run(tmp_path):
    config, other = RunConfig(), RunConfig(decode=DecodeConfig(beam=4))
    with runs.training_in(tmp_path, config):
        (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    with runs.training_in(tmp_path, other):
        assert settings.load(tmp_path / runs.CONFIG) == other
    refused = replace(other, train=TrainConfig(epochs=3))
    with (
        pytest.raises(SpeechError, match=r"other settings \(train.epochs: 14 and 3\)"),
        runs.training_in(tmp_path, refused),
    ):
        pass
    assert settings.load(tmp_path / runs.CONFIG) == other


def test_a_recording_is_read_once_for_its_clips_in_any_order(tmp_path, monkeypatch):
    for name in "ab":
        soundfile.write(tmp_path / f"{name}.wav", noise(2.0 + (name == "a")), 8000)
    entries = [
        {"audio_filepath": f"{name}.wav", "offset": at, "duration": 0.4, "text": text}
        for name, at, text in [("a", 1.2, "one"), ("b", 0, "two"), ("a", 0, "three")]
    ] + [{"audio_filepath": "none.wav", "text": "x"}]
    read = []
    monkeypatch.setattr(
        audio, "read", lambda f, rate, of=audio.read: read.append(f.name) or of(f, rate)
    )
    found = []
    for some in (entries, entries[:3], *([entry] for entry in entries[:3])):
        manifest = tmp_path / "all.jsonl"
        manifest.write_text("\n".join(map(json.dumps, some)))
        data = DataConfig(cache=tmp_path / "cache")
        found.append(dataset.load(manifest, data, FeatureConfig(), ALPHABET))
    assert sorted(read[:3]) == ["a.wav", "b.wav", "none.wav"]
    for utterances, _ in found[:2]:
        assert [u.text for u in utterances] == ["one", "two", "three"]
        for utterance, ((alone,), _) in zip(utterances, found[2:], strict=True):
            np.testing.assert_array_equal(utterance.features, alone.features)
    assert len(found[0].skipped) == 1


def test_words_of_a_language_model_that_cannot_be_written(tmp_path, capsys):
    pytest.importorskip("flashlight")
    ngram.write_arpa(["one 2 Two two"], 2, tmp_path / "lm.arpa")
    config = RunConfig(decode=DecodeConfig(arpa=tmp_path / "lm.arpa"))
    ways.Search(beam=True).of(config, tmp_path)
    assert "2 of 4 words are not of model.characters" in capsys.readouterr().err


def test_what_is_left_out_is_said_where_it_cannot_be_listed(tmp_path, capsys):
    clip = corpora.Clip(tmp_path / "a.wav", "one")
    skipped = [dataset.Skipped(clip, "has no text")]
    reports.Report().skipped(tmp_path, skipped, tmp_path / "none" / "all.txt")
    shown = capsys.readouterr().out
    assert "1 left out, which cannot be listed in" in shown
    assert "a.wav: has no text" in shown


def test_checkpoints_that_a_killed_process_has_left_go(tmp_path):
    left = tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp"
    left.mkdir(parents=True)
    with checkpoint.opened(tmp_path) as checkpoints:
        assert not left.exists()
        assert checkpoints.last is None


def test_more_speakers_than_a_table_has(capsys):
    rate = (1, error_rates(["one"], ["two"])[0])
    reports.Report().speakers({f"s{n}": rate for n in range(23)})
    shown = capsys.readouterr().out
    assert "s19" in shown
    assert "and 3 speakers more" in shown


def test_a_picture_of_letters_that_the_font_has_not(tmp_path, capsys, recwarn):
    features = np.zeros((200, 40), np.float32)
    file = tmp_path / "stream.png"
    for text, says in (("हिन्दी", "boxes stand for"), ("one", "")):
        reports.plot_stream(file, features, [(1.0, text)])
        shown = capsys.readouterr().out
        assert says in shown
        assert bool(shown) == bool(says)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
