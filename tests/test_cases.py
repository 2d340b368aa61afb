"""Every case of the table: native, and as accurate as the scan."""

import jax
import pytest
from cases import CASES, Case
from support import (
    assert_as_accurate,
    assert_bitwise_equal,
    named,
    oracle,
    quick_jit,
    scan,
)

from prnn_jax._autodiff import lean


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_native_and_as_accurate_as_the_scan(case):
    """A pass that keeps nothing, and one that keeps what its gradients need."""

    def run(arrays, cotangents):
        alone = named(*case.run(arrays))
        out, vjp = jax.vjp(case.run, arrays)
        return alone, named(*out), vjp(cotangents)[0]

    lowered = quick_jit(run).lower(case.inputs(), case.cotangents())
    if case.time * case.rows > 0:
        assert_native(case, lowered.as_text())
    alone, out, gradients = lowered.compile()(case.inputs(), case.cotangents())
    of_scan, exact = scan(case), oracle(case)
    assert_as_accurate(alone, of_scan.forward, exact.forward)
    assert_as_accurate(gradients, of_scan.gradients, exact.gradients)
    assert_bitwise_equal(alone, out)


def assert_native(case: Case, text: str) -> None:
    """One native call for each pass, and no loop."""
    # The lean reserve goes back in chunks of time: a loop, and one for what is left.
    is_cut = case.lean and case.time >= 2 * lean.MIN_STEPS
    has_rest = is_cut and case.time % min(lean.MAX_CHUNKS, case.time // lean.MIN_STEPS)
    assert text.count("custom_call @prnn_forward") == 2
    assert text.count("custom_call @prnn_backward") == (2 if has_rest else 1)
    assert text.count("stablehlo.while") == is_cut
