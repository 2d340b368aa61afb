"""Checks the arrays of a public call against each other, and reads off its sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._cells.table import State
from prnn_jax._given import checks
from prnn_jax._given.checks import check


@dataclass(frozen=True)
class Layout:
    """The sizes of a call, and how the engines see its arrays; hashable.

    Attributes:
      widths: of each state, what it is as wide as in the words of messages.
      directions: 2 if bidirectional.
      heads: blocks on the diagonal of the recurrent weights, None where w_hh has no
        such axis.
      batch: sizes of the batch axes.
      time: steps.
      order: leading sizes of a sequence as the engines see it: all batch axes are one.
      hidden: hidden units of a group.
      output: values of h and y of a group; hidden where nothing projects.
    """

    widths: tuple[str, ...]
    directions: int
    heads: int | None
    batch: tuple[int, ...]
    time: int
    order: tuple[int, int]
    hidden: int
    output: int

    @property
    def is_empty(self) -> bool:
        """Whether there is no step to be made."""
        return self.time * math.prod(self.batch) == 0

    @property
    def groups(self) -> int:
        """Independent recurrences."""
        return self.directions * (self.heads or 1)

    @property
    def features(self) -> int:
        """Hidden units of a direction, all heads together."""
        return (self.heads or 1) * self.hidden

    @property
    def state_count(self) -> int:
        """How many arrays the state is."""
        return len(self.widths)

    @property
    def state_axes(self) -> tuple[tuple[str, ...], ...]:
        """Of each state, as the caller sees it, in the words of messages."""
        lead = ("2",) * (self.directions - 1)
        heads = "" if self.heads is None else "heads*"
        return tuple((*lead, "*batch", f"{heads}{name}") for name in self.widths)

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The same in numbers."""
        lead = (2,) * (self.directions - 1)
        others = (self.hidden,) * (self.state_count - 1)
        return tuple(
            (*lead, *self.batch, (self.heads or 1) * width)
            for width in (self.output, *others)
        )

    def state_to_native(self, state: Array) -> Array:
        """`[rows, groups, width]`: a row's directions side by side, then its heads."""
        rows, heads = math.prod(self.batch), self.heads or 1
        features = state.shape[-1]
        width = features // heads
        if self.directions == 1:
            return state.reshape(rows, features).reshape(rows, heads, width)
        state = state.reshape(2, rows, features)  # one axis at a time, too
        state = state.reshape(2, rows, heads, width)
        return jnp.moveaxis(state, 0, 1).reshape(rows, self.groups, width)

    def state_from_native(self, state: Array) -> Array:
        """The inverse of `state_to_native`."""
        rows, heads = math.prod(self.batch), self.heads or 1
        width = state.shape[-1]
        features = heads * width
        if self.directions == 1:
            return state.reshape(rows, features).reshape(*self.batch, features)
        state = state.reshape(rows, 2, heads, width)
        state = jnp.moveaxis(state, 1, 0).reshape(2, rows, features)
        return state.reshape(2, *self.batch, features)


_OPTIONAL = "w_ih", "b_ih", "b_hh", "peepholes", "w_hr"


class Arrays(NamedTuple):
    """The arrays of a call, which fit together.

    Attributes:
      x: `[*batch, time, features]`, or `[time, *batch, features]` if time-major: the
        input, or, where w_ih is None, the pre-activations.
      w_ih: this and the next five as in `prnn_jax.Params`.
      w_hh: see there.
      b_ih: see there.
      b_hh: see there.
      peepholes: see there.
      w_hr: see there.
      states: the initial state, or None.
    """

    x: Array
    w_ih: Array | None
    w_hh: Array
    b_ih: Array | None
    b_hh: Array | None
    peepholes: Array | None
    w_hr: Array | None
    states: State | None

    def or_zeros(self, layout: Layout) -> Any:
        """The same, b_hh and states never None."""
        b_hh, states = self.b_hh, self.states
        if b_hh is None:
            b_hh = jnp.zeros_like(self.w_hh[..., 0, :])
        if states is None:
            of_all = layout.state_shapes
            states = tuple(jnp.zeros(shape, self.x.dtype) for shape in of_all)
        return self._replace(b_hh=b_hh, states=states)


