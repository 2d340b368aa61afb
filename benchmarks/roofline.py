"""How near is the CPU engine to what this processor can do?

First the limits, measured by `cpu/limits.cc`, a program of its own: how fast threads
read working sets of 16 KiB to 256 MiB each, how many multiply-adds they make, and how
long they take to meet: each says that it is there, and waits until it has seen that the
others are. Then the recurrence, forward and backward (`prnn_figure` says of what), µs
per step. The limit of a step is the longest of three times:

- reading: each thread reads its share of w_hh once in a step. With the work split by
  units that is 1/threads of the weights, split by rows it is all of them, once however
  many of its rows they are multiplied by. The share is read at the measured bandwidth
  for a working set of that size (between sizes interpolated, both on a logarithmic
  scale; beyond the largest, that of the largest): that curve knows which cache level
  such a set stays in. It is read there and back, as the engine reads its weights, so
  that of a set larger than a cache some is found in it.
- arithmetic: 2·gates·H²·B FLOP at the measured peak of float32 multiply-adds.
- meeting, where threads split the units: none can multiply what another has computed
  before they have met. 1/threads of the products, those of its own units, it can make
  meanwhile; the rest of the longer of the times above comes after a meeting.

All for as many threads as `prnn_jax.explain` plans for the call, and the best of
several rounds. Left out is all else, so that no engine can be at 100 %: what else a
step moves (a_x, y, states, what is kept for the backward pass), gate math, how long one
operation waits for the one before it, and what a call does once: dispatch, and packing
the weights.

The machine's limit is that of one core or of all, each with 1/cores of the weights,
whichever is faster: what another plan might reach. Run as
`python -m benchmarks.roofline`, on a quiet machine: a limit that was disturbed is too
low, and shares of it are too high.
"""

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks._scan_points import CELLS, OURS
from benchmarks.prnn_figure import Point, candidates

NAME = "roofline"
SOURCE = Path(__file__).parent / "cpu" / "limits.cc"
FLAGS = "-std=c++20", "-O3", "-march=native", "-pthread"

PARTS = "forward", "backward_data"
HIDDEN_SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8, 16, 32)
TIME = 128
BUDGET_S = 1.0

#: Of each thread's working set: powers of two and, from 32 KiB on, half-way between.
SIZES = (2**14, *(2**n * half for n in range(14, 27) for half in (2, 3)), 2**28)
LIMIT_ROUNDS, LIMIT_ROUND_MS = 7, 10.0


# ---- the machine's limits ------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What threads can do together, by their number: the best of several rounds.

    Attributes:
      read_gb_per_s: for sizes of each thread's working set.
      float32_gflops: of multiply-adds.
      bfloat16_gflops: of dot products; empty where the processor has none.
      meeting_us: until threads have met; nothing for one thread.
    """

    read_gb_per_s: dict[int, dict[int, float]]
    float32_gflops: dict[int, float]
    bfloat16_gflops: dict[int, float]
    meeting_us: dict[int, float]

    def bandwidth(self, threads: int, thread_bytes: float) -> float:
        """GB/s of all threads, where each has a working set of so many bytes."""
        curve = self.read_gb_per_s[threads]
        sizes, rates = (np.log([*axis]) for axis in (curve, curve.values()))
        return float(np.exp(np.interp(np.log(thread_bytes), sizes, rates)))


def compiler() -> str | None:
    """A C++ compiler: $CXX, or one that is on the PATH."""
    names = os.environ.get("CXX"), "c++", "g++", "clang++"
    return next(filter(None, (name and shutil.which(name) for name in names)), None)


def measure_limits(
    threads: Collection[int],
    sizes: Sequence[int] = SIZES,
    rounds: int = LIMIT_ROUNDS,
    round_ms: float = LIMIT_ROUND_MS,
) -> dict:
    """What `cpu/limits.cc` prints, for these numbers of threads.

    Raises:
      RuntimeError: it cannot be compiled or run.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("roofline: needs a C++ compiler; set CXX to one.")
    sizes = _that_fit(sizes, max(threads))
    lists = (",".join(map(str, sorted(numbers))) for numbers in (threads, sizes))
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/limits"
        _output_of(found, *FLAGS, str(SOURCE), "-o", program)
        return json.loads(_output_of(program, str(rounds), str(round_ms), *lists))


