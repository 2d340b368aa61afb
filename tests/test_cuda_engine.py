"""The CUDA engine's own sources in the emulator: tests/native/check_cuda_engine.cc.

The last part makes mistakes on purpose (tests/faults) and wants each noticed.
"""

import functools
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from emulator.build import (
    COMPILER,
    FOLDER,
    ROOT,
    TIMEOUT_S,
    VARIANTS,
    build,
    compile_cxx,
)
from emulator.build import compiled as compiled_folder
from faults.fault import CHECKS, Edit
from faults.table import FAULTS
from made_once import made_once, ran_once, sources

pytestmark = pytest.mark.xdist_group("cuda_engine")  # of one another's fixtures

SOURCE = ROOT / "tests/native/check_cuda_engine.cc"
EXCHANGES = "block", "cluster", "grid"
SMALL = "*-H? *-H??"

# Much of the time goes into compiling: what is not looked at is left out. Functions
# that are not always inlined are compiled in a quarter to half of it.
OPTIONS = {
    "plain": ["-Og", "-g0", "-DPRNN_HD=inline"],
    "address": ["-O0", "-g1", "-DPRNN_HD=inline"],
    "thread": ["-O1", "-g1", "-DPRNN_HD=inline"],
}


@functools.cache
def prepared(variant: str) -> list[Path]:
    """The planner, for the cases that are planned; and the emulator is compiled."""
    options = *VARIANTS[variant], *OPTIONS[variant]

    def compiled_once(source: Path) -> Path:
        def make(linked: Path) -> None:
            compile_cxx(*options, "-c", source, "-o", linked)

        given = COMPILER, *options
        return made_once(f"{source.stem}.o", sources(source), given, make)

    compiled_folder(FOLDER, variant)
    return [compiled_once(ROOT / f"cuda/{name}.cc") for name in ("planner", "devices")]


def compiled(variant: str, instances: str, edits: tuple[Edit, ...] = ()) -> Path:
    """The program with some instances; of copied sources where there are edits."""

    def edited(folder: Path) -> list[str | Path]:
        if not edits:
            return []
        for part in "core", "cuda":
            (folder / part).mkdir()
            for source in sorted((ROOT / part).glob("*.*h")):  # .h, .cuh
                shutil.copy(source, folder / part)
        for edit in edits:
            path = folder / (edit.file if "/" in edit.file else f"cuda/{edit.file}")
            text = path.read_text()
            assert text.count(edit.old) == 1, f"{edit.file} has changed: {edit.old!r}"
            path.write_text(text.replace(edit.old, edit.new))
        # Before all others; and what is left unused is no error.
        return ["-iquote", folder, "-Wno-error"]

    return build(
        variant,
        "check_cuda_engine",
        *OPTIONS[variant],
        f'-DPRNN_COMPILED="{instances}"',
        SOURCE,
        *prepared(variant),
        prepare=edited,
        key=edits,
    )


def result(program: Path, *options: str) -> tuple[bool, str]:
    """(Nothing is wrong, what it says.)"""
    # The first race is enough; to find the names for others takes long.
    first = {"TSAN_OPTIONS": "halt_on_error=1"}
    ran = ran_once(program, *options, environment=first, timeout_s=TIMEOUT_S)
    report = f"{ran.stdout}{ran.stderr}"
    silent = re.fullmatch(r"ok \d+\n", report) is not None
    return ran.returncode == 0 and silent, report


@functools.cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))


class Once:
    """Calls f once for each argument, side by side; for several tests of a module."""

    def __init__(self, f):
        self._f, self._futures = f, {}

    def start(self, *argument) -> Future:
        if argument not in self._futures:
            self._futures[argument] = pool().submit(self._f, *argument)
        return self._futures[argument]


def selected(request: pytest.FixtureRequest, test: str, name: str) -> list:
    """Values of a parameter for which a test of this module will run."""
    return [
        item.callspec.params[name]
        for item in request.session.items
        if item.path == request.path and getattr(item, "originalname", "") == test
    ]


