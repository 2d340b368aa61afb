"""The operators of LiteRT by those of ONNX."""

from collections.abc import Callable
from typing import Any

import numpy as np

from prnn_jax.convert._onnx.making import ALL
from prnn_jax.convert._tflite.file import Operator
from prnn_jax.convert._tflite.graph import Graph, translated

#: The schema's fused activations, by ONNX's operator and its bounds.
_ACTIVATIONS: dict[int, tuple[str, tuple[float, ...]]] = {
    1: ("Relu", ()),
    2: ("Clip", (-1.0, 1.0)),
    3: ("Clip", (0.0, 6.0)),
    4: ("Tanh", ()),
}
#: Those that are one node of the same inputs.
_ALIKE = {
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "RELU": "Relu",
    "ELU": "Elu",
    "NEG": "Neg",
    "ABS": "Abs",
    "EXP": "Exp",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "EQUAL": "Equal",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "LOGICAL_NOT": "Not",
    "SELECT_V2": "Where",
    "TILE": "Tile",
    "BROADCAST_TO": "Expand",
    "QUANTIZE": "Identity",
    "DEQUANTIZE": "Identity",
    "SHAPE": "Shape",
    "RANGE": "Range",
}
_OF_TWO = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}


def _names(graph: Graph, operator: Operator) -> list[str]:
    return [graph.name(place) for place in operator.inputs]


def _output(graph: Graph, operator: Operator) -> str:
    return graph.name(operator.outputs[0])


def _alike(kind: str) -> Callable[[Graph, Operator], None]:
    def add(graph: Graph, operator: Operator) -> None:
        graph.add(kind, _names(graph, operator), _output(graph, operator))

    return add


def _activated(graph: Graph, operator: Operator, kind: str, inputs: list, **options):
    """A node, with the activation that is fused into the operator."""
    output = _output(graph, operator)
    fused = operator.option("FusedActivationFunction")
    if not fused:
        graph.add(kind, inputs, output, **options)
        return None
    if fused not in _ACTIVATIONS:
        return False
    name, bounds = _ACTIVATIONS[fused]
    made = graph.add(kind, inputs, **options)
    graph.add(name, [made, *(graph.constant(b, np.float32) for b in bounds)], output)
    return None


def _of_two(kind: str) -> Callable[[Graph, Operator], Any]:
    def add(graph: Graph, operator: Operator) -> Any:
        return _activated(graph, operator, kind, _names(graph, operator))

    return add


def _select(graph: Graph, operator: Operator) -> Any:
    """A condition of one axis chooses rows, as TensorFlow's first `Select` has it."""
    condition, *both = _names(graph, operator)
    of_condition, of_both = (graph.rank(place) for place in operator.inputs[:2])
    if of_condition is None or of_both is None:
        return False
    if of_condition == 1 < of_both:
        axes = graph.constant([*range(1, of_both)])
        condition = graph.add("Unsqueeze", [condition, axes])
    graph.add("Where", [condition, *both], _output(graph, operator))
    return None


def _relu_to(low: float, high: float) -> Callable[[Graph, Operator], None]:
    def add(graph: Graph, operator: Operator) -> None:
        bounds = [graph.constant(bound, np.float32) for bound in (low, high)]
        x, *_ = _names(graph, operator)
        graph.add("Clip", [x, *bounds], _output(graph, operator))

    return add


def _leaky_relu(graph: Graph, operator: Operator) -> None:
    x, *_ = _names(graph, operator)
    alpha = operator.option("Alpha")
    graph.add("LeakyRelu", [x], _output(graph, operator), alpha=alpha)


def _fully_connected(graph: Graph, operator: Operator) -> Any:
    names = _names(graph, operator)
    if operator.option("WeightsFormat"):
        return False
    x, w, *bias = names
    weight = graph.value(operator, 1)
    keeps = operator.option("KeepNumDims")
    if keeps and graph.rank(operator.inputs[0]) != 2:
        if weight is None:
            turned = graph.add("Transpose", [w], perm=[1, 0])
        else:
            turned = graph.constant(weight.T, weight.dtype)
        kind, inputs = "MatMul", [x, turned]
        if bias and bias[0]:
            kind, inputs = "Add", [graph.add("MatMul", inputs), bias[0]]
        return _activated(graph, operator, kind, inputs)
    if graph.rank(operator.inputs[0]) != 2:
        if weight is None:
            return False
        x = graph.add("Reshape", [x, graph.constant([-1, weight.shape[1]])])
    inputs = [x, w, *(one for one in bias if one)]
    return _activated(graph, operator, "Gemm", inputs, transB=1)


