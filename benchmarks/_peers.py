"""The table of candidates of `against_peers`, and what its workers do with them."""

import functools
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import _jax_layers, _onnx_layers, _points, _torch_layers
from benchmarks._points import INFERENCE, MODES, Arrays, Candidate, Point, Result

OURS, SCAN = "native", "scan"
_BOTH = "float32", "bfloat16"


@dataclass(frozen=True)
class Kind:
    """A way to run a layer, and which points it is for.

    Attributes:
      title: in tables.
      worker: in whose process it runs.
      make: the candidate for a point.
      packages: that must be installed.
      cells: that it has, and so the next three.
      projections: the same for whether the input projection is a part of the layer.
      in_jax: whether it is written in JAX.
      may_fail: whether a point goes on without it then; its error is written down.
    """

    title: str
    worker: str
    make: Callable[[Point, Arrays], Candidate]
    packages: tuple[str, ...] = ()
    cells: tuple[str, ...] = ("lstm", "gru", "rnn")
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = ("float32",)
    platforms: tuple[str, ...] = ("cpu", "gpu")
    projections: tuple[bool, ...] = (True,)
    in_jax: bool = False
    may_fail: bool = False


def _our_kind(title: str, implementation: str) -> Kind:
    make = functools.partial(_jax_layers.ours, implementation=implementation)
    both = True, False
    return Kind(title, "jax", make, dtypes=_BOTH, projections=both, in_jax=True)


def _gpu_kind(
    title: str, worker: str, make: Callable, *packages: str, **fields
) -> Kind:
    shared = {"platforms": ("gpu",), "may_fail": True}
    return Kind(title, worker, make, packages, **shared, **fields)


#: Ours first.
KINDS = {
    OURS: _our_kind("native", "native"),
    SCAN: _our_kind("`lax.scan`", "scan"),
    "flax": Kind("Flax", "jax", _jax_layers.flax, ("flax",), in_jax=True),
    "equinox": Kind(
        "Equinox",
        "jax",
        _jax_layers.equinox,
        ("equinox",),
        cells=("lstm", "gru"),
        in_jax=True,
    ),
    "torch": Kind("PyTorch", "torch", _torch_layers.eager, ("torch",), dtypes=_BOTH),
    "torch_autocast": Kind(
        "autocast",
        "torch",
        _torch_layers.autocast,
        ("torch",),
        dtypes=("bfloat16",),
    ),
    "torch_compile": Kind(
        "torch.compile", "torch", _torch_layers.compiled, ("torch",), may_fail=True
    ),
    "onnxruntime": Kind(
        "ONNX Runtime",
        "onnxruntime",
        _onnx_layers.runtime,
        ("onnx", "onnxruntime"),
        modes=("forward", INFERENCE),
        platforms=("cpu",),
    ),
    "cudnn": _gpu_kind("cuDNN in JAX", "jax", _jax_layers.cudnn, cells=("lstm",)),
    "torch_graph": _gpu_kind("CUDA graph", "torch", _torch_layers.graph, "torch"),
    "flashrnn": _gpu_kind(
        "FlashRNN",
        "torch",
        _torch_layers.flashrnn,
        *("torch", "flashrnn"),
        cells=("lstm",),
    ),
    "haste": _gpu_kind(
        "haste",
        "torch",
        _torch_layers.haste,
        *("torch", "haste_pytorch"),
        cells=("lstm", "gru"),
    ),
}


def reason_against(name: str, point: Point) -> str | None:
    """Why the candidate cannot be at the point; None if it can."""
    kind = KINDS[name]
    for package in kind.packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    asked = {
        f"the {point.cell}": point.cell in kind.cells,
        point.mode: point.mode in kind.modes,
        point.dtype: point.dtype in kind.dtypes,
        f"a {point.platform}": point.platform in kind.platforms,
        "input that is projected": point.projection in kind.projections,
    }
    return next((f"not for {what}" for what, has in asked.items() if not has), None)


# ---- in a worker's process -----------------------------------------------------------

_prepared: dict[str, Candidate] = {}


def prepare(name: str, point: Point) -> Result:
    """Makes a candidate for the point and runs it once."""
    candidate = KINDS[name].make(point, _points.arrays(point))
    _prepared[name] = candidate
    return candidate.result(candidate.run())


def sample(name: str, calls: int) -> float:
    """Seconds for one of several calls, after one that is not timed.

    While the process was stopped its threads slept, other processes filled the caches,
    and the system may have taken back the memory that calls had freed.
    """
    run = _prepared[name].run
    run()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def forget() -> None:
    """Programs and arrays of a point are not needed by the next."""
    import jax

    _prepared.clear()
    jax.clear_caches()


def device() -> dict:
    """What JAX runs on in this process."""
    import jax

    import prnn_jax

    sizes = {"batch": 1, "time": 1, "hidden_size": 64}
    plan = prnn_jax.explain("lstm", **sizes, platform="cpu")
    found = jax.devices()[0]
    gpu = found.device_kind if found.platform == "gpu" else None
    return {"instruction_set": plan.instruction_set, "gpu": gpu}
