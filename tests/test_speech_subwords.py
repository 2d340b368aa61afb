"""Subwords as labels in the speech example: making, reading, writing, a run of each."""

import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import soundfile
from jax import export as jax_export
from speech_support import noise, written_config

from examples.speech import commands, decode, export, runs, subwords
from examples.speech.__main__ import main
from examples.speech.config import DecodeConfig, ModelConfig, RunConfig
from examples.speech.errors import SpeechError
from examples.speech.ngram import write_arpa
from examples.speech.text import BLANK

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = ["one two three", "three two one", "one one five", "six five four three"]
KINDS = ["bpe", "unigram"]


def options(kind: str = "bpe", size: int = 24, **more) -> ModelConfig:
    return ModelConfig(vocabulary=kind, vocabulary_size=size, **more)


@pytest.fixture(scope="module")
def vocabulary() -> subwords.Subwords:
    return subwords.train(TEXTS, options())


def written_by_others(**more) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        model_type="bpe",
        minloglevel=2,
        **more,
    )
    return model.getvalue()


# Texts and labels


@pytest.mark.parametrize(("kind", "size"), [("bpe", 24), ("unigram", 18)])
def test_texts_come_back(kind, size):
    made = subwords.train(TEXTS, options(kind, size))
    assert made == subwords.train(TEXTS, options(kind, size))
    assert len(made.pieces) + 1 == size
    theirs = sentencepiece.SentencePieceProcessor(model_proto=made.model)
    for text in [*TEXTS, "", "one", "xis"]:
        labels = made.encode(text)
        assert made.decode(labels) == text == theirs.decode(theirs.encode(text))
        assert (labels != BLANK).all()
        by_words = [made.encode(word) for word in text.split()]
        np.testing.assert_array_equal(np.concatenate([[], *by_words]), labels)
        write = decode.Writer(made)
        assert "".join(write(labels[n : n + 1]) for n in range(len(labels))) == text
    assert len(made.encode(TEXTS[0])) < len(TEXTS[0])
    with pytest.raises(ValueError, match="no label for 'é'"):
        made.encode("one é")


def test_what_others_reserve_is_no_label():
    plain, more = (
        subwords.Subwords(written_by_others(vocab_size=n, **reserved))
        for n, reserved in (
            (24, {"bos_id": -1, "eos_id": -1}),
            (24 + 2 + 256 + 1, {"byte_fallback": True, "pad_id": 3}),
        )
    )
    assert more.pieces == plain.pieces
    np.testing.assert_array_equal(more.encode("six two"), plain.encode("six two"))
    with pytest.raises(ValueError, match="no label for"):
        more.encode("é")


def test_words_have_the_times_of_their_subwords(vocabulary):
    labels = vocabulary.encode("one two")
    spoken = [decode.Spoken(int(n), 2 * i, 2 * i + 1) for i, n in enumerate(labels)]
    words = decode.Speller(vocabulary, lambda _: iter(spoken)).words(labels, 0.5)
    first = len(vocabulary.encode("one"))
    end = float(len(labels))
    assert len(labels) > first + 1
    assert words == [
        decode.Word("one", 0.0, float(first)),
        decode.Word("two", float(first), end),
    ]


# Errors


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("bpe", 500, r"vocabulary_size of at most \d+, .* for bpe, got 500"),
        ("unigram", 500, r"vocabulary_size of at most \d+, .* for unigram, got 500"),
        ("bpe", 9, r"vocabulary_size of at least \d+, all characters.* got 9"),
    ],
)
def test_a_size_that_the_texts_do_not_have(kind, size, message):
    with pytest.raises(SpeechError, match=message) as error:
        subwords.train(TEXTS, options(kind, size))
    bound = int(str(error.value).partition("of at ")[2].split()[1].strip(","))
    assert len(subwords.train(TEXTS, options(kind, bound)).pieces) + 1 == bound


