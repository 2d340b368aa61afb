"""Gradients of all inputs, against the oracle, finite differences and each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, SMALL, Case
from jax.test_util import check_grads
from support import (
    assert_as_accurate,
    assert_follows_scan,
    named,
    oracle,
    scan,
)

import prnn_jax


@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in SMALL for name in case.inputs()],
    ids=str,
)
def test_each_input_alone(case, name):
    # Others are closed over: the rules must not need their gradients.
    arrays = case.inputs()

    @jax.jit
    def gradient(value, cotangents):
        _, vjp = jax.vjp(lambda value: case.run(arrays | {name: value}), value)
        return vjp(cotangents)[0]

    ours = gradient(arrays[name], case.cotangents())
    of_scan, exact = scan(case).gradients[name], oracle(case).gradients[name]
    assert_as_accurate({name: ours}, {name: of_scan}, {name: exact})


@pytest.mark.parametrize(
    ("case", "output"),
    [
        (case, output)
        for case in SMALL
        for output in ("y", "h_n", "c_n")[: 1 + case.table.states]
    ],
    ids=str,
)
def test_each_output_alone(case, output):
    """Cotangents that JAX leaves out count as zeros."""

    @jax.jit
    def gradient(arrays, cotangent):
        _, vjp = jax.vjp(lambda a: named(*case.run(a))[output], arrays)
        return vjp(cotangent)[0]

    ours = gradient(case.inputs(), named(*case.cotangents())[output])
    of_scan = scan(case, output=output).gradients
    assert_as_accurate(ours, of_scan, oracle(case, output).gradients)


# For finite differences the ReLU cells are so small that no unit is near a kink.
DIFFERENCES = [
    Case(cell, *((2, (1,), 3, 2) if "relu" in cell else (3, (2,), 4, 3)), state=True)
    for cell in CELLS
]


@pytest.mark.parametrize("case", DIFFERENCES, ids=str)
def test_finite_differences(case):
    # A difference of float32 values over 2 eps is good to about 1e-7 / eps + eps², and
    # values and derivatives are of order 1 to 10.
    check_grads(
        jax.jit(lambda arrays: case.run(arrays, "native")),
        (jax.tree.map(jnp.asarray, case.inputs()),),
        order=1,
        modes=["rev"],
        eps=5e-3,
        rtol=2e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", 4, (3,), 6, 4, state=True),
        Case("gru", 4, (3,), 6, 4, state=True, bidirectional=True),
        Case("gru_reset_before", 4, (3,), 6, 4, state=True),
        Case("rnn_tanh_skip", 8, (5,), 6, 4, state=True, reverse=True),
    ],
    ids=str,
)
def test_gradients_of_gradients(case):
    directions = case.inputs()

    def second(implementation, arrays):
        def loss(arrays):
            y, state = case.run(arrays, implementation)
            return jnp.sum(y**3) + sum(jnp.sum(s**2) for s in state)

        def slope(arrays):
            gradients = jax.grad(loss)(arrays)
            return sum(jnp.vdot(gradients[k], d) for k, d in directions.items())

        return jax.grad(slope)(arrays)

    assert_follows_scan(second, case.inputs())


def test_third_derivative():
    case = Case("rnn_tanh_skip", 3, (2,), 4, 3)

    def third(implementation, arrays):
        def along(scale):
            y, _ = case.run(arrays | {"x": scale * arrays["x"]}, implementation)
            return jnp.sum(y**2)

        d3 = jax.grad(jax.grad(jax.grad(along)))
        return d3(jnp.asarray(0.9, arrays["x"].dtype))

    assert_follows_scan(third, case.inputs())


def test_gradient_of_a_recurrence_over_projected_input():
    case = Case("gru", 4, (3,), 6, 3 * 6, state=True)  # x has the shape of a_x
    dy, dstate = case.cotangents()

    def gradients(implementation, arrays):
        run = functools.partial(
            prnn_jax.recurrence, "gru", implementation=implementation
        )
        args = (arrays[name] for name in ("x", "w_hh", "h_0", "b_hh"))
        out, vjp = jax.vjp(run, *args)
        cotangents = jax.tree.map(
            lambda o, d: jnp.asarray(d, o.dtype), out, (dy, dstate[0])
        )
        return vjp(cotangents)

    assert_follows_scan(gradients, case.inputs())


def test_gradients_do_not_depend_on_the_layout():
    batch_major = Case("lstm", batch=(4,), state=True)
    arrays, (dy, dstate) = batch_major.inputs(), batch_major.cotangents()
    time_major = Case("lstm", batch=(4,), state=True, time_major=True)
    ours = batch_major.gradient()(arrays, (dy, dstate))
    moved = time_major.gradient()(
        arrays | {"x": np.swapaxes(arrays["x"], 0, 1)}, (np.swapaxes(dy, 0, 1), dstate)
    )
    moved["x"] = np.swapaxes(moved["x"], 0, 1)
    assert_as_accurate(
        moved, scan(batch_major).gradients, oracle(batch_major).gradients
    )
    assert_as_accurate(ours, scan(batch_major).gradients, oracle(batch_major).gradients)
