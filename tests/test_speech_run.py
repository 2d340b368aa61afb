"""A run of the speech example: data, training, a kill and the way back, streams."""

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import soundfile
from flax import nnx
from jax import export as jax_export

from examples.speech import (
    audio,
    checkpoint,
    commands,
    corpora,
    dataset,
    export,
    in_torch,
    layouts,
    runs,
    settings,
    stream,
    text,
)
from examples.speech.__main__ import main
from examples.speech.beam import BeamSearch
from examples.speech.config import (
    DataConfig,
    DecodeConfig,
    FeatureConfig,
    ModelConfig,
    RunConfig,
)
from examples.speech.decode import Word
from examples.speech.errors import SpeechError
from examples.speech.features import mel_matrix
from examples.speech.model import Recogniser
from examples.speech.ngram import words_of, write_arpa
from examples.speech.progress import read

ROOT = Path(__file__).parents[1]
ALPHABET = text.Alphabet(RunConfig().model.characters)
SETTINGS = """
[model]
layers = 1
hidden_size = 16
channels = 8
lookahead = 3
[train]
epochs = 2
batch_size = 2
buckets = 1
save_every = 2
"""


def _noise(seconds: float, rate: int = 8000) -> np.ndarray:
    rng = np.random.default_rng(round(1000 * seconds))
    return (0.1 * rng.standard_normal(round(seconds * rate))).astype(np.float32)


def _recordings(rate: int = 16000) -> list[layouts.Recording]:
    return [
        layouts.Recording(_noise(0.6 + 0.1 * n, rate), rate, f"one {word}", f"s{n % 2}")
        for n, word in enumerate(["two", "three", "four", "five", "six"])
    ]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    source = layouts.manifest(folder, "train", _recordings())
    data = [f"{name} = {json.dumps(str(source))}" for name in ("train", "dev", "test")]
    data.append(f"cache = {json.dumps(str(folder / 'features'))}")
    file = folder / "config.toml"
    file.write_text("\n".join(["[data]", *data]) + SETTINGS)
    return file


@pytest.fixture(scope="module")
def run(config_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    main(["train", "--config", str(config_file), "--run", str(folder)])
    return folder


# Data


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_layouts_give_the_same_utterances(layout, tmp_path):
    source = layouts.LAYOUTS[layout](tmp_path, "dev", _recordings())
    data = DataConfig(cache=tmp_path / "cache")
    for _ in range(2):  # made, then kept
        loaded = dataset.load(source, data, FeatureConfig(), ALPHABET)
        assert not loaded.skipped
        texts = sorted(utterance.text for utterance in loaded.utterances)
        assert texts == sorted(recording.text for recording in _recordings())
        for utterance in loaded.utterances:
            number = [r.text for r in _recordings()].index(utterance.text)
            # MP3 adds some hundredths of a second.
            assert abs(len(utterance.features) - (58 + 10 * number)) <= 8
        assert len({utterance.clip.speaker for utterance in loaded.utterances}) == 2


def test_what_cannot_be_used_is_skipped_with_its_reason(tmp_path):
    def entry(name, samples, said="one", **more):
        if samples is not None:
            soundfile.write(tmp_path / name, samples, 8000, **more)
        return {"audio_filepath": name, "text": said}

    second = _noise(1.0)
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
        "missing": "cannot be read",
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
        ("list.jsonl", "[1, 2]", "line 1: expected an object"),
        ("latin.jsonl", b"\xe9", "expected text in UTF-8"),
        ("no_columns.tsv", "path\tage\n", "no column sentence"),
    ],
)
def test_a_list_that_cannot_be_read(name, content, message, tmp_path):
    if content is not None:
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SpeechError, match=message):
        corpora.find_clips(tmp_path / name)


