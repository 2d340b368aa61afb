# The compiled module, ffi/module.cc.
from typing import Any

import numpy as np
from numpy.typing import NDArray

def ffi_api_version() -> tuple[int, int]: ...
def cpu_targets() -> dict[str, dict[str, Any]]: ...
def environment_error() -> str: ...
def cpu_plan(
    cell: str,
    time: int,
    batch: int,
    groups: int,
    hidden: int,
    output: int,
    backward: bool,
    threads: int,
    dtype: str = "float32",
    input_size: int = 0,
    processor: str = "",
    cache_bytes: int = -1,
    shared_cache_bytes: int = -1,
) -> dict[str, Any]: ...
def cpu_workspace_floats(
    cell: str,
    dtype: str,
    time: int,
    batch: int,
    groups: int,
    hidden: int,
    output: int,
    backward: bool,
    has_mask: bool,
    input_size: int,
) -> int: ...
def cpu_prepacked_words(
    cell: str,
    dtype: str,
    groups: int,
    hidden: int,
    output: int,
    input_size: int,
    int8: bool,
) -> int: ...
def products_workspace_floats(
    dtype: str,
    products: list[tuple[bool, int, int, int, int]],
) -> int: ...
def cuda_elementwise_plan(
    value_bytes: int,
    rows: int,
    steps: int,
    width: int,
    constant: bool,
    linear: bool,
    device: str | dict[str, Any],
) -> dict[str, Any]: ...
def cuda_workspace_bytes(
    cell: str,
    dtype: str,
    time: int,
    batch: int,
    groups: int,
    hidden: int,
    backward: bool,
    has_lengths: bool,
    is_reversed: bool,
    changes_input: bool,
    is_stack: bool = False,
) -> int: ...
def instruction_set() -> str: ...
def sums_pairs() -> bool: ...
def cpu_workers() -> int: ...
def has_own_threads() -> bool: ...
def cpu_quota(root: str = "") -> float | None: ...
def cpu_rates() -> dict[str, float]: ...
def known_processors() -> list[tuple[str, int, str]]: ...
def has_isa(name: str, /) -> bool: ...
def sigmoid(isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /) -> None: ...
def tanh(isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /) -> None: ...
def log_sigmoid(
    isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /
) -> None: ...
def exp(isa: str, x: NDArray[np.float32], out: NDArray[np.float32], /) -> None: ...
def cuda_plan(
    cell: str,
    pass_: str,
    number: str,
    time: int,
    batch: int,
    groups: int,
    hidden: int,
    device: str | dict[str, Any],
    max_sms: int = 0,
    is_stack: bool = False,
) -> dict[str, Any]: ...
def cuda_largest_hidden(
    cell: str,
    pass_: str,
    number: str,
    device: str | dict[str, Any],
    max_sms: int = 0,
) -> int: ...
def recorded_devices() -> list[str]: ...
def recorded_device(name: str) -> dict[str, Any]: ...
def estimated_device(
    name: str, compute_capability: int, sms: int, shared_bytes: int = 0
) -> dict[str, Any]: ...
