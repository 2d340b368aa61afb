"""What does padding cost?

A batch whose rows fill half of it on average, against the same batch without lengths.
Work that is not done for finished rows is the only difference. Run as
`python -m benchmarks.padding`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks.memory import CELLS

NAME = "padding"
TIME = 128
MODES = "forward", "train"


def lengths_of(kind: str, batch: int) -> np.ndarray:
    """Half of all steps count: every row half full, or anything from none to all."""
    if kind == "equal":
        return np.full(batch, TIME // 2)
    return np.linspace(0, TIME, batch).round().astype(int)


def candidates(cell: str, mode: str, batch: int, size: int) -> harness.Candidates:
    """The layer with all steps, and with half of them, ours and the scan's."""
    function, gates, own = CELLS[cell]
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape) * size**-0.5, jnp.float32)

    x = draw(batch, TIME, size)
    params = prnn_jax.Params(draw(size, gates * size), draw(size, gates * size))

    def run(implementation, params, x, lengths):
        y, _ = function(
            x, params, lengths=lengths, implementation=implementation, **own
        )
        return y

    def loss(implementation, params, x, lengths):
        return jnp.sum(run(implementation, params, x, lengths))

    out = {}
    for implementation in ("native", "scan"):
        step = jax.jit(
            functools.partial(run, implementation)
            if mode == "forward"
            else jax.grad(functools.partial(loss, implementation), (0, 1))
        )
        for kind in ("full", "equal", "spread"):
            lengths = None if kind == "full" else lengths_of(kind, batch)
            lengths = None if lengths is None else jnp.asarray(lengths)
            out[f"{implementation} {kind}"] = functools.partial(
                step, params, x, lengths
            )
    return out


def measure_point(cell: str, mode: str, batch: int, size: int, budget_s: float) -> dict:
    """Times, and what half-filled batches take of a full one's."""
    runs = candidates(cell, mode, batch, size)
    for kind in ("full", "equal", "spread"):
        pair = {name: run for name, run in runs.items() if name.endswith(kind)}
        harness.check_agreement(f"{cell} {mode} {kind}", pair, 1e-4)
    timings = harness.measure(runs, budget_s=budget_s)
    share = {
        name: harness.ratio(timings[name], timings[f"{name.split()[0]} full"])
        for name in timings
    }
    return {
        "cell": cell,
        "mode": mode,
        "batch": batch,
        "hidden_size": size,
        "time": TIME,
        "ms": {
            name: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e3))
            for name, timing in timings.items()
        },
        "share_of_full": {k: dataclasses.asdict(v) for k, v in share.items()},
    }


def table(points: list[dict]) -> str:
    """Time with half of the steps over time with all of them."""
    names = "native equal", "native spread", "scan equal", "scan spread"
    header = ["cell", "mode", "B", "H", *names]
    rows = [
        [
            point["cell"],
            point["mode"],
            str(point["batch"]),
            str(point["hidden_size"]),
            *(f"{point['share_of_full'][name]['median']:.2f}" for name in names),
        ]
        for point in points
    ]
    return harness.markdown(header, rows)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = command_line.parser(NAME, __doc__ or "", 3.0, has_table=False)
    size = command_line.positive(int)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=["lstm", "gru"])
    parser.add_argument("--batch", type=size, nargs="+", default=[4, 32])
    parser.add_argument("--hidden", type=size, nargs="+", default=[128, 512])
    options = parser.parse_args(arguments)
    before = harness.load()
    points = [
        measure_point(cell, mode, batch, size, options.budget_s)
        for cell in options.cells
        for mode in MODES
        for batch in options.batch
        for size in options.hidden
    ]
    print(table(points))
    results = {**harness.record(NAME, before), "points": points}
    command_line.write(parser, options, results)


if __name__ == "__main__":
    main()
