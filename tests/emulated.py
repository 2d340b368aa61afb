"""The CUDA engine under JAX without a GPU: kernels in the emulator, as CPU targets.

`emulated` sends all native calls of a test through ffi's CUDA path (buffers, workspace,
planner, kernels) with a GPU on record as the target.
"""

import ctypes
import functools
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case
from made_once import made_once, sources
from support import error_of, named

from prnn_jax._engine import elementwise, ffi, gpu

ROOT = Path(__file__).parent.parent
EXCHANGES = "block", "cluster", "grid"
NUMBERS = ("kBfloat16", "kFloat16", "kTf32", "kFloat32")
INSTANCES = ROOT / "cuda/instances.cu"  # once for each number format
SOURCES = (
    *sorted((ROOT / "cuda").glob("*.cc")),
    *(path for path in (ROOT / "cuda").glob("*.cu") if path != INSTANCES),
    *sorted((ROOT / "ffi").glob("cuda_*handler*.cc")),
    *sorted((ROOT / "tests/fake_cuda").glob("*.cc")),
    *sorted((ROOT / "tests/emulator").glob("*.cc")),
)
# Functions that are not always inlined are compiled in a third of the time, as fast.
OPTIONS = (
    *("-std=c++20", "-Og", "-g0", "-DPRNN_HD=inline", "-fPIC"),
    *("-Wall", "-Wextra", "-Werror"),
)
KERNELS = ("-Wno-unknown-pragmas",)  # they tell nvcc what to unroll


@functools.cache
def module() -> Path:
    """The engine's host half and kernels over the fake runtime, as a shared library."""
    parts = *SOURCES, INSTANCES
    options = *OPTIONS, *NUMBERS, jax.ffi.include_dir()
    return made_once("emulated.so", sources(*parts), options, _compile)


def program(source: Path) -> Path:
    """One that runs on a GPU, over the fake runtime (tests/native/fake_device.cc).

    With the kernels that are beside it, if there are any.
    """
    library = module()
    options = *OPTIONS, "-g0", *KERNELS, f"-Wl,-rpath,{library.parent}"
    tests = ROOT / "tests"
    paths = f"-I{tests}/fake_cuda", f"-I{ROOT}", f"-I{tests}"
    kernels = source.with_suffix(".cu")
    parts = [source, tests / "native/fake_device.cc"]
    if kernels.exists():
        parts += ["-xc++", kernels, "-xnone"]

    def make(linked: Path) -> None:
        _run("c++", *options, *paths, *parts, library, "-o", linked)

    read = sources(*(part for part in parts if isinstance(part, Path)))
    return made_once(source.stem, read, (*options, library), make)


@functools.cache
def library() -> ctypes.CDLL:
    """The emulated targets, registered."""
    loaded = ctypes.CDLL(str(module()))
    for name in ("Forward", "Backward", "Elementwise"):
        handler = getattr(loaded, f"PrnnFake{name}")
        jax.ffi.register_ffi_target(
            f"prnn_{name.lower()}_emulated", jax.ffi.pycapsule(handler), platform="cpu"
        )
    return loaded


def _compile(library: Path) -> None:
    tests = ROOT / "tests"
    jobs = [
        *((f"-DPRNN_NUMBER={number}", "-xc++", INSTANCES) for number in NUMBERS),
        *(("-xc++", source) for source in SOURCES),
    ]
    # The fake runtime's header before any toolkit's.
    folders = tests / "fake_cuda", ROOT, tests
    paths = *(f"-I{folder}" for folder in folders), "-isystem", jax.ffi.include_dir()
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:

        def compiled(job):
            number, source = job
            built = Path(scratch) / f"{number}.o"
            _run("c++", *OPTIONS, *KERNELS, *paths, "-c", "-o", built, *source)
            return built

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compiled, enumerate(jobs)))
        _run("c++", "-shared", *objects, "-o", library)


