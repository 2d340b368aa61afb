"""Where instructions go next: loops, and what a turn of one waits for on its way."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """One instruction: where it is, its predicate ("" if none), and the rest.

    `control` are the upper 64 bits of its code, which say how it is scheduled.
    """

    address: int
    predicate: str
    text: str
    control: int = 0

    @functools.cached_property
    def opcode(self) -> str:
        """With modifiers: `BAR.SYNC.DEFER_BLOCKING`."""
        return self.text.split(maxsplit=1)[0]

    @functools.cached_property
    def registers(self) -> tuple[frozenset[int], frozenset[int]]:
        """General ones: those it reads, and those it writes."""
        operands = self.text[len(self.opcode) :].split(",")
        first = re.fullmatch(r" *R(\d+)(?:\.\w+)* *", operands[0])
        writes = first is not None and not self.opcode.startswith(("ST", "RED"))
        written = _run(int(first[1]), self.opcode) if first and writes else ()
        read = [
            int(number) + more
            for operand in operands[writes:]
            for number, wide in re.findall(r"\bR(\d+)((?:\.\w+)*)", operand)
            for more in range(2 if ".64" in wide else 1)
        ]
        return frozenset(read), frozenset(written)

    @property
    def target(self) -> int | None:
        """Where a branch or call goes."""
        numbers = re.findall(r"\b0x[0-9a-f]+\b", self.text)
        return int(numbers[-1], 16) if numbers else None


def _run(first: int, opcode: str) -> range:
    """Of a load: a vector is in registers side by side."""
    words = next((n for tag, n in ((".128", 4), (".64", 2)) if tag in opcode), 1)
    return range(first, first + words)


@dataclass(frozen=True)
class Graph:
    """Where each instruction goes next, and which subroutines are called where.

    Loops are taken from it rather than from addresses: the compiler moves what is
    rarely executed out of line.
    """

    edges: dict[int, list[int]]
    calls: dict[int, int]

    @classmethod
    def of(cls, instructions: Sequence[Instruction]) -> "Graph":
        """Of a kernel's instructions, in the order of their addresses."""
        addresses = [i.address for i in instructions]
        after = dict(itertools.pairwise(addresses))
        edges: dict[int, list[int]] = {}
        calls: dict[int, int] = {}
        joins: dict[str, int] = {}  # by barrier register: where its BSYNC goes on
        for i in instructions:
            kind = i.opcode.split(".")[0]
            next_ = [after[i.address]] if i.address in after else []
            # `@P0 BRA 0x10`, and `BRA !P0, 0x10`, `BRA.DIV UR4, 0x10`
            conditional = i.predicate != "" or (kind == "BRA" and "," in i.text)
            if kind in ("BRA", "BRX", "JMP"):
                taken = [] if i.target is None else [i.target]
                next_ = taken + (next_ if conditional else [])
            elif kind in ("EXIT", "RET", "KILL") or i.opcode.startswith("BPT.TRAP"):
                next_ = next_ if conditional else []
            elif kind == "CALL" and i.target is not None:
                calls[i.address] = i.target
            elif kind == "BSSY" and i.target is not None:
                joins[i.text.split()[1].rstrip(",")] = i.target
            elif kind == "BSYNC" and i.text.split()[1] in joins:
                next_ = [*next_, joins[i.text.split()[1]]]
            edges[i.address] = next_
        known = set(addresses)
        edges = {a: [b for b in next_ if b in known] for a, next_ in edges.items()}
        # A call of what never returns is a jump; so nvcc leaves a divergent branch.
        returns = {i.address for i in instructions if i.opcode.startswith("RET")}
        returning = _leads_to(returns, edges)
        for at, to in calls.items():
            if to in known and to not in returning:
                edges[at] = [*edges[at], to]
        subroutines = {at: to for at, to in calls.items() if to in returning}
        return cls(edges, subroutines)

    def entry(self, loop: frozenset[int]) -> int:
        """Where a loop begins: what is come to from outside of it, or its first."""
        entries = {
            b for a, to in self.edges.items() if a not in loop for b in to
        } & loop
        return min(entries or loop)

    def loop_around(
        self, wanted: set[int], needed: set[int] | None = None
    ) -> frozenset[int]:
        """The innermost loop with most of `wanted`, with the subroutines it calls.

        Where no loop has any, the largest. Of `needed` it has at least one.
        """

        def rank(loop: set[int]) -> tuple[int, int]:
            return len(loop & wanted), len(loop)

        loops = [set(p) for p in _strongly_connected(self.edges) if len(p) > 1]
        if not loops:
            return frozenset()
        loop = max(loops, key=rank)
        while loop & wanted:
            # Without the ways back to its beginning, what still goes round is inside.
            rest = loop - {self.entry(frozenset(loop))}
            within = {a: [b for b in self.edges[a] if b in rest] for a in loop}
            inner = [set(p) for p in _strongly_connected(within) if len(p) > 1]
            best = max(inner, key=rank, default=set())
            if 2 * len(best & wanted) <= len(loop & wanted):
                break
            if needed is not None and not best & needed:
                break
            loop = best
        return frozenset(loop) | self._called_from(loop)

    def inner_loops(self, loop: frozenset[int]) -> set[int]:
        """What is passed more than once in a turn of a loop."""
        rest = loop - {self.entry(loop)}
        within = {a: [b for b in self.edges[a] if b in rest] for a in rest}
        found = (p for p in _strongly_connected(within) if len(p) > 1)
        return {at for part in found for at in part}

    def _called_from(self, loop: set[int]) -> frozenset[int]:
        seen, todo = set(), [self.calls[a] for a in loop if a in self.calls]
        while todo:
            at = todo.pop()
            if at in seen or at not in self.edges:
                continue
            seen.add(at)
            todo += self.edges[at]
            todo += [self.calls[at]] if at in self.calls else []
        return frozenset(seen)


