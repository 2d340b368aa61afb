"""What only a GPU can be asked: large layers, long sequences, timing that varies.

benchmarks/gpu_campaign.sh runs these, and of test_cuda.py and test_cuda_controls.py
what has the mark `cuda`.
"""

import jax
import numpy as np
import pytest
from cases import Case
from on_cuda import check
from support import assert_bitwise_equal, oracle, scan

import prnn_jax
from prnn_jax._native import native

pytestmark = pytest.mark.gpu

# From one block to most of a GPU: by the planner's choice all three exchanges.
HIDDEN = 16, 37, 129, 256, 640, 1024


@pytest.fixture(autouse=True)
def _needs_kernels():
    if not native.cuda_targets():
        pytest.fail("the package was built without CUDA", pytrace=False)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_from_one_block_to_the_whole_gpu(cell, hidden):
    check(Case(cell, 6, (11,), hidden, 9, state=True), "bfloat16")


@pytest.mark.parametrize("hidden", [64, 256, 1024])
def test_equal_calls_give_equal_bits(hidden):
    case = Case("lstm", 50, (13,), hidden, 7, state=True)
    run = case.gradient("native")
    arrays, cotangents = case.inputs("bfloat16"), case.cotangents("bfloat16")
    first = jax.tree.map(np.asarray, run(arrays, cotangents))
    for _ in range(20):
        assert_bitwise_equal(run(arrays, cotangents), first)


def test_a_long_sequence():
    """Longer than the 65 535 steps at which peers stop."""
    case = Case("rnn_tanh", 70_000, (1,), 48, 2)
    with jax.default_matmul_precision("highest"):
        y, _ = case.forward("native")(case.inputs())
    with jax.default_device(jax.devices("cpu")[0]):
        exact, of_scan = oracle(case).forward["y"], scan(case).forward["y"]
    error = np.abs(np.asarray(y, np.float64) - exact).max()
    assert error <= 2 * np.abs(of_scan - exact).max() + 4e-7


def test_explain_plans_for_this_gpu():
    plan = prnn_jax.explain("lstm", batch=8, time=100, hidden_size=512)
    assert plan.engine == "native"
    assert plan.device == jax.devices("gpu")[0].device_kind
