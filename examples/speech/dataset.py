"""Clips to utterances: features made once, kept on disk and read as they are needed.

What cannot be used is left out, and said with its reason: a corpus of 300,000 files has
some that are broken.
"""

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import audio, text
from .config import DataConfig, FeatureConfig
from .corpora import Clip, find_clips
from .errors import SpeechError
from .features import log_mel


@dataclass(frozen=True)
class Utterance:
    """A clip ready for the model: log-mel features [frames, mel_bins], labels."""

    clip: Clip
    text: str  # normalised
    features: np.ndarray
    labels: np.ndarray
    versions: tuple[np.ndarray, ...] = ()
    """Features at other speeds, of which training takes one; none: as it is."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Frames of each of what training may take."""
        return tuple(len(features) for features in self.versions or (self.features,))


class Skipped(NamedTuple):
    """A clip that is left out, and why."""

    clip: Clip
    reason: str


class Dataset(NamedTuple):
    """What `load` made of a corpus."""

    utterances: list[Utterance]
    skipped: list[Skipped]


def load(
    source: Path,
    data: DataConfig,
    features: FeatureConfig,
    vocabulary: text.Vocabulary,
    speeds: Sequence[float] = (1.0,),
) -> Dataset:
    """All of a corpus that can be used, in its order; with versions at some speeds.

    The features are a file that is mapped into memory, not read: they may be more than
    the memory holds.
    """
    found = find_clips(source)
    clips = [clip for clip in found if clip.text is not None]  # the others are not read
    skipped = [Skipped(clip, "has no text") for clip in found if clip.text is None]
    loaded = _at_speed(clips, data, features, vocabulary, 1.0)
    skipped += loaded.skipped
    if set(speeds) == {1.0}:
        return Dataset(loaded.utterances, skipped)
    versions = [
        [u.features for u in _at_speed(clips, data, features, vocabulary, s).utterances]
        for s in speeds
    ]
    utterances = [
        replace(utterance, versions=tuple(of_it))
        for utterance, *of_it in zip(loaded.utterances, *versions, strict=True)
    ]
    return Dataset(utterances, skipped)


def _at_speed(
    clips: Sequence[Clip],
    data: DataConfig,
    features: FeatureConfig,
    vocabulary: text.Vocabulary,
    speed: float,
) -> Dataset:
    groups = _by_file(clips)
    folder = data.cache / _fingerprint(groups, data, features, speed)
    if not folder.exists():
        _make(groups, data, features, speed, folder)
    shape = (-1, features.mel_bins)
    frames = _mapped(folder / "features.f32").reshape(shape)
    entries = json.loads((folder / "clips.json").read_text())
    made, start = {}, 0
    for clip, entry in zip(itertools.chain(*groups), entries, strict=True):
        made[id(clip)] = start, entry
        start += entry.get("frames", 0)
    utterances, skipped = [], []
    characters = vocabulary.characters
    for clip in clips:
        start, entry = made[id(clip)]
        if "skipped" in entry:
            skipped.append(Skipped(clip, entry["skipped"]))
            continue
        of_clip = frames[start : start + entry["frames"]]
        written = text.normalise(clip.text or "", characters)
        try:
            labels = vocabulary.encode(written)
        except ValueError as error:
            skipped.append(Skipped(clip, f"{error} in {written!r}"))
            continue
        utterances.append(Utterance(clip, written, of_clip, labels))
    return Dataset(utterances, skipped)


def fits(labels: np.ndarray, output_frames: int) -> bool:
    """Whether CTC can align the labels at all.

    Every label takes a frame, and between two equal labels there is a blank. The loss
    of an utterance that does not fit is a huge constant that drowns all the others.
    """
    repeats = int(np.sum(labels[1:] == labels[:-1]))
    return len(labels) > 0 and len(labels) + repeats <= output_frames


