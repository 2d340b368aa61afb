"""The benchmarks against other libraries and of a word model, at tiny sizes.

What they compute is tested; no time is.
"""

import contextlib
import functools
import importlib.util
import json
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _harness as harness
from benchmarks import (
    _jax_layers,
    _limits,
    _peer_tables,
    _peers,
    _points,
    against_peers,
    language_model,
)
from benchmarks._points import Point
from benchmarks._workers import WorkerError

SPREAD = {"median": 2.0, "quartiles": [1.0, 3.0]}


def skip_without(package: str) -> None:
    """The package is only imported where it runs, in a worker."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"could not find {package}")


@contextlib.contextmanager
def one_core():
    """Workers with one thread: several that spin on a busy machine take minutes."""
    jax.devices()  # so that JAX has all cores in this process
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


# ---- candidates ----------------------------------------------------------------------


class Here:
    """Runs in this process what a worker would run in its own; may change results."""

    def __init__(self, change=lambda name, result: result):
        self.change = change

    def call(self, function, *arguments):
        out = function(*arguments)
        return self.change(arguments[0], out) if function is _peers.prepare else out


def wrong(name: str, result: dict) -> dict:
    if name == "native":
        return result
    return {output: 1.1 * array for output, array in result.items()}


def failing(name: str, result: dict) -> dict:
    if name != "native":
        raise WorkerError(f"{name} has no memory left")
    return result


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("projection", [True, False])
def test_ours_and_the_scan_agree_in_16_bits(mode, projection):
    point = Point("gru", mode, 8, 2, 4, "bfloat16", projection)
    differences, absent = against_peers.check({"jax": Here()}, point, ["scan", "flax"])
    assert list(differences) == ["scan"]
    assert absent == {"flax": "not for bfloat16"}
    outputs = ["y"] if mode == "forward" else ["x", "w_ih", "w_hh", "b_ih"]
    if mode == "train" and not projection:
        outputs = ["x", "w_hh"]
    assert list(_peers.prepare("native", point)) == outputs


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_pytorch_agrees_in_16_bits(cell, mode):
    skip_without("torch")
    point, names = Point(cell, mode, 8, 2, 4, "bfloat16"), ["torch", "torch_autocast"]
    workers = {"jax": Here(), "torch": Here()}
    differences, absent = against_peers.check(workers, point, names)
    assert list(differences) == names
    assert not absent
    assert against_peers.check(workers, Point(cell, mode, 8, 2, 4), names)[1] == {
        "torch_autocast": "not for float32"
    }


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_a_wrong_result_is_refused(mode, monkeypatch):
    monkeypatch.setattr(
        harness, "measure_samplers", lambda *_, **__: pytest.fail("timed")
    )
    workers, point = {"jax": Here(wrong)}, Point("rnn", mode, 8, 2, 4)
    with pytest.raises(harness.DisagreementError, match="scan and native differ"):
        against_peers.measure(workers, point, ["scan"], budget_s=0.001)


def test_who_may_fail_is_absent_and_others_end_the_run(monkeypatch):
    point = Point("lstm", "forward", 8, 2, 4)
    with pytest.raises(WorkerError, match="scan has no memory left"):
        against_peers.check({"jax": Here(failing)}, point, ["scan"])
    kind = _peers.KINDS["scan"]
    optional = kind.__class__(**{**vars(kind), "may_fail": True})
    monkeypatch.setitem(_peers.KINDS, "scan", optional)
    for change, reason in ((failing, "no memory left"), (wrong, "differ by")):
        workers = {"jax": Here(change)}
        differences, absent = against_peers.check(workers, point, ["scan"])
        assert not differences
        assert reason in absent["scan"]


def test_a_peer_that_sums_in_bfloat16_is_absent():
    point = Point("lstm", "train", 8, 2, 4, dtype="bfloat16")
    workers = {"jax": Here(), "torch": Here(wrong)}
    differences, absent = against_peers.check(workers, point, ["torch"])
    assert not differences
    assert "torch and native differ" in absent["torch"]


def test_weights_for_cudnn_are_in_its_order():
    from jax.experimental import rnn

    point = Point("lstm", "forward", 5, 2, 4)
    arrays = _points.arrays(point)
    weights = jnp.asarray(_jax_layers.cudnn_weights(arrays.params))
    matrices = rnn.unpack_lstm_weights(weights, 5, 5, 1, False)
    zeros, lengths = jnp.zeros((1, 2, 5)), jnp.full((2,), 4, jnp.int32)
    y, *_ = rnn.lstm_ref(
        jnp.asarray(arrays.x), zeros, zeros, *matrices, lengths, 5, 5, 1, 0.0, False
    )
    ours = _peers.prepare("native", point)["y"]
    np.testing.assert_allclose(y, ours, atol=1e-6)  # a few roundings


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """Results of all candidates that run here."""
    for package in ("flax", "equinox", "onnx", "onnxruntime", "torch"):
        skip_without(package)
    out = tmp_path_factory.mktemp("peers") / "against_peers.json"
    sizes = ["--hidden", "8", "--batch", "2", "--time", "4"]
    options = [*sizes, "--budget-s", "0.001", "--projection", "yes"]
    few = {"sizes": (1 << 14, 1 << 15), "rounds": 2, "round_ms": 0.2}
    quick = functools.partial(_limits.measure_limits, **few)
    with one_core(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_limits, "measure_limits", quick)
        patch.setattr(_limits, "PEAK_MS", 0.2)
        against_peers.main([*options, "--out", str(out)])
    return json.loads(out.read_text())


def test_all_candidates_compute_what_ours_does(peers):
    entries = peers["points"]
    assert len(entries) == 3 * 3
    for entry in entries:
        expected = {"scan", "flax", "torch"}
        expected |= {"equinox"} if entry["cell"] != "rnn" else set()
        expected |= {"onnxruntime"} if entry["mode"] != "train" else set()
        assert set(entry["difference"]) == set(entry["ratio"]) == expected
        assert set(entry["step_us"]) == {"native", *expected}
        assert max(entry["difference"].values()) <= entry["tolerance"]
        present = {"native", "torch_compile", *expected}
        assert set(_peers.KINDS) == present | set(entry["absent"])
        others = {"torch", "onnxruntime"} & expected
        us = {name: entry["step_us"][name]["median"] for name in others}
        best = entry["best_peer"]
        assert best["name"] == min(us, key=us.get)
        assert best["ratio"] == entry["ratio"][best["name"]]
        assert set(entry["calls_per_round"]) == set(entry["step_us"])
        if _limits.compiler() is None:
            assert entry["peak_gflops"] is None
        else:
            assert 0 < entry["peak_gflops"]["median"] < math.inf
    assert {"torch", "onnxruntime", "flax"} <= set(peers["versions"])
    assert peers["device"]["gpu"] is None


def test_tables_are_made_of_the_file(peers, tmp_path, capsys):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(peers))
    has_limits = _limits.compiler() is not None
    assert (peers["limits"] is not None) == has_limits
    for options, count in (([], 1 + has_limits), (["--full"], 1)):
        against_peers.main(["--table", str(file), *options])
        *tables, caption = capsys.readouterr().out.strip().split("\n\n")
        assert len(tables) == count
        for table in tables:
            lines = table.splitlines()
            assert len(lines) == 2 + 9
            assert len({line.count("|") for line in lines}) == 1
            assert lines[2].startswith("| LSTM | forward |")
        assert peers["device"]["cpu"] in caption


def entry(hidden: int, batch: int, **ratios: float) -> dict:
    spreads = {name: {**SPREAD, "median": ratio} for name, ratio in ratios.items()}
    others = {n: s for n, s in spreads.items() if not _peers.KINDS[n].in_jax}
    best = min(others, key=lambda name: others[name]["median"], default=None)
    return {
        **{"cell": "lstm", "mode": "train", "dtype": "float32", "projection": True},
        **{"hidden_size": hidden, "batch": batch, "time": 8},
        "ratio": spreads,
        "step_us": dict.fromkeys(("native", *ratios), SPREAD),
        "best_peer": best and {"name": best, "ratio": spreads[best]},
    }


def test_a_summary_is_of_the_goal_and_counts_who_is_slower():
    entries = [
        entry(128, 1, scan=4.0, torch=0.94),
        entry(256, 16, scan=1.0, torch=0.96),
        entry(64, 1, scan=0.1),  # not a size of the goal
    ]
    (summary,) = _peer_tables.summarise(entries)
    assert (summary.count, summary.slower) == (2, 1)
    assert summary.means["scan"] == pytest.approx(2)
    assert summary.best_mean == pytest.approx(math.sqrt(0.94 * 0.96))
    assert summary.worst == (0.94, "torch", entries[0])
    (alone,) = _peer_tables.summarise(entries[2:])
    assert (alone.count, alone.best_mean) == (1, None)
    table = _peer_tables.table({"points": [{**entries[2], "projection": False}]})
    assert table.splitlines()[2] == (
        "| LSTM | train, without projection | 0.10× | – "
        "| 0.10× (`lax.scan`, H=64, B=1) | 1 of 1 |"
    )


def test_limits_are_compared_with_ours_and_with_others():
    rows = [
        {"quantity": "float32_gflop_per_s", "threads": 1, "rounds": [100]},
        {"quantity": "read_gb_per_s", "threads": 1, "bytes": 1 << 14, "rounds": [1e6]},
    ]
    points = [
        entry(128, 8, scan=3.0, torch=1.5, flax=9.0),
        entry(256, 8, scan=3.0, torch=1.5, flax=9.0),
        {**entry(128, 8, scan=1.0), "dtype": "bfloat16"},  # has other limits
    ]
    for point, share in zip(points, (0.9, 0.4), strict=False):
        # Two passes and four products, of 2·4·H²·B FLOP each.
        limit_us = 6 * 2 * 4 * point["hidden_size"] ** 2 * 8 / 100e3
        point["step_us"] = {"native": {**SPREAD, "median": limit_us / share}}
    results = {"points": points, "limits": {"rows": rows}}
    lines = _peer_tables.table(results).split("\n\n")[1].splitlines()
    ends = "90 % (H=128, B=8) | 40 % (H=256, B=8)"
    assert lines[2:] == [f"| LSTM | train | 60 % | – | 5.00× | 2.50× | {ends} |"]
    for point, peak in zip(points, (90, 40), strict=False):
        point["peak_gflops"] = {**SPREAD, "median": peak}
    lines = _peer_tables.table(results).split("\n\n")[1].splitlines()
    assert lines[2].startswith("| LSTM | train | 60 % | 60 % | 5.00× |")


def test_results_of_other_points_can_be_joined(peers):
    first, *others = peers["points"]
    again = {**first, "rounds": 99}
    earlier = {**peers, "points": [*others[::-1], first]}
    both = against_peers.joined(earlier, {**peers, "points": [again]})
    assert both["points"] == [again, *others]
    if peers["limits"]:
        rows = zip(both["limits"]["rows"], peers["limits"]["rows"], strict=True)
        for joined, row in rows:
            assert joined["rounds"] == 2 * row["rounds"]


def test_results_of_another_machine_cannot(peers, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(peers))
    keys = "device", "versions", "platform", "options"
    about = {key: peers[key] for key in keys}
    assert against_peers.read_earlier(file, about) == peers
    for key in keys:
        with pytest.raises(SystemExit, match=f"{key} was"):
            against_peers.read_earlier(file, {**about, key: "another"})


def test_sizes_are_the_goals_or_all(monkeypatch):
    parse = against_peers._parser().parse_args
    goal, every = (against_peers.points(parse(o)) for o in ([], ["--full"]))
    assert len(goal) == (2 * 6 + 3) * 5 * 5
    assert len(every) == (2 * 6 + 3) * 8 * 7
    assert {*goal} < {*every}


# ---- the word model ------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    out = tmp_path_factory.mktemp("word_model") / "language_model.json"
    sizes = {"embed": 12, "hidden": 8, "vocabulary": 60, "batch": 3, "steps": 5}
    options = [text for n, size in sizes.items() for text in (f"--{n}", str(size))]
    options += ["--batches", "8", "--budget-s", "0.001"]
    with one_core():
        language_model.main([*options, "--out", str(out)])
    return json.loads(out.read_text())


def test_all_learn_the_same(learnt):
    curves = learnt["perplexity"]
    for kind in curves.values():
        assert {"native", "scan"} <= set(kind)
        for curve in kind.values():
            assert len(curve) == 8
            assert 50 < curve[0] < 70  # as many as there are words
            assert curve[-1] < curve[0]
    assert curves["with dropout"]["native"] != curves["without dropout"]["native"]
    others = [n for n in curves["without dropout"] if n != "native"]
    assert list(learnt["difference"]["without dropout"]) == others
    for differences in learnt["difference"].values():
        assert max(differences.values()) < language_model.EARLY_TOLERANCE
    assert list(learnt["difference"]["with dropout"]) == ["scan"]
    table = language_model.table(learnt).splitlines()
    assert len(table) == 2 + len(learnt["words_per_s"])
    assert len({line.count("|") for line in table}) == 1


def test_torch_learns_the_same(learnt):
    skip_without("torch")
    assert "torch" in learnt["difference"]["without dropout"]


def test_who_learns_something_else_is_refused():
    curves = {"native": [60.0, 50.0, 40.0], "scan": [60.0, 50.0, 40.1]}
    with pytest.raises(harness.DisagreementError, match="scan and native differ"):
        language_model.check(curves)


def test_the_text_is_always_the_same_and_agrees_in_number():
    text = language_model.corpus(3000, 600)
    np.testing.assert_array_equal(text, language_model.corpus(3000, 600))
    assert text.shape == (3000,)
    assert text.min() == 0
    assert 590 < text.max() < 600
    agreeing = 0
    for sentence in " ".join(map(str, text)).split(" 0 "):  # at its end
        words = [int(word) for word in sentence.split()]
        if not {2, 3} & {*words}:  # no clause, no genitive: the first noun is subject
            noun, verb, *_ = (w for w in words if 6 <= w < 6 + 4 * 99)
            agreeing += 1
            assert 6 <= noun < 6 + 2 * 99 <= verb
            assert noun % 2 == verb % 2
    assert agreeing > 100
    model = language_model.Model(vocabulary=600, batch=4, steps=10)
    batches = language_model.batches(model, 5)
    assert batches.shape == (5, 4, 11)
    np.testing.assert_array_equal(batches[1:, :, 0], batches[:-1, :, -1])
