"""Does some size or option cost more than its neighbours say?

Times per step around the sizes at which other libraries leave their fast path, with and
without controls; on this CPU measured, for a GPU as modelled by the planner. Run as
`python -m benchmarks.cliffs`.

A point's excess is its time over the trend: for a hidden size, the time that the
neighbouring size would take for as many weights; for a batch, the line between the
batches before and after. It is the median of the rounds' excesses: what disturbs a
machine for a while disturbs a point and its neighbours alike.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks.memory import CELLS

NAME = "cliffs"

HIDDEN = 127, 128, 129, 191, 192, 193
BATCH = tuple(range(1, 10))
TIME = 128
KINDS = "plain", "lengths", "resets", "bidirectional"
DEVICE = "NVIDIA H200"


def candidate(cell: str, kind: str, batch: int, size: int):
    """The recurrence alone, compiled, on arrays of its own."""
    _, gates, own = CELLS[cell]
    random = np.random.default_rng(0)
    directions = 2 if kind == "bidirectional" else 1
    lead = (2,) * (directions - 1)

    def draw(*shape):
        return jnp.asarray(random.standard_normal(shape) * size**-0.5, jnp.float32)

    a_x = draw(batch, TIME, directions * gates * size)
    w_hh = draw(*lead, size, gates * size)
    options = {
        # Every row is full: what is measured is the rule, not the work it saves.
        "lengths": {"lengths": jnp.full((batch,), TIME)},
        "resets": {"resets": jnp.asarray(random.random((batch, TIME)) < 0.05)},
        "bidirectional": {"bidirectional": True},
    }.get(kind, {})
    name = cell.split("_")[0]

    @jax.jit
    def run(a_x, w_hh, options):
        flags = {k: v for k, v in options.items() if k != "bidirectional"}
        return prnn_jax.recurrence(
            name, a_x, w_hh, bidirectional=kind == "bidirectional", **flags, **own
        )

    arrays = {k: v for k, v in options.items() if k != "bidirectional"}
    return functools.partial(run, a_x, w_hh, arrays)


def excess(times: dict[tuple[int, int], float]) -> list[dict]:
    """Each point's time over the trend, by (hidden size, batch)."""
    out = []
    for (size, batch), time in times.items():
        found = {}
        if (before := times.get((size - 1, batch))) is not None:
            found["over_smaller_size"] = time / (before * (size / (size - 1)) ** 2) - 1
        neighbours = times.get((size, batch - 1)), times.get((size, batch + 1))
        if None not in neighbours:
            found["over_line"] = time / (sum(neighbours) / 2) - 1  # type: ignore[arg-type]
        out.append({"hidden_size": size, "batch": batch, "us": time, **found})
    return out


def measured(cell: str, kind: str, budget_s: float) -> list[dict]:
    """On this machine's CPU; all points of a cell and kind in turn in one run."""
    points = {
        f"{size} {batch}": (size, batch)
        for batch in BATCH
        for size in HIDDEN  # the nearest neighbours, one after the other
    }
    runs = {
        name: candidate(cell, kind, batch, size)
        for name, (size, batch) in points.items()
    }
    for run in runs.values():
        jax.block_until_ready(run())
    timings = harness.measure(runs, budget_s=budget_s)
    rounds = zip(*(timings[name].seconds for name in points), strict=True)
    return medians(
        [
            excess(
                {
                    point: seconds * 1e6 / TIME
                    for point, seconds in zip(points.values(), of_round, strict=True)
                }
            )
            for of_round in rounds
        ]
    )


def medians(rounds: list[list[dict]]) -> list[dict]:
    """Of each number of each point."""
    return [
        {name: float(np.median([one[name] for one in point])) for name in point[0]}
        for point in zip(*rounds, strict=True)
    ]


def modelled(cell: str, kind: str) -> list[dict]:
    """As the CUDA engine's planner expects."""
    name = cell.split("_")[0]
    times = {}
    for size in HIDDEN:
        for batch in BATCH:
            plan = prnn_jax.explain(
                name,
                batch=batch,
                time=TIME,
                hidden_size=size,
                groups=2 if kind == "bidirectional" else 1,
                dtype=jnp.bfloat16,
                device=DEVICE,
            )
            if plan.step_us is not None:
                times[size, batch] = plan.step_us
    return excess(times)


def table(results: list[dict]) -> str:
    """The largest excess of each cell and kind."""
    header = ["engine", "cell", "with", "next size", "at", "next batch", "at"]
    rows = []
    for result in results:
        row = [result["engine"], result["cell"], result["kind"]]
        for name in ("over_smaller_size", "over_line"):
            found = [point for point in result["points"] if name in point]
            worst = max(found, key=lambda point, name=name: point[name])
            at = f"H={worst['hidden_size']:.0f}, B={worst['batch']:.0f}"
            row += [f"{100 * worst[name]:+.0f} %", at]
        rows.append(row)
    return harness.markdown(header, rows)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = command_line.parser(NAME, __doc__ or "", 30.0, has_table=False)
    cells = ["lstm", "gru", "rnn"]
    parser.add_argument("--cells", nargs="+", choices=cells, default=cells)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args(arguments)
    before = harness.load()
    results = []
    for cell in options.cells:
        for kind in options.kinds:
            points = measured(cell, kind, options.budget_s)
            results.append(
                {
                    "engine": "CPU, measured",
                    "cell": cell,
                    "kind": kind,
                    "points": points,
                }
            )
        for kind in ("plain", "bidirectional"):
            points = modelled(cell, kind)
            results.append(
                {
                    "engine": f"{DEVICE}, modelled",
                    "cell": cell,
                    "kind": kind,
                    "points": points,
                }
            )
    print(table(results))
    record = {**harness.record(NAME, before), "results": results}
    command_line.write(parser, options, record)


if __name__ == "__main__":
    main()
