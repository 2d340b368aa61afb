"""Kernels as they are in machine code: instructions, the loop over time, names.

Needs cuobjdump and nvdisasm: those beside nvcc, or of the packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

import collections
import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loops import Graph, Instruction, used_too_soon

#: What is counted: column title, and the instructions that belong to it.
COUNTED = {
    "HMMA": r"HMMA",
    "local": r"LDL|STL",
    "generic": r"(LD|ST)\.",  # through pointers to any kind of memory
    "MEMBAR": r"MEMBAR|ERRBAR",
    "CCTL": r"CCTL\.(?!E\.PF)",  # without prefetches
    "strong LDG": r"LDG\S*\.STRONG\.GPU",
    "strong STG": r"STG\S*\.STRONG\.GPU",
    "STAS": r"STAS",
    "BAR": r"BAR\.SYNC|BAR\.RED",
}


class CodeError(Exception):
    """A file that cannot be looked at."""


@functools.cache
def _kinds(opcode: str) -> tuple[str, ...]:
    return tuple(what for what, p in COUNTED.items() if re.match(p, opcode))


# ---- kernels -------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, the last three in bytes. `shared` is the static part."""

    registers: int
    stack: int
    shared: int
    local: int


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is in a file."""

    architecture: str
    symbol: str
    resources: Resources
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def name(self) -> str:
        """For readers: without namespaces, arguments, and numbers of enumerators."""
        return readable(self.symbol)

    @functools.cached_property
    def loop(self) -> frozenset[int]:
        """Addresses of the instructions in the loop over time; empty if none.

        It is the innermost loop with most of the matrix products: loops inside of it
        have some of them, and one around it takes job after job. Of a streamed tile
        it is that over panels, around the one over k blocks.
        """

        def of(opcode: str) -> set[int]:
            return {i.address for i in self.instructions if i.opcode.startswith(opcode)}

        return self.graph.loop_around(
            of("HMMA"), of("BAR.") if self.is_streamed else None
        )

    @functools.cached_property
    def graph(self) -> Graph:
        """Where its instructions go next."""
        return Graph.of(self.instructions)

    @functools.cached_property
    def awaited_prefetches(self) -> list[str]:
        """What reads a value that a turn fetches for the next, before its products."""
        pairs = used_too_soon(self.instructions, self.graph, self.loop, "HMMA")
        return [f"{load.text}: {reader.text}" for load, reader in pairs]

    def count(self, what: str, *, inside: bool) -> int:
        """How many of the instructions `what`, of COUNTED, are in the loop or not."""
        return self._counts[what, inside]

    @functools.cached_property
    def _counts(self) -> collections.Counter[tuple[str, bool]]:
        return collections.Counter(
            (what, i.address in self.loop)
            for i in self.instructions
            for what in _kinds(i.opcode)
        )

    @property
    def is_recurrence(self) -> bool:
        """Whether it has matrix products: all others are not on the way of a step."""
        return any(i.opcode.startswith("HMMA") for i in self.instructions)

    @property
    def exchange(self) -> str | None:
        """How its blocks exchange values, where the name tells: "grid", "cluster"..."""
        found = re.search(r"\b(grid|cluster|block)\b", self.name, re.IGNORECASE)
        return found[1].lower() if found else None

    @property
    def expected_hmma(self) -> int:
        """Products of the weights that are in registers, by the tile in the name.

        Its numbers begin with tiles of rows, k blocks in registers, and tiles of the
        batch. Two products for each.
        """
        m_tiles, register_blocks, n_tiles = self.tile
        parts = 3 if re.search(r"\bfloat32\b", self.name) else 1  # as sums of TF32
        return max(1, 2 * parts * m_tiles * register_blocks * n_tiles)

    @property
    def tile(self) -> tuple[int, int, int]:
        """Tiles of rows, k blocks in registers, tiles of the batch; or zeros."""
        found = re.search(r"\b(\d+), (\d+), (\d+), \d+(?:, \d+)*[>}]", self.name)
        return tuple(map(int, found.groups())) if found else (0, 0, 0)

    @property
    def is_streamed(self) -> bool:
        """Whether its tile has no weights in registers."""
        m_tiles, register_blocks, _ = self.tile
        return m_tiles > 0 and register_blocks == 0

    @property
    def resident_fragments(self) -> int:
        """Of the weights, 4 registers each, that stay from step to step.

        None are counted for float32, which are split into parts before each product.
        """
        m_tiles, register_blocks, _ = self.tile
        is_split = re.search(r"\bfloat32\b", self.name)
        return 0 if is_split else 2 * m_tiles * register_blocks

    @property
    def multiplied_fragments(self) -> int:
        """Different registers that the loop's matrix products take their rows from."""
        operands = re.compile(r"HMMA\S* R\d+, (R\d+)")
        found = (
            operands.match(i.text) for i in self.instructions if i.address in self.loop
        )
        return len({match[1] for match in found if match})


