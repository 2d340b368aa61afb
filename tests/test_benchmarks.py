"""The benchmarks run, check what they time, and write it down. No time is tested."""

import json

import jax
import jax.numpy as jnp
import pytest

import prnn_jax
from benchmarks import _harness as harness
from benchmarks import _scan_points as scan_points
from benchmarks import _scan_tables as scan_tables
from benchmarks import against_scan
from benchmarks._scan_points import Point

TINY = ["--hidden", "8", "--batch", "2", "--time", "4", "--budget-s", "0.01"]


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def timing(*seconds: float) -> harness.Timing:
    return harness.Timing(1, seconds)


def entry(cell="lstm", mode="forward", hidden=64, batch=1, ratio=2.0) -> dict:
    spread = {"median": ratio, "quartiles": [ratio, ratio]}
    return {
        "cell": cell,
        "mode": mode,
        "hidden_size": hidden,
        "batch": batch,
        "time": 128,
        "step_us": {"native": spread, "scan": spread},
        "ratio": spread,
    }


# ---- a point -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", scan_points.MODES)
@pytest.mark.parametrize("cell", scan_points.CELLS)
def test_a_point_is_checked_and_timed(cell, mode):
    point = Point(cell, mode, hidden_size=8, batch=2, time=4)
    measured = against_scan.measure(point, budget_s=0.001)
    assert measured["difference"] <= measured["tolerance"]
    assert measured["rounds"] >= harness.MIN_ROUNDS
    assert measured["input_size"] == measured["hidden_size"] == 8
    for spread in (*measured["step_us"].values(), measured["ratio"]):
        low, high = spread["quartiles"]
        assert 0 < low <= spread["median"] <= high
    passes = ["forward"] if mode == "forward" else ["forward", "backward"]
    assert list(measured["plan"]) == passes
    assert {plan["engine"] for plan in measured["plan"].values()} == {"native"}


def test_candidates_return_what_the_mode_says():
    for mode in scan_points.MODES:
        runs = against_scan.candidates(Point("lstm", mode, 8, 2, 4))
        assert list(runs) == ["native", "scan"]
        shapes = jax.tree.map(jnp.shape, runs["native"]())
        if mode == "forward":
            assert shapes == ((2, 4, 8), ((2, 8), (2, 8)))
        else:
            params = prnn_jax.Params((8, 32), (8, 32), (32,), (32,))
            assert shapes == ((2, 4, 8), params)


def test_a_wrong_result_is_not_timed(monkeypatch):
    right = against_scan.candidates

    def wrong(point):
        runs = right(point)
        return {
            **runs,
            "native": lambda: jax.tree.map(lambda a: 1.1 * a, runs["scan"]()),
        }

    monkeypatch.setattr(against_scan, "candidates", wrong)
    monkeypatch.setattr(harness, "measure", lambda *_, **__: pytest.fail("timed"))
    for mode in scan_points.MODES:
        with pytest.raises(harness.DisagreementError, match="native and scan differ"):
            against_scan.measure(Point("rnn", mode, 8, 2, 4), budget_s=0.001)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, 2.0])
def test_values_that_differ_or_are_not_finite_disagree(value):
    runs = {
        "ours": lambda: {"y": jnp.full(3, value)},
        "other": lambda: {"y": jnp.ones(3)},
    }
    with pytest.raises(harness.DisagreementError, match=r"case: .*output\['y'\]"):
        harness.check_agreement("case", runs, 0.1)


def test_shapes_that_differ_disagree():
    runs = {"ours": lambda: jnp.ones(1), "other": lambda: jnp.ones(3)}
    with pytest.raises(harness.DisagreementError):
        harness.check_agreement("case", runs, 0.1)


# ---- which points --------------------------------------------------------------------


def test_steps_are_fewer_only_where_they_are_long():
    full = scan_points.points()
    assert len(full) == len(set(full)) == 3 * 2 * 5 * 4
    for point in full:
        assert point.time in (128, 64, 32)
        if point.time > 32:
            assert point.time * point.step_flop <= 20e9
        if point.time < 128:
            assert 2 * point.time * point.step_flop > 20e9
    assert scan_points.steps("lstm", 512, 32) == 128
    assert scan_points.steps("lstm", 1024, 32) == 32


