"""The GPU campaign's parts in Python: what raises is told, what tools print is read."""

import json
import re
import sys
import threading
import types

import pytest

from benchmarks.gpu import (
    _rows,
    command_buffers,
    peers,
    sanitizers,
    soak,
    summary,
)

# ---- what raises is told ------------------------------------------------------------


def raise_in_a_thread(*_):
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("the launch failed: invalid argument")
    return 0


def test_an_error_in_one_of_two_threads_is_not_ok(monkeypatch):
    monkeypatch.setattr(command_buffers._rows, "differing", raise_in_a_thread)
    found = command_buffers.two_threads(smoke=True)
    assert found["ok"] is False
    assert found["error"] == "RuntimeError: the launch failed: invalid argument"


def test_an_error_beside_the_soak_is_raised(monkeypatch):
    stream = types.SimpleNamespace(Stream=lambda: raise_in_a_thread())
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=stream))
    with pytest.raises(RuntimeError, match="invalid argument"), soak.products(4):
        pass


def test_a_contender_that_raises_is_not_ok(capsys):
    def contender(error):
        def run():
            raise error

        return run

    point = next(peers.points(smoke=True))
    for error, status in (
        (ValueError("lstm: no persistent plan on NVIDIA H200"), 0),
        (ValueError("no room"), 1),
        (RuntimeError("the launch failed: invalid argument"), 1),
    ):
        rows = _rows.Rows("peers", None)
        peers.measure(rows, point, {"native": contender(error)}, lambda _: None)
        assert str(error) in capsys.readouterr().out
        assert rows.status == status


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([0, 0], 0), ([0, 77], 77), ([0, None], 1), ([-11, 0], 1), ([134, 77], 1)],
)
def test_the_worst_of_the_processes_is_told(statuses, status):
    assert peers.worst(statuses) == status


# ---- reading what tools print --------------------------------------------------------

THUNKS = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source | next=002 (1)] loop_fusion grid: [128, 1, 1]
    002: kCustomCall   [prev=001 (1) | next=003 (1)] kCustomCall
003: kCustomCall   [prev=002 (1) | next=004 (1)] kCustomCall
004: kWhile        [prev=003 (1) | sink ] kWhile
"""


def test_what_is_captured_is_told_by_the_thunks():
    inside, outside = command_buffers.captured(THUNKS)
    assert inside == ["kCustomKernel", "kCustomCall"]
    assert outside == ["kCommandBuffer", "kCustomCall", "kWhile"][1:]


SANITIZER = """\
========= COMPUTE-SANITIZER
{"part": "engine", "check": "all", "ok": true, "cases": 46}
========= Invalid __global__ read of size 16 bytes
=========     at void prnn::recurrence<prnn::Lstm>(prnn::Task)+0x230
========= Uninitialized __global__ memory read of size 4 bytes
=========     at loop_fusion+0x30
========= ERROR SUMMARY: 2 errors
"""


def test_reports_about_our_kernels_are_told_from_others():
    (report,) = sanitizers.ours(SANITIZER)
    assert report.startswith("Invalid __global__ read")


GOOD = re.sub("(?s)= Inv.*(?== ERROR)", "", SANITIZER).replace(": 2", ": 0")


@pytest.mark.parametrize(
    ("log", "status", "good"),
    [
        (GOOD, 0, True),
        (SANITIZER, 0, False),
        (GOOD, 3, False),
        (GOOD, None, False),  # cut off
        (GOOD.replace("true", "false"), 0, False),
        (GOOD.replace(": 0", ": 1"), 0, False),
        (GOOD.partition("= ERROR")[0], 0, False),  # without the tool's summary
        ("========= ERROR SUMMARY: 0 errors", 0, False),  # without the program's
    ],
)
def test_a_tool_is_good_with_both_summaries(log, status, good):
    assert sanitizers.verdict(log, status, has_tool=True)["ok"] is good


def test_the_most_telling_points_come_first():
    every, quick = list(peers.points()), list(peers.points(quick=True))
    layers = [p for p in every if p.layers == 1]
    assert len(layers) == len(set(layers)) == 3 * 8 * 6 * len(peers.DTYPES) * 2
    assert every[: len(quick)] == quick
    first = {(p.cell, p.hidden, p.batch) for p in quick if p.layers == 1}
    assert first == set(peers.FIRST)
    stacks = {(p.hidden, p.batch, p.layers) for p in quick if p.layers > 1}
    assert stacks == set(peers.STACKS)
    assert len(every) == len(layers) + 2 * 2 * len(stacks)
    assert {p.dtype for p in quick} == {"bfloat16"}


def test_a_summary_of_rows_that_say_little(tmp_path, capsys):
    rows = [
        {"part": "campaign", "name": "micro", "status": "out of time", "seconds": 9.0},
        {"part": "conformance", "check": "vote_all", "ok": False, "wrong": 3},
        {"part": "conformance", "check": "nan", "ok": False, "required": False},
        {"part": "micro", "what": "device", "name": "NVIDIA H200"},
        {
            "part": "micro",
            "what": "grid exchange",
            "constant": "grid_exchange",
            "value": 700.25,
            "unit": "cycles",
            "predicted": 760,
            "verdict": "as predicted",
            "blocks": 64,
            "wrong": 0,
        },
    ]
    point = {"cell": "lstm", "hidden": 768, "batch": 16, "dtype": "bfloat16"}
    point |= {"part": "peers", "mode": "forward", "time": 512}
    rows += [
        {**point, "who": "native", "step_us": 1.25},
        {**point, "who": "torch", "step_us": 2.5},
        {**point, "who": "scan", "error": "out of memory"},
    ]
    plan = {"cell": "lstm", "pass": "forward", "products": "bfloat16", "hidden": 768}
    plan |= {"part": "plans", "batch": 16, "exchange": "grid", "columns": 8}
    rows += [
        {"part": "micro", "what": "clock", "constant": "clock_ghz", "value": 2.0}
        | {"unit": "GHz", "predicted": 1.9, "verdict": "as predicted"},
        {**plan, "rows": 64, "rounds": 2, "step_us": 1.5, "modelled_us": 1.0}
        | {"is_chosen": False},
        {**plan, "rows": 32, "rounds": 1, "step_us": 3.0, "modelled_us": 1.5}
        | {"is_chosen": True},
    ]
    text = "\n".join(map(json.dumps, rows)) + '\n{"part": "mic'  # cut off
    (tmp_path / "rows.jsonl").write_text(text)
    assert summary.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# GPU campaign: NVIDIA H200\n")
    assert "| micro | out of time | 9.0 |" in printed
    assert "- micro: out of time; see log.txt" in printed
    assert "vote_all" in printed
    assert "not relied on: nan." in printed
    assert ".grid_exchange = 700.2," in printed
    # 2 · 16 · 768 · 4 · 768 operations in 1.25 us.
    assert "| 1.25 |  | error |  | 2.5 |  | 2.00× | 60.4 |" in printed
    assert "| forward | bfloat16 | grid | 2 | 1.50 | 1.75 | 2.00 |" in printed
    # 0.5 us of two rounds and 1.5 us of one, at 2 GHz; the median.
    assert "in cycles at 2.00 GHz: grid +1750 (of 2)" in printed
    assert "is chosen for 0 of 1 points" in printed
    assert "2.00× the time of grid 64 x 8, 1.50 us" in printed
    assert "torch: 2.00× (least 2.00×, 1)" in printed
