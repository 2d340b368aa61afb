"""Whole models of ONNX."""

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._directions import stack_directions
from prnn_jax.convert._imported import Imported, check_dtype, joined
from prnn_jax.convert._onnx import from_onnx
from prnn_jax.convert._onnx_activations import options_of
from prnn_jax.convert._onnx_cells import written_cells
from prnn_jax.convert._onnx_chain import Layer, chain
from prnn_jax.convert._onnx_graph import MOVE, Node, Scope, numpy_of

_OP = "import_onnx"
_CELLS: dict[str, CellName] = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
#: ONNX Runtime's, of weights in 8 bits.
_QUANTIZED = "DynamicQuantizeLSTM"


def import_onnx(model: Any, name: str | Sequence[str] | None = None) -> Imported:
    """A recurrent network of an ONNX model: its LSTM, GRU or RNN.

        net = prnn_jax.convert.import_onnx("model.onnx")
        y, states = net(x)

    `net` computes what the node does, and is called with x in the node's layout (time
    first, unless layout=1); y has directions side by side. Nodes that follow one
    another with nothing but a change of layout between them are the layers of one
    network; two nodes, of which one reads the other's x from its end, are a layer's
    directions. Of sequence_lens, give `lengths` to the call; initial states are those
    of the node, where they are constant, or else `state_0` of the call. Weights may be
    initializers, or whatever the model makes of constants. Of DynamicQuantizeLSTM
    (ONNX Runtime), `net` has the weights that the 8 bits stand for, and does not round
    x and h to 8 bits, as the node does.

    An LSTM or a GRU may also be written out, one step of it, in products, sums and
    activations, as PyTorch's exporter does with LSTMCell and GRUCell; its name is that
    of the node that gives h, and x is `[*batch, time, input]`.

    Args:
      model: a path, or an `onnx.ModelProto`, or its bytes.
      name: which node, where there are several that differ: its name, or that of its
        first output; with the names of what is around it where it is in a subgraph, as
        "If_0/then_branch/LSTM". A sequence of names: the layers of a network.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: it is no model of ONNX; weights are float64, which JAX has with
        jax_enable_x64 only; it has no such node, or several and `name`
        says none of them; weights depend on the model's input; or the node has what
        prnn_jax has not: input_forget, ThresholdedRelu, directions that
        differ in their activations, or from those of the other layers. Says which
        node, and what to do.
      FileNotFoundError: there is no such file.
      ImportError: the package onnx is missing.
    """
    proto = loaded(model)
    found = recurrent_nodes(proto)
    layers = _chosen(
        found, name, [node.proto.op_type for node in _scope(proto).nodes()]
    )
    return joined(_OP, [of_layer(layer) for layer in layers])


def _scope(proto: Any) -> Scope:
    return Scope(proto.graph, proto.opset_import)


def recurrent_nodes(proto: Any) -> dict[str, Node]:
    """LSTM, GRU and RNN of a model by name: nodes, and cells that are written out."""
    nodes = list(_scope(proto).nodes())
    found = [node for node in nodes if _operator(node) is not None]
    return {node.name: node for node in (*found, *written_cells(nodes))}


def _operator(node: Node) -> str | None:
    """LSTM, GRU or RNN; None of other nodes."""
    kind, domain = node.proto.op_type, node.proto.domain
    if (kind, domain) == (_QUANTIZED, "com.microsoft"):
        return "LSTM"
    return kind if kind in _CELLS and domain in ("", "ai.onnx") else None


def loaded(model: Any) -> Any:
    """A model, from what `import_onnx` takes."""
    try:
        import onnx
        from google.protobuf import json_format, text_format
        from google.protobuf.message import DecodeError
        from onnx.parser import ParseError
    except ModuleNotFoundError as error:
        raise ImportError(f"{_OP} needs the package onnx: pip install onnx.") from error
    if isinstance(model, onnx.ModelProto):
        return model
    is_path = isinstance(model, (str, os.PathLike))
    check(
        is_path or isinstance(model, bytes),
        f"{_OP}: model must be a path, an onnx.ModelProto or its bytes, got "
        f"{type(model).__name__}.",
    )
    what = os.fspath(model) if is_path else "the bytes"
    check(
        not is_path or not os.path.isdir(model),
        f"{_OP}: {what} must be a model of ONNX, got a folder; name the file in it.",
    )
    of_text = json_format.ParseError, text_format.ParseError, ParseError
    try:
        proto = onnx.load(model) if is_path else onnx.load_from_string(model)
    except (DecodeError, *of_text) as error:
        raise ValueError(f"{_OP}: {what} must be a model of ONNX: {error}.") from error
    check(len(proto.graph.node) > 0, f"{_OP}: {what} must be a model of ONNX.")
    return proto


