"""How near is the CPU engine to what this processor can do?

First the limits, as `_limits.py` measures them. Then the recurrence, forward and
backward (`prnn_figure` says of what), µs per step, and the limit of a step: for as many
threads as `prnn_jax.explain` plans for the call, and the best of several rounds.

The machine's limit is the least of all plans, by one core or by all: what another plan
might reach. Run as `python -m benchmarks.roofline`, on a quiet machine: a limit that
was disturbed is too low, and shares of it are too high.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _limits
from benchmarks._limits import Limits, limits_of
from benchmarks._scan_points import CELLS, OURS
from benchmarks.prnn_figure import Point, candidates

NAME = "roofline"

PARTS = "forward", "backward_data"
HIDDEN_SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8, 16, 32)
TIME = 128
BUDGET_S = 1.0


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
    sizes = point.hidden_size * point.wide, point.batch, limits
    partition = "batch" if plan.partition == "batch" else "hidden"
    planned = _limits.limit(*sizes, plan.threads, partition)
    machine = _limits.machine_limit(*sizes)
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
        "barrier, µs": limits.barrier_us,
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
        row += [f"{bound['threads']}, {bound['partition']}-parallel"]
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
    threads = {1, _limits.cores(), *(plan_of(point).threads for point in points)}
    measured = _limits.measure_limits(threads)
    limits = limits_of(measured)
    entries = []
    for point in points:
        entries.append(measure(point, limits, options.budget_s))
        jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"platform": "cpu", "limits": measured, "points": entries}


if __name__ == "__main__":
    main()