def test_texts_are_normalised():
    assert text.normalise("  Déjà-vu,  DON’T! ") == "deja vu don't"


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
        (["--train.batch-size", "0"], "train.batch_size above 0, got 0"),
        (["--augment.bins-hidden", "-1"], "augment.bins_hidden of 0 or more, got -1"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_settings_that_cannot_be(options, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main(["train", "--run", str(tmp_path / "run"), *options])
    assert not (tmp_path / "run").exists()


def test_mel_bins_too_narrow_for_the_spectrum():
    with pytest.raises(SpeechError, match="see no line of the spectrum"):
        mel_matrix(FeatureConfig(mel_bins=120))


# Training


def _killed(at: str, arguments: list[str]) -> None:
    """Trains in another process, which ends without notice `at` a line of code."""
    script = f"""
import os, signal, sys
from pathlib import Path
from examples.speech import progress
from examples.speech.__main__ import main

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def after(step):
    take = progress.TrainingProgress.step
    def taken(self, number, epoch, loss):
        take(self, number, epoch, loss)
        if number == step:
            kill()
    progress.TrainingProgress.step = taken

def saving(step):  # all is written, and gets its name
    rename = os.rename
    def renamed(old, new, **options):
        if Path(new).name == str(step):
            kill()
        rename(old, new, **options)
    os.rename = os.replace = renamed

{at}
main({arguments!r})
"""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}
    )
    assert child.returncode == -signal.SIGKILL


def test_a_killed_run_goes_on_bit_for_bit(config_file, run, tmp_path):
    arguments = ["train", "--config", str(config_file), "--run", str(tmp_path)]
    _killed("saving(4)", arguments)
    assert sorted(os.listdir(tmp_path / "checkpoints"))[0] == "3"
    _killed("after(5)", arguments)  # the checkpoint of step 4 may be there or not
    main(arguments)
    curves = [
        [(r["step"], r["loss"]) for r in read(of / runs.METRICS) if r["kind"] == "step"]
        for of in (run, tmp_path)
    ]
    assert [step for step, _ in curves[0]] == [1, 2, 3, 4, 5, 6]
    assert curves[0] == curves[1]


def test_a_full_disk_costs_the_checkpoint_being_written_only(tmp_path):
    noise = np.random.default_rng(0).standard_normal((2, 200, 200))
    first, second = ({"weights": jax.numpy.asarray(array)} for array in noise)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with checkpoint.opened(tmp_path) as checkpoints:
        checkpoints.save(1, first, dev_cer=0.5)
        assert checkpoints.last == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no larger file
        try:
            checkpoints.save(2, second, dev_cer=0.4)  # begins to
            with pytest.raises(SpeechError, match=r"could not be written.*make room"):
                checkpoints.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with checkpoint.opened(tmp_path) as checkpoints:
        assert (checkpoints.last, checkpoints.best) == (1, 1)
        restored = checkpoints.restore(1, first)
        np.testing.assert_array_equal(restored["weights"], first["weights"])
        checkpoints.save(2, second, dev_cer=0.4)
        assert (checkpoints.last, checkpoints.best) == (2, 2)


