"""What the layers of `against_peers` run on: one point, and the same arrays for all."""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _scan_points as scan_points
from benchmarks._scan_points import CELLS
from benchmarks.gpu import peers as gpu_peers

#: A forward pass whose weights are known long before: ours prepares them, as ONNX
#: Runtime always does. For the others it is the forward pass.
INFERENCE = "inference"
MODES = (*scan_points.MODES, INFERENCE)

#: A candidate's outputs by name: y, or the gradients that all candidates have.
Result = dict[str, np.ndarray]


@dataclass(frozen=True)
class Point(scan_points.Point):
    """One layer, one mode, one size, one device; input_size = hidden_size.

    Attributes:
      projection: whether the input projection is a part of the layer.
      platform: "cpu" or "gpu".
    """

    projection: bool = True
    platform: str = "cpu"

    def __str__(self) -> str:
        without = "" if self.projection else "-without-projection"
        return f"{super().__str__()}{without}-{self.platform}"

    @property
    def tolerance(self) -> float:
        """The largest difference from ours that is not an error."""
        rounding = super().tolerance
        if self.platform == "gpu":  # float32 is multiplied as TF32 there
            rounding = max(rounding, gpu_peers.TOLERANCES[self.dtype])
        return rounding


@dataclass(frozen=True)
class Candidate:
    """A layer that is ready to run.

    Attributes:
      run: makes a call, and returns when it has ended.
      result: what `run` returned in the form that all candidates have.
    """

    run: Callable[[], object]
    result: Callable[[object], Result]


@dataclass(frozen=True)
class Arrays:
    """The arrays of a point; the same in every process.

    Attributes:
      x: `[batch, time, hidden]`, or `[batch, time, gates*hidden]` if it is projected.
      params: with one bias, because that is what all libraries have.
      weights: of the sum of y that training differentiates.
    """

    x: np.ndarray
    params: prnn_jax.Params
    weights: np.ndarray


def arrays(point: Point) -> Arrays:
    """In the point's dtype."""
    random = np.random.default_rng(zlib.crc32(str(point).encode()))
    hidden, wide = point.hidden_size, CELLS[point.cell].gates * point.hidden_size
    dtype = jnp.dtype(point.dtype)

    def normal(features: int, scale: float = 1.0) -> np.ndarray:
        shape = (point.batch, point.time, features)
        return (random.standard_normal(shape, np.float32) * scale).astype(dtype)

    def uniform(*shape: int) -> np.ndarray:  # as layers are commonly initialised
        return (random.uniform(-1, 1, shape) * hidden**-0.5).astype(dtype)

    params = prnn_jax.Params(
        uniform(hidden, wide), uniform(hidden, wide), uniform(wide)
    )
    # What is projected already has the variance that the projection would give it.
    x = normal(hidden) if point.projection else normal(wide, 3**-0.5)
    return Arrays(x, params, normal(hidden))


def gradients(x: object, params: prnn_jax.Params) -> Result:
    """The result of a training step; b_hh has no gradient that all libraries have."""
    found = {"x": x, "w_ih": params.w_ih, "w_hh": params.w_hh, "b_ih": params.b_ih}
    return {name: np.asarray(a) for name, a in found.items() if a is not None}


def threads() -> int:
    """As many as the process has cores."""
    return len(os.sched_getaffinity(0))
