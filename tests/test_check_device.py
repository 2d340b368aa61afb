"""The program that checks the CUDA engine on a GPU without JAX, on the fake runtime.

tests/native/check_device.cc is what a GPU is asked first (benchmarks/gpu_campaign.sh).
It must be right before that: it finds nothing, and it finds what is there.
"""

import json
import subprocess
from pathlib import Path

import emulated
import pytest
from emulator.build import ROOT
from made_once import ran_once

NUMBERS = "bf16", "f16", "tf32", "f32"


@pytest.fixture(scope="module")
def program() -> Path:
    return emulated.program(ROOT / "tests/native/check_device.cc")


def rows(program: Path, *options: str, fault: str = "") -> tuple[int, dict[str, dict]]:
    """(Exit status, rows by what they check.)"""
    given = {"PRNN_FAKE_FAULT": fault}
    done = ran_once(program, *options, environment=given, timeout_s=280)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {row.get("check", "error"): row for row in found}


def test_every_format_and_exchange(program):
    status, found = rows(program, "cases=*-T3-B3-*", "runs=1")
    assert status == 0, found
    for number in NUMBERS:
        for exchange in emulated.EXCHANGES:
            row = found[f"{number}-{exchange}"]
            assert row["ok"]
            assert row["cases"] >= 10  # five cells, both passes
    assert found["all"]["device"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (("cases=*-bf16-*-all-*",), 46),
        (("cases=*-tf32-*-lengths-*", "runs=1"), 46),
        (("cases=*-bf16-*-T3-B3-*-H4?", "input=nan"), 46),
        # Of 2 to 6 blocks, and of 16; on a GPU, all between.
        (("cases=lstm-*-cluster3-T2-*-H?? *-T2-*-H1?? *-T2-*-H511", "runs=1"), 6),
        (("cases=*-T200-*", "steps=200", "runs=1"), 6),
    ],
    ids=["controls", "lengths", "nan", "clusters", "long"],
)
def test_cases(program, options, cases):
    status, found = rows(program, *options)
    assert status == 0, found
    assert found["all"]["cases"] >= cases


@pytest.mark.parametrize(
    ("fault", "exchange", "where"),
    [
        ("truncate", "block", "lstm-"),
        ("shuffle_lane", "grid", "lstm-"),
        ("early_tx", "cluster", "error"),  # stores into a block that has gone
        ("block_silent", "grid", "error"),  # the kernel's watchdog ends it
    ],
)
def test_fault_is_found(program, fault, exchange, where):
    options = f"cases=lstm-forward-bf16-{exchange}*-B14-*", "runs=1"
    assert rows(program, *options)[0] == 0
    status, found = rows(program, *options, fault=fault)
    assert status in (1, 3)
    assert any(name.startswith(where) and not row["ok"] for name, row in found.items())


def test_time_is_kept(program):
    status, found = rows(program, "cases=*-T3-B3-*", "seconds=0")
    assert status == 1
    assert found["bf16-grid"]["left_out"] > 0
    assert found["all"]["cases"] == 0


def test_an_option_that_is_none(program):
    done = subprocess.run([program, "case=x"], capture_output=True, check=False)
    assert done.returncode == 2
