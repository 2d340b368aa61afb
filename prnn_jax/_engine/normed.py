"""What is normalised outside of a recurrence: the x part of a cell with layer norm.

It is parallel in time, and so XLA's; its derivatives are automatic.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._call.controls import counting
from prnn_jax._call.primals import Input, Primals
from prnn_jax._cells.normed import standardised
from prnn_jax._engine.input_projection import pre_activations


def entered(call: Call, primals: Primals) -> Primals:
    """What the recurrence takes, of what the caller gives.

    Biases are added after normalisation: that of the x part to a_x, all others are
    shifts of what a step normalises. So there is no b_hh, and a unit's own numbers are
    a gain and a shift for each gate, and, of an LSTM, for c.
    """
    cell, norm = call.table, call.table.norm
    if norm is None:
        return primals
    source, own, gates = primals.source, primals.per_unit, call.table.gates
    assert own is not None
    bias, shift = None, primals.b_hh
    if isinstance(source, Input):
        bias, source = source.b, source._replace(b=None, prepared=None)
    a_x = counting(
        call, pre_activations(call, source, primals.controls), primals.controls
    )
    given = named(cell, own)
    if norm.of == "parts":
        a_x = given["x"] * standardised(a_x, norm, gates)
        a_x = a_x if bias is None else a_x + bias
    elif bias is not None:
        shift = shift + bias
    if "n_shift" in given:
        shift = jnp.concatenate(
            [*jnp.split(shift, gates, -1)[:-1], _last(shift, gates) + given["n_shift"]],
            -1,
        )
    within = [given["sum" if norm.of == "sum" else "h"], shift]
    if "c" in cell.state_names:
        ones = jnp.ones_like(_last(shift, gates))
        within += [given.get("c", ones), given.get("c_shift", 0 * ones)]
    return primals._replace(
        source=a_x,
        b_hh=jnp.zeros_like(primals.b_hh),
        per_unit=jnp.concatenate(within, -1),
    )


def _last(of_gates: Array, gates: int) -> Array:
    return jnp.split(of_gates, gates, -1)[-1]


def named(cell: Any, own: Array) -> dict[str, Array]:
    """The numbers of units `[..., per_unit*hidden]` by their names in a row."""
    hidden, parts, first = own.shape[-1] // cell.per_unit, {}, 0
    for name, count, _ in cell.own:
        parts[name] = own[..., first * hidden : (first + count) * hidden]
        first += count
    return parts
