"""Checks the arrays of a public call against each other, and reads off its sizes."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from prnn_jax import _checks
from prnn_jax._call import Call
from prnn_jax._cells import State
from prnn_jax._checks import check


@dataclass(frozen=True)
class Arguments:
    """The arrays of a call, which fit together, and its sizes.

    Attributes:
      x: `[*batch, time, features]`, or `[time, *batch, features]` if time-major: the
        input, or, where w_ih is None, the pre-activations.
      w_ih: this and the next three as in `prnn_jax.Params`.
      w_hh: see there.
      b_ih: see there.
      b_hh: see there.
      states: the initial state, or None.
      state_count: how many arrays the state is.
      directions: 2 if bidirectional.
      batch: sizes of the batch axes.
      time: steps.
      hidden: hidden units of a direction.
    """

    x: Array
    w_ih: Array | None
    w_hh: Array
    b_ih: Array | None
    b_hh: Array | None
    states: State | None
    state_count: int
    directions: int
    batch: tuple[int, ...]
    time: int
    hidden: int

    @property
    def is_empty(self) -> bool:
        """Whether there is no step to be made."""
        return self.time * math.prod(self.batch) == 0

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Of each state, as the caller sees it."""
        lead = (2,) * (self.directions - 1)
        return (*lead, *self.batch, self.hidden)

    def arrays_or_zeros(self):
        """x, w_ih, w_hh, b_ih, b_hh, states, the last two never None."""
        b_hh, states = self.b_hh, self.states
        if b_hh is None:
            b_hh = jnp.zeros_like(self.w_hh[..., 0, :])
        if states is None:
            states = (jnp.zeros(self.state_shape, self.x.dtype),) * self.state_count
        return self.x, self.w_ih, self.w_hh, self.b_ih, b_hh, states


def check_arguments(
    op: str, call: Call, x, w_ih, w_hh, b_ih, b_hh, state_0
) -> Arguments:
    """Raises ValueError, in the words of function `op`, where something is amiss."""
    gates, directions = call.table.gates, 2 if call.bidirectional else 1
    x_name = "a_x" if w_ih is None else "x"
    states = _as_states(op, call, state_0)
    arrays = {x_name: x, "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    arrays |= dict(zip(("h_0", "c_0"), states or (), strict=False))
    arrays = {name: value for name, value in arrays.items() if value is not None}
    for name, value in arrays.items():
        _checks.array(op, name, value)
    _checks.same_dtype(op, arrays)

    # Axes by name and by size; `lead` is the direction, where there are two.
    lead, lead_sizes = ("2",) * (directions - 1), (2,) * (directions - 1)
    wide = f"{gates}*hidden"
    check(
        w_hh.ndim == 1 + directions and w_hh.shape[-2] >= 1,
        f"{op}: w_hh must be [{', '.join((*lead, 'hidden', wide))}] with hidden >= 1, "
        f"got {list(w_hh.shape)}.",
    )
    hidden = _hidden_size(w_hh.shape, gates)
    steps = ("time", "*batch") if call.time_major else ("*batch", "time")
    features = "features" if w_ih is None else "input"
    check(
        x.ndim >= 2,
        f"{op}: {x_name} must be [{', '.join((*steps, features))}], got "
        f"{list(x.shape)}.",
    )
    batch = x.shape[1:-1] if call.time_major else x.shape[:-2]
    time = x.shape[0] if call.time_major else x.shape[-2]

    columns = gates * hidden
    state = (*lead, "*batch", "hidden"), (*lead_sizes, *batch, hidden)
    bias = (*lead, wide), (*lead_sizes, columns)
    a_x_axes = (*steps, f"{directions}*{wide}" if lead else wide)
    expected = {
        "w_hh": ((*lead, "hidden", wide), (*lead_sizes, hidden, columns)),
        "w_ih": ((*lead, "input", wide), (*lead_sizes, x.shape[-1], columns)),
        "a_x": (a_x_axes, (*x.shape[:-1], directions * columns)),
        "b_ih": bias,
        "b_hh": bias,
        "h_0": state,
        "c_0": state,
    }
    for name in [name for name in expected if name in arrays]:
        _checks.shape(op, name, arrays[name], *expected[name])
    return Arguments(
        x,
        w_ih,
        w_hh,
        b_ih,
        b_hh,
        states,
        state_count=call.table.states,
        directions=directions,
        batch=batch,
        time=time,
        hidden=hidden,
    )


def _hidden_size(shape: tuple[int, ...], gates: int) -> int:
    """hidden, from the shape of w_hh; if that is transposed, its shorter side."""
    rows, columns = shape[-2:]
    return columns if rows == gates * columns else rows


def _as_states(op: str, call: Call, state_0):
    """state_0 as a tuple of arrays, or None."""
    if state_0 is None:
        return None
    names = ("h_0", "c_0")[: call.table.states]
    is_tuple = isinstance(state_0, (tuple, list))
    wanted = "(h_0, c_0)" if len(names) == 2 else "h_0, an array"
    if is_tuple != (len(names) == 2) or (is_tuple and len(state_0) != 2):
        came = f"{len(state_0)} values" if is_tuple else type(state_0).__name__
        raise ValueError(f"{op}: state_0 must be {wanted}, got {came}.")
    return tuple(state_0) if is_tuple else (state_0,)
