"""The constants of the CUDA planner's model, fitted to the plans that a GPU has timed.

    python -m benchmarks.gpu.calibrate benchmarks/results/gpu/h100.json

prints them as cuda/devices.cc has them, and how far off the model is with those that it
has now and with these: measured over modelled time of a step, and how many times the
fastest plan's time that takes which the model would choose.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from prnn_jax._engine.modules import native

Row = dict
Model = dict[str, float]

# Constants that are fitted, and their bounds. The others are measured one by one.
FITTED = {
    "block_exchange": (10, 3000),
    "cluster_exchange": (250, 2000),
    "cluster_bytes": (4, 128),
    "grid_exchange": (300, 3000),
    "polled_again": (1, 10),
    "reduce": (50, 1000),
    "pointwise": (100, 3000),
    "per_value": (1, 500),
    "further_unit": (0.1, 3),
    "issue": (100, 1000),
    "issue_per_product": (0.01, 1),
    "overlapped": (0.01, 1),
}
TIME = 640
# Of the products of a row, in cuda_plan's words.
NUMBERS = {"tf32": "float32", "float32": "float32_exact"}
# How strongly a constant stays where it began, beside the error of one plan.
INERTIA = 0.05


def call_of(row: Row) -> tuple:
    """The call that a plan is for: cell, pass, products, hidden, batch."""
    return tuple(row[k] for k in ("cell", "pass", "products", "hidden", "batch"))


def kernel_of(plan: Row, is_streamed: bool) -> tuple:
    """The kernel that runs a plan: its exchange, and its tile."""
    return plan["exchange"], plan["rows"], plan["columns"], is_streamed


def plans_of(call: tuple, device: dict) -> dict[tuple, dict]:
    """The planner's plans for a call, by kernel."""
    cell, kind, products, hidden, batch = call
    number = NUMBERS.get(products, products)
    planning = native.cuda_plan(cell, kind, number, TIME, batch, 1, hidden, device)
    plans = [c["plan"] for c in planning["candidates"] if c["plan"] is not None]
    found = {kernel_of(p, p["tile"][1] == 0): p | {"is_chosen": False} for p in plans}
    if (best := planning["best"]) is not None:
        found[kernel_of(best, best["tile"][1] == 0)]["is_chosen"] = True
    return found


class Measured:
    """What a device has measured, beside the model with any constants."""

    def __init__(self, rows: Iterable[Row], device: dict):
        self._device = device
        # Streamed tiles are for layers that nothing else is for: no choice needs them.
        timed = [
            row
            for row in rows
            if row.get("step_us", 0) > 0 and not row.get("is_streamed", False)
        ]
        self._calls = {
            call: list(group)
            for call, group in itertools.groupby(sorted(timed, key=call_of), call_of)
        }

    def _by_call(self, model: Model) -> list[list[tuple[Row, dict | None]]]:
        """(Measured, planned) of each call; None where it would have other teams."""
        device = self._device | {"model": self._device["model"] | model}
        found = []
        for call, rows in self._calls.items():
            plans = plans_of(call, device)
            pairs = [
                (r, plans[kernel_of(r, r.get("is_streamed", False))]) for r in rows
            ]
            found.append(
                [(r, p if p["teams"] == r["teams"] else None) for r, p in pairs]
            )
        return found

    def errors(self, model: Model) -> np.ndarray:
        """Logarithms of measured over modelled time; NaN where nothing was modelled."""
        pairs = itertools.chain.from_iterable(self._by_call(model))
        return np.array(
            [
                np.nan if p is None else math.log(r["step_us"] / p["step_us"])
                for r, p in pairs
            ]
        )

    def regrets(self, model: Model) -> np.ndarray:
        """Logarithms of the chosen plan's time over that of the fastest."""
        found = []
        for pairs in self._by_call(model):
            chosen = [r["step_us"] for r, p in pairs if p and p["is_chosen"]]
            if chosen:
                found.append(
                    math.log(min(chosen) / min(r["step_us"] for r, _ in pairs))
                )
        return np.array(found)


def fit(measured: Measured, start: Model) -> Model:
    """The constants with which the model's errors are least."""
    lower, upper = (np.log([bounds[i] for bounds in FITTED.values()]) for i in (0, 1))
    first = np.clip(np.log([start[name] for name in FITTED]), lower, upper)

    def model(x: np.ndarray) -> Model:
        return dict(zip(FITTED, np.exp(x), strict=True))

    def residuals(x: np.ndarray) -> np.ndarray:
        errors = np.nan_to_num(measured.errors(model(x)))
        return np.concatenate([errors, INERTIA * (x - first)])

    found = least_squares(
        residuals,
        np.clip(first, lower + 1e-3, upper - 1e-3),
        bounds=(lower, upper),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-3,
    )
    return model(found.x)


def quality(measured: Measured, model: Model) -> str:
    """One line of text."""
    errors, regrets = measured.errors(model), measured.regrets(model)
    errors = errors[~np.isnan(errors)]
    mean, least, most = (math.exp(f(errors)) for f in (np.mean, np.min, np.max))
    choice, worst = math.exp(np.mean(regrets)), math.exp(np.max(regrets))
    return (
        f"{len(errors)} plans: measured / modelled {mean:.2f} "
        f"({least:.2f} to {most:.2f}), spread {errors.std():.2f}; "
        f"{len(regrets)} choices: {choice:.3f} times the best (at most {worst:.2f})"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="JSON of benchmarks/results/gpu/")
    options = parser.parse_args(arguments)
    results = json.loads(options.file.read_text())
    device = native.recorded_device(results["device"])
    measured = Measured(results["plans"], device)
    start = device["model"]
    print("now:   ", quality(measured, start))
    found = fit(measured, start)
    print("fitted:", quality(measured, found))
    for name in FITTED:
        print(f"    .{name} = {found[name]:.3g},")
    return 0


if __name__ == "__main__":
    sys.exit(main())
