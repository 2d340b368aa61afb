"""The engine's kernels as nvcc compiles them: their PTX, interpreted on the emulator,
gives the bits that their sources give there (tests/native/check_ptx.cc).

One number format and architecture by default; the others: `pytest -m sweep`. What the
interpreter cannot show: tests/ptx_interpreter/README.md.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from emulator.build import ROOT, TIMEOUT_S, build, compiled, run
from made_once import made_once, ran_once, sources

NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc")
SOURCE = ROOT / "tests/native/check_ptx.cc"
NUMBERS = {"bf16": "kBfloat16", "f16": "kFloat16", "tf32": "kTf32", "f32": "kFloat32"}
SMALL = "*-H? *-H??"
WITHOUT_CLUSTERS = "*-grid*-H? *-grid*-H?? *-block*-H? *-block*-H??"

pytestmark = pytest.mark.skipif(NVCC is None, reason="needs nvcc (CUDA 12.8 or later)")
INTERPRETER = ROOT / "tests/ptx_interpreter"
#: Calls of these reach a program's own, and none is worked out by the compiler.
OWN_MATH = tuple(f"-fno-builtin-{name}" for name in ("expf", "tanhf", "log1pf"))


def ptx(source: Path, architecture: str, *options: str) -> Path:
    """As the build compiles it (CMakeLists.txt)."""
    options = "-std=c++20", "-O3", f"-arch=compute_{architecture}", *options, "-ptx"

    def make(text: Path) -> None:
        done = run(NVCC, *options, f"-I{ROOT}", source, "-o", text)
        assert done.returncode == 0, done.stderr

    return made_once("kernels.ptx", sources(source), (NVCC, *options), make)


def kernels(architecture: str, number: str) -> Path:
    number = f"-DPRNN_NUMBER={NUMBERS[number]}"
    return ptx(ROOT / "cuda/instances.cu", architecture, number)


def math() -> Path:
    return ptx(INTERPRETER / "math.cu", "80")


def check(number: str) -> Path:
    """The program with all instances of a number format."""
    options = "-O1", "-g0", f'-DPRNN_COMPILED="*-{number}-*"', *OWN_MATH
    paths = *(ROOT / f"cuda/{name}.cc" for name in ("planner", "devices")), SOURCE
    interpreter = compiled(INTERPRETER, "plain")
    return build("plain", "check_ptx", *options, *paths, interpreter)


def result(number: str, text: Path, cases: str) -> tuple[bool, str]:
    """(All bits are equal, what it says.)"""
    options = text, math(), f"cases={cases}"
    done = ran_once(check(number), *options, timeout_s=TIMEOUT_S)
    return done.returncode == 0, done.stdout + done.stderr


def ran(report: str) -> set[str]:
    """Names of kernels; both activations of the RNN are one, and all kinds of norms."""
    names = re.findall(r"^ran (\S+) \d+$", report, re.MULTILINE)
    names = [re.sub("^rnn_(tanh|relu)", "rnn", name) for name in names]
    return {re.sub("^(normed_[a-z]+)_(sum|gate)-", r"\1-", name) for name in names}


def sweep(*arguments: str):
    return pytest.param(*arguments, marks=pytest.mark.sweep)


@pytest.mark.parametrize(
    ("architecture", "number", "cases"),
    [
        ("90a", "bf16", "*-all-* *-T3-B3-*"),
        sweep("90a", "bf16", SMALL),
        sweep("90a", "f16", SMALL),
        sweep("90a", "tf32", SMALL),
        sweep("90a", "f32", SMALL),
        sweep("80", "bf16", WITHOUT_CLUSTERS),
        sweep("80", "f16", WITHOUT_CLUSTERS),
        sweep("80", "tf32", WITHOUT_CLUSTERS),
        sweep("80", "f32", WITHOUT_CLUSTERS),
    ],
)
def test_equals_the_sources(architecture, number, cases):
    """Every kernel of the architecture has run, and given the same bits."""
    text = kernels(architecture, number)
    equal, report = result(number, text, cases)
    assert equal, report
    exchanges = re.findall(r"\.entry \S+recurrence\S+ExchangeE(\d)E", text.read_text())
    empty = exchanges.count("1") if architecture == "80" else 0  # it has no clusters
    assert len(ran(report)) == len(exchanges) - empty > 0


def test_elementwise_kernels_equal_the_sources():
    """Of recurrences without a product in a step: every kernel has run."""
    text = ptx(ROOT / "cuda/elementwise.cu", "90a")
    source = ROOT / "tests/native/check_elementwise_ptx.cc"
    planner = (ROOT / f"cuda/{name}.cc" for name in ("elementwise_plan", "devices"))
    interpreter = compiled(INTERPRETER, "plain")
    options = "-O1", "-g0", *OWN_MATH, *planner
    program = build("plain", "check_elementwise_ptx", *options, source, interpreter)
    done = ran_once(program, text, math(), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    ran, of_all = re.search(r"(\d+) of (\d+) kernels", done.stdout).groups()
    assert ran == of_all
    assert int(ran) > 10


def test_functions_are_as_exact_as_documented():
    """CUDA Programming Guide: expf and log1pf within 1 spacing, tanhf within 2."""
    _, report = result("bf16", kernels("90a", "bf16"), "none")
    exp, tanh, log1p = map(float, re.search(r"errors (.+)", report)[1].split())
    assert 0 < exp <= 1
    assert 0 < tanh <= 2
    assert 0 < log1p <= 1


# ---- a mistake of the compiler or of a wrapper would be noticed ----------------------

DIFFERS = r"result \d differs at "


@dataclass(frozen=True)
class Mistake:
    exchange: str
    old: str  # wherever it matches in the kernel
    new: str
    report: str


MISTAKES = {
    "operands of mma": Mistake(
        "grid", r"(mma\S+ {.*?}, {%r\d+,)(%r\d+),(%r\d+)", r"\1\3,\2", DIFFERS
    ),
    "accumulator of mma": Mistake(
        "block", r"(mma\S+ {)(%f\d+),(%f\d+)", r"\1\3,\2", DIFFERS
    ),
    "halves of a pair": Mistake(
        "grid",
        r"(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+)",
        r"\1, \3, \2",
        DIFFERS,
    ),
    "halves of a granule": Mistake(
        "grid", r"mov\.b64 ({%r\d+, %r\d+}), a; mov", r"mov.b64 \1, b; mov", DIFFERS
    ),
    "order of a store": Mistake(
        "cluster",
        r"(st\.async\S+ \[%r\d+\], ){(%r\d+), (%r\d+)}",
        r"\1{\3, \2}",
        DIFFERS,
    ),
    "another lane": Mistake(
        "block", r"(mov\.u32\s+%r\d+), 1;(?=(\n.*){1,6}shfl)", r"\1, 4;", DIFFERS
    ),
    "another mbarrier": Mistake(
        "cluster",
        r"(st\.async.*, )\[(%r\d+)\];",
        r"\1[1040];",
        "the mbarrier does not lie in block",
    ),
    "no fence": Mistake(
        "cluster", r"fence\.mbarrier_init\S+;", "", "lacks fence.mbarrier_init"
    ),
    "divergent barrier of the cluster": Mistake(
        "cluster",
        r"barrier\.cluster\.arrive",
        r".reg .pred q; setp.ne.u32 q, %tid.x, 3; @q \g<0>",
        "(divergence|deadlock)",
    ),
    "divergent barrier": Mistake(
        "block",
        r"bar\.sync\s+0;",
        ".reg .pred q; setp.eq.u32 q, %tid.x, 3; @!q bar.sync 0;",
        "(divergence|deadlock)",
    ),
    "divergent mma": Mistake(
        "grid",
        r"mma\S+ ",
        r".reg .pred q; setp.ne.u32 q, %tid.x, 3; @q \g<0>",
        "(divergence|deadlock)",
    ),
    "undefined register": Mistake(
        "grid",
        r"(cvt\.rn\.bf16x2\S+ )%r\d+",
        r"\1%r9999",
        "nothing has been written to",
    ),
    "outside of shared memory": Mistake(
        "block",
        r"(ld\.shared\.v4\S+\s+{.*}, \[%r\d+)\+?(-?\d*)",
        r"\1+999936",
        "not in the block",
    ),
    "unknown instruction": Mistake(
        "block", r"bar\.sync", "bar.red.popc.u32", "the interpreter has no bar.red"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_noticed(name, tmp_path):
    mistake = MISTAKES[name]
    exchange = ("block", "cluster", "grid").index(mistake.exchange)
    original = kernels("90a", "bf16").read_text()
    start = re.search(
        rf"\.entry \S+recurrenceINS_11ForwardPassINS_4LstmE\S+ExchangeE{exchange}E",
        original,
    ).start()
    end = original.index("\n}\n", start)
    kernel, count = re.subn(mistake.old, mistake.new, original[start:end])
    assert count > 0, f"the kernel lacks {mistake.old}"
    text = tmp_path / "kernels.ptx"
    text.write_text(original[:start] + kernel + original[end:])
    case = f"lstm-forward-bf16-{mistake.exchange}*-T3-B3-*"
    equal, report = result("bf16", text, case)
    assert not equal
    assert re.search(mistake.report, report), report
