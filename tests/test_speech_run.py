"""A run of the speech example: training, a kill and the way back, streams."""

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import soundfile
from flax import nnx
from jax import export as jax_export
from speech_support import ALPHABET, noise, streamed, written_config

from examples.speech import (
    checkpoint,
    commands,
    dataset,
    export,
    in_torch,
    runs,
    settings,
    stream,
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
from examples.speech.language_model import LanguageModel
from examples.speech.model import Recogniser
from examples.speech.ngram import words_of, write_arpa
from examples.speech.progress import read

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def config_file(tmp_path_factory) -> Path:
    return written_config(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def run(config_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    main(["train", "--config", str(config_file), "--run", str(folder)])
    return folder


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
        with pytest.raises(SpeechError, match="written: File too large; make room"):
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


def test_settings_with_which_nothing_was_learnt_may_change(config_file, tmp_path):
    arguments = ["train", "--config", str(config_file), "--run", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"none.jsonl: there is no such file"):
        main([*arguments, "--data.train", "none.jsonl"])
    config = settings.load(config_file)
    with runs.training_in(tmp_path, config):
        assert settings.load(tmp_path / runs.CONFIG) == config


def test_a_run_begins_with_the_weights_of_another(config_file, run, tmp_path, capsys):
    arguments = ["train", "--config", str(config_file), "--run", str(tmp_path)]
    arguments += ["--train.begin-with", str(run), "--train.epochs", "1"]
    main([*arguments, "--train.learning-rate", "0"])
    assert f"beginning with the weights of {run}\n" in capsys.readouterr().out
    of_both = [nnx.state(runs.load(each)[1]) for each in (run, tmp_path)]
    close = partial(np.testing.assert_allclose, rtol=1e-5)  # averages of equal ones
    jax.tree.map(close, *of_both)


def test_names_that_cannot_be_what_they_are_for(config_file, run, tmp_path):
    (tmp_path / "file").write_text("")
    file = str(tmp_path / "file")
    arguments = ["train", "--config", str(config_file)]
    for given, message in (
        ([*arguments, "--run", file], "file: is a file; expected a folder for --run"),
        ([*arguments, "--run", f"{file}2", "--data.cache", file], "file: File exists"),
        (["export", "--run", str(run), "--out", file], "expected a folder for --out"),
        (["bench", "--run", str(run), "--chunks-ms", "30"], "a multiple of 20 ms, got"),
        (["stream", "x.wav", "--run", str(run), "--picture", "a.xyz"], "that ends in"),
        (["transcribe", "--run", str(run)], "expected the names of recordings"),
        (["bench", "--run", str(run), "--steps", "0"], "--steps and --chunks above 0"),
        (["evaluate", "--run", str(run), "--beam", "--arpa", str(tmp_path)], "no such"),
    ):
        with pytest.raises(SystemExit, match=f"error: .*{message}"):
            main(given)


def test_a_run_that_has_ended_says_so(config_file, run, capsys):
    with (run / runs.METRICS).open("a") as file:
        file.write("[1]\n{}\n")  # no records
    main(["train", "--config", str(config_file), "--run", str(run)])
    assert "after step 6 of 6: nothing is left to train" in capsys.readouterr().out
    assert len(read(run / runs.METRICS)) == 8


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
    features = np.random.default_rng(0).standard_normal((75, 40)).astype(np.float32)
    whole = recogniser(features[None], np.array([75]))[0]
    # Sums of another number of rows round differently.
    np.testing.assert_allclose(streamed(model, features), whole, atol=1e-4)


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
        stream.Stream(config, model).feed(noise(0.5))
    assert "Compiling" not in caplog.text


def test_commands_write_the_same_text(run, tmp_path, capsys):
    file = tmp_path / "said.ogg"
    soundfile.write(file, noise(1.3, 16000), 16000)
    (tmp_path / "broken.wav").write_text("no sound")
    commands.transcribe([file], run, as_json=True)
    offline = json.loads(capsys.readouterr().out)["text"]
    picture = tmp_path / "new" / "stream.png"
    commands.stream(str(file), run, chunk_ms=80, picture=picture)
    assert f"   end    {offline}\n" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_files_without_sound_are_named_and_the_others_read(run, tmp_path, capsys):
    samples = {
        "good": noise(1.3),
        "empty": noise(1.0)[:0],
        "one": noise(1.0)[:1],
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
    main(["evaluate", "--run", str(run), "--int8"])
    shown = capsys.readouterr().out
    assert "greedy: CER" in shown
    assert "greedy, int8: CER" in shown
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
    samples = noise(1.0)
    two, counts = np.stack([samples, samples]), np.array([8000, 0], np.int32)
    logits, lengths = jax.jit(recognise)(two, counts)
    features = dataset.log_mel(samples, config.features)
    expected = recogniser(features[None], np.array([len(features)]))
    assert lengths.tolist() == [49, 0]
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
    search = BeamSearch(DecodeConfig(), LanguageModel(arpa, ALPHABET))
    assert search(logits) == "one two"
    assert search.words(logits, 0.5) == [Word("one", 0.0, 1.5), Word("two", 2.0, 3.5)]
    assert search(logits[:0]) == ""
    with pytest.raises(SpeechError, match="no such language model"):
        LanguageModel(tmp_path / "none.arpa", ALPHABET)
    write_arpa(["ÄÖ ÜÄ"], 2, arpa)
    with pytest.raises(SpeechError, match="none of its words"):
        LanguageModel(arpa, ALPHABET)
    for content in (b"one two", b"\xff\xfe\x00"):
        arpa.write_bytes(content)
        with pytest.raises(SpeechError, match="no language model in the ARPA format"):
            LanguageModel(arpa, ALPHABET)


def test_beam_search_by_command(run, capsys):
    pytest.importorskip("flashlight.lib.text")
    main(["evaluate", "--run", str(run), "--beam", "--lm-weight", "2"])
    assert "beam 32: CER" in capsys.readouterr().out


def test_no_beam_search_without_its_library(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashlight.lib.text", None)
    with pytest.raises(SystemExit, match="pip install flashlight-text"):
        main(["evaluate", "--run", str(run), "--beam"])
