"""What takes long to make, or to run: once for all processes of tests, and later runs.

With `PRNN_TESTS_ANEW=1` no program's outcome is taken from an earlier run.
"""

import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Where the project's own headers are looked for.
INCLUDED_FROM = ROOT, ROOT / "tests", ROOT / "tests/fake_cuda"
#: Environment variables that no program reads.
OF_BUILDS = ("PRNN_CUDA_ARCHS",)
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)', re.MULTILINE)


def sources(*given: Path) -> list[Path]:
    """Files of C++ and CUDA, with all of the project's that they include."""
    found, todo = set(), [path.resolve() for path in given]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _included(path)
    return sorted(found)


@functools.cache
def _included(path: Path) -> list[Path]:
    names = _INCLUDE.findall(path.read_text())
    folders = path.parent, *INCLUDED_FROM
    places = (folder / name for name in names for folder in folders)
    return [place.resolve() for place in places if place.is_file()]


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


class _EndedBySignalError(Exception):
    pass


def ran_once(
    program: Path,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """What a program answers whose answer depends on nothing but what it is given.

    Its code, its arguments, the contents of files among them, the variables added to
    its environment and this library's there are the key. A program that a signal has
    ended is run again.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PRNN_") and name not in OF_BUILDS
    }
    given = ours | dict(environment or {})
    command = [str(program), *map(str, arguments)]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=os.environ | given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    if os.environ.get("PRNN_TESTS_ANEW") == "1":
        return run()

    def make(path: Path) -> None:
        done = run()
        if done.returncode < 0:
            raise _EndedBySignalError(done)
        path.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))

    read = program, *(a for a in arguments if isinstance(a, Path))
    words = [a for a in arguments if not isinstance(a, Path)]
    key = processor(), sorted(given.items()), *words
    try:
        kept = made_once(f"{program.stem}.outcome", read, key, make)
    except _EndedBySignalError as ended:
        return ended.args[0]
    return subprocess.CompletedProcess(command, *json.loads(kept.read_text()))
