"""A recurrent node of ONNX as a network of one layer."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._onnx.activations import options_of
from prnn_jax.convert._onnx.chain import Layer
from prnn_jax.convert._onnx.graph import Node
from prnn_jax.convert._onnx.params import params_of
from prnn_jax.convert._onnx.states import initial_state, positions
from prnn_jax.convert._shared.directions import stack_directions
from prnn_jax.convert._shared.imported import Imported, check_dtype

_CELLS: dict[str, CellName] = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
#: The domain of operators of LiteRT, in what is read of its files.
TFLITE = "tflite"
#: ONNX Runtime's, of weights in 8 bits.
_QUANTIZED = "DynamicQuantizeLSTM"
_PROJECTED = (
    "PyTorch's exporter loses proj_size: import_pytorch takes the model itself."
)


def operator_of(node: Node) -> str | None:
    """LSTM, GRU or RNN; None of other nodes."""
    kind, domain = node.proto.op_type, node.proto.domain
    if (kind, domain) == (_QUANTIZED, "com.microsoft"):
        return "LSTM"
    return kind if kind in _CELLS and domain in ("", "ai.onnx", TFLITE) else None


def of_layer(layer: Layer) -> Imported:
    """Of one node, or of two that are its directions."""
    return of_directions(layer, network)


def of_directions(layer: Layer, made: Callable[[Node], Imported]) -> Imported:
    """The same, by what makes a network of a node."""
    op, one = layer.forward.op, made(layer.forward)
    if layer.backward is None:
        return one
    other = made(layer.backward)
    check(
        one.cell == other.cell
        and one.reset_after == other.reset_after
        and one.activation == other.activation
        and one.gate_activation == other.gate_activation
        and one.clip == other.clip
        and one.time_major == other.time_major,
        f"{op}: the nodes {one.name!r} and {other.name!r}, directions of one layer, "
        "must have the same options.",
    )
    given = one.state_0, other.state_0
    check(
        (given[0] is None) == (given[1] is None),
        f"{op}: {one.name!r} and {other.name!r}, directions of one layer, must both "
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


def network(node: Node) -> Imported:
    """Of one node."""
    operator, where = operator_of(node) or "", f"the node {node.name!r}"
    direction = node.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    arrays = {}
    for letter, position in {"W": 1, "R": 2, "B": 3, "P": 7}.items():
        if node.input(position):
            arrays[letter] = node.constant(position)
            check(
                arrays[letter] is not None,
                f"{node.op}: {letter} of {where}, {node.input(position)!r}, must be "
                "constant; it depends on the model's input, or on an operator that "
                "onnx.reference does not have.",
            )
    if node.proto.op_type == _QUANTIZED:
        arrays |= _dequantized(node, arrays, where)
    for letter, array in arrays.items():
        what = f"{letter} of {where}"
        check_dtype(node.op, what, array, "export the model in")
    if "P" in arrays and not arrays["P"].any():
        del arrays["P"]  # as good as none, and faster
    _check_options(node, where, arrays)
    clip = node.attribute("clip")
    params = params_of(node.op, operator, arrays)
    return Imported(
        layers=(params,),
        state_0=_state(node, params, where, directions),
        cell=_CELLS[operator],
        name=node.name,
        places=(node.name,),
        bidirectional=directions == 2,
        reverse=direction == "reverse",
        time_major=not node.attribute("layout", 0),
        reset_after=operator != "GRU" or bool(node.attribute("linear_before_reset", 0)),
        clip=None if clip is None else Clip(pre_activations=clip),
        **options_of(
            node.op,
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
            f"{node.op}: scale and zero point of {letter} of {where} must be constant.",
        )
        stored = np.asarray(arrays[letter], np.int32)  # [directions, input, 4*hidden]
        scale, zero = (np.asarray(x).reshape(len(stored), 1, -1) for x in (scale, zero))
        made[letter] = (stored - zero.astype(np.int32)) * scale.astype(np.float32)
        made[letter] = np.swapaxes(made[letter], 1, 2).astype(np.float32)
    return made


def _check_options(node: Node, where: str, arrays: dict[str, Any]) -> None:
    clip = node.attribute("clip")
    check(
        clip is None or 0 < clip < math.inf,
        f"{node.op}: {where} must have a positive clip, or none, got {clip}.",
    )
    check(
        not node.attribute("input_forget", 0),
        f"{node.op}: {where} must have input_forget=0; prnn_jax's LSTM has two gates.",
    )
    lengths = node.constant(4)
    check(
        lengths is None or _is_all_steps(node, lengths),
        f"{node.op}: {where} must have sequence_lens that are an input of the model, "
        f"got the constants {lengths}; make them one, and pass them as lengths.",
    )
    hidden, recurrent = node.attribute("hidden_size"), arrays["R"]
    check(
        hidden is None or np.shape(recurrent)[-1:] == (hidden,),
        f"{node.op}: {where} must have R [directions, G*hidden, hidden] with its "
        f"hidden_size {hidden}, got {list(np.shape(recurrent))}. {_PROJECTED}",
    )


def _is_all_steps(node: Node, lengths: np.ndarray) -> bool:
    """Whether all rows are as long as x, as far as the model says how long that is."""
    alike, sizes = list(np.unique(lengths)), node.scope.shape(node.input(0))
    steps = sizes[1 if node.attribute("layout", 0) else 0] if sizes else None
    return not alike or (len(alike) == 1 and steps in (None, alike[0]))


def _state(
    node: Node, params: Params, where: str, directions: int
) -> tuple[Any, ...] | None:
    """The initial state, where the node has a constant one that is not zero."""
    hidden, states = params.w_hh.shape[-2], []
    for position in positions(node):
        state, name = initial_state(node, position), node.input(position)
        known = node.constant(position)
        sizes = np.shape(known) if known is not None else node.scope.sizes(name)
        check(
            not sizes or node.is_written or sizes[-1] in (0, hidden),
            f"{node.op}: the initial state of {where}, {name!r}, must be "
            f"[{directions}, batch, {hidden}], of its directions and its R, got "
            f"[{', '.join(str(n or '?') for n in sizes or ())}]."
            f"{f' {_PROJECTED}' if position == 6 else ''}",
        )
        if state is None or (node.is_written and not state.any()):
            state = np.zeros((directions, 1, hidden))
        elif node.is_written and state.ndim < 3:
            state = state.reshape(1, -1, state.shape[-1])
        elif node.attribute("layout", 0) and state.ndim == 3:
            state = np.moveaxis(state, 0, 1)
        if state.ndim == 3 and len(state) == 1 == state.shape[1]:  # one row for all
            state = np.broadcast_to(state, (directions, 1, state.shape[-1]))
        check(
            state.ndim == 3 and len(state) == directions,
            f"{node.op}: the initial state of {where}, {name!r}, must be "
            f"[{directions}, batch, {hidden}], of its directions and its R, got "
            f"{list(state.shape)}.",
        )
        states.append(state if directions == 2 else state[0])
    if not any(state.any() for state in states):
        return None
    made = [jnp.asarray(state, params.w_hh.dtype) for state in states]
    return (tuple(made) if len(made) > 1 else made[0],)
