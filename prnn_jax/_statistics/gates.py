"""What goes into each gate's activation, and which that is.

Only `_cells.table` has the steps; this is what a step does not give away, for those who
ask.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._cells.activations import RELU
from prnn_jax._cells.table import State, with_residual


def pre_activations(
    call: Call,
    a_x: Sequence[Array],
    a_h: Sequence[Array | None],
    state: State,
    reserve: State,
    own: Array | None,
) -> list[Array]:
    """What goes into each gate's activation in a step.

    Of a cell that `define_cell` or `normed` has made: a_x and the products, whatever
    its step does.

    Args:
      a_x: one for each gate.
      a_h: likewise, what products gave; None where there was none.
      state: before the step.
      reserve: of the step.
      own: `[..., per_unit*hidden]`, of cells that have such numbers.
    """
    cell = call.table
    a = [x if h is None else x + h for x, h in zip(a_x, a_h, strict=True)]
    if cell.function == "rnn":
        a[0] = with_residual(call, a[0], state[0])
    if cell.function == "gru" and cell.product_inputs is None:
        r, _, _, h_n = reserve
        a[2] = a_x[2] + r * h_n
    if own is not None and cell.per_unit_inputs is not None:
        inputs = cell.per_unit_inputs(call, state, reserve)
        each = zip(
            cell.per_unit_gates, jnp.split(own, cell.per_unit, -1), inputs, strict=True
        )
        for gate, p, value in each:
            a[gate] = a[gate] + p * value
    return a


def activations(call: Call) -> dict[str, Callable]:
    """By the gate's letter; without gates that are never flat, as exp, or unknown."""
    f, gates = call.f, call.table.gate_names
    if call.cell == "rnn_relu":
        return {"h": RELU._replace(high=call.cap)}
    functions = {
        "rnn": (f.candidate,),
        "gru": (f.gate, f.gate, f.candidate),
        "lstm": (f.gate, f.gate, f.candidate, f.gate),
        "slstm": (None, jax.nn.sigmoid, jnp.tanh, jax.nn.sigmoid),
    }.get(call.table.function, ())
    known = zip(gates, functions, strict=False)
    return {gate: function for gate, function in known if function is not None}
