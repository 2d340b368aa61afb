"""What the tests of prnn_jax.equinox share."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from layer_support import HIDDEN, normal
from support import quick_jit as jit

import prnn_jax.equinox as layers

KEY = jax.random.key(0)
MAKE = [layers.LSTM, layers.SLSTM, layers.GRU, layers.RNN]


def scan(cell, xs, state, reverse=False):
    """What a user of Equinox writes: a cell over one sequence."""
    is_lstm = isinstance(cell, eqx.nn.LSTMCell)

    def step(state, x):
        state = cell(x, state)
        return state, state[0] if is_lstm else state

    state, ys = lax.scan(step, state, xs, reverse=reverse)
    return ys, state


def value_and_grads(run, module, xs, state):
    """run(module, x, state) over a batch; with gradients of a random projection."""

    def loss(module, xs, state):
        out = jax.vmap(functools.partial(run, module))(xs, state)
        leaves = jax.tree.leaves(out)
        return sum(jnp.vdot(normal(i, *a.shape), a) for i, a in enumerate(leaves)), out

    grads, out = jit(jax.grad(loss, (0, 1, 2), has_aux=True))(module, xs, state)
    return out, grads[0], grads[1:]


def random_state(cell_type, batch, seed):
    count = {eqx.nn.LSTMCell: 2, layers.LSTM: 2, layers.SLSTM: 4}.get(cell_type, 1)
    h, *rest = (normal(seed + n, *batch, HIDDEN) for n in range(count))
    if count == 4:
        rest[1] = 1 + jnp.abs(rest[1])  # n, which divides
    return (h, *rest) if rest else h


CELLS = pytest.mark.parametrize(
    ("make", "cell_type"),
    [(layers.LSTM, eqx.nn.LSTMCell), (layers.GRU, eqx.nn.GRUCell)],
    ids=["lstm", "gru"],
)
