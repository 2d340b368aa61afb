"""What all benchmarks share: timing, agreement, surroundings, tables and files.

Nothing here prints; a benchmark's command line does.
"""

import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np

ROOT = Path(__file__).resolve().parents[1]

#: A candidate's share of a round is repeated calls that last at least this long: a
#: hundred times the clock's and the loop's cost, and long against what one candidate
#: leaves to the next: caches, threads about to sleep, or a process to wake. With 2 ms
#: the shortest calls of an LSTM-128 took up to 1.5 times as long as they do after that.
SAMPLE_S = 20e-3

#: Rounds however small the budget is: the fewest that have a median and quartiles.
MIN_ROUNDS = 5

#: The load above which something else runs besides the benchmark.
QUIET_LOAD = 0.5

Candidates = dict[str, Callable[[], object]]

#: Candidates that make several calls and tell how many seconds one took.
Samplers = dict[str, Callable[[int], float]]


# ---- timing --------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """How long a candidate takes.

    Attributes:
      calls: in each round.
      seconds: of one call, a number for each round, in the order they were taken.
    """

    calls: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Spread:
    """The median of a sample and its quartiles."""

    median: float
    quartiles: tuple[float, float]

    @classmethod
    def of(cls, values: Iterable[float], scale: float = 1.0) -> "Spread":
        """Of the values times `scale`."""
        low, median, high = np.quantile(
            np.asarray([*values]) * scale, (0.25, 0.5, 0.75)
        )
        return cls(float(median), (float(low), float(high)))


def measure(
    candidates: Candidates, *, budget_s: float, min_rounds: int = MIN_ROUNDS
) -> dict[str, Timing]:
    """Times compiled candidates in turn (A B A B ...), every call to its end.

    A round has one sample of each candidate, so that what disturbs a machine for longer
    than a round disturbs all alike. No sample is dropped.

    Args:
      candidates: calls by name; each has run before, so that it is compiled.
      budget_s: new rounds begin until this has passed, warm-up included.
      min_rounds: rounds that are made even so.
    """
    samplers = {name: functools.partial(_time, run) for name, run in candidates.items()}
    return measure_samplers(samplers, budget_s=budget_s, min_rounds=min_rounds)


def measure_samplers(
    samplers: Samplers, *, budget_s: float, min_rounds: int = MIN_ROUNDS
) -> dict[str, Timing]:
    """The same for candidates that are timed elsewhere, such as in another process."""
    end = time.perf_counter() + budget_s
    calls = {name: _calls_per_sample(sample) for name, sample in samplers.items()}
    seconds = {name: [] for name in samplers}
    rounds = 0
    while rounds < min_rounds or time.perf_counter() < end:
        rounds += 1
        for name, sample in samplers.items():
            seconds[name].append(sample(calls[name]))
    return {name: Timing(calls[name], tuple(seconds[name])) for name in samplers}


def ratio(baseline: Timing, ours: Timing) -> Spread:
    """How many times faster ours is: the median of the rounds' ratios.

    Not the ratio of the medians: both samples of a round saw the same machine, so that
    what slows a machine for a while leaves the rounds' ratios as they are.
    """
    return Spread.of(
        theirs / own for theirs, own in zip(baseline.seconds, ours.seconds, strict=True)
    )


def _calls_per_sample(sample: Callable[[int], float]) -> int:
    """Also the warm-up: after compilation, the first calls may still be slower."""
    shortest = min(sample(1) for _ in range(3))
    return max(1, math.ceil(SAMPLE_S / shortest))


def _time(run: Callable[[], object], calls: int) -> float:
    """Seconds for one of several calls, each waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(run())
    return (time.perf_counter() - start) / calls


# ---- agreement -----------------------------------------------------------------------


class DisagreementError(Exception):
    """Candidates that should compute the same do not."""


def check_agreement(what: str, candidates: Candidates, tolerance: float) -> float:
    """Runs (and so compiles) all candidates; the largest difference from the last one.

    The difference of two arrays is |a - b| / |b| in the Euclidean norm.

    Args:
      what: begins the message.
      candidates: calls that return the same tree of arrays.
      tolerance: the largest difference allowed in any array.

    Raises:
      DisagreementError: an array differs by more, or is not finite.
    """
    *others, reference = candidates
    exact = jax.tree.map(np.asarray, candidates[reference]())
    largest = 0.0
    for name in others:
        values, structure = jax.tree_util.tree_flatten_with_path(candidates[name]())
        for (path, value), expected in zip(
            values, structure.flatten_up_to(exact), strict=True
        ):
            difference = _difference(np.asarray(value), expected)
            if not difference <= tolerance:  # so that NaN is caught
                raise DisagreementError(
                    f"{what}: {name} and {reference} differ by {difference:.2g} in "
                    f"output{jax.tree_util.keystr(path)}, {tolerance:.2g} is allowed; "
                    "a time would mean nothing."
                )
            largest = max(largest, difference)
    return largest


