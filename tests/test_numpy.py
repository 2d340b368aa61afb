"""NumPy's arrays: as JAX has them, whether a call closes over them or is given them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_bitwise_equal, float64

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx
from prnn_jax import Layer, Norm, Params

IN, HIDDEN, TIME, BATCH = 3, 4, 5, 2
DRAW = np.random.default_rng(0)


def normal(*shape):
    return DRAW.standard_normal(shape)  # float64


X, MASK = normal(BATCH, TIME, IN), normal(BATCH, HIDDEN)
ZONEOUT = DRAW.random((BATCH, TIME, HIDDEN))
STATE = normal(BATCH, HIDDEN), normal(BATCH, HIDDEN)
WIDE = 4 * HIDDEN
PARAMS = Params(normal(IN, WIDE), normal(HIDDEN, WIDE), normal(WIDE), normal(WIDE))
DEEP = Params(normal(HIDDEN, WIDE), *PARAMS[1:])
CONTROLS = {
    "lengths": np.array([5, 3]),
    "resets": DRAW.random((BATCH, TIME)) < 0.3,
    "reset_to": STATE,
    "recurrent_mask": MASK,
    "zoneout": (ZONEOUT, ZONEOUT),
}
LAYERS = [
    Layer(PARAMS, Norm(normal(IN), normal(IN))),
    *[Layer(DEEP, Norm(normal(HIDDEN), normal(HIDDEN)))] * 2,
]
STATES = [STATE] * 3


def lstm(x, params, state, controls):
    return prnn_jax.lstm(x, params, state, **controls)


def recurrence(x, params, state, controls):
    a_x = x[..., np.arange(WIDE) % IN]  # exact, whoever does it
    return prnn_jax.recurrence("lstm", a_x, params.w_hh, state, params.b_hh, **controls)


def stack(x, params, state, controls):
    del params
    controls = {n: controls[n] for n in ("lengths", "resets")}
    return prnn_jax.stack("lstm", x, LAYERS, STATES, **controls)


def prepared(x, params, state, controls):
    del controls
    packed = prnn_jax.prepare("lstm", params, batch=BATCH, time=TIME)
    return prnn_jax.lstm(x, packed, state)


def equinox(x, params, state, controls):
    layer = prnn_jax.equinox.LSTM(IN, HIDDEN, key=jax.random.key(0))
    controls = {n: controls[n] for n in ("lengths", "resets", "reset_to")}
    return layer(x, state, **controls)


def flax_nnx(x, params, state, controls):
    layer = prnn_jax.nnx.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0))
    return layer(x, initial_carry=state, resets=controls["resets"])


def linen(x, params, state, controls):
    layer = prnn_jax.linen.LSTM(HIDDEN)
    options = {"initial_carry": state, "seq_lengths": controls["lengths"]}
    return layer.init_with_output(jax.random.key(0), x, **options)[0]


CALLS = [lstm, recurrence, stack, equinox, flax_nnx, linen]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@every_call
def test_closed_over_or_given(call):
    given = X, PARAMS, STATE, CONTROLS
    closed = jax.jit(lambda: call(*given)).lower()
    assert "custom_call @prnn_forward" in closed.as_text()
    assert {out.dtype.name for out in jax.tree.leaves(closed.out_info)} == {"float32"}
    assert "f64" not in closed.as_text()
    ours = jax.jit(lambda: call(*given))()
    assert_bitwise_equal(ours, jax.jit(call)(*given))


def test_prepared():
    given = X, PARAMS, STATE, CONTROLS
    assert_bitwise_equal(
        jax.jit(lambda: prepared(*given))(), prnn_jax.lstm(*map(jax32, given[:3]))
    )


def jax32(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


@pytest.mark.parametrize("name", ["x", "w_hh", "h_0", *CONTROLS])
def test_one_of_them_alone(name):
    """The others are JAX's."""
    x, params, state = jax32((X, PARAMS, STATE))
    controls = {**CONTROLS, "reset_to": jax32(STATE), "recurrent_mask": jax32(MASK)}
    expected = jax.jit(lstm)(x, params, state, controls)
    if name == "x":
        x = X
    elif name == "w_hh":
        params = params._replace(w_hh=PARAMS.w_hh)
    elif name == "h_0":
        state = (STATE[0], state[1])
    else:
        controls[name] = CONTROLS[name]
    ours = jax.jit(functools.partial(lstm, x, params, state, controls))()
    assert_bitwise_equal(ours, expected)


def test_native_has_them():
    y, _ = prnn_jax.lstm(X, PARAMS, implementation="native")
    assert y.dtype == jnp.float32


def test_with_64_bits_they_stay():
    # Copies: JAX keeps what it has made of an array while a program has it.
    x, params = jax.tree.map(np.copy, (X, PARAMS))
    with float64():
        y, _ = prnn_jax.lstm(x, params)
        assert y.dtype == jnp.float64
        with pytest.raises(
            ValueError, match=r"same dtype, got x float64, w_ih float32"
        ):
            prnn_jax.lstm(x, jax.tree.map(np.float32, params))
