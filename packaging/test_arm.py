"""Runs the aarch64 wheel of dist/ on an emulated processor and checks its results.

    python packaging/test_arm.py [--dist FOLDER]

For Debian on x86-64, with qemu-user, and packages of the other processor:

    dpkg --add-architecture arm64 && apt-get update && apt-get install qemu-user

Python comes from Debian, JAX and the rest from wheels, the version of JAX being that of
the Python that runs this, which has prnn_jax and pytest installed, too: the emulated
one computes, this one compares, as tests/test_isa.py and test_half_numbers.py do.
"""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build/arm"
ISAS = "neon_bf16", "neon"

#: Of Debian 12: Python 3.11 and what it and the wheels load.
DEBIAN = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6", "libcrypt1", "zlib1g", "libexpat1"),
    *("libffi8", "libssl3", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1"),
)
WHEELS = "numpy", "scipy", "ml_dtypes", "opt_einsum", "pytest"

#: A layer and its gradients in each dtype, weights of 8 bits, all to files.
COMPUTE = """
import sys
isa, folder = sys.argv[1:]
import prnn_jax
plan = prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1)
assert plan.instruction_set == isa, plan
import numpy as np, test_half_numbers, test_isa, test_prepare_int8
test_isa.save_results(f"{folder}/isa.npz")
test_half_numbers.save_results(f"{folder}/half.npz")
for dtype in test_half_numbers.DTYPES:
    np.testing.assert_array_equal(*test_half_numbers.rounding_of(dtype))
for case, dtype in zip(test_prepare_int8.CASES, ("float32", "bfloat16") * 9):
    arrays = test_prepare_int8.prepared(case, case.inputs(dtype), batch=1, time=20)
    test_prepare_int8.assert_follows(case, case.forward()(arrays), arrays)
"""


def main() -> None:
    """Both instruction sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    (wheel,) = parser.parse_args().dist.glob("prnn_jax-*-cp311-*aarch64.whl")
    python, site = machine(), site_packages()
    zipfile.ZipFile(wheel).extractall(site)
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest  # noqa: F401  (its flags)
    import test_half_numbers
    import test_isa

    for isa in ISAS:
        folder = WORK / isa
        folder.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join((str(site), str(ROOT / "tests")))
        variables = {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "PRNN_CPU_ISA": isa}
        emulated = [*python, "-c", COMPUTE, isa, str(folder)]
        subprocess.run(emulated, env=os.environ | variables, cwd=folder, check=True)
        test_isa.check_results(str(folder / "isa.npz"))
        test_half_numbers.check_results(str(folder / "half.npz"))
        print(f"{wheel.name}: {isa}", flush=True)


def machine() -> list[str]:
    """The command of a Python for aarch64."""
    root = WORK / "root"
    python = root / "usr/bin/python3.11"
    if not python.exists():
        packages = WORK / "debian"
        packages.mkdir(parents=True, exist_ok=True)
        names = [f"{name}:arm64" for name in DEBIAN]
        subprocess.run(["apt-get", "download", "-q", *names], cwd=packages, check=True)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, root], check=True)
    return ["qemu-aarch64", "-cpu", "max", "-L", str(root), str(python)]


def site_packages() -> Path:
    """A folder of packages for it."""
    site, wheels = WORK / "site", WORK / "wheels"
    if not (site / "jax").exists():
        of_glibc = (f"manylinux_2_{minor}_aarch64" for minor in (17, 27, 28))
        systems = *of_glibc, "manylinux2014_aarch64"
        versions = (f"{n}=={importlib.metadata.version(n)}" for n in ("jax", "jaxlib"))
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--only-binary", ":all:", "--python-version", "3.11"),
                *("--implementation", "cp", "--abi", "cp311", "--abi", "abi3"),
                *("--abi", "none", "--dest", str(wheels)),
                *(f"--platform={system}" for system in systems),
                *(*versions, *WHEELS),
            ],
            check=True,
        )
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
    return site


if __name__ == "__main__":
    if platform.machine() == "aarch64":
        raise SystemExit("this processor needs no emulation: run the tests")
    main()