def _difference(value: np.ndarray, expected: np.ndarray) -> float:
    if value.shape != expected.shape:
        return math.inf
    expected = expected.astype(np.result_type(expected, np.float64))
    error = float(np.linalg.norm((value - expected).ravel()))
    return error / norm if (norm := float(np.linalg.norm(expected.ravel()))) else error


# ---- surroundings --------------------------------------------------------------------


def device(instruction_set: str | None) -> dict:
    """The CPU, as its maker names it, and what of it is used."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_set": instruction_set,
    }


def installed(*packages: str) -> tuple[str, ...]:
    """Those of the packages that are."""
    return tuple(p for p in packages if importlib.util.find_spec(p) is not None)


def versions(*packages: str) -> dict:
    """Of Python, of packages, and of the compiler that built the native module."""
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **found, "compiler": _compiler()}


def commit() -> dict | None:
    """The repository's commit, and whether tracked files differ from it.

    Results do not count: a benchmark may be run after another. None without git.
    """
    tracked = ("--untracked-files=no", "--", ".", ":(exclude)benchmarks/results")
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        return {"name": name, "dirty": bool(_git("status", "--porcelain", *tracked))}
    except (OSError, subprocess.CalledProcessError):
        return None


def record(benchmark: str, load_before: float, *packages: str) -> dict:
    """What a benchmark's file says beside its figures.

    Args:
      load_before: `load()` before the first measurement.
      packages: whose versions matter besides JAX's and ours.
    """
    return {
        "benchmark": benchmark,
        "date": now(),
        "device": device(None),
        "versions": versions("jax", "jaxlib", *packages, "prnn_jax"),
        "commit": commit(),
        "load": {"before": load_before, "after": load()},
    }


def provenance(results: dict) -> str:
    """Where and when the results of any benchmark were taken, in a line."""
    device, commit = results["device"], results["commit"]
    cores = f"{device['cores']} core{'s' if device['cores'] > 1 else ''}"
    where = (device.get("gpu"), device["cpu"], cores, device["instruction_set"])
    versions = (f"{name} {v}" for name, v in results["versions"].items() if v)
    parts = [", ".join(filter(None, where)), ", ".join(versions)]
    if commit:
        parts.append(f"commit {commit['name']}{' with changes' * commit['dirty']}")
    parts.append(results["date"][:10])
    busy = (results.get("load") or {}).get("before", 0)
    if busy >= QUIET_LOAD:
        parts.append(f"the machine was not quiet (load {busy})")
    return "; ".join(parts)


def now() -> str:
    """The time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def load() -> float:
    """How many threads wanted a core in the last minute. Quiet is well below 1."""
    return round(os.getloadavg()[0], 2)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.machine()


def _compiler() -> str | None:
    """As compilers sign their object files."""
    spec = importlib.util.find_spec("prnn_jax._prnn")
    if spec is None or spec.origin is None:
        return None
    signature = rb"clang version [\d.]+|GCC: \([^)\0]*\) [\d.]+"
    found = set(re.findall(signature, Path(spec.origin).read_bytes()))
    return ", ".join(sorted(name.decode() for name in found)) or None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# ---- results -------------------------------------------------------------------------


def geometric_mean(values: Iterable[float]) -> float | None:
    """None for no values."""
    values = [*values]
    return statistics.geometric_mean(values) if values else None


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """For a table: three digits, more only before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def rows_text(results: dict) -> str:
    """JSON with each entry on a line, and of lists of rows each row."""

    def text(value: object, depth: int) -> str:
        is_rows = isinstance(value, list) and any(isinstance(v, dict) for v in value)
        is_open = depth < 3 and isinstance(value, dict)
        is_open &= depth == 0 or _has_rows(value)
        if not value or not (is_rows or is_open):
            return json.dumps(value, separators=(",", ":"), allow_nan=False)
        if isinstance(value, dict):
            lines = [f"{json.dumps(k)}:{text(v, depth + 1)}" for k, v in value.items()]
            return "{\n" + ",\n".join(lines) + "\n}"
        assert isinstance(value, list)
        return "[\n" + ",\n".join(text(v, depth + 1) for v in value) + "\n]"

    return text(results, 0) + "\n"


def _has_rows(value: object) -> bool:
    """Whether there are rows anywhere in it."""
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(isinstance(v, dict) for v in value)


def write_json(path: Path, results: dict) -> None:
    """All or nothing: an earlier file stays if this fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(rows_text(results))
    unfinished.replace(path)


def read_json(path: Path, benchmark: str) -> dict:
    """Results of the named benchmark.

    Raises:
      ValueError: the file holds something else.
    """
    try:
        results = json.loads(path.read_text())
    except ValueError:  # no JSON, or no text
        results = None
    if not isinstance(results, dict) or results.get("benchmark") != benchmark:
        raise ValueError(f"{path}: not results of benchmarks.{benchmark}.")
    return results
