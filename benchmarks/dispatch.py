"""What does a call cost besides its arithmetic, and what does compiling it?

The smallest layer, an LSTM of 8 units for one row, of 1 and 16 steps, and its gradients
(`against_scan` says of what): ours, `lax.scan`, and an empty program, which takes the
same arguments and returns zeros of the same shapes, in turn. What a call takes longer
than the empty one is the engine's; the rest any jitted call takes. Then the CPU seconds
to trace, lower and compile the layer. Run as `python -m benchmarks.dispatch`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from benchmarks import against_scan
from benchmarks._scan_points import BASELINE, MODES, OURS, Point

NAME = "dispatch"
HIDDEN, BATCH = 8, 1
TIMES = (1, 16)
EMPTY = "empty"
STAGES = "trace", "lower", "compile"
BUDGET_S, ROUNDS = 2.0, 5


def empty(function: Callable, *arguments) -> Callable:
    """Takes such arguments, all of them, and returns zeros for the results."""
    results = jax.eval_shape(function, *arguments)

    def zeros(*_):
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), results)

    return jax.jit(zeros, keep_unused=True)


def candidates(point: Point) -> harness.Candidates:
    """Compiled calls on the same arrays: ours, the baseline, the empty one."""
    runs = against_scan.candidates(point)
    ours = runs[OURS]
    nothing = empty(ours.func, *ours.args)
    return {**runs, EMPTY: functools.partial(nothing, *ours.args)}


def measure(point: Point, budget_s: float) -> dict:
    """The point's entry in the results: checked first, then timed.

    Raises:
      harness.DisagreementError: ours and the baseline compute different things.
    """
    runs = candidates(point)
    pair = {name: runs[name] for name in (OURS, BASELINE)}
    difference = harness.check_agreement(str(point), pair, point.tolerance)
    jax.block_until_ready(runs[EMPTY]())  # compiled, as the others are
    timings = harness.measure(runs, budget_s=budget_s)
    us = {name: harness.Spread.of(t.seconds, 1e6) for name, t in timings.items()}
    over = {name: _excess_us(timings[name], timings[EMPTY]) for name in pair}
    ratio = harness.ratio(timings[BASELINE], timings[OURS])
    return {
        **dataclasses.asdict(point),
        "rounds": len(timings[OURS].seconds),
        "call_us": {name: dataclasses.asdict(spread) for name, spread in us.items()},
        "over_empty_us": {name: dataclasses.asdict(s) for name, s in over.items()},
        "ratio": dataclasses.asdict(ratio),
        "difference": difference,
        "tolerance": point.tolerance,
    }


def _excess_us(timing: harness.Timing, nothing: harness.Timing) -> harness.Spread:
    pairs = zip(timing.seconds, nothing.seconds, strict=True)
    return harness.Spread.of((own - empty for own, empty in pairs), 1e6)


def compile_seconds(point: Point, rounds: int) -> list[dict]:
    """CPU seconds of each stage, medians, for ours and the baseline in turn.

    CPU seconds, because compiling takes long enough for other programs to come between.
    """
    runs = against_scan.candidates(point)
    spent = {name: {stage: [] for stage in STAGES} for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            jax.clear_caches()
            traced = _timed(spent[name]["trace"], run.func.trace, *run.args)
            lowered = _timed(spent[name]["lower"], traced.lower)
            _timed(spent[name]["compile"], lowered.compile)
    return [
        {
            "mode": point.mode,
            "implementation": name,
            "rounds": rounds,
            "seconds": {stage: float(np.median(s)) for stage, s in stages.items()},
        }
        for name, stages in spent.items()
    ]


def _timed(spent: list[float], run: Callable, *arguments):
    start = time.process_time()
    result = run(*arguments)
    spent.append(time.process_time() - start)
    return result


# ---- results -------------------------------------------------------------------------


def table(results: dict) -> str:
    """Calls, then compiling."""
    names = OURS, BASELINE, EMPTY
    calls = [
        [
            point["mode"],
            str(point["time"]),
            *(harness.number(point["call_us"][name]["median"]) for name in names),
            *(f"{point['over_empty_us'][name]['median']:.1f}" for name in names[:2]),
            f"{point['ratio']['median']:.2f}×",
        ]
        for point in results["points"]
    ]
    header = ["mode", "time", *(f"{name}, µs" for name in names)]
    header += [f"{name} over empty, µs" for name in names[:2]]
    compiling = [
        [
            entry["mode"],
            entry["implementation"],
            *(f"{1e3 * entry['seconds'][stage]:.0f}" for stage in STAGES),
            f"{1e3 * sum(entry['seconds'].values()):.0f}",
        ]
        for entry in results["compile"]
    ]
    stages = ["mode", "engine", *(f"{stage}, ms" for stage in STAGES), "sum, ms"]
    return "\n\n".join(
        (
            harness.markdown([*header, "ratio"], calls),
            harness.markdown(stages, compiling),
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the arguments say."""
    parser = command_line.parser(NAME, __doc__.splitlines()[0], BUDGET_S)
    size = command_line.positive(int)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--time", nargs="+", type=size, default=TIMES, help="steps")
    parser.add_argument(
        "--rounds",
        type=size,
        default=ROUNDS,
        help="of compiling (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    print(table(command_line.outcome(parser, options, _measure_all)))


def _measure_all(options) -> dict:
    def point(mode: str, time: int) -> Point:
        return Point("lstm", mode, HIDDEN, BATCH, time)

    compiling = []
    for mode in options.modes:
        compiling += compile_seconds(point(mode, options.time[-1]), options.rounds)
    points = [
        measure(point(mode, time), options.budget_s)
        for mode in options.modes
        for time in options.time
    ]
    return {"points": points, "compile": compiling}


if __name__ == "__main__":
    main()
