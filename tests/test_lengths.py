"""Lengths of any type and value, and what does not count: it reaches nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case
from support import assert_bitwise_equal, float64, run_python
from test_controls import KINDS, LENGTHS, layer

import prnn_jax
from prnn_jax import Params


@pytest.mark.parametrize(
    ("implementation", "reserve", "reverse"),
    [("native", "fast", True), ("native", "lean", False), ("scan", "fast", True)],
)
@pytest.mark.parametrize("cell", KINDS)
def test_nan_in_the_padding_reaches_nothing(cell, reverse, implementation, reserve):
    run, *arrays = layer(
        cell, implementation, lengths=LENGTHS, reverse=reverse, reserve=reserve
    )
    x, params, state_0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arrays)
    padding = np.arange(x.shape[1]) >= LENGTHS[:, None]

    @jax.jit
    def value_and_gradients(x):
        def loss(x, params, state_0):
            y, state_n = run(x, params, state_0)
            return sum(jnp.sin(a).sum() for a in jax.tree.leaves((y, state_n)))

        return jax.value_and_grad(loss, (0, 1, 2))(x, params, state_0)

    clean = value_and_gradients(jnp.where(padding[..., None], 0, x))
    dirty = value_and_gradients(jnp.where(padding[..., None], jnp.nan, x))
    assert_bitwise_equal(dirty, clean)
    assert not np.asarray(clean[1][0])[padding].any()


@pytest.mark.parametrize(
    ("implementation", "reserve"),
    [("native", "fast"), ("native", "lean"), ("scan", "fast"), ("scan", "lean")],
)
@pytest.mark.parametrize("cell", KINDS)
def test_nan_that_does_not_count_reaches_nothing(cell, implementation, reserve):
    """In all that a row of length 0 has, and in what its padding resets to."""
    run, *arrays = layer(cell, implementation, lengths=LENGTHS, reserve=reserve)
    x, params, state_0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arrays)
    padding = np.arange(x.shape[1]) >= LENGTHS[:, None]
    resets = np.zeros(x.shape[:2], bool)
    resets[2, 2] = True  # counts
    resets[2, 6] = resets[3, 3] = True  # do not
    of_no_use = np.array([True, False, False, True])
    mask = jnp.ones((4, 6))
    zoneout = {} if cell == "slstm" else {"zoneout": jnp.full((4, 9, 6), 0.25)}

    @jax.jit
    def value_and_gradients(bad):
        def loss(x, params, state_0, reset_to):
            controls = {
                "resets": resets,
                "reset_to": reset_to,
                "recurrent_mask": jnp.where(LENGTHS[:, None] == 0, bad, mask),
                **{
                    name: jnp.where(padding[..., None], bad, value)
                    for name, value in zoneout.items()
                },
            }
            y, state_n = run(x, params, state_0, **controls)
            counting = [a[1:] for a in jax.tree.leaves((y, state_n))]
            return sum(jnp.sin(a).sum() for a in counting)

        x_0 = jnp.where(padding[..., None], bad, x)
        begins = jax.tree.map(lambda a: a.at[0].set(bad), state_0)
        reset_to = jax.tree.map(
            lambda a: jnp.where(of_no_use[:, None], bad, 0.5 * a), state_0
        )
        primals = x_0, params, begins, reset_to
        return jax.value_and_grad(loss, (0, 1, 2, 3))(*primals)

    assert_bitwise_equal(value_and_gradients(jnp.nan), value_and_gradients(0.5))


def test_lengths_beyond_time_are_an_error_or_clamped():
    run, *arrays = layer("gru")
    x, params, state_0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arrays)
    for wrong in ([0, 10, 4, 1], [0, 9, -1, 1]):
        with pytest.raises(ValueError, match=r"lengths must be from 0 to time = 9"):
            run(x, params, state_0, lengths=np.array(wrong))
    clamped = jax.jit(lambda n: run(x, params, state_0, lengths=n))
    assert_bitwise_equal(
        clamped(jnp.array([-3, 100, 4, 1])), clamped(jnp.array([0, 9, 4, 1]))
    )


NARROW = ["int8", "uint8", "int16", "uint16"]


@pytest.mark.parametrize("dtype", [*NARROW, "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_of_any_type(dtype, reverse):
    time = 300 if dtype[-1] == "8" else 9  # more than the type holds
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((4, time, 3)), jnp.float32)
    params = Params(*(jnp.asarray(random.standard_normal(s)) for s in ((3, 9), (3, 9))))
    lengths = np.array([9, 0, 3, 100 if time > 100 else 1])

    def run(lengths):
        def loss(params):
            y, h_n = prnn_jax.gru(x, params, lengths=lengths, reverse=reverse)
            return jnp.sin(y).sum() + jnp.sin(h_n).sum(), (y, h_n)

        return jax.value_and_grad(loss, has_aux=True)(params)

    expected = run(lengths.astype("int32"))
    assert_bitwise_equal(run(lengths.astype(dtype)), expected)
    assert_bitwise_equal(jax.jit(run)(lengths.astype(dtype)), expected)
    with float64():  # where JAX has all of these types
        assert_bitwise_equal(jax.jit(run)(lengths.astype(dtype)), expected)


@pytest.mark.parametrize("dtype", ["uint32", "int64", "uint64", "int8"])
def test_impossible_lengths_of_any_type_are_clamped(dtype):
    case = Case("lstm", 9, (2,), 6, 3)
    x, params = case.inputs()["x"], case.params(case.inputs())
    most, least = np.iinfo(dtype).max, max(np.iinfo(dtype).min, -5)
    run = jax.jit(lambda n: prnn_jax.lstm(x, params, lengths=n))
    with float64():
        clamped = run(np.array([most, least], dtype))
        assert_bitwise_equal(clamped, run(np.array([9, 0])))


def test_lengths_that_a_jitted_function_closes_over():
    run, *arrays = layer("gru")
    x, params, state_0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arrays)
    for lengths in (jnp.asarray(LENGTHS), LENGTHS, LENGTHS.tolist()):
        closed = jax.jit(lambda x, n=lengths: run(x, params, state_0, lengths=n))
        assert_bitwise_equal(
            closed(x), jax.jit(run)(x, params, state_0, lengths=jnp.asarray(LENGTHS))
        )


KEPT = """
import itertools, jax, jax.numpy as jnp, prnn_jax
x, lengths = jnp.ones((4, 6, 8)), jnp.array([3, 0, 6, 5])
normed = prnn_jax.normed("lstm")
for cell, reserve, both in itertools.product(
    ("lstm", "gru", "slstm", normed), ("fast", "lean"), (False, True)
):
    function = cell if cell is normed else getattr(prnn_jax, cell)
    params = prnn_jax.init(cell, jax.random.key(0), 8, 33, bidirectional=both)
    def run(params):
        options = {"bidirectional": both, "reserve": reserve}
        return function(x, params, lengths=lengths, **options)[0]
    _, backward = jax.vjp(run, params)
    kept = [a for a in jax.tree.leaves(backward) if a.dtype == jnp.float32]
    assert max(float(jnp.abs(a).max()) for a in kept) < 1e3, (cell, reserve, both)
"""


def test_nothing_of_what_does_not_count_is_kept():
    """Else jax.debug_nans would find what was in that memory before: 1e38 here."""
    run_python(KEPT, MALLOC_PERTURB_="1")