def test_a_full_disk_while_features_are_made(config_file, tmp_path):
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = settings.load(config_file).data.train
    data = DataConfig(cache=tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            dataset.load(source, data, FeatureConfig(), ALPHABET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not os.listdir(tmp_path)
    assert len(dataset.load(source, data, FeatureConfig(), ALPHABET).utterances) == 5


def test_reading_a_run_leaves_what_is_being_written(run):
    unfinished = run / "checkpoints" / "7.orbax-checkpoint-tmp"
    unfinished.mkdir()
    runs.load(run)
    assert unfinished.exists()
    unfinished.rmdir()


def test_a_run_keeps_its_settings_and_its_folder(config_file, run):
    arguments = ["train", "--config", str(config_file), "--run", str(run)]
    with pytest.raises(SystemExit, match=r"train.epochs: 2 and 3"):
        main([*arguments, "--train.epochs", "3"])
    config = settings.load(config_file)
    with (
        runs.training_in(run, config),
        pytest.raises(SystemExit, match="another process trains there"),
    ):
        main(arguments)


def test_a_checkpoint_of_another_model_is_refused(run, tmp_path):
    (tmp_path / "checkpoints").symlink_to(run / "checkpoints")
    other = (run / runs.CONFIG).read_text().replace("channels = 8", "channels = 4")
    (tmp_path / runs.CONFIG).write_text(other)
    with pytest.raises(SpeechError, match="of another model than its"):
        runs.load(tmp_path)


def test_nan_stops_a_run_and_keeps_the_last_checkpoint(config_file, tmp_path):
    with pytest.raises(SystemExit, match=r"not finite at step .* checkpoint of step 2"):
        main(
            [
                *("train", "--config", str(config_file), "--run", str(tmp_path)),
                *("--train.learning-rate", "1e38", "--train.warmup", "0.7"),
            ]
        )


# Decoding and streaming


@pytest.fixture(scope="module")
def small() -> tuple[RunConfig, Recogniser]:
    model = ModelConfig(layers=2, hidden_size=24, channels=16)
    config = RunConfig(model=model)
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    weights = recogniser.lookahead.weights
    weights[...] = jax.random.normal(jax.random.key(0), weights.shape)
    return config, recogniser


@pytest.mark.parametrize("chunk_ms", [40, 160])
def test_a_stream_gives_what_the_whole_recording_gives(chunk_ms, small):
    config, recogniser = small
    model = stream.chunk_model(config, recogniser, chunk_ms)
    state, pieces = model.start, []
    features = np.random.default_rng(0).standard_normal((75, 40)).astype(np.float32)
    for start in range(0, 75 + 2 * model.lookahead + model.chunk, model.chunk):
        part = features[start : start + model.chunk]
        padded = np.zeros((model.chunk, 40), np.float32)
        padded[: len(part)] = part
        state, logits = model.advance(state, padded, len(part))
        pieces.append(logits)
    streamed = np.concatenate(pieces)[model.lookahead :][:38]
    whole = recogniser(features[None], np.array([75]))[0]
    # Sums of another number of rows round differently.
    np.testing.assert_allclose(streamed, whole, atol=1e-4)


def test_pytorch_computes_the_same(small):
    torch = pytest.importorskip("torch")
    config, recogniser = small
    network = in_torch.network(config.model, recogniser)
    random = np.random.default_rng(0)
    features = random.standard_normal((2, 60, 40)).astype(np.float32)
    frames = np.array([60, 41], np.int32)
    with torch.inference_mode():
        actual = network(*map(torch.from_numpy, (features, frames))).numpy()
    expected = np.asarray(recogniser(features, frames))
    # float32, in another order.
    np.testing.assert_allclose(actual[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(actual[1, :21], expected[1, :21], atol=1e-4)


def test_a_stream_compiles_nothing_once_it_runs(run, caplog):
    config, recogniser = runs.load(run)
    model = stream.chunk_model(config, recogniser, 80)
    with jax.log_compiles():
        stream.Stream(config, model).finish()
        assert "Compiling jit(advance)" in caplog.text
        caplog.clear()
        stream.Stream(config, model).feed(_noise(0.5))
    assert "Compiling" not in caplog.text


def test_commands_write_the_same_text(run, tmp_path, capsys):
    file = tmp_path / "said.ogg"
    soundfile.write(file, _noise(1.3, 16000), 16000)
    (tmp_path / "broken.wav").write_text("no sound")
    commands.transcribe([file], run, as_json=True)
    offline = json.loads(capsys.readouterr().out)["text"]
    picture = tmp_path / "stream.png"
    commands.stream(str(file), run, chunk_ms=80, picture=picture)
    assert f"   end    {offline}\n" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_files_without_sound_are_named_and_the_others_read(run, tmp_path, capsys):
    samples = {
        "good": _noise(1.3),
        "empty": _noise(1.0)[:0],
        "one": _noise(1.0)[:1],
        "nan": np.full(8000, np.nan, np.float32),
    }
    files = [tmp_path / f"{name}.wav" for name in samples]
    for file, of_file in zip(files, samples.values(), strict=True):
        soundfile.write(file, of_file, 8000, subtype="FLOAT")
    broken = tmp_path / "broken.wav"
    broken.write_text("no sound")
    with pytest.raises(SpeechError, match="4 of 5 files could not be read"):
        commands.transcribe([*files, broken], run)
    shown = capsys.readouterr()
    assert f"{files[0]}: " in shown.out
    for name, reason in {
        "empty": "0 samples are too few",
        "one": "1 samples are too few",
        "nan": "NaN",
        "broken": "cannot be read",
    }.items():
        assert any(f"{name}.wav" in s and reason in s for s in shown.err.splitlines())
    for file in (files[3], broken):
        with pytest.raises(SpeechError, match=rf"{file.name}: (has|cannot)"):
            commands.stream(str(file), run)
    commands.stream(str(files[1]), run)
    assert capsys.readouterr().out.endswith("   end    \n")


def test_a_run_is_tested_and_timed(run, capsys):
    with pytest.raises(SystemExit, match="no run is there"):
        main(["evaluate", "--run", str(run / "none")])
    main(["evaluate", "--run", str(run)])
    assert "greedy: CER" in capsys.readouterr().out
    assert (run / "posteriors.png").exists()
    arguments = ("--steps", "2", "--chunks", "2", "--chunks-ms", "40")
    main(["bench", "--run", str(run), *arguments])
    shown = capsys.readouterr().out
    assert "KiB by prnn_jax, reserve=lean" in shown
    for way in ("lax.scan", "prnn_jax, prepared"):
        assert way in shown


def test_an_exported_program_needs_nothing_of_this(run, tmp_path):
    config, recogniser = runs.load(run)
    program = export.write(config, recogniser, tmp_path).read_bytes()
    exported = jax_export.deserialize(bytearray(program))
    assert "custom_call @prnn" not in exported.mlir_module()
    recognise = exported.call
    samples = _noise(1.0)
    logits, lengths = jax.jit(recognise)(samples[None], np.array([8000], np.int32))
    features = dataset.log_mel(samples, config.features)
    expected = recogniser(features[None], np.array([len(features)]))
    assert lengths.tolist() == [49]
    # The FFTs of NumPy and XLA round differently, and a logarithm follows.
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-2)


def test_beam_search_writes_words_that_are_likely(tmp_path):
    pytest.importorskip("flashlight.lib.text")
    arpa = tmp_path / "lm.arpa"
    write_arpa(["one two", "one two three", "two one two"], 2, arpa)
    assert sorted(words_of(arpa)) == ["one", "three", "two"]
    logits = np.full((9, ALPHABET.labels), -9.0, np.float32)
    for frame, label in enumerate(ALPHABET.encode("one twp")):
        logits[frame, label] = 0
    logits[7:, 0] = 0
    search = BeamSearch(DecodeConfig(), arpa, ALPHABET)
    assert search(logits) == "one two"
    assert search.words(logits, 0.5) == [Word("one", 0.0, 1.5), Word("two", 2.0, 3.5)]
    assert search(logits[:0]) == ""
    with pytest.raises(SpeechError, match="no such language model"):
        BeamSearch(DecodeConfig(), tmp_path / "none.arpa", ALPHABET)
    write_arpa(["ÄÖ ÜÄ"], 2, arpa)
    with pytest.raises(SpeechError, match="none of its words"):
        BeamSearch(DecodeConfig(), arpa, ALPHABET)


def test_beam_search_by_command(run, capsys):
    pytest.importorskip("flashlight.lib.text")
    main(["evaluate", "--run", str(run), "--beam", "--lm-weight", "2"])
    assert "beam 32: CER" in capsys.readouterr().out


def test_no_beam_search_without_its_library(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashlight.lib.text", None)
    with pytest.raises(SystemExit, match="pip install flashlight-text"):
        main(["evaluate", "--run", str(run), "--beam"])
