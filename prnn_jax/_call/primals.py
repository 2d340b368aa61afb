"""The arrays of a native call, by name, and what their axes are.

What shares, batches or lowers a call reads this table: a new array is a field and a
row.
"""

from typing import Any, NamedTuple

import jax
from jax import Array

from prnn_jax._call.call import Axes, Call
from prnn_jax._call.controls import Controls
from prnn_jax._cells.table import State


class Input(NamedTuple):
    """What a_x = x w + b is made of, for N groups.

    Attributes:
      x: `[batch, time, input]`, or time-major.
      w: `[input, N, G*hidden]`.
      b: `[N, G*hidden]`, or None for zero.
      prepared: both matrices of the layer as `_engine.ffi.prepare` packs them, or None.
    """

    x: Array
    w: Array
    b: Array | None
    prepared: Array | None = None


class Primals(NamedTuple):
    """What a recurrence is a function of.

    Attributes:
      source: a_x, a sequence; or what it is made of.
      w_hh: `[N, output, G*hidden]`.
      b_hh: `[N, G*hidden]`.
      state_0: one array for each state, `[batch, N, output]` of h, `[batch, N, hidden]`
        of the others, which may be float32 where all else is of 16 bits.
      controls: see there; reset_to is of the dtypes of state_0.
      per_unit: `[N, U*hidden]`, of cells whose units have numbers of their own.
      w_hr: `[N, hidden, output]`, of cells that project; elsewhere output is hidden.
    """

    source: Array | Input
    w_hh: Array
    b_hh: Array
    state_0: State
    controls: Controls
    per_unit: Array | None = None
    w_hr: Array | None = None


def axes_of(call: Call, primals: Primals, *rest) -> list[Axes]:
    """Of all leaves of `(primals, *rest)`, where the rest are sequences and states."""
    of_data = call.data_axes

    def by_rank(tree):
        return jax.tree.map(lambda x: of_data.get(x.ndim, ""), tree)

    source: Any = of_data[4]
    if isinstance(primals.source, Input):
        _, _, b, prepared = primals.source
        source = primals.source._replace(
            x=of_data[4].replace("g", ""),
            w="xgx",
            b=None if b is None else "gx",
            prepared=None if prepared is None else "x",
        )
    table = primals._replace(
        source=source,
        w_hh="gxx",
        b_hh="gx",
        state_0=by_rank(primals.state_0),
        controls=by_rank(primals.controls),
        per_unit=None if primals.per_unit is None else "gx",
        w_hr=None if primals.w_hr is None else "gxx",
    )
    leaves = jax.tree.leaves((table, by_rank(rest)))
    return [axes.replace("g", "x") for axes in leaves] if call.is_stack else leaves
