"""The speech example's transducer: its parts, its searches, a run of it."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from flax import nnx
from jax import export as jax_export
from speech_support import ALPHABET, losses_of_texts, noise, written_config

from examples.speech import (
    batches,
    commands,
    corpora,
    dataset,
    decode,
    export,
    runs,
    stream,
)
from examples.speech import train as training
from examples.speech.__main__ import main
from examples.speech.config import AugmentConfig, ModelConfig, RunConfig
from examples.speech.errors import SpeechError
from examples.speech.evaluate import greedy, transcribe
from examples.speech.model import Recogniser
from examples.speech.optimizer import make_optimizer
from examples.speech.progress import read
from examples.speech.search import Beam, Greedy
from examples.speech.text import BLANK
from examples.speech.transducer import Transducer

TINY = ModelConfig(
    kind="transducer",
    layers=1,
    hidden_size=24,
    channels=16,
    lookahead=3,
    predictor_size=16,
    predictor_projection=8,
    joint_size=12,
    dropout=0.0,
)
CONFIG = RunConfig(model=TINY)


def lively(transducer: Transducer, blank: float = 5.0) -> Transducer:
    """Its logits far enough apart that it writes now this, now that, now nothing."""
    kernel = transducer.out.kernel
    kernel[...] = jax.random.normal(jax.random.key(1), kernel.shape)
    bias = transducer.out.bias
    bias[...] = bias[...].at[BLANK].set(blank)
    return transducer


@pytest.fixture(scope="module")
def transducer() -> Transducer:
    return lively(Transducer(TINY, nnx.Rngs(0)))


def heard(time: int, batch: int = 3) -> tuple[jax.Array, jax.Array]:
    """What an encoder might give; the first row's frames are all there are."""
    shape = batch, time, TINY.joint_size
    frames = np.linspace(time, 0, batch).astype(np.int32)
    return jax.random.normal(jax.random.key(0), shape), jnp.asarray(frames)


# Its parts


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_predictor_says_the_same_step_by_step(layer_norm):
    model = replace(TINY, predictor_layer_norm=layer_norm)
    transducer = lively(Transducer(model, nnx.Rngs(0)))
    labels = np.array([[3, 1, 4, 1], [5, 9, 2, 6]])
    at_once = transducer.predict(labels)
    written = transducer.begin(2)
    for step, expected in enumerate(at_once.swapaxes(0, 1)):
        # Sums of another number of rows round differently.
        np.testing.assert_allclose(written.features, expected, rtol=1e-5, atol=1e-6)
        if step < 4:
            written = transducer.write(written, labels[:, step])


def test_blank_leaves_what_is_written(transducer):
    written = transducer.write(transducer.begin(2), jnp.array([3, 4]))
    after = transducer.write(written, jnp.array([BLANK, 5]))
    for old, new in zip(jax.tree.leaves(written), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[0], old[0])
        assert (new[1] != old[1]).any()


# Searches


def one_by_one(transducer: Transducer, heard, symbols: int) -> np.ndarray:
    """Greedy labels [time, symbols] of one row, in a loop."""
    labels = np.full((len(heard), symbols), BLANK)
    written = transducer.begin(1)
    for frame, n in itertools.product(range(len(heard)), range(symbols)):
        if n and labels[frame, n - 1] == BLANK:
            continue
        label = transducer.joint(heard[frame], written.features[0]).argmax()
        labels[frame, n] = label
        written = transducer.write(written, label[None])
    return labels


@pytest.mark.parametrize("symbols", [1, 3])
def test_greedy_is_what_a_loop_writes(symbols, transducer):
    features, frames = heard(12)
    labels = jax.jit(partial(Greedy(symbols), transducer))(features, frames)
    assert labels.shape == (3, 12, symbols)
    for row, count in enumerate(frames):
        expected = one_by_one(transducer, features[row, :count], symbols)
        np.testing.assert_array_equal(labels[row, :count], expected)
        assert not labels[row, count:].any()
    # All that can happen does: nothing, something, and as much as there may be.
    assert (labels[0, :, 0] == BLANK).any()
    assert (labels[0, :, -1] != BLANK).any()


def test_greedy_goes_on_exactly_where_it_was(transducer):
    features, frames = heard(12)
    search = Greedy(3)
    whole = search(transducer, features, frames)
    written, pieces = transducer.begin(3), []
    for start, end in itertools.pairwise([0, 1, 5, 5, 12]):
        count = jnp.clip(frames - start, 0, end - start)
        written, labels = search.go_on(
            transducer, written, features[:, start:end], count
        )
        pieces.append(labels)
    np.testing.assert_array_equal(np.concatenate(pieces, 1), whole)


