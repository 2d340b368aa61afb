"""How fast are our layers against `lax.scan`?

The baseline is the same layer with `implementation="scan"`: the input projection is one
product before the loop, which is the strong way to write it. Run it as
`python -m benchmarks.against_scan`; README.md tells how to read it.
"""

import argparse
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks._scan_points import (
    BASELINE,
    BATCHES,
    CELLS,
    HIDDEN_SIZES,
    MODES,
    OURS,
    TOLERANCES,
    Cell,
    Point,
    points,
)
from benchmarks._scan_tables import (
    SMALL_BATCH,
    caption,
    compact_table,
    full_table,
    ratio_of,
    shape_of,
    summarise,
    times,
)

NAME = "against_scan"
BUDGET_S = 1.0
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"

# ---- one point -----------------------------------------------------------------------


def candidates(point: Point) -> harness.Candidates:
    """Compiled calls for the point, ours and the baseline, on the same arrays."""
    arrays = _arrays(point)
    run = {"forward": _forward, "train": _train}[point.mode]

    def candidate(implementation: str) -> Callable:
        function = functools.partial(run, CELLS[point.cell], implementation)
        return functools.partial(jax.jit(function), *arrays)

    return {name: candidate(name) for name in (OURS, BASELINE)}


def measure(point: Point, budget_s: float) -> dict:
    """The point's entry in the results: checked first, then timed.

    Raises:
      harness.DisagreementError: ours and the baseline compute different things.
    """
    runs = candidates(point)
    difference = harness.check_agreement(str(point), runs, point.tolerance)
    timings = harness.measure(runs, budget_s=budget_s)
    ratio = harness.ratio(timings[BASELINE], timings[OURS])
    step_us = {
        name: harness.Spread.of(timing.seconds, 1e6 / point.time)
        for name, timing in timings.items()
    }
    return {
        **dataclasses.asdict(point),
        "input_size": point.hidden_size,
        "rounds": len(timings[OURS].seconds),
        "calls_per_round": {name: timing.calls for name, timing in timings.items()},
        "step_us": {name: dataclasses.asdict(s) for name, s in step_us.items()},
        "ratio": dataclasses.asdict(ratio),
        "difference": difference,
        "tolerance": point.tolerance,
        "plan": {name: dataclasses.asdict(p) for name, p in _plans(point).items()},
    }


def measure_all(points: Iterable[Point], budget_s: float) -> Iterator[dict]:
    """The entries of the points, each as soon as it is there."""
    for point in points:
        yield measure(point, budget_s)
        jax.clear_caches()  # programs and arrays of a point are not needed by the next


def _forward(cell: Cell, implementation: str, x, params, _):
    return cell.function(x, params, **cell.options, implementation=implementation)


def _train(cell: Cell, implementation: str, x, params, weights):
    """Gradients of a weighted sum of y."""

    def loss(x, params):
        y, _ = _forward(cell, implementation, x, params, None)
        return jnp.sum(weights * y)

    return jax.grad(loss, argnums=(0, 1))(x, params)


def _arrays(point: Point) -> tuple[jax.Array, prnn_jax.Params, jax.Array]:
    """x, params, and the weights of the sum; the same in every run."""
    random = np.random.default_rng(zlib.crc32(str(point).encode()))
    hidden, wide = point.hidden_size, CELLS[point.cell].gates * point.hidden_size
    sequence = (point.batch, point.time, hidden)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape, np.float32), point.dtype)

    def uniform(*shape):  # as layers are commonly initialised
        values = random.uniform(-1, 1, shape) * hidden**-0.5
        return jnp.asarray(values, point.dtype)

    params = prnn_jax.Params(
        uniform(hidden, wide), uniform(hidden, wide), uniform(wide), uniform(wide)
    )
    return normal(*sequence), params, normal(*sequence)


def _plans(point: Point) -> dict[str, prnn_jax.Plan]:
    """Of each pass that the point runs."""
    shared = "batch", "time", "hidden_size", "dtype"
    sizes = {key: getattr(point, key) for key in shared}
    explain = functools.partial(prnn_jax.explain, point.cell, **sizes)
    plans = {"forward": explain()}
    if point.mode == "train":
        plans["backward"] = explain(training=True)
    return plans


# ---- results -------------------------------------------------------------------------


def surroundings() -> dict:
    """What the times depend on besides the points."""
    sizes = {"batch": 1, "time": 1, "hidden_size": 64}
    plan = prnn_jax.explain("lstm", **sizes, platform="cpu")
    return {
        "benchmark": NAME,
        "date": harness.now(),
        "device": harness.device(plan.instruction_set),
        "versions": harness.versions("jax", "jaxlib", "numpy", "prnn_jax"),
        "commit": harness.commit(),
    }


# ---- command line --------------------------------------------------------------------

