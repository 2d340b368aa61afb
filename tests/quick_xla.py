"""XLA's flags for tests: it compiles in half the time, to code that is slower.

As accurate, and with the same passes over programs; what is left out is LLVM's work on
the code of XLA's own operations. `XLA_FLAGS= pytest` tests with what users have.
"""

import os
import subprocess
import sys
from pathlib import Path

import jaxlib
from made_once import made_once

FLAGS = "--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"


def set_flags() -> None:
    """For this process and those it starts, if nobody has, and it is not for a GPU."""
    if "XLA_FLAGS" in os.environ or os.environ.get("PRNN_REQUIRE_GPU") == "1":
        return
    known = made_once("xla_flags.txt", [], (jaxlib.__version__, *FLAGS), _write_known)
    os.environ["XLA_FLAGS"] = known.read_text()


def _write_known(path: Path) -> None:
    """XLA ends a process at a flag that it does not know."""
    path.write_text(" ".join(filter(_is_known, FLAGS)))


def _is_known(flag: str) -> bool:
    program = "import jax; jax.devices('cpu')"
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return done.returncode == 0