# ---- the engine is right ----


#: Programs, each with many instances: bfloat16, and the LSTM in all formats, are looked
#: at always, the rest where there is time.
PROGRAMS = {
    "bf16": "*-bf16-*",
    "lstm-tf32": "lstm-*-tf32-* normed_*-tf32-*",
    "lstm-f16": "lstm-*-f16-*",
    "lstm-f32": "lstm-*-f32-* rnn-forward-f32-grid1",  # one whose weights overflow
    "tf32": "rnn-*-tf32-* gru-*-tf32-* slstm-*-tf32-* general_*-tf32-*",
    "f16": "rnn-*-f16-* gru-*-f16-* slstm-*-f16-* general_*-f16-* normed_*-f16-*",
    "f32": "rnn-*-f32-* gru-*-f32-* slstm-*-f32-* general_*-f32-* normed_*-f32-*",
}
THOROUGH = "tf32", "f16", "f32"


def program(name: str, *values: str):
    """Values of parameters of a test, the last of which is a program's name."""
    marks = pytest.mark.thorough if name in THOROUGH else ()
    return pytest.param(*values, name, marks=marks)


def programs(*names: str):
    """A parameter of tests, of these programs."""
    return pytest.mark.parametrize("program", list(map(program, names)))


@pytest.fixture(scope="module")
def whole(request):
    """A program by its name; all that tests of this module will ask for are begun."""
    once = Once(lambda name: compiled("plain", PROGRAMS[name]))
    prepared("plain")
    for item in request.session.items:
        if item.path == request.path and "whole" in item.fixturenames:
            given = getattr(item, "callspec", None)
            once.start(given.params.get("program", "bf16") if given else "bf16")
    return lambda name: once.start(name).result()


@programs(*PROGRAMS)
def test_equals_the_naive_run(program, whole):
    """Every cell, pass and exchange, bit by bit the same for two schedules."""
    ok, report = result(whole(program), f"cases={SMALL}")
    assert ok, report


@programs("bf16", "lstm-tf32", "lstm-f32", "tf32", "f32")
def test_weights_overflow_into_shared_memory(program, whole):
    ok, report = result(whole(program), "cases=*-H??? *-H1???", "schedules=1")
    assert ok, report


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(
    ("cell", "program"), [program("bf16", "lstm"), program("tf32", "gru")]
)
def test_does_not_depend_on_the_schedule(cell, program, exchange, whole):
    cases = f"cases={cell}-*-{exchange}*-T3-B3-*"
    ok, report = result(whole(program), cases, "schedules=50")
    assert ok, report


@pytest.mark.parametrize("cell", ["normed_lstm", "normed_gru"])
def test_sums_of_rows_do_not_depend_on_the_schedule(cell, whole):
    cases = f"cases={cell}-*-T3-B3-* {cell}-*-B14-*"
    ok, report = result(whole("bf16"), cases, "schedules=50")
    assert ok, report


@programs(*PROGRAMS)
def test_nan_is_a_value(program, whole):
    """NaN of the bits that mean "unwritten" arrives, where it belongs, as a NaN."""
    ok, report = result(whole(program), "cases=*-T3-B3-G2-*", "input=nan")
    assert ok, report


@programs("bf16", "lstm-f32", "f32")
def test_teams_need_not_run_at_the_same_time(program, whole):
    cases = "cases=*-block*-T3-B3-* *-cluster*-T3-B3-* lstm-*-cluster*-B20-*"
    ok, report = result(whole(program), cases, "resident=1")
    assert ok, report


def test_teams_of_a_grid_must(whole):
    cases = "cases=lstm-forward-bf16-grid*-T3-B3-*"
    ok, report = result(whole("bf16"), cases, "resident=1")
    assert not ok
    lines = report.splitlines()
    assert len(lines) == 3
    assert all("cooperative" in line for line in lines)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_largest_layer(direction, whole):
    """An LSTM of 2048 units, as the planner has it on an H200: 128 blocks."""
    ok, report = result(whole("bf16"), f"cases=lstm-{direction}-*-H2048", "schedules=1")
    assert ok, report


