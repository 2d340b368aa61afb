"""What the tests of the layers for Flax NNX share."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax_support import past_the_end, projection
from layer_support import HIDDEN, IN, normal
from support import quick_jit as jit

import prnn_jax.nnx as layers

# name: (layer, Flax's cell, its options)
CELLS = {
    "optimized-lstm": (layers.LSTM, nnx.OptimizedLSTMCell, {}),
    "lstm": (layers.LSTM, nnx.LSTMCell, {}),
    "lstm-hard": (
        layers.LSTM,
        nnx.LSTMCell,
        {"gate_fn": jax.nn.hard_sigmoid, "activation_fn": jax.nn.soft_sign},
    ),
    "gru": (layers.GRU, nnx.GRUCell, {}),
    "simple-tanh": (layers.RNN, nnx.SimpleCell, {}),
    "simple-relu": (layers.RNN, nnx.SimpleCell, {"activation_fn": jax.nn.relu}),
    "simple-residual": (layers.RNN, nnx.SimpleCell, {"residual": True}),
}


def make_cell(name, seed=0):
    """A cell of Flax, with biases that are not zero."""
    _, cell_type, options = CELLS[name]
    bias_init = jax.nn.initializers.normal(0.3)
    rngs = nnx.Rngs(seed)
    return cell_type(IN, HIDDEN, bias_init=bias_init, rngs=rngs, **options)


def carry_like(cell, batch, seed):
    """A random carry for the cell."""
    shape = (*batch, HIDDEN)
    if isinstance(cell, nnx.GRUCell | nnx.SimpleCell):
        return normal(seed, *shape)
    return normal(seed, *shape), normal(seed + 1, *shape)


def value_and_grads(module, x, carry, lengths=None, **options):
    """(carry, y), and the gradients of a random projection of them.

    With lengths, of the valid part of y.

    The gradient of the parameters comes as a module like the given one.
    """
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def loss(params, x, carry):
        module = nnx.merge(graph, params, rest)
        options["seq_lengths"] = lengths
        out = module(x, initial_carry=carry, return_carry=True, **options)
        if lengths is not None:
            past = past_the_end(lengths, time_major=module.time_major)
            out = out[0], jnp.where(past, 0, out[1])
        return projection(out), out

    grad = jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    (d_params, dx, d_carry), out = grad(params, x, carry)
    return out, nnx.merge(graph, d_params, rest), (dx, d_carry)
