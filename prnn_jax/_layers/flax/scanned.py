"""What `ScannedRNN` is in both of Flax's libraries; needs no Flax itself."""

import functools
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._cells.table import AnyCell, Defined, check_cell_name
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._layers.flax import kinds
from prnn_jax._layers.flax.carry import Carry, Form


def initialize_carry(
    batch_size: int | tuple[int, ...],
    hidden_size: int,
    cell: AnyCell | LinearCellName = "gru",
    dtype: Any = jnp.float32,
    proj_size: int | None = None,
    state_size: int | None = None,
) -> Carry:
    """The carry before the first step: zeros.

    Args:
      batch_size: of the one batch axis, or sizes of all.
      hidden_size: size of the state.
      cell: that of the module.
      dtype: of the carry.
      proj_size: size of h, of an "lstm" with that option.
      state_size: of an "lru" with that option; by default hidden_size.

    Returns:
      h `[*batch, hidden_size]` for "gru" and "rnn", `(c, h)` for "lstm", `(h, c, n,
      m)` for "slstm"; one array, too, for the cells without a product, but "qrnn", and
      for "lru" `[*batch, 2*state_size]`.

    Raises:
      ValueError: there is no such cell, or it is a "qrnn".
    """
    check_cell(cell)
    batch = batch_size if isinstance(batch_size, (tuple, list)) else (batch_size,)
    if isinstance(cell, Defined):
        kind = kinds.Kind.of_defined(cell)
    elif cell in get_args(LinearCellName):
        check(
            cell != "qrnn",
            "ScannedRNN: cell must be another than qrnn, whose carry has the last "
            "inputs, too; its layer's own initialize_carry makes one.",
        )
        of_lru = 2 * (hidden_size if state_size is None else state_size)
        return jnp.zeros((*batch, of_lru if cell == "lru" else hidden_size), dtype)
    else:
        product: Any = cell
        kind = kinds.KINDS[product]
    form = Form(kind.carry, bidirectional=False, states=kind.cell.state_names)
    of_h = hidden_size if proj_size is None else proj_size
    return form.make(
        lambda s: jnp.zeros((*batch, of_h if s == "h" else hidden_size), dtype)
    )


class InitializeCarry:
    """`initialize_carry` as an attribute: an instance's is that of its own cell.

    Args:
      own: `cell`, size of the state, `proj_size` and `state_size` of a module.
    """

    def __init__(self, own: Callable[[Any], tuple[Any, *tuple[int | None, ...]]]):
        self._own = own

    def __get__(self, module: Any, owner: Any = None) -> Callable[..., Carry]:
        if module is None:
            return initialize_carry

        @functools.wraps(initialize_carry)
        def of_module(
            batch_size: int | tuple[int, ...],
            hidden_size: int | None = None,
            cell: AnyCell | LinearCellName | None = None,
            dtype: Any = jnp.float32,
            proj_size: int | None = None,
            state_size: int | None = None,
        ) -> Carry:
            own: Any = cell
            its_cell, its_size, its_proj_size, its_state_size = self._own(module)
            if cell is None:
                own = its_cell
                proj_size = its_proj_size if proj_size is None else proj_size
                state_size = its_state_size if state_size is None else state_size
            size = its_size if hidden_size is None else hidden_size
            check(
                size is not None,
                "ScannedRNN: hidden_size must be given, for the module has no "
                "features.",
            )
            assert size is not None
            return initialize_carry(batch_size, size, own, dtype, proj_size, state_size)

        return of_module


def check_cell(cell: Any) -> None:
    """Raises ValueError for a cell that there is not."""
    check_cell_name("ScannedRNN", cell, get_args(LinearCellName))


def hidden_size_of(carry: Carry) -> int:
    """How wide a carry is.

    Raises:
      ValueError: it is no carry.
    """
    shapes: list[Any] = [jnp.shape(x) for x in jax.tree.leaves(carry)]
    check(
        bool(shapes) and all(shapes),
        "ScannedRNN: carry must be of arrays [*batch, hidden], got "
        f"{list(map(list, shapes))}; initialize_carry makes one.",
    )
    return shapes[0][-1]


def scan(layer: Callable, carry: Carry, x: tuple[Array, Array]) -> tuple[Carry, Array]:
    """Runs a time-major layer that returns its carry.

    Raises:
      ValueError: x is no pair.
    """
    check(
        isinstance(x, (tuple, list)) and len(x) == 2,
        "ScannedRNN: x must be a pair (inputs, resets), got "
        f"{f'{len(x)} values' if isinstance(x, (tuple, list)) else type(x).__name__}.",
    )
    inputs, resets = x
    hidden_size_of(carry)
    shape = jnp.shape(jax.tree.leaves(carry)[0])
    checks.steps("ScannedRNN", "inputs", inputs, "in_features", shape)
    new, y = layer(inputs, initial_carry=carry, resets=resets)
    # In a caller's own scan the carry must be of one dtype from step to step.
    new = jax.tree.map(lambda new, old: new.astype(jnp.result_type(old)), new, carry)
    return new, y
