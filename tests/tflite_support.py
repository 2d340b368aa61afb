"""Files of LiteRT that are built by its schema, and what its interpreter gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import pytest
from libraries import library

tflite = pytest.importorskip("tflite")
Op = tflite.BuiltinOperator

KINDS = {
    np.dtype("f4"): 0,
    np.dtype("f2"): 1,
    np.dtype("i4"): 2,
    np.dtype("u1"): 3,
    np.dtype("i8"): 4,
    np.dtype("?"): 6,
    np.dtype("i2"): 7,
    np.dtype("i1"): 9,
}


@dataclass
class Quantized:
    """Integers, and what they stand for."""

    numbers: np.ndarray
    scale: Any
    zero: Any = 0
    axis: int = 0


@dataclass
class Graph:
    """A subgraph: tensors by name, in order, and operators."""

    name: str = "main"
    tensors: dict[str, dict] = field(default_factory=dict)
    operators: list[tuple] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def place(self, name: str | None) -> int:
        return -1 if name is None else list(self.tensors).index(name)

    def value(self, name: str, *shape: int, dtype: Any = "f4", **options: Any) -> str:
        """One that the file has no numbers of; variable=True: a state."""
        self.tensors[name] = {"shape": shape, "kind": KINDS[np.dtype(dtype)], **options}
        return name

    def constant(self, name: str, array: Any, **options: Any) -> str | None:
        if array is None:
            return None
        quantized = array if isinstance(array, Quantized) else None
        numbers = np.asarray(quantized.numbers if quantized else array)
        if numbers.dtype == np.float64:
            numbers = numbers.astype("f4")
        self.tensors[name] = {
            "shape": numbers.shape,
            "kind": KINDS[numbers.dtype],
            "data": numbers.tobytes(),
            "quantized": quantized,
            **options,
        }
        return name

    def add(self, kind: str, inputs: Sequence, outputs: Sequence, table="", **options):
        """An operator; `table` is of the schema's options."""
        self.operators.append((kind, inputs, outputs, table, options))


def file_of(*graphs: Graph, marked: dict[str, tuple] | None = None) -> bytes:
    """The file of some subgraphs.

    `marked` has the number and the name of operators by kind, where they are others.
    """
    b = flatbuffers.Builder(1024)
    kinds = list(dict.fromkeys(op[0] for graph in graphs for op in graph.operators))
    datas = [b""]
    made = []
    for graph in graphs:
        for tensor in graph.tensors.values():
            tensor["buffer"] = 0
            if tensor.get("data") is not None:
                tensor["buffer"] = len(datas)
                datas.append(tensor["data"])
        made.append(_subgraph(b, graph, kinds))
    subgraphs = _vector(b, made, tflite.ModelStartSubgraphsVector)
    codes = []
    for kind in kinds:
        number = getattr(Op, kind, Op.CUSTOM)
        number, own = (marked or {}).get(kind, (number, kind))
        is_custom = number == Op.CUSTOM or own != kind
        custom = b.CreateString(own) if is_custom else None
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
        tflite.OperatorCodeAddBuiltinCode(b, number)
        tflite.OperatorCodeAddVersion(b, 1)
        if custom is not None:
            tflite.OperatorCodeAddCustomCode(b, custom)
        codes.append(tflite.OperatorCodeEnd(b))
    codes = _vector(b, codes, tflite.ModelStartOperatorCodesVector)
    buffers = []
    for data in datas:
        vector = b.CreateByteVector(data) if data else None
        tflite.BufferStart(b)
        if vector is not None:
            tflite.BufferAddData(b, vector)
        buffers.append(tflite.BufferEnd(b))
    buffers = _vector(b, buffers, tflite.ModelStartBuffersVector)
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, codes)
    tflite.ModelAddSubgraphs(b, subgraphs)
    tflite.ModelAddBuffers(b, buffers)
    b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
    return bytes(b.Output())


def _vector(b: Any, items: Sequence[int], start: Any) -> int:
    start(b, len(items))
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    return b.EndVector()