def test_files_that_are_no_vocabulary(tmp_path, vocabulary):
    file = tmp_path / "some.model"
    with pytest.raises(SpeechError, match=r"some.model: .* No such file"):
        subwords.read(file, options())
    for content in (b"", b"no model", "é".encode()):
        file.write_bytes(content)
        with pytest.raises(SpeechError, match="is no model of SentencePiece"):
            subwords.read(file, options())
    file.write_bytes(vocabulary.model)
    with pytest.raises(SpeechError, match=r"has 24 labels.* is 30: set it to 24"):
        subwords.read(file, options(size=30))
    assert subwords.read(file, options()) == vocabulary


def test_no_texts():
    with pytest.raises(SpeechError, match=r"none is of model\.characters"):
        subwords.train([], options())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model.vocabulary-size", "1"], "vocabulary_size above 1, got 1"),
        (["--model.vocabulary-file", "a.model"], "bpe or unigram with a"),
    ],
)
def test_settings_that_cannot_be(given, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main(["train", "--run", str(tmp_path / "run"), *given])


def test_no_subwords_without_the_library(vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(SpeechError, match="pip install sentencepiece"):
        subwords.train(TEXTS, options())


# Language models


def test_beam_search_of_ctc_writes_words_that_are_likely(vocabulary, tmp_path):
    pytest.importorskip("flashlight.lib.text")
    from examples.speech.beam import BeamSearch
    from examples.speech.language_model import LanguageModel

    write_arpa(["one two", "two one two", "one one"], 2, tmp_path / "lm.arpa")
    model = LanguageModel(tmp_path / "lm.arpa", vocabulary)
    search = BeamSearch(DecodeConfig(), model)

    def heard(labels) -> np.ndarray:
        return 9 * np.eye(len(vocabulary.pieces) + 1, dtype=np.float32)[labels]

    one, two = vocabulary.encode("one"), vocabulary.encode("two")
    labels = [*one, BLANK, *two, two[-1], BLANK, *one]
    assert search(heard(labels)) == "one two one"
    end = float(len(one))
    assert search.words(heard([*one, 0, *two]), 1.0) == [
        decode.Word("one", 0.0, end),
        decode.Word("two", end + 1, end + 1 + len(two)),
    ]
    assert search(heard([*one, one[-1], one[-1]])) == "one"
    assert search.words(heard([0, *one, one[-1], 0, *two, two[-1], 0]), 1.0) == [
        decode.Word("one", 1.0, 2 + end),
        decode.Word("two", 3 + end, 4 + end + len(two)),
    ]
    noisy = heard([*one, BLANK, *two])
    noisy[-1] = 0  # it may be anything that a word of the model ends with
    noisy[-1, vocabulary.encode("x")[-1]] = 1
    assert search(noisy) == "one two"
    assert set(search(heard(vocabulary.encode("six six"))).split()) <= {"one", "two"}


def test_subwords_that_do_not_begin_words_have_no_language_model(tmp_path):
    pytest.importorskip("flashlight.lib.text")
    from examples.speech.language_model import LanguageModel

    suffix = {"treat_whitespace_as_suffix": True, "bos_id": -1, "eos_id": -1}
    write_arpa(["one two"], 2, tmp_path / "lm.arpa")
    model = written_by_others(vocab_size=24, **suffix)
    with pytest.raises(SpeechError, match="begins with a space"):
        LanguageModel(tmp_path / "lm.arpa", subwords.Subwords(model))


# A run of each kind


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    return written_config(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module", params=["ctc", "transducer"])
def arguments(request, config_file) -> list[str]:
    small = {"predictor-size": 16, "predictor-projection": 8, "joint-size": 12}
    return [
        *("--config", str(config_file), "--model.kind", request.param),
        *("--model.vocabulary", "bpe", "--model.vocabulary-size", "18"),
        *(f"--model.{name}={size}" for name, size in small.items()),
        *("--decode.beam", "4", "--train.epochs", "1"),
    ]


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    main(["train", *arguments, "--run", str(folder)])
    return folder


@pytest.fixture
def talkative(run, monkeypatch):
    """The run's model writes something, though it has hardly been trained."""
    config, recogniser = runs.load(run)
    if transducer := recogniser.transducer:
        out = transducer.out
        out.kernel[...] = jax.random.normal(jax.random.key(1), out.kernel.shape)
        out.bias[...] = out.bias[...].at[BLANK].set(2.0)
    monkeypatch.setattr(runs, "load", lambda _: (config, recogniser))
    return config, recogniser


def test_commands_write_the_same_text(talkative, run, tmp_path, capsys):
    file = tmp_path / "said.wav"
    soundfile.write(file, noise(1.3, 16000), 16000)
    commands.transcribe([file], run, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert not found["text"].startswith(" ")
    assert len(found["text"]) > 2
    assert [w["word"] for w in found["words"]] == found["text"].split()
    for chunk_ms in (40, 160):
        commands.stream(str(file), run, chunk_ms=chunk_ms)
        assert f"   end    {found['text']}\n" in capsys.readouterr().out


def test_an_exported_program_says_what_its_labels_are(talkative, tmp_path):
    config, recogniser = talkative
    program = export.write(config, recogniser, tmp_path).read_bytes()
    kept = subwords.read(tmp_path / subwords.VOCABULARY, config.model)
    assert kept == recogniser.vocabulary
    described = json.loads((tmp_path / export.DESCRIPTION).read_text())
    assert described["pieces"] == list(kept.pieces)
    recognise = jax.jit(jax_export.deserialize(bytearray(program)).call)
    output, _ = recognise(noise(1.0)[None], np.array([8000], np.int32))
    labels = np.asarray(output[0])
    if described["kind"] == "ctc":
        path = labels.argmax(-1)
        labels = path[np.diff(path, prepend=BLANK) != 0]
    pieces = [described["pieces"][n - 1] for n in labels.ravel() if n]
    way = commands.evaluation.greedy(config, recogniser.vocabulary)
    assert "".join(pieces).removeprefix(" ") == way.decode(np.asarray(output[0]))


def test_a_run_is_tested(run, capsys):
    main(["evaluate", "--run", str(run)])
    assert "greedy: CER" in capsys.readouterr().out


def test_a_run_is_tested_with_a_language_model(run, capsys):
    pytest.importorskip("flashlight.lib.text")
    main(["evaluate", "--run", str(run), "--beam", "--lm-weight", "0.5"])
    assert "beam 4: CER" in capsys.readouterr().out


def test_a_checkpoint_is_of_its_vocabulary(arguments, run):
    kept = (run / subwords.VOCABULARY).read_bytes()
    other = subwords.train(TEXTS, options(size=18))
    (run / subwords.VOCABULARY).write_bytes(other.model)
    try:
        with pytest.raises(SpeechError, match="not the vocabulary that its checkpoint"):
            runs.load(run)
        with pytest.raises(SystemExit, match="not the vocabulary that its checkpoint"):
            main(["train", *arguments, "--run", str(run)])
        (run / subwords.VOCABULARY).unlink()
        with pytest.raises(SpeechError, match="a run keeps the one"):
            runs.load(run)
        main(["train", *arguments, "--run", str(run)])  # of the texts, it is the same
        assert (run / subwords.VOCABULARY).read_bytes() == kept
    finally:
        (run / subwords.VOCABULARY).write_bytes(kept)


def test_a_vocabulary_by_command_is_taken(config_file, tmp_path, capsys):
    made = tmp_path / "made.model"
    given = ["--config", str(config_file), "--model.vocabulary-size", "20"]
    main(["vocabulary", str(made), *given, "--model.vocabulary", "bpe"])
    shown = capsys.readouterr().out
    assert f"{made}: 20 labels" in shown
    assert "▁" in shown
    with pytest.raises(SystemExit, match="of bpe or unigram"):
        main(["vocabulary", str(made), *given])
    config = RunConfig(model=options(size=20, vocabulary_file=made))
    taken = runs.make_vocabulary(tmp_path, config, commands.Report())
    made.unlink()  # the run has its own
    assert runs.vocabulary(tmp_path, config) == taken
    assert len(taken.pieces) == 19
