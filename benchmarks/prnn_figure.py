"""How many FLOP/s does a persistent RNN reach, by batch, in each of its three products?

The figure of Diamos et al. 2016 (Persistent RNNs, ICML): a ReLU layer of 1152 units
over given pre-activations, at batches of 1 to 64. Each part has 2·H²·B FLOP per step:

- forward: the recurrence, with h w_hh in every step.
- backward_data: its transpose, with da_h w_hh^T in every step, from what the forward
  pass kept; it gives the gradients of a_x and of the initial state.
- backward_weights: dw_hh = Σ h^T da_h. Ours is one product over all steps; the scan's
  is what JAX derives, a product and a sum in every step.

Ours and `lax.scan` run in turn, on the same arrays. Run it as
`python -m benchmarks.prnn_figure`.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks._scan_points import (
    BASELINE,
    CELLS,
    OURS,
    RELU_GRADIENT_TOLERANCE,
    TOLERANCES,
)
from prnn_jax._call.call import Call
from prnn_jax._engine import weight_products

NAME = "prnn_figure"
HIDDEN, TIME = 1152, 64
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PARTS = "forward", "backward_data", "backward_weights"
BUDGET_S = 2.0

#: GPUs multiply float32 as TF32, unless told not to.
TF32_TOLERANCE = 0.02


@dataclass(frozen=True)
class Point:
    """One of the three products of a recurrence, at one size."""

    part: str
    batch: int
    hidden_size: int = HIDDEN
    time: int = TIME
    cell: str = "rnn"

    def __str__(self) -> str:
        sizes = f"H{self.hidden_size}-B{self.batch}-T{self.time}"
        return f"{self.cell}-{self.part}-{sizes}"

    @property
    def wide(self) -> int:
        """Pre-activations of a step."""
        return CELLS[self.cell].gates * self.hidden_size

    @property
    def step_flop(self) -> int:
        """Of the product, in one step."""
        return 2 * self.hidden_size * self.wide * self.batch

    @property
    def tolerance(self) -> float:
        """The largest difference from the baseline that is not an error."""
        if jax.default_backend() != "cpu":
            return TF32_TOLERANCE
        if self.cell == "rnn" and self.part == "backward_data":
            return RELU_GRADIENT_TOLERANCE
        return TOLERANCES["float32"]


# ---- what runs -----------------------------------------------------------------------


def candidates(point: Point) -> harness.Candidates:
    """Compiled calls, ours and the baseline, on the same arrays."""
    of_part = {
        "forward": _forward,
        "backward_data": _backward_data,
        "backward_weights": _backward_weights,
    }[point.part]
    return of_part(point, _normal(point))


def _forward(point: Point, normal: Callable[..., Array]) -> harness.Candidates:
    arrays = _inputs(point, normal)
    return {name: functools.partial(_run(point, name), *arrays) for name in _NAMES}


def _backward_data(point: Point, normal: Callable[..., Array]) -> harness.Candidates:
    """What they read of the forward pass is computed here, before any timing."""
    a_x, w_hh, state_0 = _inputs(point, normal)
    dy = normal(point.batch, point.time, point.hidden_size)
    cotangents = dy, jax.tree.map(lambda s: normal(*s.shape), state_0)
    # An argument, for XLA may compute with constants ahead of time.
    backward = jax.jit(lambda vjp, cotangents: vjp(cotangents))

    def candidate(name: str):
        run = _run(point, name)
        _, vjp = jax.vjp(lambda a_x, state_0: run(a_x, w_hh, state_0), a_x, state_0)
        return functools.partial(backward, vjp, cotangents)

    return {name: candidate(name) for name in _NAMES}


def _backward_weights(point: Point, normal: Callable[..., Array]) -> harness.Candidates:
    """Both read h and da_h as the pass before them leaves these."""
    rows = point.batch, point.time, 1
    h, da_h = normal(*rows, point.hidden_size), normal(*rows, point.wide)
    call = Call(point.cell)

    def ours(h, da_h):
        like = jnp.zeros((1, point.hidden_size, point.wide))
        weights = [weight_products.Weights(h, da_h)]
        ((dw, _),), _ = weight_products.gradients(call, like, weights, None)
        return dw[0]

    by_step = [jnp.swapaxes(a[:, :, 0], 0, 1) for a in (h, da_h)]
    return {
        OURS: functools.partial(jax.jit(ours), h, da_h),
        BASELINE: functools.partial(jax.jit(_transposed_scan), *by_step),
    }


def _run(point: Point, implementation: str) -> Callable:
    def recurrence(a_x, w_hh, state_0):
        return prnn_jax.recurrence(
            point.cell,
            a_x,
            w_hh,
            state_0,
            **CELLS[point.cell].options,
            implementation=implementation,
        )

    return jax.jit(recurrence)


def _transposed_scan(h: Array, da_h: Array) -> Array:
    """What JAX derives for the weights of the products in a scan over [time, ...]."""

    def products(w_hh):
        return jax.lax.scan(lambda _, h: (None, h @ w_hh), None, h)[1]

    like = jax.ShapeDtypeStruct((h.shape[-1], da_h.shape[-1]), h.dtype)
    (dw_hh,) = jax.linear_transpose(products, like)(da_h)
    return dw_hh


def _inputs(point: Point, normal: Callable[..., Array]) -> tuple:
    """a_x, w_hh as large as layers are commonly initialised, and the first state."""
    a_x = normal(point.batch, point.time, point.wide)
    w_hh = normal(point.hidden_size, point.wide) * (3 * point.hidden_size) ** -0.5
    _, states = jax.eval_shape(_run(point, BASELINE), a_x, w_hh, None)
    return a_x, w_hh, jax.tree.map(lambda s: normal(*s.shape), states)


def _normal(point: Point) -> Callable[..., Array]:
    """Draws arrays of a shape, the same in every run."""
    random = np.random.default_rng(zlib.crc32(str(point).encode()))
    return lambda *shape: jnp.asarray(random.standard_normal(shape, np.float32))


_NAMES = OURS, BASELINE


# ---- results -------------------------------------------------------------------------


def measure(point: Point, budget_s: float) -> dict:
    """The point's entry in the results: checked first, then timed.

    Raises:
      harness.DisagreementError: ours and the baseline compute different things.
    """
    runs = candidates(point)
    difference = harness.check_agreement(str(point), runs, point.tolerance)
    timings = harness.measure(runs, budget_s=budget_s)
    step_us = {
        name: harness.Spread.of(timing.seconds, 1e6 / point.time)
        for name, timing in timings.items()
    }
    return {
        **dataclasses.asdict(point),
        "rounds": len(timings[OURS].seconds),
        "step_us": {name: dataclasses.asdict(us) for name, us in step_us.items()},
        "gflops": {
            name: point.step_flop / us.median / 1e3 for name, us in step_us.items()
        },
        "ratio": dataclasses.asdict(harness.ratio(timings[BASELINE], timings[OURS])),
        "difference": difference,
        "tolerance": point.tolerance,
    }


def table(results: dict) -> str:
    """A row for each batch and part. TFLOP/s where the device is not a CPU."""
    unit, gflop = ("GFLOP/s", 1) if results["platform"] == "cpu" else ("TFLOP/s", 1000)
    header = ["batch", "part"]
    header += [f"{name}, {what}" for what in (unit, "µs per step") for name in _NAMES]
    rows = [
        [
            str(point["batch"]),
            point["part"].replace("_", " "),
            *(harness.number(point["gflops"][name] / gflop) for name in _NAMES),
            *(harness.number(point["step_us"][name]["median"]) for name in _NAMES),
            f"{point['ratio']['median']:.2f}×",
        ]
        for point in results["points"]
    ]
    return harness.markdown([*header, "ratio"], rows)


# ---- command line --------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    parser.add_argument("--batch", nargs="+", type=size, default=BATCHES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hidden", type=size, default=HIDDEN)
    parser.add_argument("--time", type=size, default=TIME, help="steps")
    options = parser.parse_args(arguments)
    print(table(command_line.outcome(parser, options, _measure_all)))


def _measure_all(options) -> dict:
    entries = []
    for batch in options.batch:
        for part in options.parts:
            point = Point(part, batch, options.hidden, options.time)
            entries.append(measure(point, options.budget_s))
            jax.clear_caches()  # programs and arrays of a point are not needed again
    return {"points": entries}


if __name__ == "__main__":
    main()
