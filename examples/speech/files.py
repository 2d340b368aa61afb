"""Files that are there as a whole or not at all, whenever a process ends."""

from pathlib import Path


def write(file: Path, text: str) -> None:
    """Writes text under another name, and renames it when all of it is there."""
    unfinished = file.with_name(f"{file.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