def _that_fit(sizes: Sequence[int], threads: int) -> list[int]:
    """Those that take no more than half of the memory, a set for each thread."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [size for size in sizes if 2 * threads * size <= memory]


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"roofline: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def limits_of(measured: dict) -> Limits:
    """The best rounds of what `measure_limits` returned."""

    def best(quantity: str, key: str, threads: int | None = None) -> dict[int, float]:
        return {
            row[key]: max(row["rounds"])
            for row in measured["rows"]
            if row["quantity"] == quantity and threads in (None, row["threads"])
        }

    peak = best("float32_gflop_per_s", "threads")
    return Limits(
        {n: best("read_gb_per_s", "bytes", n) for n in peak},
        peak,
        best("bfloat16_gflop_per_s", "threads"),
        {n: 1 / rate for n, rate in best("million_meetings_per_s", "threads").items()},
    )


# ---- a point -------------------------------------------------------------------------


def plan_of(point: Point) -> prnn_jax.Plan:
    """How the engine runs the point's pass."""
    return prnn_jax.explain(
        point.cell,
        batch=point.batch,
        time=point.time,
        hidden_size=point.hidden_size,
        training=point.part != "forward",
        platform="cpu",
    )


def limit(point: Point, limits: Limits, threads: int, split: str) -> dict:
    """Of a step of the point, where so many threads split the work so; µs."""
    weight_bytes = 4 * point.hidden_size * point.wide
    thread_bytes = weight_bytes / (threads if split == "units" else 1)
    gb_per_s = limits.bandwidth(threads, thread_bytes)
    reading = threads * thread_bytes / gb_per_s / 1e3
    arithmetic = point.step_flop / limits.float32_gflops[threads] / 1e3
    times = {"reading": reading, "arithmetic": arithmetic}
    if split == "units" and threads > 1:
        after_it = (1 - 1 / threads) * max(times.values())
        times["meeting"] = limits.meeting_us[threads] + after_it
    bound = max(times, key=lambda name: times[name])
    return {
        "threads": threads,
        "split": split,
        "thread_bytes": thread_bytes,
        "read_gb_per_s": gb_per_s,
        **{f"{name}_us": time for name, time in times.items()},
        "bound": bound,
        "step_us": times[bound],
    }


def machine_limit(point: Point, limits: Limits) -> dict:
    """Of one core or of all, each with its share of the weights."""
    plans = (limit(point, limits, threads, "units") for threads in {1, _cores()})
    return min(plans, key=lambda plan: plan["step_us"])


