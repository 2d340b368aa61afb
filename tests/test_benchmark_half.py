"""The benchmark of 16 bits, tiny: does it compare the right things, and only those?"""

import functools
import json

import jax
import pytest
from benchmark_support import needs_a_compiler

from benchmarks import _harness as harness
from benchmarks import _limits, half_precision
from benchmarks._points import Candidate, Point


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    tiny = {"sizes": (1 << 14, 1 << 15), "rounds": 2, "round_ms": 0.2}
    quick = functools.partial(_limits.measure_limits, **tiny)
    monkeypatch.setattr(_limits, "measure_limits", quick)
    with jax.default_device(jax.devices("cpu")[0]):
        yield


TINY = ["--cells", "gru", "--hidden", "8", "--batch", "2", "3", "--time", "4"]


@needs_a_compiler
def test_16_bits_are_compared_with_float32(tmp_path, capsys):
    out = tmp_path / "results.json"
    half_precision.main([*TINY, "--budget-s", "0.01", "--out", str(out)])
    printed = capsys.readouterr().out
    points = json.loads(out.read_text())["points"]
    assert [(p["projection"], p["batch"]) for p in points] == [
        *((True, 2), (True, 3)),
        *((False, 2), (False, 3)),
    ]
    for point in points:
        assert {*point["step_us"]} == {"float32", "bfloat16", "float16"}
        for dtype in ("bfloat16", "float16"):
            assert 0 < point["difference"][dtype] <= point["tolerance"][dtype]
        spreads = *point["step_us"].values(), *point["ratio"].values()
        assert min(spread["quartiles"][0] for spread in spreads) > 0
    half_precision.main(["--table", str(out)])
    assert capsys.readouterr().out == printed


def test_means_are_of_points_with_the_same_limit():
    def point(bound, ratio):
        spread = {"median": ratio, "quartiles": [ratio, ratio]}
        return {
            **{"cell": "rnn", "projection": True, "hidden_size": 8, "bound": bound},
            "batch": 1,
            "ratio": {"bfloat16": spread, "float16": {**spread, "median": 2 * ratio}},
        }

    points = [point("reading", 1.0), point("barrier", 3.0), point("reading", 4.0)]
    table = half_precision.table({"points": points})
    assert "| reading weights | 2 | 2.00× | 4.00× |" in table
    assert "| another | 1 | 3.00× | 6.00× |" in table
    assert "| **4.00 / 8.00** |" in table


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_wrong_16_bits_are_not_timed(dtype, monkeypatch):
    right = half_precision.candidates

    def scaled(tree):
        return jax.tree.map(lambda a: 1.1 * a, tree)

    def candidates(point):
        made = right(point)
        run, result = made[dtype].run, made[dtype].result
        return {**made, dtype: Candidate(lambda: scaled(run()), result)}

    monkeypatch.setattr(half_precision, "candidates", candidates)
    point = Point("lstm", "forward", 8, 2, 4)
    with pytest.raises(harness.DisagreementError, match=f"{dtype} and float32 differ"):
        half_precision.measure(point, None, 0.001)
