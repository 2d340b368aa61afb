"""Stochastic rounding: fair, between neighbours, and no stall of weights in 16 bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import prnn_jax
from prnn_jax import stochastic_round

DTYPES = jnp.bfloat16, jnp.float16
DRAWS = 4096


def neighbours(x: np.ndarray, dtype) -> tuple[np.ndarray, np.ndarray]:
    """The largest number of dtype that is not above x, and the next one."""
    nearest = np.asarray(x, np.float32).astype(dtype)
    down = np.nextafter(nearest, dtype(-np.inf))
    below = np.where(nearest.astype(np.float32) <= x, nearest, down).astype(dtype)
    return below, np.nextafter(below, dtype(np.inf))


def numbers(dtype) -> np.ndarray:
    """Of every size, subnormal ones too, of both signs."""
    rng = np.random.default_rng(1)
    least = -8 if dtype == jnp.float16 else -60
    sizes = np.exp2(rng.uniform(least - 16, 15, 256))
    return (sizes * rng.choice([-1, 1], 256)).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_is_the_number(dtype):
    x = numbers(dtype)
    many = stochastic_round(
        random.key(2), jnp.broadcast_to(x, (DRAWS, *x.shape)), dtype
    )
    below, above = neighbours(x, dtype)
    is_below, is_above = many == below, many == above
    assert np.all(is_below | is_above)
    a, b = (np.asarray(v, np.float64) for v in (below, above))
    want = (x - a) / (b - a)
    share = np.asarray(is_above, np.float64).mean(0)
    # Five times the standard deviation of so many draws.
    bound = 5 * np.sqrt(want * (1 - want) / DRAWS) + 1e-9
    assert np.all(np.abs(share - want) <= bound)
    assert np.ptp(want) > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_needs_no_rounding_stays(dtype):
    x = np.asarray(numbers(dtype).astype(dtype), np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    both = np.concatenate([x, special])
    for seed in range(8):
        got = np.asarray(stochastic_round(random.key(seed), both, dtype), np.float32)
        np.testing.assert_array_equal(got, both)
        np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(both[:-1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_finite_number_becomes_infinite(dtype):
    largest = float(jnp.finfo(dtype).max)
    x = np.array([largest * (1 + 2**-12), 3.4e38, -3.4e38], np.float32)
    for seed in range(8):
        got = np.asarray(stochastic_round(random.key(seed), x, dtype), np.float32)
        np.testing.assert_array_equal(np.abs(got), largest)


def test_subnormals_of_bfloat16():
    """By their bits: arithmetic may take them for zero."""
    words = np.array([1, 64, 127, 0x8001], np.uint32)
    exact = lax.bitcast_convert_type(words << 16, jnp.float32)
    got = lax.bitcast_convert_type(stochastic_round(random.key(0), exact), jnp.uint16)
    np.testing.assert_array_equal(got, words)
    between = lax.bitcast_convert_type(jnp.full(20000, 3 << 15, jnp.uint32), "float32")
    many = stochastic_round(random.key(1), between)
    many = np.asarray(lax.bitcast_convert_type(many, jnp.uint16))
    assert set(many) == {1, 2}
    assert abs(many.mean() - 1.5) < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_derivative_is_that_of_the_mean(dtype):
    def loss(x):
        return (
            stochastic_round(random.key(0), x, dtype).astype(jnp.float32) ** 2
        ).sum()

    x = jnp.array([0.3, -1.7])
    rounded = stochastic_round(random.key(0), x, dtype).astype(jnp.float32)
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), 2 * rounded)


def test_a_key_gives_the_same_bits_in_a_program():
    x = numbers(jnp.bfloat16)
    got = jax.jit(stochastic_round)(random.key(3), x)
    np.testing.assert_array_equal(got, stochastic_round(random.key(3), x))
    assert np.any(got != stochastic_round(random.key(4), x))


@pytest.mark.parametrize(
    ("x", "dtype", "message"),
    [
        (np.ones(2, np.float32), jnp.float32, "dtype must be one of"),
        (
            np.ones(2, np.int32),
            jnp.bfloat16,
            "x must be float32 or bfloat16, got int32",
        ),
        (jnp.ones(2, jnp.float16), jnp.bfloat16, "x must be float32 or bfloat16"),
    ],
)
def test_other_types_are_refused(x, dtype, message):
    with pytest.raises(ValueError, match=f"stochastic_round: {message}"):
        stochastic_round(random.key(0), x, dtype)


def test_a_number_is_no_key():
    for call in (
        lambda: stochastic_round(0, jnp.ones(2)),
        lambda: prnn_jax.apply_updates(0, jnp.ones(2), jnp.ones(2)),
        lambda: prnn_jax.init("lstm", 0, 3, 4),
    ):
        with pytest.raises(ValueError, match=r"key must be of jax.random.key, got 0"):
            call()


# ---- weights -------------------------------------------------------------------------


def test_small_updates_add_up():
    """A thousand of 1/1024: to the nearest, a 1 stays 1 in bfloat16."""
    ones, step = jnp.ones(256, jnp.bfloat16), jnp.full(256, 2.0**-10)

    def body(n, w):
        return prnn_jax.apply_updates(random.fold_in(random.key(5), n), w, step)

    got = jax.lax.fori_loop(0, 1000, body, ones).astype(jnp.float32)
    assert abs(float(got.mean()) - (1 + 1000 / 1024)) < 0.01
    nearest = jax.lax.fori_loop(
        0, 1000, lambda _, w: (w + step.astype(w.dtype)).astype(w.dtype), ones
    )
    np.testing.assert_array_equal(nearest, ones)


def test_trees_and_other_dtypes():
    params = {"a": jnp.ones(3, jnp.bfloat16), "b": [jnp.ones(2), jnp.arange(2), None]}
    updates = {"a": jnp.ones(3), "b": [jnp.full(2, 1e-6), None, None]}
    got = prnn_jax.apply_updates(random.key(0), params, updates)
    np.testing.assert_array_equal(got["a"], np.full(3, 2, jnp.bfloat16))
    np.testing.assert_array_equal(got["b"][0], np.ones(2, "f") + np.full(2, 1e-6, "f"))
    np.testing.assert_array_equal(got["b"][1], np.arange(2))
    assert jax.tree.map(lambda x: x.dtype, got) == jax.tree.map(
        lambda x: x.dtype, params
    )
    with pytest.raises(
        ValueError, match=r"apply_updates: updates must be of the struct"
    ):
        prnn_jax.apply_updates(random.key(0), params, {"a": jnp.ones(3)})


def test_an_update_is_of_its_weights_shape():
    weight = jnp.ones(3, jnp.bfloat16)
    for update in (jnp.ones(2), jnp.ones((2, 3))):
        with pytest.raises(ValueError, match=r"of its weight's shape, \[3\], got \["):
            prnn_jax.apply_updates(random.key(0), weight, update)


def train(how: str, steps: int = 400) -> float:
    """The loss after so many small steps of gradient descent, of an LSTM."""
    x = random.normal(random.key(1), (8, 12, 4))
    target = jnp.cumsum(x[..., :1], 1) / 4
    dtype = jnp.float32 if how == "float32" else jnp.bfloat16
    params = prnn_jax.init("lstm", random.key(2), 4, 16)
    weights = params, random.normal(random.key(3), (16, 1)) / 4
    weights = jax.tree.map(lambda w: w.astype(dtype), weights)

    def loss(weights):
        params, w = weights
        y, _ = prnn_jax.lstm(x.astype(dtype), params)
        error = (y @ w).astype(jnp.float32) - target
        return jnp.mean(error**2)

    def step(n, weights):
        gradients = jax.grad(loss)(weights)
        updates = jax.tree.map(lambda g: -0.02 * g.astype(jnp.float32), gradients)
        if how == "stochastic":
            key = random.fold_in(random.key(4), n)
            return prnn_jax.apply_updates(key, weights, updates)
        return jax.tree.map(lambda w, u: (w + u).astype(w.dtype), weights, updates)

    run = functools.partial(jax.lax.fori_loop, 0, steps, step)
    return float(loss(jax.jit(run)(weights)))


def test_training_in_bfloat16_goes_on_where_it_stalled():
    exact, stalled, ours = map(train, ("float32", "bfloat16", "stochastic"))
    assert exact < 0.1 * train("float32", steps=0)
    assert ours < 1.1 * exact
    assert stalled > 3 * exact
