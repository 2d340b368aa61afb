"""Any shape and option: the native engine is as accurate as the scan."""

import hypothesis
from cases import CELLS, CONTROLS, Case
from hypothesis import strategies as st
from support import assert_as_accurate, named, oracle, scan

SETTINGS = hypothesis.settings(
    deadline=None,  # every example compiles programs
    derandomize=True,
    max_examples=16,
    database=None,
)

CASES = st.builds(
    Case,
    cell=st.sampled_from(sorted(CELLS)),
    time=st.integers(1, 9),
    batch=st.lists(st.integers(1, 7), max_size=2).map(tuple),
    hidden=st.integers(2, 80),
    input_size=st.integers(1, 9),
    reverse=st.booleans(),
    bidirectional=st.booleans(),
    time_major=st.booleans(),
    state=st.booleans(),
    biases=st.sampled_from([(), ("b_ih",), ("b_hh",), ("b_ih", "b_hh")]),
    heads=st.sampled_from([0, 0, 1, 3]),
    controls=st.sets(st.sampled_from(CONTROLS)).map(
        lambda chosen: tuple(name for name in CONTROLS if name in chosen)
    ),
    lean=st.booleans(),
).filter(
    lambda case: (
        case.rows * case.hidden >= 16
        and ("resets" in case.controls or "reset_to" not in case.controls)
        and (case.cell != "slstm" or "zoneout" not in case.controls)
    )
)
# With fewer values than that their largest may be far below the numbers they come from,
# and the slack of `assert_as_accurate` with it. The table of cases has sizes of 1.


@SETTINGS
@hypothesis.given(CASES)
def test_native_is_as_accurate_as_the_scan(case):
    forward = named(*case.forward("native")(case.inputs()))
    gradients = case.gradient("native")(case.inputs(), case.cotangents())
    assert_as_accurate(forward, scan(case).forward, oracle(case).forward)
    assert_as_accurate(gradients, scan(case).gradients, oracle(case).gradients)
