"""Files that take long to make: once for all processes of tests, and later runs."""

import fcntl
import functools
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ".h", ".cc", ".cu", ".cuh"


def sources(*folders: Path) -> list[Path]:
    """Of C++ and CUDA, in the folders and below."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return sorted(path for path in found if path.suffix in SOURCES)


def scratch_folder() -> Path:
    """Of this user's tests, on this machine."""
    folder = Path(tempfile.gettempdir()) / f"prnn_tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def processor() -> str:
    """What code may be compiled for, and what results may depend on."""
    found = [platform.machine(), platform.processor()]
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = set(described.read_text().splitlines())
        found += sorted(s for s in lines if s.startswith(("model", "flags", "Feat")))
    return repr(found)


def made_once(
    name: str,
    of: Iterable[Path],
    options: Iterable[object],
    make: Callable[[Path], None],
) -> Path:
    """The file that `make(path)` makes `of` these files with these options.

    Made again where one of them has changed; in another clone of the repository it is
    the same. Who comes while it is being made waits.
    """
    given = (str(option).replace(str(ROOT), "") for option in options)
    digest = hashlib.sha256(repr((sys.version, *given)).encode())
    for path in of:
        digest.update(path.read_bytes())
    folder = scratch_folder()
    stem, _, suffix = name.partition(".")
    made = folder / f"{stem}-{digest.hexdigest()[:16]}{suffix and '.' + suffix}"
    with (folder / f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                unfinished = Path(scratch) / name
                make(unfinished)
                unfinished.rename(made)
    return made
