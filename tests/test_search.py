"""The search for wrong values: what it has found once, and a part of it each time."""

import pytest
from search import draw, search
from search.program import Program

SECONDS = 25  # for each part


@pytest.mark.parametrize("case", search.known(), ids=str)
def test_what_was_wrong_once(case):
    assert search.fault(case) is None, Program(case).text()


@pytest.mark.parametrize("part", range(3))
def test_a_part_of_the_search(part):
    here = search.Search(SECONDS, cases=10**6)
    case = here.round(draw.calls(), seed=part, examples=10_000)
    assert case is None, search.shown(case, here.seen[case])
    assert here.tried > 5
