"""Making the corpus: digit strings spoken by espeak-ng, in a room, with noise.

Everything follows from the seed and the number of the utterance. No voice and no string
of dev or test occurs in train; variants of one voice (steph, steph2) share a split.
"""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from .errors import SpeechError
from .layouts import LAYOUTS, Recording

SAMPLE_RATE = 8000

_DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)
_ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en-gb",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbcwmd",
    "en-gb-x-gbclan",
    "en-029",
)

# Left out, as other voices are understood ten times better: Alicia, norbert, shelby.
_VOICES = {
    "train": (
        "m1 m2 m3 m4 m6 m8 f1 f2 f3 Alex Andy Annie Denis Diogo Gene Jacky Lee Marco "
        "Mario Michael Mike adam anika antonio aunty belinda benjamin caleb david ed "
        "grandma gustave john klatt klatt2 klatt3 klatt4 linda marcelo max michel "
        "miguel pablo pedro robert sandro victor zac"
    ),
    "dev": "m5 f5 Henrique edward edward2 travis",
    "test": "m7 f4 Andrea Hugo iven2 iven3 paul quincy steph steph2",
}

# libsndfile's 0...1 for Opus: about 8 kbit/s.
_COMPRESSION = 0.992


@dataclass(frozen=True)
class SynthConfig:
    """How many utterances each split has, and how they lie on the disk."""

    train: int = 2064
    dev: int = 120
    test: int = 200
    layout: Literal["opus", "manifest", "librispeech", "common-voice", "folder"] = (
        "opus"
    )
    """opus: a manifest, and one small file for all utterances of a voice."""
    seed: int = 0

    def __post_init__(self):
        for name in ("train", "dev", "test", "seed"):
            if (value := getattr(self, name)) < 0:
                raise SpeechError(f"expected --{name} of 0 or more, got {value}")


@dataclass(frozen=True)
class _Spoken:
    text: str
    voice: str
    accent: str
    seed: tuple[int, int, int]


def synthesise(folder: Path, config: SynthConfig, workers: int) -> None:
    """Writes all splits into a folder.

    Raises:
      SpeechError: there is no espeak-ng, or no scipy, or there are no workers.
    """
    if workers < 1:
        raise SpeechError(f"expected --workers above 0, got {workers}")
    _require_tools()
    taken: set[str] = set()
    for number, (split, names) in enumerate(_VOICES.items()):
        voices = names.split()
        spoken = _draw(voices, getattr(config, split), (config.seed, number), taken)
        taken |= {utterance.text for utterance in spoken}
        with ProcessPoolExecutor(workers) as pool:
            if config.layout == "opus":
                _write_opus(folder, split, voices, spoken, pool)
            else:
                recordings = list(pool.map(_recording, spoken))
                LAYOUTS[config.layout](folder, split, recordings)


def _require_tools() -> None:
    """What only this command needs."""
    if shutil.which("espeak-ng") is None:
        raise SpeechError(
            "synth needs the program espeak-ng, which speaks the digits; install it "
            "(Debian: apt install espeak-ng), or use the corpus that is here"
        )
    if importlib.util.find_spec("scipy") is None:
        raise SpeechError("synth needs scipy: pip install scipy")