def _batch_matmul(graph: Graph, operator: Operator) -> Any:
    sides = _names(graph, operator)
    adjoint = operator.option("AdjX"), operator.option("AdjY")
    for n, is_turned in enumerate(adjoint):
        rank = graph.rank(operator.inputs[n])
        if is_turned:
            if rank is None:
                return False
            order = [*range(rank - 2), rank - 1, rank - 2]
            sides[n] = graph.add("Transpose", [sides[n]], perm=order)
    graph.add("MatMul", sides, _output(graph, operator))
    return None


# ---- parts and layouts ---------------------------------------------------------------


def _split(graph: Graph, operator: Operator) -> Any:
    axis, (_, x) = graph.value(operator, 0), _names(graph, operator)
    if axis is None:
        return False
    outputs = [graph.name(place) for place in operator.outputs]
    graph.add_all("Split", [x], outputs, axis=int(axis.item()))
    return None


def _split_v(graph: Graph, operator: Operator) -> Any:
    axis, sizes = graph.value(operator, 2), graph.value(operator, 1)
    if axis is None or sizes is None:
        return False
    shape = graph.source.tensors[operator.inputs[0]].shape or ()
    place, rest = int(axis.item()), int(sizes[sizes >= 0].sum())
    whole = shape[place] if -len(shape) <= place < len(shape) else -1
    if (sizes < 0).any():  # what is left
        if whole < rest:
            return False
        sizes = np.where(sizes < 0, whole - rest, sizes)
    outputs = [graph.name(one) for one in operator.outputs]
    x = graph.name(operator.inputs[0])
    graph.add_all("Split", [x, graph.constant(sizes)], outputs, axis=place)
    return None


def _slice(graph: Graph, operator: Operator) -> None:
    x, begin, size = _names(graph, operator)
    first, sizes = graph.value(operator, 1), graph.value(operator, 2)
    if sizes is None or (first is None and (sizes < 0).any()) or first is None:
        end = graph.add("Add", [begin, size])
    else:
        ends = np.where(sizes < 0, ALL, first + sizes)
        shape = graph.source.tensors[operator.inputs[0]].shape or ()
        if len(shape) == len(ends):  # what is whole stays so for all sizes
            whole = (first == 0) & (sizes == np.asarray(shape))
            ends = np.where(whole, ALL, ends)
        end = graph.constant(ends)
    graph.add("Slice", [x, begin, end], _output(graph, operator))


def _strided_slice(graph: Graph, operator: Operator) -> Any:
    x, begin, end, strides = _names(graph, operator)
    first, last, steps = (graph.value(operator, n) for n in (1, 2, 3))
    if operator.option("EllipsisMask") or operator.option("NewAxisMask"):
        return False
    if operator.option("Offset"):  # the ends are from where it begins
        if first is None or last is None:
            return False
        last = first + last
    names = "BeginMask", "EndMask", "ShrinkAxisMask"
    masks = [operator.option(name) for name in names]
    if steps is None:
        return False
    has = [[bool(mask >> n & 1) for n in range(len(steps))] for mask in masks]
    names, output = (x, begin, end, strides), _output(graph, operator)
    return graph.strided(names, (first, last, steps), has, output)


def _gather(graph: Graph, operator: Operator) -> Any:
    if operator.option("BatchDims"):
        return False
    axis = operator.option("Axis")
    graph.add("Gather", _names(graph, operator), _output(graph, operator), axis=axis)
    return None


def _reshape(graph: Graph, operator: Operator) -> None:
    x, *shape = _names(graph, operator)
    if not shape:
        shape = [graph.constant(operator.option("NewShape", ()))]
    graph.add("Reshape", [x, *shape], _output(graph, operator))


def _transpose(graph: Graph, operator: Operator) -> Any:
    order, (x, _) = graph.value(operator, 1), _names(graph, operator)
    if order is None:
        return False
    perm = [int(axis) for axis in order]
    graph.add("Transpose", [x], _output(graph, operator), perm=perm)
    return None