# ---- which nodes ---------------------------------------------------------------------


def _chosen(found: dict[str, Node], name, operators: list[str]) -> list[Layer]:
    """The layers of a network, the first one first."""
    listed = ", ".join(f"{n!r} ({node.proto.op_type})" for n, node in found.items())
    check(
        len(found) > 0,
        f"{_OP}: the model must have a node LSTM, GRU or RNN, or an LSTM or a GRU "
        "whose cell is written out as PyTorch's exporter does, got "
        f"{', '.join(sorted(set(operators)))}.",
    )
    if name is None:
        if are_one(list(found.values())):
            return [Layer(next(iter(found.values())))]
        layers = chain(list(found.values()))
        nodes = [node for layer in layers for node in layer if node is not None]
        check(
            len(nodes) == len(found),
            f"{_OP}: name must say which node is meant, one of {listed}.",
        )
        return layers
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        check(one in found, f"{_OP}: name must be of {listed}, got {one!r}.")
    return [Layer(found[one]) for one in names]


def are_one(nodes: Sequence[Node]) -> bool:
    """Whether nodes are the same one, written in each branch of an If."""
    first, *others = nodes
    pairs = itertools.combinations(nodes, 2)
    return all(_is_same(first, other) for other in others) and all(
        one.scope.is_beside(other.scope) for one, other in pairs
    )


def _is_same(one: Node, other: Node) -> bool:
    """Whether two nodes compute the same of an x."""
    options = [sorted(map(str, node.proto.attribute)) for node in (one, other)]
    if one.proto.op_type != other.proto.op_type or options[0] != options[1]:
        return False
    for position in (1, 2, 3, 7):
        if not (one.input(position) or other.input(position)):
            continue
        a, b = one.constant(position), other.constant(position)
        if a is None or b is None or not np.array_equal(a, b):
            return False
    for position in (5, 6):
        a, b = one.constant(position), other.constant(position)
        are_same = a is b if a is None or b is None else np.array_equal(a, b)
        if not are_same:
            return False
    return True


# ---- a node --------------------------------------------------------------------------


def of_layer(layer: Layer) -> Imported:
    """Of one node, or of two that are its directions."""
    one = _network(layer.forward)
    if layer.backward is None:
        return one
    other = _network(layer.backward)
    check(
        one.cell == other.cell
        and one.reset_after == other.reset_after
        and one.activation == other.activation
        and one.gate_activation == other.gate_activation
        and one.clip == other.clip
        and one.time_major == other.time_major,
        f"{_OP}: the nodes {one.name!r} and {other.name!r}, directions of one layer, "
        "must have the same options.",
    )
    given = one.state_0, other.state_0
    check(
        (given[0] is None) == (given[1] is None),
        f"{_OP}: {one.name!r} and {other.name!r}, directions of one layer, must both "
        "have initial states, or none.",
    )
    state_0 = None
    if given[0] is not None and given[1] is not None:
        state_0 = jax.tree.map(lambda *sides: jnp.stack(sides), *given)
    return replace(
        one,
        layers=(stack_directions(one.layers[0], other.layers[0]),),
        state_0=state_0,
        bidirectional=True,
        reverse=False,
        places=(one.name, other.name),
    )


