"""Writing a split of a corpus as others lay theirs out; `corpora.py` reads it."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import audio


class Recording(NamedTuple):
    """Something said."""

    samples: np.ndarray
    sample_rate: int
    text: str
    speaker: str


def manifest(folder: Path, split: str, recordings: Sequence[Recording]) -> Path:
    """NeMo's: a line of JSON for each recording."""
    lines = []
    for number, recording in enumerate(recordings):
        name = f"{split}/{number:05}.wav"
        _write(folder / name, recording)
        entry = {
            "audio_filepath": name,
            "duration": len(recording.samples) / recording.sample_rate,
            "text": recording.text,
            "speaker": recording.speaker,
        }
        lines.append(json.dumps(entry) + "\n")
    return _text(folder / f"{split}.jsonl", "".join(lines))


def librispeech(folder: Path, split: str, recordings: Sequence[Recording]) -> Path:
    """LibriSpeech's: a folder a speaker and chapter, FLAC, upper case."""
    speakers = sorted({recording.speaker for recording in recordings})
    for reader, speaker in enumerate(speakers, start=1):
        chapter = folder / split / str(reader) / "1"
        said = [r for r in recordings if r.speaker == speaker]
        lines = []
        for number, recording in enumerate(said):
            name = f"{reader}-1-{number:04}"
            _write(chapter / f"{name}.flac", recording)
            lines.append(f"{name} {recording.text.upper()}\n")
        _text(chapter / f"{reader}-1.trans.txt", "".join(lines))
    return folder / split


def common_voice(folder: Path, split: str, recordings: Sequence[Recording]) -> Path:
    """Common Voice's: MP3 in one folder, a table a split, sentences as one writes."""
    list_of_split = folder / f"{split}.tsv"
    folder.mkdir(parents=True, exist_ok=True)
    with list_of_split.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        table.writerow(["client_id", "path", "sentence"])
        for number, recording in enumerate(recordings):
            name = f"{split}_{number:08}.mp3"
            _write(folder / "clips" / name, recording)
            sentence = f"{recording.text.capitalize()}."
            table.writerow([recording.speaker, name, sentence])
    return list_of_split


def texts_beside(folder: Path, split: str, recordings: Sequence[Recording]) -> Path:
    """Recordings, each with a text file of its name."""
    for number, recording in enumerate(recordings):
        file = folder / split / recording.speaker / f"{number:05}.ogg"
        _write(file, recording)
        _text(file.with_suffix(".txt"), recording.text + "\n")
    return folder / split


LAYOUTS: dict[str, Callable[[Path, str, Sequence[Recording]], Path]] = {
    "manifest": manifest,
    "librispeech": librispeech,
    "common-voice": common_voice,
    "folder": texts_beside,
}


def _write(file: Path, recording: Recording) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    audio.write(file, recording.samples, recording.sample_rate)


def _text(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file
