"""Programs of the speech example that are compiled side by side, and kept."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from examples.speech import programs

ROOT = Path(__file__).parents[1]
ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def test_a_program_for_each_of_several_calls():
    function = jax.jit(lambda x, scale: scale * x.sum())
    calls = {n: (np.ones(n, np.float32), np.float32(2)) for n in (3, 4, 5)}
    ahead = programs.Ahead(function, calls)
    for n, given in calls.items():
        assert ahead[n](*given) == 2 * n
    with np.testing.assert_raises_regex(TypeError, "compiled"):
        ahead[3](*calls[4])


def compiled(folder: Path, **environment: str) -> int:
    """How many programs a process compiles of what it could have kept."""
    script = f"""
import jax, numpy
from pathlib import Path
from jax import monitoring
from examples.speech import programs
programs._COMPILED_MS = 0
programs.keep(Path({str(folder)!r}))
missed = []
monitoring.register_event_listener(
    lambda name, **_: missed.append(name) if name.endswith("cache_misses") else None
)
jax.jit(lambda x: x @ x + 1)(numpy.eye(3))
print(len(missed))
"""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=plain | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_a_later_process_reads_what_one_has_compiled(tmp_path):
    assert compiled(tmp_path / "a") == 1
    assert compiled(tmp_path / "a") == 0
    assert compiled(tmp_path / "a", PJRT_NPROC="1") == 1  # other code
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_what_jax_was_told_comes_first(tmp_path):
    told = str(tmp_path / "told")
    compiled(tmp_path / "a", JAX_COMPILATION_CACHE_DIR=told, **ALL)
    assert list((tmp_path / "told").iterdir())
    assert not (tmp_path / "a").exists()
