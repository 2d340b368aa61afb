"""The emulator of tests/emulator by itself: operations, errors, faults, sanitizers."""

import re
from pathlib import Path

import pytest
from emulator.build import ROOT, TIMEOUT_S, VARIANTS, build
from made_once import ran_once

SOURCE = ROOT / "tests/native/check_emulator.cc"

# Mistakes that change no result here; on a GPU they would, at times.
RACES = [
    "race_without_bar_sync",
    "race_over_warps",
    "race_single_buffer",
    "race_shuffle_is_no_barrier",
    "race_relaxed_is_no_acquire",
    "race_granule_read_plainly",
    "race_remote_read_early",
]
OVERRUNS = [
    "overrun_of_shared_memory",
    "overrun_of_relaxed_store",
    "overrun_of_relaxed_load",
    "overrun_of_registers",
]


def program(variant: str) -> Path:
    return build(variant, "check_emulator", SOURCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_operations_do_what_they_are_defined_to(variant):
    ran = ran_once(program(variant), timeout_s=TIMEOUT_S)
    report = f"{ran.stdout}\n{ran.stderr}"
    assert ran.returncode == 0, report
    assert ran.stdout == "ok\n", report
    assert ran.stderr == "", report


@pytest.mark.parametrize("mistake", RACES)
def test_thread_sanitizer_sees(mistake):
    ran = ran_once(program("thread"), mistake, timeout_s=TIMEOUT_S)
    assert ran.returncode != 0, ran.stderr
    assert "ThreadSanitizer: data race" in ran.stderr
    # Threads bear the names they have on the device.
    assert re.search(r"'block \d+ thread \d+'", ran.stderr)


@pytest.mark.parametrize("mistake", OVERRUNS)
def test_address_sanitizer_sees(mistake):
    ran = ran_once(program("address"), mistake, timeout_s=TIMEOUT_S)
    assert ran.returncode != 0, ran.stderr
    overrun = "heap-buffer-overflow" in ran.stderr or "out of bounds" in ran.stderr
    assert overrun, ran.stderr
    assert "mistakes.h" in ran.stderr  # the line of the kernel
