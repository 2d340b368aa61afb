"""Recurrences without a product in a step, against loops in float64."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import (
    assert_as_accurate,
    assert_bitwise_equal,
    float64,
    run_python,
)

import prnn_jax
from prnn_jax import Params
from prnn_jax._engine import elementwise

#: (batch, time, width): one step, parts of vectors, more than a piece of a row.
SIZES = [(1, 1, 3), (3, 7, 45), (2, 5, 2100)]
CONTROLS = {
    "plain": (),
    "reverse": ("reverse",),
    "lengths": ("lengths",),
    "lengths-reverse": ("lengths", "reverse"),
    "resets": ("resets",),
    "all": ("resets", "lengths", "reverse"),
}


def arrays_of(batch: int, time: int, width: int, controls, *, constant: bool) -> dict:
    random = np.random.default_rng(batch + 10 * time + width)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    sizes = (width,) if constant else (batch, time, width)
    out = {
        "a": random.uniform(-1, 1, sizes).astype(np.float32),
        "b": normal(batch, time, width),
        "h_0": normal(batch, width),
    }
    if "resets" in controls:
        out["resets"] = random.uniform(size=(batch, time)) < 0.3
        out["reset_to"] = normal(batch, width)
    if "lengths" in controls:
        out["lengths"] = np.arange(batch, dtype=np.int32) % (time + 1)
    return out


def by_loop(arrays: dict, *, reverse: bool, f=lambda v: v):
    """y and the last state by the equations, step by step, in jax.numpy."""
    a, b, h_0 = arrays["a"], arrays["b"], arrays["h_0"]
    time = b.shape[1]
    lengths = arrays.get("lengths", np.full(len(b), time))
    rows, ends = [], []
    for row in range(len(b)):
        h, count = h_0[row], int(lengths[row])
        y = [jnp.zeros_like(h)] * time
        for s in range(count):
            t = count - 1 - s if reverse else s
            if "resets" in arrays and arrays["resets"][row, t]:
                h = arrays["reset_to"][row]
            h = f((a if a.ndim == 1 else a[row, t]) * h + b[row, t])
            y[t] = h
        rows.append(jnp.stack(y))
        ends.append(h)
    return jnp.stack(rows), jnp.stack(ends)


def ours(arrays: dict, *, reverse: bool, f=None, implementation="native"):
    options = {k: v for k, v in arrays.items() if k not in ("a", "b", "h_0")}
    options |= {"reverse": reverse, "implementation": implementation}
    a, b, h_0 = arrays["a"], arrays["b"], arrays["h_0"]
    if f is None:
        return prnn_jax.linear_recurrence(a, b, h_0, **options)
    params = Params(jnp.eye(b.shape[-1], dtype=b.dtype), a)
    return prnn_jax.indrnn(b, params, h_0, activation=f, **options)


def with_gradients(run, arrays: dict):
    """What `run` gives of the arrays, and gradients of all that are floats."""
    floats = {k: v for k, v in arrays.items() if v.dtype.kind == "f"}
    others = {k: v for k, v in arrays.items() if v.dtype.kind != "f"}
    out, vjp = jax.vjp(lambda floats: run({**floats, **others}), floats)
    weights = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape), out)
    return out, vjp(jax.tree.map(lambda w, y: w.astype(y.dtype), weights, out))[0]


def check(run, loop, arrays: dict) -> None:
    exact_arrays = {
        k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in arrays.items()
    }
    with float64():
        exact = jax.tree.map(np.asarray, with_gradients(loop, exact_arrays))
    of_loop = with_gradients(loop, arrays)
    assert_as_accurate(with_gradients(run, arrays), of_loop, exact)


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("constant", [False, True], ids=["gates", "constant"])
@pytest.mark.parametrize("controls", CONTROLS)
def test_is_the_loop(controls, constant, implementation):
    reverse = "reverse" in CONTROLS[controls]
    arrays = arrays_of(3, 7, 45, CONTROLS[controls], constant=constant)
    run = functools.partial(ours, reverse=reverse, implementation=implementation)
    check(run, functools.partial(by_loop, reverse=reverse), arrays)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("controls", CONTROLS)
def test_indrnn_is_the_loop(controls, activation):
    reverse = "reverse" in CONTROLS[controls]
    arrays = arrays_of(3, 7, 45, CONTROLS[controls], constant=True)
    f = {"relu": jax.nn.relu, "tanh": jnp.tanh}[activation]
    run = functools.partial(ours, reverse=reverse, f=activation)
    check(run, functools.partial(by_loop, reverse=reverse, f=f), arrays)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes):
    arrays = arrays_of(*sizes, (), constant=False)
    run = functools.partial(ours, reverse=False)
    check(run, functools.partial(by_loop, reverse=False), arrays)


def test_what_other_platforms_run():
    arrays = arrays_of(3, 7, 45, CONTROLS["all"], constant=False)
    for shifted in (False, True):
        how = elementwise.Elementwise(reverse=True, shifted=shifted)
        a, b, y_0 = (jnp.asarray(arrays[name]) for name in ("a", "b", "h_0"))
        found = elementwise._anywhere(how, b, a, y_0)
        expected = elementwise._by_scan(how, a, b, y_0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients():
    arrays = arrays_of(2, 5, 9, ("resets",), constant=True)

    def norm_of_gradient(arrays, implementation, f):
        run = functools.partial(ours, reverse=True, f=f, implementation=implementation)
        _, gradients = with_gradients(run, arrays)
        return sum(jnp.sum(g * g) for g in gradients.values())

    others = {"resets": arrays.pop("resets")}
    for f in (None, "tanh"):

        def second(floats, implementation, f=f):
            given = {**floats, **others}
            return jax.grad(
                lambda x: norm_of_gradient({**x, **others}, implementation, f)
            )({k: given[k] for k in floats})

        with float64():
            wide = jax.tree.map(lambda x: x.astype(np.float64), arrays)
            exact = jax.tree.map(np.asarray, second(wide, "scan"))
        assert_as_accurate(second(arrays, "native"), second(arrays, "scan"), exact)


def test_time_major_and_batch_axes():
    arrays = arrays_of(6, 7, 5, (), constant=False)
    y, h = ours(arrays, reverse=True)
    moved = {k: np.moveaxis(v, 1, 0) for k, v in arrays.items() if v.ndim == 3}
    of_time = prnn_jax.linear_recurrence(
        *moved.values(), arrays["h_0"], reverse=True, time_major=True
    )
    assert_bitwise_equal((jnp.moveaxis(of_time[0], 0, 1), of_time[1]), (y, h))
    apart = {k: v.reshape(2, 3, *v.shape[1:]) for k, v in arrays.items()}
    of_axes = ours(apart, reverse=True)
    assert_bitwise_equal(
        jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), of_axes), (y, h)
    )


@pytest.mark.parametrize("over", ["b", "a", "h_0"])
def test_vmap(over):
    arrays = arrays_of(3, 4, 5, (), constant=True)
    many = {**arrays, over: np.stack([arrays[over] + n for n in range(4)])}
    axes = ({k: 0 if k == over else None for k in arrays},)
    found = jax.vmap(functools.partial(ours, reverse=False, f="tanh"), axes)(many)
    for n in range(4):
        one = ours({**arrays, over: many[over][n]}, reverse=False, f="tanh")
        np.testing.assert_allclose(found[0][n], one[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found[1][n], one[1], rtol=1e-6, atol=1e-6)


def test_vmap_over_nothing():
    arrays = arrays_of(2, 4, 3, (), constant=False)

    def run(b):
        y, h = prnn_jax.linear_recurrence(arrays["a"], b, arrays["h_0"])
        return y.sum() + h.sum()

    of = jax.vmap(jax.value_and_grad(run))
    values, gradients = of(jnp.zeros((0, 2, 4, 3)))
    assert values.shape == (0,)
    assert gradients.shape == (0, 2, 4, 3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bits_keep_a_float32_state(dtype):
    arrays = arrays_of(2, 200, 20, (), constant=False)
    arrays = {k: jnp.asarray(v, dtype) for k, v in arrays.items()}
    y, _ = ours(arrays, reverse=False)
    assert y.dtype == dtype
    wide = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    exact, _ = ours(wide, reverse=False)
    # One rounding of each value, for nothing is rounded on the way.
    assert_bitwise_equal(y, exact.astype(dtype))


def test_other_dtypes_run_too():
    with float64():
        arrays = arrays_of(2, 5, 3, (), constant=False)
        arrays = {k: jnp.asarray(v, jnp.float64) for k, v in arrays.items()}
        y, h = ours(arrays, reverse=False, implementation=None)
        assert y.dtype == h.dtype == jnp.float64
        with pytest.raises(ValueError, match="not available: the native engines take"):
            ours(arrays, reverse=False)
        expected = by_loop(arrays, reverse=False)
        np.testing.assert_allclose(y, expected[0], rtol=1e-12)


def test_results_do_not_depend_on_threads():
    script = """
