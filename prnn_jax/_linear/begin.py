"""Parameters of a cell without a product in a step, for `prnn_jax.init`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given.checks import check
from prnn_jax._linear.table import CELLS, check_own


@dataclass(frozen=True)
class _Sized:
    input_size: int
    hidden_size: int
    own: Mapping[str, Any]


def begin(
    op: str,
    cell: LinearCellName,
    key: Array,
    input_size: int,
    hidden_size: int,
    given: Mapping[str, Any],
    *,
    bias: bool,
    bidirectional: bool,
    dtype: Any,
) -> dict[str, Any]:
    """The arguments of the cell's function, drawn from a key.

    Raises:
      ValueError: options are none of the cell's; in the words of `op`.
    """
    row = CELLS[cell]
    unknown = [name for name in given if name not in row.own]
    check(
        not unknown,
        f"{op}: {cell} has no {', '.join(unknown)}; of what not all cells have, it has "
        f"{', '.join(row.own)}.",
    )
    layer = _Sized(input_size, hidden_size, {**row.own, **given})
    check_own(op, layer, ("input_size", "hidden_size"))
    draws = row.draws(layer, dtype, use_bias=bias, bidirectional=bidirectional)
    keys = dict(zip(draws, jax.random.split(key, len(draws)), strict=True))
    return row.bind({name: draw(keys[name]) for name, draw in draws.items()})
