"""Files of LiteRT (TensorFlow Lite), as their schema has them."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.making import must

_OP = "import_tflite"
_IDENTIFIER = b"TFL3"
#: What reading a damaged file may raise.
_DAMAGED = (
    *(struct.error, IndexError, TypeError, ValueError, OverflowError, KeyError),
    *(AttributeError, RecursionError, MemoryError),
)
#: By the schema's number; of 4 bits two in a byte.
_DTYPES: dict[int, Any] = {
    0: np.float32,
    1: np.float16,
    2: np.int32,
    3: np.uint8,
    4: np.int64,
    6: np.bool_,
    7: np.int16,
    9: np.int8,
    10: np.float64,
    12: np.uint64,
    15: np.uint32,
    16: np.uint16,
    18: ml_dtypes.bfloat16,
}
_INT4 = 17
#: No tensor of LiteRT has more axes.
_AXES = 16
#: How methods of the schema's tables end that are none of its fields.
_NO_OPTIONS = "Init", "Length", "AsNumpy", "IsNone", "HasIdentifier"


@dataclass(frozen=True)
class Tensor:
    """A tensor of a subgraph.

    Attributes:
      name: as in the file, where no other has it.
      shape: sizes, -1 where they are not fixed; None if not even their number is.
      kind: the schema's number of its dtype.
      stored: the numbers in the file, or None.
      scale: of integers, what one is worth, for all or for each of an axis; or None.
      zero: of integers, which one stands for 0, likewise.
      axis: along which these are, where they are several.
      is_variable: whether it keeps its values from one run to the next.
      fault: why its numbers cannot be read; empty if they can, or there are none.
    """

    name: str
    shape: tuple[int, ...] | None
    kind: int
    stored: np.ndarray | None = None
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None
    axis: int = 0
    is_variable: bool = False
    fault: str = ""

    @property
    def value(self) -> np.ndarray | None:
        """The numbers that those in the file stand for; None if there are none."""
        if self.stored is None or self.scale is None:
            return self.stored
        if not np.issubdtype(self.stored.dtype, np.integer):
            return self.stored
        scale, zero = self.scale, np.zeros(1) if self.zero is None else self.zero
        if scale.size > 1:
            sizes = [1] * self.stored.ndim
            sizes[self.axis] = -1
            scale, zero = scale.reshape(sizes), zero.reshape(sizes)
        # A scale is float32, and so is LiteRT's product; int32 fits in float64 alone.
        exact = (self.stored.astype(np.float64) - zero) * scale.astype(np.float64)
        return exact.astype(np.float32)


@dataclass(frozen=True)
class Operator:
    """An operator of a subgraph.

    Attributes:
      kind: its name in the schema, or its own where it is a custom one.
      inputs: places of tensors, -1 where there is none.
      outputs: likewise.
      options: by the schema's names; none where they are as they usually are.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def option(self, name: str, default: Any = 0) -> Any:
        """One of its options, as the schema calls it."""
        return self.options.get(name, default)


@dataclass(frozen=True)
class Subgraph:
    """A graph of the file: the first, one of a signature, or of a loop's body."""

    name: str
    tensors: Sequence[Tensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: Sequence[Operator] = field(default_factory=list)


def loaded(model: Any) -> tuple[str, bytes]:
    """What messages call a model, and its bytes, from what `import_tflite` takes.

    Raises:
      ValueError: it is no such file.
      FileNotFoundError: there is none.
      ImportError: a package is missing.
    """
    try:
        import onnx  # noqa: F401, for what is made of the file
        import tflite  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{_OP} needs the packages tflite and onnx: pip install tflite onnx."
        ) from error
    is_path = isinstance(model, (str, os.PathLike))
    check(
        is_path or isinstance(model, (bytes, bytearray, memoryview)),
        f"{_OP}: model must be a path of a .tflite file or its bytes, got "
        f"{type(model).__name__}.",
    )
    what = os.fspath(model) if is_path else "the bytes"
    check(
        not is_path or not os.path.isdir(model),
        f"{_OP}: {what} must be a .tflite file, got a folder; name the file in it.",
    )
    data = Path(model).read_bytes() if is_path else bytes(model)
    check(
        data[4:8] == _IDENTIFIER,
        f"{_OP}: {what} must be a .tflite file, whose bytes 4 to 8 are "
        f"{_IDENTIFIER.decode()}, got {data[4:8]!r}.{_other_kind(data)}",
    )
    return what, data


