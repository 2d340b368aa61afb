"""The compiled module: import, registration of its targets with XLA."""

import importlib.metadata
import pathlib
import re

import jax


def _import_native():
    """The compiled module, if XLA will accept it; registers its targets."""
    try:
        from prnn_jax import _prnn
    except ImportError as error:
        raise ImportError(
            "prnn_jax: the compiled module prnn_jax/_prnn is missing or cannot be "
            "loaded. Install the package (`pip install .` in its repository) instead "
            "of importing it from the source folder."
        ) from error
    header = pathlib.Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    version = re.compile(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)")
    numbers = version.findall(header.read_text())
    runtime = tuple(int(number) for number in numbers)
    check_api_version(_prnn.ffi_api_version(), runtime)
    if wrong := _prnn.environment_error():
        raise ValueError(wrong)
    for name, stages in _prnn.cpu_targets().items():
        jax.ffi.register_ffi_target(name, stages, platform="cpu")
    for name, stages in _prnn.cuda_targets().items():
        # Whether XLA may capture one in a CUDA graph, the handler itself tells.
        jax.ffi.register_ffi_target(name, stages, platform="CUDA")
    return _prnn


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


native = _import_native()
