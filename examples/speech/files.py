"""Files that are there as a whole or not at all, whenever a process ends."""

from pathlib import Path


def write(file: Path, content: str | bytes) -> None:
    """Writes it under another name, and renames it when all of it is there."""
    unfinished = file.with_name(f"{file.name}.tmp")
    if isinstance(content, str):
        content = content.encode(errors="surrogateescape")  # as names of files have it
    unfinished.write_bytes(content)
    unfinished.replace(file)
