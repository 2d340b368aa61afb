"""Outside of `jax.jit`: nothing is compiled twice, and nothing stays in memory."""

import contextlib
import gc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS, Case

import prnn_jax

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compilations():
    """A list of them, while it lasts."""
    seen = []

    def listen(name, *_, **__):
        if name == COMPILED:
            seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def case_of(cell: str, **options) -> Case:
    controls = CONTROLS[: -1 if cell == "slstm" else None]
    return Case(cell, 6, (3,), 5, 3, state=True, controls=controls, **options)


def loss(case: Case, implementation, arrays):
    y, state = case.run(arrays, implementation)
    return jnp.sum(y) + sum(jnp.sum(s) for s in state)


def gradient(case: Case, implementation, arrays):
    return jax.grad(lambda a: loss(case, implementation, a))(arrays)


def mapped(case: Case, implementation, arrays):
    stacked = {name: jnp.stack([a, a]) for name, a in arrays.items()}
    return jax.vmap(lambda a: loss(case, implementation, a))(stacked)


def in_a_jit_that_is_off(case: Case, implementation, arrays):
    with jax.disable_jit():
        return gradient(case, implementation, arrays)


def second(case: Case, implementation, arrays):
    def slope(arrays):
        return jnp.sum(gradient(case, implementation, arrays)["w_hh"])

    return jax.grad(slope)(arrays)


WAYS = [loss, gradient, mapped, in_a_jit_that_is_off, second]


@pytest.mark.parametrize(
    ("cell", "way", "implementation"),
    [
        *(("lstm", way, None) for way in WAYS),
        *(("gru_reset_before", way, "scan") for way in (gradient, mapped)),
        ("slstm", gradient, None),
    ],
)
def test_a_second_call_compiles_nothing(cell, way, implementation):
    case = case_of(cell)
    arrays = jax.tree.map(jnp.asarray, case.inputs())
    with compilations() as first:
        way(case, implementation, arrays)
    with compilations() as again:
        for _ in range(3):
            way(case, implementation, arrays)
    assert first
    assert not again


def test_a_second_lean_gradient_compiles_nothing():
    case = Case("lstm", 40, (2,), 5, 3, state=True, lean=True)
    arrays = jax.tree.map(jnp.asarray, case.inputs())
    gradient(case, None, arrays)
    with compilations() as again:
        gradient(case, None, arrays)
    assert not again


@pytest.mark.parametrize("options", [{}, {"dropout": 0.2, "zoneout": 0.1}], ids=str)
def test_a_second_loop_over_layers_compiles_nothing(options):
    params = prnn_jax.Params(jnp.ones((4, 16)), jnp.ones((4, 16)))
    x, resets = jnp.ones((2, 5, 4)), [[1, 0, 0, 1, 0]] * 2

    def loss(params):
        key = jax.random.key(0) if options else None
        layers = [params] * 9
        y, _ = prnn_jax.stack(
            "lstm", x, layers, lengths=[5, 3], resets=resets, key=key, **options
        )
        return y.sum()

    first = jax.grad(loss)(params)
    with compilations() as again:
        second = jax.grad(loss)(params)
    assert not again
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_options_and_sizes_are_compiled_apart():
    params = prnn_jax.Params(jnp.ones((3, 16)), jnp.ones((4, 16)))
    x = jnp.linspace(-1, 1, 30).reshape(2, 5, 3)
    forward, backward = (prnn_jax.lstm(x, params, reverse=r)[0] for r in (False, True))
    assert np.abs(forward - backward).max() > 1e-3
    assert prnn_jax.lstm(x[:, :4], params)[0].shape == (2, 4, 4)
    tanh, relu = (
        prnn_jax.rnn(x, prnn_jax.Params(jnp.ones((3, 4)), jnp.ones((4, 4))), **options)
        for options in ({}, {"activation": "relu", "cap": 3.0})
    )
    assert np.abs(tanh[0] - relu[0]).max() > 1e-3


def test_preparing_again_compiles_nothing():
    params = prnn_jax.Params(jnp.ones((3, 16)), jnp.ones((4, 16)))
    x = jnp.ones((2, 5, 3))

    def answer():
        return prnn_jax.lstm(x, prnn_jax.prepare("lstm", params, batch=2, time=5))

    answer()
    with compilations() as again:
        answer()
    assert not again


def test_memory_stays_where_it_is():
    """2000 calls of 20 shapes; compiled each time they took some 100 KiB and more."""
    params = prnn_jax.Params(jnp.ones((3, 16)), jnp.ones((4, 16)))
    inputs = [jnp.ones((2, time, 3)) for time in range(1, 21)]

    def calls(rounds: int) -> int:
        for _ in range(rounds):
            for x in inputs:
                jax.block_until_ready(prnn_jax.lstm(x, params))
        gc.collect()
        return resident_bytes()

    before = calls(10)
    assert calls(100) - before < 20e6
