"""What all tests share.

The folder is put on `sys.path`, so that tests may `import cases` and `import support`
however pytest is started; the repository's root is not, so that an installed package is
tested rather than the source folder.

float64 stays off: the float32 calls are those of a user. Oracles turn it on for
themselves (`support.float64`).
"""

import faulthandler
import gc
import os
import sys
from pathlib import Path

# Before SciPy and PyTorch are loaded, whose threads wait by turning: where another
# process has the core, a QR of 128 x 128, as of orthogonal weights, took 2.4 s; by one
# thread 5 ms.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("cases", "clip_cases", "support", "half_support")

from quick_xla import keep_programs, set_flags  # noqa: E402

set_flags()
keep_programs()

# So that plans, and with them what the table covers, are the same on every machine.
os.environ.setdefault("PRNN_CPU_CACHE_BYTES", str(1 << 20))
os.environ.setdefault("PRNN_CPU_SHARED_CACHE_BYTES", "0")

#: What compilers are long at work for: first, so that no core waits for it at the end.
LONG = (
    "test_cuda_engine.py",
    "test_check_device.py",
    "test_cuda_code.py",
    "test_ptx.py",
    "test_native.py",
    "test_emulator.py",
)
HANG_S = 1200
#: A whole engine under sanitizers takes 1100 s of a core, compiled before.
HANG_OF_THOROUGH_S = 3600
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # as it is before tests' output is captured


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Modules and tests stay: Python need not look through them for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    """Ends the run, with the stacks of all threads, where a test hangs."""
    # Threads that wait for each other in native code cannot be interrupted.
    limit = HANG_OF_THOROUGH_S if item.get_closest_marker("thorough") else HANG_S
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if nextitem is not None and nextitem.path != item.path:
            _forget()


def _forget() -> None:
    """What JAX keeps of a file's programs: MLIR gets slower with each that there is."""
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def cuda(monkeypatch):
    """The CUDA engine, on a GPU or emulated: `on_cuda.session`."""
    from on_cuda import session

    with session(monkeypatch) as engine:
        yield engine


@pytest.fixture
def emulated(monkeypatch):
    """The CUDA engine emulated, for what a GPU cannot be asked."""
    from emulated import emulation

    with emulation(monkeypatch) as engine:
        yield engine


def pytest_runtest_setup(item: pytest.Item) -> None:
    if jax.default_backend() == "gpu":
        return
    for_gpu, for_both = map(item.get_closest_marker, ("gpu", "cuda"))
    if (for_gpu or for_both) and os.environ.get("PRNN_REQUIRE_GPU") == "1":
        pytest.fail("PRNN_REQUIRE_GPU=1, but JAX sees no GPU", pytrace=False)
    if for_gpu:
        pytest.skip("needs an NVIDIA GPU")
