"""Is a training step faster if the CPU engine makes the gradients of weights, or XLA?

The products of a backward pass that are parallel in time: dx, dw_ih, dw_hh and both
db, of a layer whose input is as wide as it is, over 128 steps. Run as
`python -m benchmarks.products`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks._scan_points import CELLS
from prnn_jax._engine import weight_products

NAME = "products"
HIDDEN_SIZES, BATCHES, TIME = (64, 128, 256, 512, 1024), (1, 4, 16), 128
BUDGET_S = 0.5

#: Float32 sums of up to 2048 terms in different orders; in 16 bits, roundings of them.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


def candidates(
    cell: str, hidden: int, batch: int, time: int, dtype: str
) -> harness.Candidates:
    """Compiled calls on the same arrays."""
    random = np.random.default_rng(0)

    def draw(*shape: int):
        return jnp.asarray(random.standard_normal(shape), dtype)

    columns = CELLS[cell].gates * hidden
    h, da = draw(batch, time, 1, hidden), draw(batch, time, 1, columns)
    projection = weight_products.Projection(
        draw(batch, time, hidden), draw(hidden, 1, columns), da
    )
    given = (weight_products.Weights(h, da),), projection
    runs = {
        "native": weight_products._by_engine,
        "xla": functools.partial(weight_products._by_xla, None, None),
    }
    return {name: functools.partial(jax.jit(run), *given) for name, run in runs.items()}


def measure(
    cell: str, hidden: int, batch: int, time: int, dtype: str, budget_s: float
) -> dict:
    """The point's entry in the results: checked first, then timed.

    Raises:
      harness.DisagreementError: the two compute different things.
    """
    runs = candidates(cell, hidden, batch, time, dtype)
    what = f"{cell}-H{hidden}-B{batch}-T{time}"
    difference = harness.check_agreement(what, runs, TOLERANCES[dtype])
    timings = harness.measure(runs, budget_s=budget_s)
    us = {name: harness.Spread.of(t.seconds, 1e6) for name, t in timings.items()}
    multiply_adds = 3 * CELLS[cell].gates * hidden**2 * batch * time
    ratio = harness.ratio(timings["xla"], timings["native"])
    return {
        "cell": cell,
        "hidden_size": hidden,
        "batch": batch,
        "time": time,
        "dtype": dtype,
        "multiply_adds": multiply_adds,
        "is_native": multiply_adds <= weight_products.MAX_MULTIPLY_ADDS,
        "us": {name: dataclasses.asdict(spread) for name, spread in us.items()},
        "gflops": {n: 2 * multiply_adds / s.median / 1e3 for n, s in us.items()},
        "ratio": dataclasses.asdict(ratio),
        "difference": difference,
        "tolerance": TOLERANCES[dtype],
    }


def table(results: dict) -> str:
    """A row for each point."""
    header = ["cell", "hidden", "batch", "multiply-adds, million"]
    header += ["native, GFLOP/s", "XLA, GFLOP/s", "ratio", "is native"]
    rows = []
    for point in results["points"]:
        work = point["multiply_adds"]
        row = [CELLS[point["cell"]].title]
        row += [str(point[key]) for key in ("hidden_size", "batch")]
        row += [harness.number(work / 1e6)]
        row += [harness.number(point["gflops"][name]) for name in ("native", "xla")]
        row += [f"{point['ratio']['median']:.2f}×"]
        rows.append([*row, "yes" if point["is_native"] else "no"])
    return harness.markdown(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, (__doc__ or "").splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    some = {"nargs": "+"}
    parser.add_argument("--cells", **some, choices=tuple(CELLS), default=tuple(CELLS))
    parser.add_argument("--hidden", **some, type=size, default=HIDDEN_SIZES)
    parser.add_argument("--batch", **some, type=size, default=BATCHES)
    parser.add_argument("--time", type=size, default=TIME, help="steps")
    parser.add_argument("--dtype", choices=tuple(TOLERANCES), default="float32")
    options = parser.parse_args(arguments)
    with jax.default_device(jax.devices("cpu")[0]):
        results = command_line.outcome(parser, options, _measure_all)
    print(table(results))


def _measure_all(options) -> dict:
    axes = options.cells, options.hidden, options.batch
    entries = []
    for point in itertools.product(*axes):
        entries.append(measure(*point, options.time, options.dtype, options.budget_s))
        jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"platform": "cpu", "points": entries}


if __name__ == "__main__":
    main()
