"""What the parts of the GPU campaign share: rows of JSON, budgets, arrays."""

import argparse
import json
import time
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax

#: A cell's public function, the number of its gates, and its options.
CELLS = {
    "lstm": (prnn_jax.lstm, 4, {}),
    "gru": (prnn_jax.gru, 3, {"reset_after": True}),
    "rnn": (prnn_jax.rnn, 1, {"activation": "tanh"}),
}


class Rows:
    """A file of JSON, a line for each row, written as soon as it is known."""

    def __init__(self, part: str, path: Path | None):
        self.part = part
        self.failures = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = None if path is None else path.open("a")

    def write(self, **fields) -> None:
        """A row; with `ok=False`, but for `required=False`, the part has failed."""
        wrong = fields.get("ok", True) is False
        self.failures += wrong and fields.get("required", True)
        line = json.dumps({"part": self.part, **fields}, allow_nan=False)
        print(line, flush=True)
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()

    @property
    def status(self) -> int:
        """For the process to end with."""
        return 1 if self.failures else 0


def message(error: BaseException) -> str:
    """For a row."""
    return f"{type(error).__name__}: {error}"[:400]


class Budget:
    """Seconds that may be spent."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()


def parser(doc: str | None, budget_s: float) -> argparse.ArgumentParser:
    """With the options that all parts have."""
    made = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    made.add_argument("--out", type=Path, help="append rows of JSON to this file")
    made.add_argument("--budget", type=float, default=budget_s, help="seconds")
    made.add_argument(
        "--smoke", action="store_true", help="tiny sizes, on whatever device there is"
    )
    return made


def require_gpu(smoke: bool) -> None:
    """Ends the process with status 77 where JAX sees no GPU, unless in smoke mode."""
    if not smoke and jax.default_backend() != "gpu":
        print("JAX sees no GPU")
        raise SystemExit(77)


def arrays(cell: str, batch: int, time: int, hidden: int, dtype, layers: int = 1):
    """x, params, and weights for a sum of y; the same numbers in every run.

    Args:
      layers: of a stack, whose params are a list.
    """
    random = np.random.default_rng(zlib.crc32(f"{cell} {batch} {hidden}".encode()))
    wide = CELLS[cell][1] * hidden

    def normal():
        return jnp.asarray(random.standard_normal((batch, time, hidden), "f"), dtype)

    def uniform(*shape):
        return jnp.asarray(random.uniform(-1, 1, shape) * hidden**-0.5, dtype)

    each = [
        prnn_jax.Params(
            uniform(hidden, wide), uniform(hidden, wide), uniform(wide), uniform(wide)
        )
        for _ in range(layers)
    ]
    return normal(), each if layers > 1 else each[0], normal()


def forward(cell: Any, implementation: str | None):
    """`(x, params, weights) -> (y, state)`."""
    function, _, options = CELLS[cell]

    def run(x, params, _):
        if isinstance(params, list):
            given: Any = {**options, "implementation": implementation}
            return prnn_jax.stack(cell, x, params, **given)
        return function(x, params, **options, implementation=implementation)

    return run


def train(cell: str, implementation: str | None):
    """`(x, params, weights) -> gradients` of a weighted sum of y."""

    def loss(x, params, weights):
        y, _ = forward(cell, implementation)(x, params, weights)
        return jnp.sum((weights * y).astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1))


MODES = {"forward": forward, "train": train}


@jax.jit
def differing(left, right):
    """How many arrays of two equal trees differ in any bit."""

    def differ(a, b):
        bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}
        a, b = (jax.lax.bitcast_convert_type(v, bits[v.dtype.itemsize]) for v in (a, b))
        return jnp.any(a != b).astype(jnp.int32)

    return sum(jax.tree.leaves(jax.tree.map(differ, left, right)))
