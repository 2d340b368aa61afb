"""The LSTM whose h is a product (LSTMP), as all other cells."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from half_support import assert_as_accurate as assert_as_accurate_in_16_bits
from jax import export
from projected_support import (
    HALVES,
    HIDDEN,
    IN,
    PROJECTED_CONTROLS,
    Fast,
    Projected,
    assert_as_accurate_as_the_scan,
    data,
    params_of,
)
from support import (
    Program,
    assert_as_accurate,
    assert_bitwise_equal,
    assert_follows_scan,
    error_of,
    float64,
    named,
    oracle,
    run_python,
    scan,
)

import prnn_jax

FULL = {"state": True, "controls": PROJECTED_CONTROLS}
#: Sizes around those of SIMD vectors, blocks and panels; one direction and two, heads.
CASES = [
    Projected("lstm", 1, (1,), 1, 1, projection=1),
    Projected("lstm", 7, (), 15, projection=4, state=True),
    Projected("lstm", 33, (5,), 17, projection=1, state=True),
    Projected("lstm", 9, (3,), 33, projection=17, state=True, reverse=True),
    Projected("lstm", 5, (17,), 64, projection=32),
    Projected("lstm", 6, (4,), 40, projection=40, state=True),
    Projected("lstm", 4, (3,), 19, projection=70, state=True),  # wider than the cell
    Projected("lstm", 3, (2,), 513, projection=130, state=True),
    Projected("lstm", 8, (1,), 160, projection=64, biases=()),
    Projected("lstm", 8, (2,), 65, projection=257, bidirectional=True),
    Projected("lstm", 0, state=True),
    Projected("lstm", batch=(0,), time_major=True, state=True),
    Projected("lstm", batch=(2, 3), time_major=True, biases=("b_ih",)),
    Projected("lstm", batch=(5,), **FULL),
    Projected("lstm", batch=(5,), bidirectional=True, reverse=True, **FULL),
    Projected("lstm", batch=(2, 3), hidden=19, bidirectional=True, heads=2, **FULL),
    Projected("lstm", batch=(4,), reverse=True, state=True, controls=("lengths",)),
    Projected("lstm", batch=(4,), hidden=40, projection=65, controls=("mask",)),
    Projected("lstm", heads=3, hidden=17, state=True),
    Projected("lstm", 40, (3,), lean=True, **FULL),
    Projected("lstm", 53, (4,), 6, lean=True, bidirectional=True, reverse=True, **FULL),
    Projected("lstm_peephole", batch=(5,), **FULL),
    Projected("lstm_general", batch=(5,), **FULL),
    Projected("lstm_peephole", 40, (3,), lean=True, reverse=True, **FULL),
    Projected("lstm_general", 40, (3,), lean=True, bidirectional=True, **FULL),
]
#: The lean way is not the scan's own derivative, whichever engine there is.
BY_SCAN = [case for case in CASES if case.lean]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_as_accurate_as_the_scan(case):
    assert_as_accurate_as_the_scan(case)


@pytest.mark.parametrize("case", BY_SCAN, ids=str)
def test_lean_by_the_scan(case):
    plain = Fast(**{**vars(case), "lean": False})
    exact = oracle(case)
    forward = named(*case.forward("scan")(case.inputs()))
    gradients = case.gradient("scan")(case.inputs(), case.cotangents())
    assert_as_accurate(forward, scan(case).forward, exact.forward)
    assert_as_accurate(gradients, scan(plain).gradients, oracle(plain).gradients)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "case",
    [
        Projected("lstm", 9, (5,), 17, state=True),
        Projected("lstm", 33, (1,), 129, projection=65),
        Projected("lstm", batch=(4,), bidirectional=True, **FULL),
        Projected("lstm", 40, (3,), lean=True, state=True),
        Projected("lstm_peephole", 9, (5,), 17, state=True),
        Projected("lstm_general", batch=(4,), bidirectional=True, **FULL),
    ],
    ids=str,
)
def test_in_16_bits(case, half):
    case = replace(case, half=half)
    of_scan, exact = scan(case, half), oracle(case)
    forward = named(*case.forward("native")(case.inputs(half)))
    gradients = case.gradient("native")(case.inputs(half), case.cotangents(half))
    assert_as_accurate_in_16_bits(forward, of_scan.forward, exact.forward)
    assert_as_accurate_in_16_bits(gradients, of_scan.gradients, exact.gradients)


@pytest.mark.parametrize("case", CASES[3:4] + CASES[19:20], ids=str)
def test_one_native_call_each_way(case):
    program = Program.of(case.gradient(), case.inputs(), case.cotangents())
    assert program.calls == (1, 1)
    assert program.count("while") == case.lean


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_on_each_instruction_set(isa):
    if not prnn_jax._engine.modules.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    script = """
import test_recurrent_projection as tests
for case in tests.CASES:
    tests.test_is_as_accurate_as_the_scan(case)
