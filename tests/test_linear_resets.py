"""Resets and padding of cells without a product in a step, beside what is no number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_cells import BATCH, HIDDEN, TIME, arrays_of, ours, with_gradients
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax._engine import elementwise

each_way = pytest.mark.parametrize("implementation", ["native", "scan"])
#: One of each kind.
some_cells = pytest.mark.parametrize(
    "name", ["min_gru", "indrnn", "sru-peepholes", "qrnn-fo"]
)


def run_by(name: str, implementation: str):
    """The call; an SRU with peepholes has no native engine."""
    engine = None if name == "sru-peepholes" else implementation
    return functools.partial(ours, name, implementation=engine)


@each_way
@some_cells
def test_a_reset_leaves_nothing_of_what_is_no_number(name, implementation):
    """Of an initial state, of the steps before; and of what no reset takes."""
    arrays = arrays_of(name, ("resets",))
    arrays["resets"] = np.zeros((BATCH, TIME), bool)
    arrays["resets"][0, 0] = arrays["resets"][1, 4] = True

    def with_number(number: float) -> dict:
        bad = jax.tree.map(np.copy, arrays)
        bad["x"][1, 2] = number
        for state, reset_to in zip(bad["state"], bad["reset_to"], strict=True):
            state[0] = reset_to[2] = number
        return bad

    def run(given: dict):
        y, state = run_by(name, implementation)(given)
        return y[0], y[1, 4:], y[2], state

    of_nan, gradients = with_gradients(run, with_number(np.nan))
    of_one, expected = with_gradients(run, with_number(1.0))
    assert_bitwise_equal(of_nan, of_one)
    of_nan, of_one = (
        (g["x"][0], g["x"][1, 4:], g["x"][2], g["reset_to"])
        for g in (gradients, expected)
    )
    assert_bitwise_equal(of_nan, of_one)


@some_cells
def test_a_gradient_that_is_no_number_ends_at_a_reset(name):
    arrays = arrays_of(name)
    resets = np.arange(TIME) == np.full((BATCH, 1), 4)
    dy = np.ones((BATCH, TIME, HIDDEN), np.float32)
    nan = dy.copy()
    nan[:, 5] = np.nan

    @jax.jit
    def of_x(dy):
        def y_of(x):
            return run_by(name, "native")({**arrays, "x": x, "resets": resets})[0]

        return jax.vjp(y_of, arrays["x"])[1](dy)[0]

    assert_bitwise_equal(of_x(nan)[:, :4], of_x(dy)[:, :4])


@each_way
@some_cells
def test_a_gradient_of_padding_reaches_nothing(name, implementation):
    """As of a norm of y, which is zero there."""
    arrays = arrays_of(name, ("lengths",))
    counts = np.arange(TIME) < arrays["lengths"][:, None]
    names = "x", "weights", "state"

    @jax.jit
    def gradients(dy):
        def y_of(*floats):
            given = {**arrays, **dict(zip(names, floats, strict=True))}
            return run_by(name, implementation)(given)[0]

        return jax.vjp(y_of, *(arrays[n] for n in names))[1](dy)

    dy = np.where(counts[..., None], np.ones(HIDDEN, np.float32), 0)
    nan = np.where(counts[..., None], dy, np.float32(np.nan))
    assert_bitwise_equal(gradients(nan), gradients(dy))


@each_way
def test_a_factor_of_zero_has_a_derivative(implementation):
    a = np.float32([[[0.5], [0.0], [0.0], [2.0]]])
    b, h_0 = np.float32([[[1], [2], [3], [4]]]), np.float32([[5]])

    def last(a):
        return prnn_jax.linear_recurrence(a, b, h_0, implementation=implementation)[
            1
        ].sum()

    def each(n, m):  # of steps n and m, of a_3 (a_2 (a_1 (a_0 h_0 + 1) + 2) + 3) + 4
        return jax.grad(lambda a: jax.grad(last)(a)[0, n, 0])(a)[0, m, 0]

    np.testing.assert_array_equal(jax.grad(last)(a)[0, :, 0], [0, 0, 4, 3])
    assert each(2, 1) == each(1, 2) == 2 * 3.5
    assert each(2, 3) == each(3, 2) == 2


anywhere = jax.jit(functools.partial(elementwise._anywhere, elementwise.Elementwise()))


def test_what_other_platforms_run_loses_no_step_to_an_overflow():
    """Of 256 factors of 2 the product is infinite in float32, and a state of 0 is 0."""
    a, b = np.full((1, 300, 1), 2, np.float32), np.zeros((1, 300, 1), np.float32)
    b[0, -3:] = 1
    y = anywhere(*map(jnp.asarray, (b, a, b[:, 0])))
    np.testing.assert_array_equal(y[0, -4:, 0], [0, 1, 3, 7])


def test_nor_passes_a_reset_what_is_no_number():
    a, b = np.ones((1, 9, 1), np.float32), np.ones((1, 9, 1), np.float32)
    a[0, [0, 5]], b[0, 3] = 0, np.nan
    y = anywhere(*map(jnp.asarray, (b, a, np.inf * b[:, 0])))
    np.testing.assert_array_equal(y[0, :3, 0], [1, 2, 3])
    np.testing.assert_array_equal(y[0, 5:, 0], [1, 2, 3, 4])
    b, a = np.zeros((1, 400, 1), np.float32), np.full((1, 400, 1), 0.5, np.float32)
    y = anywhere(*map(jnp.asarray, (b, a, np.inf + b[:, 0])))
    assert not np.isfinite(y).any()  # 0.5 to the 400th is 0 in float32


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_factor_that_is_no_number_is_not_lost_beside_a_state_of_zero(number):
    """As a step has it: 0 times it is NaN."""
    a, b = np.float32([[[0.5], [number], [0.5], [0.5]]]), np.ones((1, 4, 1), np.float32)
    b[0, 0] = 0
    given = [jnp.asarray(x) for x in (b, a, np.zeros((1, 1), np.float32))]
    y = elementwise._anywhere(elementwise.Elementwise(), *given)
    np.testing.assert_array_equal(y[0, :, 0], [0, np.nan, np.nan, np.nan])
