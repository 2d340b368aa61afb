"""What the caller gives a cell with layer norm, as the engines take it.

They take x w_ih without a bias, and of each unit all that a row is multiplied by, or
shifted by, once it is normalised: `_cells.normed.PER_UNIT`.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._call.primals import Input, Primals


def entered(call: Call, primals: Primals) -> Primals:
    """So. Biases are among the units' shifts: gates add the x part and the h part.

    But for n of a GRU, where r multiplies only the h part's.
    """
    cell, norm = call.table, call.table.norm
    if norm is None:
        return primals
    source, own, gates = primals.source, primals.per_unit, call.table.gates
    assert own is not None
    bias, shift = jnp.zeros_like(primals.b_hh), primals.b_hh
    if isinstance(source, Input):
        bias = bias if source.b is None else source.b
        source = source._replace(b=None)
    given = named(cell, own)
    within = [given["sum" if norm.of == "sum" else "h"]]
    if "c" in cell.state_names:
        ones = jnp.ones_like(jnp.split(shift, gates, -1)[0])
        within += [shift + bias, given.get("c", ones), given.get("c_shift", 0 * ones)]
    else:
        *of_rz, of_n = jnp.split(bias, gates, -1)
        within.append(shift + jnp.concatenate([*of_rz, given["n_shift"]], -1))
        within.append(of_n)
    within.append(given.get("x", jnp.zeros_like(bias)))
    return primals._replace(
        source=source,
        b_hh=jnp.zeros_like(primals.b_hh),
        per_unit=jnp.concatenate(within, -1),
    )


def named(cell: Any, own: Array) -> dict[str, Array]:
    """The numbers of units `[..., per_unit*hidden]` by their names in a row."""
    hidden, parts, first = own.shape[-1] // cell.per_unit, {}, 0
    for name, count, _ in cell.own:
        parts[name] = own[..., first * hidden : (first + count) * hidden]
        first += count
    return parts