"""
    run_python(script, timeout_s=300, PRNN_CPU_ISA=isa)


# ---- transformations -----------------------------------------------------------------

SMALL = Projected("lstm", 4, (3,), 6, 4, projection=5, state=True)


def loss(case, implementation, arrays):
    y, state = case.run(arrays, implementation)
    return jnp.sum(y**3) + sum(jnp.sum(s**2) for s in state)


@pytest.mark.parametrize(
    "case",
    [SMALL, replace(SMALL, bidirectional=True, lean=True, controls=PROJECTED_CONTROLS)],
    ids=str,
)
def test_gradients_of_gradients(case):
    directions = case.inputs()

    def second(implementation, arrays):
        def slope(arrays):
            one = functools.partial(loss, case, implementation)
            gradients = jax.grad(one)(arrays)
            return sum(jnp.vdot(gradients[k], d) for k, d in directions.items())

        return jax.grad(slope)(arrays)

    assert_follows_scan(second, case.inputs())


@pytest.mark.parametrize("names", [("x",), ("w_hr",), ("w_hh", "b_hh", "w_hr"), None])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "lean": True}])
def test_vmap(names, options):
    case = replace(SMALL, **options)
    arrays = case.inputs()
    over = {name: 0 if names is None or name in names else None for name in arrays}
    several = {
        name: np.stack([a, 0.5 * a, -a]) if over[name] == 0 else a
        for name, a in arrays.items()
    }

    def run(implementation, arrays):
        forward = functools.partial(case.run, implementation=implementation)
        one = jax.grad(functools.partial(loss, case, implementation))
        both = (jax.vmap(f, (over,))(arrays) for f in (forward, one))
        return tuple(both)

    assert_follows_scan(run, several)
    gradient = jax.vmap(jax.grad(functools.partial(loss, case, None)), (over,))
    assert Program.of(gradient, several).calls == (1, 1)


def test_symbolic_time_and_batch():
    time, batch = export.symbolic_shape("t, b")
    params = params_of()

    def step(x, params):
        def loss(params):
            y, (h_n, _) = prnn_jax.lstm(x, params, reverse=True)
            return jnp.sum(y * y) + jnp.sum(h_n)

        return jax.value_and_grad(loss)(params)

    checks = prnn_jax.export_checks()
    shape = jax.ShapeDtypeStruct((batch, time, IN), jnp.float32)
    program = export.export(jax.jit(step), disabled_checks=checks)(shape, params)
    for rows, steps in ((2, 5), (7, 1), (3, 40)):
        x = data(rows, steps, IN).astype(np.float32)
        # The projection is XLA's where its size is not known: other roundings.
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, program.call(x, params), jax.jit(step)(x, params))


SHARDED = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from projected_support import PROJECTED_CONTROLS, Projected
from test_recurrent_projection import loss
options = dict(state=True, controls=PROJECTED_CONTROLS, lean={lean})
case = Projected("lstm", 6, (8,), 12, heads=4, **options)
arrays = case.inputs()
implementation = {implementation}
step = jax.jit(jax.value_and_grad(functools.partial(loss, case, implementation)))
expected = step(arrays)
for kind in AxisType.Auto, AxisType.Explicit:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        apart = {{
            name: jax.device_put(a, P("data") if name in ("x", "h_0", "c_0") else P())
            for name, a in arrays.items()
        }}
        found = step(apart)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
        jax.tree.map(np.asarray, found),
        expected,
    )
"""


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("implementation", [None, "scan"])
def test_sharded(implementation, lean):
    script = SHARDED.format(implementation=repr(implementation), lean=lean)
    run_python(script, XLA_FLAGS="--xla_force_host_platform_device_count=4")


# ---- prepared ------------------------------------------------------------------------

PREPARED = [
    Projected("lstm", 7, (3,), 33, 5, projection=17, state=True),
    Projected("lstm", 1, (1,), 192, 192, projection=64, state=True),
    Projected("lstm", 9, (1,), 129, 65, projection=33, bidirectional=True, state=True),
    Projected(
        "lstm", 5, (4,), 19, 6, projection=40, heads=2, controls=PROJECTED_CONTROLS
    ),
    Projected("lstm", 3, (2,), 513, 40, projection=130),
]


@pytest.mark.parametrize("case", PREPARED, ids=str)
def test_prepared_weights_give_the_same_bits(case):
    arrays = case.inputs()
    plain = case.forward()(arrays)
    for batch, time in ((None, 0), (1, 1), (9, 100)):
        packed = case.prepared(arrays, batch=batch, time=time)
        assert packed["packed"] is not None
        assert_bitwise_equal(case.forward()(packed), plain)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("case", PREPARED, ids=str)
def test_prepared_as_integers(case, dtype):
    arrays = case.prepared(case.inputs(dtype), weights="int8")
    packed = arrays.pop("packed")
    ours = named(*case.forward()({**arrays, "packed": packed}))
    of_scan = named(*case.forward("scan")(arrays))
    with float64():
        doubles = {n: np.asarray(a, np.float64) for n, a in arrays.items()}
        exact = named(*jax.tree.map(np.asarray, case.forward("scan")(doubles)))
    for name, value in ours.items():
        # What is multiplied has 16 bits (test_prepare_int8.py), here twice in a step.
        allowed = 2 * error_of(of_scan[name], exact[name]) + 1e-4
        assert error_of(value, exact[name]) <= allowed, name


def test_the_projection_is_rounded_too():
    params = params_of(size=HIDDEN + 30)
    rounded = prnn_jax.prepare("lstm", params, batch=1, time=1, weights="int8").params
    scale = np.abs(params.w_hr).max(axis=0) / 127
    integers = np.asarray(rounded.w_hr) / scale
    np.testing.assert_allclose(integers, np.round(integers), atol=2e-5)
    assert np.all(np.abs(rounded.w_hr - params.w_hr) <= 0.5001 * scale)
    assert_bitwise_equal(rounded.b_ih, params.b_ih)