_HEADER = (
    f"{'cell':5} {'mode':8} {'H':>5} {'B':>4} {'T':>4} {'native':>9} {'scan':>9} "
    f"{'GFLOP/s':>8} {'ratio':>6}  {'quartiles':11}   plan"
)
_LEGEND = """\
native and scan: µs per time step, medians. GFLOP/s: of the native products (train: of
three times a forward pass's). ratio: scan / native, median of the rounds, with its
quartiles; '<' marks a ratio below 1. plan: what the threads split, how many may work,
rows x units multiplied at once (train: forward / backward)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.table:
        try:
            results = harness.read_json(options.table, NAME)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        print(full_table(results) if options.full else compact_table(results))
        print(f"\n{caption(results)}")
        return
    if options.full:
        parser.error("--full goes with --table.")
    _run(options)


def _run(options: argparse.Namespace) -> None:
    choices = (options.cells, options.modes, options.hidden, options.batch)
    chosen = points(*choices, options.time, options.dtype)
    out = options.out
    if out is None and chosen == points():
        out = RESULTS
    results = surroundings()
    results["options"] = {
        "budget_s": options.budget_s,
        "min_rounds": harness.MIN_ROUNDS,
    }
    results["load"] = {"before": harness.load()}
    results["points"] = []

    _print_surroundings(results)
    print(f"\n{_LEGEND}\n\n{_HEADER}", flush=True)
    with jax.default_device(jax.devices("cpu")[0]):
        for entry in measure_all(chosen, options.budget_s):
            print(_row(entry), flush=True)
            results["points"].append(entry)
    results["load"]["after"] = harness.load()
    _print_summaries(results["points"])
    if out is None:
        print("\nNot all points were asked for: written only with --out FILE.")
    else:
        harness.write_json(out, results)
        print(f"\nWritten to {out}.")


def _print_surroundings(results: dict) -> None:
    device, commit = results["device"], results["commit"]
    print(f"{device['cpu']}, {device['cores']} cores, {device['instruction_set']}")
    print(", ".join(f"{k} {v}" for k, v in results["versions"].items() if v))
    if commit:
        dirty = ", with changes" if commit["dirty"] else ""
        print(f"commit {commit['name']}{dirty}")
    busy = results["load"]["before"]
    print(f"load {busy}{'' if busy < 0.5 else ': this machine is not quiet'}")


def _row(entry: dict) -> str:
    sizes = (entry[key] for key in ("cell", "mode", "hidden_size", "batch", "time"))
    point = Point(*sizes)
    ours, scan = (entry["step_us"][name]["median"] for name in (OURS, BASELINE))
    passes = {"forward": 1, "train": 3}[point.mode]
    gflops = passes * point.step_flop / ours / 1e3
    low, high = entry["ratio"]["quartiles"]
    plans = " / ".join(_plan(plan) for plan in entry["plan"].values())
    mark = "<" if ratio_of(entry) < 1 else " "
    return (
        f"{point.cell:5} {point.mode:8} {point.hidden_size:5} {point.batch:4} "
        f"{point.time:4} {harness.number(ours):>9} {harness.number(scan):>9} "
        f"{gflops:8.1f} {ratio_of(entry):6.2f}{mark} {f'{low:.2f}-{high:.2f}':11}   "
        f"{plans}"
    )


def _plan(plan: dict) -> str:
    if plan["engine"] != OURS:
        return plan["engine"]
    block = f"{plan['rows_per_block']}x{plan['units_per_panel']}"
    return f"{plan['partition']} on {plan['threads']}, {block}"


def _print_summaries(entries: Sequence[dict]) -> None:
    print("\nGeometric means of the ratio")
    for s in summarise(entries):
        print(
            f"{s.cell:5} {s.mode:8} {s.mean:5.2f}; "
            f"batch <= {SMALL_BATCH}: {times(s.small_batch_mean)}; "
            f"minimum {ratio_of(s.minimum):.2f} at {shape_of(s.minimum)}; "
            f"{s.losses} of {s.count} below 1"
        )


def _parser() -> argparse.ArgumentParser:
    size = command_line.positive(int)
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    some = {"nargs": "+", "help": "(default: all)"}
    parser.add_argument("--cells", **some, choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--modes", **some, choices=MODES, default=MODES)
    parser.add_argument("--hidden", **some, type=size, default=HIDDEN_SIZES)
    parser.add_argument("--batch", **some, type=size, default=BATCHES)
    parser.add_argument(
        "--time", type=size, help="steps (default: 128, fewer where they are long)"
    )
    parser.add_argument(
        "--dtype", choices=tuple(TOLERANCES), default="float32", help="of all arrays"
    )
    parser.add_argument(
        "--full", action="store_true", help="with --table: a row for each point"
    )
    return parser


if __name__ == "__main__":
    main()
