"""The gradient of the numbers that units have for themselves."""

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.before import befores_of
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting
from prnn_jax._call.primals import Primals
from prnn_jax._cells.table import State
from prnn_jax._given.checks import float32_at_least


def gradient(
    call: Call,
    primals: Primals,
    y: Array,
    saved: tuple[Array, ...],
    da: Array,
    of_rows: Array | None,
) -> Array | None:
    """`[N, U*hidden]`, or None where the cell has no such numbers.

    Args:
      saved: as a forward pass with save="all" keeps it.
      da: the gradient of the pre-activations that they are a part of.
      of_rows: of a cell with layer norm: the gradient by each row.
    """
    cell, controls = call.table, primals.controls
    if not cell.per_unit:
        return None
    if cell.norm is not None:
        assert of_rows is not None
        return of_rows.sum(0).astype(da.dtype)
    after = jnp.split(saved[0], cell.reserve + cell.states - 1, -1)
    reserve, after = after[: cell.reserve], [y, *after[cell.reserve :]]
    states = befores_of(call, after, primals.state_0, controls)
    total = sum_over_steps(call, states, tuple(reserve), da, controls)
    return total.astype(da.dtype)


def sum_over_steps(
    call: Call, states: State, reserve: State, da: Array, controls: Controls
) -> Array:
    """Over all rows too, in float32 at least.

    Args:
      states: before each step, sequences.
      reserve: of each step.
    """
    cell = call.table
    inputs_of = cell.per_unit_inputs
    assert inputs_of is not None
    das = jnp.split(da, cell.gates, -1)
    wide = float32_at_least(da.dtype)
    sums = [
        jnp.einsum(
            "abgh,abgh->gh",
            counting(call, x, controls),
            das[gate],
            preferred_element_type=wide,
        )
        for gate, x in zip(
            cell.per_unit_gates, inputs_of(call, states, reserve), strict=True
        )
    ]
    return jnp.concatenate(sums, -1)
