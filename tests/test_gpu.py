"""What a GPU is asked at full size: large layers, long sequences, timing that varies.

In the emulator the same at sizes that it can do. benchmarks/gpu_campaign.sh runs these,
and what has the mark `cuda` of test_cuda.py, test_cuda_controls.py,
test_cuda_stack.py and test_cuda_projection.py.
"""

import shutil

import jax
import numpy as np
import pytest
from cases import Case
from on_cuda import HAS_GPU, check
from support import assert_bitwise_equal, oracle, scan

import prnn_jax
from prnn_jax._engine import modules

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not HAS_GPU and shutil.which("c++") is None, reason="needs c++"),
]


def large(value: int):
    """Too large for the emulator."""
    return pytest.param(value, marks=pytest.mark.gpu)


# From one block to most of a GPU: by the planner's choice all three exchanges.
HIDDEN = 16, 37, 129, large(256), large(640), large(1024)


@pytest.fixture(autouse=True)
def _needs_kernels():
    if HAS_GPU and modules.cuda is None:
        pytest.fail("the package was built without CUDA", pytrace=False)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_from_one_block_to_the_whole_gpu(cuda, cell, hidden):
    check(Case(cell, 6, (11,), hidden, 9, state=True), "bfloat16")


@pytest.mark.parametrize("hidden", [64, large(256), large(1024)])
def test_equal_calls_give_equal_bits(cuda, hidden):
    time, times = (50, 20) if HAS_GPU else (5, 2)
    case = Case("lstm", time, (13,), hidden, 7, state=True)
    run = case.gradient("native")
    arrays, cotangents = case.inputs("bfloat16"), case.cotangents("bfloat16")
    first = jax.tree.map(np.asarray, run(arrays, cotangents))
    for _ in range(times):
        assert_bitwise_equal(run(arrays, cotangents), first)


def test_a_long_sequence(cuda):
    """Longer than the 65 535 steps at which peers stop."""
    case = Case("rnn_tanh", 70_000 if HAS_GPU else 300, (1,), 48, 2)
    with jax.default_matmul_precision("highest"):
        y, _ = case.forward("native")(case.inputs())
    with jax.default_device(jax.devices("cpu")[0]):
        exact, of_scan = oracle(case).forward["y"], scan(case).forward["y"]
    error = np.abs(np.asarray(y, np.float64) - exact).max()
    assert error <= 2 * np.abs(of_scan - exact).max() + 4e-7


@pytest.mark.gpu
def test_explain_plans_for_this_gpu():
    plan = prnn_jax.explain("lstm", batch=8, time=100, hidden_size=512)
    assert plan.engine == "native"
    assert plan.device == jax.devices("gpu")[0].device_kind
