"""The CUDA engine on this machine's GPU, or emulated where there is none.

Tests with the mark and the fixture `cuda` run either way: what they find right in the
emulator is looked for on hardware by the same lines.
"""

from contextlib import contextmanager

import jax
import numpy as np
import pytest
from cases import Case
from emulated import assert_as_accurate_as, emulation, results
from support import error_of, oracle, scan

HAS_GPU = jax.default_backend() == "gpu"
NUMBERS = ("bfloat16", "float16", "tf32", "float32")


class OnGpu:
    """What a test may ask of the engine there: less than of `emulated.Emulation`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.use()

    def use(self, *, exchange: str = "") -> None:
        """Plans of one exchange, if it is named, from the next call on."""
        self._monkeypatch.setenv("PRNN_CUDA_EXCHANGE", exchange)

    def expect(self, *calls: str) -> None:
        """Nothing tells what ran; but an exchange that has no plan is an error."""


@contextmanager
def session(monkeypatch: pytest.MonkeyPatch):
    """The engine, as `OnGpu` or as `Emulation`."""
    if not HAS_GPU:
        with emulation(monkeypatch) as emulated:
            yield emulated
    else:
        yield OnGpu(monkeypatch)
        monkeypatch.undo()


def check(case: Case, number: str) -> None:
    """Results and all gradients are as accurate as those of a scan, by float64.

    `number`: a dtype, or "tf32": float32 whose products are.
    """
    dtype = "float32" if number == "tf32" else number
    here = None
    # Without "highest", a GPU's products of float32 are TF32; a CPU's are not.
    with jax.default_matmul_precision("highest" if number == "float32" else "default"):
        ours = jax.tree.map(np.asarray, results(case, dtype))
        if HAS_GPU and number == "float32":  # XLA's products around it are a GPU's, too
            here = jax.tree.map(np.asarray, results(case, dtype, "scan"))
    # TF32 has float16's significand, and float's range: the scan's error in float16.
    bound = "float16" if number == "tf32" else number
    # A GPU's own float32 products would be TF32.
    with jax.default_device(jax.devices("cpu")[0]):
        of_scan, exact = scan(case, bound), oracle(case)
    scans = (of_scan.forward, of_scan.gradients), here
    for n, exactly in enumerate((exact.forward, exact.gradients)):
        worst = {
            name: max(
                (s[n][name] for s in scans if s), key=lambda v: error_of(v, value)
            )
            for name, value in exactly.items()
        }
        assert_as_accurate_as(ours[n], worst, exactly, bound)
