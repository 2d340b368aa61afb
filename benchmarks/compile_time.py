"""How long does a deep stack take to trace and compile, in a loop and without one?

`prnn_jax.stack` runs equal layers in a `lax.scan`; here it is compared with the same
layers one after the other in one program, which is what a Python loop over layers
makes. Run it as `python -m benchmarks.compile_time`.
"""

import argparse
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from prnn_jax._ops import layer_stack

NAME = "compile_time"
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"

#: How the layers are given, and what runs: stacked arrays in a loop; a list, which is
#: stacked and then runs in a loop; a list whose layers run one after the other.
FORMS = ("stacked", "list", "unrolled")
MODES = ("forward", "train")
IMPLEMENTATIONS = ("native", "scan")
DEPTHS = (1, 3, 10, 30, 100)

HIDDEN, BATCH, TIME = 64, 4, 32  # compiling does not depend on them
STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class Point:
    """LSTM layers of one size, with dropout and skip connections."""

    depth: int
    form: str
    mode: str
    implementation: str


def points(
    depths: Sequence[int] = DEPTHS,
    forms: Sequence[str] = FORMS,
    modes: Sequence[str] = MODES,
    implementations: Sequence[str] = IMPLEMENTATIONS,
) -> list[Point]:
    """All combinations."""
    axes = itertools.product(implementations, modes, depths, forms)
    return [Point(d, form, mode, i) for i, mode, d, form in axes]


def measure(point: Point, rounds: int) -> dict:
    """The point's entry in the results: CPU seconds of each stage, and of a call.

    CPU seconds, because compiling takes long enough for other programs to come between.
    """
    arrays = _arrays(point)
    spent: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "call")}
    lines = 0
    with _loop_for(point):
        for _ in range(rounds):
            jax.clear_caches()
            jitted = jax.jit(_function(point))
            traced = _timed(spent["trace"], lambda: jitted.trace(*arrays))  # noqa: B023
            lowered = _timed(spent["lower"], traced.lower)
            compiled = _timed(spent["compile"], lowered.compile)
            jax.block_until_ready(compiled(*arrays))
            _timed(spent["call"], lambda: jax.block_until_ready(compiled(*arrays)))  # noqa: B023
            lines = lowered.as_text().count("\n")
    return {
        **dataclasses.asdict(point),
        "rounds": rounds,
        "seconds": {stage: float(np.median(spent[stage])) for stage in spent},
        "program_lines": lines,
    }


def _timed(spent: list[float], run):
    start = time.process_time()
    result = run()
    spent.append(time.process_time() - start)
    return result


@contextlib.contextmanager
def _loop_for(point: Point) -> Iterator[None]:
    first = sys.maxsize if point.form == "unrolled" else 2
    with mock.patch.object(layer_stack, "LOOP_FROM", first):
        yield


def _function(point: Point):
    def forward(x, layers, key):
        y, _ = prnn_jax.stack(
            "lstm",
            x,
            layers,
            dropout=0.1,
            key=key,
            skip_connections=True,
            implementation=point.implementation,
        )
        return y

    if point.mode == "forward":
        return forward
    return jax.grad(
        lambda x, layers, key: jnp.sum(forward(x, layers, key) ** 2), (0, 1)
    )


def _arrays(point: Point) -> tuple:
    random = np.random.default_rng(0)

    def uniform(*shape):
        drawn = random.uniform(-1, 1, (point.depth, *shape)) * HIDDEN**-0.5
        return jnp.asarray(drawn, jnp.float32)

    wide = 4 * HIDDEN
    shapes = (HIDDEN, wide), (HIDDEN, wide), (wide,), (wide,)
    params = prnn_jax.Params(*(uniform(*shape) for shape in shapes))
    layers = [prnn_jax.Layer(params, stacked=True)]
    if point.form != "stacked":
        layers = [jax.tree.map(lambda a, n=n: a[n], params) for n in range(point.depth)]
    return jnp.ones((BATCH, TIME, HIDDEN)), layers, jax.random.key(0)


# ---- command line --------------------------------------------------------------------

_HEADER = ("engine", "mode", "layers", "form", *STAGES, "sum", "lines", "call, ms")


def _row(entry: dict) -> list[str]:
    seconds = entry["seconds"]
    stages = [seconds[stage] for stage in STAGES]
    return [
        entry["implementation"],
        entry["mode"],
        str(entry["depth"]),
        entry["form"],
        *(f"{s:.2f}" for s in (*stages, sum(stages))),
        str(entry["program_lines"]),
        f"{1e3 * seconds['call']:.1f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}", description=__doc__.splitlines()[0]
    )
    number = command_line.positive(int)
    some = {"nargs": "+", "help": "(default: all)"}
    parser.add_argument("--depths", **some, type=number, default=DEPTHS)
    parser.add_argument("--forms", **some, choices=FORMS, default=FORMS)
    parser.add_argument("--modes", **some, choices=MODES, default=MODES)
    parser.add_argument(
        "--implementations", **some, choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS
    )
    parser.add_argument(
        "--rounds", type=number, default=3, help="(default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write JSON")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print JSON as Markdown instead"
    )
    options = parser.parse_args(arguments)
    if options.table:
        try:
            results = harness.read_json(options.table, NAME)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        print(harness.markdown(_HEADER, map(_row, results["points"])))
        return
    axes = (options.depths, options.forms, options.modes, options.implementations)
    chosen = points(*axes)
    out = options.out or (RESULTS if chosen == points() else None)
    before, entries = harness.load(), []
    print(f"LSTM, H={HIDDEN}, B={BATCH}, T={TIME}. CPU seconds.\n{' '.join(_HEADER)}")
    with jax.default_device(jax.devices("cpu")[0]):
        for point in chosen:
            entries.append(measure(point, options.rounds))
            print(*_row(entries[-1]), flush=True)
    if out is not None:
        results = {**harness.record(NAME, before), "points": entries}
        harness.write_json(out, results)
        print(f"Written to {out}.")


if __name__ == "__main__":
    main()
