"""How much faster is a layer in 16 bits than in float32?

Run as `python -m benchmarks.half_precision`.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _limits, _points
from benchmarks._jax_layers import ours
from benchmarks._points import CELLS, Arrays, Candidate, Point
from benchmarks._scan_points import steps

NAME, BUDGET_S = "half_precision", 0.5
FULL, HALVES = "float32", ("bfloat16", "float16")
HIDDEN_SIZES, BATCHES = (256, 512, 1024, 1152), (1, 2, 4, 16)

#: Differences from float32: also x and the parameters are rounded.
TOLERANCES = {"bfloat16": 1e-2, "float16": 2e-3}

#: Of a recurrence, what its step in float32 waits for at this processor's limit.
READING = "reading"


def candidates(point: Point) -> dict[str, Candidate]:
    """A forward pass of the point, which is in float32, in each of the dtypes."""
    arrays = _points.arrays(point)

    def of(dtype: str) -> Candidate:
        as_dtype = Arrays(
            arrays.x.astype(dtype),
            jax.tree.map(lambda a: a.astype(dtype), arrays.params),
            arrays.weights.astype(dtype),
        )
        return ours(dataclasses.replace(point, dtype=dtype), as_dtype, "native")

    return {dtype: of(dtype) for dtype in (*HALVES, FULL)}


def measure(point: Point, limits: _limits.Limits, budget_s: float) -> dict:
    """Times of a step in each dtype, and how much shorter they are than float32's.

    Raises:
      DisagreementError: y or a state is not what it is in float32.
    """
    runs = {dtype: candidate.run for dtype, candidate in candidates(point).items()}
    differences = {
        dtype: harness.check_agreement(
            f"{point}", {dtype: runs[dtype], FULL: runs[FULL]}, TOLERANCES[dtype]
        )
        for dtype in HALVES
    }
    timings = harness.measure(runs, budget_s=budget_s)
    weights = CELLS[point.cell].gates * point.hidden_size**2
    spreads = {
        dtype: harness.Spread.of(timing.seconds, 1e6 / point.time)
        for dtype, timing in timings.items()
    }
    ratios = {dtype: harness.ratio(timings[FULL], timings[dtype]) for dtype in HALVES}
    return {
        **dataclasses.asdict(point),
        "bound": _limits.machine_limit(weights, point.batch, limits)["bound"],
        "step_us": {dtype: dataclasses.asdict(s) for dtype, s in spreads.items()},
        "ratio": {dtype: dataclasses.asdict(r) for dtype, r in ratios.items()},
        "difference": differences,
        "tolerance": {dtype: TOLERANCES[dtype] for dtype in HALVES},
    }


# ---- tables --------------------------------------------------------------------------


def table(results: dict) -> str:
    """Means by what bounds a step, then all points."""
    points = results["points"]
    return "\n\n".join((_means_table(points), _points_table(points)))


def _layer(point: dict) -> tuple[str, str]:
    """The first columns of both tables."""
    without = "" if point["projection"] else ", without projection"
    return CELLS[point["cell"]].title, f"forward{without}"


def _means_table(points: Sequence[dict]) -> str:
    """Geometric means of a layer's points, where reading w_hh bounds a step or not."""
    rows = {}
    for point in points:
        is_read = point["bound"] == READING
        rows.setdefault((*_layer(point), is_read), []).append(point["ratio"])
    bounds = {True: "reading weights", False: "another"}
    return harness.markdown(
        ("cell", "mode", "limit of a step in float32", "points", *HALVES),
        (
            (
                *layer,
                bounds[is_read],
                str(len(ratios)),
                *(
                    f"{harness.geometric_mean(r[dtype]['median'] for r in ratios):.2f}×"
                    for dtype in HALVES
                ),
            )
            for (*layer, is_read), ratios in rows.items()
        ),
    )


def _points_table(points: Sequence[dict]) -> str:
    """Both ratios of each; bold where reading w_hh bounds a step."""
    batches = sorted({point["batch"] for point in points})
    rows: dict[tuple, dict[int, str]] = {}
    for point in points:
        both = " / ".join(f"{point['ratio'][dtype]['median']:.2f}" for dtype in HALVES)
        shown = f"**{both}**" if point["bound"] == READING else both
        key = (*_layer(point), str(point["hidden_size"]))
        rows.setdefault(key, {})[point["batch"]] = shown
    return harness.markdown(
        ("cell", "mode", "hidden", *(f"B={batch}" for batch in batches)),
        ((*key, *(row.get(b, "–") for b in batches)) for key, row in rows.items()),
    )


# ---- command line --------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, (__doc__ or "").splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    some = {"nargs": "+"}
    parser.add_argument("--cells", **some, choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--hidden", **some, type=size, default=HIDDEN_SIZES)
    parser.add_argument("--batch", **some, type=size, default=BATCHES)
    parser.add_argument("--time", type=size, help="steps; by default 128, 64 or 32")
    options = parser.parse_args(arguments)
    with jax.default_device(jax.devices("cpu")[0]):
        results = command_line.outcome(parser, options, _measure_all)
    print(table(results))


def _measure_all(options) -> dict:
    measured = _limits.measure_limits({1, _limits.cores()})
    limits = _limits.limits_of(measured)
    entries = []
    axes = options.cells, (True, False), options.hidden, options.batch
    for cell, projection, hidden, batch in itertools.product(*axes):
        time = options.time or steps(cell, hidden, batch)
        point = Point(cell, "forward", hidden, batch, time, FULL, projection)
        entries.append(measure(point, limits, options.budget_s))
        jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"platform": "cpu", "limits": measured, "points": entries}


if __name__ == "__main__":
    main()
