"""Layers in JAX: ours, `lax.scan`, Flax, Equinox, and cuDNN as JAX has it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import prnn_jax
from benchmarks._points import (
    CELLS,
    INFERENCE,
    Arrays,
    Candidate,
    Point,
    Result,
    gradients,
)
from prnn_jax import Params, convert

#: `(parameters, x) -> (y, state)`
Layer = Callable[[Any, jax.Array], tuple[jax.Array, Any]]


def ours(point: Point, arrays: Arrays, implementation: str) -> Candidate:
    """Our layer, or without the projection our recurrence."""
    cell, params = CELLS[point.cell], arrays.params
    if (point.mode, implementation) == (INFERENCE, "native"):
        sizes = {"batch": point.batch, "time": point.time}
        params = prnn_jax.prepare(point.cell, params, **sizes)
    options = {**cell.options, "implementation": implementation}

    def layer(params, x):
        return cell.function(x, params, **options)

    def recurrence(w_hh, a_x):
        return prnn_jax.recurrence(point.cell, a_x, w_hh, **options)

    if point.projection:
        return _candidate(point, arrays, layer, params, lambda params: params)
    return _candidate(
        point,
        arrays,
        recurrence,
        arrays.params.w_hh,
        lambda w_hh: Params(None, w_hh),
    )


def flax(point: Point, arrays: Arrays) -> Candidate:
    """`nnx.RNN` around a cell, as a pure function."""
    from flax import nnx

    name = {"lstm": "OptimizedLSTMCell", "gru": "GRUCell", "rnn": "SimpleCell"}
    name = name[point.cell]
    options = {"activation_fn": jax.nn.relu} if point.cell == "rnn" else {}
    size = point.hidden_size
    cell = getattr(nnx, name)(size, size, rngs=nnx.Rngs(0), **options)
    nnx.update(cell, convert.to_nnx(name, arrays.params))
    structure, params, rest = nnx.split(cell, nnx.Param, ...)
    state = jnp.zeros((point.batch, size))
    carry = (state, state) if point.cell == "lstm" else state

    def layer(params, x):
        rnn = nnx.RNN(nnx.merge(structure, params, rest), return_carry=True)
        state, y = rnn(x, initial_carry=carry)
        return y, state

    def as_params(tree):
        return convert.from_nnx(name, nnx.to_pure_dict(tree))

    return _candidate(point, arrays, layer, params, as_params)


def equinox(point: Point, arrays: Arrays) -> Candidate:
    """A cell under `lax.scan`; Equinox has no layer."""
    import equinox

    name = f"{point.cell.upper()}Cell"
    size = point.hidden_size
    cell = getattr(equinox.nn, name)(size, size, key=jax.random.key(0))
    for leaf, array in convert.to_equinox(name, arrays.params).items():
        cell = equinox.tree_at(lambda c, leaf=leaf: getattr(c, leaf), cell, array)
    zeros = jnp.zeros((point.batch, size))
    state_0 = (zeros, zeros) if point.cell == "lstm" else zeros

    def layer(cell, x):
        def step(state, x):
            state = jax.vmap(cell)(x, state)
            return state, state[0] if isinstance(state, tuple) else state

        state, y = jax.lax.scan(step, state_0, jnp.swapaxes(x, 0, 1))
        return jnp.swapaxes(y, 0, 1), state

    def as_params(tree):
        return convert.from_equinox(name, vars(tree))

    return _candidate(point, arrays, layer, cell, as_params)


def cudnn(point: Point, arrays: Arrays) -> Candidate:
    """`jax.experimental.rnn`, whose weights are PyTorch's in one array."""
    from jax.experimental import rnn

    size = point.hidden_size
    zeros = jnp.zeros((1, point.batch, size))
    lengths = jnp.full((point.batch,), point.time, jnp.int32)
    options = (size, size, 1, 0.0, False)

    def layer(flat, x):
        y, *state = rnn.lstm(x, zeros, zeros, flat, lengths, *options)
        return y, state

    def as_params(flat):
        w_ih, w_hh, b_ih, b_hh = rnn.unpack_lstm_weights(flat, size, size, 1, False)
        return Params(w_ih[0].T, w_hh[0].T, b_ih[0], b_hh[0])

    return _candidate(point, arrays, layer, cudnn_weights(arrays.params), as_params)


def cudnn_weights(params: Params) -> np.ndarray:
    """As cuDNN has those of an LSTM: w_ih, w_hh, b_ih, b_hh, one after the other."""
    pieces = convert.to_pytorch("LSTM", [params]).values()
    return np.concatenate([piece.ravel() for piece in pieces])


def _candidate(
    point: Point,
    arrays: Arrays,
    layer: Layer,
    params: Any,
    as_params: Callable[[Any], Params],
) -> Candidate:
    """The compiled layer, or its gradients.

    Args:
      point: says which of the two.
      arrays: x, and the weights of the sum.
      layer: what is run.
      params: its parameters, in the form that it has them.
      as_params: makes ours of their gradients.
    """

    def loss(params, x, weights):
        return jnp.sum(weights * layer(params, x)[0])

    def forward(params, x, _):
        return layer(params, x)

    def result(out) -> Result:
        if point.mode != "train":
            return {"y": np.asarray(out[0])}
        dparams, dx = out
        return gradients(dx, as_params(dparams))

    train = jax.grad(loss, argnums=(0, 1))
    run = jax.jit(train if point.mode == "train" else forward)
    given = jax.tree.map(jnp.asarray, (params, arrays.x, arrays.weights))
    return Candidate(lambda: jax.block_until_ready(run(*given)), result)