# ---- nor does it do what cannot be seen in results ----

SANITIZED = {
    # Every cell, pass and exchange: instances 0, 3 and 4 of each list.
    "address-bf16": (
        "address",
        "*-bf16-*0 *-bf16-cluster* *-bf16-block* lstm-*-bf16-grid5 gru-*-bf16-grid5",
        SMALL,
    ),
    "address-tf32": ("address", "*-tf32-*0 *-tf32-cluster* *-tf32-block*", SMALL),
    "thread": (
        "thread",
        "lstm-*-bf16-grid0 lstm-*-bf16-cluster* lstm-*-bf16-block* "
        "gru-backward-bf16-grid5 gru-*-tf32-grid2 gru-*-tf32-cluster* "
        "normed_lstm-backward-bf16-grid0",
        "*-T3-B14-* *-T4-B14-*",
    ),
}


def sanitized(name: str) -> tuple[bool, str]:
    variant, instances, cases = SANITIZED[name]
    program = compiled(variant, instances)
    return result(program, "schedules=1", f"cases={cases}")


@pytest.fixture(scope="module")
def sanitizers(request):
    once = Once(sanitized)
    for name in selected(request, "test_keeps_to_its_memory_and_order", "name"):
        prepared(SANITIZED[name][0])
        once.start(name)
    return lambda name: once.start(name).result()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SANITIZED)
def test_keeps_to_its_memory_and_order(name, sanitizers):
    """Buffers of the exact size, and no data race, under sanitizers."""
    ok, report = sanitizers(name)
    assert ok, report[:10000]


# ---- and all this would be noticed otherwise ----

FAULT = {fault.name: fault for fault in FAULTS}


def healthy_options(options: tuple[str, ...]) -> tuple[str, ...]:
    """Without the mistakes that are options."""
    return tuple(o for o in options if not o.startswith(("fault=", "fill=")))


@pytest.fixture(scope="module")
def faults(request):
    programs = Once(compiled)
    healthy = Once(result)

    def check(name):
        """Results with and without the fault."""
        fault = FAULT[name]
        variant = CHECKS[fault.check].variant
        program = (
            compiled(variant, fault.compiled, fault.edits) if fault.edits else None
        )
        return result(program or unharmed[variant, fault.compiled], *fault.options)

    names = selected(request, "test_fault_is_noticed", "name")
    needed = {(CHECKS[FAULT[n].check].variant, FAULT[n].compiled) for n in names}
    for variant in sorted({variant for variant, _ in needed}):
        prepared(variant)
    started = {key: programs.start(*key) for key in sorted(needed)}
    unharmed = {key: future.result() for key, future in started.items()}
    checks = Once(check)
    for name in names:
        fault = FAULT[name]
        key = CHECKS[fault.check].variant, fault.compiled
        healthy.start(unharmed[key], *healthy_options(fault.options))
        checks.start(name)

    def outcome(name):
        fault = FAULT[name]
        key = CHECKS[fault.check].variant, fault.compiled
        without = healthy.start(unharmed[key], *healthy_options(fault.options))
        return without.result(), checks.start(name).result()

    return outcome


#: One for each check is looked at always, the others where there is time.
FIRST = {fault.check: fault.name for fault in reversed(FAULTS)}.values()


@pytest.mark.parametrize(
    "name",
    [
        name if name in FIRST else pytest.param(name, marks=pytest.mark.thorough)
        for name in FAULT
    ],
)
def test_fault_is_noticed(name, faults):
    (passes, report), (passes_with_it, with_it) = faults(name)
    assert passes, report
    assert not passes_with_it, f"nothing notices {name}"
    expected = CHECKS[FAULT[name].check].report
    assert re.search(expected, with_it), with_it[:10000]
