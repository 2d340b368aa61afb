"""Cycles of a step, by its parts, from the machine code: issue stalls and waits.

`python cuda/step_time.py MODULE` prints a table of all kernels; `--record` writes what
`tests/test_cuda_code.py` allows no kernel to exceed. A turn of the loop over
time is walked as a plain call takes it, instruction by instruction: each has a stall
count, sets scoreboards that are clear when its result is there, and waits for some
(ptxas schedules with these, from sm_70 on). Latencies are those of LATENCIES; values of
other blocks are there when they are first looked at, so that what an exchange adds is
not in it. Compiled and modelled, not measured.

The walk takes the branches with most of what a step is for (matrix products,
transcendental functions, what is published, what is fetched for the next step), and of
those the shortest: what lengths, resets, masks and zoneout need is left out.

Needs what machine_code.py needs.
"""

import argparse
import functools
import itertools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loops import LOAD, Instruction
from machine_code import CodeError, Kernel, read

RECORD = Path(__file__).with_name("step_cycles.json")

#: Cycles until a result is there, by opcode. Others with a scoreboard: OTHER.
LATENCIES = {
    r"LDG\S*STRONG": 290,  # from L2
    r"LDG": 600,  # from memory
    r"LDS": 31,
    r"MUFU": 22,
    r"SHFL": 24,
    r"S2R|S2UR|LDC": 28,
    r"STG|STS|STAS|CCTL": 12,
    r"SYNCS": 40,
}
OTHER = 20
OPERANDS = 12  # until they have been read
BARRIER = 25  # BAR, when all warps have come

#: A part of a step ends with the last of these; in order.
PARTS = {
    "start": None,  # all before the first look at values of other blocks
    "arrive": None,  # all before the first product
    "product": r"HMMA",
    "reduce": r"BAR\.",
    "cell": r"MUFU",
    "publish": r"STG\S*STRONG|STAS|STS",
    "rest": r"",
}
ARRIVAL = r"LDG\S*STRONG|SYNCS|LDS"

#: What a walk wants to pass, and how much.
WANTED = {
    r"HMMA": 100,
    r"MUFU|LDG\S*STRONG|STG\S*STRONG|STAS": 20,
    r"STS": 5,
}
PREFETCH = 10


@dataclass(frozen=True)
class Control:
    """How an instruction is scheduled."""

    stall: int
    result: int  # scoreboard that its result clears; 7: none
    operands: int  # that is clear when its operands have been read
    waits: tuple[int, ...]

    @classmethod
    def of(cls, i: Instruction) -> "Control":
        """From the upper bits of its code."""
        bits = i.control
        waits = tuple(n for n in range(6) if bits >> 52 + n & 1)
        return cls(bits >> 41 & 15, bits >> 46 & 7, bits >> 49 & 7, waits)


@functools.cache
def latency(opcode: str) -> int:
    """Until its scoreboards are clear."""
    return next((n for p, n in LATENCIES.items() if re.match(p, opcode)), OTHER)


# ---- the walk ------------------------------------------------------------------------


def walk(kernel: Kernel) -> list[Instruction]:
    """The instructions of a turn, in order."""
    code = {i.address: i for i in kernel.instructions}
    graph = kernel.graph
    begin = graph.entry(kernel.loop)
    edges = {a: [b for b in graph.edges[a] if b in kernel.loop] for a in kernel.loop}
    order = _without_cycles(edges, begin)
    again = graph.inner_loops(kernel.loop)  # polls after the first look
    streamed = _of_shared_weights(kernel)
    fetched = _prefetches(code, edges, begin)

    def worth(at: int) -> float:
        opcode = code[at].opcode
        wanted = next((n for p, n in WANTED.items() if re.match(p, opcode)), 0)
        wanted = PREFETCH if at in fetched else wanted
        return (-1 if at in streamed else 0 if at in again else wanted) - 0.01

    best: dict[int, float] = {}
    after: dict[int, int] = {}
    for at in reversed(order):
        ways = [(best[b], b) for b in edges[at] if b != begin and b in best]
        if begin in edges[at]:
            ways.append((0.0, begin))
        if ways:
            value, after[at] = max(ways)
            best[at] = value + worth(at)
    path, at = [], begin
    while at != begin or not path:
        path.append(code[at])
        at = after[at]
    return path


def _without_cycles(edges: dict[int, list[int]], begin: int) -> list[int]:
    """All that is reached, each before what follows it; `edges` loses ways back."""
    order: list[int] = []
    seen, open_ = {begin}, {begin}
    todo = [(begin, iter(list(edges[begin])))]
    while todo:
        at, rest = todo[-1]
        for to in rest:
            if to in open_ and to != begin:
                edges[at].remove(to)
            elif to not in seen:
                seen.add(to)
                open_.add(to)
                todo.append((to, iter(list(edges[to]))))
                break
        else:
            todo.pop()
            open_.discard(at)
            order.append(at)
    return order[::-1]


