"""What a processor can do, and how long a recurrence takes at least.

The limits are measured by `cpu/limits.cc`, a program of its own: how fast threads read
working sets of 16 KiB to 256 MiB each, how many multiply-adds they make, and how long
a barrier takes: each says that it is there, and waits until it has seen that the others
are. The limit of a step is the longest of three times:

- reading: each thread reads its share of w_hh once in a step. Hidden-parallel that is
  1/threads of the weights, batch-parallel it is all of them, once however many of its
  rows they are multiplied by. The share is read at the measured bandwidth for a working
  set of that size (between sizes interpolated, both on a logarithmic scale; beyond the
  largest, that of the largest): that curve knows which cache level such a set stays in.
  It is read there and back, as the engine reads its weights, so that of a set larger
  than a cache some is found in it.
- arithmetic: 2·gates·H²·B FLOP at the measured peak of float32 multiply-adds.
- barrier, hidden-parallel alone: none can multiply what another has computed before it.
  1/threads of the products, those of its own units, it can make meanwhile; the rest of
  the longer of the times above comes after the barrier.

Left out is all else, so that no engine can be at 100 %: what else a step moves (a_x, y,
states, what is kept for the backward pass), gate math, how long one operation waits for
the one before it, and what a call does once: dispatch, and packing the weights.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).parent / "cpu" / "limits.cc"
FLAGS = "-std=c++20", "-O3", "-march=native", "-pthread"

#: Of each thread's working set: powers of two and, from 32 KiB on, half-way between.
SIZES = (2**14, *(2**n * half for n in range(14, 27) for half in (2, 3)), 2**28)
LIMIT_ROUNDS, LIMIT_ROUND_MS = 7, 10.0
PEAK_MS = 2.0


@dataclass(frozen=True)
class Limits:
    """What threads can do together, by their number: the best of several rounds.

    Attributes:
      read_gb_per_s: for sizes of each thread's working set.
      float32_gflops: of multiply-adds.
      bfloat16_gflops: of dot products; empty where the processor has none.
      barrier_us: until all threads have come to it; nothing for one thread.
    """

    read_gb_per_s: dict[int, dict[int, float]]
    float32_gflops: dict[int, float]
    bfloat16_gflops: dict[int, float]
    barrier_us: dict[int, float]

    def bandwidth(self, threads: int, thread_bytes: float) -> float:
        """GB/s of all threads, where each has a working set of so many bytes."""
        curve = self.read_gb_per_s[threads]
        sizes, rates = (np.log([*axis]) for axis in (curve, curve.values()))
        return float(np.exp(np.interp(np.log(thread_bytes), sizes, rates)))


def cores() -> int:
    """As many as this process may use."""
    return len(os.sched_getaffinity(0))


def compiler() -> str | None:
    """A C++ compiler: $CXX, or one that is on the PATH."""
    names = os.environ.get("CXX"), "c++", "g++", "clang++"
    return next(filter(None, (name and shutil.which(name) for name in names)), None)


def measure_limits(
    threads: Collection[int],
    sizes: Sequence[int] = SIZES,
    rounds: int = LIMIT_ROUNDS,
    round_ms: float = LIMIT_ROUND_MS,
) -> dict:
    """What `cpu/limits.cc` prints, for these numbers of threads.

    Raises:
      RuntimeError: it cannot be compiled or run.
    """
    sizes = _that_fit(sizes, max(threads))
    with _compiled() as program:
        return _measured(program, rounds, round_ms, threads, sizes)


@contextlib.contextmanager
def peak_meter() -> Iterator[Callable[[], float]]:
    """Yields what measures how many multiply-adds all cores make now, in some 10 ms.

    What that is called for returns is in float32 GFLOP/s.

    Raises:
      RuntimeError: it cannot be compiled or run.
    """
    threads = cores()
    with _compiled() as program:

        def measure() -> float:
            measured = _measured(program, 1, PEAK_MS, {threads}, SIZES[:1])
            return limits_of(measured).float32_gflops[threads]

        yield measure


@contextlib.contextmanager
def _compiled() -> Iterator[str]:
    """The path of `cpu/limits.cc` as a program."""
    found = compiler()
    if found is None:
        raise RuntimeError("limits: needs a C++ compiler; set CXX to one.")
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/limits"
        _output_of(found, *FLAGS, str(SOURCE), "-o", program)
        yield program


def _measured(
    program: str,
    rounds: int,
    round_ms: float,
    threads: Collection[int],
    sizes: Sequence[int],
) -> dict:
    lists = (",".join(map(str, sorted(numbers))) for numbers in (threads, sizes))
    return json.loads(_output_of(program, str(rounds), str(round_ms), *lists))


def _that_fit(sizes: Sequence[int], threads: int) -> list[int]:
    """Those that take no more than half of the memory, a set for each thread."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [size for size in sizes if 2 * threads * size <= memory]


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"limits: {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def joined(measured: dict, again: dict) -> dict:
    """The rounds of two measurements of the same."""
    rows = zip(measured["rows"], again["rows"], strict=True)
    return {
        **measured,
        "rows": [{**a, "rounds": [*a["rounds"], *b["rounds"]]} for a, b in rows],
    }


