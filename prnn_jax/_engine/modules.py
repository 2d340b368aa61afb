"""The compiled modules: import, registration of their targets with XLA.

`_prnn` has the CPU engine and the planners. A pure-Python installation, for systems
without a wheel, lacks it: there everything runs by `lax.scan`. `_prnn_cuda` has the
CUDA engine; it comes with a build that found nvcc, or in the package `prnn_jax_cuda13`.
"""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import platform
import re
import warnings
from typing import TYPE_CHECKING, Any

import jax

#: Where the CUDA engine may be.
CUDA_PACKAGES = "prnn_jax", "prnn_jax_cuda13"


#: The package's folder, and the one that it is in.
PACKAGE = pathlib.Path(__file__).parents[1]
FOLDER = PACKAGE.parent


class NoModule:
    """Stands for `_prnn` where there is none: no targets, no devices on record."""

    reason = (
        "this installation is pure Python, without the compiled module prnn_jax/_prnn "
        f"(here: {platform.system()}, {platform.machine()}); "
    ) + (
        f"Python has found the source folder {FOLDER}: pip install -e . in it builds "
        "the module"
        if (FOLDER / "CMakeLists.txt").exists()
        else "on Linux a wheel has it, and where there is a C++20 compiler pip install "
        "of the source builds it (without PRNN_NATIVE=OFF)"
    )

    def cpu_targets(self) -> dict[str, dict[str, Any]]:
        return {}

    def recorded_devices(self) -> list[str]:
        return []

    def instruction_set(self) -> str:
        return ""

    def sums_pairs(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"prnn_jax: no {name}: {self.reason}.")


def _module(name: str) -> Any:
    """A compiled module; None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
    except ImportError as error:
        raise ImportError(
            f"prnn_jax: the compiled module {name} is there, but cannot be loaded "
            f"({error}). Install the package for this Python and this system: "
            "pip install --force-reinstall prnn_jax."
        ) from error


def _import_native():
    """The compiled module, if XLA will accept it; registers its targets."""
    module = _module("prnn_jax._prnn")
    if module is None:
        if hidden := _hidden():
            warnings.warn(
                f"prnn_jax: Python has found the source folder {FOLDER}, without a "
                f"compiled module, before the installation {hidden}, which has one: "
                "calls run by lax.scan. Start Python in another folder, or make this "
                "one the installation: pip install -e .",
                RuntimeWarning,
                stacklevel=2,
            )
        return NoModule()
    check_api_version(module.ffi_api_version(), _runtime_version())
    if wrong := module.environment_error():
        raise ValueError(wrong)
    for name, stages in module.cpu_targets().items():
        jax.ffi.register_ffi_target(name, stages, platform="cpu")
    return module


def _hidden() -> pathlib.Path | None:
    """An installed package with a compiled module, where this is another one."""
    try:
        files = importlib.metadata.files("prnn_jax") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    listed = {str(file): file for file in files}
    for name, file in listed.items():
        folder = pathlib.Path(str(file.locate())).parent
        if (
            re.fullmatch(r"prnn_jax/_prnn\..*so", name)
            and "prnn_jax/__init__.py" in listed  # not so where it is editable
            and folder.resolve() != PACKAGE.resolve()
        ):
            return folder
    return None


def _import_cuda() -> Any:
    """The CUDA engine's module, None where there is none; registers its targets."""
    for package in CUDA_PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        if package != "prnn_jax":
            if importlib.util.find_spec(f"{package}._prnn_cuda") is None:
                continue  # a source folder, without what is compiled
            check_same_version(package)
        module = _module(f"{package}._prnn_cuda")
        if module is not None:
            check_api_version(module.ffi_api_version(), _runtime_version())
            for name, stages in module.cuda_targets().items():
                # Whether XLA may capture one in a CUDA graph, the handler itself tells.
                jax.ffi.register_ffi_target(name, stages, platform="CUDA")
            return module
    return None


def _runtime_version() -> tuple[int, ...]:
    """Of XLA's FFI, as the installed jaxlib has it."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    version = re.compile(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)")
    return tuple(int(number) for number in version.findall(header.read_text()))


def check_api_version(built: tuple[int, ...], runtime: tuple[int, ...]) -> None:
    """Raises where XLA would refuse the module, and with it every backend."""
    if built[0] != runtime[0] or built > runtime:
        jaxlib = importlib.metadata.version("jaxlib")
        raise ImportError(
            f"prnn_jax was compiled for XLA FFI API {built[0]}.{built[1]}, but jaxlib "
            f"{jaxlib} offers {runtime[0]}.{runtime[1]}. Build it against "
            "this jaxlib: pip install --no-build-isolation --force-reinstall prnn_jax "
            "(needs scikit-build-core and nanobind), or upgrade jax."
        )


def check_same_version(package: str) -> None:
    """Raises where `package` is not of this one's version: calls would not fit."""
    ours = importlib.metadata.version("prnn_jax")
    theirs = importlib.metadata.version(package)
    if ours != theirs:
        raise ImportError(
            f"{package} must be of prnn_jax's version, {ours}, got {theirs}: "
            f'pip install "{package}=={ours}", or uninstall {package}.'
        )


if TYPE_CHECKING:
    from types import ModuleType

    from prnn_jax import _prnn as native

    cuda: ModuleType | None  # prnn_jax/_prnn_cuda.pyi
else:
    native = _import_native()
    cuda = None if isinstance(native, NoModule) else _import_cuda()

#: Why there is no compiled module; empty where there is one.
missing: str = NoModule.reason if isinstance(native, NoModule) else ""
