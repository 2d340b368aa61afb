"""The operators of ONNX."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams, Params
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.layouts import Layout

# Gates are i o f c and z r h.
_LAYOUTS = {
    name: Layout(
        cell,
        ("W",),
        ("R",),
        ("B",),
        bias_hh=("B",),
        transposed=True,
        order=order,
        optional_bias=True,
    )
    for name, cell, order in (
        ("LSTM", "lstm", "iofg"),
        ("GRU", "gru", "zrn"),
        ("RNN", "rnn", "h"),
    )
}


def from_onnx(cell: str, inputs: Mapping[str, Any]) -> Params:
    """ONNX's operator LSTM, GRU or RNN as `Params`.

    With the operator's default activations (of the RNN also Relu), no clip, no
    input_forget and layout=0, the same is computed by

    - LSTM: `prnn_jax.lstm(x, params, time_major=True)`
    - GRU: `prnn_jax.gru(x, params, reset_after=..., time_major=True)`, with what
      linear_before_reset says; ONNX's default, 0, is reset_after=False
    - RNN: `prnn_jax.rnn(x, params, activation=..., time_major=True)`

    with reverse=True for direction="reverse" and bidirectional=True for
    "bidirectional". X is x; Y is `[time, directions, batch, hidden]`, so y with its
    directions side by side. Y_h and Y_c are the last states, and like initial_h and
    initial_c `[directions, batch, hidden]`, which is what ours are if bidirectional.

    Args:
      cell: "LSTM", "GRU" or "RNN".
      inputs: the operator's own, by the names they have in its definition: W
        `[directions, G*hidden, input]`, R `[directions, G*hidden, hidden]`, B
        `[directions, 2*G*hidden]` where it has a bias, and P `[directions, 3*hidden]`
        where an LSTM has peepholes. In a node they are inputs 1, 2, 3 and 7;
        `onnx.numpy_helper.to_array` makes an array of an initializer.

    Returns:
      `Params` with two biases, or none; with two directions `BidirectionalParams`.

    Raises:
      ValueError: arrays are missing, unknown, or of wrong shapes.
    """
    return params_of("from_onnx", cell, inputs)


def params_of(op: str, cell: str, inputs: Mapping[str, Any]) -> Params:
    """`from_onnx` in the words of `op`."""
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    wanted = 'such as {"W": ..., "R": ..., "B": ...}'
    named_arrays.check_mapping(op, "inputs", inputs, wanted)
    inputs = {
        name: named_arrays.as_array(op, name, value)
        for name, value in inputs.items()
        if value is not None
    }
    peepholes = inputs.pop("P", None) if cell == "LSTM" else None
    shape = np.shape(inputs.get("W", ()))
    check(
        "W" not in inputs or (len(shape) == 3 and shape[0] in (1, 2)),
        f"{op}: W must be [directions, G*hidden, input] with 1 or 2 directions, got "
        f"{list(shape)}.",
    )
    params = named_arrays.read(op, layout, inputs, shape[:1])
    if peepholes is not None:
        hidden = params.w_hh.shape[-2]
        check(
            np.shape(peepholes) == (*shape[:1], 3 * hidden),
            f"{op}: P must be [directions, 3*hidden] = {[*shape[:1], 3 * hidden]}, got "
            f"{list(np.shape(peepholes))}.",
        )
        params = params._replace(peepholes=_last_two_exchanged(jnp.asarray(peepholes)))
    if shape[0] == 2:
        return BidirectionalParams(*params)
    return jax.tree.map(lambda array: array[0], params)


def to_onnx(cell: str, params: Params) -> dict[str, np.ndarray]:
    """The inverse of `from_onnx`: W, R and, if params have such, B and P.

    The GRU must say `linear_before_reset=1` for a `prnn_jax.gru` with reset_after,
    which is our default and not ONNX's.

    Args:
      cell: "LSTM", "GRU" or "RNN".
      params: with the gates that the operator has; with a leading axis of 2 for
        direction="bidirectional".

    Returns:
      NumPy arrays, for `onnx.numpy_helper.from_array`.

    Raises:
      ValueError: shapes do not fit.
    """
    return arrays_of("to_onnx", cell, params)


def arrays_of(op: str, cell: str, params: Params) -> dict[str, np.ndarray]:
    """`to_onnx` in the words of `op`."""
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    lead = named_arrays.lead_of(op, params)
    w_hr = params.w_hr
    check(
        w_hr is None,
        f"{op}: ONNX's LSTM has no projection, so params.w_hr must be None, got "
        f"{None if w_hr is None else list(w_hr.shape)}. The same is computed by a "
        "layer without, of w_hh = w_hr @ w_hh, and a product of its y with w_hr.",
    )
    peepholes, params = params.peepholes, params._replace(peepholes=None)
    named_arrays.check_params(op, layout, params, lead)
    check(
        peepholes is None or cell == "LSTM",
        f"{op}: only the LSTM has peepholes, got some for the {cell}.",
    )
    if not lead:
        params = jax.tree.map(lambda array: array[None], params)
    arrays = named_arrays.write_numpy(op, layout, params, lead or (1,))
    if peepholes is not None:
        peepholes = np.asarray(_last_two_exchanged(peepholes))
        arrays["P"] = peepholes.reshape(*(lead or (1,)), -1)
    return arrays


def _last_two_exchanged(peepholes: Any) -> Any:
    """Those of i, o, f as those of i, f, o, and vice versa."""
    i, second, third = jnp.split(peepholes, 3, -1)
    return jnp.concatenate([i, third, second], -1)
