"""When is our own product for the input projection faster than XLA's?

`prnn_jax/_projection.py` takes its limits from here. Run as
`python -m benchmarks.projection`.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _harness as harness
from prnn_jax import _ffi, _projection
from prnn_jax._call import Call

NAME = "projection"
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"

#: (rows, input, columns): rows are batch times time, columns gates times hidden.
SHAPES = [
    (rows, size, gates * size)
    for size in (64, 128, 256, 512)
    for gates in (1, 4)
    for rows in (8, 32, 128, 512)
] + [(4096, 40, 384), (2048, 256, 1024), (512, 1024, 4096)]

#: Sums of up to 1024 float32 terms in different orders.
TOLERANCE = 1e-5


def measure_point(shape: tuple[int, int, int], budget_s: float) -> dict:
    """Times of both products, and their ratio."""
    rows, inputs, columns = shape
    random = np.random.default_rng(0)
    x, w, b = (
        jnp.asarray(random.standard_normal(size), jnp.float32)
        for size in ((rows, inputs), (inputs, columns), (columns,))
    )
    call = Call("lstm", implementation="native")
    native = jax.jit(lambda x, w, b: _ffi.project(call, x, w, b))
    xla = jax.jit(lambda x, w, b: x @ w + b)
    x = x[None]  # one batch row of so many steps
    candidates = {"native": lambda: native(x, w, b), "xla": lambda: xla(x, w, b)}
    harness.check_agreement(str(shape), candidates, TOLERANCE)
    timings = harness.measure(candidates, budget_s=budget_s)
    return {
        "shape": shape,
        "used": _projection.is_native(x, w),
        "us": {
            name: dataclasses.asdict(harness.Spread.of(timing.seconds, 1e6))
            for name, timing in timings.items()
        },
        "ratio": dataclasses.asdict(harness.ratio(timings["xla"], timings["native"])),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    points, before = [], harness.load()
    print("rows input columns   native µs  xla µs  ratio  used")
    for shape in SHAPES:
        point = measure_point(shape, options.budget_s)
        points.append(point)
        native, xla = (point["us"][name]["median"] for name in ("native", "xla"))
        ratio = point["ratio"]["median"]
        print(*shape, f"{native:.0f} {xla:.0f} {ratio:.2f} {point['used']}", flush=True)
    results = {**harness.record(NAME, before), "points": points}
    harness.write_json(options.out, results)


if __name__ == "__main__":
    main()
