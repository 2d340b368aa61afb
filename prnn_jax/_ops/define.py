"""Cells of one's own: gate math in jax.numpy, everything around it ours."""

import functools
import inspect
import itertools
import keyword
import string
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import (
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
from prnn_jax._cells.table import CELLS, NAMES, Cell, Defined
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._given.statics import whole
from prnn_jax._ops.init import init
from prnn_jax._ops.run import call_of, run_layer

_OP = "define_cell"
_made = itertools.count()

#: `step(a_x, product, state, *own)`, see `define_cell`.
Step = Callable[..., Sequence[Array]]


class DefinedCell(Defined):
    """A cell made by `define_cell`: a function like `prnn_jax.lstm`.

    It stands for a cell's name in `stack`, `recurrence`, `init` and `explain`.

    Attributes:
      name: its name.
    """

    def __init__(self, name: str, row: str, definition: tuple[Any, ...] = ()):
        self.name = name
        self.row = row
        self._definition = definition

    def __repr__(self) -> str:
        return f"define_cell({self.name!r})"

    def __reduce__(self) -> Any:
        """A cell is pickled, and copied, by what it was made of."""
        return _made_of, self._definition

    def __call__(
        self,
        x: ArrayLike,
        params: Params,
        state_0: Any = None,
        *,
        lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        masked_y: MaskedY = "hold",
        resets: Resets | None = None,
        reset_to: Any = None,
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
        """The cell over a whole sequence; all arguments are `prnn_jax.lstm`'s.

        Args:
          x: `[*batch, time, input]`.
          params: `Params`, with so many gates; a unit's own numbers, if the cell has
            some, are its `peepholes` `[per_unit*hidden]`.
          state_0: the states, each `[*batch, hidden]`, a tuple where there are several.
          lengths: how many steps of each row count.
          mask: which steps count.
          masked_y: y where a step does not count.
          resets: before which steps the state is replaced.
          reset_to: with what.
          recurrent_mask: multiplies what `product` is given.
          zoneout: how much of the old state stays.
          reverse: run from the last step to the first.
          bidirectional: run both ways at once.
          merge: of the two directions' y.
          time_major: x is `[time, *batch, input]`.
          reserve: "fast"; of a cell of `normed` also "lean", as in `prnn_jax.lstm`.
          precision: of matrix products.
          implementation: None or "scan".

        Returns:
          y `[*batch, time, hidden]`, every h, and the last state.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        options = Options.of(locals())
        call = call_of(self.name, self, options)
        return run_layer(self.name, call, x, params, options)

    def init(self, key: Array, input_size: int, hidden_size: int, **options) -> Params:
        """Parameters, as `prnn_jax.init` draws them; own numbers begin with zero."""
        return init(self, key, input_size, hidden_size, **options)


def check_defined(op: str, cell: Any) -> None:
    """Raises ValueError for what `define_cell` has not made."""
    check(
        isinstance(cell, DefinedCell),
        f"{op}: cell must be what prnn_jax.define_cell gives, got {cell!r}.",
    )


def define_cell(
    name: str, step: Step, *, gates: str, states: str = "h", per_unit: int = 0
) -> DefinedCell:
    """A recurrent cell from its step, in jax.numpy; a `lax.scan` runs it.

    It has what the cells of this package have but for the engines' speed: the input
    projection outside of the loop, lengths, masks, resets, zoneout, two directions,
    heads, stacks, every transformation and any order of differentiation.

        def step(a_x, product, state):
            (h,) = state
            z, n = a_x
            return ((1 - jax.nn.sigmoid(z)) * h + jax.nn.sigmoid(z) * jnp.tanh(n),)

        light = prnn_jax.define_cell("light", step, gates="zn")
        y, h_n = light(x, light.init(key, 80, 256))

    Args:
      name: for messages; no name of a cell of the package.
      step: `step(a_x, product, state, *own) -> state'`. a_x: a tuple of arrays
        `[..., hidden]`, `x w_ih + b_ih` of each gate. `product(v)`: the same of
        `v w_hh + b_hh`, mostly of `v = h`, as wide as h; `product(v, gate)` of one gate
        alone, by its letter or its place from 0 on.
        state: a tuple of arrays `[..., hidden]`; the first is h, the layer's output.
        own: numbers that each unit has for itself, `[..., hidden]` each. Which
        `[...]` these are is of no concern to a step: it may work along the last axis,
        as layer norm does.
      gates: a letter for each gate, in the order of the columns of `w_hh`
        `[hidden, gates*hidden]`.
      states: a letter for each state, "h" first.
      per_unit: numbers that each unit has for itself.

    Returns:
      A function like `prnn_jax.lstm`, that stands for a cell's name in `stack`,
      `recurrence`, `init` and `explain`, too; the same for the same arguments. It can
      be pickled where the step can, as a function of a module.

    Raises:
      ValueError: names, letters or the step's arguments do not fit; while tracing, if a
        step gives something else than the states it was given, in number, shape and
        dtype, or asks for the product of something else, or of a gate there is not.
    """
    taken = (*NAMES, *get_args(LinearCellName))
    is_name = isinstance(name, str) and name.isidentifier()
    check(
        is_name and not keyword.iskeyword(name) and name not in taken,
        f"{_OP}: name must be an identifier, no word of Python, and none of "
        f"{', '.join(taken)}, got {name!r}.",
    )
    check(callable(step), f"{_OP}: step must be a function, got {step!r}.")
    for option, letters in (("gates", gates), ("states", states)):
        check(
            isinstance(letters, str)
            and 0 < len(letters) == len(set(letters))
            and set(letters) <= set(string.ascii_lowercase),
            f"{_OP}: {option} must be different small letters, got {letters!r}.",
        )
    check(states[0] == "h", f"{_OP}: the first of states must be 'h', got {states!r}.")
    per_unit = whole(_OP, "per_unit", per_unit)
    _check_arguments(name, step, per_unit)

    return _made_of(name, step, gates, states, per_unit)


def _made_of(name: str, step: Step, *others: Any) -> DefinedCell:
    """The cell of a definition: the same each time, if that can be seen."""
    try:
        hash(step)
    except TypeError:
        return _new_cell.__wrapped__(name, step, *others)
    return _new_cell(name, step, *others)


@functools.cache
def _new_cell(
    name: str, step: Step, gates: str, states: str, per_unit: int
) -> DefinedCell:
    def of_table(call, a_x: Array, state, product: Callable, own: Array | None = None):
        del call
        given = own if own is None else jnp.split(own, per_unit, -1)

        def product_of(v: Array, gate: int | str | None = None):
            _check_multiplied(name, state[0], v)
            if gate is not None:
                at = _gate_at(name, gates, gate)
                return product(v, at, at + 1)
            return tuple(jnp.split(product(v, 0, len(gates)), len(gates), -1))

        after = step(
            tuple(jnp.split(a_x, len(gates), -1)), product_of, state, *(given or ())
        )
        _check_after(name, state, after)
        return tuple(after), ()

    row, function = f"{name}#{next(_made)}", name
    CELLS[row] = Cell(
        row,
        function,  # pyright: ignore[reportArgumentType]
        gates,
        states,
        0,
        of_table,
        per_unit_gates=(0,) * per_unit,
        engines=frozenset(),
    )
    return DefinedCell(name, row, (name, step, gates, states, per_unit))


def _check_after(name: str, before: Sequence[Array], after: Any) -> None:
    is_several = isinstance(after, (tuple, list))
    check(
        is_several and len(after) == len(before),
        f"{name}: its step must return a tuple of {len(before)} states, got "
        f"{len(after) if is_several else type(after).__name__}.",
    )
    for old, new in zip(before, after, strict=True):
        came = getattr(new, "shape", None), getattr(new, "dtype", None)
        check(
            came == (old.shape, old.dtype),
            f"{name}: its step must return states of the shape and dtype of those "
            f"before, {_described(old)}, got {_described(new)}.",
        )


def _check_arguments(name: str, step: Step, per_unit: int) -> None:
    try:
        signature = inspect.signature(step)
    except ValueError:  # of some that are not written in Python
        return
    count = 3 + per_unit
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise ValueError(
            f"{name}: its step must take {count} arguments, a_x, product, state"
            f"{f' and {per_unit} of per_unit' if per_unit else ''}, got a step of "
            f"{signature}: {error}."
        ) from error


def _check_multiplied(name: str, h: Array, v: Any) -> None:
    check(
        getattr(v, "shape", None) == h.shape,
        f"{name}: product must be given an array of h's shape, {list(h.shape)}, got "
        f"{_described(v)}.",
    )


def _gate_at(name: str, gates: str, gate: Any) -> int:
    if isinstance(gate, str) and len(gate) == 1 and gate in gates:
        return gates.index(gate)
    if isinstance(gate, int) and not isinstance(gate, bool) and 0 <= gate < len(gates):
        return gate
    raise ValueError(
        f"{name}: product's gate must be one of {', '.join(map(repr, gates))}, or its "
        f"place from 0 to {len(gates) - 1}, got {gate!r}."
    )


def _described(value: Any) -> str:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype} {list(value.shape)}"
