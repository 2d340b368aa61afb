"""Is a layer faster if the CPU engine makes a_x itself, or if XLA does before it?

Run as `python -m benchmarks.projection`.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness

NAME = "projection"

#: (batch, time, input, hidden).
SHAPES = [
    (batch, time, size, size)
    for size in (64, 256, 1024)
    for batch in (1, 4, 16)
    for time in (1, 16, 128)
] + [(64, 128, 40, 256), (64, 64, 256, 256)]

#: Sums of up to 1024 float32 terms in different orders, and steps of a recurrence; in
#: 16 bits, XLA's a_x as it is rounded.
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


def measure_point(
    shape: tuple[int, int, int, int], dtype: str, budget_s: float
) -> dict:
    """Times of an LSTM with and without XLA's product, and their ratio."""
    batch, time, inputs, hidden = shape
    random = np.random.default_rng(0)

    def normal(*size: int):
        scaled = random.standard_normal(size) * hidden**-0.5
        return jnp.asarray(scaled, dtype)

    x, columns = normal(batch, time, inputs), 4 * hidden
    w_ih, w_hh = normal(inputs, columns), normal(hidden, columns)
    params = prnn_jax.Params(w_ih, w_hh, normal(columns), normal(columns))

    def in_two_calls(params, x):
        a_x = x @ params.w_ih + params.b_ih
        weights = {"w_hh": params.w_hh, "b_hh": params.b_hh}
        return prnn_jax.recurrence("lstm", a_x, **weights, implementation="native")

    def in_one_call(params, x):
        return prnn_jax.lstm(x, params, implementation="native")

    runs = {"native": jax.jit(in_one_call), "xla": jax.jit(in_two_calls)}
    candidates = {
        name: lambda run=run: jax.block_until_ready(run(params, x))
        for name, run in runs.items()
    }
    harness.check_agreement(str(shape), candidates, TOLERANCES[dtype])
    timings = harness.measure(candidates, budget_s=budget_s)
    return {
        "shape": shape,
        "dtype": dtype,
        "us": {
            name: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e6))
            for name, timing in timings.items()
        },
        "ratio": dataclasses.asdict(harness.ratio(timings["xla"], timings["native"])),
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = command_line.parser(NAME, __doc__ or "", 0.5, has_table=False)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=TOLERANCES)
    options = parser.parse_args(arguments)
    points, before = [], harness.load()
    print("dtype batch time input hidden   native µs  xla µs  ratio")
    for dtype, shape in itertools.product(options.dtypes, SHAPES):
        point = measure_point(shape, dtype, options.budget_s)
        points.append(point)
        native, xla = (point["us"][name]["median"] for name in ("native", "xla"))
        ratio = point["ratio"]["median"]
        print(dtype, *shape, f"{native:.0f} {xla:.0f} {ratio:.2f}", flush=True)
    results = {**harness.record(NAME, before), "points": points}
    command_line.write(parser, options, results)


if __name__ == "__main__":
    main()
