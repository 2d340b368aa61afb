"""Bounds inside of steps in the CPU engine: against the scan in float64."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS
from clip_cases import CELLS, Clipped, assert_most_are_as_accurate
from half_support import DTYPES
from half_support import assert_as_accurate as assert_half_as_accurate
from support import (
    Program,
    assert_as_accurate,
    assert_bitwise_equal,
    assert_follows_scan,
    named,
    oracle,
    run_python,
    scan,
)

import prnn_jax
from prnn_jax import Clip
from prnn_jax._engine.modules import native


def cases() -> list[Clipped]:
    found = []
    for cell in CELLS:
        full = {"state": True, "controls": CONTROLS}
        found += [
            Clipped(cell, 33, (5,), 17, state=True),
            Clipped(cell, batch=(5,), **full),
            Clipped(cell, 40, (3,), lean=True, reverse=True, **full),
        ]
    return [
        *found,
        Clipped("lstm", 2, (3,), 513, state=True),
        Clipped("lstm", 7, (17,), 64, bidirectional=True),
        Clipped("lstm_peephole", batch=(2, 3), bidirectional=True, heads=2, hidden=19),
        Clipped("gru", 8, (1,), 160, time_major=True),
        Clipped("rnn", 1, (1,), 1, 1),
    ]


def results(case: Clipped) -> tuple[dict, dict]:
    forward = named(*case.forward("native")(case.inputs()))
    return forward, case.gradient("native")(case.inputs(), case.cotangents())


@pytest.mark.parametrize("case", cases(), ids=str)
def test_is_as_accurate_as_the_scan(case):
    forward, gradients = results(case)
    of_scan, exact = scan(case), oracle(case)
    assert_as_accurate(forward, of_scan.forward, exact.forward)
    assert_as_accurate(gradients, of_scan.gradients, exact.gradients)


@pytest.mark.parametrize("cell", CELLS)
def test_bounds_matter(cell):
    """Else the test above would see nothing of them."""
    case, rest = Clipped(cell, 33, (5,), 17, state=True), dict(CELLS[cell].options)
    exact = oracle(case).gradients["w_hh"]
    for name, bound in rest.pop("clip")._asdict().items():
        if bound is not None:
            clip = CELLS[cell].options["clip"]._replace(**{name: None})
            arrays = case.inputs()

            def run(arrays, clip=clip):
                function = CELLS[cell].function
                state_0 = case.state_of(arrays)
                return function(
                    arrays["x"], case.params(arrays), state_0, **rest, clip=clip
                )

            dy, dstate = case.cotangents()
            dstate = dstate if len(dstate) > 1 else dstate[0]
            others = jax.vjp(run, arrays)[1]((dy, dstate))[0]
            assert abs(others["w_hh"] - exact).max() > 0.05 * abs(exact).max()


HALVES = [
    case
    for half in DTYPES
    for cell in CELLS
    for case in (
        Clipped(cell, 9, (5,), 17, state=True, half=half),
        Clipped(cell, batch=(4,), state=True, controls=CONTROLS, half=half),
    )
]


@pytest.mark.parametrize("case", HALVES, ids=str)
def test_in_16_bits(case):
    forward, gradients = results(case)
    of_scan, exact = scan(case, case.half), oracle(case)
    assert_half_as_accurate(forward, of_scan.forward, exact.forward)
    of = of_scan.gradients, exact.gradients
    assert_most_are_as_accurate(gradients, *of, case.half)


@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before", "rnn"])
@pytest.mark.parametrize("bound", [1.0, 1.5, 2.0, 3.0])
def test_lean_sees_what_is_on_a_bound(cell, bound):
    """Of sigmoid and tanh of a bound, XLA may make another number than the engine."""
    key, x = jax.random.key(0), jax.random.normal(jax.random.key(1), (4, 20, 3))
    name, *_ = cell.split("_")
    scale = 2 if cell == "rnn" else 4  # larger ones magnify roundings
    params = jax.tree.map(lambda a: scale * a, prnn_jax.init(name, key, 3, 8))
    options = {"reset_after": False} if cell == "gru_reset_before" else {}
    options |= {"zoneout": 0.2} if cell == "rnn" else {}
    function = functools.partial(CELLS[cell].function, clip=Clip(bound), **options)

    @functools.partial(jax.jit, static_argnames=("reserve", "implementation"))
    def gradient(params, **how):
        return jax.grad(lambda p: function(x, p, **how)[0].sum())(params)

    wanted = gradient(params, implementation="scan")
    found = gradient(params, implementation="native", reserve="lean")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * abs(b).max())


@pytest.mark.parametrize("reserve", ["fast", "lean"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_second_derivatives_of_bounded_gradients(cell, reserve):
    """The bound is of the first one's; the second passes the forward pass whole."""
    params = prnn_jax.init(cell, jax.random.key(0), 4, 8)
    x = jax.random.normal(jax.random.key(1), (3, 6, 4))
    function = functools.partial(CELLS[cell].function, clip=Clip(gradients=0.3))

    def penalty(w_hh, **how):
        def loss(params):
            return (function(x, params, **how)[0] ** 2).sum()

        return (jax.grad(loss)(params._replace(w_hh=w_hh)).w_hh ** 2).sum()

    found = jax.grad(functools.partial(penalty, reserve=reserve))(params.w_hh)
    wanted = jax.grad(functools.partial(penalty, implementation="scan"))(params.w_hh)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


