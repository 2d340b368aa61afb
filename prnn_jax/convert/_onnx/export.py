"""Layers as a model of ONNX."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prnn_jax._call.choose import cell_of
from prnn_jax._call.options import Options
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CellName
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams, Params
from prnn_jax._given.statics import flag
from prnn_jax.convert._onnx.activations import attributes_of
from prnn_jax.convert._onnx.params import arrays_of
from prnn_jax.convert._shared.imported import Imported

_OP = "export_onnx"
_OPERATORS: dict[str, str] = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
#: In which LSTM, GRU and RNN have the inputs and attributes that are written here.
_OPSET = 14


def export_onnx(
    cell: CellName | Imported,
    layers: Sequence[Params] | None = None,
    *,
    bidirectional: bool = False,
    merge: str = "concat",
    reverse: bool = False,
    time_major: bool = False,
    reset_after: bool = True,
    activation: GivenActivations = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    state: bool = False,
) -> Any:
    """Layers as an `onnx.ModelProto` that computes what `prnn_jax.stack` does.

        model = prnn_jax.convert.export_onnx(network)
        onnx.save(model, "network.onnx")

    Its input is "x", its output "y", of any batch and time, as `time_major` says. With
    `state`, a stream can be run chunk by chunk: the inputs "h_0", "h_1", … (and "c_0",
    … of the LSTM) are the layers' states `[directions, batch, hidden]` before, and the
    outputs "h_0_out", … those after.

    Args:
      cell: "lstm", "gru" or "rnn"; or a network, with its layers and options.
      layers: the parameters of each, of float32; peepholes are ONNX's P.
      bidirectional: as in `prnn_jax.stack`.
      merge: as in `prnn_jax.stack`.
      reverse: as in `prnn_jax.lstm`, of a single layer.
      time_major: as in `prnn_jax.stack`.
      reset_after: as in `prnn_jax.gru`.
      activation: as in the cell's own function, of those that ONNX has.
      gate_activation: as in `prnn_jax.lstm` and `gru`, likewise.
      clip: as in `prnn_jax.lstm`; ONNX has that of pre-activations alone. That of
        gradients is no part of a model.
      state: whether the states are inputs and outputs.

    Raises:
      ValueError: ONNX has no such cell, or shapes do not fit; says what was expected.
      ImportError: the package onnx is missing.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        message = f"{_OP} needs the package onnx: pip install onnx."
        raise ImportError(message) from error
    if isinstance(cell, Imported):
        options = _options_of(cell)
        given = layers, bidirectional, merge, reverse, time_major, reset_after
        given = *given, activation, gate_activation, clip
        check(
            given == _USUAL,
            f"{_OP}: of a network only state may be given, for it has layers and "
            "options; dataclasses.replace(network, ...) has others.",
        )
        return export_onnx(cell.cell, cell.layers, state=state, **options)
    checks.one_of(_OP, "cell", cell, tuple(_OPERATORS))
    checks.one_of(_OP, "merge", merge, ("concat", "sum"))
    flags = {"bidirectional": bidirectional, "reverse": reverse, "state": state}
    flags |= {"time_major": time_major, "reset_after": reset_after}
    flags = {name: flag(_OP, name, value) for name, value in flags.items()}
    layers = list(layers or ())
    check(len(layers) > 0, f"{_OP}: layers must be at least one, got none.")
    check(
        not flags["reverse"] or (len(layers) == 1 and not flags["bidirectional"]),
        f"{_OP}: reverse must be False for several layers or directions, got True.",
    )
    operator, states = _OPERATORS[cell], "hc" if cell == "lstm" else "h"
    directions = 2 if flags["bidirectional"] else 1
    direction = "bidirectional" if directions == 2 else "forward"
    direction = "reverse" if flags["reverse"] else direction
    attributes: dict[str, Any] = {"direction": direction}
    if cell == "gru":
        attributes["linear_before_reset"] = int(flags["reset_after"])
    chosen = activation, gate_activation
    options = Options(activation=activation, gate_activation=gate_activation, clip=clip)
    call = cell_of(_OP, cell, options)
    attributes |= attributes_of(_OP, operator, *chosen, directions)
    attributes |= _clip_of(call.get("clip"))
    graph = _Graph(onnx)
    of_step = layers[0].w_ih.shape[-2]
    axes: list[Any] = ["time", "batch"] if time_major else ["batch", "time"]
    x = graph.input("x", [*axes, of_step])
    x = x if time_major else graph.node("Transpose", [x], perm=[1, 0, 2])
    for n, params in enumerate(layers):
        check(
            not isinstance(params, BidirectionalParams) or directions == 2,
            f"{_OP}: layer {n} has two directions; write bidirectional=True.",
        )
        arrays = arrays_of(_OP, operator, params)
        hidden = params.w_hh.shape[-2]
        check(
            arrays["R"].shape[0] == directions and arrays["W"].dtype == np.float32,
            f"{_OP}: layer {n} must be of {directions} direction(s) in float32, got "
            f"w_hh {list(params.w_hh.shape)} of {arrays['W'].dtype}.",
        )
        check(
            arrays["W"].shape[-1] == of_step,
            f"{_OP}: layer {n} must be for an input of {of_step} features, got w_ih "
            f"{list(params.w_ih.shape)}.",
        )
        names = [graph.constant(f"{k}_{n}", arrays[k]) for k in ("W", "R")]
        names.append(graph.constant(f"B_{n}", arrays["B"]) if "B" in arrays else "")
        before = [""] * len(states)
        if flags["state"]:
            shape = [directions, "batch", hidden]
            before = [graph.input(f"{s}_{n}", shape) for s in states]
        peepholes = [graph.constant(f"P_{n}", arrays["P"])] if "P" in arrays else []
        after = [f"{s}_{n}_out" for s in states] if flags["state"] else []
        y = graph.node(
            operator,
            [x, *names, "", *before, *peepholes],
            more=after,
            hidden_size=hidden,
            **attributes,
        )
        for name in after:
            graph.output(name, [directions, "batch", hidden])
        x, of_step = graph.side_by_side(y, merge, directions), hidden * directions
        of_step = hidden if merge == "sum" else of_step
    x = x if time_major else graph.node("Transpose", [x], perm=[1, 0, 2])
    graph.rename_last("y")
    graph.output("y", [*axes, of_step], first=True)
    return graph.model()


