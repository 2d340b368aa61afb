"""The CPU engine's C++ by itself: threads under sanitizers, and object files."""

import re
import shutil
import subprocess
from pathlib import Path

import jax
import pytest
from made_once import made_once, ran_once, sources

ROOT = Path(__file__).parent.parent
COMPILER = shutil.which("c++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler, c++")

# 12 pools each, from none that is late to 8 threads on however few cores there are.
ROUNDS = 3


def compile_cxx(*args: str | Path, compiler: str | None = COMPILER) -> None:
    """Compiles with the language and paths of the build; warnings are errors."""
    done = run(
        compiler,
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT}",
        f"-I{ROOT}/tests",
        *args,
    )
    assert done.returncode == 0, done.stderr


def built(name: str, *args: str | Path, compiler: str | None = COMPILER) -> Path:
    """What these options and sources make, a program or an object file."""

    def make(path: Path) -> None:
        compile_cxx(*args, "-o", path, compiler=compiler)

    read = sources(*(arg for arg in args if isinstance(arg, Path)))
    return made_once(name, read, (compiler, *args), make)


def run(*args: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        args, capture_output=True, text=True, timeout=2700, check=False
    )


def require_sanitizer(flag: str, folder: Path) -> None:
    """Skips where the compiler lacks a sanitizer's library, or it does not run here."""
    source, program = folder / "empty.cc", folder / "empty"
    source.write_text("int main() {}\n")
    built = run(COMPILER, flag, source, "-o", program)
    if built.returncode != 0:
        pytest.skip(f"{COMPILER} has no {flag}")
    ran = run(program)
    if ran.returncode != 0:
        pytest.skip(f"{flag} does not run on this system: {ran.stderr[:200]}")


def checks_as_calls(folder: Path) -> tuple[str, ...]:
    """Options for AddressSanitizer: cpu/isa.cc compiles in a third of the time."""
    options = "--param", "asan-instrumentation-with-call-threshold=0"
    source = folder / "known.cc"
    source.write_text("int main() {}\n")
    known = run(COMPILER, *options, "-c", source, "-o", folder / "known.o")
    return options if known.returncode == 0 else ()


# Also in a child of a fork: ThreadSanitizer refuses to look at one, AddressSanitizer's
# allocator (before LLVM 18) never releases a lock that a worker held at the fork.
@pytest.mark.parametrize(
    ("sanitizer", "argument"),
    [
        ("thread", str(ROUNDS)),
        ("address,undefined", str(ROUNDS)),
        ("undefined", "fork"),
    ],
)
def test_threads_are_free_of_races(sanitizer, argument, tmp_path, monkeypatch):
    flag = f"-fsanitize={sanitizer}"
    require_sanitizer(flag, tmp_path)
    parts = [ROOT / "tests/native/check_threads.cc"]
    parts += [ROOT / f"cpu/{name}.cc" for name in ("threads", "workers")]
    options = "-O1", "-g", "-pthread", flag, "-fno-sanitize-recover=all"
    program = built("check_threads", *options, *parts)
    monkeypatch.setenv("PRNN_CPU_WORKERS", "3")
    ran = run(program, argument)
    report = f"{ran.stdout}\n{ran.stderr}"
    assert ran.returncode == 0, report
    assert ran.stdout == "ok\n", report
    assert ran.stderr == "", report


def test_a_gpu_does_not_wait_for_what_another_one_prepares():
    parts = [ROOT / "tests/native/check_device_locks.cc"]
    parts += [ROOT / f"cuda/{name}.cc" for name in ("planner", "devices")]
    options = "-O0", "-pthread", "-isystem", jax.ffi.include_dir()
    ran = run(built("check_device_locks", *options, *parts))
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr


PLAN = "describe", "machine", "machines", "planner", "rates"
ENGINE = (
    ROOT / "tests/native/check_engine.cc",
    *(
        ROOT / f"cpu/{name}.cc"
        for name in (
            *("isa", "run", "stages", "prepacked", "matrix_product", "elementwise"),
            *("dispatch", "environment", "threads"),
            *(f"plan/{name}" for name in PLAN),
        )
    ),
)
# What takes least, compiling and running.
SOON = "-Og", "-DPRNN_HD=inline", "-g", "-pthread"


