"""The benchmark that measures this processor for the planner, on a few calls."""

import json

import pytest
from support import run_python

from benchmarks import calibrate

LOADED = """
import json
from prnn_jax._engine import ffi
print(json.dumps(ffi.native.cpu_rates()))
"""


def test_what_it_writes_is_what_the_planner_loads(tmp_path, capsys):
    if not list((calibrate.harness.ROOT / "build").glob("*/CMakeCache.txt")):
        pytest.skip("needs the build that the package was installed from")
    out = tmp_path / "rates.txt"
    few = "--calls", "4", "--seconds", "0.001", "--trials", "300"
    assert calibrate.main([*few, "--threads", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rates = json.loads(run_python(LOADED, PRNN_CPU_RATES=str(out)))
    assert f".pack = {rates['pack']:g}," in printed
    assert f".packed = {{{rates['packed_own']:g}, " in printed
    assert "2 threads" in printed
    assert "longer than the best" in printed


def test_its_calls_are_the_same_each_time_and_of_every_kind():
    calls = list(calibrate.calls(260))
    assert calls == list(calibrate.calls(260))
    for column, values in (
        (0, {"forward", "backward"}),
        (1, set(calibrate.CELLS)),
        (2, set(calibrate.DTYPES)),
        (3, set(map(str, calibrate.HIDDEN))),
        (4, set(map(str, calibrate.BATCH))),
        (5, set(map(str, calibrate.TIME))),
    ):
        assert {call.split()[column] for call in calls} == values


def test_without_a_build_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibrate.harness, "ROOT", tmp_path)
    assert calibrate.main([]) == 1
    assert "run `make venv` first" in capsys.readouterr().err
