"""Whole models of OpenVINO."""

from collections.abc import Sequence
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._onnx.graph import Scope
from prnn_jax.convert._onnx.making import why_unread
from prnn_jax.convert._onnx.search import network
from prnn_jax.convert._openvino.file import loaded, whole
from prnn_jax.convert._openvino.graph import DOMAIN, as_onnx, kept
from prnn_jax.convert._openvino.loops import TRANSLATORS
from prnn_jax.convert._openvino.network import Network
from prnn_jax.convert._openvino.recurrent import KINDS, activations_of
from prnn_jax.convert._shared.imported import Imported

_OP = "import_openvino"
#: What has states of its own, where it is not read.
_RECURRENCES = (*KINDS, "AUGRUCell", "AUGRUSequence", "TensorIterator", "Loop")
_ACTIVATIONS = "relu", "sigmoid", "tanh"
_MISSING = (
    "the model must have a recurrent operator, of "
    f"{', '.join(KINDS)}, or an LSTM, a GRU or an RNN whose cell is written out in "
    "products, sums and activations, got {}."
)


def import_openvino(model: Any, name: str | Sequence[str] | None = None) -> Imported:
    """A recurrent network of a model of OpenVINO: its LSTM, GRU or RNN.

        net = prnn_jax.convert.import_openvino("model.xml")
        y, states = net(x)

    `net` computes what the operator does, and is called with x in the operator's
    layout; y has directions side by side. Operators that follow one another with
    nothing but a change of layout between them are the layers of one network. The
    operators are LSTMSequence, GRUSequence and RNNSequence, of which x is `[batch,
    time, input]`; LSTMCell, GRUCell and RNNCell, of which it is so too, with as many
    steps as the caller has; and these in a TensorIterator or a Loop. A cell may also be
    written out: what `import_onnx` says of these holds here too. Of sequence_lengths
    that are an input of the model, give `lengths` to the call.

    A model that keeps its states from run to run, by ReadValue and Assign, begins here
    with what it begins with, unless a call is given them as `state_0`; it returns them
    as they are after the last step.

    Weights of float16, bfloat16 and of 4 and 8 bits, as NNCF compresses them, become
    the float32 that they stand for. What is rounded between the operators of a
    quantized model (FakeQuantize) is not rounded here.

    Args:
      model: the path of an `.xml` file, whose weights are in the `.bin` file beside it;
        or an `openvino.Model`.
      name: which operator, where there are several that differ: its name, as Netron
        shows it; of one in a loop after the loop's. A sequence of names: the layers of
        a network.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: it is no such file, or damaged, or of 2019 and before; it has no such
        operator, or several and `name` says none of them, or another recurrence
        besides; weights depend on the model's input; it changes states between steps;
        or the operator has other activations than OpenVINO runs. Says which, and what
        to do.
      FileNotFoundError: there is no such file, or no weights beside it.
      ImportError: the package onnx is missing.
    """
    what, source = loaded(model)
    _check_activations(source)
    with whole(what):
        made = as_onnx(source, TRANSLATORS)
        states = kept(source)
    scope = Scope(made.graph, made.opset_import, op=_OP, kept=states)
    kinds = sorted({one.kind for one in source.all_layers()} - {"Const"})
    missing = _MISSING.format(", ".join(kinds)) + why_unread(source.all_layers())
    found = network([scope], name, missing)
    unread = [
        node.name
        for node in scope.nodes()
        if node.proto.domain == DOMAIN and node.proto.op_type in _RECURRENCES
    ]
    unread += [
        one.name for one in source.all_layers() if {*one.holds} & {*_RECURRENCES}
    ]
    check(
        name is not None or not unread,
        f"{_OP}: name must say which node is meant, as {found.name!r}, because the "
        f"model has another recurrence, in {', '.join(map(repr, unread))}, that is not "
        "read here.",
    )
    return found


def _check_activations(source: Network) -> None:
    """That they are those that OpenVINO runs, whatever else a file may say."""
    for layer in source.all_layers():
        if layer.kind in KINDS:
            names = activations_of(layer)
            check(
                {name.lower() for name in names} <= {*_ACTIVATIONS},
                f"{_OP}: {layer.name!r} ({layer.kind}) must have activations of "
                f"{', '.join(_ACTIVATIONS)}, got {', '.join(names)}.",
            )
