"""Networks back into models of ONNX."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams
from prnn_jax.convert._onnx.chain import Layer
from prnn_jax.convert._onnx.graph import Node
from prnn_jax.convert._onnx.models import loaded, scope_of
from prnn_jax.convert._onnx.nodes import of_layer
from prnn_jax.convert._onnx.params import to_onnx
from prnn_jax.convert._onnx.search import are_one, recurrent_nodes
from prnn_jax.convert._onnx.states import initial_state
from prnn_jax.convert._shared.directions import split_directions
from prnn_jax.convert._shared.imported import Imported, joined
from prnn_jax.convert._shared.updates import (
    changed,
    check_network,
    destination,
    fitted,
    in_dtype,
)

_OP = "update_onnx"
_POSITIONS = {"W": 1, "R": 2, "B": 3, "h": 5, "c": 6, "P": 7}


def update_onnx(
    model: Any,
    net: Imported,
    name: str | Sequence[str] | None = None,
    *,
    to: Any = None,
) -> Any:
    """Puts a network back into the ONNX model that it came from: import's inverse.

        net = prnn_jax.convert.import_onnx("model.onnx")
        net = trained(net)                                   # in JAX
        prnn_jax.convert.update_onnx("model.onnx", net, to="trained.onnx")

    Nodes get new values of W, R, B and P, and of initial states that are constant, in
    the layout, order of gates and dtype of the old ones. All else stays as it is, and
    so does what was not trained, to the last bit. An initializer that nothing else
    reads gets the new values under its own name. What others read too, or what the
    model works out of constants (such as DequantizeLinear of 8 bits), stays for the
    others, and the node gets an initializer of its own.

    Args:
      model: as `import_onnx` takes it; it is not changed.
      net: as imported, with other numbers: what optax or `jax.tree.map` make of it, or
        `dataclasses.replace(net, layers=layers)`.
      name: the node, or the nodes in the order of `net.places`, where they have other
        names in this model. Where all recurrent nodes of a model are the same, as in
        the branches of an If, all are replaced.
      to: where the new file is written, if model is a path.

    Returns:
      A new `onnx.ModelProto`; of a path `to`, as a Path.

    Raises:
      ValueError: the model has no such node, or one of another cell, activation, or
        shape; weights of a DynamicQuantizeLSTM are new, or of a cell that is written
        out; an initial state is new that the model's caller gives; `to` is missing, or
        given for an object.
      FileNotFoundError: there is no such file.
      ImportError: the package onnx is missing.
    """
    check_network(_OP, net)
    to = destination(_OP, model, to)
    proto = loaded(model)
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    found = recurrent_nodes(scope_of(copy))
    names = net.places if name is None else (name,) if isinstance(name, str) else name
    layers = _layers(net, found, tuple(names))
    there = joined(_OP, [of_layer(layer) for layer in layers])
    net = fitted(_OP, net, there)
    are_same = len(names) == 1 and are_one(list(found.values()))
    new = [
        array for n in range(len(layers)) for array in _new(n, layers[n], net, there)
    ]
    left: set[str] = set()
    for node, letter, array in new:
        nodes = list(found.values()) if are_same else [node]
        left |= _replace(copy, nodes, letter, array)
    _drop_unread(copy, left)
    if to is None:
        return copy
    onnx.save(copy, to)
    return to


def _layers(net: Imported, found: dict[str, Node], names: Sequence[str]) -> list[Layer]:
    """The nodes of each layer; of two where the layer is one both ways."""
    for one in names:
        check(
            one in found,
            f"{_OP}: name must be of {', '.join(map(repr, found))}, got {one!r}.",
        )
    nodes, layers = [found[one] for one in names], []
    while nodes and len(layers) < len(net.layers):
        both = isinstance(net.layers[len(layers)], BidirectionalParams)
        is_one = nodes[0].attribute("direction") == "bidirectional"
        count = 2 if both and not is_one else 1
        if len(nodes) < count:
            break
        layers.append(Layer(*nodes[:count]))
        nodes = nodes[count:]
    check(
        len(layers) == len(net.layers) and not nodes,
        f"{_OP}: name must be a node for each of the {len(net.layers)} layer(s) of "
        "net, or two, forward and backward, where those are two nodes; got "
        f"{', '.join(map(repr, names)) or 'none'}.",
    )
    return layers


def _new(
    n: int, layer: Layer, net: Imported, there: Imported
) -> Iterator[tuple[Node, str, np.ndarray]]:
    """What is new of a layer: at which node, under which letter."""
    sides = [node for node in layer if node is not None]
    operator = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}[net.cell]
    arrays: list[list[dict[str, Any]]] = []  # of each side of each network
    for network in (net, there):
        params = network.layers[n]
        of_sides = split_directions(params) if len(sides) == 2 else (params,)
        state = None if network.state_0 is None else network.state_0[n]
        states = () if state is None else state if network.cell == "lstm" else (state,)
        given = [to_onnx(operator, one) for one in of_sides]
        for name, value in zip("hc", states, strict=False):
            value = np.asarray(value)
            for side, one in enumerate(given):
                one[name] = value[side : side + 1] if len(sides) == 2 else value
        arrays.append(given)
    for node, new, old in zip(sides, *arrays, strict=True):
        for letter, array in changed(new, old).items():
            if letter in "hc":
                array = array.reshape(-1, *array.shape[-2:])
                if node.attribute("layout", 0):
                    array = np.moveaxis(array, 0, 1)
            yield node, letter, array


def _replace(
    model: Any, nodes: Sequence[Node], letter: str, array: np.ndarray
) -> set[str]:
    """Gives an input of some nodes another value; names of what they read no more."""
    check(
        not any(node.is_written for node in nodes),
        f"{_OP}: {nodes[0].name!r} must be a node LSTM, GRU or RNN, and is a cell that "
        "is written out; its weights are initializers like any others, in which "
        "to_pytorch's arrays can be put.",
    )
    position, left = _POSITIONS[letter], set()
    for name, node in {node.input(position): node for node in nodes}.items():
        old = node.constant(position)
        check(
            letter not in "WR" or node.proto.op_type != "DynamicQuantizeLSTM",
            f"{_OP}: {letter} of the node {node.name!r}, {name!r}, must be of floats, "
            "and is in 8 bits; update the model that it was made of, and quantize that "
            "again.",
        )
        check(
            old is not None or initial_state(node, position) is None,
            f"{_OP}: the initial state of the node {node.name!r}, {name!r}, must be a "
            "constant as it is, and is a row that the model repeats for each batch; "
            "leave it in net.state_0 as it was, and change the initializer that it is "
            "made of.",
        )
        check(
            old is not None,
            f"{_OP}: the initial state of the node {node.name!r}, {name!r}, is none of "
            "the model's, but its caller's; leave it in net.state_0 as it was.",
        )
        value = in_dtype(array, np.asarray(old).dtype)
        own = [one for one in nodes if one.input(position) == name]
        held = _only_read_by(model, name, len(own))
        if held is not None:
            held.CopyFrom(_tensor(value, name))
            continue
        left.add(name)
        for one in own:
            one.proto.input[position] = _added(model, one, f"{name}_updated", value)
    return left


def _only_read_by(model: Any, name: str, readers: int) -> Any:
    """The initializer of a name that so many inputs alone read; None of others."""
    graphs = list(_graphs(model.graph))
    inputs = [one for graph in graphs for node in graph.node for one in node.input]
    held = [one for graph in graphs for one in graph.initializer if one.name == name]
    is_output = any(one.name == name for graph in graphs for one in graph.output)
    is_alone = len(held) == 1 and inputs.count(name) == readers and not is_output
    return held[0] if is_alone else None


def _added(model: Any, node: Node, name: str, value: np.ndarray) -> str:
    """A new initializer in the graph of a node; its name."""
    from onnx import helper

    graph = node.scope.graph
    names = {one.name for g in _graphs(model.graph) for one in g.initializer}
    names |= {o for g in _graphs(model.graph) for one in g.node for o in one.output}
    while name in names:
        name = f"{name}_"
    graph.initializer.append(tensor := _tensor(value, name))
    if model.ir_version < 4:  # in which an initializer is an input, too
        info = helper.make_tensor_value_info(name, tensor.data_type, value.shape)
        graph.input.append(info)
    return name


def _tensor(value: np.ndarray, name: str) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value, name)


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    yield from _graphs(inner)


def _drop_unread(model: Any, names: set[str]) -> None:
    """Takes out what of these is no longer read, and what they alone were made of."""
    todo = list(names)
    while todo:
        name = todo.pop()
        graphs = list(_graphs(model.graph))
        read = {one for graph in graphs for node in graph.node for one in node.input}
        read |= {one.name for graph in graphs for one in graph.output}
        if name in read:
            continue
        for graph in graphs:
            for held in [one for one in graph.initializer if one.name == name]:
                graph.initializer.remove(held)
                for same in [one for one in graph.input if one.name == name]:
                    graph.input.remove(same)
            for node in [one for one in graph.node if name in one.output]:
                if not read & set(node.output):
                    todo += node.input
                    graph.node.remove(node)
