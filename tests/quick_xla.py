"""How XLA compiles for tests: in half the time, to code that is slower; and once.

As accurate, and with the same passes over programs; what is left out is LLVM's work on
the code of XLA's own operations, threads for parts of a program, and where in Python
each operation is from. `XLA_FLAGS= pytest` tests with what users have.

What it has compiled is found again by other processes and later runs, by JAX's own
cache: a program, its options and XLA's version are the key. With
`JAX_ENABLE_COMPILATION_CACHE=0` everything is compiled anew.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jaxlib
from made_once import made_once, processor, scratch_folder

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
WEEK_S = 7 * 24 * 3600
CACHE = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def set_flags() -> None:
    """For this process and those it starts, if nobody has, and it is not for a GPU."""
    if "XLA_FLAGS" in os.environ or os.environ.get("PRNN_REQUIRE_GPU") == "1":
        return
    known = made_once("xla_flags.txt", [], (jaxlib.__version__, *FLAGS), _write_known)
    os.environ["XLA_FLAGS"] = known.read_text()
    _set("jax_traceback_in_locations_limit", 0)


def _write_known(path: Path) -> None:
    """XLA ends a process at a flag that it does not know."""
    path.write_text(" ".join(filter(_is_known, FLAGS)))


def _is_known(flag: str) -> bool:
    program = "import jax; jax.devices('cpu')"
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return done.returncode == 0


def keep_programs() -> None:
    """In this process and those it starts, if nobody has said where."""
    name = "JAX_COMPILATION_CACHE_DIR"
    if name in os.environ or os.environ.get("PRNN_REQUIRE_GPU") == "1":
        return
    # XLA divides some operations by the number of threads, which is not in JAX's key.
    machine = processor(), len(os.sched_getaffinity(0)), os.environ.get("PJRT_NPROC")
    digest = hashlib.sha256(repr(machine).encode()).hexdigest()[:16]
    folder = scratch_folder() / f"programs-{digest}"
    folder.mkdir(exist_ok=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _remove_old(folder)
    for option, value in {"jax_compilation_cache_dir": str(folder), **CACHE}.items():
        _set(option, value)


def _set(option: str, value: str | float) -> None:
    """JAX, and whatever imported it before, has read the environment."""
    os.environ[option.upper()] = str(value)
    jax.config.update(option, value)


def _remove_old(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run was first
            if path.stat().st_mtime < time.time() - WEEK_S:
                path.unlink()