import numpy as np, jax, prnn_jax
a, b = np.random.default_rng(0).standard_normal((2, 7, 50, 3000)).astype(np.float32)
print(np.asarray(prnn_jax.linear_recurrence(a * 0.3, b)[0]).tobytes().hex()[::997])
"""
    several, alone = run_python(script), run_python(script, PRNN_CPU_WORKERS="0")
    assert several == alone
    assert len(several) > 100


def test_export_of_any_batch_and_time():
    batch, time = jax.export.symbolic_shape("b, t")
    sequence = jax.ShapeDtypeStruct((batch, time, 5), jnp.float32)
    checks = prnn_jax.export_checks()
    for run in (
        prnn_jax.linear_recurrence,
        jax.grad(lambda a, b: prnn_jax.linear_recurrence(a, b)[0].sum()),
    ):
        program = jax.export.export(jax.jit(run), disabled_checks=checks)
        made = program(sequence, sequence)
        assert "prnn_elementwise" in made.mlir_module()
        arrays = arrays_of(3, 7, 5, (), constant=False)
        given = arrays["a"], arrays["b"]
        assert_bitwise_equal(made.call(*given), jax.jit(run)(*given))


@pytest.mark.parametrize("others", [["cuda"], ["cuda", "tpu"]], ids=str)
def test_export_of_any_time_for_several_platforms(others):
    batch, time = jax.export.symbolic_shape("b, t")
    sequence = jax.ShapeDtypeStruct((batch, time, 5), jnp.float32)
    program = jax.export.export(
        jax.jit(prnn_jax.linear_recurrence),
        platforms=["cpu", *others],
        disabled_checks=prnn_jax.export_checks(),
    )(sequence, sequence)
    arrays = arrays_of(3, 7, 5, (), constant=False)
    given = arrays["a"], arrays["b"]
    assert_bitwise_equal(program.call(*given), prnn_jax.linear_recurrence(*given))


def test_no_steps_leave_the_state():
    h_0 = jnp.ones((2, 3))
    y, h = prnn_jax.linear_recurrence(jnp.ones((2, 0, 3)), jnp.ones((2, 0, 3)), h_0)
    assert y.shape == (2, 0, 3)
    assert_bitwise_equal(h, h_0)


@pytest.mark.parametrize("controls", [("lengths",), ("lengths", "resets")], ids=str)
def test_padding_may_be_nan(controls):
    arrays = arrays_of(3, 7, 5, controls, constant=False)
    counts = np.arange(7) < arrays["lengths"][:, None]
    nan = {k: np.where(counts[..., None], arrays[k], np.nan) for k in ("a", "b")}
    run = functools.partial(ours, reverse=True)
    assert_bitwise_equal(
        jax.tree.leaves(with_gradients(run, {**arrays, **nan})[0]),
        jax.tree.leaves(with_gradients(run, arrays)[0]),
    )
    gradients = with_gradients(run, {**arrays, **nan})[1]
    assert all(np.isfinite(g).all() for g in gradients.values())


SHARDED = """
import json, re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import prnn_jax
a, b = np.random.default_rng(0).standard_normal((2, 8, 12, 16)).astype(np.float32)
def loss(a, b):
    y, h = prnn_jax.linear_recurrence(0.5 * a, b, implementation="native")
    return jnp.sum(jnp.sin(y)) + jnp.sum(h * h)
