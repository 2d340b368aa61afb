"""The initial states of a node of ONNX: constant, zero, or its caller's."""

from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.graph import MOVE, Node, Scope, numpy_of


def positions(node: Node) -> tuple[int, ...]:
    """Those of the states among a node's inputs."""
    return (5, 6) if "LSTM" in node.proto.op_type else (5,)


def check_known(node: Node) -> None:
    """That a node's states are constant, zero, or what the caller gives beside x."""
    for position in positions(node):
        name = node.input(position)
        check(
            not name or _is_known(node, position),
            f"{node.op}: the initial state of the node {node.name!r}, {name!r}, must "
            "be constant, zero or an input of the model, but the model works it out. "
            f"Import it by name={node.name!r}, and pass each call the state as "
            f"state_0.{_FOLDED if node.is_written else ''}",
        )


_FOLDED = (
    " Where that is a cell's second step, because the exporter has folded the first: "
    "export the model with the state as an input, or a dynamic batch."
)


def initial_state(node: Node, position: int) -> np.ndarray | None:
    """A state that is constant, or the same row for all of a batch; None of others.

    `[directions, batch, hidden]`, of layout=1 `[batch, directions, hidden]`, of a cell
    that is written out without directions.
    """
    name, known = node.input(position), node.constant(position)
    if known is not None or not name:
        return known
    name, scope = node.scope.begins_with(name) or (name, node.scope)
    known = scope.constant(name)
    row = _row(scope, name) if known is None else known
    if row is None:
        return None
    if not node.is_written:
        row = row.reshape((1,) * (3 - row.ndim) + row.shape)
    batch = -2 if not (node.attribute("layout", 0) and not node.is_written) else 0
    is_row = row.ndim == 1 or row.shape[batch] == 1
    return row if is_row else None


def _row(scope: Scope, name: str) -> np.ndarray | None:
    """What constants become by moves, with a batch that is not known as of 1."""
    known, made = scope.constant(name), scope.maker(name)
    if known is not None or made is None:
        return known
    proto, inner = made
    if proto.op_type in ("Expand", "Tile"):
        row = _row(inner, proto.input[0])
        return None if row is None else _repeated(row, scope.sizes(name))
    if proto.op_type not in MOVE or proto.op_type == "If":
        return None
    data = len(proto.input) if proto.op_type == "Concat" else 1
    if proto.op_type == "Squeeze" and not Node("", proto, inner).input(1):
        axes = Node("", proto, inner).attribute("axes")
        if axes is None:
            return None  # of all axes of 1, which the batch is not
    given: dict[str, Any] = {}
    for n, one in enumerate(proto.input):
        if one:
            given[one] = _row(inner, one) if n < data else inner.constant(one)
    if any(value is None for value in given.values()):
        return None
    return inner.run(proto, given, name)


def _repeated(row: np.ndarray, sizes: tuple[int, ...] | None) -> np.ndarray | None:
    """A row along the axes that are of fixed sizes."""
    if sizes is None:
        return row
    if len(sizes) < row.ndim:
        return None
    row = row.reshape((1,) * (len(sizes) - row.ndim) + row.shape)
    pairs = zip(sizes, row.shape, strict=True)
    return np.tile(row, [size // had if size else 1 for size, had in pairs])


def _is_known(node: Node, position: int) -> bool:
    if initial_state(node, position) is not None:
        return True
    x = node.scope.origin(node.input(0))
    return _is_zero_or_given(node.scope, node.input(position), x)


def _is_zero_or_given(scope: Scope, name: str, x: str) -> bool:
    known = scope.constant(name)
    if known is not None:
        return not known.any()
    begins, made = scope.begins_with(name), scope.maker(name)
    if begins is not None:
        return _is_zero_or_given(begins[1], begins[0], x)
    if made is None:  # an input of the model
        return name != x
    proto, inner = made
    if proto.op_type == "ConstantOfShape":
        value = Node("", proto, inner).attribute("value")
        return value is None or not numpy_of(value).any()
    if proto.op_type == "If":
        place = list(proto.output).index(name)
        branches = [branch for _, branch in inner.subgraphs(proto)]
        return all(_is_zero_or_given(one, one.outputs[place], x) for one in branches)
    if proto.op_type not in MOVE:
        return False
    given = proto.input if proto.op_type == "Concat" else proto.input[:1]
    return all(_is_zero_or_given(inner, one, x) for one in given)
