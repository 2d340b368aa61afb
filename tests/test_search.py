"""The search for wrong values: what it has found once, and a part of it each time.

`python -m tests.search` goes on for as long as one likes.
"""

import jax
import jax.numpy as jnp
import pytest
from search import draw, search
from search.program import Program
from support import run_python

from prnn_jax._engine import batching, ffi

#: At most, for each part: a few cases always, more where there is time.
for_seconds = pytest.mark.parametrize(
    "seconds", [10, pytest.param(20, marks=pytest.mark.thorough)]
)
PARTS = {  # what is drawn, the seed, and how many cases
    "calls": (draw.calls, 1, 40),
    "more calls": (draw.calls, 2, 40),
    "layer norm": (draw.normed_calls, 11, 30),
    "stacks": (draw.stacks, 1, 15),
    "layers": (draw.layers, 1, 40),
    "exports": (draw.exports, 1, 25),
}
KNOWN = [case for case in search.known() if not case.devices]


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_what_was_wrong_once(case):
    assert search.fault(case) is None, Program(case).text()


@for_seconds
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_search(part, seconds):
    cases, seed, count = PARTS[part]
    here = search.Search(seconds, count)
    case = here.round(cases(), seed, 10 * count)
    assert case is None, search.shown(case, here.seen[case])
    assert here.tried >= 3


ON_DEVICES = """
import sys
from search import draw, search
known = [case for case in search.known() if case.devices]
here = search.Search(float(sys.argv[1]), 40 + len(known))
for case in known:
    assert here.of(case) is None, search.shown(case, here.seen[case])
case = here.round(draw.meshes(), 1, 200)
assert case is None, search.shown(case, here.seen[case])
assert here.tried >= 3
"""


@for_seconds
def test_a_part_of_the_search_on_8_devices(seconds):
    flags = "--xla_force_host_platform_device_count=8"
    run_python(ON_DEVICES, str(seconds), XLA_FLAGS=flags)


# ---- does it find what is wrong? -----------------------------------------------------


def _negated(tree):
    return jax.tree.map(jnp.negative, tree)


def _state_gradient(monkeypatch):
    backward = ffi.backward

    def wrong(*args):
        da_x, da_h, dstate_0, *others = backward(*args)
        return da_x, da_h, _negated(dstate_0), *others

    monkeypatch.setattr(ffi, "backward", wrong)


def _slightly_wrong_gradient(monkeypatch):
    backward = ffi.backward

    def wrong(*args):
        da_x, da_h, *others = backward(*args)
        return (da_x, jax.tree.map(lambda d: 1.0001 * d, da_h), *others)

    monkeypatch.setattr(ffi, "backward", wrong)


def _gains_of_one_row(monkeypatch):
    backward = ffi.backward

    def wrong(call, *args):
        *others, of_rows = backward(call, *args)
        if call.table.norm is not None:
            of_rows = of_rows.at[-1].mul(1.0001)
        return (*others, of_rows)

    monkeypatch.setattr(ffi, "backward", wrong)


def _mapped_lengths(monkeypatch):
    fold = batching._Axes.fold_data

    def wrong(self, x, is_mapped):
        x = fold(self, x, is_mapped)
        return jnp.maximum(x - 1, 0) if is_mapped and x.dtype == jnp.int32 else x

    monkeypatch.setattr(batching._Axes, "fold_data", wrong)


def _any(case):
    return True


def _is_normed(case):
    return bool(case.normed)


def _maps_lengths(case):
    return any("lengths" in each.over for each in case.maps)


PLANTED = {  # the fault, and the cases in which it is looked for
    "the sign of a state's gradient": (_state_gradient, _any),
    "a gradient off by 1e-4": (_slightly_wrong_gradient, _any),
    "mapped lengths, off by one": (_mapped_lengths, _maps_lengths),
    "a row's gradient of gains": (_gains_of_one_row, _is_normed),
}


@pytest.fixture
def nothing_compiled(monkeypatch):
    """No program made before is found again, nor afterwards one with a fault in it."""
    jax.clear_caches()
    yield
    monkeypatch.undo()
    jax.clear_caches()


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found(what, monkeypatch, nothing_compiled):
    plant, cases = PLANTED[what]
    plant(monkeypatch)
    here = search.Search(600, 200)
    case = here.round(draw.calls().filter(cases), 5, 2000, shrink=False)
    assert case is not None
    assert not here.seen[case].startswith("error ")
