"""Compiles programs that run the CUDA kernels' sources in the emulator."""

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_once import made_once, sources

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
COMPILER = shutil.which("c++")
TIMEOUT_S = 1100  # less than what conftest.py calls a hang

# Programs and emulator are compiled with the same options: both tell the sanitizers
# which stack they are on.
VARIANTS = {
    "plain": ["-O2", "-g"],
    "address": [
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ],
    "thread": ["-O1", "-g", "-fsanitize=thread"],
}


def run(*args: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        args, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def compile_cxx(*args: str | Path) -> None:
    """Compiles with the language and paths of the build; warnings are errors."""
    language = "-std=c++20", "-pthread", f"-I{ROOT}", f"-I{ROOT}/tests"
    # Kernels tell nvcc what to unroll.
    warnings = "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"
    done = run(COMPILER, *language, *warnings, *args)
    assert done.returncode == 0, done.stderr


@functools.cache
def require(variant: str) -> None:
    """Skips where there is no compiler, or it cannot make programs of this variant."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler, c++")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "empty.cc", Path(folder) / "empty"
        source.write_text("int main() {}\n")
        built = run(COMPILER, *VARIANTS[variant], source, "-o", program)
        if built.returncode != 0:
            pytest.skip(f"{COMPILER} cannot do {' '.join(VARIANTS[variant])}")
        ran = run(program)
        if ran.returncode != 0:
            pytest.skip(f"{variant} does not run on this system: {ran.stderr[:200]}")


@functools.cache
def compiled(folder: Path, variant: str) -> Path:
    """All sources of a folder of tests/, in one object file."""

    def make(linked: Path) -> None:
        paths = sorted(folder.glob("*.cc"))
        parts = [linked.with_suffix(f".{path.stem}.o") for path in paths]

        def compile_one(source: Path, part: Path) -> None:
            compile_cxx(*VARIANTS[variant], "-c", source, "-o", part)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(compile_one, paths, parts))
        compile_cxx("-r", "-nostdlib", *parts, "-o", linked)

    read = sources(*folder.glob("*.cc"))
    return made_once(f"{folder.name}.o", read, (COMPILER, *VARIANTS[variant]), make)


def build(
    variant: str,
    name: str,
    *args: str | Path,
    prepare: Callable[[Path], Iterable[str | Path]] = lambda folder: (),
    key: object = None,
) -> Path:
    """The program that sources and options make, linked to the emulator.

    Args:
      prepare: puts sources into an empty folder, and returns more options.
      key: what those depend on.
    """
    require(variant)
    library = compiled(FOLDER, variant)
    command = *VARIANTS[variant], *args, library

    def make(program: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            compile_cxx(*command, *prepare(Path(folder)), "-o", program)

    given = [path for path in args if isinstance(path, Path)]
    read = sources(*(path for path in given if path.suffix == ".cc"))
    return made_once(name, [*read, *given], (COMPILER, key, *command), make)
