"""How fast are our layers against `lax.scan`?

The baseline is the same layer with `implementation="scan"`: the input projection is one
product before the loop, which is the strong way to write it. Run it as
`python -m benchmarks.against_scan`; README.md tells how to read it.
"""

import argparse
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness

NAME = "against_scan"
OURS, BASELINE = "native", "scan"  # values of `implementation`

MODES = ("forward", "train")
HIDDEN_SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 4, 16, 32)
BUDGET_S = 1.0
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"

#: Up to here a forward pass answers someone, rather than working off a queue.
SMALL_BATCH = 4

#: The largest |native - scan| / |scan| that rounding explains: some twenty times what
#: float32 sums of up to 4096 terms, over 128 steps, were seen to differ by.
#: In 16 bits it is the scan that is wrong by so much: it rounds after every operation.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}

#: The same for gradients through a ReLU, whose derivative jumps. About one in ten
#: million pre-activations rounds to the other side of 0, and then the gradient of one
#: unit at one step is there or not.
RELU_GRADIENT_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Cell:
    """A public function with the options that make it one cell."""

    title: str
    function: Callable
    gates: int
    options: dict


CELLS = {
    "lstm": Cell("LSTM", prnn_jax.lstm, 4, {}),
    "gru": Cell("GRU", prnn_jax.gru, 3, {"reset_after": True}),
    "rnn": Cell("RNN (ReLU)", prnn_jax.rnn, 1, {"activation": "relu"}),
}


@dataclass(frozen=True)
class Point:
    """One layer, one mode, one size; input_size = hidden_size."""

    cell: str
    mode: str
    hidden_size: int
    batch: int
    time: int
    dtype: str = "float32"

    def __str__(self) -> str:
        sizes = f"H{self.hidden_size}-B{self.batch}-T{self.time}"
        return f"{self.cell}-{self.mode}-{sizes}-{self.dtype}"

    @property
    def step_flop(self) -> int:
        """Of the products in one step of a forward pass, the input projection's too."""
        gates = CELLS[self.cell].gates
        return 4 * gates * self.hidden_size**2 * self.batch

    @property
    def tolerance(self) -> float:
        """The largest difference from the baseline that is not an error."""
        through_relu = self.mode == "train" and self.cell == "rnn"
        rounding = TOLERANCES[self.dtype]
        return max(RELU_GRADIENT_TOLERANCE, rounding) if through_relu else rounding


def steps(cell: str, hidden_size: int, batch: int) -> int:
    """128; halved while a forward pass would exceed 20 GFLOP, but never below 32."""
    time = 128
    step_flop = Point(cell, "forward", hidden_size, batch, time).step_flop
    while time > 32 and time * step_flop > 20e9:
        time //= 2
    return time


def points(
    cells: Sequence[str] = tuple(CELLS),
    modes: Sequence[str] = MODES,
    hidden_sizes: Sequence[int] = HIDDEN_SIZES,
    batches: Sequence[int] = BATCHES,
    time: int | None = None,
    dtype: str = "float32",
) -> list[Point]:
    """All combinations; `time` as `steps` chooses it if not given."""
    return [
        Point(cell, mode, hidden, batch, time or steps(cell, hidden, batch), dtype)
        for cell, mode, hidden, batch in itertools.product(
            cells, modes, hidden_sizes, batches
        )
    ]


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


@dataclass(frozen=True)
class Summary:
    """A cell in one mode.

    Attributes:
      mean: geometric, of the ratios of all points.
      small_batch_mean: the same for small batches; None if there are none.
      minimum: the entry with the smallest ratio.
      losses: how many ratios are below 1.
      count: how many points there are.
    """

    cell: str
    mode: str
    mean: float
    small_batch_mean: float | None
    minimum: dict
    losses: int
    count: int


