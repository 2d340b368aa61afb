"""The public function for input that is projected already."""

from typing import Any

from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.options import (
    GivenState,
    Implementation,
    Lengths,
    MaskedY,
    Merge,
    Options,
    Precision,
    Reserve,
    Resets,
    State,
    Zoneout,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import AnyCell, check_cell_name
from prnn_jax._given import checks
from prnn_jax._given.params import (
    Params,
    warn_of_two,
)
from prnn_jax._given.statics import size
from prnn_jax._ops.run import call_of, run


def recurrence(
    cell: AnyCell,
    a_x: ArrayLike,
    w_hh: ArrayLike,
    state_0: GivenState | None = None,
    b_hh: ArrayLike | None = None,
    *,
    peepholes: ArrayLike | None = None,
    w_hr: ArrayLike | None = None,
    heads: int | None = None,
    reset_after: bool = True,
    activation: GivenActivations = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    cap: float = 20.0,
    skip: float = 0.0,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: GivenState | None = None,
    recurrent_mask: ArrayLike | None = None,
    zoneout: Zoneout = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    time_major: bool = False,
    reserve: Reserve = "fast",
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, State]:
    """A recurrence over pre-activations that were computed outside.

    `lstm(x, params)` is `recurrence("lstm", x @ params.w_ih + params.b_ih, ...)`.

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", with the equations given there; or what
        `define_cell` has made.
      a_x: `[*batch, time, G*hidden]`; with heads or directions, theirs side by side:
        `2*heads*G*hidden`, forward before backward, head by head, gate by gate.
      w_hh: `[hidden, G*hidden]`, with leading axes as in `Params`; with w_hr
        `[projection, G*hidden]`.
      state_0: as for the cell's own function.
      b_hh: `[G*hidden]`, with leading axes as in `Params`, or None for zero.
      peepholes: `[3*hidden]`, likewise, of an "lstm" with such.
      w_hr: `[hidden, projection]`, likewise, of an "lstm" with such.
      heads: how many w_hh has, for which it then has an axis; None for as many as there
        are. Says that an axis of 2 is heads and not directions.
      reset_after: as in `gru`.
      activation: as in the cell's own function.
      gate_activation: as in `lstm` and `gru`.
      clip: as in `lstm`.
      cap: as in `rnn`.
      skip: as in `rnn`.
      lengths: `[*batch]`, as in `lstm`.
      mask: `[*batch, time]`, which steps count, as in `lstm`.
      masked_y: y where one does not, as in `lstm`.
      resets: `[*batch, time]`, as in `lstm`.
      reset_to: shaped as state_0, as in `lstm`.
      recurrent_mask: `[*batch, hidden]`, as in `lstm`.
      zoneout: as in `lstm`.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      merge: as in `lstm`.
      time_major: as in `lstm`.
      reserve: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last state.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = Options.of(locals())
    check_cell_name("recurrence", cell)
    call = call_of("recurrence", cell, options)
    _check_heads(call, w_hh, heads)
    params: Any = Params(None, w_hh, None, b_hh, peepholes, w_hr)  # pyright: ignore[reportArgumentType]
    return run("recurrence", call, a_x, params, options)


def _check_heads(call: Call, w_hh, heads: int | None) -> None:
    """w_hh must have the heads that `recurrence` was told of."""
    directions = 2 if call.bidirectional else 1
    shape: Any = getattr(w_hh, "shape", ())
    if heads is not None:
        heads = size("recurrence", "heads", heads)
        checks.check(
            len(shape) == 2 + directions and shape[-3] == heads,
            f"recurrence: w_hh must have an axis of heads={heads} before its last two, "
            f"got {list(shape)}.",
        )
    elif len(shape) == 3 and shape[0] == 2 and not call.bidirectional:
        warn_of_two("recurrence", shape, "heads=2")