def test_a_beam_of_one_is_greedy():
    transducer = lively(Transducer(TINY, nnx.Rngs(0)), blank=7.0)
    features, frames = heard(12)
    for symbols in (1, 3):
        expected = Greedy(symbols)(transducer, features, frames)
        # As many labels as frames at most: there the beam ends, and greedy goes on.
        assert 2 < (expected[0] != BLANK).sum() <= 12
        found = Beam(symbols, 1)(transducer, features, frames)
        np.testing.assert_array_equal(found, expected)


def test_a_wide_beam_finds_the_text_that_is_likeliest_per_label():
    model = replace(TINY, characters="ab")
    time = 3
    texts = [
        np.array(text, np.int32)
        for length in range(time + 1)
        for text in itertools.product([1, 2], repeat=length)
    ]
    lengths = np.array([len(text) for text in texts])
    greedy_is_wrong = 0
    for seed in range(8):
        transducer = Transducer(model, nnx.Rngs(seed))
        features = 2 * jax.random.normal(jax.random.key(seed), (1, time, 12))
        losses = losses_of_texts(transducer, features, texts)
        best = texts[int((losses / np.maximum(lengths, 1)).argmin())].tolist()
        frames = np.array([time])
        found = np.asarray(Beam(time, 64)(transducer, features, frames))[0]
        assert [spoken.label for spoken in decode.emitted(found)] == best
        by_label = np.asarray(Greedy(time)(transducer, features, frames))[0]
        greedy_is_wrong += [s.label for s in decode.emitted(by_label)] != best
    assert greedy_is_wrong


def test_words_of_what_is_written():
    labels = np.zeros((6, 2), np.int32)
    for frame, place, character in [(1, 0, "o"), (1, 1, "n"), (2, 0, "e"), (3, 0, " ")]:
        labels[frame, place] = ALPHABET.encode(character)[0]
    labels[5, 0] = ALPHABET.encode("a")[0]
    spell = decode.Speller(ALPHABET, decode.emitted)
    assert spell(labels) == "one a"
    one, a = decode.Word("one", 0.5, 1.5), decode.Word("a", 2.5, 3.0)
    assert spell.words(labels, 0.5) == [one, a]


# Training


def utterances(texts: list[str]) -> list[dataset.Utterance]:
    random = np.random.default_rng(0)
    return [
        dataset.Utterance(
            corpora.Clip(Path("none.ogg"), text),
            text,
            random.standard_normal((40 + 4 * n, 40)).astype(np.float32),
            ALPHABET.encode(text),
        )
        for n, text in enumerate(texts)
    ]


def test_training_lowers_the_loss_and_leaves_silence_silent():
    said = utterances(["one two", "", "three", "ab" * 20])
    fit = training.usable(dataset.Dataset(said, []), "transducer").utterances
    assert fit == said
    shapes = batches.choose_shapes(said, 1)
    options = replace(
        CONFIG.train, learning_rate=2e-2, schedule="constant", average=0.0
    )
    config = replace(CONFIG, train=options, augment=AugmentConfig(0, 0, 0))
    recogniser = Recogniser(TINY, config.features, nnx.Rngs(0))
    recogniser.normalise.measure([u.features for u in said])
    step = training.prepare(config, make_optimizer(config.train, 200), recogniser)
    state, losses = step.state, []
    for number in range(200):
        batch = next(batches.make_batches(said, shapes, 4))
        state, loss = step.step(state, batch, number)
        losses.append(float(loss))
    assert losses[-1] < 0.05 * losses[0]
    learnt = nnx.merge(step.graph, state.params, state.statistics)
    texts = transcribe(config, learnt, said, shapes)
    assert texts[1] == ""
    assert texts[2].startswith("t")


