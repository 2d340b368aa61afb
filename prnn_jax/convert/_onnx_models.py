"""Whole models of ONNX."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._imported import Imported, joined
from prnn_jax.convert._onnx_cells import written_cells
from prnn_jax.convert._onnx_chain import Layer, chain
from prnn_jax.convert._onnx_graph import Node, Scope
from prnn_jax.convert._onnx_loops import in_a_loop, unread_loops
from prnn_jax.convert._onnx_nodes import of_layer, operator_of
from prnn_jax.convert._onnx_states import check_known, initial_state
from prnn_jax.convert._onnx_steps import given_back

_OP = "import_onnx"
#: Keras, too, exports by PyTorch where that is its backend.
_OF_PYTORCH = (
    " import_pytorch takes the model itself, import_keras one of Keras. An RNN that is "
    "written out with the products of x of all steps at once, as dynamo=True does, is "
    "not read: dynamo=False exports torch.nn.RNN as a node. Nor is a cell's only step, "
    "from zeros, which leaves no weights of h: export it with the state as an input."
)
_OF_TENSORFLOW = " import_keras takes a model of Keras, or its file."
_HINTS = {"pytorch": _OF_PYTORCH, "tf2onnx": _OF_TENSORFLOW}
#: What to do about a model that changes states between steps.
_OWN_STEPS = (
    "No layer does so. Take the cell's weights from its state_dict by from_pytorch, "
    "and write its steps with prnn_jax.define_cell or lax.scan."
)


def import_onnx(model: Any, name: str | Sequence[str] | None = None) -> Imported:
    """A recurrent network of an ONNX model: its LSTM, GRU or RNN.

        net = prnn_jax.convert.import_onnx("model.onnx")
        y, states = net(x)

    `net` computes what the node does, and is called with x in the node's layout (time
    first, unless layout=1); y has directions side by side. Nodes that follow one
    another with nothing but a change of layout between them are the layers of one
    network; two nodes, of which one reads the other's x from its end, are a layer's
    directions. Of sequence_lens, give `lengths` to the call; initial states are those
    of the node, where they are constant, if only repeated for each row of a batch, or
    else `state_0` of the call. Where the model works one out, as a decoder's of an
    encoder's last, the node is imported by its name alone, and each call is to be given
    `state_0`: without, it begins with zeros. Weights may be initializers, or whatever
    the model makes of constants. Of DynamicQuantizeLSTM (ONNX Runtime), `net` has the
    weights that the 8 bits stand for, and does not round x and h to 8 bits, as the
    node does.

    An LSTM, a GRU or an RNN may also be written out in products, sums and activations,
    one step of it or several, as PyTorch's exporter does with LSTMCell and GRUCell, or
    in a Loop, as tf2onnx does with Keras' layers; its name is that of the node that
    gives h of the first step that is there as a whole, and x is `[*batch, time,
    input]`. Of a first step from zeros exporters leave a part, as there is nothing to
    multiply: it is seen in the second one. An RNN is seen where its steps follow one
    another. A network is what gives each step the states of the step before as they
    are: a model that changes them between the steps it has, or in a Loop or a Scan, is
    refused. Where a mask keeps the old states, as of Keras' Masking and Embedding, give
    `mask` to the call. A model of one step that gives other states back than the cell's
    own is refused unless `name` is given: what its caller makes of them is then the
    caller's.

    Args:
      model: a path, or an `onnx.ModelProto`, or its bytes, or what `torch.onnx.export`
        gives.
      name: which node, where there are several that differ: its name, or that of its
        first output; with the names of what is around it where it is in a subgraph, as
        "If_0/then_branch/LSTM". A sequence of names: the layers of a network.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: it is no model of ONNX; weights are float64, which JAX has with
        jax_enable_x64 only; it has no such node, or several and `name` says none of
        them, or another recurrence besides; weights depend on the model's input; it
        changes states between steps; or the node has what prnn_jax has not:
        input_forget, ThresholdedRelu, directions that differ in their activations, or
        from those of the other layers. Says which node, and what to do.
      FileNotFoundError: there is no such file.
      ImportError: the package onnx is missing.
    """
    proto = loaded(model)
    found = recurrent_nodes(proto)
    _check_any(found, proto)
    layers = _chosen(found, name)
    if name is None:
        _check_all_read(found, proto)
    nodes = [node for layer in layers for node in layer if node]
    _check_same_lengths(nodes)
    for node in nodes:
        _check_unchanged(node)
        if name is None:
            check_known(node)
            _check_given_back(node)
    return joined(_OP, [of_layer(layer) for layer in layers])


def _scope(proto: Any) -> Scope:
    return Scope(proto.graph, proto.opset_import)


def recurrent_nodes(proto: Any) -> dict[str, Node]:
    """LSTM, GRU and RNN of a model by name: nodes, and cells that are written out."""
    nodes = list(_scope(proto).nodes())
    found = [node for node in nodes if operator_of(node) is not None]
    found = [*found, *written_cells(nodes)]
    changed = [node.changed or in_a_loop(node, found) for node in found]
    return {
        node.name: replace(node, changed=state)
        for node, state in zip(found, changed, strict=True)
        # The tanh of a sum that the next step does not get is no RNN.
        if not (state and node.is_written and node.proto.op_type == "RNN")
    }


def loaded(model: Any) -> Any:
    """A model, from what `import_onnx` takes."""
    try:
        import onnx
        from google.protobuf import json_format, text_format
        from google.protobuf.message import DecodeError
        from onnx.parser import ParseError
    except ModuleNotFoundError as error:
        raise ImportError(f"{_OP} needs the package onnx: pip install onnx.") from error
    model = getattr(model, "model_proto", model)  # of torch.onnx.export
    if isinstance(model, onnx.ModelProto):
        return _inlined(model)
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
    without_files = onnx.checker.ValidationError
    try:
        proto = onnx.load(model) if is_path else onnx.load_from_string(model)
    except (DecodeError, *of_text, without_files) as error:
        raise ValueError(f"{_OP}: {what} must be a model of ONNX: {error}.") from error
    check(len(proto.graph.node) > 0, f"{_OP}: {what} must be a model of ONNX.")
    return _inlined(proto)


def _inlined(proto: Any) -> Any:
    """A model with its own functions written out where they are called."""
    from onnx import inliner

    return inliner.inline_local_functions(proto) if proto.functions else proto


# ---- which nodes ---------------------------------------------------------------------


def _check_any(found: dict[str, Node], proto: Any) -> None:
    operators = sorted({node.proto.op_type for node in _scope(proto).nodes()})
    hint = _HINTS.get(proto.producer_name, "")
    check(
        len(found) > 0,
        f"{_OP}: the model must have a node LSTM, GRU or RNN, or an LSTM, a GRU or an "
        "RNN whose cell is written out as PyTorch's exporter or tf2onnx does, got "
        f"{', '.join(operators)}.{hint}",
    )


def _chosen(found: dict[str, Node], name: Any) -> list[Layer]:
    """The layers of a network, the first one first."""
    listed = ", ".join(f"{n!r} ({node.proto.op_type})" for n, node in found.items())
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


def _check_all_read(found: dict[str, Node], proto: Any) -> None:
    """That a model has no recurrence besides, which is none of ours."""
    others = unread_loops(list(_scope(proto).nodes()), found.values())
    names = ", ".join(f"{one!r} ({node.proto.op_type})" for one, node in found.items())
    check(
        not others,
        f"{_OP}: name must say which node is meant, of {names}, because the model has "
        f"another recurrence, in {', '.join(map(repr, others))}, that is none of an "
        "LSTM, a GRU or an RNN as they are read here.",
    )


def _check_unchanged(node: Node) -> None:
    """That each step of a cell gets the states of the step before as they are."""
    check(
        not node.changed,
        f"{_OP}: each step of {node.name!r} must be given the states of the step "
        f"before as they are, but the model makes {node.changed!r} of them, as a norm "
        f"or zoneout between the steps does. {_OWN_STEPS}",
    )


def _check_given_back(node: Node) -> None:
    """That a model of one step gives back the states of its cell."""
    output = given_back(node)
    check(
        not output,
        f"{_OP}: the model must give back the states after its one step of "
        f"{node.name!r} as they are, got {output!r}, which it makes of them. If that "
        f"is none that the next step is given, name={node.name!r} imports the cell. If "
        f"it is: {_OWN_STEPS}",
    )


def _check_same_lengths(nodes: Sequence[Node]) -> None:
    """That a call's lengths can be those of all."""
    for first, other in itertools.pairwise(nodes):
        check(
            _lengths_of(other) == _lengths_of(first),
            f"{_OP}: layers and directions of one network must have the same "
            f"sequence_lens; {other.name!r} has {other.input(4) or None!r}, "
            f"{first.name!r} has {first.input(4) or None!r}. Import them one by one, "
            "by name.",
        )


def _lengths_of(node: Node) -> str | bytes:
    """What sequence_lens are made of."""
    lengths, name = node.constant(4), node.input(4)
    if lengths is not None:
        return np.asarray(lengths, np.int64).tobytes()
    return node.scope.origin(name) if name else ""


def are_one(nodes: Sequence[Node]) -> bool:
    """Whether nodes are the same one, written in each branch of an If."""
    first, *others = nodes
    pairs = itertools.combinations(nodes, 2)
    return all(_is_same(first, other) for other in others) and all(
        one.place.is_beside(other.place) for one, other in pairs
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
        a, b = initial_state(one, position), initial_state(other, position)
        are_same = a is b if a is None or b is None else np.array_equal(a, b)
        if not are_same:
            return False
    return True
