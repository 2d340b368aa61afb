"""Which cell a call is of, by the function that runs it and its options."""

import math
from dataclasses import replace
from typing import Any

from prnn_jax._call.options import Options
from prnn_jax._cells.activations import (
    RELU,
    TANH,
    USUAL,
    Activation,
    Activations,
    activations_of,
    applied,
)
from prnn_jax._cells.clip import Clip, checked
from prnn_jax._cells.table import CELLS, AnyCell, CellName, Defined
from prnn_jax._given import statics
from prnn_jax._given.checks import check

#: Options of cells that have gates.
GATED = "activation", "gate_activation", "clip"

#: Options that say which cell it is.
_OF_CELLS = *GATED, "reset_after", "cap", "skip"


def cell_of(op: str, function: AnyCell, options: Options) -> dict[str, Any]:
    """The fields of `Call` that say which cell it is."""
    if options.activation is None:  # where a function is of all cells
        options = replace(options, activation=Options.activation)
    if isinstance(function, Defined):
        for name in _OF_CELLS:
            given = getattr(options, name)
            check(
                given == getattr(Options, name),
                f"{op}: {function.name} has no {name}, got {given!r}.",
            )
        check(
            options.reserve == "fast" or CELLS[function.row].norm is not None,
            f"{op}: reserve must be 'fast' for {function.name}, whose gates none make "
            "again, got 'lean'; jax.checkpoint around the call saves memory.",
        )
        return {"cell": function.row}
    activation, gate_activation = options.activation, options.gate_activation
    clip = _clip(op, function, options.clip)
    if function == "rnn":
        check(
            gate_activation == "sigmoid",
            f"{op}: the rnn has no gates; gate_activation must be 'sigmoid', got "
            f"{gate_activation!r}.",
        )
        return _rnn(op, options, clip)
    f = activations_of(op, activation, gate_activation)
    check(
        function != "slstm" or f == USUAL,
        f"{op}: the slstm has activations of its own; activation must be 'tanh' and "
        f"gate_activation 'sigmoid', got {activation!r} and {gate_activation!r}.",
    )
    check(
        function == "lstm" or f.candidate == f.output,
        f"{op}: activation must be one, for the {function}, got {activation!r}.",
    )
    after = statics.flag(op, "reset_after", options.reset_after)
    is_usual = f == USUAL and clip is None
    cell: str = function if is_usual else f"{function}_general"
    if function == "gru" and not after:
        cell = "gru_reset_before"
    return {"cell": cell, "f": f.clipped(clip), "clip": clip}


def _clip(op: str, function: CellName, given: Any) -> Clip | None:
    clip = checked(op, given)
    check(
        clip is None or function != "slstm",
        f"{op}: clip must be None for the slstm, whose gates are exponential and "
        f"scaled by its state m, got {given!r}.",
    )
    for name in ("state", "projection") if function != "lstm" else ():
        check(
            clip is None or getattr(clip, name) is None,
            f"{op}: clip.{name} must be None for the {function}, for only the lstm has "
            f"{'a c' if name == 'state' else 'a projection'}, got {given!r}.",
        )
    return clip


def _rnn(op: str, options: Options, clip: Clip | None) -> dict[str, Any]:
    activation: Any = options.activation
    cap = statics.number(op, "cap", options.cap)
    skip = float(statics.number(op, "skip", options.skip))
    check(cap > 0, f"{op}: cap must be positive, got {cap}.")
    if activation == "clipped_relu":
        activation = Activation("clipped_relu", cap) if math.isfinite(cap) else "relu"
    f = applied(op, "activation", activation)
    if clip is not None:
        f = Activations(candidate=f).clipped(clip)
        return {"cell": "rnn_general", "skip": skip, "f": f, "clip": clip}
    if f == TANH:
        return {"cell": "rnn_tanh", "skip": skip}
    if f == RELU._replace(high=f.high):
        return {"cell": "rnn_relu", "skip": skip, "cap": f.high}
    return {"cell": "rnn_general", "skip": skip, "f": Activations(candidate=f)}
