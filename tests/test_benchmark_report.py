"""The report is made of what the benchmarks have written down, and of nothing else."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import compile_time, keep, memory, report

SPREAD = {"median": 2.0, "quartiles": [1.0, 3.0]}
SIZES = {"cell": "lstm", "batch": 2, "hidden_size": 64, "time": 8}
SURROUNDINGS = {
    "date": "2026-01-02T03:04:05+00:00",
    "device": {"cpu": "a processor", "cores": 2, "instruction_set": "avx2"},
    "versions": {"jax": "1.2.3"},
    "commit": {"name": "0123456789ab", "dirty": True},
    "load": {"before": 0.1, "after": 0.2},
}

#: Of each benchmark as little as its table and plots need.
RESULTS = {
    "against_peers": {
        "points": [
            {
                **SIZES,
                **{"mode": "train", "dtype": "float32", "projection": projection},
                "ratio": {"scan": SPREAD, "torch": SPREAD},
                "step_us": {"native": SPREAD, "scan": SPREAD, "torch": SPREAD},
                "best_peer": {"name": "torch", "ratio": SPREAD},
            }
            for projection in (True, False)
        ]
    },
    "language_model": {
        "words_per_s": {"native": SPREAD, "scan": SPREAD},
        "ratio": {"scan": SPREAD},
        "perplexity": {
            kind: {"native": [9.0, 8.0], "scan": [9.0, 8.0]}
            for kind in ("without dropout", "with dropout")
        },
        "difference": {
            "without dropout": {"scan": 1e-7},
            "with dropout": {"scan": 0.0},
        },
    },
    "against_scan": {
        "points": [
            {**SIZES, "mode": mode, "hidden_size": hidden, "ratio": SPREAD}
            for mode in ("forward", "train")
            for hidden in (64, 128)
        ]
    },
    "memory": {
        "points": [
            {
                **SIZES,
                "dtype": "float32",
                "bytes_per_unit_and_step": dict.fromkeys(memory.POLICIES, 4.0),
                "time_over_fast": dict.fromkeys(memory.POLICIES, SPREAD),
            }
        ]
    },
    "padding": {
        "points": [
            {
                **SIZES,
                "mode": "forward",
                "share_of_full": {
                    f"{engine} {kind}": SPREAD
                    for engine in ("native", "scan")
                    for kind in ("equal", "spread")
                },
            }
        ]
    },
    "cliffs": {
        "results": [
            {
                **{"engine": "CPU, measured", "cell": "lstm", "kind": "plain"},
                "points": [{**SIZES, "over_smaller_size": 0.1, "over_line": 0.2}],
            }
        ]
    },
    "scaling": {
        **{
            kind: [
                {
                    **{"step_ms": 1.0, "utterances": 4, "devices": 1},
                    **{"all_reduce_bytes": 8, "all_gathers": 0},
                }
            ]
            for kind in ("strong", "weak")
        },
        "model": [
            {
                **{"step_ms": 1.0, "is_measured_on_this_cpu": True},
                **{"all_reduce_ms": 0.5, "efficiency": 0.9},
            }
        ],
    },
    "compile_time": {
        "points": [
            {
                **{"implementation": "native", "mode": "forward", "depth": 2},
                **{"form": "stacked", "program_lines": 9},
                "seconds": dict.fromkeys((*compile_time.STAGES, "call"), 0.1),
            }
        ]
    },
    "half_precision": {
        "points": [
            {
                **SIZES,
                **{"mode": "forward", "projection": True, "bound": "reading"},
                "ratio": {"bfloat16": SPREAD, "float16": SPREAD},
            }
        ]
    },
    "projection": {
        "points": [
            {
                **{"shape": [8, 64, 64], "used": False, "ratio": SPREAD},
                "us": {"native": SPREAD, "xla": SPREAD},
            }
        ]
    },
    "prnn_figure": {
        "platform": "cpu",
        "points": [
            {
                **{"part": part, "batch": batch, "ratio": SPREAD},
                "gflops": {"native": 2.0, "scan": 1.0},
                "step_us": {"native": SPREAD, "scan": SPREAD},
            }
            for part in ("forward", "backward_data", "backward_weights")
            for batch in (1, 2)
        ],
    },
    "roofline": {
        "limits": {
            "rows": [
                {"quantity": "float32_gflop_per_s", "threads": 1, "rounds": [3]},
                {
                    **{"quantity": "read_gb_per_s", "threads": 1},
                    **{"bytes": 1 << 14, "rounds": [5]},
                },
            ]
        },
        "points": [
            {
                **SIZES,
                **{"part": part, "share": 0.5, "limit": {"bound": "reading"}},
            }
            for part in ("forward", "backward_data")
        ],
    },
}


@pytest.fixture
def folder(tmp_path):
    """With a file of each benchmark in the table."""
    for name, results in RESULTS.items():
        path = tmp_path / "results" / f"{name}.json"
        harness.write_json(path, {"benchmark": name, **SURROUNDINGS, **results})
    return tmp_path


def made(folder: Path) -> dict[str, str]:
    """The report's files."""
    out = folder / "docs"
    report.main(["--results", str(folder / "results"), "--out", str(out)])
    files = [path for path in out.rglob("*") if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_text() for path in files}