def _squeeze(graph: Graph, operator: Operator) -> None:
    (x,), given = _names(graph, operator), operator.option("SqueezeDims", ())
    inputs = [x, graph.constant(given)] if given else [x]
    graph.add("Squeeze", inputs, _output(graph, operator))


def _expand_dims(graph: Graph, operator: Operator) -> Any:
    axis, (x, _) = graph.value(operator, 1), _names(graph, operator)
    if axis is None:
        return False
    inputs = [x, graph.constant(axis.reshape(-1))]
    graph.add("Unsqueeze", inputs, _output(graph, operator))
    return None


def _pack(graph: Graph, operator: Operator) -> None:
    axis = operator.option("Axis")
    axes = graph.constant([axis])
    parts = [graph.add("Unsqueeze", [x, axes]) for x in _names(graph, operator)]
    graph.add("Concat", parts, _output(graph, operator), axis=axis)


def _unpack(graph: Graph, operator: Operator) -> None:
    axis = operator.option("Axis")
    axes, x = graph.constant([axis]), _names(graph, operator)[0]
    outputs = [graph.name(place) for place in operator.outputs]
    parts = [f"{output}/part" for output in outputs]
    graph.add_all("Split", [x], parts, axis=axis)
    for part, output in zip(parts, outputs, strict=True):
        graph.add("Squeeze", [part, axes], output)


def _concatenation(graph: Graph, operator: Operator) -> Any:
    axis = operator.option("Axis")
    return _activated(graph, operator, "Concat", _names(graph, operator), axis=axis)


def _reverse(graph: Graph, operator: Operator) -> Any:
    axes, (x, _) = graph.value(operator, 1), _names(graph, operator)
    if axes is None:
        return False
    graph.flipped(x, axes, _output(graph, operator))
    return None


def _fill(graph: Graph, operator: Operator) -> None:
    sizes, number = _names(graph, operator)
    graph.add("Expand", [number, sizes], _output(graph, operator))


def _zeros_like(graph: Graph, operator: Operator) -> None:
    shape = graph.add("Shape", _names(graph, operator))
    graph.add("ConstantOfShape", [shape], _output(graph, operator))


def _cast(graph: Graph, operator: Operator) -> None:
    from onnx import TensorProto

    kinds = {0: TensorProto.FLOAT, 6: TensorProto.BOOL}
    kind = graph.source.tensors[operator.outputs[0]].kind
    to = kinds.get(kind, TensorProto.FLOAT if kind in (1, 18) else TensorProto.INT64)
    graph.add("Cast", _names(graph, operator), _output(graph, operator), to=to)


# ---- what keeps values ---------------------------------------------------------------


def _read_variable(graph: Graph, operator: Operator) -> None:
    """A state that is kept from run to run, which is the caller's."""
    graph.given.append(_output(graph, operator))


def _while(graph: Graph, operator: Operator) -> Any:
    count = len(operator.inputs)
    place = operator.option("BodySubgraphIndex")
    if not 0 <= place < len(graph.others):
        return False
    body = graph.others[place]
    if len(body.inputs) != count or len(body.outputs) != count or body is graph.source:
        return False
    begin = [f"{body.name}/count", f"{body.name}/condition"]
    others = graph.others, graph.fused, graph.translators
    made = translated(body, *others, begin, begin[1:])
    outputs = [graph.name(one) for one in operator.outputs]
    graph.add_all("Loop", ["", "", *_names(graph, operator)], outputs, body=made)
    return None


TRANSLATORS: dict[str, Callable[[Graph, Operator], Any]] = {
    **{kind: _alike(name) for kind, name in _ALIKE.items()},
    **{kind: _of_two(name) for kind, name in _OF_TWO.items()},
    "RELU6": _relu_to(0.0, 6.0),
    "RELU_N1_TO_1": _relu_to(-1.0, 1.0),
    "LEAKY_RELU": _leaky_relu,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "SELECT": _select,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "GATHER": _gather,
    "RESHAPE": _reshape,
    "TRANSPOSE": _transpose,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "PACK": _pack,
    "UNPACK": _unpack,
    "CONCATENATION": _concatenation,
    "REVERSE_V2": _reverse,
    "FILL": _fill,
    "ZEROS_LIKE": _zeros_like,
    "CAST": _cast,
    "READ_VARIABLE": _read_variable,
    "WHILE": _while,
}
