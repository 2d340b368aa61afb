"""Corpora as they lie on disks: from a path to the clips of a split."""

import csv
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import soundfile

from .errors import SpeechError

#: What a line raises that is none of a manifest.
_NOT_A_CLIP = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError),
)
#: 30 years; more is no length of a recording.
_MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Clip:
    """Something said: a file, or a part of it, and its text as it was written."""

    audio: Path
    text: str | None  # None: there is none
    speaker: str = "unknown"
    offset: float = 0.0  # seconds
    duration: float | None = None  # to the end of the file

    def __str__(self):
        return f"{self.audio}" + (f" at {self.offset:.2f} s" if self.offset else "")


def find_clips(source: Path) -> list[Clip]:
    """The clips of a split, in the order of its lists, files of one name sorted.

    source is one of
      *.jsonl, *.json: a NeMo manifest, {"audio_filepath", "duration", "text"} a line,
        also "offset" and "speaker"; paths are relative to the manifest;
      *.tsv: a list of Common Voice, with the recordings in `clips` beside it;
      a folder in which there are *.trans.txt: LibriSpeech, or a split of it;
      another folder: recordings, with the text of each in a .txt of the same name.

    Clips without a text are among them, and what is no recording: to be left out, and
    counted.
    """
    if not source.exists():
        raise SpeechError(f"{source}: there is no such file or folder")
    if source.is_dir():
        within = _files(source)
        lists = [file for file in within if file.name.endswith(".trans.txt")]
        clips = list(_librispeech(lists, within) if lists else _folder(within))
    elif source.suffix.lower() in (".jsonl", ".json"):
        clips = list(_manifest(source))
    elif source.suffix.lower() == ".tsv":
        clips = list(_common_voice(source))
    else:
        raise SpeechError(
            f"{source}: expected a manifest (.jsonl), a list of Common Voice (.tsv) or "
            "a folder of recordings"
        )
    if all(clip.text is None for clip in clips):
        message = f"{source}: there are no recordings with texts in it"
        if source.is_dir():
            message += (
                "; expected a .txt beside each, or LibriSpeech's *.trans.txt: of other "
                "lists (metadata.csv, wav.scp) make a manifest"
            )
        raise SpeechError(message)
    return clips


def _files(folder: Path) -> list[Path]:
    """All that lie in a folder, sorted; behind links, too, each folder once.

    But for hidden ones: macOS leaves a ._a.wav beside each a.wav.
    """
    found, seen = [], set()

    def refuse(error: OSError):
        raise error

    for name, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        if (where := os.path.realpath(name)) in seen:
            folders.clear()
            continue
        seen.add(where)
        found += [Path(name, file) for file in files if not file.startswith(".")]
    return sorted(found)


@cache
def _formats() -> set[str]:
    # Raw samples do not say at which rate.
    formats = {f".{name.lower()}" for name in soundfile.available_formats()} - {".raw"}
    return formats | {".opus", ".aif", ".oga"}


def _is_recording(file: Path) -> bool:
    return file.suffix.lower() in _formats()


def _manifest(source: Path) -> Iterator[Clip]:
    # JSON may have other ends of lines within its texts.
    for number, line in enumerate(_read(source).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text, duration = entry.get("text"), entry.get("duration")
            if not isinstance(text, str | None):
                raise ValueError(f"the text is {text!r}")
            speaker = str(entry.get("speaker", "unknown"))
            for name in (entry["audio_filepath"], speaker, text or ""):
                name.encode()  # JSON may have what no text has
            yield Clip(
                audio=source.parent / entry["audio_filepath"],
                text=text,
                speaker=speaker,
                offset=_seconds(entry.get("offset") or 0.0),
                duration=None if duration is None else _seconds(duration),
            )
        except _NOT_A_CLIP as error:
            message = (
                f"{source}, line {number}: expected an object of JSON with "
                f"audio_filepath and text; {type(error).__name__}: {error}"
            )
            if line.startswith("["):
                message += "; of one list, `jq -c .[]` makes lines"
            raise SpeechError(message) from None


def _seconds(value: object) -> float:
    """JSON as Python reads it may have NaN."""
    seconds = float(value)  # type: ignore[arg-type]
    if not abs(seconds) < _MOST_SECONDS:
        raise ValueError(f"{value!r} are no seconds")
    return seconds


def _librispeech(lists: Sequence[Path], within: Sequence[Path]) -> Iterator[Clip]:
    recordings: dict[str, list[Path]] = {}
    for file in filter(_is_recording, within):
        recordings.setdefault(str(file.with_suffix("")), []).append(file)
    for file in lists:
        for line in _read(file).split("\n"):
            name, _, text = line.strip().partition(" ")
            if name:
                base = str(file.parent / name)
                of_name = recordings.get(base) or [Path(f"{base}.flac")]
                yield Clip(of_name.pop(0), text, name.split("-")[0])
    for audio in itertools.chain(*recordings.values()):  # in no list
        yield Clip(audio, None, audio.name.split("-")[0])


def _common_voice(source: Path) -> Iterator[Clip]:
    lines = _read(source).split("\n")  # and not at other ends that a sentence may have
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    if missing := {"path", "sentence"} - set(rows.fieldnames or ()):
        raise SpeechError(f"{source}: has no column {', '.join(sorted(missing))}")
    for row in rows:
        name = row["path"] or ""
        if name and not Path(name).suffix:  # as in releases of 2019
            name += ".mp3"
        audio = source.parent / "clips" / name
        speaker = row.get("client_id") or "unknown"
        yield Clip(audio, row["sentence"] if row["path"] else None, speaker)


def _folder(within: Sequence[Path]) -> Iterator[Clip]:
    recordings = [file for file in within if _is_recording(file)]
    texts = {file for file in within if file.suffix == ".txt"}
    spoken = {file.with_suffix(".txt") for file in recordings}
    # A text beside a file of another format, such as .m4a, is not to vanish.
    unspoken = texts - spoken
    others = {f for f in within if f.with_suffix(".txt") in unspoken} - texts
    for audio in sorted({*recordings, *others}):
        text = audio.with_suffix(".txt")
        yield Clip(audio, _read(text) if text in texts else None, audio.parent.name)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")  # Windows' editors begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise SpeechError(f"{file}: expected text in UTF-8; {error}") from None
