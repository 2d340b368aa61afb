"""Checks for cells made by `prnn_jax.define_cell`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from prnn_jax._given.checks import check
from prnn_jax._ops.define import DefinedCell

__all__ = ["check_cell"]

_TIME, _ROWS = 5, 3


def check_cell(
    cell: DefinedCell,
    *,
    input_size: int = 3,
    hidden_size: int = 4,
    seed: int = 0,
    derivatives: bool = True,
) -> None:
    """Whether a cell does what the calls of this package take for granted.

    On small random arrays: a row of the batch reaches no other; a sequence in two
    pieces, the state handed on, is the whole one; bfloat16 stays bfloat16; and
    derivatives by automatic differentiation are those by finite differences.

    Args:
      cell: what `define_cell` gave.
      input_size: of the arrays.
      hidden_size: of the arrays.
      seed: of their numbers.
      derivatives: whether to look at them, too: not of a cell with kinks, such as a
        ReLU, near which finite differences tell nothing.

    Raises:
      AssertionError: it does not; says what.
      ValueError: it is no such cell, or as the cell.
    """
    check(
        isinstance(cell, DefinedCell),
        f"check_cell: cell must be what prnn_jax.define_cell gives, got {cell!r}.",
    )
    keys = jax.random.split(jax.random.key(seed), 3)
    params = cell.init(keys[0], input_size, hidden_size, scheme="pytorch")
    x = jax.random.normal(keys[1], (_ROWS, _TIME, input_size), jnp.float32)
    run: Any = jax.jit(cell.__call__)
    whole = run(x, params)

    alone = [run(row, params) for row in x]
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *alone)
    _assert_close(whole, stacked, f"{cell.name}: a row depends on others of the batch")

    first, state = run(x[:, :2], params)
    second, last = run(x[:, 2:], params, state)
    pieces = jnp.concatenate([first, second], 1), last
    _assert_close(whole, pieces, f"{cell.name}: two pieces are not the whole sequence")

    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (x, params))
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves(run(*half))}
    assert kinds == {"bfloat16"}, f"{cell.name}: of bfloat16 it makes {sorted(kinds)}"

    if derivatives:
        near = {"eps": 2e-3, "atol": 1e-2, "rtol": 1e-2}
        try:
            check_grads(run, (x, params), order=1, modes=["rev"], **near)
        except AssertionError as error:
            raise AssertionError(
                f"{cell.name}: derivatives are not those by finite differences; of a "
                f"cell with kinks, pass derivatives=False. {error}"
            ) from error


def _assert_close(ours: Any, wanted: Any, message: str) -> None:
    # The same operations on arrays of other shapes: a few roundings of float32.
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=message)