def test_the_report_shows_what_is_there(folder):
    pytest.importorskip("matplotlib")
    files = made(folder)
    assert made(folder) == files
    page = files.pop("benchmarks.md")
    for name, results in RESULTS.items():
        module = importlib.import_module(f"benchmarks.{name}")
        assert f"\n## {module.__doc__.splitlines()[0]}\n" in page
        table = report.table(module, {"benchmark": name, **results})
        assert (
            len({line.count("|") for line in table.split("\n\n")[0].split("\n")}) == 1
        )
        assert f"\n{table}\n" in page
        source = (
            "a processor, 2 cores, avx2; jax 1.2.3; commit 0123456789ab with changes"
        )
        assert f"`python -m benchmarks.{name}`: {source}; 2026-01-02." in page
    assert set(files) == {
        "benchmarks/against_peers-best.svg",
        "benchmarks/against_peers-scan.svg",
        "benchmarks/against_scan.svg",
        "benchmarks/language_model.svg",
        "benchmarks/prnn_figure.svg",
        "benchmarks/roofline.svg",
        "benchmarks/speed.svg",
    }
    for file, drawing in files.items():
        assert f"]({file})" in page
        assert "<dc:date>" not in drawing


def test_other_machines_follow(folder):
    device = {**SURROUNDINGS["device"], "cpu": "another processor"}
    results = {"benchmark": "memory", **SURROUNDINGS, **RESULTS["memory"]}
    other = folder / "results" / "memory-another.json"
    harness.write_json(other, {**results, "device": device})
    text = report.page(folder / "results", lambda name, results: [])
    first, second = (f"`python -m benchmarks.memory`: {a}" for a in ("a ", "another "))
    module = importlib.import_module("benchmarks.memory")
    table = report.table(module, results)
    assert text.count(table) == 2
    assert text.index(first) < text.rindex(table) < text.index(second)


def test_what_was_not_measured_is_listed(folder):
    (folder / "results" / "memory.json").unlink()
    text = report.page(folder / "results", lambda name, results: [])
    _, missing = text.split("## Not yet measured\n\n")
    names = set(report.BENCHMARKS) - set(RESULTS) | {"memory"}
    assert {*missing.splitlines()} == {f"- `python -m benchmarks.{n}`" for n in names}


def test_the_report_refuses_a_file_of_another_benchmark(tmp_path):
    harness.write_json(tmp_path / "dispatch.json", {"benchmark": "streaming"})
    with pytest.raises(ValueError, match=r"not results of benchmarks\.dispatch"):
        report.page(tmp_path, lambda name, results: [])


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    nothing = str(tmp_path / "nothing")
    for main, arguments in (
        (report.main, ["--results", nothing, "--out", str(tmp_path)]),
        (keep.main, [nothing]),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert f"must be a folder, got {nothing}" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_no_json_is_refused():
    with pytest.raises(ValueError, match=r"not results of benchmarks\.streaming"):
        harness.read_json(Path(__file__), "streaming")


def test_every_benchmark_is_in_the_report():
    folder = Path(report.__file__).parent
    writing = "harness.write_json", "command_line.outcome", "command_line.write"
    measuring = {
        path.stem
        for path in folder.glob("[!_]*.py")
        if any(call in path.read_text() for call in writing)
    }
    assert measuring == {*report.BENCHMARKS}


def test_the_repository_keeps_compact_results():
    for path in command_line.RESULTS.rglob("*.json"):
        results = json.loads(path.read_text())
        assert keep.kept(results) == results, f"{path.name}: python -m benchmarks.keep"
        assert path.read_text() == harness.rows_text(results)


def test_what_is_kept_is_all_that_pages_show(folder, tmp_path):
    results = folder / "results" / "roofline.json"
    full = json.loads(results.read_text())
    full["limits"]["rows"][0]["rounds"] = [1.0, 3.0, 2.0]
    full["points"][0] |= {"plan": {"engine": "native"}, "share": 0.123456789}
    harness.write_json(results, full)
    before = report.page(folder / "results", lambda name, results: [])
    keep.main([str(folder / "results")])
    kept = json.loads(results.read_text())
    assert kept["limits"]["rows"][0]["rounds"] == [3.0]
    assert "plan" not in kept["points"][0]
    assert kept["points"][0]["share"] == 0.123457
    assert report.page(folder / "results", lambda name, results: []) == before
