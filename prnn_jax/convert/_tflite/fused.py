"""The recurrent operators of LiteRT as nodes of a graph of ONNX."""

from collections.abc import Sequence
from typing import NamedTuple

from prnn_jax.convert._onnx.nodes import TFLITE
from prnn_jax.convert._tflite.file import Operator
from prnn_jax.convert._tflite.graph import Fused, Graph


class Kind(NamedTuple):
    """A recurrent operator of the schema.

    Attributes:
      cell: the node of ONNX that is made of it.
      both_ways: whether it has two directions.
      is_step: whether it takes one step alone.
      aux: of two directions the place of a second input.
      aux_weights: where its weights begin.
    """

    cell: str
    both_ways: bool = False
    is_step: bool = False
    aux: int = -1
    aux_weights: int = -1


KINDS = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Kind("LSTM"),
    "BIDIRECTIONAL_SEQUENCE_LSTM": Kind("LSTM", True, aux=39, aux_weights=40),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Kind("RNN"),
    "BIDIRECTIONAL_SEQUENCE_RNN": Kind("RNN", True, aux=9, aux_weights=10),
    "LSTM": Kind("LSTM", is_step=True),
    "RNN": Kind("RNN", is_step=True),
}
#: The kernel of LSTM whose gates are one matrix of x and h.
BASIC = 1
#: Of that kernel the places of h and c before the step, and of c after it.
BASIC_STATES, BASIC_C = (1, 4), 1


def is_basic(fused: Fused) -> bool:
    """Whether an LSTM is of that kernel."""
    return (
        fused.operator.kind == "LSTM" and fused.operator.option("KernelType") == BASIC
    )


def recurrent(graph: Graph, operator: Operator) -> None:
    """Adds the node, called as the operator's first output, and what is around it.

    Its Y has an axis of directions, as ONNX has it.
    """
    kind, fused = KINDS[operator.kind], Fused(operator, graph.source.tensors)
    outputs = [graph.name(place) for place in operator.outputs]
    # Of a step alone, which has no axis of time, the node's comes second.
    # Options that are not there are all 0; older ones, of other operators, lack this.
    time_major = operator.option("TimeMajor", bool(operator.options))
    batch_first = kind.is_step or not time_major
    directions = 2 if kind.both_ways else 1
    merged = not kind.both_ways or bool(fused.operator.option("MergeOutputs"))
    x = _input(graph, operator, kind)
    y = f"{outputs[0]}/Y"
    hidden = _shapes(graph, operator, kind, y, batch_first, merged)
    states = ["", ""]
    made = [y]
    if is_basic(fused):
        states = [graph.name(operator.inputs[place]) for place in BASIC_STATES]
        made = [y, "", outputs[BASIC_C] if len(outputs) > BASIC_C else ""]
    graph.fused[outputs[0]] = fused
    graph.add_all(
        kind.cell,
        [x, "", "", "", "", *states],
        made,
        name=outputs[0],
        domain=TFLITE,
        layout=int(batch_first),
        direction="bidirectional" if kind.both_ways else "forward",
        **({"hidden_size": hidden} if hidden else {}),
    )
    _around(graph, y, outputs, directions, batch_first, merged, kind.is_step)


def _input(graph: Graph, operator: Operator, kind: Kind) -> str:
    """What the node reads: of two inputs both, side by side."""
    x, shape = graph.name(operator.inputs[0]), _shape(graph, operator.inputs[0])
    if kind.is_step:
        if len(shape) == 2:
            graph.shapes[f"{x}/step"] = [shape[0], 1, shape[1]]
        return graph.add("Unsqueeze", [x, graph.constant([1])], f"{x}/step")
    if 0 <= kind.aux < len(operator.inputs) and operator.inputs[kind.aux] >= 0:
        both = [x, graph.name(operator.inputs[kind.aux])]
        return graph.add("Concat", both, axis=-1)
    return x


def _shape(graph: Graph, place: int) -> Sequence[int]:
    return graph.source.tensors[place].shape or ()


def _shapes(
    graph: Graph, operator: Operator, kind: Kind, y: str, batch_first: bool, merged
) -> int:
    """Notes the shape of Y, and gives the width of h; 0 where it is not known."""
    shape = _shape(graph, operator.outputs[0])
    if kind.is_step:
        shape = (*shape[:1], 1, *shape[1:])
    if len(shape) != 3 or shape[2] <= 0:
        return 0
    directions = 2 if kind.both_ways else 1
    one, two, hidden = shape
    hidden //= directions if merged else 1
    lead = [one, two, directions] if batch_first else [one, directions, two]
    graph.shapes[y] = [*lead, hidden]
    return hidden


def _around(
    graph: Graph,
    y: str,
    outputs: Sequence[str],
    directions: int,
    batch_first: bool,
    merged: bool,
    is_step: bool,
) -> None:
    """Makes of Y what the operator gives."""
    axis = 2 if batch_first else 1
    if directions == 1:
        axes = [1, 2] if is_step else [axis]
        graph.add("Squeeze", [y, graph.constant(axes)], outputs[0])
    elif merged:
        side = y if batch_first else graph.add("Transpose", [y], perm=[0, 2, 1, 3])
        graph.add("Reshape", [side, graph.constant([0, 0, -1])], outputs[0])
    else:
        parts = [f"{output}/part" for output in outputs[:2]]
        graph.add_all("Split", [y], parts, axis=axis)
        for part, output in zip(parts, outputs, strict=False):
            graph.add("Squeeze", [part, graph.constant([axis])], output)
