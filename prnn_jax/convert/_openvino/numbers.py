"""The numbers in OpenVINO's files."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from prnn_jax.convert._onnx.making import must

#: By OpenVINO's name.
_DTYPES: dict[str, Any] = {
    **{f"f{n}": np.dtype(f"f{n // 8}") for n in (16, 32, 64)},
    **{
        f"{sign}{n}": np.dtype(f"{sign}{n // 8}")
        for n in (8, 16, 32, 64)
        for sign in "iu"
    },
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "boolean": np.dtype(np.bool_),
}
#: Of four bits two are in a byte.
_HALVES = {"i4": True, "u4": False}


def numbers(data: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """What bytes stand for: floats in 32 bits, but for 64; integers in 64; truths.

    None of another kind.

    Raises:
      ValueError: they are not as many.
    """
    must(min(shape, default=0) >= 0, f"a constant is of sizes {list(shape)}")
    count = math.prod(shape)
    if kind in _HALVES:
        needed = (count + 1) // 2
    elif kind in _DTYPES:
        needed = count * _DTYPES[kind].itemsize
    else:
        return None
    must(needed <= len(data), f"{list(shape)} of {kind} in {len(data)} bytes")
    data = np.asarray(data[:needed])
    if kind in _HALVES:
        # The lower half comes first; shifts of signed bytes keep the sign.
        data = data.view(np.int8 if _HALVES[kind] else np.uint8)
        made = np.stack([np.left_shift(data, 4) >> 4, data >> 4], -1).ravel()[:count]
    else:
        made = data.view(_DTYPES[kind])
    return as_number(made.reshape(shape))


def as_number(value: np.ndarray) -> np.ndarray:
    """As graphs of ONNX have it here."""
    if value.dtype in (np.bool_, np.float64):
        return value
    is_integer = np.issubdtype(value.dtype, np.integer)
    return value.astype(np.int64 if is_integer else np.float32)
