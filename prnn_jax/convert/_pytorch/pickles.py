"""Arrays in checkpoints of PyTorch that have objects of other packages beside them.

As those of Lightning have, with hyper-parameters. Nothing of such packages is imported
or run: their objects are left out.
"""

import pickle
import pickletools
import re
import struct
import types
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax.convert._pytorch.weights import keys_of, slstm_paths
from prnn_jax.convert._shared.named_arrays import flat

#: How old files of torch.save begin, which are pickles of several objects.
OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
#: What readers raise of files that are damaged, or of another kind.
DAMAGED = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, LookupError),
    *(ValueError, TypeError, AttributeError, AssertionError, MemoryError),
)
#: What pickles of tensors are made with, besides storages, which `torch.load` makes.
#: Called, none of these does anything but make one; `_Unpickler` sees to what else a
#: pickle may do with them.
_OF_TENSORS = {
    "torch.Size",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
}
_OF_BYTES = {"_codecs.encode", "collections.OrderedDict"}
#: The dtypes of arrays of plain numbers, as pickles call them.
_PLAIN = re.compile(r"[biufc]\d+")
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


class _DType(_LeftOut):
    """NumPy's, of which a pickle could make one of other sizes, or of pointers."""

    def __init__(self, name: Any = None, *_given: Any):
        self._name = name
        self._order: Any = "="

    def __setstate__(self, state: Any) -> None:
        self._order = state[1]

    def made(self) -> np.dtype | None:
        """That of plain numbers; of others None."""
        if not isinstance(self._name, str) or not _PLAIN.fullmatch(self._name):
            return None
        return np.dtype(self._name).newbyteorder(self._order)


class _Array(_LeftOut):
    """NumPy's, which would believe what a pickle says of its memory."""

    array: np.ndarray | None = None  # it is left out

    def __setstate__(self, state: Any) -> None:
        *_, shape, dtype, is_fortran, values = state
        self.set(values, dtype, shape, "F" if is_fortran else "C")

    def set(
        self, values: Any, dtype: Any, shape: Any, order: str, axes: Any = None
    ) -> None:
        """Makes it, if it is of plain numbers."""
        plain = dtype.made() if isinstance(dtype, _DType) else None
        if plain is not None and isinstance(values, (bytes, bytearray)):
            order = "F" if order == "F" else "C"
            array = np.frombuffer(values, plain).reshape(shape, order=order)
            self.array = array if axes is None else array.transpose(axes)


def _of_buffer(*given: Any) -> _Array:
    """NumPy's way to make an array of pickle's protocol 5."""
    array = _Array()
    array.set(*given)
    return array


#: In the places of NumPy's functions, whatever its version calls their modules.
_OF_ARRAYS = {
    "numpy.dtype": _DType,
    **dict.fromkeys(
        [f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")], _Array
    ),
    **dict.fromkeys(
        [f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")],
        _Function(_of_buffer),
    ),
}


class _Unpickler(pickle.Unpickler):
    known = _OF_BYTES

    def __init__(self, file: Any, **options: Any):
        super().__init__(file, **options)
        self._file = file

    def load(self) -> Any:
        """The object, if it numbers no more of its parts than it can have.

        Memory is made for as many as a pickle says.
        """
        start = self._file.tell()
        for count, (code, number, _) in enumerate(pickletools.genops(self._file)):
            if isinstance(number, int) and "PUT" in code.name and number > count:
                raise pickle.UnpicklingError  # no pickler counts so
        self._file.seek(start)
        return super().load()

    def find_class(self, module: str, name: str) -> Any:
        if (ours := _OF_ARRAYS.get(f"{module}.{name}")) is not None:
            return ours
        if f"{module}.{name}" not in self.known:
            return _LeftOut
        found = super().find_class(module, name)
        return found if isinstance(found, type) else _Function(found)


class _TensorUnpickler(_Unpickler):
    known = _OF_BYTES | _OF_TENSORS


def _load(file: Any, **options: Any) -> Any:
    return _TensorUnpickler(file, **options).load()


#: In the place of the module pickle, for `torch.load`.
_PICKLE: Any = types.SimpleNamespace(
    __name__="pickle", Unpickler=_TensorUnpickler, load=_load
)


def arrays_alone(path: Path) -> Mapping[str, Any] | None:
    """The arrays of a checkpoint that has those of a network, all of them; or None."""
    import torch

    options: Any = {"weights_only": False, "pickle_module": _PICKLE}
    try:
        return _if_whole(torch.load(path, map_location="cpu", **options), path)
    except (*DAMAGED, zipfile.BadZipFile, OSError):
        return None


def numpy_arrays(path: Path) -> Mapping[str, Any] | None:
    """The same of a pickle of NumPy's arrays, as `paddle.save` makes."""
    with path.open("rb") as file:
        start = file.read(len(OLD_TORCH))
        if start == OLD_TORCH or not start.startswith(b"\x80"):
            return None
        file.seek(0)
        try:
            return _if_whole(_Unpickler(file).load(), path)
        except (*DAMAGED, OSError):
            return None


def check_names(loaded: Any, path: Path) -> None:
    """Mappings in each other, each of them twice, would have names without end.

    Raises:
      UnpicklingError: it has more of them than the file has bytes.
    """
    counts: dict[int, int] = {}

    def count(tree: Any) -> int:
        if not isinstance(tree, Mapping):
            return 1
        if id(tree) not in counts:
            counts[id(tree)] = sum(map(count, tree.values()))
        return counts[id(tree)]

    if count(loaded) > path.stat().st_size:
        raise pickle.UnpicklingError("its mappings have too many names")


def _if_whole(loaded: Any, path: Path) -> Mapping[str, Any] | None:
    if not isinstance(loaded, Mapping):
        return None
    check_names(loaded, path)
    arrays = {
        key: one.array if isinstance(one, _Array) and one.array is not None else one
        for key, one in flat(loaded, ".").items()
    }
    left_out = [key for key, one in arrays.items() if isinstance(one, _LeftOut)]
    has_network = bool(keys_of(arrays) or slstm_paths(arrays))
    is_whole = not any(map(_OF_NETWORK.search, left_out))
    return arrays if has_network and is_whole else None
