"""Whole models of ONNX."""

import os
from collections.abc import Sequence
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.graph import Scope
from prnn_jax.convert._onnx.search import network
from prnn_jax.convert._shared.imported import Imported

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
_MISSING = (
    "the model must have a node LSTM, GRU or RNN, or an LSTM, a GRU or an RNN whose "
    "cell is written out as PyTorch's exporter or tf2onnx does, got {}."
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
    scope, hint = scope_of(proto), _HINTS.get(proto.producer_name, "")
    operators = sorted({node.proto.op_type for node in scope.nodes()})
    missing = f"{_MISSING.format(', '.join(operators))}{hint}"
    return network([scope], name, missing)


def scope_of(proto: Any) -> Scope:
    """The graph of a model."""
    return Scope(proto.graph, proto.opset_import)


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