def measure(point: Point, limits: Limits, budget_s: float) -> dict:
    """The point's entry in the results: checked against the scan first, then timed.

    Raises:
      harness.DisagreementError: ours computes something else.
    """
    runs = candidates(point)
    difference = harness.check_agreement(str(point), runs, point.tolerance)
    (timing,) = harness.measure({OURS: runs[OURS]}, budget_s=budget_s).values()
    step_us = harness.Spread.of(timing.seconds, 1e6 / point.time)
    plan = plan_of(point)
    planned = limit(point, limits, plan.threads, plan.split)
    machine = machine_limit(point, limits)
    return {
        **dataclasses.asdict(point),
        "rounds": len(timing.seconds),
        "step_us": dataclasses.asdict(step_us),
        "gflops": point.step_flop / step_us.median / 1e3,
        "limit": planned,
        "share": planned["step_us"] / step_us.median,
        "machine_limit": machine,
        "share_of_machine": machine["step_us"] / step_us.median,
        "difference": difference,
        "tolerance": point.tolerance,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# ---- tables --------------------------------------------------------------------------


def table(results: dict) -> str:
    """The machine's limits, then our share of each point's."""
    limits = limits_of(results["limits"])
    return "\n\n".join((_limits_table(limits), _shares_table(results["points"])))


def _limits_table(limits: Limits) -> str:
    threads = sorted(limits.float32_gflops)
    header = ["limit", *(f"{n} thread{'s' if n > 1 else ''}" for n in threads)]
    peaks = {
        "float32 multiply-adds, GFLOP/s": limits.float32_gflops,
        "bfloat16 dot products, GFLOP/s": limits.bfloat16_gflops,
        "meeting, µs": limits.meeting_us,
    }
    rows = [
        [what, *(harness.number(peak[n]) if n in peak else "–" for n in threads)]
        for what, peak in peaks.items()
        if peak
    ]
    for size in limits.read_gb_per_s[threads[0]]:
        rates = (harness.number(limits.read_gb_per_s[n][size]) for n in threads)
        rows.append([f"reading {size // 1024} KiB per thread, GB/s", *rates])
    return harness.markdown(header, rows)


def _shares_table(points: Sequence[dict]) -> str:
    """A row for each cell, pass and hidden size: what share, and of which limit."""
    batches = sorted({point["batch"] for point in points})
    rows: dict[tuple, dict[int, str]] = {}
    for point in points:
        key = CELLS[point["cell"]].title, point["part"], str(point["hidden_size"])
        share = f"{100 * point['share']:.0f} % ({point['limit']['bound']})"
        rows.setdefault(key, {})[point["batch"]] = share
    header = ["cell", "pass", "hidden", *(f"B={batch}" for batch in batches)]
    return harness.markdown(
        header,
        (
            [title, part.replace("_", " "), hidden, *(s.get(b, "–") for b in batches)]
            for (title, part, hidden), s in rows.items()
        ),
    )


def full_table(results: dict) -> str:
    """A row for each point."""
    header = ["cell", "pass", "hidden", "batch", "threads", "KiB each", "GB/s"]
    header += ["limit, µs", "by", "native, µs per step", "share", "of the machine's"]
    rows = []
    for point in results["points"]:
        bound = point["limit"]
        row = [CELLS[point["cell"]].title, point["part"].replace("_", " ")]
        row += [str(point["hidden_size"]), str(point["batch"])]
        row += [f"{bound['threads']} by {bound['split']}"]
        row += [f"{bound['thread_bytes'] / 1024:.0f}"]
        row += [harness.number(bound["read_gb_per_s"])]
        row += [harness.number(bound["step_us"]), bound["bound"]]
        row += [harness.number(point["step_us"]["median"])]
        shares = point["share"], point["share_of_machine"]
        rows.append([*row, *(f"{100 * share:.0f} %" for share in shares)])
    return harness.markdown(header, rows)


# ---- command line --------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    some = {"nargs": "+"}
    parser.add_argument("--cells", **some, choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--parts", **some, choices=PARTS, default=PARTS)
    parser.add_argument("--hidden", **some, type=size, default=HIDDEN_SIZES)
    parser.add_argument("--batch", **some, type=size, default=BATCHES)
    parser.add_argument("--time", type=size, default=TIME, help="steps")
    parser.add_argument(
        "--full", action="store_true", help="with --table: a row for each point"
    )
    options = parser.parse_args(arguments)
    if options.full and not options.table:
        parser.error("--full goes with --table.")
    with jax.default_device(jax.devices("cpu")[0]):
        results = command_line.outcome(parser, options, _measure_all)
    print(full_table(results) if options.full else table(results))


def _measure_all(options) -> dict:
    axes = options.cells, options.parts, options.hidden, options.batch
    points = [
        Point(part, batch, hidden, options.time, cell)
        for cell, part, hidden, batch in itertools.product(*axes)
    ]
    threads = {1, _cores(), *(plan_of(point).threads for point in points)}
    measured = measure_limits(threads)
    limits = limits_of(measured)
    entries = []
    for point in points:
        entries.append(measure(point, limits, options.budget_s))
        jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"platform": "cpu", "limits": measured, "points": entries}


if __name__ == "__main__":
    main()