def _write_opus(
    folder: Path,
    split: str,
    voices: Sequence[str],
    spoken: Sequence[_Spoken],
    pool: Executor,
) -> None:
    """Writes {split}.jsonl, and {split}/{voice}.ogg with all clips of a voice."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    by_voice = {voice: [u for u in spoken if u.voice == voice] for voice in voices}
    by_voice = {voice: said for voice, said in by_voice.items() if said}
    files = [folder / split / f"{voice}.ogg" for voice in by_voice]
    entries = list(pool.map(_record, files, by_voice.values()))
    lines = [json.dumps(entry) for voice in entries for entry in voice]
    (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _recording(utterance: _Spoken) -> Recording:
    return Recording(_speak(utterance), SAMPLE_RATE, utterance.text, utterance.voice)


def _draw(
    voices: Sequence[str], count: int, seed: tuple[int, int], taken: set[str]
) -> list[_Spoken]:
    rng = np.random.default_rng(seed)
    spoken = []
    while len(spoken) < count:
        digits = rng.integers(0, 10, rng.integers(3, 8))
        text = " ".join(_DIGITS[digit] for digit in digits)
        accent = _ACCENTS[rng.integers(len(_ACCENTS))]
        voice = voices[len(spoken) % len(voices)]
        if text not in taken:
            spoken.append(_Spoken(text, voice, accent, (*seed, len(spoken))))
    return spoken


def _record(file: Path, spoken: Sequence[_Spoken]) -> list[dict]:
    """Writes one audio file; returns the manifest entries of its clips."""
    clips, entries, start = [], [], 0
    for utterance in spoken:
        clip = _speak(utterance)
        entry = {
            "audio_filepath": f"{file.parent.name}/{file.name}",
            "offset": start / SAMPLE_RATE,
            "duration": len(clip) / SAMPLE_RATE,
            "text": utterance.text,
            "speaker": utterance.voice,
            "accent": utterance.accent,
        }
        clips.append(clip)
        entries.append(entry)
        start += len(clip)
    soundfile.write(
        file,
        np.concatenate(clips),
        SAMPLE_RATE,
        format="OGG",
        subtype="OPUS",
        compression_level=_COMPRESSION,
    )
    return entries


def _speak(utterance: _Spoken) -> np.ndarray:
    from scipy.signal import fftconvolve, resample_poly  # only this command needs scipy

    rng = np.random.default_rng(utterance.seed)
    speed, pitch, gap = rng.integers(130, 215), rng.integers(25, 75), rng.integers(4)
    options = f"-v {utterance.accent}+{utterance.voice} -s {speed} -p {pitch} -g {gap}"
    wav = subprocess.run(
        ["espeak-ng", "--stdout", *options.split(), utterance.text],
        check=True,
        capture_output=True,
    ).stdout
    # The header of a stream has no usable length: the samples are all that follows.
    samples = np.frombuffer(wav[wav.index(b"data") + 8 :], "<i2") / 32768
    loud = np.flatnonzero(np.abs(samples) > 1e-3)
    if loud.size == 0:
        raise RuntimeError(f"espeak-ng is silent as {utterance.voice}")
    speech = resample_poly(samples[loud[0] : loud[-1] + 1], 160, 441)  # from 22050 Hz

    before, after = rng.integers(SAMPLE_RATE // 20, SAMPLE_RATE // 4, 2)
    # Clips are whole 10 ms long, so that their times are short decimal numbers.
    after += -(before + len(speech) + after) % (SAMPLE_RATE // 100)
    speech = np.pad(speech, (before, after))
    if rng.random() < 0.6:
        speech = fftconvolve(speech, _room(rng))[: len(speech)]
    noise = _noise(rng, len(speech))
    snr_db = rng.uniform(8, 35)
    speech = speech + noise * (speech.std() / noise.std() * 10 ** (-snr_db / 20))
    return (speech / np.abs(speech).max() * rng.uniform(0.2, 0.95)).astype(np.float32)


def _room(rng: np.random.Generator) -> np.ndarray:
    """The direct sound and exponentially decaying white noise: a cheap room."""
    length = int(rng.uniform(0.1, 0.5) * SAMPLE_RATE)  # to -60 dB
    decay = np.exp(-6.9 * np.arange(length) / length)
    response = rng.standard_normal(length) * decay * rng.uniform(0.02, 0.12)
    response[0] = 1.0
    return response


def _noise(rng: np.random.Generator, samples: int) -> np.ndarray:
    """White, pink or brown noise."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    spectrum *= np.arange(1, len(spectrum) + 1) ** rng.choice([0.0, -0.5, -1.0])
    return np.fft.irfft(spectrum, samples)
