"""Whole models of LiteRT (TensorFlow Lite)."""

import functools
from collections.abc import Sequence
from typing import Any

from prnn_jax.convert._onnx.graph import Scope
from prnn_jax.convert._onnx.making import why_unread
from prnn_jax.convert._onnx.search import network
from prnn_jax.convert._shared.imported import Imported
from prnn_jax.convert._tflite.file import loaded, subgraphs, whole
from prnn_jax.convert._tflite.fused import KINDS, recurrent
from prnn_jax.convert._tflite.graph import as_onnx, kept
from prnn_jax.convert._tflite.nodes import of_layer
from prnn_jax.convert._tflite.operators import TRANSLATORS

_OP = "import_tflite"
_TRANSLATORS = {**TRANSLATORS, **dict.fromkeys(KINDS, recurrent)}
_MISSING = (
    "the model must have a recurrent operator, of "
    f"{', '.join(KINDS)}, or an LSTM, a GRU or an RNN whose cell is written out as "
    "TensorFlow's converter does, unrolled or in a WHILE, got {}. If it is of Keras, "
    "import_keras takes the model itself, or its file."
)


def import_tflite(model: Any, name: str | Sequence[str] | None = None) -> Imported:
    """A recurrent network of a LiteRT (TensorFlow Lite) file: its LSTM, GRU or RNN.

        net = prnn_jax.convert.import_tflite("model.tflite")
        y, states = net(x)

    `net` computes what the operator does, and is called with x as the operator reads
    it; y has directions side by side. Operators that follow one another with nothing
    but a change of layout between them are the layers of one network; two, of which
    one reads the other's x from its end, as of Keras' Bidirectional, are a layer's
    directions. The operators are UNIDIRECTIONAL_SEQUENCE_LSTM and _RNN,
    BIDIRECTIONAL_SEQUENCE_LSTM and _RNN, and LSTM and RNN, of which x is `[batch, time,
    input]`. A second input of a bidirectional one is read beside the first:
    `jnp.concatenate([x, other], -1)`. A coupled input gate (CIFG), which is 1 - f, has
    the weights of the forget gate with the other sign: that is the same, until they
    are trained apart. With layer norm `net.cell` is a `prnn_jax.NormedCell`.

    An LSTM, a GRU or an RNN may also be written out, unrolled or in a WHILE, as
    TensorFlow's converter does with many layers of Keras: what `import_onnx` says of
    these holds here too.

    States begin with zeros, as an interpreter's do; it keeps them from run to run,
    until it is told to reset them, and here a call is given them as `state_0`.

    Weights of 8, 16 and 4 bits, and of float16, become the float32 that they stand
    for, in files of integers alone too. LiteRT rounds x, h and what is between to 8 or
    16 bits then, and `net` does not: its numbers are not LiteRT's, but closer to those
    of the model before it was quantized.

    Args:
      model: the path of a `.tflite` file, or its bytes.
      name: which operator, where there are several that differ: the name of its first
        output, as Netron shows it; of one in a WHILE after the loop's. A sequence of
        names: the layers of a network.

    Returns:
      The network, with its parameters as JAX's arrays, float32.

    Raises:
      ValueError: it is no such file, or damaged; it has no such operator, or several
        and `name` says none of them, or another recurrence besides; weights depend on
        the model's input, are sparse or in another file; it changes states between
        steps; or the operator has what prnn_jax has not: a bias of its projection, or
        layer norm with peepholes, projection, clips or another activation. Says which,
        and what to do.
      FileNotFoundError: there is no such file.
      ImportError: the package tflite or onnx is missing.
    """
    what, data = loaded(model)
    with whole(what):
        graphs = subgraphs(data)
        models, fused = as_onnx(graphs, _TRANSLATORS)
        states = kept(graphs)
    scopes = [Scope(one.graph, one.opset_import, op=_OP, kept=states) for one in models]
    operators = sorted({one.kind for graph in graphs for one in graph.operators})
    constants = (tensor for graph in graphs for tensor in graph.tensors)
    missing = _MISSING.format(", ".join(operators)) + why_unread(constants)
    return network(scopes, name, missing, functools.partial(of_layer, fused=fused))
