"""The layers of Keras 3."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from prnn_jax._cells.activations import Activation, ActivationName, GivenActivation
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._given.statics import flag
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.directions import joined
from prnn_jax.convert._shared.layouts import Layout, split_directions

_layout = partial(
    Layout,
    w_ih=("kernel",),
    w_hh=("recurrent_kernel",),
    bias=("bias",),
    optional_bias=True,
)

# Gates are i f c o and z r h. The first GRU's bias is `[2, 3*hidden]`, here in one row.
_LAYOUTS = {
    "LSTM": _layout("lstm"),
    "GRU": _layout("gru", bias_hh=("bias",), order="zrn"),
    "SimpleRNN": _layout("rnn"),
}
_GRU_RESET_BEFORE = _layout("gru_reset_before", order="zrn")


def activations(*, of_keras_2: bool) -> dict[str, GivenActivation]:
    """Keras' activations that the cells have, by Keras' names."""
    hard = Activation("hard_sigmoid", 0.2, 0.5) if of_keras_2 else "hard_sigmoid"
    alike: tuple[ActivationName, ...] = (
        *("tanh", "sigmoid", "relu", "linear", "softsign", "softplus", "elu"),
        "hard_tanh",
    )
    return {
        **{name: name for name in alike},
        "hard_sigmoid": hard,
        "leaky_relu": Activation("leaky_relu", 0.2),
    }


def from_keras(
    cell: str, weights: Sequence[Any], *, reset_after: bool = True
) -> Params:
    """`keras.layers.LSTM`, `GRU` or `SimpleRNN`, or a `Bidirectional` one, as `Params`.

    The same is computed, from a layer with return_sequences=True and Keras' own
    activations, by

    - LSTM: `prnn_jax.lstm(x, params)`. unit_forget_bias is about how the bias begins:
      the 1 is in the weights, and nothing is added when the layer runs.
    - GRU: `prnn_jax.gru(x, params, reset_after=reset_after)`, the layer's reset_after.
    - SimpleRNN: `prnn_jax.rnn(x, params, activation=...)`, "tanh" or "relu".
    - Bidirectional with merge_mode="concat": the same with bidirectional=True.
    - go_backwards: the same with reverse=True, except that Keras' outputs are in the
      order of processing.

    States are `h, c` like ours; of a Bidirectional layer first both forward, then both
    backward. Dropout is not a part of this.

    Args:
      cell: "LSTM", "GRU" or "SimpleRNN".
      weights: `layer.get_weights()`: kernel `[input, G*hidden]`, recurrent_kernel
        `[hidden, G*hidden]`, and, unless use_bias=False, bias `[G*hidden]`, or
        `[2, 3*hidden]` with reset_after. Of a Bidirectional layer twice as many.
      reset_after: of the GRU; other layers do not look at it.

    Returns:
      `Params`; with two biases from a GRU with reset_after, else with b_ih alone. A
      Bidirectional layer's are `BidirectionalParams`.

    Raises:
      ValueError: another number of weights, wrong shapes, or a bias that belongs to the
        other reset_after.
    """
    op = "from_keras"
    reset_after = flag(op, "reset_after", reset_after)
    check(
        isinstance(weights, (tuple, list)),
        f"{op}: weights must be a list of arrays, layer.get_weights(), got "
        f"{type(weights).__name__}.",
    )
    layout = _layout_of(op, cell, reset_after)
    count = len(weights)
    check(
        count in (2, 3, 4, 6),
        f"{op}: weights must be kernel, recurrent_kernel and, with use_bias, bias: 2 "
        f"or 3 arrays, twice as many if Bidirectional, got {count}; pass "
        "layer.get_weights() of one layer.",
    )
    each = count // 2 if count > 3 else count
    directions = []
    for prefix, first in (("", 0), ("backward ", each))[: count // each]:
        side = layout.named(prefix)
        given = weights[first : first + each]
        names = (*side.weights, *side.biases)[:each]
        arrays = dict(zip(names, given, strict=True))
        if cell == "GRU" and each == 3:
            arrays[names[2]] = _one_row(op, names[2], arrays[names[2]], reset_after)
        directions.append(named_arrays.read(op, side, arrays))
    return joined(op, directions)


def to_keras(
    cell: str, params: Params, *, reset_after: bool = True
) -> list[np.ndarray]:
    """The inverse of `from_keras`, for `layer.set_weights`.

    The layer must have `use_bias=False` if params have no bias, and it must be
    Bidirectional if params have a leading axis of 2. Only the GRU with reset_after
    keeps two biases; for the others they become one, their sum.

    Args:
      cell: "LSTM", "GRU" or "SimpleRNN".
      params: with the gates that the layer has.
      reset_after: of the GRU; other layers do not look at it.

    Raises:
      ValueError: shapes do not fit.
    """
    op = "to_keras"
    reset_after = flag(op, "reset_after", reset_after)
    layout = _layout_of(op, cell, reset_after)
    lead = named_arrays.lead_of(op, params)
    named_arrays.check_params(op, layout, params, lead)
    weights = []
    for one in split_directions(params, bool(lead)):
        arrays = named_arrays.write_numpy(op, layout, one)
        if layout.bias_hh and "bias" in arrays:
            arrays["bias"] = arrays["bias"].reshape(2, -1)
        weights += [arrays[name] for name in layout.names if name in arrays]
    return weights


def _layout_of(op: str, cell: str, reset_after: bool) -> Layout:
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    return _GRU_RESET_BEFORE if cell == "GRU" and not reset_after else layout


def _one_row(op: str, name: str, bias: Any, reset_after: bool) -> Any:
    """A GRU's bias with its two rows side by side."""
    wanted = "[2, 3*hidden]" if reset_after else "[3*hidden]"
    bias = named_arrays.as_array(op, name, bias)
    shape = checks.array(op, name, bias).shape
    check(
        len(shape) == 2 and shape[0] == 2 if reset_after else len(shape) == 1,
        f"{op}: {name} must be {wanted} with reset_after={reset_after}, got "
        f"{list(shape)}; reset_after must be that of the layer, here and in "
        "prnn_jax.gru.",
    )
    return bias.reshape(-1)
