"""Recurrences without a product in a step on a GPU, emulated where there is none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulated import assert_as_accurate_as
from linear_cells import CELLS, arrays_of, check
from support import float64

import prnn_jax
from prnn_jax._cells.activations import applied
from prnn_jax._engine import elementwise
from prnn_jax._engine.modules import native

H200 = "NVIDIA H200"
LINEAR = elementwise.Elementwise()

pytestmark = pytest.mark.cuda


@pytest.fixture
def chunks(monkeypatch):
    """Has calls take their steps in so many chunks, where they are linear."""
    planned = elementwise.cuda_plan

    def set_chunks(count: int) -> None:
        def plan(how, *args, **options):
            found = planned(how, *args, **options)
            if how.f is None:
                found |= {"chunks": count, "floats_per_element": 2 * count}
            return found

        monkeypatch.setattr(elementwise, "cuda_plan", plan)

    return set_chunks


# ---- cells ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CELLS if name != "sru-peepholes"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_cell_is_its_loop(name, reverse, cuda):
    check(name, arrays_of(name, ("resets", "lengths")), reverse=reverse)
    if hasattr(cuda, "ran"):
        assert cuda.ran
        assert set(cuda.ran) == {"elementwise:block"}


def test_an_activation_of_ones_own_parameters(cuda):
    """As an activation comes to the kernel: its kind and its numbers."""
    random = np.random.default_rng(5)
    x, h_0 = (random.standard_normal(s).astype(np.float32) for s in ((2, 9, 3), (2, 3)))
    params = prnn_jax.Params(np.eye(3, dtype=np.float32), np.full(3, 0.7, np.float32))
    for activation in ("relu", "sigmoid", "elu", "softsign", "hard_sigmoid"):
        run = functools.partial(prnn_jax.indrnn, x, params, h_0, activation=activation)
        found, expected = (run(implementation=i)[0] for i in ("native", "scan"))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# ---- the recurrence ------------------------------------------------------------------


def arrays(rows: int, steps: int, width: int, dtype: str, *, constant: bool):
    random = np.random.default_rng(rows + 7 * steps + width)
    sizes = (rows, width) if constant else (rows, steps, width)
    a = random.uniform(-1, 1, sizes)
    b, y_0 = map(random.standard_normal, ((rows, steps, width), (rows, width)))
    if dtype == "complex64":
        a = a * np.exp(1j * random.uniform(0, 6, sizes))
        b, y_0 = (v * (0.6 + 0.8j) for v in (b, y_0))
    return tuple(jnp.asarray(v, dtype) for v in (a, b, y_0))


def recur(how: elementwise.Elementwise, given):
    return jax.jit(functools.partial(elementwise.recur, how))(*given)


@pytest.mark.parametrize("of", [1, 4], ids=["whole", "chunks"])
@pytest.mark.parametrize("constant", [False, True], ids=["gates", "constant"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_is_the_scan(dtype, constant, of, cuda, chunks):
    """Rows of an even and an odd number of elements; 45 steps are chunks of 16."""
    chunks(of)
    for sizes in ((3, 45, 70), (2, 45, 9), (1, 1, 4), (2, 17, 1)):
        given = arrays(*sizes, dtype, constant=constant)
        for reverse, shifted in (
            (False, False),
            (True, False),
            (False, True),
            (True, True),
        ):
            how = elementwise.Elementwise(reverse=reverse, shifted=shifted)
            y = recur(how, given)
            scan = elementwise._by_scan(how, *given)
            with float64():
                wide = jnp.complex128 if dtype == "complex64" else jnp.float64
                exact = elementwise._by_scan(how, *(v.astype(wide) for v in given))
                exact = np.asarray(exact)
            assert_as_accurate_as({"y": y}, {"y": scan}, {"y": exact}, dtype)
    if hasattr(cuda, "ran"):
        assert set(cuda.ran) == {"elementwise:block"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_an_activation_steps_come_one_after_the_other(dtype, cuda, chunks):
    chunks(4)
    how = elementwise.Elementwise(f=applied("test", "activation", "tanh"))
    given = arrays(3, 45, 6, dtype, constant=True)
    y, scan = recur(how, given), elementwise._by_scan(how, *given)
    tolerance = {"float32": 1e-6, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(
        np.asarray(y, np.float32), np.asarray(scan, np.float32), atol=tolerance
    )


def test_a_product_of_factors_that_overflows_is_no_nan(cuda, chunks):
    """Zero times it, in chunks; step by step nothing is infinite."""
    chunks(2)
    a, b, y_0 = jnp.full((1, 64, 2), 1e4), jnp.zeros((1, 64, 2)), jnp.zeros((1, 2))
    np.testing.assert_array_equal(recur(LINEAR, (a, b, y_0)), b)


@pytest.mark.parametrize("of", [1, 4], ids=["whole", "chunks"])
def test_what_is_no_number_ends_at_a_factor_of_zero(of, cuda, chunks):
    """And not where the product of factors is too small: steps of 0.5 keep it."""
    chunks(of)
    a, b, y_0 = (np.ones(sizes, np.float32) for sizes in ((3, 400, 2),) * 2 + ((3, 2),))
    a[0, 300], b[0, 40], y_0[0] = 0, np.nan, np.inf
    a[1, 0], a[1, 200], b[1, 100], y_0[1] = 0, 0, np.inf, np.nan
    a[2], y_0[2] = 0.5, np.inf
    y = recur(LINEAR, tuple(map(jnp.asarray, (a, b, y_0))))
    scan = elementwise._by_scan(LINEAR, *map(jnp.asarray, (a, b, y_0)))
    np.testing.assert_array_equal(y[:2], scan[:2])
    np.testing.assert_array_equal(y[0, 300:, 0], np.arange(1, 101))
    np.testing.assert_array_equal(y[1, 200:, 1], np.arange(1, 201))
    assert not np.isfinite(y[2]).any()


def test_no_rows_steps_or_elements(cuda):
    for sizes in ((0, 3, 2), (2, 0, 3), (2, 3, 0)):
        given = arrays(*sizes, "float32", constant=False)
        assert recur(LINEAR, given).shape == sizes


def test_derivatives_of_both_kinds(cuda, chunks):
    chunks(3)
    given = arrays(2, 21, 4, "float32", constant=False)
    how = LINEAR

    def loss(recur, *given):
        return (recur(how, *given) ** 2).sum()

    def second(recur):
        def first(*given):
            slopes = jax.grad(functools.partial(loss, recur), (0, 1, 2))(*given)
            return sum((s**2).sum() for s in slopes)

        return jax.jit(jax.grad(first, (0, 1, 2)))(*given)

    found, expected = second(elementwise.recur), second(elementwise._by_scan)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-4)


# ---- what XLA asks of it -------------------------------------------------------------


def test_is_captured_in_a_graph(emulated, chunks):
    chunks(2)
    given = arrays(2, 40, 3, "float32", constant=False)
    expected = elementwise._by_scan(LINEAR, *given)
    emulated.stages(replays=2)
    y = recur(LINEAR, given)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_a_build_without_the_architecture(emulated):
    emulated.use(has_image=False)
    with pytest.raises(Exception, match="no kernels for the compute capability"):
        jax.block_until_ready(recur(LINEAR, arrays(1, 3, 2, "float32", constant=False)))


def test_a_workspace_of_another_version_is_refused(emulated, monkeypatch):
    planned = elementwise.cuda_plan

    def plan(*args, **options):
        return planned(*args, **options) | {"chunks": 5, "floats_per_element": 4}

    monkeypatch.setattr(elementwise, "cuda_plan", plan)
    with pytest.raises(Exception, match="chunks of an elementwise recurrence"):
        jax.block_until_ready(
            recur(LINEAR, arrays(1, 99, 2, "float32", constant=False))
        )


# ---- the plan ------------------------------------------------------------------------


def plan_of(rows, steps, width, *, linear=True, device=H200):
    return native.cuda_elementwise_plan(4, rows, steps, width, False, linear, device)


def test_long_sequences_of_few_rows_are_cut():
    assert plan_of(1, 16, 1024)["chunks"] == 1
    assert plan_of(1, 65536, 1024)["chunks"] > 16
    assert plan_of(512, 1024, 1024)["chunks"] == 1  # memory is busy with one pass
    assert plan_of(1, 65536, 1024, linear=False)["chunks"] == 1
    one, many = (plan_of(1, 65536, 1024, linear=x)["call_us"] for x in (False, True))
    assert many < one / 4
    for rows, steps in ((1, 100), (1, 5000), (8, 3000)):
        plan = plan_of(rows, steps, 300)
        expected = 0 if plan["chunks"] == 1 else 2 * plan["chunks"]
        assert plan["floats_per_element"] == expected