def _of_shared_weights(kernel: Kernel) -> set[int]:
    """Products of weights that were read from shared memory just before."""
    weights = re.compile(r"HMMA\S* R\d+, R(\d+)")
    found, writer = set(), {}  # by register, in the order of addresses
    for i in kernel.instructions:
        if i.address not in kernel.loop:
            continue
        match = weights.match(i.text)
        if match and writer.get(int(match[1]), "").startswith("LDS"):
            found.add(i.address)
        writer |= dict.fromkeys(i.registers[1], i.opcode)
    return found


def _prefetches(
    code: dict[int, Instruction], edges: dict[int, list[int]], begin: int
) -> set[int]:
    """Loads of the next step's: nothing reads them in this one."""
    found = set()
    for at in edges:
        if not LOAD.match(code[at].opcode):
            continue
        registers, todo, seen = code[at].registers[1], list(edges[at]), set()
        is_read = False
        while todo and not is_read:
            here = todo.pop()
            if here in seen or here == begin:
                continue
            seen.add(here)
            is_read = bool(code[here].registers[0] & registers)
            todo += edges[here]
        if not is_read:
            found.add(at)
    return found


# ---- its time ------------------------------------------------------------------------


def times(path: Sequence[Instruction]) -> list[int]:
    """When each instruction of a turn issues, and the next turn's first; in cycles.

    Of the second of two turns, which finds what the first one has fetched.
    """
    now, clear, issued = 0, [0] * 8, []
    last = max(n for n, i in enumerate(path) if i.opcode.startswith("HMMA"))
    for _ in range(2):
        issued = []
        for n, i in enumerate(path):
            control = Control.of(i)
            now = max([now, *(clear[board] for board in control.waits)])
            issued.append(now)
            clear[control.operands] = max(clear[control.operands], now + OPERANDS)
            # A load of the cell's step that may be left out belongs to a control.
            is_left_out = n > last and i.predicate and LOAD.match(i.opcode)
            if not is_left_out:
                known = now + latency(i.opcode)
                clear[control.result] = max(clear[control.result], known)
            now += max(control.stall, 1)
            if i.opcode.startswith("BAR."):
                now += BARRIER
    return [*(t - issued[0] for t in issued), now - issued[0]]


def parts(kernel: Kernel) -> dict[str, int]:
    """Cycles of each part of a step, and of all."""
    path = walk(kernel)
    when = times(path)
    products = [n for n, i in enumerate(path) if i.opcode.startswith("HMMA")]
    first = products[0]
    looks = (n for n in range(first) if re.match(ARRIVAL, path[n].opcode))
    ends = [next(looks, first), first]
    for pattern in list(PARTS.values())[2:-1]:
        found = [
            n + 1
            for n in range(ends[-1], len(path))
            if re.match(pattern or "", path[n].opcode)
        ]
        # The barrier after the products is the first one; of others, the last counts.
        at = found[0] if pattern == PARTS["reduce"] and found else (found or ends)[-1]
        ends.append(max(at, ends[-1]))
    marks = [0, *(when[n] for n in ends), when[-1]]
    spans = [b - a for a, b in itertools.pairwise(marks)]
    return {**dict(zip(PARTS, spans, strict=True)), "all": when[-1]}


def is_timed(kernel: Kernel) -> bool:
    """Whether a step takes the time of its instructions: streamed weights do not."""
    return kernel.is_recurrence and not kernel.is_streamed


def title(kernel: Kernel) -> str:
    """A kernel's name with its architecture."""
    return f"{kernel.architecture} {kernel.name}"


# ---- report --------------------------------------------------------------------------


def markdown(kernels: Iterable[Kernel]) -> str:
    """A table, in cycles."""
    header = ["kernel", *PARTS, "all"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for kernel in kernels:
        cycles = parts(kernel)
        lines.append([f"`{kernel.name}`", *map(str, cycles.values())])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="a module or cubin")
    parser.add_argument("--only", default="", help="kernels whose name matches this")
    parser.add_argument("--record", metavar="NVCC", help="into RECORD, by this nvcc")
    options = parser.parse_args(arguments)
    try:
        kernels = [
            k
            for k in read(options.file)
            if is_timed(k) and re.search(options.only, title(k))
        ]
    except (CodeError, OSError) as error:
        print(f"step_time: {error}", file=sys.stderr)
        return 2
    print(markdown(kernels))
    if options.record:
        found = {title(k): parts(k)["all"] for k in kernels}
        text = json.dumps({"nvcc": options.record, "cycles": found}, indent=1)
        RECORD.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
