"""The gradient of the numbers that units have for themselves."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._autodiff.before import before
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting
from prnn_jax._call.primals import Primals
from prnn_jax._cells.normed import GATES, SEEN, own_inputs
from prnn_jax._cells.table import State


def gradient(
    call: Call,
    primals: Primals,
    y: Array,
    saved: tuple[Array, ...],
    da: Array,
    dseen: Array | None = None,
) -> Array | None:
    """`[N, U*hidden]`, or None where the cell has no such numbers.

    Args:
      saved: as a forward pass with save="all" keeps it.
      da: the gradient of the pre-activations that they are a part of.
      dseen: and of c as the output of an LSTM with layer norm sees it.
    """
    cell, controls = call.table, primals.controls
    if not cell.per_unit:
        return None
    after = jnp.split(saved[0], cell.reserve + cell.states - 1, -1)
    reserve, after = after[: cell.reserve], [y, *after[cell.reserve :]]
    states = tuple(
        before(call, state, state_0, controls, n)
        for n, (state, state_0) in enumerate(zip(after, primals.state_0, strict=True))
    )
    if cell.norm is not None:
        total = _sum_of_normed(call, states, tuple(reserve), da, dseen, controls)
    else:
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
    wide = jnp.promote_types(da.dtype, jnp.float32)
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


def _sum_of_normed(
    call: Call,
    states: State,
    reserve: State,
    da: Array,
    dseen: Array | None,
    controls: Controls,
) -> Array:
    """Likewise, of a cell with layer norm."""
    cell, norm = call.table, call.table.norm
    assert norm is not None
    gradients: dict[str, Any] = {GATES: da, SEEN: dseen}
    wide = jnp.promote_types(da.dtype, jnp.float32)
    # A product with ones: XLA's sums over rows take a multiple of its time.
    ones = jnp.ones(da.shape[:2], wide)
    sums = []
    for of, factor in own_inputs(norm, cell.state_names, states, reserve):
        terms = gradients[of].astype(wide)
        if factor is not None:
            terms = terms * counting(call, factor, controls).astype(wide)
        sums.append(jnp.tensordot(ones, terms, 2, precision=lax.Precision.HIGHEST))
    return jnp.concatenate(sums, -1)
