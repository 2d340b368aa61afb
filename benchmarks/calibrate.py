"""How fast is this processor, as the CPU engine's planner sees it?

`python -m benchmarks.calibrate [--out FILE]` times every way of running some 260 calls
on this machine, in two minutes, and seeks the rates by which the planner's model fits
best. It prints them as a row for cpu/plan/machines.cc; the file is for PRNN_CPU_RATES.
Needs the repository, in which the package is built (`make venv`).
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness
from prnn_jax._engine.modules import native

HIDDEN = 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536
BATCH, TIME = (1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16, 24, 32), (1, 1, 2, 3, 4, 8, 16, 64)
CELLS = {"lstm": 4, "gru": 3, "rnn": 1}
DTYPES = "float32", "float32", "float32", "bfloat16", "float16"
MOST_WORK = 1.5e9  # multiply-adds of a call


def calls(count: int) -> Iterator[str]:
    """Lines for benchmarks/cpu/plans.cc, the same each time."""
    source = random.Random(0)
    while count > 0:
        cell, dtype = source.choice(list(CELLS)), source.choice(DTYPES)
        hidden, batch, time = map(source.choice, (HIDDEN, BATCH, TIME))
        kind = source.choice(("forward", "forward", "backward"))
        groups = source.choice((1, 1, 1, 2))
        if CELLS[cell] * hidden**2 * batch * time * groups > MOST_WORK:
            continue
        yield f"{kind} {cell} {dtype} {hidden} {batch} {time} {groups} 0"
        count -= 1


def program() -> Path:
    """Of the build that the package was installed from.

    Raises:
      RuntimeError: there is none, or it cannot be made.
    """
    builds = sorted((harness.ROOT / "build").glob("*/CMakeCache.txt"))
    if not builds:
        raise RuntimeError(
            f"calibrate: {harness.ROOT / 'build'} has no build of the package; "
            "run `make venv` first."
        )
    newest = max(builds, key=lambda path: path.stat().st_mtime).parent
    ours = Path(sys.executable).with_name("cmake")
    command = ours if ours.exists() else "cmake", "--build", newest
    done = subprocess.run(
        [*command, "--target", "cpu_plans"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"calibrate: cannot build cpu_plans:\n{done.stdout}")
    return newest / "cpu_plans"


def measure(threads: int, seconds: float, count: int, trials: int) -> list[dict]:
    """The program's rows: every way of each call, then the rates."""
    isa = native.instruction_set()
    done = subprocess.run(
        [program(), isa, str(threads), str(seconds), str(trials)],
        input="\n".join(calls(count)) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def entry(rates: dict[str, float], name: str, width: int, source: str) -> str:
    """A row of cpu/plan/machines.cc."""
    nested = {
        of: ", ".join(f"{rates[f'{of}_{where}']:g}" for where in _WHERE)
        for of in ("packed", "unpacked")
    }
    fields = []
    for field, value in rates.items():
        of, _, where = field.partition("_")
        if of not in nested or where not in _WHERE:
            fields.append(f".{field} = {value:g}")
        elif where == _WHERE[0]:
            fields.append(f".{of} = {{{nested[of]}}}")
    lines = f'{{"{name}",\n {width},\n "{source}",\n {{', ",\n  ".join(fields), "}},"
    return "".join(lines)


_WHERE = "own", "shared", "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibrate",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="for PRNN_CPU_RATES")
    number, seconds = command_line.positive(int), command_line.positive(float)
    parser.add_argument("--threads", type=number, default=1 + native.cpu_workers())
    parser.add_argument("--seconds", type=seconds, default=0.1, help="for each call")
    parser.add_argument("--calls", type=number, default=260)
    parser.add_argument("--trials", type=number, default=30000, help="of other rates")
    options = parser.parse_args(arguments)
    try:
        *_, rates = measure(
            options.threads, options.seconds, options.calls, options.trials
        )
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    error, regret = rates.pop("error"), rates.pop("regret")
    plan = native.cpu_plan("lstm", 1, 1, 1, 1, 0, False, 1)
    found = harness.commit()
    source = (
        f"measured: {harness.device(None)['cpu']}, {options.threads} threads, "
        f"{harness.now()[:10]}, {found['name'] if found else 'unknown commit'}"
    )
    print(entry(rates, plan["processor"], plan["vector_width"], source))
    print(
        f"The model's error is {error[1]:.2f} (it was {error[0]:.2f}), and its choices "
        f"take {100 * regret[1]:.1f} % longer than the best ({100 * regret[0]:.1f} %)."
    )
    if options.out:
        lines = [f"# {source}", *(f"{name} {value}" for name, value in rates.items())]
        options.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