def limits_of(measured: dict) -> Limits:
    """The best rounds of what `measure_limits` returned."""

    def best(quantity: str, key: str, threads: int | None = None) -> dict[int, float]:
        return {
            row[key]: max(row["rounds"])
            for row in measured["rows"]
            if row["quantity"] == quantity and threads in (None, row["threads"])
        }

    peak = best("float32_gflop_per_s", "threads")
    return Limits(
        {n: best("read_gb_per_s", "bytes", n) for n in peak},
        peak,
        best("bfloat16_gflop_per_s", "threads"),
        {n: 1 / rate for n, rate in best("million_barriers_per_s", "threads").items()},
    )


def limit(
    weights: int, batch: int, limits: Limits, threads: int, partition: str
) -> dict[str, Any]:
    """Of a step of a pass, where so many threads divide the work so; µs.

    Args:
      weights: how many w_hh has.
      batch: rows that are multiplied by them.
      limits: the machine's.
      threads: how many there are.
      partition: "hidden" or "batch", as `prnn_jax.explain` has it.
    """
    thread_bytes = 4 * weights / (threads if partition == "hidden" else 1)
    gb_per_s = limits.bandwidth(threads, thread_bytes)
    reading = threads * thread_bytes / gb_per_s / 1e3
    arithmetic = 2 * weights * batch / limits.float32_gflops[threads] / 1e3
    times = {"reading": reading, "arithmetic": arithmetic}
    if partition == "hidden" and threads > 1:
        after_it = (1 - 1 / threads) * max(times.values())
        times["barrier"] = limits.barrier_us[threads] + after_it
    bound = max(times, key=lambda name: times[name])
    return {
        "threads": threads,
        "partition": partition,
        "thread_bytes": thread_bytes,
        "read_gb_per_s": gb_per_s,
        **{f"{name}_us": time for name, time in times.items()},
        "bound": bound,
        "step_us": times[bound],
    }


def machine_limit(weights: int, batch: int, limits: Limits) -> dict[str, Any]:
    """The least of all plans: by how many threads, and how they divide it."""
    plans = [
        limit(weights, batch, limits, threads, partition)
        for threads in limits.float32_gflops
        for partition in ("hidden", "batch")
        if partition == "hidden" or batch >= threads
    ]
    return min(plans, key=lambda plan: plan["step_us"])


def layer_us(
    weights: int, batch: int, limits: Limits, *, trains: bool, projects: bool
) -> float:
    """Of a step of a layer whose input is as wide as it is, by the whole machine.

    Each pass of the recurrence, and at the peak of multiply-adds every product that can
    be made of all steps at once: the projection, and the gradients of its input, of
    its weights and of w_hh. All have as many multiply-adds as a step of the recurrence.
    """
    step_us = machine_limit(weights, batch, limits)["step_us"]
    product_us = 2 * weights * batch / max(limits.float32_gflops.values()) / 1e3
    products = (1 if projects else 0) + (1 + 2 * projects if trains else 0)
    return (2 if trains else 1) * step_us + products * product_us