def _by_file(clips: Sequence[Clip]) -> list[list[Clip]]:
    """Those of one recording together, so that it is read once, in any order."""
    groups: dict[Path, list[Clip]] = {}
    for clip in clips:
        groups.setdefault(clip.audio, []).append(clip)
    return list(groups.values())


def _make(
    groups: Sequence[Sequence[Clip]],
    data: DataConfig,
    features: FeatureConfig,
    speed: float,
    folder: Path,
) -> None:
    """Writes the features of all clips, and how many frames each has or why none.

    The folder gets its name when all is in it: one that is there is complete.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    entries = []
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as name:
        making = Path(name) / "made"
        making.mkdir()
        try:
            with (making / "features.f32").open("wb") as file:
                for made in _features(groups, data, features, speed):
                    if isinstance(made, str):
                        entries.append({"skipped": made})
                    else:
                        file.write(made.astype(np.float32).tobytes())
                        entries.append({"frames": len(made)})
            (making / "clips.json").write_text(json.dumps(entries))
        except OSError as error:
            raise SpeechError(
                f"{data.cache}: the features could not be written: {error.strerror}; "
                "make room, or let data.cache be another folder"
            ) from None
        try:
            making.rename(folder)
        except OSError:
            if not folder.exists():  # else another run has been as far
                raise


def _features(
    groups: Sequence[Sequence[Clip]],
    data: DataConfig,
    features: FeatureConfig,
    speed: float,
) -> Iterator[np.ndarray | str]:
    """Features of each clip, or what is wrong with it; those of one file together."""

    def of_file(group: Sequence[Clip]) -> list[np.ndarray | str]:
        try:
            recording = audio.read(group[0].audio, features.sample_rate)
        except ValueError as error:
            return [str(error)] * len(group)
        return [_features_of(clip, recording, data, features, speed) for clip in group]

    # Decoding and FFTs run outside of Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        files = iter(groups)
        while block := list(itertools.islice(files, 64)):
            for made in pool.map(of_file, block):
                yield from made


def _features_of(
    clip: Clip,
    recording: np.ndarray,
    data: DataConfig,
    features: FeatureConfig,
    speed: float,
) -> np.ndarray | str:
    rate = features.sample_rate
    start = round(clip.offset * rate)
    end = len(recording)
    if clip.duration is not None:
        end = start + round(clip.duration * rate)
    seconds = (end - start) / rate
    if start < 0:
        return f"begins at {clip.offset:.2f} s, before its recording"
    # Headers and resampling round: a manifest's end may be some samples off.
    if end - len(recording) > 0.05 * rate or start > len(recording):
        return f"ends at {len(recording) / rate:.2f} s, before the clip does"
    if not data.min_seconds <= seconds <= data.max_seconds:
        return (
            f"lasts {seconds:.2f} s, not {data.min_seconds:g} to {data.max_seconds:g} s"
        )
    # As if it had been recorded at another rate: the voice is higher or lower, too.
    samples = audio.resample(recording[start:end], speed * rate, rate)
    return log_mel(samples, features)


def _fingerprint(
    groups: Sequence[Sequence[Clip]],
    data: DataConfig,
    features: FeatureConfig,
    speed: float,
) -> str:
    """Changes with anything that the features depend on."""
    options = f"{features} {data.min_seconds} {data.max_seconds}"
    if speed != 1:
        options += f" {speed}"
    digest = hashlib.sha256(options.encode())
    for group in groups:
        file = group[0].audio
        try:
            stat = file.stat()
        except (OSError, ValueError):  # not there, or a name that none can have
            stat = None
        times = [(clip.offset, clip.duration) for clip in group]
        state = stat and (stat.st_size, stat.st_mtime_ns)
        digest.update(os.fsencode(f"{file.absolute()} {state} {times}\n"))
    return digest.hexdigest()[:16]


def _mapped(file: Path) -> np.ndarray:
    """An empty file cannot be mapped."""
    if file.stat().st_size == 0:
        return np.zeros(0, np.float32)
    return np.memmap(file, np.float32, "r")
