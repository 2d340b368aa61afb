"""The search itself: draws cases, keeps what fails, shrunk, as a program to read."""

import json
import os
import tempfile
import time
from pathlib import Path

import hypothesis
import jax

from . import draw
from .case import Case
from .check import fault
from .program import Program

FOUND = Path(__file__).with_name("found.jsonl")
ROUND = {  # cases with one seed of hypothesis
    draw.calls: 60,
    draw.stacks: 15,
    draw.layers: 15,
    draw.exports: 15,
    draw.meshes: 30,
}


def known() -> list[Case]:
    """Cases that have been wrong once."""
    lines = FOUND.read_text().splitlines() if FOUND.exists() else []
    return [Case.of_json(line) for line in lines]


def keep(case: Case) -> None:
    with FOUND.open("a") as file:
        file.write(case.json() + "\n")


def shown(case: Case, wrong: str) -> str:
    return f"{wrong}\n{case.json()}\n\n{Program(case).text()}\n"


class Search:
    """Counts what it tries, and ends in time."""

    def __init__(self, seconds: float, cases: int, skip=(), trace: Path | None = None):
        self.end, self.most = time.monotonic() + seconds, cases
        self.skip = [compile(text, "skip", "eval") for text in skip]
        self.trace = trace
        self.tried, self.skipped, self.seen = 0, 0, {}
        self.found: list[Case] = []  # what has all that one of these has is passed over

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end or self.tried >= self.most

    def of(self, case: Case) -> str | None:
        """What is wrong with a case; None, too, where it is left out."""
        known = any(case.has(simpler) for simpler in self.found)
        if known or any(eval(skip, {"case": case}) for skip in self.skip):
            self.skipped += 1
            return None
        if case not in self.seen:
            if self.trace:  # to be read where a case ends the process
                self.trace.write_text(case.json())
            self.tried += 1
            self.seen[case] = fault(case)
        return self.seen[case]

    def round(
        self, cases, seed: int, examples: int, *, shrink: bool = True
    ) -> Case | None:
        """The simplest wrong case among some that are drawn, if there is one."""
        phases = [hypothesis.Phase.generate, hypothesis.Phase.shrink]
        last: list[Case] = []
        began_to_shrink: list[float] = []

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
            print_blob=False,
            phases=phases if shrink else phases[:1],
        )
        @hypothesis.given(cases)
        def every(case):
            if last and time.monotonic() > began_to_shrink[0] + 90:
                assert case != last[-1]
                return
            if not last and self.over:
                return
            wrong = self.of(case)
            if wrong is not None:
                last.append(case)
                began_to_shrink.append(time.monotonic())
            assert wrong is None

        try:
            every()
        except (AssertionError, hypothesis.errors.Flaky):
            return last[-1]
        finally:
            jax.clear_caches()  # megabytes of each case
        return None


def search(*, seconds: float, cases: int, seed: int, skip=(), kinds=()) -> list[Case]:
    """Prints what is wrong, and keeps it in `found.jsonl`."""
    trace = Path(tempfile.gettempdir()) / f"prnn-search-{os.getpid()}.json"
    here, began = Search(seconds, cases, skip, trace), time.monotonic()
    for case in known():
        if case.devices > jax.device_count():
            continue
        wrong = here.of(case)
        if wrong:
            here.found.append(case)
            print(f"still wrong: {wrong}\n{case.json()}\n", flush=True)
    kinds = kinds or [kind for kind in ROUND if kind != draw.meshes]
    number = 0
    while not here.over:
        kind = kinds[number % len(kinds)]
        case = here.round(kind(), seed + number, ROUND[kind])
        number += 1
        if case is None:
            continue
        here.found.append(case)
        keep(case)
        print(shown(case, here.seen[case] or ""), flush=True)
    trace.unlink(missing_ok=True)
    minutes = (time.monotonic() - began) / 60
    line = {
        "tried": here.tried,
        "skipped": here.skipped,
        "wrong": len(here.found),
        "seed": seed,
        "cases per minute": round(here.tried / minutes, 1),
    }
    print(json.dumps(line))
    return here.found
