"""How fast are our layers against what people would use instead?

The same layer with the same weights in our library, `lax.scan`, Flax, Equinox, PyTorch
and ONNX Runtime; forward, in training, and in inference with weights that are prepared.
Each framework has a process of its own, and they are timed in turn.
Run it as `python -m benchmarks.against_peers`; README.md tells how to read it.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _limits, _peers
from benchmarks import _scan_points as scan_points
from benchmarks._peer_tables import (
    GOAL_BATCHES,
    GOAL_HIDDEN_SIZES,
    SLOWER,
    caption,
    full_table,
    microseconds,
    table,
)
from benchmarks._peers import KINDS, OURS
from benchmarks._points import CELLS, INFERENCE, MODES, Point
from benchmarks._workers import Worker, WorkerError

NAME = "against_peers"
RESULTS = command_line.RESULTS / f"{NAME}.json"
PACKAGES = ("numpy", "flax", "equinox", "torch", "onnxruntime")

#: All sizes; the tables' goal has some of them.
HIDDEN_SIZES = (64, 128, 256, 512, 768, 1024, 1152, 1760)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
BUDGET_S = 1.0

Workers = dict[str, Worker]

#: Among the candidates that are timed in turn: how long the machine takes for a GFLOP.
MACHINE = "machine"


def points(options: argparse.Namespace) -> list[Point]:
    """All combinations of what the options name."""
    axes = (options.projection, options.dtype, options.cells, options.modes)
    hidden = HIDDEN_SIZES if options.full else GOAL_HIDDEN_SIZES
    batch = BATCHES if options.full else GOAL_BATCHES
    sizes = (options.hidden or hidden, options.batch or batch)
    return [
        Point(
            cell,
            mode,
            hidden,
            batch,
            options.time or scan_points.steps(cell, hidden, batch),
            dtype,
            projection == "yes",
            options.platform,
        )
        for projection, dtype, cell, mode, hidden, batch in itertools.product(
            *axes, *sizes
        )
        if projection == "yes" or mode != INFERENCE  # a recurrence cannot be prepared
    ]


# ---- one point -----------------------------------------------------------------------


@contextlib.contextmanager
def started(names: Sequence[str], platform: str) -> Iterator[Workers]:
    """A worker for each framework of the candidates."""
    on_cpu = {"JAX_PLATFORMS": "cpu"}  # elsewhere JAX has only the converters to run
    on_gpu = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # there is more than one
    frameworks = dict.fromkeys(KINDS[name].worker for name in (OURS, *names))
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Worker(name, on_gpu if (name, platform) == ("jax", "gpu") else on_cpu)
            )
            for name in frameworks
        }


def measure(
    workers: Workers,
    point: Point,
    names: Sequence[str],
    budget_s: float,
    peak: Callable[[], float] | None = None,
) -> dict:
    """The point's entry in the results: checked first, then timed.

    Args:
      workers: one for each framework.
      point: what is measured.
      names: of the candidates besides ours.
      budget_s: seconds of timing.
      peak: what measures the machine's peak, GFLOP/s; it is called once in each round.

    Raises:
      harness.DisagreementError: a candidate computes something else than ours.
      WorkerError: a candidate failed.
    """
    differences, absent = check(workers, point, names)
    samplers = {
        name: functools.partial(_call, workers, name, _peers.sample, name)
        for name in (OURS, *differences)
    }
    if peak is not None:
        samplers[MACHINE] = lambda calls: 1 / peak()
    timings = harness.measure_samplers(samplers, budget_s=budget_s)
    for worker in workers.values():
        worker.call(_peers.forget)
    return _entry(point, timings, differences, absent)


def check(
    workers: Workers, point: Point, names: Sequence[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Prepares all; their differences from ours, and why the others are absent."""
    ours = _call(workers, OURS, _peers.prepare, OURS, point)
    differences, absent = {}, {}
    for name in names:
        if (reason := _peers.reason_against(name, point)) is not None:
            absent[name] = reason
            continue
        try:
            theirs = _call(workers, name, _peers.prepare, name, point)
            pair = {name: lambda theirs=theirs: theirs, OURS: lambda: ours}
            found = harness.check_agreement(str(point), pair, point.tolerance)
            differences[name] = found
        except (WorkerError, harness.DisagreementError) as error:
            # PyTorch sums a bias's gradient in bfloat16: of LSTM 1024, a quarter off.
            is_rounding = (
                isinstance(error, harness.DisagreementError)
                and point.dtype == "bfloat16"
                and not KINDS[name].in_jax
            )
            if not (KINDS[name].may_fail or is_rounding):
                raise
            absent[name] = str(error)
    return differences, absent


def _call(workers: Workers, candidate: str, function, *arguments):
    return workers[KINDS[candidate].worker].call(function, *arguments)


def _entry(
    point: Point,
    timings: dict[str, harness.Timing],
    differences: dict[str, float],
    absent: dict[str, str],
) -> dict:
    step_us = {
        name: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e6 / point.time))
        for name, timing in timings.items()
        if name != MACHINE
    }
    ratios = {
        name: dataclasses.asdict(harness.ratio(timings[name], timings[OURS]))
        for name in differences
    }
    machine = timings.get(MACHINE)
    others = [name for name in ratios if not KINDS[name].in_jax]
    best = min(others, key=lambda name: step_us[name]["median"], default=None)
    return {
        **dataclasses.asdict(point),
        "input_size": point.hidden_size,
        "rounds": len(timings[OURS].seconds),
        "calls_per_round": {name: timings[name].calls for name in step_us},
        "peak_gflops": machine
        and dataclasses.asdict(harness.Spread.of(1 / s for s in machine.seconds)),
        "step_us": step_us,
        "ratio": ratios,
        "best_peer": best and {"name": best, "ratio": ratios[best]},
        "difference": differences,
        "tolerance": point.tolerance,
        "absent": absent,
    }