expected = jax.grad(loss, (0, 1))(a, b)
for kind in (AxisType.Auto, AxisType.Explicit):
    for spec in (P("data"), P("data", None, "model")):
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
        with jax.set_mesh(mesh):
            put = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (a, b)]
            run = jax.jit(jax.grad(loss, (0, 1))).lower(*put).compile()
            text = run.as_text()
            found = run(*put)
        error = max(float(jnp.max(jnp.abs(np.asarray(x) - y)))
                    for x, y in zip(found, expected))
        moved = len(re.findall(r"all-gather|all-to-all|collective-permute", text))
        native = text.count('custom_call_target="prnn_elementwise"')
        print(json.dumps({"error": error, "moved": moved, "native": native}))
"""


def test_devices_keep_their_rows_and_elements():
    lines = run_python(
        SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=8"
    ).splitlines()
    assert len(lines) == 4
    for report in map(json.loads, lines):
        assert report["moved"] == 0, report
        assert report["native"] == 2, report
        assert report["error"] < 1e-5, report


# ---- bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: prnn_jax.linear_recurrence(x[:, 1:], x),
            r"a must be \[\*batch, time, features\] = \[2, 3, 4\] or \[features\]",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x[0, 0], x[0, 0]),
            r"b must be \[\*batch, time, features\], got \[4\]",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x, x, x[:, 0, 1:]),
            r"h_0 must be \[\*batch, features\] = \[2, 4\], got \[2, 3\]",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x, x.astype(jnp.bfloat16)),
            "all arrays must have the same dtype",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x, x, reset_to=x[:, 0]),
            "reset_to is given without resets",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x, x, lengths=[4, 1]),
            "lengths must be from 0 to time = 3, got 4",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(x, x, implementation="cuda"),
            "implementation must be one of None, 'native', 'scan'",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.ones((2, 3, 4)))
