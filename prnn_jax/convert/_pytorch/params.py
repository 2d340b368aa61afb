"""The layers of PyTorch, which are also cuDNN's."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, described
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.directions import joined
from prnn_jax.convert._shared.layouts import Layout, split_directions

_PROJECTED = "weight_hr"

# Without the `_l0` or `_l0_reverse` after each name.
_LAYOUTS = {
    name: Layout(
        cell,
        ("weight_ih",),
        ("weight_hh",),
        ("bias_ih",),
        bias_hh=("bias_hh",),
        transposed=True,
        optional_bias=True,
    )
    for name, cell in {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}.items()
}


def from_pytorch(cell: str, state_dict: Mapping[str, Any]) -> tuple[Params, ...]:
    """`torch.nn.LSTM`, `GRU` or `RNN` as the `Params` of each of its layers.

    The same is computed by

        layers = from_pytorch("LSTM", module.state_dict())
        y, states = prnn_jax.stack("lstm", x, layers, bidirectional=...)

    and for one layer by `prnn_jax.lstm(x, layers[0])`; by "gru" with reset_after as it
    is by default; and by "rnn" with the activation that nonlinearity says, "tanh" or
    "relu". Without batch_first, x is `[time, batch, input]`, so with time_major=True.

    States are `(h, c)` like ours. PyTorch has those of all layers in one array, each
    `[layers*directions, batch, hidden]`: layer after layer, and of each first forward,
    then backward. Its dropout between layers is that of `stack`.

    Args:
      cell: "LSTM", "GRU" or "RNN".
      state_dict: of the module itself, tensors or arrays: `weight_ih_l0`
        `[G*hidden, input]`, `weight_hh_l0` `[G*hidden, hidden]`, `bias_ih_l0` and
        `bias_hh_l0` `[G*hidden]`; of an LSTM with a proj_size `weight_hr_l0`
        `[proj_size, hidden]`, which is `Params.w_hr`, and `weight_hh_l0`
        `[4*hidden, proj_size]`; the same with `_l0_reverse` if bidirectional, and with
        `_l1` and so on for more layers.

    Returns:
      `Params` of the first layer to the last, with two biases or none;
      `BidirectionalParams` of a bidirectional module.

    Raises:
      ValueError: arrays are missing, unknown, or of wrong shapes.
    """
    op = "from_pytorch"
    named_arrays.layout_of(op, _LAYOUTS, cell)
    named_arrays.check_mapping(op, "state_dict", state_dict, "module.state_dict()")
    state_dict = {str(name): value for name, value in state_dict.items()}
    hint = "pass the state_dict of the layer itself, with no prefix in the names"
    return layers_of(op, cell, state_dict, hint)


def layers_of(
    op: str, cell: str, state_dict: Mapping[str, Any], hint: str
) -> tuple[Params, ...]:
    """`from_pytorch` in the words of `op`, with what to do where arrays are missing."""
    layout = _LAYOUTS[cell]
    if cell == "LSTM" and any(name.startswith(_PROJECTED) for name in state_dict):
        layout = replace(layout, w_hr=(_PROJECTED,))
    layers = max(len(set(re.findall(r"_l(\d+)", " ".join(state_dict)))), 1)
    directions = 2 if any(name.endswith("_reverse") for name in state_dict) else 1
    sides = _sides(layout, layers, directions)
    has_bias = any(name.startswith("bias_") for name in state_dict)
    named_arrays.check_names(
        op,
        [name for s in sides for name in (s.names if has_bias else s.weights)],
        state_dict,
        hint=hint,
    )
    each = [{n: state_dict[n] for n in s.names if n in state_dict} for s in sides]
    read = [named_arrays.read(op, *side) for side in zip(sides, each, strict=True)]
    stack = tuple(
        joined(op, read[first : first + directions])
        for first in range(0, len(read), directions)
    )
    _check_stack(op, stack)
    return stack


def to_pytorch(cell: str, layers: Sequence[Params]) -> dict[str, np.ndarray]:
    """The inverse of `from_pytorch`.

        module = torch.nn.LSTM(input_size, hidden_size, num_layers=len(layers))
        arrays = to_pytorch("LSTM", layers)
        module.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()})

    The module must have the `proj_size` that `w_hr` is wide, if there is one, and
    `bias=False` if no layer has a bias. If some have, then those
    that are missing are zeros, because PyTorch has all or none.

    Args:
      cell: "LSTM", "GRU" (of `prnn_jax.gru` with reset_after only) or "RNN".
      layers: `Params` of the first layer to the last; with a leading axis of 2, the
        module is bidirectional.

    Returns:
      The state_dict, as NumPy arrays. There is no bfloat16 in `torch.from_numpy`;
      convert params to float32 before.

    Raises:
      ValueError: shapes do not fit, within a layer or from one to the next.
    """
    op = "to_pytorch"
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    layers = (layers,) if isinstance(layers, Params) else layers
    check(
        isinstance(layers, Iterable) and not isinstance(layers, Mapping),
        f"{op}: layers must be a sequence of prnn_jax.Params, got {described(layers)}.",
    )
    layers = tuple(layers)
    check(len(layers) > 0, f"{op}: layers must have at least one Params, got none.")
    leads = [named_arrays.lead_of(op, params) for params in layers]
    if cell == "LSTM" and any(params.w_hr is not None for params in layers):
        layout = replace(layout, w_hr=(_PROJECTED,))
        _check_projections(op, layers)
    for params, lead in zip(layers, leads, strict=True):
        named_arrays.check_params(op, layout, params, lead)
    _check_stack(op, layers)
    if any(p.b_ih is not None or p.b_hh is not None for p in layers):
        layout = replace(layout, optional_bias=False)
    directions = 2 if leads[0] else 1
    params = [p for layer in layers for p in split_directions(layer, directions == 2)]
    arrays: dict[str, np.ndarray] = {}
    sides = _sides(layout, len(layers), directions)
    for side, one in zip(sides, params, strict=True):
        arrays |= named_arrays.write_numpy(op, side, one)
    return arrays


def _sides(layout: Layout, layers: int, directions: int) -> list[Layout]:
    """The layout of each layer and direction, with PyTorch's names."""
    return [
        layout.named(suffix=f"_l{layer}{direction}")
        for layer in range(layers)
        for direction in ("", "_reverse")[:directions]
    ]


