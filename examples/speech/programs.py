"""Programs that XLA has compiled, kept on disk: what one run compiles, later ones read.

By JAX's own cache, whose key is a program, its options and XLA's version.
"""

import hashlib
import os
import platform
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

_COMPILED_MS = 50  # what compiles faster is not kept


def keep(folder: Path) -> None:
    """In this process, before it compiles anything.

    Where JAX has been told already (JAX_COMPILATION_CACHE_DIR), that is done; with
    JAX_ENABLE_COMPILATION_CACHE=0, nothing is kept.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute() / _machine()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _COMPILED_MS / 1e3)


class Ahead:
    """A jitted function compiled for the arguments of several calls, side by side.

    `ahead[key]` is the program for the arguments of that key, once it is there.
    """

    def __init__(self, function: Any, arguments: Mapping[Hashable, tuple]):
        # Processes that compile one program for all must do so in one order.
        alone = jax.process_count() == 1
        threads = min(max(1, len(arguments)), os.cpu_count() or 1) if alone else 1
        with_threads = ThreadPoolExecutor(threads)
        self._programs = {
            key: with_threads.submit(lambda a=given: function.lower(*a).compile())
            for key, given in arguments.items()
        }
        with_threads.shutdown(wait=False)

    def __getitem__(self, key: Hashable) -> Any:
        return self._programs[key].result()


def _machine() -> str:
    """Code is made for a processor, and divided among its threads: not in JAX's key."""
    found = [platform.machine(), platform.processor(), os.environ.get("PJRT_NPROC")]
    found.append(str(len(os.sched_getaffinity(0))))
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = set(described.read_text().splitlines())
        found += sorted(s for s in lines if s.startswith(("model", "flags", "Feat")))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