def _strongly_connected(edges: dict[int, list[int]]) -> Iterator[list[int]]:
    """Tarjan's algorithm, with a stack of its own: kernels have long paths."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for start in edges:
        if start in number:
            continue
        todo = [(start, iter(edges[start]))]
        number[start] = lowest[start] = len(number)
        path.append(start)
        on_path.add(start)
        while todo:
            at, rest = todo[-1]
            for to in rest:
                if to not in number:
                    number[to] = lowest[to] = len(number)
                    path.append(to)
                    on_path.add(to)
                    todo.append((to, iter(edges[to])))
                    break
                if to in on_path:
                    lowest[at] = min(lowest[at], number[to])
            else:
                todo.pop()
                if todo:
                    lowest[todo[-1][0]] = min(lowest[todo[-1][0]], lowest[at])
                if lowest[at] == number[at]:
                    part = []
                    while not part or part[-1] != at:
                        part.append(path.pop())
                        on_path.discard(part[-1])
                    yield part


# ---- waiting for memory --------------------------------------------------------------

LOAD = re.compile(r"LDG(?!\S*STRONG)")  # of what is there already
COMPARISON = re.compile(r"ISETP")


def used_too_soon(
    instructions: Sequence[Instruction],
    graph: Graph,
    loop: frozenset[int],
    goal: str,
) -> list[tuple[Instruction, Instruction]]:
    """Loads of a turn that something reads on the way to its first `goal`.

    Each with its reader. The hardware waits there, and what comes after waits with it.
    Left out are loads that are compared first: lengths, which tell what else to load.
    """
    code = {i.address: i for i in instructions}
    begin = graph.entry(loop)
    ends = {a for a in loop if re.match(goal, code[a].opcode)}
    on_the_way = _leads_to(ends, {a: graph.edges[a] for a in loop}, begin) - ends
    pending = {begin: frozenset[tuple[int, int]]()}  # (register, its load) by address
    todo, found = [begin], set()
    while todo:
        at = todo.pop()
        if at not in on_the_way:
            continue
        here, now = code[at], pending[at]
        read, written = here.registers
        if not COMPARISON.match(here.opcode):
            found |= {(load, at) for register, load in now if register in read}
        now = {(r, load) for r, load in now if r not in read and r not in written}
        if LOAD.match(here.opcode):
            now |= {(register, at) for register in written}
        for after in graph.edges[at]:
            joined = pending.get(after, frozenset()) | now
            if after != begin and joined != pending.get(after):
                pending[after] = joined
                todo.append(after)
    return [(code[load], code[reader]) for load, reader in sorted(found)]


def _leads_to(
    ends: set[int], edges: dict[int, list[int]], begin: int | None = None
) -> frozenset[int]:
    """From where there is a way to one of `ends` that does not come to `begin`."""
    before: dict[int, list[int]] = {}
    for at, to in edges.items():
        for after in to:
            if after != begin:
                before.setdefault(after, []).append(at)
    seen, todo = set(ends), [*ends]
    while todo:
        for at in before.get(todo.pop(), ()):
            if at not in seen:
                seen.add(at)
                todo.append(at)
    return frozenset(seen)
