"""What does a layer keep for its backward pass, and what does keeping less cost?

For each reserve policy: bytes per unit and step that one more layer adds to a compiled
training step's memory, and the time of the step, beside `lax.scan` and `lax.scan` under
`jax.checkpoint`. Run as `python -m benchmarks.memory`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness

NAME = "memory"

CELLS = {
    "lstm": (prnn_jax.lstm, 4, {}),
    "slstm": (prnn_jax.slstm, 4, {}),
    "gru": (prnn_jax.gru, 3, {}),
    "gru_reset_before": (prnn_jax.gru, 3, {"reset_after": False}),
    "rnn": (prnn_jax.rnn, 1, {}),
}
#: By name: options of a layer, and whether `jax.checkpoint` surrounds it.
POLICIES = {
    "fast": ({}, False),
    "lean": ({"reserve": "lean"}, False),
    "scan": ({"implementation": "scan"}, False),
    "scan, checkpoint": ({"implementation": "scan"}, True),
}
#: Each layer adds the same: the difference of two depths leaves out what all share.
DEPTHS = 8, 16
TIMED_DEPTH = 2

#: Gradients through two layers: sums of a few hundred float32 terms in other orders. In
#: bfloat16 ours are rounded once, and differ by 0.005 from those in float32. The scan
#: rounds after every step, and is wrong by 0.08: it is compared with itself only.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def training_step(cell: str, policy: str, dtype: str, batch: int, time: int, size: int):
    """A stack of layers' gradients, and what makes their arguments, by depth."""
    function, gates, own = CELLS[cell]
    options, is_checkpointed = POLICIES[policy]

    def layer(params, x):
        return function(x, params, **own, **options)[0]

    if is_checkpointed:
        layer = jax.checkpoint(layer)

    def loss(layers, x):
        for params in layers:
            x = layer(params, x)
        return jnp.sum(x * jnp.asarray(0.5, x.dtype))

    def arguments(depth: int):
        random = np.random.default_rng(0)

        def draw(*shape):
            values = random.standard_normal(shape) * size**-0.5
            return jnp.asarray(values, dtype)

        params = prnn_jax.Params(
            draw(size, gates * size), draw(size, gates * size), draw(gates * size)
        )
        return (params,) * depth, draw(batch, time, size)

    return jax.jit(jax.grad(loss)), arguments


def kept_bytes(step, arguments, values: int) -> float:
    """Per value, what a layer more needs between the passes."""
    temporary = []

    @jax.jit
    def norms(*args):
        # Gradients as results would lend their memory to what is kept, until they are
        # there.
        return jax.tree.map(lambda x: jnp.vdot(x, x), step(*args))

    for depth in DEPTHS:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments(depth)
        )
        compiled = norms.lower(*shapes).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
    return (temporary[1] - temporary[0]) / (DEPTHS[1] - DEPTHS[0]) / values


def check(
    cell: str, dtype: str, sizes: tuple[int, int, int], runs: harness.Candidates
) -> None:
    """Ours against the scan in float32, and the scans against each other.

    Raises:
      harness.DisagreementError: they compute something else.
    """
    step, arguments = training_step(cell, "scan", dtype, *sizes)
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), arguments(TIMED_DEPTH))
    exact = {"scan in float32": functools.partial(step, *wide)}
    scans = {name: run for name, run in runs.items() if name.startswith("scan")}
    ours = {name: run for name, run in runs.items() if name not in scans}
    for candidates in ({**ours, **exact}, scans):
        harness.check_agreement(f"{cell} {dtype}", candidates, TOLERANCE[dtype])


def measure_point(cell: str, dtype: str, sizes: tuple[int, int, int], budget_s: float):
    """Bytes and times of all policies."""
    batch, time, size = sizes
    kept, runs = {}, {}
    for policy in POLICIES:
        step, arguments = training_step(cell, policy, dtype, *sizes)
        kept[policy] = kept_bytes(step, arguments, batch * time * size)
        runs[policy] = functools.partial(step, *arguments(TIMED_DEPTH))
    check(cell, dtype, sizes, runs)
    timings = harness.measure(runs, budget_s=budget_s)
    return {
        "cell": cell,
        "dtype": dtype,
        "batch": batch,
        "time": time,
        "hidden_size": size,
        "bytes_per_unit_and_step": kept,
        "step_ms": {
            policy: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e3))
            for policy, timing in timings.items()
        },
        "time_over_fast": {
            policy: dataclasses.asdict(harness.ratio(timing, timings["fast"]))
            for policy, timing in timings.items()
        },
    }


def table(points: list[dict]) -> str:
    """Bytes, and the time as a multiple of the fast policy's."""
    header = ["cell", "dtype", "B, T, H"]
    header += [f"{policy}: bytes" for policy in POLICIES]
    header += [f"{policy}: time" for policy in POLICIES]
    rows = [
        [
            point["cell"],
            point["dtype"],
            f"{point['batch']}, {point['time']}, {point['hidden_size']}",
            *(f"{point['bytes_per_unit_and_step'][policy]:.1f}" for policy in POLICIES),
            *(
                f"{point['time_over_fast'][policy]['median']:.2f}"
                for policy in POLICIES
            ),
        ]
        for point in points
    ]
    return harness.markdown(header, rows)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = command_line.parser(NAME, __doc__ or "", 4.0, has_table=False)
    size = command_line.positive(int)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument(
        "--dtypes", nargs="+", choices=TOLERANCE, default=["float32", "bfloat16"]
    )
    parser.add_argument("--batch", type=size, default=8)
    parser.add_argument("--time", type=size, default=128)
    parser.add_argument("--hidden", type=size, default=256)
    options = parser.parse_args(arguments)
    sizes = options.batch, options.time, options.hidden
    before = harness.load()
    points = [
        measure_point(cell, dtype, sizes, options.budget_s)
        for dtype in options.dtypes
        for cell in options.cells
    ]
    print(table(points))
    results = {**harness.record(NAME, before), "points": points}
    command_line.write(parser, options, results)


if __name__ == "__main__":
    main()
