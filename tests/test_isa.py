"""Every instruction set of the CPU engine that this processor runs, one at a time."""

import numpy as np
import pytest
from cases import CELLS, Case
from support import ISAS, assert_as_accurate, named, oracle, run_python, scan

import prnn_jax
from prnn_jax._engine import ffi

REAL = [isa for isa in ISAS if isa != "amx_emulated"]

# Around the widths of 4, 8 and 16 floats, and rows around those of a block.
CASES = [
    Case(cell, 4, (rows,), hidden, 3, state=True)
    for cell, rows, hidden in [
        ("lstm", 1, 3),
        ("lstm", 5, 17),
        ("lstm", 9, 40),
        ("lstm", 5, 21),  # with AVX2, a remainder in two micropanels
        ("lstm", 37, 30),  # more rows than wait for their steps at once
        ("lstm_peephole", 5, 19),
        ("lstm_general", 5, 19),
        ("slstm", 5, 19),
        ("gru", 2, 9),
        ("gru", 9, 31),
        ("gru_general", 9, 31),
        ("gru_reset_before", 3, 21),
        ("gru_reset_before", 9, 16),
        ("rnn_tanh", 1, 33),
        ("rnn_tanh_skip", 7, 8),
        ("rnn_general", 13, 7),
        ("rnn_relu", 13, 7),
        ("rnn_clipped_relu_skip", 4, 65),
    ]
] + [Case("gru", 9, (35,), 26, 3, state=True, controls=("lengths", "resets"))]

SCRIPT = """
import sys
import prnn_jax, test_isa
isa, path = sys.argv[1:]
plan = prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1)
assert plan.instruction_set == isa, plan
test_isa.save_results(path)
"""


def save_results(path: str) -> None:
    """Of all cases, with whatever instruction set this process has chosen."""
    results = {}
    for n, case in enumerate(CASES):
        forward = named(*case.forward("native")(case.inputs()))
        gradients = case.gradient("native")(case.inputs(), case.cotangents())
        results |= {f"{n} forward {name}": v for name, v in forward.items()}
        results |= {f"{n} gradients {name}": v for name, v in gradients.items()}
    np.savez(path, **results)


def check_results(path: str) -> None:
    """Of those that another process has saved."""
    results = np.load(path)
    for n, case in enumerate(CASES):
        for kind in ("forward", "gradients"):
            of_scan, exact = getattr(scan(case), kind), getattr(oracle(case), kind)
            ours = {name: results[f"{n} {kind} {name}"] for name in exact}
            assert_as_accurate(ours, of_scan, exact)


def test_the_cases_have_every_cell():
    assert {case.cell for case in CASES} == set(CELLS)


@pytest.mark.parametrize("isa", REAL)
def test_accuracy(isa, tmp_path):
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    path = str(tmp_path / "results.npz")
    run_python(SCRIPT, isa, path, PRNN_CPU_ISA=isa)
    check_results(path)


def test_the_best_is_taken_where_none_is_named(monkeypatch):
    monkeypatch.delenv("PRNN_CPU_ISA", raising=False)
    there = [isa for isa in REAL if ffi.native.has_isa(isa)]
    script = """
import prnn_jax
print(prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1).instruction_set)
"""
    best = run_python(script).strip()
    # Which of the first two depends on how fast the processor's dot products are.
    assert best in there[: 2 if there[0] == "avx512_bf16" else 1]


def test_an_unknown_instruction_set_is_not_there():
    assert not ffi.native.has_isa("avx1024")
    assert any(ffi.native.has_isa(name) for name in ("portable", "neon"))
    assert prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1).instruction_set