def test_it_is_one_native_call_each_way():
    case = Clipped("lstm", 5, (3,), 9)
    run = case.gradient("native")
    assert Program.of(run, case.inputs(), case.cotangents()).calls == (1, 1)


@pytest.mark.parametrize("cell", ["lstm_peephole", "gru"])
def test_bounds_that_nothing_meets_change_nothing(cell):
    """But the order in which activations of one's choice are taken."""
    case = Clipped(cell, 9, (5,), 17, state=True)
    arrays, function = case.inputs(), CELLS[cell].function
    far = Clip(1e30, 1e30 if cell == "lstm_peephole" else None, gradients=1e30)
    run = functools.partial(
        function, arrays["x"], case.params(arrays), case.state_of(arrays)
    )
    with_bounds, without = jax.jit(lambda: run(clip=far))(), jax.jit(run)()
    # Of one expression, in another order: some roundings of numbers below 1.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=5e-7),
        with_bounds,
        without,
    )


@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before"])
def test_rows_do_not_know_of_each_other(cell):
    case = Clipped(cell, 9, (5,), 17, state=True)
    arrays = case.inputs()
    forward = case.forward("native")
    all_rows = forward(arrays)
    one = {
        name: a[2:3] if name in ("x", "h_0", "c_0") else a for name, a in arrays.items()
    }
    y, state = all_rows
    alone = replace(case, batch=(1,)).forward("native")(one)
    assert_bitwise_equal(alone, (y[2:3], tuple(s[2:3] for s in state)))


def test_under_vmap_and_twice():
    case = Clipped("lstm", 5, (3,), 9, state=True)

    def run(implementation, arrays):
        def loss(arrays):
            y, _ = case.run(arrays, implementation)
            return (y**2).sum()

        def slope(arrays):
            return (jax.grad(loss)(arrays)["x"] ** 2).sum()

        many = jax.tree.map(lambda a: jnp.stack([a, 0.5 * a]), arrays)
        return jax.vmap(jax.grad(loss))(many), jax.grad(slope)(arrays)

    assert_follows_scan(run, case.inputs())


def test_weights_that_were_prepared():
    case = Clipped("lstm", 2, (1,), 19)
    arrays = case.inputs()
    forward = case.forward("native")
    assert_bitwise_equal(forward(case.prepared(arrays)), forward(arrays))


SCRIPT = """
import sys
import numpy as np
import prnn_jax, test_clip_native as tests
plan = prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1)
assert plan.instruction_set == sys.argv[1], plan
for cell in tests.CELLS:
    case = tests.Clipped(cell, 33, (5,), 17, state=True)
    tests.test_is_as_accurate_as_the_scan(case)
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_in_each_instruction_set(isa):
    if not native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    run_python(SCRIPT, isa, timeout_s=300, PRNN_CPU_ISA=isa)


def test_explain_says_where_it_is_native():
    explain = functools.partial(
        prnn_jax.explain, "lstm", batch=1, time=3, hidden_size=8, clip=Clip(1.0)
    )
    assert explain().engine == "native"
    assert explain(device="NVIDIA H200").engine == "native"
    assert explain(proj_size=4, platform="cpu").engine == "native"
    assert explain(proj_size=4, device="NVIDIA H200").engine == "native"
    plan = explain(proj_size=4, device="NVIDIA H200", clip=Clip(projection=1.0))
    assert "clip.projection has no CUDA kernel" in str(plan)
