"""Bounds inside of steps in the CUDA engine: on a GPU, or emulated."""

import shutil

import pytest
from cases import CONTROLS
from clip_cases import CELLS, Clipped, assert_most_are_as_accurate
from emulated import EXCHANGES, results
from half_support import DTYPES
from half_support import assert_as_accurate as assert_half_as_accurate
from on_cuda import HAS_GPU, check
from support import oracle, scan

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not HAS_GPU and shutil.which("c++") is None, reason="needs c++"),
]
FULL = {"state": True, "controls": CONTROLS}


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("cell", ["lstm_peephole", "gru", "gru_reset_before", "rnn"])
def test_is_as_accurate_as_the_scan(cuda, cell, exchange):
    cuda.use(exchange=exchange)
    check(Clipped(cell, 5, (3,), 37, bidirectional=True, state=True), "float32")
    cuda.expect(f"forward:{exchange}", f"backward:{exchange}")


CASES = [
    *(Clipped(cell, batch=(5,), **FULL) for cell in CELLS),
    Clipped("lstm", 20, (3,), lean=True, reverse=True, **FULL),
    Clipped("gru_reset_before", 20, (3,), lean=True, reverse=True, **FULL),
    Clipped("lstm_general", batch=(2, 3), bidirectional=True, heads=2, hidden=19),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_and_options(cuda, case):
    """With the plan of the planner's choice."""
    check(case, "float32")
    if not HAS_GPU:
        assert {of.split(":")[0] for of in cuda.ran} == {"forward", "backward"}


@pytest.mark.parametrize("half", DTYPES)
@pytest.mark.parametrize("cell", CELLS)
def test_in_16_bits(cuda, cell, half):
    case = Clipped(cell, 9, (5,), 17, state=True, half=half)
    forward, gradients = results(case, half)
    of_scan, exact = scan(case, half), oracle(case)
    assert_half_as_accurate(forward, of_scan.forward, exact.forward)
    assert_most_are_as_accurate(gradients, of_scan.gradients, exact.gradients, half)