def summarise(entries: Sequence[dict]) -> list[Summary]:
    """A summary for each cell and mode, in the order of the entries."""
    kinds: dict[tuple[str, str], list[dict]] = {}
    for entry in entries:
        kinds.setdefault((entry["cell"], entry["mode"]), []).append(entry)
    summaries = []
    for (cell, mode), group in kinds.items():
        small = [_ratio(e) for e in group if e["batch"] <= SMALL_BATCH]
        summary = Summary(
            cell=cell,
            mode=mode,
            mean=harness.geometric_mean(map(_ratio, group)),
            small_batch_mean=harness.geometric_mean(small),
            minimum=min(group, key=_ratio),
            losses=sum(_ratio(e) < 1 for e in group),
            count=len(group),
        )
        summaries.append(summary)
    return summaries


def compact_table(results: dict) -> str:
    """Markdown: a row for each cell and mode."""
    header = (
        "cell",
        "mode",
        "geometric mean",
        f"geometric mean, batch ≤ {SMALL_BATCH}",
        "minimum",
    )
    rows = [
        (
            CELLS[s.cell].title,
            s.mode,
            _times(s.mean),
            _times(s.small_batch_mean),
            f"{_times(_ratio(s.minimum))} ({_shape(s.minimum)})",
        )
        for s in summarise(results["points"])
    ]
    return harness.markdown(header, rows)


def full_table(results: dict) -> str:
    """Markdown: a row for each point."""
    header = (
        "cell",
        "mode",
        "hidden",
        "batch",
        "time",
        "native, µs per step",
        "scan, µs per step",
        "ratio",
        "quartiles",
    )
    rows = []
    for entry in results["points"]:
        sizes = (str(entry[key]) for key in ("hidden_size", "batch", "time"))
        us = (
            harness.number(entry["step_us"][name]["median"])
            for name in (OURS, BASELINE)
        )
        quartiles = "–".join(f"{q:.2f}" for q in entry["ratio"]["quartiles"])
        title = CELLS[entry["cell"]].title
        times = _times(_ratio(entry))
        rows.append((title, entry["mode"], *sizes, *us, times, quartiles))
    return harness.markdown(header, rows)


def caption(results: dict) -> str:
    """What the numbers of a table are, and where they come from."""
    device, versions = results["device"], results["versions"]
    cores = f"{device['cores']} core{'s' if device['cores'] > 1 else ''}"
    where = f"{device['cpu']}, {cores}, {device['instruction_set']}"
    with_what = f"jax {versions['jax']}, prnn_jax {versions['prnn_jax']}"
    commit = results["commit"]
    if commit:
        changed = " with changes" if commit["dirty"] else ""
        with_what += f" at {commit['name']}{changed}"
    return (
        f"Times as fast as `lax.scan`, {len(results['points'])} points: "
        f"{where}; {with_what}; {results['date'][:10]}."
    )


def _ratio(entry: dict) -> float:
    return entry["ratio"]["median"]


def _shape(entry: dict) -> str:
    return f"H={entry['hidden_size']}, B={entry['batch']}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


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
    mark = "<" if _ratio(entry) < 1 else " "
    return (
        f"{point.cell:5} {point.mode:8} {point.hidden_size:5} {point.batch:4} "
        f"{point.time:4} {harness.number(ours):>9} {harness.number(scan):>9} "
        f"{gflops:8.1f} {_ratio(entry):6.2f}{mark} {f'{low:.2f}-{high:.2f}':11}   "
        f"{plans}"
    )


def _plan(plan: dict) -> str:
    if plan["engine"] != OURS:
        return plan["engine"]
    block = f"{plan['rows_per_block']}x{plan['units_per_panel']}"
    return f"{plan['split']} on {plan['threads']}, {block}"


def _print_summaries(entries: Sequence[dict]) -> None:
    print("\nGeometric means of the ratio")
    for s in summarise(entries):
        print(
            f"{s.cell:5} {s.mode:8} {s.mean:5.2f}; "
            f"batch <= {SMALL_BATCH}: {_times(s.small_batch_mean)}; "
            f"minimum {_ratio(s.minimum):.2f} at {_shape(s.minimum)}; "
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
