"""Benchmarks of products, latency, limits and overhead: as in test_benchmarks.py."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_support import LIMITS, needs_a_compiler

from benchmarks import (
    _command_line,
    _limits,
    against_scan,
    cells,
    dispatch,
    prnn_figure,
    products,
    roofline,
    streaming,
)
from benchmarks import _harness as harness
from benchmarks._scan_points import Point

TINY = {
    prnn_figure: ["--hidden", "8", "--batch", "2", "--time", "4"],
    streaming: ["--models", "2x8", "--chunks", "2"],
    roofline: ["--cells", "gru", "--hidden", "8", "--batch", "2", "--time", "4"],
    dispatch: ["--time", "2", "--rounds", "1"],
    products: ["--cells", "gru", "--hidden", "8", "--batch", "2", "--time", "4"],
    cells: ["--kinds", "elementwise", "complex", "projected", "normed", "matrix"],
}
MODULES = pytest.mark.parametrize("module", TINY, ids=lambda m: m.NAME)
RECORD = "benchmark", "date", "device", "versions", "commit", "load", "platform"


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Limits of few sizes, in short rounds; few calls in a turn."""
    tiny = {"sizes": (1 << 14, 1 << 15), "rounds": 2, "round_ms": 0.2}
    quick = functools.partial(_limits.measure_limits, **tiny)
    monkeypatch.setattr(_limits, "measure_limits", quick)
    monkeypatch.setattr(streaming, "CALLS", 3)
    shapes = {
        "projected": (8, 4, 1, 3),
        "normed": ("lstm", 8, 1, 3),
        "matrix": ("delta_rule", 2, 3, 4),
        "elementwise": (1, 4, 8),
        "complex": (1, 4, 8),
    }
    for kind, shape in shapes.items():
        monkeypatch.setitem(cells.KINDS, kind, (cells.KINDS[kind][0], [shape]))


def measured_numbers(tree) -> list[float]:
    """All numbers below, but differences, which may be 0."""
    if isinstance(tree, dict):
        tree = [value for key, value in tree.items() if key != "difference"]
    if isinstance(tree, list):
        return [number for part in tree for number in measured_numbers(part)]
    return [tree] if isinstance(tree, (int, float)) else []


# ---- command lines -------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=needs_a_compiler if module is roofline else ())
        for module in TINY
    ],
    ids=lambda m: m.NAME,
)
def test_a_run_writes_what_its_table_is_made_of(module, tmp_path, capsys):
    out = tmp_path / "results.json"
    module.main([*TINY[module], "--budget-s", "0.01", "--out", str(out)])
    printed = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert set(RECORD) <= set(results)
    assert results["benchmark"] == module.NAME
    points = results["points"]
    assert points
    for point in points:
        assert 0 <= point["difference"] <= point["tolerance"]
        signed = {"over_empty_us"}  # a difference of times
        numbers = measured_numbers({k: point[k] for k in point if k not in signed})
        assert all(math.isfinite(n) and n > 0 for n in numbers)

    module.main(["--table", str(out)])
    assert capsys.readouterr().out == printed
    if module is roofline:
        module.main(["--table", str(out), "--full"])
        printed += f"\n{capsys.readouterr().out}"
    for table in printed.strip().split("\n\n"):
        lines = table.splitlines()
        assert len(lines) > 2
        assert len({line.count("|") for line in lines}) == 1


@MODULES
def test_a_subset_does_not_replace_the_results(module, monkeypatch, tmp_path):
    monkeypatch.setattr(_command_line, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "_measure_all", lambda _: {"points": []})
    monkeypatch.setattr(module, "table", lambda _: "")
    module.main(TINY[module])
    assert not list(tmp_path.iterdir())
    module.main(["--budget-s", "7"])
    assert [file.name for file in tmp_path.iterdir()] == [f"{module.NAME}.json"]


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (prnn_figure, ["--batch", "0"], "must be above 0"),
        (prnn_figure, ["--parts", "sideways"], "invalid choice"),
        (streaming, ["--models", "192"], "must be LAYERSxUNITS, as 2x192, got 192"),
        (streaming, ["--models", "2x0"], "must be LAYERSxUNITS"),
        (streaming, ["--dtypes", "int8"], "invalid choice"),
        (roofline, ["--cells", "elman"], "invalid choice"),
        (roofline, ["--full"], "--full goes with --table"),
        (dispatch, ["--budget-s", "-1"], "must be above 0"),
        (dispatch, ["--table", "{folder}/none.json"], "none.json"),
        (dispatch, ["--table", "{folder}/other.json"], "not results of benchmarks.dis"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    module, arguments, message, tmp_path, capsys
):
    (tmp_path / "other.json").write_text('{"benchmark": "another"}')
    with pytest.raises(SystemExit):
        module.main([a.format(folder=tmp_path) for a in arguments])
    assert message in capsys.readouterr().err


# ---- a wrong result is not timed -----------------------------------------------------


def wrong(run):
    """The same, off by a tenth."""
    return lambda: jax.tree.map(lambda a: 1.1 * a, run())


