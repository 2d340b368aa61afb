"""The RG-LRU where its root is of almost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import prnn_jax

C = 8.0


def exact(x, w, decay):
    """Gradients of the sum of y, in float64, of one row; i is not asked for."""
    x, w, decay = (np.float64(a) for a in (x, w, decay))
    r, i = (1 / (1 + np.exp(-a)) for a in np.split(x @ w, 2, -1))
    log_keeps = -np.logaddexp(0, -decay)
    log_a = C * r * log_keeps
    a, share = np.exp(log_a), np.sqrt(-np.expm1(2 * log_a))
    # h' = a h + share u: by hand, from the last step to the first.
    u, h = i * x, np.zeros(len(decay))
    before = []
    for t in range(len(x)):
        before.append(h)
        h = a[t] * h + share[t] * u[t]
    d, d_log = 0.0, np.zeros_like(log_a)
    for t in reversed(range(len(x))):
        d = d + 1
        of_share = a[t] ** 2 / np.where(share[t] > 0, share[t], np.inf)
        d_log[t] = a[t] * d * before[t] - d * u[t] * of_share
        d = a[t] * d
    return {
        "decay": (d_log * C * r / (1 + np.exp(decay))).sum(0),
        "r": d_log * log_a * (1 - r),
    }


def gradients(x, w, decay):
    """Of a_r, summed over steps, and of Λ."""

    def loss(b, decay):
        return prnn_jax.rg_lru(x[None], w, b, decay)[0].sum()

    of_b, of_decay = jax.jit(jax.grad(loss, (0, 1)))(jnp.zeros(w.shape[1]), decay)
    return of_b[: len(decay)], of_decay


@pytest.mark.parametrize("shut", [0.0, -60.0, -88.0, -1000.0])
@pytest.mark.parametrize("decay", [3.0, 20.0, 60.0, 80.0])
def test_gradients_where_nothing_enters(shut, decay):
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 2)).astype("f")
    w = np.concatenate([np.zeros((2, 2)), random.standard_normal((2, 2))], 1)
    x[0], w[0, 0] = [1.0, 0.3], shut  # of one unit, at some steps
    w, decays = w.astype("f"), np.full(2, decay, "f")
    with np.errstate(over="ignore"):
        wanted = exact(x, w, decays)
    # A log a below float32's smallest, 1e-38, has a root of 1e-19.
    of_r, of_decay = gradients(x, w, decays)
    np.testing.assert_allclose(of_r, wanted["r"].sum(0), rtol=2e-4, atol=1e-18)
    np.testing.assert_allclose(of_decay, wanted["decay"], rtol=2e-4, atol=1e-18)


@pytest.mark.parametrize("shut", [-88.0, -1000.0])
@pytest.mark.parametrize("implementation", [None, "scan"])
def test_a_gate_that_is_shut_has_no_gradient_and_no_nan(shut, implementation):
    def loss(x, w, b, decay):
        return prnn_jax.rg_lru(x, w, b, decay, implementation=implementation)[0].sum()

    given = jnp.ones((1, 1, 1)), jnp.zeros((1, 2)), jnp.array([shut, 0.0])
    for found in jax.grad(loss, (0, 1, 2, 3))(*given, jnp.array([3.0])):
        assert np.all(np.abs(found) < 1e-15)
    second = jax.grad(lambda b: jax.grad(loss, 2)(*given[:2], b, jnp.ones(1))[0])
    assert np.all(np.isfinite(second(given[2])))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("decay", [4.0, 10.0, 17.0, 18.0, 20.0])
def test_in_16_bits(decay, dtype):
    """y does not become zero, nor its gradient infinite, long before they would."""
    x, w = np.ones((1, 3, 1)), np.zeros((1, 2))
    given = [jnp.asarray(a, dtype) for a in (x, w, np.array([decay]))]
    y, _ = prnn_jax.rg_lru(given[0], given[1], None, given[2])
    wide = [a.astype(jnp.float32) for a in given]
    wanted, _ = prnn_jax.rg_lru(wide[0], wide[1], None, wide[2])
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype("f"), wanted, rtol=6 * eps)

    def loss(decay, x, w):
        return prnn_jax.rg_lru(x, w, None, decay)[0].astype(jnp.float32).sum()

    found = jax.grad(loss)(given[2], *given[:2])
    np.testing.assert_allclose(
        found.astype("f"), jax.grad(loss)(wide[2], *wide[:2]), rtol=20 * eps, atol=1e-7
    )