#: What `export_onnx` has where nothing is given, in its order.
_USUAL = None, False, "concat", False, False, True, "tanh", "sigmoid", None


def _options_of(network: Imported) -> dict[str, Any]:
    check(
        network.state_0 is None,
        f"{_OP}: the network has initial states of its own; with state=True they are "
        "inputs of the model, and dataclasses.replace(network, state_0=None) is "
        "without.",
    )
    return network.options


def _clip_of(clip: Clip | None) -> dict[str, float]:
    """The attribute that says the same."""
    if clip is None:
        return {}
    check(
        clip.state is None and clip.projection is None,
        f"{_OP}: clip must be of pre_activations alone, as ONNX has it, got {clip}.",
    )
    bound = clip.pre_activations
    return {} if bound is None else {"clip": bound}


class _Graph:
    """Nodes, one after the other, and what goes in and out."""

    def __init__(self, onnx: Any):
        self._onnx = onnx
        self._nodes, self._constants = [], []
        self._inputs, self._outputs = [], []

    def input(self, name: str, shape: list) -> str:
        self._inputs.append(self._value(name, shape))
        return name

    def output(self, name: str, shape: list, *, first: bool = False) -> None:
        at = 0 if first else len(self._outputs)
        self._outputs.insert(at, self._value(name, shape))

    def constant(self, name: str, array: np.ndarray) -> str:
        to_proto = self._onnx.numpy_helper.from_array
        self._constants.append(to_proto(np.ascontiguousarray(array), name))
        return name

    def node(self, operator: str, inputs: list[str], more=(), **attributes) -> str:
        """The name of its first output; `more` are those of others."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        out = f"{operator.lower()}_{len(self._nodes)}"
        outputs = [out, *more]
        make = self._onnx.helper.make_node
        self._nodes.append(make(operator, inputs, outputs, name=out, **attributes))
        return out

    def side_by_side(self, y: str, merge: str, directions: int) -> str:
        """Y `[time, directions, batch, hidden]` as a sequence."""
        at = len(self._nodes)
        if directions == 1:
            return self.node("Squeeze", [y, self._axes(at, [1])])
        if merge == "sum":
            return self.node("ReduceSum", [y, self._axes(at, [1])], keepdims=0)
        y = self.node("Transpose", [y], perm=[0, 2, 1, 3])
        return self.node("Reshape", [y, self._axes(at, [0, 0, -1])])

    def _axes(self, n: int, values: list[int]) -> str:
        return self.constant(f"axes_{n}", np.asarray(values, np.int64))

    def rename_last(self, name: str) -> None:
        """The output of the last node."""
        self._nodes[-1].output[0] = name

    def model(self) -> Any:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "prnn_jax", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        self._onnx.checker.check_model(model, full_check=True)
        return model

    def _value(self, name: str, shape: list) -> Any:
        kind = self._onnx.TensorProto.FLOAT
        return self._onnx.helper.make_tensor_value_info(name, kind, shape)
