"""Looks for what makes a kernel slow in its machine code.

`python cuda/lint.py FILE...` takes modules or cubins, prints a table, and ends with
status 1 where a kernel breaks a rule. The loop over time is what counts: in it nothing
may be in local memory (spilled registers), nothing may wait for all of memory (MEMBAR),
and the matrix products must be there, and what is fetched for the next step is not used
before this step's.

Needs what machine_code.py needs.
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import machine_code
import step_time
from machine_code import COUNTED, CodeError, Kernel

MOST_REGISTERS = 255


def violations(kernel: Kernel, minimum_hmma: int | None = None) -> list[str]:
    """The rules that a kernel breaks, in words."""
    found = []
    registers = kernel.resources.registers
    if registers > MOST_REGISTERS:
        found.append(f"{registers} registers, at most {MOST_REGISTERS} are allowed")
    if not kernel.is_recurrence:
        return found
    if any(i.opcode.startswith("BRX") for i in kernel.instructions):
        found.append("an indirect branch: its loops cannot be told")
    if not kernel.loop:
        return [*found, "no loop: where is the one over time?"]

    def inside(what: str) -> int:
        return kernel.count(what, inside=True)

    if inside("local"):
        found.append(f"{inside('local')} accesses to local memory in the loop")
    if inside("generic"):
        found.append(f"{inside('generic')} generic loads or stores in the loop")
    if inside("MEMBAR"):
        found.append(f"{inside('MEMBAR')} MEMBAR in the loop")
    # An mbarrier's wait on other blocks drops what is cached; nothing else need do so.
    if inside("CCTL") and kernel.exchange != "cluster":
        found.append(f"{inside('CCTL')} CCTL in the loop")
    least = kernel.expected_hmma if minimum_hmma is None else minimum_hmma
    if inside("HMMA") < least:
        found.append(f"{inside('HMMA')} HMMA in the loop, at least {least} expected")
    # nvcc once took the weights of one k block for those of all.
    if kernel.multiplied_fragments < kernel.resident_fragments:
        found.append(
            f"weights from {kernel.multiplied_fragments} registers in the loop, "
            f"{kernel.resident_fragments} expected"
        )
    # Streamed weights are split into parts before they are multiplied. And where layer
    # norm is of c, the product waits for the c that a reset brings: at that step alone.
    resets = kernel.name.count("NormedUnitBackwardPass<NormedLstm>")
    early = [] if kernel.is_streamed else kernel.awaited_prefetches
    if len(early) > resets:
        found.append(f"{len(early)} prefetched values used at once: {early[0]}")
    needed = {"grid": ("strong LDG", "strong STG"), "cluster": ("STAS",)}
    for what in needed.get(kernel.exchange or "", ()):
        if not inside(what):
            found.append(f"no {what} in the loop of a {kernel.exchange} exchange")
    return found


# ---- report --------------------------------------------------------------------------


def summary(kernel: Kernel, minimum_hmma: int | None = None) -> dict:
    """A kernel's entry in the JSON."""
    return {
        "kernel": kernel.name,
        "architecture": kernel.architecture,
        "symbol": kernel.symbol,
        **dataclasses.asdict(kernel.resources),
        "instructions": len(kernel.instructions),
        "recurrence": kernel.is_recurrence,
        "exchange": kernel.exchange,
        "cycles": step_time.parts(kernel)["all"]
        if kernel.loop and step_time.is_timed(kernel)
        else None,
        "loop_instructions": len(kernel.loop),
        "in_loop": {what: kernel.count(what, inside=True) for what in COUNTED},
        "outside": {what: kernel.count(what, inside=False) for what in COUNTED},
        "violations": violations(kernel, minimum_hmma),
    }


def summaries(
    path: Path, minimum_hmma: int | None = None, only: str = ""
) -> list[dict]:
    """Of all kernels of a file whose names match `only`: a process per architecture.

    Raises:
      CodeError: it has none, or cannot be read.
    """
    architectures = machine_code.architectures(path)
    if not architectures:
        raise CodeError(f"{path}: no kernels in it")
    given = itertools.repeat(path), itertools.repeat(minimum_hmma)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), spawned) as pool:
        found = pool.map(_summaries, architectures, *given, itertools.repeat(only))
        return list(itertools.chain(*found))


def _summaries(
    architecture: str, path: Path, minimum_hmma: int | None, only: str
) -> list[dict]:
    kernels = machine_code.each(path, architecture)
    chosen = (kernel for kernel in kernels if re.search(only, kernel.name))
    found = [summary(kernel, minimum_hmma) for kernel in chosen]
    return sorted(found, key=lambda entry: entry["kernel"])


def markdown(entries: Iterable[dict]) -> str:
    """A table of the recurrence kernels; local memory as in the loop + outside."""
    header = ["kernel", "registers", "stack", "loop", "HMMA", "local"]
    shown = "MEMBAR", "CCTL", "strong LDG", "strong STG", "STAS", "BAR"
    header += shown
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    for e in entries:
        if not e["recurrence"]:
            continue
        inside, outside = e["in_loop"], e["outside"]
        rows.append(
            [
                f"`{e['kernel']}`",
                str(e["registers"]),
                str(e["stack"]),
                str(e["loop_instructions"]),
                str(inside["HMMA"]),
                f"{inside['local']} + {outside['local']}",
                *(str(inside[what]) for what in shown),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="+", help="modules or cubins")
    parser.add_argument(
        "--hmma", type=int, help="least number in the loop; default: by the tile's name"
    )
    parser.add_argument("--only", default="", help="kernels whose name matches this")
    parser.add_argument("--json", type=Path, help="write all that was found here")
    options = parser.parse_args(arguments)
    entries = []
    try:
        for path in options.files:
            found = summaries(path, options.hmma, options.only)
            entries += [{"file": path.name, **entry} for entry in found]
    except (CodeError, OSError) as error:
        print(f"lint: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(entries, indent=1) + "\n")
    print(markdown(entries))
    others = sum(not entry["recurrence"] for entry in entries)
    print(f"\n{len(entries) - others} recurrence kernels, {others} others")
    broken = [(e["kernel"], text) for e in entries for text in e["violations"]]
    for name, text in broken:
        print(f"lint: {name}: {text}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
