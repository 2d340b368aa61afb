"""Files of safetensors.

Eight bytes say how long the JSON after them is, which says where in the rest each
tensor lies.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

#: By the name that the format has for them. Others are bytes here.
_DTYPES = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"BOOL": "bool", "C64": "complex64"},
}


def read_safetensors(path: Path, op: str) -> dict[str, np.ndarray]:
    """The arrays of a file, which are read from it as they are used."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{op}: {path} needs the package safetensors: pip install safetensors."
        ) from error
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="numpy"):
            pass  # it is whole
    except SafetensorError as error:
        raise ValueError(
            f"{op}: {path} must be a file of safetensors: {error}"
        ) from error
    content = np.memmap(path, np.uint8, "r")
    header, start = _header(content)
    arrays: dict[str, np.ndarray] = {}
    for key, tensor in header.items():
        first, end = (start + offset for offset in tensor["data_offsets"])
        array = np.asarray(content[first:end])
        if tensor["dtype"] in _DTYPES:
            dtype = jnp.dtype(_DTYPES[tensor["dtype"]])
            array = array.view(dtype).reshape(tensor["shape"])
        arrays[key] = array
    return arrays


def write_safetensors(path: Path, to: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The file with other bytes in the places of some tensors."""
    content = bytearray(path.read_bytes())
    header, start = _header(np.frombuffer(content, np.uint8))
    for key, array in arrays.items():
        first, end = (start + offset for offset in header[key]["data_offsets"])
        content[first:end] = array.tobytes()
    to.write_bytes(content)


def _header(content: np.ndarray) -> tuple[dict[str, Any], int]:
    """What is said of each tensor, and where their bytes begin."""
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:start].tobytes())
    header.pop("__metadata__", None)
    return header, start
