"""Recordings as the speech example reads them: whole, in pieces, from a pipe."""

import io
import json
import os
import threading

import numpy as np
import pytest
import soundfile
from speech_support import ALPHABET, noise

from examples.speech import audio, dataset, stream
from examples.speech.config import DataConfig, FeatureConfig
from examples.speech.errors import SpeechError

SECOND = noise(1.0)


def test_files_in_place_of_raw_samples():
    pipe = io.BytesIO(b"RIFF" + bytes(400))
    with pytest.raises(SpeechError, match=r"expected raw samples.*-ar 16000 -"):
        list(stream.from_pipe(pipe, 16000, 20))


def test_a_recording_too_loud_for_any_feature(tmp_path):
    loud = SECOND.copy()
    loud[7] = 1e30
    for name, samples in {"loud.wav": loud, "good.wav": 30000 * SECOND}.items():
        soundfile.write(tmp_path / name, samples, 8000, subtype="FLOAT")
        (tmp_path / name).with_suffix(".txt").write_text("one")
    data = DataConfig(cache=tmp_path / "cache")
    loaded = dataset.load(tmp_path, data, FeatureConfig(), ALPHABET)
    (kept,), ((clip, reason),) = loaded
    assert np.isfinite(kept.features).all()
    assert clip.audio.name == "loud.wav"
    assert reason == "has samples of 1e+30, expected -1 to 1"
    with pytest.raises(SpeechError, match=r"loud.wav: has samples of 1e\+30"):
        list(stream.from_file(tmp_path / "loud.wav", 8000, 160))


def test_an_mp3_is_read_to_its_end(tmp_path):
    """Also one that does not say how long it is, and begins with small frames."""
    samples = np.concatenate([np.zeros(80000, np.float32), noise(6.0)])
    file, told = tmp_path / "cut.mp3", tmp_path / "told.mp3"
    soundfile.write(told, samples, 8000, bitrate_mode="VARIABLE")
    encoded = told.read_bytes()
    name = encoded.index(b"Xing")
    file.write_bytes(encoded[:name] + bytes(120) + encoded[name + 120 :])
    assert soundfile.info(file).frames != len(samples)
    whole = audio.read(file, 8000)
    assert len(samples) <= len(whole) < len(samples) + 4000
    pieces = np.concatenate(list(stream.from_file(file, 8000, 40)))
    np.testing.assert_array_equal(pieces, whole)
    pieces = np.concatenate(list(stream.from_file(told, 8000, 40)))
    np.testing.assert_array_equal(pieces, audio.read(told, 8000))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(file.read_bytes(),))
    writer.start()
    np.testing.assert_array_equal(audio.read(pipe, 8000), whole)
    writer.join()
    file.write_bytes(encoded[: len(encoded) // 2])
    for act in (audio.read, lambda *given: list(stream.from_file(*given, 160))):
        with pytest.raises((ValueError, SpeechError), match=r"cannot be|ends after"):
            act(file, 8000)


def test_an_mp3_that_cannot_be_read_to_its_end(tmp_path, monkeypatch):
    """And is open once already: what feeds the pipe says why it ends."""
    file = tmp_path / "a.mp3"
    soundfile.write(file, SECOND, 8000)

    def refuse(*given):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(type(file), "open", refuse)
    with pytest.raises(ValueError, match=r"cannot be read: .*Too many open files"):
        audio.read(file, 8000)


def test_a_wav_in_a_pipe_does_not_know_its_length(tmp_path):
    file, pipe = tmp_path / "a.wav", tmp_path / "pipe"
    soundfile.write(file, SECOND, 8000)
    content = bytearray(file.read_bytes())
    at = content.index(b"data") + 4
    content[4:8] = content[at : at + 4] = b"\xff" * 4  # as ffmpeg writes it
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    np.testing.assert_array_equal(audio.read(pipe, 8000), audio.read(file, 8000))
    writer.join()


def test_a_flac_that_came_through_a_pipe_does_not_say_its_length(tmp_path):
    file = tmp_path / "piped.flac"
    soundfile.write(file, SECOND, 8000)
    samples = audio.read(file, 8000)
    content = bytearray(file.read_bytes())
    content[21] &= 0xF0  # of STREAMINFO, 36 bits for the number of samples
    content[22:26] = bytes(4)
    file.write_bytes(content)
    np.testing.assert_array_equal(audio.read(file, 8000), samples)
    pieces = np.concatenate(list(stream.from_file(file, 8000, 160)))
    np.testing.assert_array_equal(pieces, samples)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.wav", "there is no such file"),
        ("folder.wav", "is a folder"),
        ("a" * 5000 + ".wav", "there is no such file"),
        ("raw.raw", "cannot be read: .*samplerate"),
    ],
    ids=["absent", "folder", "long name", "raw"],
)
def test_what_is_no_recording(name, message, tmp_path):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "raw.raw").write_bytes(bytes(100))
    with pytest.raises(ValueError, match=message):
        audio.read(tmp_path / name, 8000)
    with pytest.raises(SpeechError, match=message):
        list(stream.from_file(tmp_path / name, 8000, 160))
    manifest = tmp_path / "all.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": name, "text": "one"}))
    data = DataConfig(cache=tmp_path / "cache")
    loaded = dataset.load(manifest, data, FeatureConfig(), ALPHABET)
    assert len(loaded.skipped) == 1


def test_ctrl_c_ends_what_a_microphone_says(monkeypatch):
    pipe = io.BytesIO(bytes(2000))
    pieces = stream.from_pipe(pipe, 8000, 20)
    assert len(next(pieces)) == 160

    def read(size):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipe, "read", read, raising=False)
    assert not list(pieces)