# ---- names ---------------------------------------------------------------------------

#: Cells that are of a template, by the names that core/cells.h gives them.
_CELLS = {
    "GruOf<UsualActivations>": "Gru",
    "GruOf<ClippedActivations>": "GeneralGru",
    "GeneralLstmOf<ClippedActivations>": "GeneralLstm",
    "GruResetBeforeOf<ClippedActivations>": "GruResetBefore",
    "Rnn<BoundedActivation>": "GeneralRnn",
}


def readable(symbol: str) -> str:
    """`void prnn::k<(prnn::Exchange)2, 3>(prnn::Params)` becomes `k<grid, 3>`."""
    name = demangled(symbol)
    name = name.removeprefix("void ").replace("prnn::", "")
    name = name.replace("(anonymous namespace)::", "")
    for template, known in _CELLS.items():
        name = name.replace(template, known)
    # Memory has the format that is multiplied, which is named beside it.
    name = re.sub(r", UnitIo<[^<>]*>, \w+", "", name)
    # Kernels for plain calls alone are the rule; others take controls, too.
    name = re.sub(r", ShapeOf<int, true> ?", "", name)
    name = re.sub(r", ShapeOf<long, false> ?", ", controls", name)
    name = re.sub(r"\(([A-Za-z_]\w*)\)(\d+)", _enumerator, name)
    depth = 0
    for n, c in enumerate(name):  # cut the arguments, which follow the template's
        depth += (c in "<{") - (c in ">}")
        if c == "(" and depth == 0:
            return name[:n]
    return name


def demangled(symbol: str) -> str:
    """The C++ name, by the C++ library that the Python process has anyway."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return symbol
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return symbol
    try:
        return ctypes.string_at(address).decode()
    finally:
        free = ctypes.CDLL(None).free
        free(ctypes.c_void_p(address))


def _enumerator(cast: re.Match) -> str:
    names = _enumerators().get(cast[1], ())
    number = int(cast[2])
    return names[number] if number < len(names) else cast[0]


@functools.cache
def _enumerators() -> dict[str, tuple[str, ...]]:
    """`{"Exchange": ("block", "cluster", "grid")}`, from the headers' enumerations."""
    found = {}
    root = Path(__file__).parent.parent
    for header in sorted([*root.glob("core/*.h"), *root.glob("cuda/*.h")]):
        for name, names in re.findall(
            r"enum class (\w+)[^{;]*\{([^}=]*)\}", header.read_text()
        ):
            split = [re.sub(r"//.*", "", n).strip() for n in names.split(",")]
            found[name] = tuple(
                n[1:2].lower() + n[2:] if re.match(r"k[A-Z]", n) else n
                for n in split
                if n
            )
    return found


# ---- files ---------------------------------------------------------------------------


def read(path: Path) -> list[Kernel]:
    """All kernels in a module or cubin, in the order of their names.

    Raises:
      CodeError: there are none, or no cuobjdump.
    """
    kernels = list(each(path))
    if not kernels:
        raise CodeError(f"{path}: no kernels in it")
    return sorted(kernels, key=lambda k: (k.architecture, k.name))


