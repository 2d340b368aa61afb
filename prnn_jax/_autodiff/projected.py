"""What the second product of a cell that projects multiplies, of all steps at once."""

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting


def projected(call: Call, saved: tuple[Array, ...], controls: Controls) -> Array | None:
    """m of h = m w_hr, a sequence [hidden]; None where the cell has no such product.

    Args:
      saved: as a forward pass with save="all" keeps it.
    """
    cell = call.table
    if cell.project_input is None:
        return None
    values = jnp.split(saved[0], cell.reserve + cell.states - 1, -1)
    reserve, states = tuple(values[: cell.reserve]), tuple(values[cell.reserve :])
    return counting(call, cell.project_input(call, reserve, states), controls)
