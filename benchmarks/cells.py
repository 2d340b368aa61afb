"""How fast are the cells that few libraries have, beside those who have them?

An LSTM with a projection of h: ours, `lax.scan` and PyTorch (if installed, in the same
process with as many threads). Cells with layer norm: ours and `lax.scan`. Elementwise
recurrences, of real and of complex numbers: ours, `lax.scan`, `lax.associative_scan`,
and a sum of two arrays, which moves as many bytes. Those whose state is a matrix: in
chunks, and a step at a time by `lax.scan`. In turns.
Run as `python -m benchmarks.cells`.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks._points import threads
from benchmarks._scan_points import BASELINE, MODES, OURS
from prnn_jax import convert

NAME = "cells"
BUDGET_S = 2.0
TORCH, ASSOCIATIVE, SUM = "torch", "associative_scan", "sum"

#: (hidden, projection, batch, time); the input is as wide as h.
PROJECTED = [
    (hidden, hidden // 2, batch, 64 if batch < 32 else 32)
    for hidden in (256, 1024)
    for batch in (1, 8, 32)
]
#: (cell, hidden, batch, time); the input is as wide.
NORMED = [("lstm", 512, batch, 64 if batch < 32 else 32) for batch in (1, 8, 32)]
NORMED += [("gru", 512, 1, 64), ("gru", 512, 32, 32)]
#: (cell, heads of all rows, time, features of q, k and v).
MATRIX = [
    (cell, heads, time, features)
    for cell in ("mlstm", "linear_attention", "delta_rule")
    for heads, time, features in ((4, 512, 64), (1, 4096, 64), (16, 256, 128))
]
#: (batch, time, features).
ELEMENTWISE = [
    (1, 64, 512),
    (1, 1024, 512),
    (1, 65536, 64),
    (8, 1024, 512),
    (32, 256, 1024),
]

#: Sums of float32 in other orders, over some hundred steps, of values below 1.
TOLERANCE = 1e-4


def projected(shape: tuple[int, int, int, int], mode: str) -> harness.Candidates:
    """Calls of an LSTM with a projection: y; or gradients, that of x first."""
    hidden, size, batch, time = shape
    key = jax.random.split(jax.random.key(0), 2)
    sizes = {"input_size": size, "hidden_size": hidden, "proj_size": size}
    params = prnn_jax.init("lstm", key[0], **sizes)
    x = jax.random.normal(key[1], (batch, time, size))

    runs = _both(prnn_jax.lstm, params, x, mode)
    if harness.installed(TORCH):
        runs[TORCH] = _torch(params, np.asarray(x), mode)
    return runs


def _both(
    layer: Callable, params: prnn_jax.Params, x: jax.Array, mode: str
) -> harness.Candidates:
    """Ours and the scan's: y; or gradients, that of x first."""

    def ours(implementation: str) -> Callable[[], object]:
        def y(params, x):
            return layer(x, params, implementation=implementation)[0]

        def gradients(params, x):
            return jax.grad(lambda *args: jnp.sum(y(*args) ** 2), (1, 0))(params, x)

        run = jax.jit(y if mode == "forward" else gradients)
        return lambda: run(params, x)

    return {OURS: ours(OURS), BASELINE: ours(BASELINE)}


def normed(shape: tuple[str, int, int, int], mode: str) -> harness.Candidates:
    """Calls of a cell with layer norm, as of the one with a projection."""
    name, hidden, batch, time = shape
    cell = prnn_jax.normed(name)  # pyright: ignore[reportArgumentType]
    key = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(key[1], (batch, time, hidden))
    return _both(cell, cell.init(key[0], hidden, hidden), x, mode)


def _torch(params: prnn_jax.Params, x: np.ndarray, mode: str) -> Callable[[], object]:
    import torch

    torch.set_num_threads(threads())
    hidden, size = params.w_hr.shape
    layer = torch.nn.LSTM(x.shape[-1], hidden, proj_size=size, batch_first=True)
    state = convert.to_pytorch("LSTM", [params])
    layer.load_state_dict({name: torch.tensor(a) for name, a in state.items()})
    given = torch.tensor(x).requires_grad_()

    def forward():
        with torch.inference_mode():
            return layer(given)[0].numpy()

    def train():
        leaves = [given, *layer.parameters()]
        dx, *others = torch.autograd.grad((layer(given)[0] ** 2).sum(), leaves)
        return dx.numpy(), others

    return forward if mode == "forward" else train


def elementwise(
    dtype: str, shape: tuple[int, int, int], mode: str
) -> harness.Candidates:
    """Calls of a linear recurrence, or gradients of a and b."""
    random = np.random.default_rng(0)
    a, b = random.uniform(0.5, 1, shape), random.standard_normal(shape)
    if dtype == "complex64":
        a = a * np.exp(1j * random.uniform(0, 6, shape))
    a, b = (jnp.asarray(v, dtype) for v in (a, b))

    def associative(a, b):
        def join(first, second):
            return first[0] * second[0], second[0] * first[1] + second[1]

        return jax.lax.associative_scan(join, (a, b), axis=1)[1]

    def ours(implementation: str) -> Callable:
        options = {"implementation": implementation}
        return lambda a, b: prnn_jax.linear_recurrence(a, b, **options)[0]

    def candidate(y: Callable) -> Callable[[], object]:
        def gradient(a, b):
            def loss(*args):
                return jnp.sum(jnp.abs(y(*args)) ** 2)

            return jax.grad(loss, (0, 1))(a, b)

        run = jax.jit(y if mode == "forward" else gradient)
        return lambda: run(a, b)

    runs = {OURS: ours(OURS), BASELINE: ours(BASELINE), ASSOCIATIVE: associative}
    return {name: candidate(y) for name, y in runs.items()}


