"""A transducer's beam search with an n-gram model, against all texts, one by one."""

import itertools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from flax import nnx
from speech_support import losses_of_texts, noise, written_config

from examples.speech import commands, decode, subwords
from examples.speech.__main__ import main
from examples.speech.config import DecodeConfig, ModelConfig
from examples.speech.errors import SpeechError
from examples.speech.ngram import write_arpa
from examples.speech.search import Beam
from examples.speech.text import BLANK, Alphabet
from examples.speech.transducer import Transducer

pytest.importorskip("flashlight.lib.text")
from examples.speech.fusion import Fusion
from examples.speech.language_model import LanguageModel

LETTERS = Alphabet("ab ")
MODEL = ModelConfig(
    kind="transducer",
    characters=LETTERS.characters,
    predictor_size=16,
    predictor_projection=8,
    joint_size=12,
)
TEXTS = ["a b a", "ab a", "a a b", "b a ab", "a bba a", "b b"]
WORDS = {"a", "b", "ab", "bba"}


def is_writable(text: str) -> bool:
    return not text or set(text.split(" ")) <= WORDS


def log10(arpa: Path, text: str) -> float:
    """A text's probability, read off the file: the longest n-gram, or backed off."""
    p, back_off = {}, {}
    for line in arpa.read_text().splitlines():
        score, *fields = line.split("\t")
        if fields:
            ngram = tuple(fields[0].split())
            p[ngram] = float(score)
            back_off[ngram] = float(fields[1]) if fields[1:] else 0.0

    def of(history: tuple[str, ...], word: str) -> float:
        if (*history, word) in p:
            return p[(*history, word)]
        return back_off.get(history, 0.0) + of(history[1:], word)

    order = max(map(len, p))
    words = ("<s>", *text.split(), "</s>")
    return sum(
        of(words[max(0, n + 1 - order) : n], words[n]) for n in range(1, len(words))
    )


@pytest.fixture(params=[2, 3])
def arpa(request, tmp_path) -> Path:
    write_arpa(TEXTS, request.param, tmp_path / "lm.arpa")
    return tmp_path / "lm.arpa"


