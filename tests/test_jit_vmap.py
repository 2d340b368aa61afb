"""jit and vmap: the same results, and still one native call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case
from support import (
    Program,
    assert_as_accurate,
    assert_follows_scan,
    named,
    oracle,
    scan,
)

import prnn_jax

WEIGHTS = ("w_ih", "w_hh", "b_ih", "b_hh")
DATA = ("x", "h_0", "c_0")
MAPPED = {"data": DATA, "weights": WEIGHTS, "all": (*DATA, *WEIGHTS), "w_hh": ("w_hh",)}


def members(case: Case, names: tuple[str, ...], count: int = 3) -> dict:
    """Inputs of a case, those in `names` with a leading axis of different values."""

    def stacked(name, value):
        if name not in names:
            return value
        scales = np.linspace(0.6, 1.0, count, dtype=np.float32)
        return scales.reshape(-1, *(1,) * value.ndim) * value

    return {name: stacked(name, value) for name, value in case.inputs().items()}


def axes(case: Case, names: tuple[str, ...]) -> dict:
    return {name: 0 if name in names else None for name in case.inputs()}


def loss(case: Case, implementation, arrays):
    y, state = case.run(arrays, implementation)
    return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_without_jit(case):
    y, state = case.run({k: jnp.asarray(v) for k, v in case.inputs().items()})
    assert_as_accurate(named(y, state), scan(case).forward, oracle(case).forward)


def test_options_are_static_and_arrays_traced():
    case = Case("lstm", 4, (2,), 5, 3)
    traces = []

    @functools.partial(jax.jit, static_argnames=("reverse",))
    def run(x, params, reverse):
        traces.append(reverse)
        return prnn_jax.lstm(x, params, reverse=reverse)[0]

    arrays = case.inputs()
    params = prnn_jax.Params(*(jnp.asarray(arrays[name]) for name in WEIGHTS))
    for reverse in (False, True, False):
        run(arrays["x"], params, reverse=reverse)
    assert traces == [False, True]


# Of so many rows that the native engine takes the input projection too, and of fewer.
LSTM = Case("lstm", 8, (5,), 9, 3, state=True)
GRU = Case("gru", 8, (5,), 9, 3, state=True, bidirectional=True)
GRU_RESET_BEFORE = Case("gru_reset_before", 4, (), 9, 3, state=True, time_major=True)
RNN = Case("rnn_tanh", 4, (2,), 9, 3, bidirectional=True, time_major=True)


@pytest.mark.parametrize(
    ("case", "mapped"),
    [
        (LSTM, "data"),
        (LSTM, "weights"),
        (LSTM, "all"),
        (GRU, "data"),
        (GRU, "weights"),
        (GRU, "w_hh"),
        (GRU_RESET_BEFORE, "data"),
        (GRU_RESET_BEFORE, "weights"),
        (RNN, "data"),
        (RNN, "all"),
    ],
    ids=str,
)
def test_vmap_and_its_gradient(case, mapped):
    names = MAPPED[mapped]
    mapped_inputs = members(case, names)

    def run(implementation, arrays):
        one = jax.grad(functools.partial(loss, case, implementation))
        forward = functools.partial(case.run, implementation=implementation)
        over = (axes(case, names),)
        return jax.vmap(forward, over)(arrays), jax.vmap(one, over)(arrays)

    assert_follows_scan(run, mapped_inputs)


@pytest.mark.parametrize("mapped", MAPPED)
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True}, {"time_major": True}], ids=str
)
def test_vmap_is_one_native_call(mapped, options):
    case = Case("gru", 4, (2,), 9, 3, state=True, **options)
    names = MAPPED[mapped]
    gradient = jax.vmap(
        jax.grad(functools.partial(loss, case, None)), (axes(case, names),)
    )
    program = Program.of(gradient, members(case, names))
    assert program.calls == (1, 1)
    assert program.count("while") == 0


@pytest.mark.parametrize(
    ("outer", "inner", "options"),
    [
        ("data", "weights", {"bidirectional": True}),
        ("weights", "data", {}),
        ("all", "all", {"bidirectional": True}),
    ],
    ids=str,
)
def test_nested_vmap(outer, inner, options):
    case = Case("lstm", 3, (2,), 5, 3, state=True, **options)
    arrays = members(case, MAPPED[inner], 2)
    arrays = {
        name: np.stack([value, 0.8 * value, 0.6 * value]).astype(np.float32)
        if name in MAPPED[outer]
        else value
        for name, value in arrays.items()
    }

    def run(implementation, arrays):
        gradient = jax.grad(functools.partial(loss, case, implementation))
        one = jax.vmap(gradient, (axes(case, MAPPED[inner]),))
        return jax.vmap(one, (axes(case, MAPPED[outer]),))(arrays)

    assert_follows_scan(run, arrays)
    assert Program.of(functools.partial(run, None), arrays).calls == (1, 1)


def test_vmap_over_another_axis():
    case = Case("lstm", 4, (2,), 9, 3, state=True)
    arrays = members(case, MAPPED["all"])
    run = functools.partial(case.run, implementation=None)
    expected = jax.vmap(run)(arrays)
    moved = {name: np.moveaxis(value, 0, -1) for name, value in arrays.items()}
    y, state = jax.vmap(run, in_axes=-1, out_axes=1)(moved)
    np.testing.assert_array_equal(np.moveaxis(y, 1, 0), expected[0])
    for ours, theirs in zip(state, expected[1], strict=True):
        np.testing.assert_array_equal(np.moveaxis(ours, 1, 0), theirs)


def test_members_of_a_vmap_are_those_of_a_loop():
    case = Case("lstm", 4, (2,), 9, 3, state=True, bidirectional=True)
    arrays = members(case, MAPPED["all"])
    y, state = jax.vmap(case.run)(arrays)
    for n in range(3):
        y_n, state_n = case.run({name: value[n] for name, value in arrays.items()})
        # The input projections of members are one batched product: another order.
        np.testing.assert_allclose(y[n], y_n, rtol=0, atol=1e-6)
        for ours, theirs in zip(state, state_n, strict=True):
            np.testing.assert_allclose(ours[n], theirs, rtol=0, atol=1e-6)


def test_gradient_of_a_vmap_sums_over_shared_weights():
    case = Case("gru", 4, (2,), 9, 3, state=True)

    def run(implementation, arrays):
        def total(arrays):
            one = functools.partial(loss, case, implementation)
            return jnp.sum(jax.vmap(one, (axes(case, DATA),))(arrays))

        return jax.grad(total)(arrays)

    assert_follows_scan(run, members(case, DATA))


def test_vmap_of_gradients_of_gradients():
    case = Case("rnn_tanh", 3, (2,), 4, 3)

    def run(implementation, arrays):
        def slope(arrays):
            gradients = jax.grad(functools.partial(loss, case, implementation))(arrays)
            return sum(jnp.sum(g) for g in gradients.values())

        return jax.vmap(jax.grad(slope))(arrays)

    assert_follows_scan(run, members(case, MAPPED["all"], 2))
