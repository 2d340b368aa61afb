"""Native calls inside JAX's loops and branches, and one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case
from jax import lax
from support import Program, assert_bitwise_equal, assert_follows_scan

import prnn_jax


def stacked_layers(implementation, arrays):
    """Three layers of one size as a `lax.scan` over their weights."""

    def layer(x, weights):
        params = prnn_jax.Params(*weights)
        y, (h, _) = prnn_jax.lstm(x, params, implementation=implementation)
        return y, h

    return lax.scan(layer, arrays["x"], (arrays["w_ih"], arrays["w_hh"], arrays["b"]))


@pytest.fixture
def stack() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    shapes = {"x": (2, 5, 9), "w_ih": (3, 9, 36), "w_hh": (3, 9, 36), "b": (3, 36)}
    return {
        name: (0.4 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def test_layers_in_a_scan(stack):
    assert_follows_scan(stacked_layers, stack)


def test_gradient_of_layers_in_a_scan(stack):
    def gradient(implementation, arrays):
        def loss(arrays):
            y, h = stacked_layers(implementation, arrays)
            return jnp.sum(jnp.sin(y)) + jnp.sum(h)

        return jax.grad(loss)(arrays)

    assert_follows_scan(gradient, stack)


@pytest.mark.parametrize("reserve", ["fast", "lean"])
@pytest.mark.parametrize("lengths", [None, np.array([5, 2])])
@pytest.mark.parametrize("mapped", [False, True])
def test_second_derivative_of_layers_in_a_scan(reserve, lengths, mapped):
    """Of weights of one shape, so that one taken for another would not be an error."""
    random = np.random.default_rng(5)
    shapes = {"x": (2, 5, 9), "w_ih": (3, 9, 9), "w_hh": (3, 9, 9)}
    arrays = {
        name: (0.4 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }

    def second(implementation, arrays):
        def layer(x, weights):
            y, h = prnn_jax.rnn(
                x,
                prnn_jax.Params(*weights),
                lengths=lengths,
                reserve=reserve,
                implementation=implementation,
            )
            return y, h

        def tower(x, weights):
            return lax.scan(layer, x, weights)

        def loss(arrays):
            weights = arrays["w_ih"], arrays["w_hh"]
            if mapped:
                x = jnp.stack([arrays["x"], 0.5 * arrays["x"]])
                y, h = jax.vmap(tower, (0, None))(x, weights)
            else:
                y, h = tower(arrays["x"], weights)
            return jnp.sum(jnp.sin(y)) + jnp.sum(h)

        def slope(arrays):
            return sum(jnp.sum(jnp.sin(g)) for g in jax.grad(loss)(arrays).values())

        return jax.grad(slope)(arrays)

    assert_follows_scan(second, arrays)


def test_layers_in_a_scan_with_checkpoints(stack):
    def gradient(implementation, arrays):
        def loss(arrays):
            y, h = jax.checkpoint(stacked_layers, static_argnums=0)(
                implementation, arrays
            )
            return jnp.sum(jnp.sin(y)) + jnp.sum(h)

        return jax.grad(loss)(arrays)

    assert_follows_scan(gradient, stack)


def test_while_loop(stack):
    """Feeds y back until it is small."""

    def run(implementation, arrays):
        params = prnn_jax.Params(arrays["w_ih"][0], arrays["w_hh"][0])

        def body(carry):
            x, n = carry
            return prnn_jax.lstm(x, params, implementation=implementation)[0], n + 1

        x, n = lax.while_loop(
            lambda carry: jnp.max(jnp.abs(carry[0])) > 0.02, body, (arrays["x"], 0)
        )
        return x, n.astype(x.dtype)

    assert run("native", stack)[1] >= 2
    assert_follows_scan(run, stack)


def test_fori_loop_with_carried_state(stack):
    def run(implementation, arrays):
        params = prnn_jax.Params(arrays["w_ih"][0], arrays["w_hh"][0])
        zeros = jnp.zeros((2, 9), arrays["x"].dtype)

        def body(_, state):
            return prnn_jax.lstm(
                arrays["x"], params, state, implementation=implementation
            )[1]

        return lax.fori_loop(0, 4, body, (zeros, zeros))

    assert_follows_scan(run, stack)


@pytest.mark.parametrize("forward", [True, False])
def test_cond(stack, forward):
    """One branch a recurrence, the other none; with gradients through either."""

    def run(implementation, arrays):
        def loss(arrays):
            params = prnn_jax.Params(arrays["w_ih"][0], arrays["w_hh"][0])
            y = lax.cond(
                (jnp.sum(arrays["x"]) > 0) == forward,
                lambda x: prnn_jax.lstm(x, params, implementation=implementation)[0],
                jnp.tanh,
                arrays["x"],
            )
            return jnp.sum(y * y)

        return jax.value_and_grad(loss)(arrays)

    assert_follows_scan(run, stack)


def test_a_loop_holds_one_native_call(stack):
    def run(arrays):
        return stacked_layers(None, arrays)

    program = Program.of(run, stack)
    assert program.calls == (1, 0)
    assert program.count("while") == 1  # over the layers


@pytest.mark.parametrize("chunks", [(4, 4), (1,) * 8, (5, 0, 3)], ids=str)
@pytest.mark.parametrize("cell", [case.cell for case in SMALL])
def test_chunks_with_carried_state_are_one_call(cell, chunks):
    case = Case(cell, 8, (3,), 19, 57 if cell.startswith("gru") else 4 * 19, state=True)
    arrays = case.inputs()
    name = cell.split("_")[0]
    a_x = arrays["x"][..., : case.table.gates * 19]  # projected input as it is

    def run(a_x, state):
        return prnn_jax.recurrence(
            name, a_x, arrays["w_hh"], state, arrays["b_hh"], **case.table.options
        )

    state = case.state_of(arrays)
    y, state_n = run(a_x, state)
    parts = []
    for part in np.split(a_x, np.cumsum(chunks)[:-1], axis=1):
        y_part, state = run(part, state)
        parts.append(y_part)
    assert_bitwise_equal((jnp.concatenate(parts, 1), state), (y, state_n))


def test_gradient_through_chunks_is_that_of_one_call():
    case = Case("lstm", 8, (3,), 9, 4, state=True)

    def gradient(implementation, arrays):
        # The scan runs in one piece, the native engine in chunks.
        def loss(arrays):
            if implementation == "scan":
                y, (h, c) = case.run(arrays, "scan")
                return jnp.sum(y**2) + jnp.sum(h * c)
            total = 0.0
            for start in (0, 3, 4):
                stop = {0: 3, 3: 4, 4: 8}[start]
                y, (h, c) = case.run(
                    arrays | {"x": arrays["x"][:, start:stop]}, implementation
                )
                arrays = arrays | {"h_0": h, "c_0": c}
                total += jnp.sum(y**2)
            return total + jnp.sum(h * c)

        return jax.grad(loss)(arrays)

    assert_follows_scan(gradient, case.inputs())


def test_two_layers_in_one_program():
    lower = Case("lstm", 5, (2,), 9, 4)
    upper = Case("gru", 5, (2,), 7, 9)

    def gradient(implementation, arrays):
        def loss(arrays):
            y, _ = lower.run(arrays["lower"], implementation)
            y, _ = upper.run(arrays["upper"] | {"x": y}, implementation)
            return jnp.sum(y**2)

        return jax.grad(loss)(arrays)

    arrays = {"lower": lower.inputs(), "upper": upper.inputs()}
    assert_follows_scan(gradient, arrays)
