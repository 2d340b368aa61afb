"""The recurrence by `lax.scan`: the reference, and the engine where there is no other.

Any floating dtype, any platform, any order of differentiation.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call import Call, Sizes
from prnn_jax._cells import State


def forward(
    call: Call,
    a_x: Array,
    w_hh: Array,
    b_hh: Array,
    state_0: State,
    a_h: Array | None = None,
) -> tuple[Array, State, tuple[Array, ...]]:
    """Runs the cell over time; shapes as in `_call`.

    Args:
      a_h: as a_x; added to the products, one number to each.

    Returns:
      y, the last state, and with `call.save` the saved values (a tuple of one array;
      else empty).
    """
    cell = call.table
    sizes = Sizes.of(call, a_x, cell.gates)
    hidden = sizes.hidden
    against = call.reversed_groups(sizes.groups)

    def step(state, inputs):
        a_x_t, a_h_t = inputs

        def product(h, first, last):
            gates = slice(first * hidden, last * hidden)
            a = _grouped_product(h, w_hh[..., gates], call.precision) + b_hh[..., gates]
            return a if a_h_t is None else a + a_h_t[..., gates]

        state, reserve = cell.step(call, a_x_t, state, product)
        saved = (*reserve, *state[1:]) if call.save else ()
        return state, (state[0], (jnp.concatenate(saved, -1),) if saved else ())

    # A scan goes one way: groups that go the other are flipped before and after, and
    # where all do, the scan itself is reversed.
    mixed = bool(against.any() and not against.all())

    def oriented(steps):
        return _flip_groups(steps, against) if mixed else steps

    inputs = jax.tree.map(
        lambda x: oriented(jnp.moveaxis(x, call.time_axis, 0)), (a_x, a_h)
    )
    state_n, outputs = lax.scan(step, state_0, inputs, reverse=bool(against.all()))
    y, saved = jax.tree.map(
        lambda x: jnp.moveaxis(oriented(x), 0, call.time_axis), outputs
    )
    return y, state_n, saved


def backward(
    call: Call,
    primals: tuple[Array, Array, Array, State],
    cotangents: tuple[Array, State],
) -> tuple[Array, Array, State]:
    """Gradients of a_x, of a_h (one number for each product) and of the first state."""
    a_x, w_hh, b_hh, state_0 = primals

    def run(a_x, a_h, state_0):
        y, state_n, _ = forward(call, a_x, w_hh, b_hh, state_0, a_h)
        return y, state_n

    _, vjp = jax.vjp(run, a_x, jnp.zeros_like(a_x), state_0)
    return vjp(cotangents)


def _grouped_product(h: Array, w: Array, precision) -> Array:
    """h [batch, groups, hidden] times w [groups, hidden, n], group by group."""
    if w.shape[0] == 1:  # one product, which XLA runs faster than a batch of one
        return jnp.matmul(h[:, 0], w[0], precision=precision)[:, None]
    return jnp.einsum("bgh,ghn->bgn", h, w, precision=precision)


def _flip_groups(steps: Array, which) -> Array:
    return jnp.where(which[:, None], jnp.flip(steps, 0), steps)
