"""Recurrent layers of RNNoise, and of what else of Xiph has its format of weights."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.imported import Imported, joined
from prnn_jax.convert._shared.layouts import Layout

_OP = "import_rnnoise"
_LAYOUT = Layout("gru", ("w_ih",), ("w_hh",), ("b_ih",), bias_hh=("b_hh",), order="zrn")
#: Before an array: four letters, version, type, bytes, bytes with padding, name.
_HEADER = struct.Struct("<4s4i44s")
_MAGIC = b"DNNw"
_NOTHING = b"", 0, -1, 0, 0, b""
_DTYPES = {0: np.float32, 1: np.int32, 2: np.int8, 3: np.int8}
#: A block of weights: outputs by inputs.
_ROWS, _COLUMNS = 8, 4
#: What an input of ±1 is when it meets weights of 8 bits.
_ONE = 127.0


def import_rnnoise(
    model: Any,
    name: str | Sequence[str] | None = None,
    *,
    input_size: int | None = None,
) -> Imported:
    """A network of GRUs from weights in the format of RNNoise, which Opus has, too.

        net = prnn_jax.convert.import_rnnoise(
            "weights_blob.bin", ["gru1", "gru2", "gru3"]
        )
        y, states = net(x)

    Per step, with z, r and n as in `prnn_jax.gru` with reset_after, it computes what
    the C code does, which approximates σ and tanh to some 1e-3. Weights may be dense or
    sparse, in float32 or 8 bits, with a diagonal of their own; here all become dense
    float32. Where a file has both, the floats count, as in the C code. What 8-bit
    weights multiply is not rounded to 8 bits here.

    Args:
      model: the path of a file of weights (RNNoise's `weights_blob.bin`), its bytes, or
        its arrays by name: of a layer "gru1", `gru1_input_bias` `[3*hidden]`,
        `gru1_input_weights_float` or `_weights_int8` with `_scale`, `_weights_idx` if
        sparse, the same with `recurrent`, and `gru1_recurrent_weights_diag`, all flat.
      name: which layer, where there are several. A sequence of names: the layers of a
        network.
      input_size: of the first layer, if its weights are sparse and its last inputs have
        none; otherwise they tell.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: it is no such file; there is no GRU, or several and `name` says none
        of them; arrays are missing or do not fit together. Says which.
      FileNotFoundError: there is no such file.

    Source: Valin, "A Hybrid DSP/Deep Learning Approach to Real-Time Full-Band Speech
    Enhancement", MMSP 2018.
    """
    arrays = _arrays_of(model)
    ends = "_recurrent_bias"
    found = [key.removesuffix(ends) for key in arrays if key.endswith(ends)]
    listed = ", ".join(map(repr, found))
    check(
        len(found) > 0,
        f"{_OP}: the model must have a GRU, of arrays such as gru1{ends}; it has none.",
    )
    check(
        name is not None or len(found) == 1,
        f"{_OP}: name must say which layer is meant, one of {listed}.",
    )
    names = found if name is None else [name] if isinstance(name, str) else list(name)
    layers = []
    for one in names:
        check(one in found, f"{_OP}: name must be of {listed}, got {one!r}.")
        layers.append(_layer(arrays, one, input_size))
        input_size = layers[-1].layers[0].w_hh.shape[0]
    return joined(_OP, layers)


def _layer(arrays: Mapping[str, Any], name: str, input_size: int | None) -> Imported:
    b_ih = _array(arrays, f"{name}_input_bias")
    b_hh = _array(arrays, f"{name}_recurrent_bias", len(b_ih))
    hidden, rest = divmod(len(b_hh), 3)
    check(
        rest == 0,
        f"{_OP}: {name}_recurrent_bias must be [3*hidden], got [{len(b_hh)}].",
    )
    w_ih = _matrix(arrays, f"{name}_input", input_size, 3 * hidden)
    w_hh = _matrix(arrays, f"{name}_recurrent", hidden, 3 * hidden)
    if f"{name}_recurrent_weights_diag" in arrays:
        diagonal = _array(arrays, f"{name}_recurrent_weights_diag", 3 * hidden)
        units = np.arange(hidden)
        w_hh.reshape(hidden, 3, hidden)[units, :, units] += diagonal.reshape(3, -1).T
    given = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    return Imported(
        layers=(named_arrays.read(_OP, _LAYOUT, given),), cell="gru", name=name
    )


def _matrix(
    arrays: Mapping[str, Any], of: str, inputs: int | None, outputs: int
) -> np.ndarray:
    """Weights `[inputs, outputs]`."""
    floats, bytes_, index = (f"{of}_weights_{n}" for n in ("float", "int8", "idx"))
    name = floats if floats in arrays else bytes_
    check(name in arrays, f"{_OP}: {floats} or {bytes_} must be there, and neither is.")
    values = _array(arrays, name)
    if index in arrays:
        rows, columns = _blocks(index, _array(arrays, index), outputs)
        inputs = inputs or int(columns.max(initial=0)) + _COLUMNS
        check(
            bool(np.all((columns >= 0) & (columns <= inputs - _COLUMNS))),
            f"{_OP}: {index} must have places of inputs below {inputs}.",
        )
    else:
        inputs = inputs or len(values) // outputs
        every = np.mgrid[0:outputs:_ROWS, 0:inputs:_COLUMNS]
        rows, columns = every.reshape(2, -1)
    if name == floats and index not in arrays:
        return _array(arrays, name, inputs * outputs).reshape(inputs, outputs)
    values = _array(arrays, name, len(rows) * _ROWS * _COLUMNS).astype(np.float32)
    if name == floats:
        blocks = values.reshape(-1, _COLUMNS, _ROWS)
    else:
        blocks = values.reshape(-1, _ROWS, _COLUMNS).swapaxes(1, 2)
    matrix = np.zeros((inputs, outputs), np.float32)
    row, column = rows[:, None, None], columns[:, None, None]
    matrix[column + np.arange(_COLUMNS)[:, None], row + np.arange(_ROWS)] = blocks
    return (
        matrix
        if name == floats
        else matrix * _ONE * _array(arrays, f"{of}_scale", outputs)
    )


def _blocks(
    name: str, index: np.ndarray, outputs: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first output and the first input of each block of sparse weights."""
    rows, columns, at = [], [], 0
    for row in range(0, outputs, _ROWS):
        count = int(index[at]) if at < len(index) else -1
        check(
            0 <= count < len(index) - at,
            f"{_OP}: {name} must have, for each {_ROWS} of {outputs} outputs, a number "
            "of blocks and as many places of inputs.",
        )
        rows += [row] * count
        columns += [*index[at + 1 : at + 1 + count]]
        at += 1 + count
    return np.array(rows, int), np.array(columns, int)


# ---- where arrays are ----------------------------------------------------------------


def _array(arrays: Mapping[str, Any], name: str, size: int | None = None) -> np.ndarray:
    check(name in arrays, f"{_OP}: {name} must be there, and is not.")
    array = np.array(arrays[name])
    wanted = "flat" if size is None else f"[{size}]"
    check(
        array.ndim == 1 and size in (None, len(array)),
        f"{_OP}: {name} must be {wanted}, got {list(array.shape)}.",
    )
    return array


def _arrays_of(model: Any) -> Mapping[str, Any]:
    if isinstance(model, Mapping):
        return model
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.exists():
            raise FileNotFoundError(path)
        return dict(_records(path.read_bytes(), str(path)))
    check(
        isinstance(model, (bytes, bytearray, memoryview)),
        f"{_OP}: model must be a path, bytes, or arrays by name, got "
        f"{type(model).__name__}.",
    )
    return dict(_records(bytes(model), "the model"))


def _records(data: bytes, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays, one after the other."""
    at = 0
    while at < len(data):
        head = data[at : at + _HEADER.size]
        complete = len(head) == _HEADER.size and head.startswith(_MAGIC)
        _, _, kind, size, padded, name = _HEADER.unpack(head) if complete else _NOTHING
        at += _HEADER.size
        check(
            complete and kind in _DTYPES and 0 <= size <= padded <= len(data) - at,
            f"{_OP}: {where} must be a file of RNNoise's weights, of arrays that begin "
            f"with {_MAGIC.decode()}; there is none at byte {at - _HEADER.size}.",
        )
        text = name.partition(b"\0")[0].decode("ascii", "replace")
        yield text, np.frombuffer(data[at : at + size], _DTYPES[kind])
        at += padded