def _check_projections(op: str, layers: Sequence[Params]) -> None:
    """PyTorch has one proj_size of all layers, less than hidden_size."""
    for number, params in enumerate(layers):
        shape = getattr(params.w_hr, "shape", ())
        check(
            len(shape) >= 2 and shape[-1] < shape[-2],
            f"{op}: w_hr must be [hidden, projection] in all layers, with projection < "
            f"hidden as in PyTorch, or None in all, got {list(shape) or None} in layer "
            f"{number}.",
        )


def _check_stack(op: str, layers: Sequence[Params]) -> None:
    """Layers must fit on one another."""
    shape = layers[0].w_hh.shape
    outputs = shape[-2] * (shape[0] if len(shape) == 3 else 1)
    for number, (w_ih, w_hh, *_) in enumerate(layers):
        check(
            w_hh.shape == shape and w_hh.dtype == layers[0].w_hh.dtype,
            f"{op}: all layers must have the directions, hidden size and dtype of the "
            f"first, w_hh {list(shape)} {layers[0].w_hh.dtype}, got {list(w_hh.shape)} "
            f"{w_hh.dtype} in layer {number}.",
        )
        check(
            number == 0 or w_ih.shape[-2] == outputs,
            f"{op}: layer {number} must have as many inputs as the one before has "
            f"outputs, {outputs}, got {w_ih.shape[-2]}.",
        )
