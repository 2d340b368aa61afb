"""How long does one stream wait for each answer, and how much does that vary?

LSTM layers answer one stream (a batch of 1) chunk by chunk, as a server would: a jitted
step, whose state goes from call to call. Every call is timed by itself, from the call
to the end of all its results. Ours, ours with prepared weights, and with those of 8
bits, `lax.scan`, an empty program with the same arguments and results (what dispatch
alone takes), and where it is installed ONNX Runtime, also with weights of 8 bits, go in
turn, some calls each; the first call of a turn is not timed, for it finds the caches
full of another's arrays. Run as `python -m benchmarks.streaming`.

The step's state is not donated: that made no difference to any percentile.
"""

import argparse
import dataclasses
import functools
import itertools
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import _onnx_streams
from benchmarks._scan_points import BASELINE, OURS, TOLERANCES
from benchmarks.dispatch import EMPTY, empty

NAME = "streaming"
MODELS = ((2, 192), (5, 1024))  # layers, hidden units
CHUNKS = (1, 4, 16, 64)  # steps that come at once
CALLS = 20  # of a turn
MIN_TURNS = 5
BUDGET_S = 10.0
PREPARED = "prepared"  # ours, of weights that `prnn_jax.prepare` has packed
INT8 = "prepared int8"  # and rounded
ONNX, ONNX_INT8 = "onnxruntime", "onnxruntime int8"
ENGINES = OURS, PREPARED, BASELINE, INT8, ONNX, ONNX_INT8
EXACT = OURS, PREPARED, ONNX
#: What 8 bits change, of y and the states: of normally distributed weights.
INT8_TOLERANCES = {INT8: 0.02, ONNX_INT8: 0.05}
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class Point:
    """LSTM layers of one width, and how many steps come at once."""

    layers: int
    hidden_size: int
    chunk: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.layers}x{self.hidden_size}-T{self.chunk}-{self.dtype}"


# ---- what runs -----------------------------------------------------------------------


class Stream:
    """A server's view: each call takes the next chunk and keeps the state."""

    def __init__(self, step: Callable, layers, state, chunks: Sequence[Array]):
        self._step, self._layers, self._state = step, layers, state
        self._chunks = itertools.cycle(chunks)

    def __call__(self):
        """y of the chunk and the state after it."""
        y, self._state = self._step(self._layers, self._state, next(self._chunks))
        return y, self._state


def streams(point: Point) -> dict[str, Callable[[], Stream]]:
    """What begins a stream, by name; all of them read the same arrays."""
    random = np.random.default_rng(zlib.crc32(str(point).encode()))
    hidden = point.hidden_size

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return jnp.asarray(random.standard_normal(shape) * scale, point.dtype)

    scale, wide = (3 * hidden) ** -0.5, 4 * hidden
    shapes = (hidden, wide), (hidden, wide), (wide,), (wide,)
    layers = [
        prnn_jax.Params(*(draw(*shape, scale=scale) for shape in shapes))
        for _ in range(point.layers)
    ]
    zeros = jnp.zeros((1, hidden), point.dtype)
    state = ((zeros, zeros),) * point.layers
    chunks = [draw(1, point.chunk, hidden) for _ in range(4)]

    steps = {name: _step(name) for name in (OURS, BASELINE)}
    steps[PREPARED] = steps[OURS]
    steps[EMPTY] = empty(steps[OURS], layers, state, chunks[0])
    weights = dict.fromkeys(steps, layers)
    steps[INT8] = steps[OURS]
    for name, kind in ((PREPARED, None), (INT8, "int8")):
        weights[name] = [
            prnn_jax.prepare("lstm", p, batch=1, time=point.chunk, weights=kind)
            for p in layers
        ]
    begin = {
        name: functools.partial(Stream, step, weights[name], state, chunks)
        for name, step in steps.items()
    }
    if point.dtype == "float32" and _onnx_streams.is_there():
        arrays = [np.asarray(chunk) for chunk in chunks]
        for name, int8 in ((ONNX, False), (ONNX_INT8, True)):
            begin[name] = _onnx_streams.stream(layers, arrays, int8=int8)
    return begin


def _step(implementation: str) -> Callable:
    def step(layers, state, x):
        return prnn_jax.stack("lstm", x, layers, state, implementation=implementation)

    return jax.jit(step)