@pytest.mark.parametrize("text", ["", "a", "bba", "b a ab bba a b b a"])
def test_a_text_gets_the_models_score_label_by_label(text, arpa):
    options = DecodeConfig(lm_weight=1.5, word_score=0.25)
    fusion = Fusion(options, LanguageModel(arpa, LETTERS))
    place, score = fusion.begin((1,)), 0.0
    for label in LETTERS.encode(text):
        score += fusion.moves(place)[0, label]
        place = fusion.write(place, jnp.array([label]))
        assert fusion.moves(place)[0, 0] == 0
        same = fusion.write(place, jnp.array([0]))
        for old, new in zip(place, same, strict=True):
            np.testing.assert_array_equal(new, old)
    expected = 1.5 * log10(arpa, text) + 0.25 * len(text.split())
    # Of a file with six digits.
    np.testing.assert_allclose(score + fusion.end(place)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("text", ["", "a", "bba", "b a ab bba a b b a"])
def test_a_text_of_subwords_gets_the_models_score(text, arpa):
    pytest.importorskip("sentencepiece")
    options = DecodeConfig(lm_weight=1.5, word_score=0.25)
    model = ModelConfig(vocabulary="bpe", vocabulary_size=6)  # ▁, a, b, ▁a, ▁b
    vocabulary = subwords.train(TEXTS, model)
    fusion = Fusion(options, LanguageModel(arpa, vocabulary))
    place, score = fusion.begin((1,)), 0.0
    labels = vocabulary.encode(text)
    assert len(labels) <= len(text)
    for label in labels:
        assert fusion.moves(place)[0, 0] == 0
        score += fusion.moves(place)[0, label]
        place = fusion.write(fusion.write(place, jnp.array([label])), jnp.array([0]))
    expected = 1.5 * log10(arpa, text) + 0.25 * len(text.split())
    # Of a file with six digits.
    np.testing.assert_allclose(score + fusion.end(place)[0], expected, rtol=1e-5)
    space = vocabulary.pieces.index(" ") + 1  # begins no word of the model
    assert fusion.moves(place)[0, space] == -np.inf


@pytest.mark.parametrize("text", ["bb", " ", "a ", "b  a", "aba", "bba b "])
def test_a_text_that_is_not_of_the_models_words_is_none(text, arpa):
    fusion = Fusion(DecodeConfig(), LanguageModel(arpa, LETTERS))
    place, score = fusion.begin((1,)), 0.0
    for label in LETTERS.encode(text):
        score += float(fusion.moves(place)[0, label])
        place = fusion.write(place, jnp.array([label]))
    assert score + fusion.end(place)[0] == -np.inf


def test_a_wide_beam_finds_the_best_of_all_texts_with_the_models_score(arpa):
    time, options = 5, DecodeConfig(lm_weight=0.8, word_score=0.3)
    texts = [
        "".join(letters)
        for length in range(time + 1)
        for letters in itertools.product(LETTERS.characters, repeat=length)
        if is_writable("".join(letters))
    ]
    lengths = np.array([len(text) for text in texts])
    labels = [LETTERS.encode(text) for text in texts]
    scores = np.array([log10(arpa, text) for text in texts])
    scores = 0.8 * scores + 0.3 * np.array([len(text.split()) for text in texts])
    fusion = Fusion(options, LanguageModel(arpa, LETTERS))
    graph, _ = nnx.split(Transducer(MODEL, nnx.Rngs(0)))

    @jax.jit
    def both(weights, heard):
        transducer = nnx.merge(graph, weights)
        losses = losses_of_texts(transducer, heard, labels)
        # As wide as there are beginnings of texts, twice.
        beam = Beam(time, 256, fusion)
        return losses, beam(transducer, heard, np.array([time]))

    said = []
    for seed in range(8):
        _, weights = nnx.split(Transducer(MODEL, nnx.Rngs(seed)))
        heard = 3 * jax.random.normal(jax.random.key(seed), (1, time, 12))
        losses, found = both(weights, heard)
        per_label = (scores - losses) / np.maximum(lengths, 1)
        best = texts[int(per_label.argmax())]
        spell = decode.Speller(LETTERS, decode.emitted)
        assert spell(np.asarray(found)[0]) == best
        alone = texts[int((-losses / np.maximum(lengths, 1)).argmax())]
        said.append((best, alone))
    assert any(best != alone for best, alone in said)
    assert len({best for best, _ in said}) > 2


def test_a_beam_in_which_no_text_has_an_end_gives_what_there_is(tmp_path):
    write_arpa(["bba"], 2, tmp_path / "lm.arpa")
    fusion = Fusion(DecodeConfig(), LanguageModel(tmp_path / "lm.arpa", LETTERS))
    transducer = Transducer(MODEL, nnx.Rngs(0))
    bias = transducer.out.bias
    bias[...] = jnp.array([-9.0, 0.0, 9.0, 0.0])  # says b, if it may
    heard = jnp.zeros((1, 2, 12))
    labels = Beam(1, 1, fusion)(transducer, heard, np.array([2]))
    assert decode.Speller(LETTERS, decode.emitted)(np.asarray(labels)[0]) == "bb"


# By the commands


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    arguments = [
        *("--config", str(written_config(tmp_path_factory.mktemp("speech")))),
        *("--model.kind", "transducer", "--model.predictor-size", "16"),
        *("--model.predictor-projection", "8", "--model.joint-size", "12"),
        *("--decode.beam", "4", "--train.epochs", "1", "--run", str(folder)),
    ]
    main(["train", *arguments])
    return folder


def test_options_say_whether_there_is_a_model(run, tmp_path):
    config = commands.runs.load(run)[0]
    fused = commands.Search(beam=True, lm_weight=2.0).of(config, run)
    assert fused.search.fusion is not None
    assert commands.Search(beam=True).of(config, run).search.fusion is None
    assert commands.Search().of(config, run) is None
    with pytest.raises(SpeechError, match=r"--lm-weight, --word-score: .* add --beam"):
        commands.Search(lm_weight=2.0, word_score=0.0).of(config, run)
    given = replace(config, decode=replace(config.decode, arpa=tmp_path / "none"))
    with pytest.raises(SpeechError, match="none: there is no such language model"):
        commands.Search(beam=True).of(given, run)


def test_a_models_words_are_all_that_is_written(run, tmp_path, capsys, monkeypatch):
    main(["evaluate", "--run", str(run), "--beam", "--lm-weight", "0.5"])
    assert "beam 4: CER" in capsys.readouterr().out
    config, recogniser = commands.runs.load(run)
    bias = recogniser.transducer.out.bias
    bias[...] = bias[...].at[BLANK].set(-20.0)  # so that it always writes something
    monkeypatch.setattr(commands.runs, "load", lambda _: (config, recogniser))
    write_arpa(["seven", "eleven seven"], 2, tmp_path / "lm.arpa")
    soundfile.write(tmp_path / "said.wav", noise(1.3), 8000)
    search = commands.Search(beam=True, arpa=tmp_path / "lm.arpa")
    commands.transcribe([tmp_path / "said.wav"], run, search)
    text = capsys.readouterr().out.partition("said.wav: ")[2].strip("\n")
    *words, last = text.split(" ")
    assert len(words) > 3
    assert set(words) <= {"seven", "eleven"}
    assert "seven".startswith(last) or "eleven".startswith(last)
