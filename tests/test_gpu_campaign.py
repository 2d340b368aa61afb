"""The GPU campaign's scripts run, as far as they can without a GPU."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import emulated
import pytest

ROOT = Path(__file__).parent.parent
CAMPAIGN = ROOT / "benchmarks/gpu_campaign.sh"


def campaign(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [CAMPAIGN, *arguments],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


STAGES = {
    1: ("conformance", "engine", "segments", "sanitizers"),
    2: ("micro", "plans"),
    3: ("tests", "graphs"),
    4: ("peers",),
    5: ("soak",),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """The programs as they are carried to a GPU: over the fake CUDA runtime.

    Of conformance and micro there are rows alone: nvcc makes them, which has a test of
    its own.
    """
    folder = tmp_path_factory.mktemp("work")
    programs = folder / "carried/programs"
    programs.mkdir(parents=True)
    for name, source in {
        "check_device": "tests/native/check_device.cc",
        "plans": "benchmarks/gpu/plans.cc",
        "segments": "benchmarks/gpu/segments.cc",
    }.items():
        shutil.copy(emulated.program(ROOT / source), programs / name)
    for name, row in {
        "conformance": {"part": "conformance", "check": "vote_all", "ok": True},
        "micro": {"part": "micro", "what": "device", "name": "NVIDIA H200"},
    }.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{json.dumps(row)}'\n")
        (programs / name).chmod(0o755)
    return folder


def test_stages_add_up(tmp_path, work):
    """Every stage on the fake CUDA runtime and the CPU, into one folder."""
    out = tmp_path / "results"
    environment = {"PRNN_CAMPAIGN_WORK": str(work)}
    ended = {}
    for stage, parts in STAGES.items():
        chosen = ["--parts", ",".join(parts)] if stage == 1 else ["--stage", str(stage)]
        done = campaign("--smoke", *chosen, "--out", str(out), **environment)
        ended |= dict.fromkeys(parts, "ok")
        found = {row["name"]: row["status"] for row in rows_of(out / "campaign.jsonl")}
        assert found == ended, (out / "log.txt").read_text()[-3000:]
        assert done.returncode == 0, done.stderr
        assert (out / "summary.md").read_text() in done.stdout
    assert len(list(out.iterdir())) <= 8
    text = (out / "summary.md").read_text()
    assert text.startswith("# GPU campaign: NVIDIA H200\n")
    assert all(f"| {part} | ok |" in text for part in ended)
    assert "Nothing was found." in text
    assert "| rnn | 8 | 2 | float32 | train |" in text
    assert "| forward | bfloat16 | grid |" in text
    assert "| backward | 40 | 3 | cluster |" in text
    parts = {row["part"] for row in rows_of(out / "checks.jsonl")}
    assert parts == {"command_buffers", "soak", "sanitizers"}
    rows = rows_of(out / "device.jsonl")
    assert sum(row["part"] == "conformance" for row in rows) == 1
    assert (
        sum(row.get("check") == "all" for row in rows if row["part"] == "engine") == 1
    )


def test_a_part_run_again_replaces_its_rows(tmp_path, work):
    out = tmp_path / "results"
    for _ in range(2):
        chosen = "--smoke", "--parts", "conformance,micro", "--out", str(out)
        campaign(*chosen, PRNN_CAMPAIGN_WORK=str(work))
    assert len(rows_of(out / "device.jsonl")) == 2
    assert len(rows_of(out / "campaign.jsonl")) == 2


def test_a_part_that_fails_costs_itself_only(tmp_path, work):
    """And the campaign says so, and fails."""
    broken = tmp_path / "work"
    shutil.copytree(work, broken)
    programs = broken / "carried/programs"
    row = {"part": "conformance", "check": "vote_all", "ok": False}
    text = f"#!/bin/sh\necho '{json.dumps(row)}'\nexit 3\n"
    (programs / "conformance").write_text(text)
    (programs / "micro").unlink()
    out = tmp_path / "results"
    chosen = "conformance,sanitizers,micro,graphs"
    arguments = ["--no-build", "--parts", chosen, "--out", str(out)]
    environment = {"PRNN_CAMPAIGN_WORK": str(broken), "JAX_PLATFORMS": "cpu"}
    done = campaign(*arguments, **environment)
    assert done.returncode == 1
    ended = [(row["name"], row["status"]) for row in rows_of(out / "campaign.jsonl")]
    statuses = "failed", "failed", "failed", "no GPU"
    assert ended == list(zip(chosen.split(","), statuses, strict=True))
    log = (out / "log.txt").read_text()
    assert "programs/micro was not built" in log
    assert "compute-sanitizer is not on PATH" in log
    summary_text = (out / "summary.md").read_text()
    assert "| conformance | failed |" in summary_text
    assert "vote_all" in summary_text


def test_a_fault_of_the_engine_is_told(tmp_path, work):
    """By both parts that run its kernels without JAX."""
    out = tmp_path / "results"
    parts = "--smoke", "--parts", "engine,sanitizers", "--out", str(out)
    environment = {"PRNN_CAMPAIGN_WORK": str(work), "PRNN_FAKE_FAULT": "truncate"}
    done = campaign(*parts, **environment)
    assert done.returncode == 1
    statuses = [row["status"] for row in rows_of(out / "campaign.jsonl")]
    assert statuses == ["failed", "failed"]
    assert "roundings" in (out / "summary.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "micro,nonsense"], "no part is named nonsense"),
        (["--stage", "6"], "stages are 1 to 5"),
        (["--x"], "--out"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message, tmp_path):
    done = campaign(*arguments, OUT=str(tmp_path / "none"))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["conformance", "micro"])
def test_cuda_programs_compile(name, tmp_path):
    """For the device too, without warnings; they then say that there is no GPU.

    The definitions that the GPU is held to are those of the emulator.
    """
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    program = tmp_path / name
    sources = [ROOT / f"benchmarks/gpu/{name}.cu"]
    options = ["-std=c++20", "-O1", f"-I{ROOT}", f"-I{ROOT}/tests"]
    matrix = ROOT / "tests/emulator/matrix.cc"
    if name == "conformance" and matrix.exists():
        sources.append(matrix)
        options.append("-DPRNN_EMULATOR_MATRIX")
    options += ["-gencode=arch=compute_90a,code=sm_90a", "-Werror=all-warnings"]
    options += ["-Xcompiler=-Wall,-Wextra,-Werror"]
    built = subprocess.run(
        ["nvcc", *options, *sources, "-o", program],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([program], env=environment, capture_output=True, check=False)
    assert ran.returncode == 77
    assert json.loads(ran.stdout) == {"part": name, "error": "no GPU"}
    if len(sources) == 2:
        ran = subprocess.run([program, "--host"], capture_output=True, check=False)
        checks = [json.loads(line) for line in ran.stdout.splitlines()]
        assert len(checks) == 7
        assert all(check["ok"] for check in checks), checks
        assert ran.returncode == 0


# A GPU machine without a network has JAX, Flax, Equinox, torch, pytest and NumPy.
COLLECTED = """
import importlib.abc, sys
import pytest

ABSENT = {"hypothesis", "onnx", "onnxruntime", "keras", "haiku", "optax", "scipy"}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
options = "--collect-only", "-q", "-m", "gpu or cuda", "-p", "no:cacheprovider"
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""


def test_its_tests_need_no_package_that_may_be_absent():
    script = (ROOT / "benchmarks/gpu_campaign.sh").read_text()
    (names,) = re.findall(r"tests/test_\{([\w,]+)\}\.py", script)
    files = [ROOT / f"tests/test_{name}.py" for name in names.split(",")]
    assert all(file.exists() for file in files)
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collected = subprocess.run(
        [sys.executable, "-c", COLLECTED, *files],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    (count,) = re.findall(r"^(\d+)(?:/\d+)? tests collected", collected.stdout, re.M)
    assert int(count) > 150
