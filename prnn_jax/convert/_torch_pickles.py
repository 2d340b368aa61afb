"""Arrays in checkpoints of PyTorch that have objects of other packages beside them.

As those of Lightning have, with hyper-parameters. Nothing of such packages is imported
or run: their objects are left out.
"""

import pickle
import re
import struct
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax.convert._arrays import flat
from prnn_jax.convert._torch_weights import keys_of, slstm_paths

#: How old files of torch.save begin, which are pickles of several objects.
OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
#: What readers raise of files that are damaged, or of another kind.
DAMAGED = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, LookupError),
    *(ValueError, TypeError, AttributeError, AssertionError, MemoryError),
)
#: What pickles of tensors and arrays are made with, besides storages, which
#: `torch.load` makes. Called, none of these does anything but make one; `_Unpickler`
#: sees to what else a pickle may do with them.
_OF_ARRAYS = {
    "_codecs.encode",  # of bytes
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
}
_OF_BUFFERS = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}
#: The key of an array of a network, or of a part of one.
_OF_NETWORK = re.compile(r"(^|[._])(weight|bias|w|b)_(ih|hh|hr)|slstm_cell")


class _LeftOut:
    """In the place of whatever else there is: takes all that a pickle does with it."""

    def __init__(self, *_given: Any, **_named: Any): ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def add(self, item: Any) -> None: ...

    def __call__(self, *_given: Any) -> "_LeftOut":
        return self


class _Function:
    """A function to be called: a pickle could set attributes of the function itself."""

    __slots__ = ("_function",)

    def __init__(self, function: Any):
        self._function = function

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError  # none of ours has one

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)


class _Array(np.ndarray):
    """NumPy's, which would read past the end of objects that a pickle counts wrong."""

    def __new__(cls, *_given: Any, **_named: Any) -> "_Array":
        raise pickle.UnpicklingError  # NumPy pickles no array so

    def __setstate__(self, state: Any) -> None:
        *_, dtype, _, values = state
        if dtype.kind in "biufc" and isinstance(values, bytes):  # else it stays empty
            super().__setstate__(state)


def _of_buffer(
    buffer: Any, dtype: Any, shape: Any, order: str, axes: Any = None
) -> np.ndarray | None:
    """NumPy's way to make an array of pickle's protocol 5; None of one of objects."""
    if dtype.kind not in "biufc" or not isinstance(buffer, (bytes, bytearray)):
        return None
    array = np.frombuffer(buffer, dtype).reshape(
        shape, order="F" if order == "F" else "C"
    )
    return array if axes is None else array.transpose(axes)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _OF_BUFFERS:
            return _Function(_of_buffer)
        if f"{module}.{name}" not in _OF_ARRAYS:
            return _LeftOut
        found = super().find_class(module, name)
        if found is np.ndarray:
            return _Array
        return found if isinstance(found, type) else _Function(found)


def _load(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


#: In the place of the module pickle, for `torch.load`.
_PICKLE: Any = types.SimpleNamespace(
    __name__="pickle", Unpickler=_Unpickler, load=_load
)


def arrays_alone(path: Path) -> Mapping[str, Any] | None:
    """The arrays of a checkpoint that has those of a network, all of them; or None."""
    import torch

    options: Any = {"weights_only": False, "pickle_module": _PICKLE}
    try:
        loaded = torch.load(path, map_location="cpu", **options)
    except (*DAMAGED, zipfile.BadZipFile, OSError):
        return None
    return _if_whole(loaded)


def numpy_arrays(path: Path) -> Mapping[str, Any] | None:
    """The same of a pickle of NumPy's arrays, as `paddle.save` makes."""
    with path.open("rb") as file:
        start = file.read(len(OLD_TORCH))
        if start == OLD_TORCH or not start.startswith(b"\x80"):
            return None
        file.seek(0)
        try:
            return _if_whole(_load(file))
        except (*DAMAGED, OSError):
            return None


def _if_whole(loaded: Any) -> Mapping[str, Any] | None:
    if not isinstance(loaded, Mapping):
        return None
    arrays = flat(loaded, ".")
    left_out = [key for key, one in arrays.items() if isinstance(one, _LeftOut)]
    has_network = bool(keys_of(arrays) or slstm_paths(arrays))
    is_whole = not any(map(_OF_NETWORK.search, left_out))
    return loaded if has_network and is_whole else None