def test_rows_that_only_fill_a_batch_have_no_effect():
    said = utterances(["one two", "", "three"])
    shapes = batches.choose_shapes(said, buckets=1)
    recogniser = Recogniser(TINY, CONFIG.features, nnx.Rngs(0))
    graph, params, statistics = nnx.split(recogniser, nnx.Param, ...)

    @jax.jit
    @jax.value_and_grad
    def gradients(params, batch):
        model = nnx.merge(graph, params, statistics)
        output = model(batch.features, batch.frames)
        return training.transducer_loss(model.transducer, output, batch)

    full, filled = (
        gradients(params, next(batches.make_batches(said, shapes, size)))
        for size in (3, 5)
    )
    # Sums over a batch of another size round differently.
    for expected, actual in zip(
        jax.tree.leaves(full), jax.tree.leaves(filled), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


# A run


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> list[str]:
    config = written_config(tmp_path_factory.mktemp("speech"))
    return [
        *("--config", str(config), "--model.kind", "transducer"),
        *("--model.predictor-size", "16", "--model.predictor-projection", "8"),
        *("--model.joint-size", "12", "--decode.beam", "4"),
    ]


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    main(["train", *arguments, "--run", str(folder)])
    return folder


def test_a_run_goes_on_bit_for_bit(arguments, run, tmp_path, monkeypatch):
    stop_after = 3
    take = commands.TrainingProgress.step

    def step(self, number, epoch, loss):
        take(self, number, epoch, loss)
        if number > stop_after:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(commands.TrainingProgress, "step", step)
        with pytest.raises(SystemExit, match="interrupted"):
            main(["train", *arguments, "--run", str(tmp_path)])
    main(["train", *arguments, "--run", str(tmp_path)])
    curves = [
        [(r["step"], r["loss"]) for r in read(of / runs.METRICS) if r["kind"] == "step"]
        for of in (run, tmp_path)
    ]
    assert [step for step, _ in curves[0]] == [1, 2, 3, 4, 5, 6]
    assert curves[0] == curves[1]


@pytest.fixture
def talkative(run, monkeypatch) -> RunConfig:
    """The run's model writes something, though it has hardly been trained."""
    config, recogniser = runs.load(run)
    lively(recogniser.transducer, blank=3.0)
    monkeypatch.setattr(runs, "load", lambda _: (config, recogniser))
    return config


def test_commands_write_the_same_text(talkative, run, tmp_path, capsys):
    file = tmp_path / "said.ogg"
    soundfile.write(file, noise(1.3, 16000), 16000)
    commands.transcribe([file], run, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert len(found["text"]) > 5
    joined = "".join(word["word"] for word in found["words"])
    assert joined == found["text"].replace(" ", "")
    for chunk_ms in (40, 160):
        commands.stream(str(file), run, chunk_ms=chunk_ms)
        assert f"   end    {found['text']}\n" in capsys.readouterr().out
    commands.transcribe([file], run, commands.Search(beam=True))
    assert str(file) in capsys.readouterr().out


def test_a_stream_compiles_nothing_once_it_runs(talkative, run, caplog):
    config, recogniser = runs.load(run)
    model = stream.chunk_model(config, recogniser, 80)
    with jax.log_compiles():
        stream.Stream(config, model).finish()
        assert "Compiling jit(go_on)" in caplog.text
        caplog.clear()
        listener = stream.Stream(config, model)
        assert listener.feed(noise(1.3)) + listener.finish()
    assert "Compiling" not in caplog.text


def test_a_run_is_tested_and_timed(run, capsys):
    main(["evaluate", "--run", str(run), "--beam"])
    shown = capsys.readouterr().out
    assert "greedy: CER" in shown
    assert "beam 4: CER" in shown
    arguments = ("--steps", "2", "--chunks", "2", "--chunks-ms", "40")
    main(["bench", "--run", str(run), *arguments])
    shown = capsys.readouterr().out
    assert "prnn_jax, prepared" in shown
    assert "MiB, with 8 frames at a time" in shown


def test_both_directions_are_no_stream():
    config = replace(CONFIG, model=replace(TINY, direction="both"))
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    with pytest.raises(SpeechError, match='direction = "forward"'):
        stream.chunk_model(config, recogniser, 40)
    said = utterances(["one"])
    assert transcribe(config, recogniser, said, batches.choose_shapes(said, 1))


def test_an_exported_program_writes_the_labels(talkative, run, tmp_path):
    config, recogniser = runs.load(run)
    program = export.write(config, recogniser, tmp_path).read_bytes()
    exported = jax_export.deserialize(bytearray(program))
    assert "custom_call @prnn" not in exported.mlir_module()
    samples = noise(1.0)
    labels, lengths = jax.jit(exported.call)(samples[None], np.array([8000], np.int32))
    assert lengths.tolist() == [49]
    said = dataset.Utterance(
        corpora.Clip(Path("none.ogg"), ""),
        "",
        dataset.log_mel(samples, config.features),
        np.zeros(0, np.int32),
    )
    (text,) = transcribe(config, recogniser, [said], batches.choose_shapes([said], 1))
    assert greedy(config, recogniser.vocabulary).decode(np.asarray(labels[0])) == text
    description = json.loads((tmp_path / export.DESCRIPTION).read_text())
    assert description["kind"] == "transducer"
