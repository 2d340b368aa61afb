"""The CUDA engine in the emulator, from the public functions down, against the oracle."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from emulated import emulation
from support import error_of, named, oracle, scan

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs c++")

EXCHANGES = "block", "cluster", "grid"
NATIVE_CELLS = [cell for cell in CELLS if cell != "gru_reset_before"]


@pytest.fixture
def emulated(monkeypatch):
    with emulation(monkeypatch) as session:
        yield session


def results(case: Case, dtype: str):
    """(y and states, gradients) of a case by the native engine."""

    @jax.jit
    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, "native"), arrays)
        return named(*out), vjp(cotangents)[0]

    return jax.block_until_ready(run(case.inputs(dtype), case.cotangents(dtype)))


def assert_as_accurate_as(ours, of_scan, exact, dtype: str) -> None:
    """At most twice the error of a scan in `dtype`, or a few roundings of it."""
    epsilon = float(jnp.finfo(dtype).eps)
    for name, value in ours.items():
        largest = np.max(np.abs(exact[name]), initial=0)
        error, bound = (error_of(v, exact[name]) for v in (value, of_scan[name]))
        assert np.isfinite(np.asarray(value, np.float32)).all(), name
        assert error <= 2 * bound + 4 * epsilon * largest, (
            f"{name}: error {error:.3g}, the scan's in {dtype} is {bound:.3g} "
            f"(largest value {largest:.3g})"
        )


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("number", ["bfloat16", "float16", "tf32", "float32"])
@pytest.mark.parametrize("cell", NATIVE_CELLS)
def test_is_as_accurate_as_the_scan(emulated, cell, number, exchange):
    # H fills no tile and no granule; half precision so takes the padded mailbox. The
    # gradient of a ReLU jumps: fewer values, so that none comes near where it does.
    sizes = (2, (1,), 37) if "relu" in cell else (5, (3,), 37)
    case = Case(cell, *sizes, bidirectional=True, state=True)
    emulated.use(exchange=exchange)
    dtype = "float32" if number == "tf32" else number
    # XLA's own products on the CPU are in float32 either way.
    with jax.default_matmul_precision("highest" if number == "float32" else "default"):
        forward, gradients = results(case, dtype)
    assert emulated.ran == [f"forward:{exchange}", f"backward:{exchange}"]
    # TF32 has float16's significand, and float's range: the scan's error in float16.
    bound = "float16" if number == "tf32" else number
    of_scan, exact = scan(case, bound), oracle(case)
    assert_as_accurate_as(forward, of_scan.forward, exact.forward, bound)
    assert_as_accurate_as(gradients, of_scan.gradients, exact.gradients, bound)
