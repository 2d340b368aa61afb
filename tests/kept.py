"""Results of scans on disk: for all processes of tests, and for later runs.

What is kept is a function of the case, of the sources of the package's core and of the
tests that run it, and of what compiles and runs them; with a change of any of these
everything is made again.
"""

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jaxlib
import numpy as np
from made_once import processor, scratch_folder

import prnn_jax

SOURCES = Path(prnn_jax.__file__).parent, Path(__file__).parent
OWN = "cases.py", "support.py"
#: Of the package: what a scan has no part in, and what imports the core.
OTHERS = "_layers", "_statistics", "convert"
WEEK_S = 7 * 24 * 3600


def kept(key: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`make()`, or what it returned when it was last called with this key."""
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    try:
        with np.load(path) as arrays:
            return dict(map(_read, arrays.files, arrays.values()))
    except FileNotFoundError:
        pass
    arrays = make()
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
        np.savez(unfinished, **dict(map(_written, arrays, arrays.values())))
    os.replace(unfinished.name, path)
    return arrays


def _written(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """NumPy writes no bfloat16: its bits, and in the name what they are."""
    if array.dtype == jax.numpy.bfloat16:
        return f"{name}:bfloat16", array.view(np.uint16)
    return name, array


def _read(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, dtype = name.partition(":")
    return name, array.view(dtype) if dtype else array


@functools.cache
def _folder() -> Path:
    """Of these sources. Those of others go when nothing was added for a week."""
    parent = scratch_folder()
    folder = parent / f"scans-{_digest()}"
    for other in parent.glob("scans-*"):
        if other != folder and other.stat().st_mtime < time.time() - WEEK_S:
            shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _digest() -> str:
    package, tests = SOURCES
    digest = hashlib.sha256()
    core = (
        path
        for folder in sorted(package.iterdir())
        if folder.is_dir() and folder.name not in OTHERS
        for path in sorted(folder.rglob("*.py"))
    )
    for path in (*core, *(tests / name for name in OWN)):
        digest.update(path.read_bytes())
    versions = jax.__version__, jaxlib.__version__, np.__version__
    digest.update(repr((processor(), versions, os.environ.get("XLA_FLAGS"))).encode())
    return digest.hexdigest()[:16]