# ---- command line --------------------------------------------------------------------

_LEGEND = """\
µs per time step of ours, medians, and how many times as long the others take; '<' marks
who is faster than ours by more than 5 %."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.out is None and {*points(parser.parse_args([]))} <= {*points(options)}:
        options.out = RESULTS
    results = command_line.outcome(parser, options, _measure_all)
    full = options.table is not None and options.full
    print(f"\n{(full_table if full else table)(results)}\n\n{caption(results)}")
    if not options.table:
        print(f"\nWritten to {options.out or 'no file: --out says to which'}.")


def _measure_all(options: argparse.Namespace) -> dict:
    names = [name for name in KINDS if name != OURS]
    if not options.torch_compile:
        names.remove("torch_compile")
    print(f"{_LEGEND}\n")
    entries = []
    has_limits = options.platform == "cpu" and _limits.compiler() is not None
    threads = {1, _limits.cores()}
    limits = _limits.measure_limits(threads) if has_limits else None
    with contextlib.ExitStack() as stack:
        peak = stack.enter_context(_limits.peak_meter()) if has_limits else None
        workers = stack.enter_context(started(names, options.platform))
        found = workers["jax"].call(_peers.device)
        if options.platform == "gpu" and found["gpu"] is None:
            raise SystemExit("JAX sees no GPU.")
        packages = ("jax", "jaxlib", *harness.installed(*PACKAGES), "prnn_jax")
        about = {
            "device": {**harness.device(found["instruction_set"]), "gpu": found["gpu"]},
            "versions": harness.versions(*packages),
            "platform": options.platform,
            "options": {
                "budget_s": options.budget_s,
                "min_rounds": harness.MIN_ROUNDS,
            },
        }
        earlier = options.join and read_earlier(options.join, about)
        for point in points(options):
            entries.append(measure(workers, point, names, options.budget_s, peak))
            print(_row(point, entries[-1]), flush=True)
    if limits is not None:  # a machine may have been slow when they were measured
        limits = _limits.joined(limits, _limits.measure_limits(threads))
    results = {**about, "limits": limits, "points": entries}
    return joined(earlier, results) if earlier else results


def read_earlier(path: Path, about: dict) -> dict:
    """Results that new ones may join.

    Args:
      path: their file.
      about: what is said of the new ones, besides the commit.

    Raises:
      SystemExit: they are of another commit, machine, or versions, or timed otherwise.
    """
    earlier = harness.read_json(path, NAME)
    for key, value in {**about, "commit": harness.commit()}.items():
        if earlier[key] != value:
            raise SystemExit(f"{path}: {key} was {earlier[key]}, and is {value}.")
    return earlier


def joined(earlier: dict, results: dict) -> dict:
    """The new results, and those of points that were not measured again, in order."""
    axes = [field.name for field in dataclasses.fields(Point)]

    def of(entry: dict) -> Point:
        return Point(**{axis: entry[axis] for axis in axes})

    def place(entry: dict) -> tuple:
        cell, mode = list(CELLS).index(entry["cell"]), MODES.index(entry["mode"])
        sizes = entry["hidden_size"], entry["batch"], entry["time"]
        return not entry["projection"], entry["dtype"], cell, mode, *sizes

    entries = {of(e): e for e in (*earlier["points"], *results["points"])}
    limits = results["limits"] and earlier["limits"]
    return {
        **results,
        "limits": limits and _limits.joined(earlier["limits"], results["limits"]),
        "points": sorted(entries.values(), key=place),
    }


def _row(point: Point, entry: dict) -> str:
    ratios = (
        f"{name} {spread['median']:.2f}{'<' * (spread['median'] < SLOWER)}"
        for name, spread in entry["ratio"].items()
    )
    return f"{point!s:50} {microseconds(entry, OURS):>6}  {'  '.join(ratios)}"


def _parser() -> argparse.ArgumentParser:
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    some = {"nargs": "+", "help": "(default: all)"}
    cells, modes = tuple(CELLS), MODES
    parser.add_argument("--cells", **some, choices=cells, default=cells)
    parser.add_argument("--modes", **some, choices=modes, default=modes)
    for name, sizes in (("--hidden", GOAL_HIDDEN_SIZES), ("--batch", GOAL_BATCHES)):
        text = f"(default: {' '.join(map(str, sizes))})"
        parser.add_argument(name, nargs="+", type=size, help=text)
    parser.add_argument(
        "--time", type=size, help="steps (default: 128, fewer where they are long)"
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float32", "bfloat16"),
        default=("float32",),
        help="of all arrays; bfloat16 is measured for ours, the scan and PyTorch",
    )
    parser.add_argument(
        "--projection",
        nargs="+",
        choices=("yes", "no"),
        default=("yes", "no"),
        help="whether the input projection is a part of the layer; without it ours and "
        "the scan are measured (default: both)",
    )
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--torch-compile", action="store_true", help="it, too")
    parser.add_argument(
        "--join",
        type=Path,
        metavar="FILE",
        help="results of other points, by the same commit on the same machine, to "
        "write with the new ones: all points take an hour",
    )
    parser.add_argument(
        "--full", action="store_true", help="all sizes; with --table: all points"
    )
    return parser


if __name__ == "__main__":
    main()