def matrix(shape: tuple[str, int, int, int], mode: str) -> harness.Candidates:
    """Calls of a recurrence whose state is a matrix; or gradients, that of v first."""
    name, heads, time, features = shape
    key = jax.random.split(jax.random.key(0), 5)
    q, k, v = (jax.random.normal(one, (heads, time, features)) for one in key[:3])
    k /= jnp.linalg.norm(k, axis=-1, keepdims=True)
    gate, decay = (jax.random.normal(one, (heads, time)) for one in key[3:])
    # What each takes beside q, k and v: all decays are near 1.
    others = {
        "mlstm": (gate, 3 + decay),
        "linear_attention": (-0.1 * jnp.exp(decay),),
        "delta_rule": (jax.nn.sigmoid(gate), -0.1 * jnp.exp(decay)),
    }[name]

    def candidate(**options: Any) -> Callable[[], object]:
        def h(v, q, k, *others):
            return getattr(prnn_jax, name)(q, k, v, *others, **options)[0]

        def gradients(*args):
            return jax.grad(lambda *a: jnp.sum(h(*a) ** 2), (0, 1, 2))(*args)

        run = jax.jit(h if mode == "forward" else gradients)
        return lambda: run(v, q, k, *others)

    return {OURS: candidate(), BASELINE: candidate(implementation="scan")}


#: What makes a kind's calls, and of which shapes.
KINDS: dict[str, tuple[Callable, list]] = {
    "projected": (projected, PROJECTED),
    "normed": (normed, NORMED),
    "matrix": (matrix, MATRIX),
    "elementwise": (functools.partial(elementwise, "float32"), ELEMENTWISE),
    "complex": (functools.partial(elementwise, "complex64"), ELEMENTWISE),
}
#: Recurrences of these dtypes: a sum of two such arrays is timed, too.
WITHOUT_PRODUCT = {"elementwise": "float32", "complex": "complex64"}


def measure(kind: str, shape: tuple, mode: str, budget_s: float) -> dict:
    """An entry in the results: checked first, then timed."""
    make = KINDS[kind][0]
    runs = make(shape, mode)
    seen = runs
    if kind not in WITHOUT_PRODUCT and mode == "train":  # others' have other shapes
        seen = {name: functools.partial(_first, run) for name, run in runs.items()}
    difference = harness.check_agreement(f"{kind} {shape} {mode}", seen, TOLERANCE)
    if kind in WITHOUT_PRODUCT and mode == "forward":
        a, b = (jnp.ones(shape, WITHOUT_PRODUCT[kind]) for _ in range(2))
        add = jax.jit(jnp.add)
        jax.block_until_ready(add(a, b))
        runs[SUM] = lambda: add(a, b)
    timings = harness.measure(runs, budget_s=budget_s)
    return {
        "kind": kind,
        "shape": shape,
        "mode": mode,
        "rounds": len(timings[OURS].seconds),
        "us": {
            name: dataclasses.asdict(harness.Spread.of(t.seconds, 1e6))
            for name, t in timings.items()
        },
        "ratio": {
            name: dataclasses.asdict(harness.ratio(timing, timings[OURS]))
            for name, timing in timings.items()
            if name != OURS
        },
        "difference": difference,
        "tolerance": TOLERANCE,
    }


def _first(run: Callable[[], Any]) -> object:
    return run()[0]


def _measure_all(options: argparse.Namespace) -> dict:
    """All points, on the CPU."""
    points = []
    with jax.default_device(jax.devices("cpu")[0]):
        for kind in options.kinds:
            for shape in KINDS[kind][1]:
                for mode in MODES:
                    points.append(measure(kind, shape, mode, options.budget_s))
                    jax.clear_caches()
    return {"points": points}


def table(results: dict) -> str:
    """A row for each point: ours in µs, and how many times as long the others take."""
    names = BASELINE, TORCH, ASSOCIATIVE, SUM
    titles = "`lax.scan`", "PyTorch", "`lax.associative_scan`", "a sum of two arrays"

    def row(point: dict) -> list[str]:
        layer = {
            "projected": "LSTM {} to {}, batch {}, time {}",
            "normed": "{} with layer norm, {} units, batch {}, time {}",
            "matrix": "{}, {} heads, time {}, {} features",
            "elementwise": "linear, batch {}, time {}, {} features",
            "complex": "linear, batch {}, time {}, {} complex features",
        }[point["kind"]]
        ratios = [point["ratio"].get(name) for name in names]
        return [
            layer.format(*point["shape"]),
            point["mode"],
            harness.number(point["us"][OURS]["median"]),
            *("" if r is None else f"{r['median']:.2f}×" for r in ratios),
        ]

    header = ["layer", "mode", "ours, µs", *titles]
    return harness.markdown(header, map(row, results["points"]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    question = (__doc__ or "").partition("\n")[0]
    parser = command_line.parser(NAME, question, BUDGET_S)
    kinds = tuple(KINDS)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    options = parser.parse_args(arguments)
    results = command_line.outcome(parser, options, _measure_all)
    print(table(results))


if __name__ == "__main__":
    main()