def thorough(sanitizer: str):
    return pytest.param(sanitizer, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    "sanitizer", ["", thorough("thread"), thorough("address,undefined")]
)
def test_engine_keeps_to_its_buffers(sanitizer, tmp_path, monkeypatch):
    """The portable engine; tests/test_isa.py runs the others, without sanitizers."""
    if not is_x86():
        pytest.skip("the portable engine is not this processor's")
    flags: tuple[str, ...] = ()
    if sanitizer:
        flags = f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"
        require_sanitizer(flags[0], tmp_path)
    # ThreadSanitizer minds every function.
    options = (*SOON, *flags)
    if sanitizer == "thread":
        options = "-O1", "-g", "-pthread", *flags
    if "address" in sanitizer:
        options += checks_as_calls(tmp_path)
    program = built("check_engine", *options, "-DPRNN_ISA=portable", *ENGINE)
    for arguments in ((), ("ways",)):
        ran = ran_once(program, *arguments, timeout_s=2700)
        report = f"{ran.stdout}\n{ran.stderr}"
        assert ran.returncode == 0, report
        assert ran.stdout == "ok portable\n", report
        assert ran.stderr == "", report


@pytest.mark.thorough
@pytest.mark.parametrize("isa", ["neon_bf16", "neon"])
def test_engine_on_arm(isa, monkeypatch):
    """Emulated: processors of the present have the former, older ones the latter."""
    compiler, machine = "aarch64-linux-gnu-g++", "qemu-aarch64"
    for program in (compiler, machine):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    of_bf16 = "-DPRNN_ISA=neon_bf16", "-march=armv8.2-a+bf16", "-c"
    products = ROOT / "cpu/dot_product.cc"
    dot = built("arm_dot.o", *SOON, *of_bf16, products, compiler=compiler)
    parts = "-DPRNN_ISA=neon", "-static", *ENGINE, dot
    program = built("arm_check_engine", *SOON, *parts, compiler=compiler)
    monkeypatch.setenv("PRNN_CPU_ISA", isa)
    ran = run(machine, "-cpu", "max", program)
    assert (ran.returncode, ran.stdout) == (0, f"ok {isa}\n"), ran.stderr


def is_x86() -> bool:
    """Whether that is what the compiler compiles for."""
    return run(COMPILER, "-dumpmachine").stdout.startswith("x86_64")


def build_options(variable: str) -> list[str]:
    """The compiler options that a `set` of CMakeLists.txt holds."""
    text = (ROOT / "CMakeLists.txt").read_text()
    (options,) = re.findall(rf"set\({variable} ([^)]*)\)", text)
    return options.split()


@pytest.mark.parametrize(
    ("isa", "source", "table", "more"),
    [
        ("avx512", "isa", "kIsa", ()),
        ("avx512_bf16", "dot_product", "kDotProducts", ("-mavx512bf16",)),
        (
            *("amx_bf16", "tile_product", "kTileProducts"),
            ("-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        ),
    ],
)
def test_an_instruction_set_shares_no_code_with_others(isa, source, table, more):
    """Every function of cpu/isa.cc's object files has the instruction set in its name.

    A linker keeps one of all equal inline functions. Were it one that was compiled for
    AVX-512, older processors would stop at it.
    """
    if not is_x86():
        pytest.skip("cpu/isa.cc is compiled once only for this processor")
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    options = [*build_options("_engine_options"), *build_options("_isa_options_avx512")]
    # With less optimization fewer functions are inlined: more are there to be seen.
    options += ["-Og", *more]
    hidden = "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"
    options += [*hidden, f"-DPRNN_ISA={isa}", "-c", ROOT / f"cpu/{source}.cc"]
    compiled = built(f"{source}.o", *options)
    listed = run("nm", "--demangle", "--defined-only", "--extern-only", compiled)
    names = [line.split(maxsplit=2)[2] for line in listed.stdout.splitlines()]
    assert f"prnn::{isa}::{table}" in names
    assert [name for name in names if f"prnn::{isa}::" not in name] == []