def _network(node: Node) -> Imported:
    operator, where = _operator(node) or "", f"the node {node.name!r}"
    direction = node.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    arrays = {}
    for letter, position in {"W": 1, "R": 2, "B": 3, "P": 7}.items():
        if node.input(position):
            arrays[letter] = node.constant(position)
            check(
                arrays[letter] is not None,
                f"{_OP}: {letter} of {where}, {node.input(position)!r}, must be "
                "constant; it depends on the model's input, or on an operator that "
                "onnx.reference does not have.",
            )
    if node.proto.op_type == _QUANTIZED:
        arrays |= _dequantized(node, arrays, where)
    for letter, array in arrays.items():
        what = f"{letter} of {where}"
        check_dtype(_OP, what, array, "export the model in")
    if "P" in arrays and not arrays["P"].any():
        del arrays["P"]  # as good as none, and faster
    _check_options(node, where)
    clip = node.attribute("clip")
    params = from_onnx(operator, arrays)
    return Imported(
        layers=(params,),
        state_0=_state(node, operator, params, where, directions),
        cell=_CELLS[operator],
        name=node.name,
        places=(node.name,),
        bidirectional=directions == 2,
        reverse=direction == "reverse",
        time_major=not node.attribute("layout", 0),
        reset_after=operator != "GRU" or bool(node.attribute("linear_before_reset", 0)),
        clip=None if clip is None else Clip(pre_activations=clip),
        **options_of(
            _OP,
            where,
            operator,
            node.attribute("activations"),
            node.attribute("activation_alpha") or (),
            node.attribute("activation_beta") or (),
            directions,
        ),
    )


def _dequantized(node: Node, arrays: dict, where: str) -> dict[str, np.ndarray]:
    """W and R as the LSTM has them: of numbers again, and transposed."""
    made = {}
    for letter, scale_at, zero_at in (("W", 8, 9), ("R", 10, 11)):
        scale, zero = node.constant(scale_at), node.constant(zero_at)
        check(
            scale is not None and zero is not None,
            f"{_OP}: scale and zero point of {letter} of {where} must be constant.",
        )
        stored = np.asarray(arrays[letter], np.int32)  # [directions, input, 4*hidden]
        scale, zero = (np.asarray(x).reshape(len(stored), 1, -1) for x in (scale, zero))
        made[letter] = (stored - zero.astype(np.int32)) * scale.astype(np.float32)
        made[letter] = np.swapaxes(made[letter], 1, 2).astype(np.float32)
    return made


def _check_options(node: Node, where: str) -> None:
    clip = node.attribute("clip")
    check(
        clip is None or 0 < clip < math.inf,
        f"{_OP}: {where} must have a positive clip, or none, got {clip}.",
    )
    check(
        not node.attribute("input_forget", 0),
        f"{_OP}: {where} must have input_forget=0; prnn_jax's LSTM has two gates.",
    )
    lengths = node.constant(4)
    check(
        lengths is None or len(np.unique(lengths)) <= 1,
        f"{_OP}: {where} must have sequence_lens that are an input of the model, got "
        f"the constants {lengths}; make them one, and pass them as lengths.",
    )


def _is_known(node: Node, name: str) -> bool:
    """Whether a state is constant, zero, or what the caller gives beside x."""
    scope = node.scope
    if scope.constant(name) is not None:
        return True
    return _is_zero_or_given(scope, name, scope.origin(node.input(0)))


def _is_zero_or_given(scope: Scope, name: str, x: str) -> bool:
    known = scope.constant(name)
    if known is not None:
        return not known.any()
    made = scope.maker(name)
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


def _state(
    node: Node, operator: str, params: Params, where: str, directions: int
) -> tuple[Any, ...] | None:
    """The initial state, where the node has a constant one that is not zero."""
    positions = (5, 6) if operator == "LSTM" else (5,)
    for position in positions:
        name = node.input(position)
        check(
            not name or _is_known(node, name),
            f"{_OP}: the initial state of {where}, {name!r}, must be constant, zero or "
            "an input of the model, but the model works it out. Export the model with "
            "the state as an input, and pass it as state_0.",
        )
    states = [node.constant(position) for position in positions]
    if not any(state is not None and state.any() for state in states):
        return None
    hidden = params.w_hh.shape[-2]
    made = []
    for state in states:
        if state is None:
            state = np.zeros((directions, 1, hidden))
        elif node.attribute("layout", 0):
            state = np.moveaxis(state, 0, 1)
        check(
            state.ndim == 3
            and state.shape[0] == directions
            and state.shape[2] == hidden,
            f"{_OP}: the initial state of {where} must be [directions, batch, hidden], "
            f"got {list(state.shape)}.",
        )
        state = jnp.asarray(state, params.w_hh.dtype)
        made.append(state if directions == 2 else state[0])
    return (tuple(made) if len(made) > 1 else made[0],)
