"""The operators of OpenVINO by those of ONNX."""

from collections.abc import Callable
from typing import Any

import numpy as np

from prnn_jax.convert._openvino.graph import Graph
from prnn_jax.convert._openvino.network import Layer

#: Those that are one node of the same inputs.
_ALIKE = {
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "ReLU": "Relu",
    "SoftPlus": "Softplus",
    "SoftSign": "Softsign",
    "Negative": "Neg",
    "Abs": "Abs",
    "Exp": "Exp",
    "Sqrt": "Sqrt",
    "Add": "Add",
    "Subtract": "Sub",
    "Multiply": "Mul",
    "Divide": "Div",
    "Mod": "Mod",
    "Maximum": "Max",
    "Minimum": "Min",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Equal": "Equal",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalNot": "Not",
    "Select": "Where",
    "Tile": "Tile",
    "ShapeOf": "Shape",
    "Range": "Range",
}


def _output(layer: Layer) -> str:
    return layer.outputs[0].name


def _alike(kind: str) -> Callable[[Graph, Layer], None]:
    def add(graph: Graph, layer: Layer) -> Any:
        if layer.option("auto_broadcast", "numpy") not in ("numpy", "none"):
            return False
        graph.add(kind, layer.inputs, _output(layer))
        return None

    return add


def _same(graph: Graph, layer: Layer) -> None:
    graph.add("Identity", layer.inputs[:1], _output(layer))


def _convert(graph: Graph, layer: Layer) -> None:
    from onnx import TensorProto

    kind = layer.option("destination_type")
    to = TensorProto.FLOAT if "f" in kind else TensorProto.INT64
    if kind == "boolean":
        to = TensorProto.BOOL
    graph.add("Cast", layer.inputs, _output(layer), to=to)


def _matmul(graph: Graph, layer: Layer) -> Any:
    sides = list(layer.inputs)
    for n, option in enumerate(("transpose_a", "transpose_b")):
        if layer.flag(option):
            value, rank = graph.value(sides[n]), graph.rank(sides[n])
            if rank is None or rank < 2:
                return False
            order = [*range(rank - 2), rank - 1, rank - 2]
            if value is not None:
                sides[n] = graph.constant(value.transpose(order), value.dtype)
            else:
                sides[n] = graph.add("Transpose", [sides[n]], perm=order)
    graph.add("MatMul", sides, _output(layer))
    return None


def _with_alpha(kind: str) -> Callable[[Graph, Layer], None]:
    def add(graph: Graph, layer: Layer) -> None:
        alpha = float(layer.option("alpha", "1"))
        graph.add(kind, layer.inputs, _output(layer), alpha=alpha)

    return add


def _leaky(graph: Graph, layer: Layer) -> Any:
    slope = graph.value(layer.inputs[1])
    if slope is None or slope.size != 1:
        return False
    x, alpha = layer.inputs[:1], float(slope.item())
    graph.add("LeakyRelu", x, _output(layer), alpha=alpha)
    return None


def _hard_sigmoid(graph: Graph, layer: Layer) -> Any:
    numbers = [graph.value(name) for name in layer.inputs[1:]]
    if len(numbers) != 2 or any(n is None or n.size != 1 for n in numbers):
        return False
    alpha, beta = (float(np.asarray(n).item()) for n in numbers)
    graph.add("HardSigmoid", layer.inputs[:1], _output(layer), alpha=alpha, beta=beta)
    return None


def _clamp(graph: Graph, layer: Layer) -> None:
    bounds = [float(layer.option(name, "0")) for name in ("min", "max")]
    names = [graph.constant(bound, np.float32) for bound in bounds]
    graph.add("Clip", [*layer.inputs, *names], _output(layer))


def _fake_quantize(graph: Graph, layer: Layer) -> None:
    """Of weights the numbers that they are rounded to; all else as it is."""
    x, low, high, bottom, top = layer.inputs
    levels = layer.number("levels", 256)
    if graph.value(x) is None or levels < 2:
        _same(graph, layer)
        return
    steps = graph.constant(levels - 1, np.float32)
    inside = graph.add("Min", [graph.add("Max", [x, low]), high])
    wide = graph.add("Div", [graph.add("Sub", [high, low]), steps])
    step = graph.add("Div", [graph.add("Sub", [inside, low]), wide])
    share = graph.add("Div", [graph.add("Round", [step]), steps])
    height = graph.add("Sub", [top, bottom])
    made = graph.add("Mul", [share, height])
    graph.add("Add", [made, bottom], _output(layer))


# ---- parts and layouts ---------------------------------------------------------------


def _constant_axis(graph: Graph, layer: Layer, place: int) -> int | None:
    axis = graph.value(layer.inputs[place]) if place < len(layer.inputs) else None
    return None if axis is None or axis.size != 1 else int(axis.item())


def _split(graph: Graph, layer: Layer) -> Any:
    axis = _constant_axis(graph, layer, 1)
    if axis is None:
        return False
    outputs = [value.name for value in layer.outputs]
    graph.add_all("Split", layer.inputs[:1], outputs, axis=axis)
    return None


