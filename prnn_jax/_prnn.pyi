# The compiled module, ffi/module.cc.
from typing import Any

import numpy as np
from numpy.typing import NDArray

def ffi_api_version() -> tuple[int, int]: ...
def cpu_targets() -> dict[str, dict[str, Any]]: ...
def cpu_plan(
    cell: str,
    time: int,
    batch: int,
    groups: int,
    hidden: int,
    backward: bool,
    threads: int,
) -> dict[str, Any]: ...
def has_isa(name: str, /) -> bool: ...
def sigmoid(isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /) -> None: ...
def tanh(isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /) -> None: ...
