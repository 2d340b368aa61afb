"""The recurrent cells in jax.numpy: the reference, and what `lax.scan` runs.

The same table as core/cells.h, in the same gate order; a cell that is "general" has
activations of the caller's choice, `call.f`. `step` takes the pre-activations
of one time step as separate gates, so that one definition serves any dtype and any
order of differentiation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._cells.clip import bounded
from prnn_jax._cells.normed import LayerNorm
from prnn_jax._given import checks

State = tuple[Array, ...]

#: The functions of the package that run a cell.
CellName = Literal["lstm", "slstm", "gru", "rnn"]
NAMES: tuple[CellName, ...] = get_args(CellName)


class Defined:
    """A cell that `define_cell` has made, in place of a name.

    Attributes:
      name: what messages call it.
      row: its name in `CELLS`.
    """

    name: str
    row: str


AnyCell = CellName | Defined


def check_cell_name(op: str, cell: Any, more: tuple[str, ...] = ()) -> None:
    """The cell must be known; `more` are names that only this function takes."""
    if not isinstance(cell, Defined):
        checks.one_of(op, "cell", cell, (*NAMES, *more))


@dataclass(frozen=True)
class Cell:
    """What the rest of the package needs to know of a cell.

    Attributes:
      name: as the native engines know it.
      function: the function that runs it, perhaps by an option.
      gate_names: of the products per hidden unit, in the order of their columns: `w_hh`
        is `[output, gates*hidden]`, output being what h is wide: hidden, or where the
        cell projects, the projection.
      state_names: of the values carried per unit; the first is h.
      reserve: gate values kept per unit and step for the backward pass. The states
        besides h are kept too; h itself is y.
      same_gradient: whether d(a_x) and d(a_h) are the same numbers.
      keeps_made: whether the backward pass reads the h that a step has made, of which
        zoneout leaves a mixture in y: then that h is kept, as the reserve.
      step: `(call, a_x, state, product) -> (state', reserve)`, with a_x
        `[..., gates*hidden]` and `product(h, first, last)` the pre-activations
        `h w_hh + b_hh` of those gates; and one argument more, `[per_unit*hidden]`, if
        there are such; and where the cell projects, by name, `project(m)`, which is
        `m w_hr`, the h that follows.
      product_inputs: what each gate's product multiplies, where that is not h for all:
        `(h, saved) -> (gate 0's, gate 1's, ...)`.
      per_unit_gates: of the numbers that each unit has for itself, the gates whose
        pre-activations they are a part of, each times something.
      per_unit_inputs: what: `(call, states before, reserve) -> (of number 0, ...)`.
      with_per_unit: the cell that this one is with such numbers.
      project_input: what `w_hr` `[hidden, projection]` multiplies, where that makes h:
        `(call, reserve, states besides h after the step) -> m`.
      with_projection: the cell that this one is with such a product.
      folded: the cell that this one is on a GPU, where `w_hr` is a part of its `w_hh`
        (`_engine.folded`).
      has_zoneout: whether zoneout is defined for its states.
      engines: the platforms that have a native engine for it; none of a cell that
        `define_cell` has made.
      described: what messages call it, of a cell that lacks what others have.
      norm: how its step normalises, of a cell with layer norm.
      base: the cell that this one is with layer norm.
      own: of the numbers that each unit has for itself, as the caller gives them, where
        they have names: name, how many, and what they begin with.
    """

    name: str
    function: CellName
    gate_names: str
    state_names: str
    reserve: int
    step: Callable
    same_gradient: bool = True
    keeps_made: bool = False
    product_inputs: Callable | None = None
    per_unit_gates: tuple[int, ...] = ()
    per_unit_inputs: Callable | None = None
    with_per_unit: str | None = None
    project_input: Callable | None = None
    with_projection: str | None = None
    folded: str | None = None
    has_zoneout: bool = True
    engines: frozenset[str] = frozenset({"cpu", "cuda"})
    described: str = ""
    norm: LayerNorm | None = None
    base: CellName | None = None
    own: tuple[tuple[str, int, float], ...] = ()

    has_product: ClassVar[bool] = True  # in a step; the cells of `_linear` have none

    @property
    def gates(self) -> int:
        """Products per hidden unit."""
        return len(self.gate_names)

    @property
    def states(self) -> int:
        """Values carried per unit."""
        return len(self.state_names)

    @property
    def per_unit(self) -> int:
        """Numbers that each unit has for itself, as the caller gives them."""
        if self.own:
            return sum(count for _, count, _ in self.own)
        return len(self.per_unit_gates)

    def own_begins(self, values: int) -> np.ndarray:
        """What so many of such numbers, of all units, begin with."""
        begins = [first for _, count, first in self.own for _ in range(count)]
        begins = begins or [0.0]
        return np.repeat(np.asarray(begins, np.float32), values // len(begins))

    @property
    def projects(self) -> bool:
        """Whether h is a product of what the units give, and has a width of its own."""
        return self.project_input is not None

    @property
    def widths(self) -> tuple[str, ...]:
        """What each state is as wide as, in the words of messages."""
        of_h = "projection" if self.projects else "hidden"
        return (of_h, *("hidden",) * (self.states - 1))


def _split(a: Array, gates: int) -> list[Array]:
    return jnp.split(a, gates, axis=-1)


def with_residual(call, a, h):
    return a + call.skip * h if call.skip else a  # 0 of an infinite h is none of it


def _rnn(call, a_x, state, product):
    (h,) = state
    return (call.f.candidate(with_residual(call, a_x + product(h, 0, 1), h)),), ()


def _rnn_relu(call, a_x, state, product):
    (h,) = state
    h = jax.nn.relu(with_residual(call, a_x + product(h, 0, 1), h))
    return (jnp.where(h >= call.cap, jnp.asarray(call.cap, h.dtype), h),), ()


def _within(call, c):
    """An LSTM's new c within the bounds of the call."""
    bounds = None if call.clip is None else call.clip.state
    return c if bounds is None else bounded(c, *bounds)