def _numbers(b: Any, numbers: Any, dtype: str = "i4") -> int:
    return b.CreateNumpyVector(np.asarray(numbers, dtype))


def _subgraph(b: Any, graph: Graph, kinds: list[str]) -> int:
    tensors = _vector(
        b,
        [_tensor(b, name, one) for name, one in graph.tensors.items()],
        tflite.SubGraphStartTensorsVector,
    )
    operators = []
    for kind, inputs, outputs, table, options in graph.operators:
        places = [
            _numbers(b, [graph.place(name) for name in names])
            for names in (inputs, outputs)
        ]
        made = _options(b, table, options) if table else 0
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, kinds.index(kind))
        tflite.OperatorAddInputs(b, places[0])
        tflite.OperatorAddOutputs(b, places[1])
        if table:
            number = getattr(tflite.BuiltinOptions, table)
            tflite.OperatorAddBuiltinOptionsType(b, number)
            tflite.OperatorAddBuiltinOptions(b, made)
        operators.append(tflite.OperatorEnd(b))
    operators = _vector(b, operators, tflite.SubGraphStartOperatorsVector)
    ends = [
        _numbers(b, [graph.place(name) for name in names])
        for names in (graph.inputs, graph.outputs)
    ]
    name = b.CreateString(graph.name)
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, tensors)
    tflite.SubGraphAddInputs(b, ends[0])
    tflite.SubGraphAddOutputs(b, ends[1])
    tflite.SubGraphAddOperators(b, operators)
    tflite.SubGraphAddName(b, name)
    return tflite.SubGraphEnd(b)


def _options(b: Any, table: str, options: dict) -> int:
    made = {
        name: _numbers(b, value) if isinstance(value, (list, tuple)) else value
        for name, value in options.items()
    }
    getattr(tflite, f"{table}Start")(b)
    for name, value in made.items():
        getattr(tflite, f"{table}Add{name}")(b, value)
    return getattr(tflite, f"{table}End")(b)


def _tensor(b: Any, name: str, one: dict) -> int:
    shape, text = _numbers(b, one["shape"]), b.CreateString(name)
    signature = _numbers(b, one["signature"]) if "signature" in one else None
    quantized = None
    if one.get("quantized") is not None:
        scale = np.atleast_1d(np.asarray(one["quantized"].scale, "f4"))
        zero = np.broadcast_to(one["quantized"].zero, scale.shape)
        scales, zeros = _numbers(b, scale, "f4"), _numbers(b, zero, "i8")
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scales)
        tflite.QuantizationParametersAddZeroPoint(b, zeros)
        axis = one["quantized"].axis
        tflite.QuantizationParametersAddQuantizedDimension(b, axis)
        quantized = tflite.QuantizationParametersEnd(b)
    sparsity = None
    if one.get("sparse"):
        tflite.SparsityParametersStart(b)
        sparsity = tflite.SparsityParametersEnd(b)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, one["kind"])
    tflite.TensorAddBuffer(b, one["buffer"])
    tflite.TensorAddName(b, text)
    tflite.TensorAddIsVariable(b, bool(one.get("variable")))
    tflite.TensorAddHasRank(b, True)
    if signature is not None:
        tflite.TensorAddShapeSignature(b, signature)
    if quantized is not None:
        tflite.TensorAddQuantization(b, quantized)
    if sparsity is not None:
        tflite.TensorAddSparsity(b, sparsity)
    return tflite.TensorEnd(b)


def interpreted(data: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    """What LiteRT's interpreter gives; skips where it is not installed."""
    interpreter = library("ai_edge_litert.interpreter")
    one = interpreter.Interpreter(model_content=data)
    one.allocate_tensors()
    for detail, array in zip(one.get_input_details(), inputs, strict=True):
        one.set_tensor(detail["index"], array)
    one.invoke()
    return [one.get_tensor(detail["index"]) for detail in one.get_output_details()]