@contextmanager
def whole(what: str) -> Iterator[None]:
    """Where a file is read that may be damaged.

    Raises:
      ValueError: it is.
    """
    try:
        yield
    except _DAMAGED as error:
        raise ValueError(
            f"{_OP}: {what} must be a whole .tflite file, and is damaged: "
            f"{type(error).__name__}: {error}."
        ) from error


def subgraphs(data: bytes) -> list[Subgraph]:
    """Those of a file."""
    import tflite

    return _Reader(tflite, data).subgraphs()


def _other_kind(data: bytes) -> str:
    if data[:2] == b"PK":
        return " It is a zip archive: unpack it, as a .task bundle, or import_keras."
    if data[:8] == b"LITERTLM":
        return " A .litertlm bundle has the .tflite files inside of it."
    return ""


def _check_order(operators: Sequence[Operator]) -> None:
    """That none makes what it reads, or what one before it has read."""
    read: set[int] = set()
    for one in operators:
        read |= {*one.inputs}
        again = sorted(read & {*one.outputs})
        must(not again, f"tensors {again} are read before {one.kind} makes them")


class _Reader:
    """Of one file, none of whose vectors is longer than the file."""

    def __init__(self, tflite: Any, data: bytes):
        self._tflite, self._data = tflite, data
        self._model = tflite.Model.GetRootAs(data, 0)
        kinds = vars(tflite.BuiltinOperator).items()
        self._kinds = {n: name for name, n in kinds if isinstance(n, int)}
        known = vars(tflite.BuiltinOptions).items()
        self._options = {n: name for name, n in known if isinstance(n, int)}

    def subgraphs(self) -> list[Subgraph]:
        model = self._model
        names: dict[str, int] = {}
        codes = self._all(model.OperatorCodes, model.OperatorCodesLength())
        kinds = [self._kind(code) for code in codes]
        graphs = self._all(model.Subgraphs, model.SubgraphsLength())
        must(len(graphs) > 0, "it has no subgraph")
        return [self._subgraph(graph, kinds, names) for graph in graphs]

    def _all(self, one: Any, length: int) -> list[Any]:
        self._check_length(length, 4)
        return [one(n) for n in range(length)]

    def _check_length(self, length: int, size: int) -> None:
        fits = 0 <= length * size <= len(self._data)
        must(fits, f"a vector of {length} in {len(self._data)} bytes")

    def _kind(self, code: Any) -> str:
        # Before there were more than 127 of them, the number was another field.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        kind = self._kinds.get(number, f"operator {number}")
        if kind != "CUSTOM":
            return kind
        own = (code.CustomCode() or b"").decode("utf-8", "replace")
        return f"{kind} {own}" if own in self._kinds.values() or not own else own

    def _numbers(self, one: Any, length: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self._all(one, length))

    def _subgraph(self, graph: Any, kinds: list[str], names: dict) -> Subgraph:
        tensors = self._all(graph.Tensors, graph.TensorsLength())
        made = [self._tensor(one, names) for one in tensors]
        operators = [
            Operator(
                kinds[one.OpcodeIndex()],
                self._places(one.Inputs, one.InputsLength(), len(made), least=-1),
                self._places(one.Outputs, one.OutputsLength(), len(made)),
                self._options_of(one),
            )
            for one in self._all(graph.Operators, graph.OperatorsLength())
        ]
        _check_order(operators)
        name = graph.Name()
        return Subgraph(
            name.decode("utf-8", "replace") if name else "",
            made,
            self._places(graph.Inputs, graph.InputsLength(), len(made)),
            self._places(graph.Outputs, graph.OutputsLength(), len(made)),
            operators,
        )

    def _places(self, one: Any, length: int, tensors: int, least: int = 0):
        places = self._numbers(one, length)
        are_there = all(least <= place < tensors for place in places)
        must(are_there, f"tensors {list(places)} of {tensors}")
        return places

    def _options_of(self, operator: Any) -> dict[str, Any]:
        name = self._options.get(operator.BuiltinOptionsType(), "NONE")
        table = operator.BuiltinOptions()
        kind = getattr(self._tflite, name, None)
        if kind is None or table is None:
            return {}
        options = kind()
        options.Init(table.Bytes, table.Pos)
        methods = {n for n in vars(kind) if n[0].isupper()}
        lists = {n.removesuffix("Length") for n in methods if n.endswith("Length")}
        made = {}
        for one in lists & methods:
            length = getattr(options, f"{one}Length")()
            made[one] = self._numbers(getattr(options, one), length)
        numbers = (n for n in methods - lists if not n.endswith(_NO_OPTIONS))
        return made | {n: getattr(options, n)() for n in numbers if "RootAs" not in n}

    def _tensor(self, tensor: Any, names: dict[str, int]) -> Tensor:
        name = (tensor.Name() or b"").decode("utf-8", "replace") or "tensor"
        names[name] = names.get(name, -1) + 1
        if names[name]:
            name = f"{name}#{names[name]}"
        axes = max(tensor.ShapeLength(), tensor.ShapeSignatureLength())
        must(axes <= _AXES, f"{axes} axes of {name}")
        shape = self._shape(tensor)
        stored, fault = self._stored(tensor)
        quantized, scale, zero, axis = tensor.Quantization(), None, None, 0
        if quantized is not None and quantized.ScaleLength():
            scale = np.array(
                self._all(quantized.Scale, quantized.ScaleLength()), np.float32
            )
            zeros = self._all(quantized.ZeroPoint, quantized.ZeroPointLength())
            zero = np.broadcast_to(zeros or [0], scale.shape)
            axis = quantized.QuantizedDimension()
        elif quantized is not None and quantized.DetailsType() and stored is not None:
            stored, fault = None, "quantized in a way of its own"
        if scale is not None and stored is not None:
            self._check_scale(name, scale, stored.shape[axis : axis + 1])
        return Tensor(
            name,
            shape,
            tensor.Type(),
            stored,
            scale,
            zero,
            axis,
            bool(tensor.IsVariable()),
            fault,
        )

    def _check_scale(self, name: str, scale: np.ndarray, sizes: tuple) -> None:
        fits = scale.shape in ((1,), sizes)
        must(fits, f"{scale.size} scales of {sizes} in {name}")

    def _shape(self, tensor: Any) -> tuple[int, ...] | None:
        if tensor.ShapeSignatureLength():
            return self._numbers(tensor.ShapeSignature, tensor.ShapeSignatureLength())
        shape = self._numbers(tensor.Shape, tensor.ShapeLength())
        return shape if shape or tensor.HasRank() else None

    def _stored(self, tensor: Any) -> tuple[np.ndarray | None, str]:
        """The numbers in the file, and why there are none where there should be."""
        place = tensor.Buffer()
        count = self._model.BuffersLength()
        must(0 <= place < max(count, 1), f"buffer {place} of {count}")
        if place == 0:
            return None, ""
        buffer = self._model.Buffers(place)
        if buffer.Offset() > 1:  # behind the tables, in files of more than 2 GB
            first, size = buffer.Offset(), buffer.Size()
            is_inside = first + size <= len(self._data)
            must(is_inside, f"buffer {place} ends at {first + size}")
            data = self._data[first : first + size]
        else:
            self._check_length(buffer.DataLength(), 1)
            data = buffer.DataAsNumpy().tobytes() if buffer.DataLength() else b""
        if not data:
            return None, ""
        if tensor.Sparsity() is not None:
            return None, "sparse"
        kind = tensor.Type()
        shape = self._numbers(tensor.Shape, tensor.ShapeLength())
        count = int(np.prod(shape, dtype=np.int64))
        if kind == _INT4:
            bytes_ = np.frombuffer(data, np.int8)
            # The lower half comes first; shifts keep the sign.
            halves = np.stack([np.left_shift(bytes_, 4) >> 4, bytes_ >> 4], -1)
            return halves.ravel()[:count].reshape(shape), ""
        if kind not in _DTYPES:
            return None, f"of the dtype {kind} of the schema"
        return np.frombuffer(data, _DTYPES[kind], count).reshape(shape), ""