def _variadic_split(graph: Graph, layer: Layer) -> Any:
    """Parts of sizes that are told, or that what becomes of them tells."""
    axis, told = _constant_axis(graph, layer, 1), graph.value(layer.inputs[2])
    shapes = [value.shape or () for value in layer.outputs]
    if axis is None or not all(-len(one) <= axis < len(one) for one in shapes):
        return False
    # As of PyTorch's chunk, which works them out, and of -1, which is what is left.
    sizes = np.asarray([one[axis] for one in shapes])
    sizes = told if (sizes < 0).any() else sizes
    if sizes is None or (sizes < 0).any():
        return False
    outputs = [value.name for value in layer.outputs]
    graph.add_all("Split", [layer.inputs[0], graph.constant(sizes)], outputs, axis=axis)
    return None


def _slice(graph: Graph, layer: Layer) -> None:
    x, begin, end, step, *axes = layer.inputs
    if not axes:
        steps = graph.value(step)
        axes = [] if steps is None else [graph.constant(np.arange(steps.size))]
    graph.add("Slice", [x, begin, end, *(axes or [""]), step], _output(layer))


def _strided_slice(graph: Graph, layer: Layer) -> Any:
    x, begin, end, *strides = layer.inputs
    values = [graph.value(name) for name in layer.inputs[1:]]
    if not strides:
        if values[0] is None:
            return False
        values.append(np.ones(values[0].size, np.int64))
        strides = [graph.constant(values[-1])]
    count = 0 if values[2] is None else values[2].size
    masks = {
        name: [one == "1" for one in layer.several(f"{name}_mask")]
        for name in ("begin", "end", "shrink_axis", "new_axis", "ellipsis")
    }
    if any(masks["new_axis"]) or any(masks["ellipsis"]):
        return False
    names = "begin", "end", "shrink_axis"
    has = [[*masks[name], *[False] * count][:count] for name in names]
    return graph.strided((x, begin, end, strides[0]), values, has, _output(layer))


def _gather(graph: Graph, layer: Layer) -> Any:
    axis = _constant_axis(graph, layer, 2)
    if axis is None or layer.number("batch_dims"):
        return False
    graph.add("Gather", layer.inputs[:2], _output(layer), axis=axis)
    return None


def _reshape(graph: Graph, layer: Layer) -> None:
    zero = int(not layer.flag("special_zero"))
    graph.add("Reshape", layer.inputs, _output(layer), allowzero=zero)


def _transpose(graph: Graph, layer: Layer) -> Any:
    order = graph.value(layer.inputs[1])
    if order is None:
        return False
    if not order.size:  # all axes from the last to the first
        graph.add("Transpose", layer.inputs[:1], _output(layer))
        return None
    perm = [int(axis) for axis in order]
    graph.add("Transpose", layer.inputs[:1], _output(layer), perm=perm)
    return None


def _axes(kind: str) -> Callable[[Graph, Layer], Any]:
    def add(graph: Graph, layer: Layer) -> Any:
        x, *axes = layer.inputs
        if axes:
            value = graph.value(axes[0])
            if value is None:
                return False
            axes = [graph.constant(value.reshape(-1))]
        graph.add(kind, [x, *axes], _output(layer))
        return None

    return add


def _concat(graph: Graph, layer: Layer) -> None:
    graph.add("Concat", layer.inputs, _output(layer), axis=layer.number("axis"))


def _reverse(graph: Graph, layer: Layer) -> Any:
    axes = graph.value(layer.inputs[1])
    if axes is None or layer.option("mode", "index") != "index":
        return False
    graph.flipped(layer.inputs[0], axes, _output(layer))
    return None


def _reverse_sequence(graph: Graph, layer: Layer) -> Any:
    """Of all rows as long as they are; others are none of ONNX' Slice."""
    axis, x = layer.number("seq_axis", 1), layer.inputs[0]
    if not graph.is_all_steps(layer.inputs[1], x, axis):
        return False
    graph.flipped(x, np.asarray([axis]), _output(layer))
    return None


def _broadcast(graph: Graph, layer: Layer) -> Any:
    if layer.option("mode", "numpy") not in ("numpy", "bidirectional"):
        return False
    graph.add("Expand", layer.inputs[:2], _output(layer))
    return None


def _read_value(graph: Graph, layer: Layer) -> None:
    """A state that is kept from run to run: the caller's, or what it begins with."""
    if layer.inputs and not graph.is_zero(layer.inputs[0]):
        _same(graph, layer)
    else:
        graph.given.append(_output(layer))


TRANSLATORS: dict[str, Callable[[Graph, Layer], Any]] = {
    **{kind: _alike(name) for kind, name in _ALIKE.items()},
    "Convert": _convert,
    "ConvertLike": _same,
    "Assign": _same,
    "MatMul": _matmul,
    "Elu": _with_alpha("Elu"),
    "PReLU": _leaky,
    "HardSigmoid": _hard_sigmoid,
    "Clamp": _clamp,
    "FakeQuantize": _fake_quantize,
    "Split": _split,
    "VariadicSplit": _variadic_split,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Gather": _gather,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _axes("Squeeze"),
    "Unsqueeze": _axes("Unsqueeze"),
    "Concat": _concat,
    "Reverse": _reverse,
    "ReverseSequence": _reverse_sequence,
    "Broadcast": _broadcast,
    "ReadValue": _read_value,
}