def _run(*command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


class Emulation:
    """What a test may ask of the emulated engine and of the CUDA runtime under it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._library, self._monkeypatch = library(), monkeypatch
        self.use()
        self.stages()
        self.mistake()
        self.fail("", 0)

    def use(
        self,
        *,
        exchange: str = "",
        device: str = "NVIDIA H200",
        seed: int = 1,
        count: int = 1,
        largest_cluster: int = 0,
        shared_bytes: int = 0,
        has_image: bool = True,
    ) -> None:
        """Devices that nothing has run on; plans of one exchange, if it is named.

        Args:
          exchange: "block", "cluster", "grid", or empty for the planner's choice.
          device: by its name on record.
          seed: of the emulator's schedules.
          count: of devices, alike.
          largest_cluster: that the driver takes; 0 for any.
          shared_bytes: that a resident block has at most; 0 for as many as there are.
          has_image: whether the build has kernels for the device.
        """
        self._monkeypatch.setenv("PRNN_CUDA_EXCHANGE", exchange)
        limits = largest_cluster, shared_bytes, has_image
        self.first_device = self._library.prnn_fake_devices(
            device.encode(), count, *map(int, limits)
        )
        self._library.prnn_fake_seed(ctypes.c_uint64(seed))

    def stages(
        self, *, initialize: bool = True, execute: bool = True, replays: int = 0
    ) -> None:
        """What a call does of what XLA does with it, and how often, in a graph."""
        self._library.prnn_fake_stages(initialize, execute, replays)

    def fail(self, function: str, nth: int = 1, error: int = 1) -> None:
        """The nth call of a function of the runtime from now on returns an error."""
        self._library.prnn_fake_fail(function.encode(), nth, error)

    def mistake(self, fault: str = "") -> None:
        """A fault of the emulator's (tests/emulator/faults.h) in what runs from now."""
        self._library.prnn_fake_fault(fault.encode())

    def host_blocks(self, device: int) -> int:
        """Blocks of the host's memory that calls on a device have not given back."""
        return self._library.prnn_fake_host_blocks(device)

    @property
    def grids_overlapped(self) -> bool:
        """Whether two grids whose blocks wait for each other ran at the same time."""
        return bool(self._library.prnn_fake_grids_overlapped(self.first_device))

    @property
    def given_up(self) -> str:
        """What the watchdogs of all devices have to say, a line each."""
        return self._read("given_up")

    @property
    def calls(self) -> dict[str, int]:
        """How often each function of the runtime has been called since `fail`."""
        pairs = (one.rsplit(":", 1) for one in self._text("calls"))
        return {name: int(count) for name, count in pairs}

    @property
    def launches(self) -> list[str]:
        """The calls since `use`, as "forward:cluster:8"."""
        return self._text("ran")

    @property
    def ran(self) -> list[str]:
        """The same without sizes of clusters."""
        return [":".join(one.split(":")[:2]) for one in self.launches]

    def expect(self, *calls: str) -> None:
        """Since `use`, these have run, as "forward:grid"; all others are an error."""
        assert self.ran == list(calls)

    def _text(self, name: str) -> list[str]:
        return self._read(name).split()

    def _read(self, name: str) -> str:
        text = ctypes.create_string_buffer(1 << 16)
        function = getattr(self._library, f"prnn_fake_{name}")
        function(text, ctypes.c_size_t(len(text)))
        return text.value.decode()


@contextmanager
def emulation(monkeypatch: pytest.MonkeyPatch):
    """All native calls run emulated within; programs compiled before do not."""

    def by_platform(call, on, results, primals, *rest, backward):
        able = ffi._platforms(call, primals, backward=backward)
        return on("cuda" if "cuda" in able else "default")(call, primals, *rest)

    def elementwise_by_platform(functions, static, results, *args):
        run = functions["cuda" if "cuda" in functions else "default"]
        return run(*static, *args)

    # Not in a context of their own: a test may set the same again, and all must be
    # undone in one order.
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu", "cuda"))
    monkeypatch.setattr(ffi, "_by_platform", by_platform)
    monkeypatch.setattr(elementwise, "by_platform", elementwise_by_platform)
    monkeypatch.setattr(gpu, "target", lambda name: f"{name}_emulated")
    monkeypatch.setenv(gpu.DEVICE_VARIABLE, "NVIDIA H200")
    jax.clear_caches()
    yield Emulation(monkeypatch)
    monkeypatch.undo()
    jax.clear_caches()


def forward(case: Case, dtype: str = "bfloat16"):
    """Results, compiled now; a function without arguments."""
    arrays = case.inputs(dtype)
    compiled = jax.jit(lambda a: case.run(a, "native")).lower(arrays).compile()
    return lambda: jax.block_until_ready(compiled(arrays))


def results(case: Case, dtype: str, implementation: str = "native"):
    """(y and states, gradients) of a case, jitted, where JAX computes by default."""

    @jax.jit
    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, implementation), arrays)
        return named(*out), vjp(cotangents)[0]

    return jax.block_until_ready(run(case.inputs(dtype), case.cotangents(dtype)))


def assert_as_accurate_as(ours, of_scan, exact, dtype: str) -> None:
    """At most twice the error of a scan in `dtype`, or a few roundings of it."""
    epsilon = float(jnp.finfo(dtype).eps)
    for name, value in ours.items():
        largest = np.max(np.abs(exact[name]), initial=0)
        error, bound = (error_of(v, exact[name]) for v in (value, of_scan[name]))
        assert jnp.isfinite(value).all(), name
        assert error <= 2 * bound + 4 * epsilon * largest, (
            f"{name}: error {error:.3g}, the scan's in {dtype} is {bound:.3g} "
            f"(largest value {largest:.3g})"
        )
