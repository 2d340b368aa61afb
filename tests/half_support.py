"""Cases in 16 bits, and how accurate their results must be."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from cases import Case
from support import error_of, named

DTYPES = "bfloat16", "float16"


@dataclass(frozen=True)
class Half(Case):
    """A case whose numbers are those of a 16-bit format, in whatever dtype."""

    half: str = "bfloat16"

    def __str__(self) -> str:
        controls = "-".join(self.controls)
        return "-".join(filter(None, [super().__str__(), self.half, controls]))

    def inputs(self, dtype=None):
        return self._rounded(super().inputs(self.half), dtype)

    def control_arrays(self, dtype=None):
        return self._rounded(super().control_arrays(self.half), dtype)

    def cotangents(self, dtype=None):
        return self._rounded(super().cotangents(self.half), dtype)

    def _rounded(self, arrays, dtype):
        def cast(a):
            return a.astype(dtype or self.half) if a.dtype == self.half else a

        return jax.tree.map(cast, arrays)


def assert_as_accurate(ours, scan, oracle) -> None:
    """Our largest error is at most twice that of the same scan in 16 bits."""
    for name, exact in oracle.items():
        value, of_scan = np.asarray(ours[name]), scan[name]
        assert value.dtype == of_scan.dtype != exact.dtype, name
        assert value.shape == of_scan.shape == exact.shape, name
        assert np.isfinite(value.astype(np.float32)).all(), name
        # Where there are few values the scan may be right by chance: one rounding of
        # the largest.
        slack = float(jnp.finfo(value.dtype).eps) / 2 * np.max(np.abs(exact), initial=0)
        error, of_scan = error_of(value, exact), error_of(of_scan, exact)
        assert error <= 2 * of_scan + slack, (
            f"{name}: error {error:.3g}, the scan's is {of_scan:.3g}"
        )


def run(case: Half) -> tuple[dict, dict]:
    forward = named(*case.forward("native")(case.inputs()))
    return forward, case.gradient("native")(case.inputs(), case.cotangents())