def _lstm(call, a_x, state, product, peepholes=None, project=None):
    h, c = state
    f = call.f
    i, forget, g, o = _split(a_x + product(h, 0, 4), 4)
    if peepholes is not None:
        p_i, p_f, p_o = _split(peepholes, 3)
        i, forget = i + p_i * c, forget + p_f * c
    i, forget, g = f.gate(i), f.gate(forget), f.candidate(g)
    c = _within(call, forget * c + i * g)
    o = f.gate(o if peepholes is None else o + p_o * c)
    h = o * f.output(c)
    if project is not None:
        h = project(h)
        if call.clip is not None and call.clip.projection is not None:
            h = bounded(h, -call.clip.projection, call.clip.projection)
    return (h, c), (i, forget, g, o)


def _lstm_project_input(call, reserve, states):
    (*_, o), (c,) = reserve, states
    return o * call.f.output(c)


def _peephole_inputs(call, states, reserve):
    (_, c), (i, f, g, _) = states, reserve
    # The c that the step made, whatever zoneout mixed.
    return c, c, _within(call, f * c + i * g)


def _slstm(call, a_x, state, product):
    h, c, n, m = state
    i, f, z, o = _split(a_x + product(h, 0, 4), 4)
    z, o, derivative = jnp.tanh(z), jax.nn.sigmoid(o), jax.nn.sigmoid(-f)
    # Both exponential gates over e^m', so that neither overflows. With n = 0 there is
    # nothing to forget yet.
    remembered, forgets = jax.nn.log_sigmoid(f) + m, n > 0
    m = jnp.where(forgets, jnp.maximum(remembered, i), i)
    i, exponent = jnp.exp(i - m), jnp.where(forgets, remembered - m, 0)
    f = jnp.where(forgets, jnp.exp(exponent), 0)
    c, n = f * c + i * z, f * n + i
    return (o * c / n, c, n, m), (i, f, z, o, derivative)


def _gru(call, a_x, state, product):
    (h,) = state
    f = call.f
    (x_r, x_z, x_n), (h_r, h_z, h_n) = _split(a_x, 3), _split(product(h, 0, 3), 3)
    r, z = f.gate(x_r + h_r), f.gate(x_z + h_z)
    n = f.candidate(x_n + r * h_n)
    return (n + z * (h - n),), (r, z, n, h_n)


def _gru_reset_before(call, a_x, state, product):
    (h,) = state
    f = call.f
    (x_r, x_z, x_n), (h_r, h_z) = _split(a_x, 3), _split(product(h, 0, 2), 2)
    r, z = f.gate(x_r + h_r), f.gate(x_z + h_z)
    n = f.candidate(x_n + product(r * h, 2, 3))
    return (n + z * (h - n),), (r, z, n)


def _reset_inputs(h, reserve):
    r = reserve[..., : h.shape[-1]]
    return h, h, r * h


CELLS = {
    cell.name: cell
    for cell in (
        Cell("rnn_tanh", "rnn", "h", "h", 0, _rnn, keeps_made=True),
        Cell("rnn_relu", "rnn", "h", "h", 0, _rnn_relu, keeps_made=True),
        Cell("rnn_general", "rnn", "h", "h", 0, _rnn, keeps_made=True),
        Cell(
            "lstm",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            with_per_unit="lstm_peephole",
            with_projection="lstm_projected",
        ),
        Cell(
            "lstm_general",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            with_per_unit="lstm_peephole",
            with_projection="lstm_projected_general",
        ),
        Cell(
            "lstm_peephole",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            per_unit_gates=(0, 1, 3),
            per_unit_inputs=_peephole_inputs,
            with_projection="lstm_projected_peephole",
        ),
        Cell(
            "lstm_projected",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            project_input=_lstm_project_input,
            folded="lstm",
            has_zoneout=False,
            described="the LSTM with a projection",
        ),
        Cell(
            "lstm_projected_general",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            project_input=_lstm_project_input,
            folded="lstm_general",
            has_zoneout=False,
            described="the LSTM with a projection and activations of your choice",
        ),
        Cell(
            "lstm_projected_peephole",
            "lstm",
            "ifgo",
            "hc",
            4,
            _lstm,
            per_unit_gates=(0, 1, 3),
            per_unit_inputs=_peephole_inputs,
            project_input=_lstm_project_input,
            folded="lstm_peephole",
            has_zoneout=False,
            described="the LSTM with a projection and peepholes",
        ),
        Cell(
            "slstm",
            "slstm",
            "ifzo",
            "hcnm",
            5,
            _slstm,
            has_zoneout=False,
            described="the sLSTM",
        ),
        Cell("gru", "gru", "rzn", "h", 4, _gru, same_gradient=False),
        Cell("gru_general", "gru", "rzn", "h", 4, _gru, same_gradient=False),
        Cell(
            "gru_reset_before",
            "gru",
            "rzn",
            "h",
            3,
            _gru_reset_before,
            product_inputs=_reset_inputs,
            described="the GRU with reset_after=False",
        ),
    )
}
