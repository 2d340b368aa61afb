"""What graphs of PyTorch tell of networks besides their arrays."""

from typing import Any

#: The operators of layers, and of cells, by what they have in common.
_LAYERS = {f"aten.{name}.input" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
_CELLS = {f"aten.rnn_{name}_cell.default" for name in ("tanh", "relu")}
_OF_SEVERAL = "prim::ListConstruct", "prim::TupleConstruct"  # in TorchScript
_PARAMS, _BATCH_FIRST = 2, 8  # places of arguments, of a cell's and a layer's operator


def told_by(program: Any) -> dict[str, dict[str, Any]]:
    """By the key of each array of a network how x lies, and of an RNN its activation.

    Of networks whose operators the program has; one that was decomposed has none. What
    two operators with the same arrays do not have in common is not told. An array that
    has several keys, as of a module with two names, has one of them in the graph.
    """
    signature = getattr(program, "graph_signature", None)
    keys = {
        **getattr(signature, "inputs_to_parameters", {}),
        **getattr(signature, "inputs_to_buffers", {}),
    }
    told: dict[str, dict[str, Any]] = {}
    for node in getattr(getattr(program, "graph", None), "nodes", ()):
        operator = str(node.target)
        options: dict[str, Any] = {}
        given = node.args[_PARAMS:]
        if operator in _LAYERS:
            given = node.args[_PARAMS]
            options["time_major"] = not node.args[_BATCH_FIRST]
        elif operator not in _CELLS:
            continue
        if "rnn" in operator:
            options["activation"] = "relu" if "relu" in operator else "tanh"
        for one in given:
            key = keys.get(getattr(one, "name", ""))
            if key is not None:
                before = told.get(key, options)
                told[key] = {k: v for k, v in options.items() if before.get(k) == v}
    places = {
        key: one.data_ptr()
        for key, one in program.state_dict.items()
        if hasattr(one, "data_ptr")
    }
    of_place = {places[key]: own for key, own in told.items() if key in places}
    others = {key: of_place[at] for key, at in places.items() if at in of_place}
    return others | told


def traced(module: Any) -> dict[str, Any]:
    """Attributes of a layer, or a cell, that torch.jit.trace has left to its graph."""
    try:
        nodes = [*module.graph.nodes()]
    except RuntimeError:  # it was not called, under this name at least
        return {}
    for node in nodes:
        operator = node.kind()
        if operator.removeprefix("aten::") in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            given = [one.toIValue() for one in node.inputs()]
            # One of a PackedSequence has another place.
            if not isinstance(given[3], bool) or not _is_alone(module.graph, node):
                return {}
            told = {"bidirectional": given[-2], "batch_first": given[-1]}
            return {**told, "nonlinearity": operator.rpartition("_")[2]}
    kinds = {node.kind().removeprefix("aten::").strip("_") for node in nodes}
    names = {"tanh", "rnn_tanh_cell"}, {"relu", "rnn_relu_cell"}
    tanh, relu = (bool(kinds & of) for of in names)
    return {} if tanh == relu else {"nonlinearity": "relu" if relu else "tanh"}


def _is_alone(graph: Any, layer: Any) -> bool:
    """Whether a graph has x and a state go into a layer, and out what that gives.

    As PyTorch's own have it, with a state of zeros where none is given.
    """
    x, state, *_ = layer.inputs()
    (result,) = graph.outputs()
    states, results = (
        [*one.node().inputs()] if one.node().kind() in _OF_SEVERAL else [one]
        for one in (state, result)
    )
    into = {one.debugName() for one in graph.inputs()}
    into |= {one.debugName() for one in states if one.node().kind() == "aten::zeros"}
    given = {one.debugName() for one in (x, *states)}
    gives = {one.debugName() for one in layer.outputs()}
    return given <= into and {one.debugName() for one in results} <= gives
