"""Bounds inside of an LSTM with a projection, in the CPU engine."""

from dataclasses import dataclass, replace

import jax
import pytest
from cases import CellCase
from clip_cases import CELLS as OF_LSTM
from clip_cases import LSTM, assert_most_are_as_accurate
from half_support import assert_as_accurate as assert_half_as_accurate
from projected_support import (
    HALVES,
    PROJECTED_CONTROLS,
    Projected,
    assert_as_accurate_as_the_scan,
)
from support import (
    Program,
    assert_bitwise_equal,
    named,
    oracle,
    run_python,
    scan,
)

import prnn_jax
from prnn_jax import Clip
from prnn_jax._engine.modules import native

ALL = LSTM._replace(projection=0.3)
CELLS = {
    "lstm": replace(OF_LSTM["lstm"], options={"clip": ALL}),
    "lstm_projection": replace(OF_LSTM["lstm"], options={"clip": Clip(projection=0.2)}),
    "lstm_peephole": replace(OF_LSTM["lstm_peephole"], options={"clip": ALL}),
    "lstm_general": replace(
        OF_LSTM["lstm_general"],
        options=OF_LSTM["lstm_general"].options | {"clip": ALL},
        per_unit=3,
    ),
}
FULL = {"state": True, "controls": PROJECTED_CONTROLS}


@dataclass(frozen=True)
class Bounded(Projected):
    """A case with bounds."""

    @property
    def table(self) -> CellCase:
        return CELLS[self.cell]

    def __str__(self) -> str:
        return f"clip-{super().__str__()}"


CASES = [
    *(Bounded(cell, 33, (5,), 17, state=True) for cell in CELLS),
    *(Bounded(cell, batch=(5,), **FULL) for cell in CELLS),
    *(Bounded(cell, 40, (3,), lean=True, reverse=True, **FULL) for cell in CELLS),
    Bounded("lstm", 3, (2,), 257, projection=130, state=True),
    Bounded("lstm_peephole", 7, (17,), 64, bidirectional=True),
    Bounded("lstm_peephole", batch=(2, 3), bidirectional=True, heads=2, hidden=19),
    Bounded("lstm_projection", 1, (1,), 1, 1, projection=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_as_accurate_as_the_scan(case):
    assert_as_accurate_as_the_scan(case)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("cell", CELLS)
def test_in_16_bits(cell, half):
    case = Bounded(cell, 9, (5,), 17, state=True, half=half)
    of_scan, exact = scan(case, half), oracle(case)
    forward = named(*case.forward("native")(case.inputs(half)))
    gradients = case.gradient("native")(case.inputs(half), case.cotangents(half))
    assert_half_as_accurate(forward, of_scan.forward, exact.forward)
    assert_most_are_as_accurate(gradients, of_scan.gradients, exact.gradients, half)


def test_the_bound_of_a_projection_matters():
    """Else the tests above would see nothing of it."""
    case = CASES[1]
    exact, arrays = oracle(case), case.inputs()
    assert (abs(exact.forward["y"]) == 0.2).mean() > 0.1

    def run(arrays):
        return prnn_jax.lstm(
            arrays["x"], case.params(arrays), case.state_of(arrays), clip=Clip(1.0)
        )

    others = jax.vjp(run, arrays)[1](case.cotangents())[0]
    wanted = exact.gradients["w_hr"]
    assert abs(others["w_hr"] - wanted).max() > 0.05 * abs(wanted).max()


def test_one_native_call_each_way():
    program = Program.of(CASES[3].gradient(), CASES[3].inputs(), CASES[3].cotangents())
    assert program.calls == (1, 1)


def test_rows_do_not_know_of_each_other():
    case = Bounded("lstm_peephole", 9, (5,), 17, state=True)
    arrays = case.inputs()
    y, state = case.forward("native")(arrays)
    one = {
        name: a[2:3] if name in ("x", "h_0", "c_0") else a for name, a in arrays.items()
    }
    alone = replace(case, batch=(1,)).forward("native")(one)
    assert_bitwise_equal(alone, (y[2:3], tuple(s[2:3] for s in state)))


def test_weights_that_were_prepared():
    case = Bounded("lstm", 2, (1,), 19)
    arrays, forward = case.inputs(), case.forward("native")
    assert_bitwise_equal(forward(case.prepared(arrays)), forward(arrays))


SCRIPT = """
import test_clip_projected as tests
for case in tests.CASES[:8]:
    tests.test_is_as_accurate_as_the_scan(case)
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_in_each_instruction_set(isa):
    if not native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    run_python(SCRIPT, timeout_s=300, PRNN_CPU_ISA=isa)