def each(path: Path, architecture: str = "") -> Iterator[Kernel]:
    """One kernel after the other, of one architecture if it is given.

    A module's instructions are millions: who keeps none of its kernels saves gigabytes.

    Raises:
      CodeError: the file cannot be read, or there is no cuobjdump.
    """
    resources = parse_resources("".join(_cuobjdump("-res-usage", path)))
    only = ("-arch", architecture) if architecture else ()
    for (of, symbol), instructions in parse_sass(_cuobjdump("-sass", path, *only)):
        if (of, symbol) in resources:
            yield Kernel(of, symbol, resources[of, symbol], instructions)


def architectures(path: Path) -> list[str]:
    """Those that a module has machine code for; [""] of a cubin, which does not say."""
    text = "".join(_cuobjdump("-res-usage", path))
    return sorted({architecture for architecture, _ in parse_resources(text)})


def parse_resources(text: str) -> dict[tuple[str, str], Resources]:
    """Of `cuobjdump -res-usage`, by architecture and symbol."""
    found, architecture, symbol = {}, "", ""
    for line in text.splitlines():
        if arch := re.match(r"arch = (\S+)", line):
            architecture = arch[1]
        elif function := re.match(r" *Function (\S+):", line):
            symbol = function[1]
        elif re.match(r" *REG:", line):
            number = {key: int(n) for key, n in re.findall(r"(\w+):(\d+)", line)}
            found[architecture, symbol] = Resources(
                number["REG"],
                number.get("STACK", 0),
                number.get("SHARED", 0),
                number.get("LOCAL", 0),
            )
    return found


#: An instruction's address, predicate and text, or the second half of its code.
_LINE = re.compile(
    r"\s*/\*(?:([0-9a-f]{4,})\*/\s+(?:\{ *)?(@!?U?P\w+ +)?([^;]*[^; ]) *;"
    r"| 0x([0-9a-f]{16}) \*/)"
)


def parse_sass(
    lines: Iterable[str],
) -> Iterator[tuple[tuple[str, str], tuple[Instruction, ...]]]:
    """Of `cuobjdump -sass`: architecture and symbol, and a function's instructions."""
    architecture, key, codes = "", None, []
    for line in lines:  # millions, most of the first kind
        if key is not None and (code := _LINE.match(line)):
            if code[1]:
                predicate = (code[2] or "").strip()
                predicate = "" if predicate in ("@PT", "@UPT") else predicate
                codes.append([int(code[1], 16), predicate, code[3], 0])
            elif codes:
                codes[-1][3] = int(code[4], 16)
        elif arch := re.match(r"arch = (\S+)", line):
            architecture = arch[1]
        elif function := re.match(r"\s*Function : (\S+)", line):
            if key is not None:
                yield key, tuple(Instruction(*code) for code in codes)
            key, codes = (architecture, function[1]), []
    if key is not None:
        yield key, tuple(Instruction(*code) for code in codes)


def _cuobjdump(option: str, path: Path, *more: str) -> Iterator[str]:
    """The lines that it prints, as they come."""
    program = find_tool("cuobjdump")
    if program is None or find_tool("nvdisasm") is None:
        raise CodeError(
            "cuobjdump or nvdisasm is not installed: "
            "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    folders = [str(Path(tool).parent) for tool in (program, find_tool("nvdisasm"))]
    environment = os.environ | {
        "PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")])
    }
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [program, option, *more, str(path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as running,
    ):
        yield from running.stdout
        if running.wait() != 0:
            errors.seek(0)
            raise CodeError(f"{path}: {errors.read().strip()[:300]}")


@functools.cache
def find_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, beside nvcc, or from a package."""
    if found := shutil.which(name):
        return found
    named = (os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH"))
    folders = [Path(folder) / "bin" for folder in named if folder]
    folders.append(Path("/usr/local/cuda/bin"))
    for site in map(Path, sys.path):
        folders += sorted((site / "nvidia").glob("*/bin"), reverse=True)
        folders.append(site / "triton/backends/nvidia/bin")
    return next(
        (str(f / name) for f in folders if os.access(f / name, os.X_OK)),
        None,
    )
