"""Linear recurrences of complex numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_as_accurate, float64

import prnn_jax

BATCH, TIME, SIZE = 3, 9, 5


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def factors(*shape: int) -> np.ndarray:
    """Within the unit circle."""
    a = numbers(*shape, seed=7)
    return (a / np.maximum(np.abs(a), 1)).astype(np.complex64)


def split(tree):
    """Real and imaginary parts, which accuracy is said of."""
    return jax.tree.map(lambda z: (np.real(z), np.imag(z)), tree)


# ---- the recurrence ------------------------------------------------------------------

CONTROLS = {
    "": {},
    "reverse": {"reverse": True},
    "lengths": {"lengths": np.array([9, 0, 4])},
    "mask": {"mask": np.array([[1] * 9, [0] * 9, [0, 1, 1, 0, 0, 1, 0, 1, 1]])},
    "resets": {
        "resets": np.arange(27).reshape(3, 9) % 4 == 0,
        "reset_to": numbers(BATCH, SIZE, seed=5),
    },
}


def by_loop(a, b, h_0, *, reverse=False, lengths=None, mask=None, resets=None, **to):
    """In NumPy, in double precision."""
    a, b, h = (v.astype(np.complex128) for v in (a, b, h_0))
    a, y = np.broadcast_to(a, b.shape), np.zeros_like(b)
    counts = np.ones(b.shape[:2], bool) if mask is None else mask != 0
    if lengths is not None:
        counts = np.arange(TIME) < lengths[:, None]
    for t in reversed(range(TIME)) if reverse else range(TIME):
        before = h
        if resets is not None:
            before = np.where(resets[:, t, None], to["reset_to"], h)
        h = np.where(counts[:, t, None], a[:, t] * before + b[:, t], h)
        y[:, t] = np.where(counts[:, t, None] | (mask is not None), h, 0)
    return y, h


@pytest.mark.parametrize("constant", [False, True], ids=["gates", "constant"])
@pytest.mark.parametrize("name", CONTROLS)
def test_is_the_loop(name, constant):
    a = factors(SIZE) if constant else factors(BATCH, TIME, SIZE)
    given = a, numbers(BATCH, TIME, SIZE), numbers(BATCH, SIZE, seed=3)
    controls = dict(CONTROLS[name])

    def with_gradients(implementation, a, b, h_0):
        if "reset_to" in controls:
            controls["reset_to"] = controls["reset_to"].astype(b.dtype)
        controls["implementation"] = implementation
        of = functools.partial(prnn_jax.linear_recurrence, **controls)
        out, vjp = jax.vjp(of, a, b, h_0)
        turned = [np.exp(1j * np.arange(v.size)).reshape(v.shape) for v in out]
        seeds = tuple(v.astype(z.dtype) for v, z in zip(turned, out, strict=True))
        return out, vjp(seeds)

    found, of_scan = (with_gradients(i, *given) for i in ("native", "scan"))
    with float64():
        wide = (v.astype(np.complex128) for v in given)
        exact = jax.tree.map(np.asarray, with_gradients("scan", *wide))
    expected = by_loop(*given, **CONTROLS[name])
    for one, other in zip(exact[0], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert_as_accurate(*map(split, (found, of_scan, exact)))


def test_a_gradient_is_the_slope_of_a_real_loss():
    """As JAX has it of complex numbers: against differences, in float64."""
    with float64():
        given = [
            v.astype(np.complex128)
            for v in (factors(SIZE), numbers(2, 4, SIZE), numbers(2, SIZE))
        ]
        aim = numbers(2, 4, SIZE, seed=9).astype(np.complex128)

        def loss(*given):
            y, _ = prnn_jax.linear_recurrence(*given)
            return (jnp.abs(y - aim) ** 2).sum()

        slopes = jax.grad(loss, (0, 1, 2))(*given)
        for n, (v, slope) in enumerate(zip(given, slopes, strict=True)):
            step = 1e-6 * numbers(*v.shape, seed=n)
            ends = [loss(*given[:n], v + s * step, *given[n + 1 :]) for s in (1, -1)]
            # JAX's gradient is the conjugate of the direction of steepest ascent.
            expected = np.real(np.sum(np.asarray(slope) * step))
            np.testing.assert_allclose((ends[0] - ends[1]) / 2, expected, rtol=1e-6)


def test_under_vmap_and_in_another_precision():
    given = factors(4, 2, TIME, SIZE), numbers(4, 2, TIME, SIZE), numbers(4, 2, SIZE)
    y, last = jax.jit(jax.vmap(prnn_jax.linear_recurrence))(*given)
    for n in range(4):
        one = prnn_jax.linear_recurrence(*(v[n] for v in given))
        np.testing.assert_allclose(y[n], one[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(last[n], one[1], rtol=1e-6, atol=1e-6)
    with float64():
        wide, _ = prnn_jax.linear_recurrence(*(v[0].astype(complex) for v in given))
    assert wide.dtype == np.complex128
    np.testing.assert_allclose(y[0], wide, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["native", "scan", None])
def test_what_is_no_number_ends_at_a_reset(implementation):
    a, b = np.full((2, 6, 3), 0.5j), numbers(2, 6, 3)
    b[0, 1], h_0 = np.nan, np.full((2, 3), np.inf + 0j)
    resets = np.zeros((2, 6)), np.zeros((2, 6))
    resets[0][:, 3] = 1
    y, _ = prnn_jax.linear_recurrence(
        *(jnp.asarray(v, jnp.complex64) for v in (a, b, h_0)),
        resets=resets[0],
        implementation=implementation,
    )
    assert not np.isfinite(y[:, 2]).any()
    clean, _ = prnn_jax.linear_recurrence(*(v[:, 3:].astype("F") for v in (a, b)))
    np.testing.assert_allclose(y[:, 3:], clean, rtol=1e-6)


def test_long_rows_in_pieces():
    """More numbers than a thread takes at a time, and an odd count of them."""
    given = factors(2, 3, 1501), numbers(2, 3, 1501), numbers(2, 1501)
    y, _ = prnn_jax.linear_recurrence(*given)
    h = given[2].astype(np.complex128)
    for t in range(3):
        h = given[0][:, t] * h + given[1][:, t]
        np.testing.assert_allclose(y[:, t], h, rtol=1e-5, atol=1e-5)


def test_errors():
    b = numbers(2, 3, 4)
    with pytest.raises(ValueError, match="all arrays must have the same dtype"):
        prnn_jax.linear_recurrence(np.ones(4, np.float32), b)
    with pytest.raises(
        ValueError, match=r"x must be real, got complex64; .*linear_rec"
    ):
        prnn_jax.min_gru(b, np.ones((4, 6), np.float32))
    with float64(), pytest.raises(ValueError, match="take complex64, not complex128"):
        prnn_jax.linear_recurrence(*[b.astype(complex)] * 2, implementation="native")
    with pytest.raises(TypeError, match="forward-mode differentiation"):
        jax.jvp(lambda b: prnn_jax.linear_recurrence(b, b)[0], (b,), (b,))


def test_what_explains_it():
    plan = prnn_jax.explain(
        "linear_recurrence", batch=2, time=9, hidden_size=4, dtype="complex64"
    )
    assert plan.engine == "native"
    for dtype, engine in (("complex128", "associative_scan"), ("float32", "native")):
        plan = prnn_jax.explain(
            "lru" if dtype == "float32" else "linear_recurrence",
            **{"batch": 2, "time": 9, "hidden_size": 4, "dtype": dtype},
        )
        assert plan.engine == engine
    on_gpu = prnn_jax.explain(
        "lru", batch=1, time=65536, hidden_size=64, device="NVIDIA H200"
    )
    assert on_gpu.chunks > 16