def check_arguments(
    op: str, call: Call, x, params: Sequence, state_0
) -> tuple[Layout, Arrays]:
    """Raises ValueError, in the words of function `op`, where something is amiss.

    Args:
      params: the fields of `Params`; with w_ih None, x is a_x.
    """
    w_ih, w_hh, b_ih, b_hh, peepholes, w_hr = params
    gates, directions = call.table.gates, 2 if call.bidirectional else 1
    x_name = "a_x" if w_ih is None else "x"
    states = as_states(op, call, state_0)
    names = state_names(call)
    given = {x_name: x, "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    given |= {"peepholes": peepholes, "w_hr": w_hr}
    absent = {name for name in given if name in _OPTIONAL and given[name] is None}
    given |= dict(zip(names, states or (), strict=False))
    arrays = {
        name: checks.jax_array(op, name, value)
        for name, value in given.items()
        if name not in absent
    }
    of_states = {name: arrays[name] for name in names if name in arrays}
    checks.same_dtype(op, {k: a for k, a in arrays.items() if k not in of_states})
    x, w_hh = arrays[x_name], arrays["w_hh"]
    checks.same_dtype_or_float32(op, (x_name, x), of_states)
    w_ih, b_ih, b_hh, peepholes, w_hr = (arrays.get(name) for name in _OPTIONAL)
    if states is not None:
        states = tuple(arrays[name] for name in names)

    # Axes by name and by size; `lead` is the direction, where there are two, and the
    # head, where there are such.
    has_heads = w_hh.ndim == 2 + directions
    lead = ("2",) * (directions - 1) + ("heads",) * has_heads
    wide, of_h = f"{gates}*hidden", call.table.widths[0]
    check(
        w_hh.ndim in (1 + directions, 2 + directions)
        and w_hh.shape[-2] >= 1
        and (not has_heads or w_hh.shape[-3] >= 1),
        f"{op}: w_hh must be [{', '.join((*lead, of_h, wide))}] with {of_h} >= 1, "
        f"got {list(w_hh.shape)}{_other_directions(w_hh.shape, directions)}.",
    )
    if w_hr is None:
        output = hidden = _hidden_size(w_hh.shape, gates)
    else:
        hidden, output = projected_sizes(w_hh.shape, w_hr.shape, gates)
        check(
            hidden >= 1,
            f"{op}: w_hr must be [{', '.join((*lead, 'hidden', of_h))}] with "
            f"hidden >= 1, got {list(w_hr.shape)}.",
        )
    heads = w_hh.shape[-3] if has_heads else None
    lead_sizes = (2,) * (directions - 1) + ((heads,) if has_heads else ())
    groups = directions * (heads or 1)
    steps = ("time", "*batch") if call.time_major else ("*batch", "time")
    features = "features" if w_ih is None else "input"
    check(
        x.ndim >= 2,
        f"{op}: {x_name} must be [{', '.join((*steps, features))}], got "
        f"{list(x.shape)}.",
    )
    batch = x.shape[1:-1] if call.time_major else x.shape[:-2]
    time = x.shape[0] if call.time_major else x.shape[-2]

    columns, rows = gates * hidden, math.prod(batch)
    layout = Layout(
        widths=call.table.widths,
        directions=directions,
        heads=heads,
        batch=batch,
        time=time,
        order=(time, rows) if call.time_major else (rows, time),
        hidden=hidden,
        output=output,
    )
    of_states = zip(layout.state_axes, layout.state_shapes, strict=True)
    bias = (*lead, wide), (*lead_sizes, columns)
    a_x_axes = (*steps, "*".join((*lead, wide)))
    expected = {
        "w_hh": ((*lead, of_h, wide), (*lead_sizes, output, columns)),
        "w_ih": ((*lead, "input", wide), (*lead_sizes, x.shape[-1], columns)),
        "a_x": (a_x_axes, (*x.shape[:-1], groups * columns)),
        "b_ih": bias,
        "b_hh": bias,
        "peepholes": (
            (*lead, f"{call.table.per_unit}*hidden"),
            (*lead_sizes, call.table.per_unit * hidden),
        ),
        "w_hr": ((*lead, "hidden", of_h), (*lead_sizes, hidden, output)),
        **dict(zip(names, of_states, strict=True)),
    }
    hints = {"w_hh": "" if w_hr is not None else another_cells(w_hh.shape, gates)}
    for name in [name for name in expected if name in arrays]:
        if name == "w_ih":
            check_input(op, steps, x, arrays[name].shape, (lead_sizes, columns))
        checks.shape(op, name, arrays[name], *expected[name], hint=hints.get(name, ""))
    return layout, Arrays(x, w_ih, w_hh, b_ih, b_hh, peepholes, w_hr, states)


def check_input(
    op: str,
    steps: Sequence[str],
    x: Array,
    w_ih: tuple[int, ...],
    fits: tuple[tuple[Any, ...], int],
) -> None:
    """x must have as many features as weights take, where these are right otherwise.

    Args:
      op: the function.
      steps: names of the axes of x but for its features.
      x: see there.
      w_ih: its shape.
      fits: the sizes that are before its last two axes, and that of the last.

    Raises:
      ValueError: it has not; in the words of `op`.
    """
    lead, columns = fits
    is_right = len(w_ih) == len(lead) + 2 and (w_ih[:-2], w_ih[-1]) == (lead, columns)
    if not is_right or x.shape[-1] == w_ih[-2]:
        return
    is_swapped = steps[-1] == "time" and x.shape[-2] == w_ih[-2]
    hint = "; swap its last two axes: jnp.swapaxes(x, -1, -2)" if is_swapped else ""
    raise ValueError(
        f"{op}: x must be [{', '.join((*steps, 'input'))}] with input = {w_ih[-2]} "
        f"(w_ih is {list(w_ih)}), got {list(x.shape)}{hint}."
    )


def another_cells(shape: tuple[int, ...], gates: int) -> str:
    """What to say of recurrent weights of such a shape that another cell has."""
    rows, columns = shape[-2:]
    of = {1: "1 gate is an rnn's", 3: "3 gates are a gru's", 4: "4 gates are an lstm's"}
    count = columns // rows if rows and columns % rows == 0 else gates
    return f"; {of[count]}" if count != gates and count in of else ""


def _other_directions(shape: tuple[int, ...], directions: int) -> str:
    """What to do where w_hh has no axis of directions."""
    if directions == 1 or len(shape) != 2:
        return ""
    return (
        "; params are of one direction: prnn_jax.init(..., bidirectional=True) or "
        "prnn_jax.convert.stack_directions(forward, backward) makes two"
    )


def _hidden_size(shape: tuple[int, ...], gates: int) -> int:
    """hidden, from the shape of w_hh; if that is transposed, its shorter side."""
    rows, columns = shape[-2:]
    return columns if rows == gates * columns else rows


def projected_sizes(
    w_hh: tuple[int, ...], w_hr: tuple[int, ...], gates: int
) -> tuple[int, int]:
    """hidden and projection, from both shapes; one of them may be transposed."""
    rows, columns = w_hh[-2:]
    if w_hr[-2:] == (rows // gates, columns) and rows % gates == 0:
        return rows // gates, columns
    return columns // gates, rows


def state_names(call: Call) -> tuple[str, ...]:
    """Of the initial states, as messages call them."""
    return tuple(f"{letter}_0" for letter in call.table.state_names)


def as_states(op: str, call: Call, state, argument: str = "state_0") -> State | None:
    """A state as a tuple of arrays, or None."""
    if state is None:
        return None
    names = state_names(call)
    is_tuple = isinstance(state, (tuple, list))
    given = tuple(state) if is_tuple else (state,)
    is_nested = is_tuple and any(map(_has_arrays, given))
    if is_tuple == (len(names) > 1) and len(given) == len(names) and not is_nested:
        return given
    wanted = f"({', '.join(names)})" if len(names) > 1 else "h_0, an array"
    if call.bidirectional:
        each = ", each" if len(names) > 1 else ""
        of = " or ".join(f"[2, *batch, {w}]" for w in dict.fromkeys(call.table.widths))
        wanted += f"{each} {of}, forward before backward"
    came = f"{len(given)} values" if is_tuple else type(state).__name__
    if is_tuple and len(given) == len(names) == 1:
        came = "a tuple of one; pass the array in it"
    if is_nested:
        came = "a pair of tuples" if len(given) == 2 else f"{came}, tuples among them"
    is_of_sides = is_nested or len(given) == 2 * len(names)
    if call.bidirectional and is_of_sides:
        first, rest = next(iter(names)), ", and so on" if len(names) > 1 else ""
        both = f"[forward {first}, backward {first}]"
        came += f"; stack them: {first} = jnp.stack({both}){rest}"
        if is_nested and names == ("h_0", "c_0"):
            came += "; a carry of Flax' layers has c before h"
    raise ValueError(f"{op}: {argument} must be {wanted}, got {came}.")


def _has_arrays(value: Any) -> bool:
    is_tuple = isinstance(value, (tuple, list))
    return is_tuple and any(hasattr(one, "shape") for one in value)