@pytest.mark.parametrize(
    ("module", "measure"),
    [
        (
            prnn_figure,
            lambda: prnn_figure.measure(prnn_figure.Point("forward", 2, 8, 4), 0.001),
        ),
        (
            roofline,
            lambda: roofline.measure(
                prnn_figure.Point("backward_data", 2, 8, 4, "lstm"), LIMITS, 0.001
            ),
        ),
        (
            dispatch,
            lambda: dispatch.measure(Point("lstm", "train", 8, 1, 2), 0.001),
        ),
    ],
    ids=["prnn_figure", "roofline", "dispatch"],
)
def test_a_wrong_result_is_not_timed(module, measure, monkeypatch):
    right = module.candidates

    def candidates(point):
        runs = right(point)
        return {**runs, "native": wrong(runs["native"])}

    monkeypatch.setattr(module, "candidates", candidates)
    monkeypatch.setattr(harness, "measure", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(harness.DisagreementError, match="native and scan differ"):
        measure()


def test_a_wrong_stream_is_not_timed(monkeypatch):
    right = streaming.streams

    def begin(point):
        streams = right(point)
        return {**streams, "native": lambda: wrong(streams["native"]())}

    monkeypatch.setattr(streaming, "streams", begin)
    monkeypatch.setattr(streaming, "latencies", lambda *_: pytest.fail("timed"))
    with pytest.raises(harness.DisagreementError, match="native and scan differ"):
        streaming.measure(streaming.Point(2, 8, 2), 0.001)


# ---- what runs -----------------------------------------------------------------------


def test_the_weights_part_is_a_sum_over_rows_and_steps():
    runs = prnn_figure.candidates(prnn_figure.Point("backward_weights", 3, 8, 4))
    h, da_h = runs["native"].args
    expected = np.einsum("btnh,btng->hg", h, da_h)
    for run in runs.values():
        np.testing.assert_allclose(run(), expected, rtol=1e-5, atol=1e-5)


def test_the_backward_pass_makes_no_product_for_the_weights():
    runs = prnn_figure.candidates(prnn_figure.Point("backward_data", 3, 8, 4))
    for run in runs.values():
        da_x, dstate_0 = run()
        assert (da_x.shape, dstate_0.shape) == ((3, 4, 8), (3, 8))
    native = runs["native"]
    assert "dot(" not in native.func.lower(*native.args).compile().as_text()


def test_figures_are_flop_over_time():
    entry = prnn_figure.measure(prnn_figure.Point("forward", 2, 8, 4), 0.001)
    for name in ("native", "scan"):
        us = entry["step_us"][name]["median"]
        assert entry["gflops"][name] == pytest.approx(2 * 8 * 8 * 2 / us / 1e3)


@pytest.mark.parametrize("name", ["native", "prepared", "scan"])
def test_a_stream_carries_its_state(name):
    point = streaming.Point(2, 8, 2)
    stream = streaming.streams(point)[name]()
    parts = [stream() for _ in range(2)]
    twice = streaming.streams(point)[name]()
    chunks = [next(twice._chunks) for _ in range(2)]
    y, state = twice._step(twice._layers, twice._state, jnp.concatenate(chunks, 1))
    joined = jnp.concatenate([part[0] for part in parts], 1)
    np.testing.assert_allclose(joined, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        parts[-1][1],
        state,
    )


def test_every_call_of_a_turn_but_the_first_is_timed():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = streaming.latencies(calls, budget_s=0)
    turn = 1 + streaming.CALLS
    assert "".join(order) == ("a" * turn + "b" * turn) * streaming.MIN_TURNS
    counts = {len(spent) for spent in seconds.values()}
    assert counts == {streaming.CALLS * streaming.MIN_TURNS}


def test_percentiles_are_in_order():
    us = streaming._percentiles([1e-6 * n for n in range(101)])
    assert us == pytest.approx({"p50": 50, "p90": 90, "p99": 99, "max": 100})


def test_the_empty_program_has_the_same_results_shapes():
    runs = dispatch.candidates(Point("lstm", "train", 8, 1, 2))
    shapes = jax.tree.map(jnp.shape, runs["native"]())
    nothing = runs["empty"]()
    assert jax.tree.map(jnp.shape, nothing) == shapes
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nothing))
    # jit leaves out arguments that nothing reads, unless it is told not to.
    arguments = len(jax.tree.leaves(runs["empty"].args))
    text = runs["empty"].func.lower(*runs["empty"].args).as_text()
    assert text.count("%arg") == arguments


def test_compiling_is_measured_anew_in_each_round(monkeypatch):
    point = Point("lstm", "forward", 8, 1, 2)
    traced = []
    run = against_scan._forward
    monkeypatch.setattr(
        against_scan, "_forward", lambda *args: traced.append(1) or run(*args)
    )
    entries = dispatch.compile_seconds(point, rounds=2)
    assert [entry["implementation"] for entry in entries] == ["native", "scan"]
    assert len(traced) == 4
    assert all(entry["seconds"]["compile"] > 0 for entry in entries)