def check(point: Point, begin: dict[str, Callable[[], Stream]]) -> float:
    """Compiles; the largest difference after some calls, of all results.

    Raises:
      harness.DisagreementError: ours and the baseline compute different things.
    """

    def some(name: str) -> list:
        stream = begin[name]()
        return [stream() for _ in range(6)]

    jax.block_until_ready(some(EMPTY))
    of_scan = {BASELINE: functools.partial(some, BASELINE)}

    def agreement(names: Sequence[str], tolerance: float) -> float:
        runs = {name: functools.partial(some, name) for name in names if name in begin}
        return harness.check_agreement(str(point), {**runs, **of_scan}, tolerance)

    tolerance = TOLERANCES[point.dtype]
    for name, of_int8 in INT8_TOLERANCES.items():
        agreement([name], max(of_int8, tolerance))
    return agreement(EXACT, tolerance)


# ---- measuring -----------------------------------------------------------------------


def latencies(calls: harness.Candidates, budget_s: float) -> dict[str, list[float]]:
    """Seconds of every timed call. Turns begin until the budget has passed."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget_s
    turns = 0
    while turns < MIN_TURNS or time.perf_counter() < end:
        turns += 1
        for name, call in calls.items():
            jax.block_until_ready(call())
            seconds[name] += itertools.islice(_timed(call), CALLS)
    return seconds


def _timed(call: Callable[[], object]) -> Iterator[float]:
    while True:
        start = time.perf_counter()
        jax.block_until_ready(call())
        yield time.perf_counter() - start


def measure(point: Point, budget_s: float) -> dict:
    """The point's entry in the results: checked first, then timed."""
    begin = streams(point)
    difference = check(point, begin)
    calls = {name: start() for name, start in begin.items()}
    seconds = latencies(calls, budget_s)
    us = {name: _percentiles(spent) for name, spent in seconds.items()}
    others = [name for name in ENGINES if name in us and name != BASELINE]
    return {
        **dataclasses.asdict(point),
        "calls": len(seconds[OURS]),
        "latency_us": us,
        "dispatch_share": {
            name: us[EMPTY]["p50"] / us[name]["p50"] for name in ENGINES if name in us
        },
        "ratio": {
            name: {p: us[BASELINE][p] / us[name][p] for p in PERCENTILES}
            for name in others
        },
        "difference": difference,
        "tolerance": TOLERANCES[point.dtype],
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = np.percentile(np.asarray(seconds) * 1e6, [*PERCENTILES.values()])
    return dict(zip(PERCENTILES, values.tolist(), strict=True))


def table(results: dict) -> str:
    """A row for each point and engine; the empty program is in the share."""
    header = ["LSTM", "dtype", "chunk", "engine", *(f"{p}, µs" for p in PERCENTILES)]
    rows = []
    for point in results["points"]:
        layers = f"{point['layers']} × {point['hidden_size']}"
        for name in ENGINES:
            if (us := point["latency_us"].get(name)) is None:
                continue  # not measured then, or not installed
            row = [layers, point["dtype"], str(point["chunk"]), name]
            row += [harness.number(us[p]) for p in PERCENTILES]
            row += [f"{100 * point['dispatch_share'][name]:.0f} %"]
            ratio = point["ratio"].get(name)
            ratios = [f"{ratio[p]:.2f}×" if ratio else "" for p in ("p50", "p99")]
            rows.append([*row, *ratios])
    return harness.markdown([*header, "dispatch", "p50 ratio", "p99 ratio"], rows)


# ---- command line --------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    parser.add_argument(
        "--models",
        nargs="+",
        type=_model,
        default=MODELS,
        metavar="LAYERSxUNITS",
        help="(default: 2x192 5x1024)",
    )
    size = command_line.positive(int)
    parser.add_argument("--chunks", nargs="+", type=size, default=CHUNKS)
    parser.add_argument(
        "--dtypes", nargs="+", choices=tuple(TOLERANCES), default=("float32",)
    )
    options = parser.parse_args(arguments)
    print(table(command_line.outcome(parser, options, _measure_all)))


def _measure_all(options) -> dict:
    entries = []
    axes = options.dtypes, options.models, options.chunks
    for dtype, (layers, hidden), chunk in itertools.product(*axes):
        entries.append(measure(Point(layers, hidden, chunk, dtype), options.budget_s))
        jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"points": entries}


def _model(text: str) -> tuple[int, int]:
    sizes = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if sizes is None:
        raise argparse.ArgumentTypeError(f"must be LAYERSxUNITS, as 2x192, got {text}")
    return int(sizes[1]), int(sizes[2])


if __name__ == "__main__":
    main()