# ---- timing --------------------------------------------------------------------------


def test_candidates_are_timed_in_turn():
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    timings = harness.measure(runs, budget_s=0, min_rounds=3)
    assert {len(timing.seconds) for timing in timings.values()} == {3}
    # Without the warm-up, and with the calls of a sample as one.
    a, b = (timings[name].calls for name in "ab")
    rounds = "".join(order[-3 * (a + b) :])
    assert rounds == ("a" * a + "b" * b) * 3


def test_the_ratio_is_that_of_rounds():
    # The second half of the time the machine is ten times slower.
    ratio = harness.ratio(timing(2, 2, 20, 20, 20), timing(1, 1, 1, 10, 10))
    assert ratio.median == 2
    assert ratio.quartiles == (2, 2)


def test_a_spread_is_scaled():
    spread = harness.Spread.of([4, 1, 3, 2, 5], scale=10)
    assert spread.median == 30
    assert spread.quartiles == (20, 40)


def test_means_are_geometric():
    assert harness.geometric_mean([1, 4]) == pytest.approx(2)
    assert harness.geometric_mean([]) is None


# ---- results -------------------------------------------------------------------------


def test_summaries():
    entries = [
        entry(batch=1, ratio=8.0),
        entry(batch=16, hidden=256, ratio=0.5),
        entry(cell="gru", batch=32, ratio=3.0),
    ]
    lstm, gru = scan_tables.summarise(entries)
    assert (lstm.cell, lstm.mode, lstm.count, lstm.losses) == ("lstm", "forward", 2, 1)
    assert lstm.mean == pytest.approx(2)
    assert lstm.small_batch_mean == pytest.approx(8)
    assert lstm.minimum is entries[1]
    assert gru.small_batch_mean is None


def test_command_line_writes_what_the_tables_are_made_of(tmp_path, capsys):
    out = tmp_path / "new" / "results.json"
    subset = ["--cells", "gru", "--modes", "forward", "train"]
    against_scan.main([*TINY, *subset, "--out", str(out)])
    printed = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert list(out.parent.iterdir()) == [out]
    assert set(results) == {
        "benchmark",
        "date",
        "device",
        "versions",
        "commit",
        "options",
        "load",
        "points",
    }
    assert set(results["device"]) == {"cpu", "cores", "instruction_set"}
    assert {"python", "jax", "jaxlib", "prnn_jax"} <= set(results["versions"])
    assert [point["mode"] for point in results["points"]] == ["forward", "train"]
    assert printed.count("\ngru ") == 4  # two rows, two summaries

    against_scan.main(["--table", str(out)])
    header, rule, *rows, _, caption = capsys.readouterr().out.splitlines()
    assert header.startswith("| cell | mode | geometric mean |")
    assert {line.count("|") for line in (header, rule, *rows)} == {6}
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| GRU", "forward"],
        ["| GRU", "train"],
    ]
    assert results["device"]["cpu"] in caption

    against_scan.main(["--table", str(out), "--full"])
    header, rule, *rows, _, _ = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert rows[0].startswith("| GRU | forward | 8 | 2 | 4 |")
    assert {line.count("|") for line in (header, rule, *rows)} == {10}


def test_a_subset_does_not_replace_the_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(against_scan, "RESULTS", tmp_path / "against_scan.json")
    against_scan.main([*TINY, "--cells", "rnn", "--modes", "forward"])
    assert "--out" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full"], "--full goes with --table"),
        (["--hidden", "0"], "must be above 0"),
        (["--cells", "elman"], "invalid choice"),
        (["--table", "{folder}/none.json"], "none.json"),
        (["--table", "{folder}/other.json"], "not results of benchmarks.against_scan"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message, tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"benchmark": "another"}')
    with pytest.raises(SystemExit):
        against_scan.main([a.format(folder=tmp_path) for a in arguments])
    assert message in capsys.readouterr().err
