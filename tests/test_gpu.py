"""The CUDA engine on a GPU, from the public functions down, against the oracle.

What the emulator cannot show: the PTX, the tensor cores, the memory of a real device,
and capture in CUDA graphs. benchmarks/gpu_campaign.sh runs these.
"""

import jax
import numpy as np
import pytest
from cases import CELLS, Case
from support import assert_bitwise_equal, named, oracle, scan
from test_cuda_emulated import SHAPES, assert_as_accurate_as

import prnn_jax
from prnn_jax._native import native

pytestmark = pytest.mark.gpu

NUMBERS = "bfloat16", "float16", "tf32", "float32"
NATIVE_CELLS = [cell for cell in CELLS if cell != "gru_reset_before"]
# From one block to most of a GPU: by the planner's choice all three exchanges.
HIDDEN = 16, 37, 129, 256, 640, 1024


@pytest.fixture(autouse=True)
def _needs_kernels():
    if not native.cuda_targets():
        pytest.fail("the package was built without CUDA", pytrace=False)


@pytest.fixture(scope="module")
def cpu():
    """Oracles are computed there: a GPU's float64 would do, its TF32 would not."""
    return jax.devices("cpu")[0]


def assert_follows_oracle(case: Case, number: str, cpu) -> None:
    dtype = "float32" if number == "tf32" else number

    @jax.jit
    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, "native"), arrays)
        return named(*out), vjp(cotangents)[0]

    with jax.default_matmul_precision("default" if number == "tf32" else "highest"):
        ours = jax.tree.map(np.asarray, run(case.inputs(dtype), case.cotangents(dtype)))
    bound = "float16" if number == "tf32" else number
    with jax.default_device(cpu):
        of_scan, exact = scan(case, bound), oracle(case)
    assert_as_accurate_as(ours[0], of_scan.forward, exact.forward, bound)
    assert_as_accurate_as(ours[1], of_scan.gradients, exact.gradients, bound)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("cell", NATIVE_CELLS)
def test_every_cell_and_number(cell, number, cpu):
    sizes = (2, (1,), 37) if "relu" in cell else (5, (3,), 37)
    case = Case(cell, *sizes, bidirectional=True, state=True)
    assert_follows_oracle(case, number, cpu)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_from_one_block_to_the_whole_gpu(cell, hidden, cpu):
    case = Case(cell, 6, (11,), hidden, 9, state=True)
    assert_follows_oracle(case, "bfloat16", cpu)


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_sizes_and_options(case, cpu):
    assert_follows_oracle(case, "bfloat16", cpu)


@pytest.mark.parametrize("hidden", [64, 256, 1024])
def test_equal_calls_give_equal_bits(hidden):
    case = Case("lstm", 50, (13,), hidden, 7, state=True)
    run = case.gradient("native")
    arrays, cotangents = case.inputs("bfloat16"), case.cotangents("bfloat16")
    first = jax.tree.map(np.asarray, run(arrays, cotangents))
    for _ in range(20):
        assert_bitwise_equal(run(arrays, cotangents), first)


def test_a_long_sequence(cpu):
    """Longer than the 65 535 steps at which peers stop."""
    case = Case("rnn_tanh", 70_000, (1,), 48, 2)
    with jax.default_matmul_precision("highest"):
        y, _ = case.forward("native")(case.inputs())
    with jax.default_device(cpu):
        exact, of_scan = oracle(case).forward["y"], scan(case).forward["y"]
    error = np.abs(np.asarray(y, np.float64) - exact).max()
    assert error <= 2 * np.abs(of_scan - exact).max() + 4e-7


def test_explain_plans_for_this_gpu():
    plan = prnn_jax.explain("lstm", batch=8, time=100, hidden_size=512)
    assert plan.engine == "native"
    assert plan.device == jax.devices("gpu")[0].device_kind
