"""The linear recurrent unit."""

import jax
import numpy as np
import pytest
from support import float64

import prnn_jax


def test_gamma_begins_as_it_is_by_default():
    """And the state is then as large as x, of whatever λ."""
    params = prnn_jax.init("lru", jax.random.key(0), 16, 64, r_min=0.5, r_max=0.999)
    assert params["skip"] is None
    x = np.random.default_rng(1).standard_normal((2, 4000, 16)).astype(np.float32)
    y, h = prnn_jax.lru(x, **params)
    without, last = prnn_jax.lru(x, **{**params, "gamma_log": None})
    np.testing.assert_allclose(without, y, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(last, h, rtol=1e-3, atol=1e-4)
    sizes = np.abs(np.exp(-np.exp(params["nu_log"])))
    assert 0.5 < sizes.min() < 0.52
    assert 0.99 < sizes.max() < 0.999
    assert np.exp(params["theta_log"]).max() < 2 * np.pi
    of_h = np.sqrt(np.mean(np.sum(np.asarray(h).reshape(2, 2, 64) ** 2, 1)))
    assert 0.8 < of_h < 1.25


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits(dtype):
    params = prnn_jax.init("lru", jax.random.key(0), 8, 8)
    x = np.random.default_rng(1).standard_normal((2, 50, 8)).astype(np.float32)
    exact, last = prnn_jax.lru(x, **params)
    small = jax.tree.map(lambda v: v.astype(dtype), (x, params))
    y, h = prnn_jax.lru(small[0], **small[1])
    assert y.dtype == h.dtype == dtype
    scale = float(np.abs(exact).max())
    assert np.abs(np.asarray(y, np.float32) - exact).max() < 0.03 * scale
    assert np.abs(np.asarray(h, np.float32) - last).max() < 0.05 * np.abs(last).max()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"w_ih": np.ones((4, 5), "f")}, r"w_ih must be .*\[4, 6\], got \[4, 5\]"),
        ({"w_out": np.ones((3, 5), "f")}, r"w_out must be .*\[6, 5\], got \[3, 5\]"),
        ({"theta_log": np.ones(2, "f")}, r"theta_log must be .*\[3\], got \[2\]"),
        ({"skip": np.ones(4, "f")}, "skip must be None where the input, 4, is not"),
        ({"h_0": np.ones((2, 3), "f")}, r"h_0 must be .*\[2, 6\], got \[2, 3\]"),
        ({"nu_log": np.ones(3, "F")}, "nu_log must be real, got complex64"),
        ({"w_out": np.ones((6, 5), "d")}, "same dtype"),
        ({"w_out": None}, "w_out must be an array"),
    ],
)
def test_what_does_not_fit_is_an_error(changed, message):
    params = {
        **{"w_ih": np.ones((4, 6), "f"), "w_out": np.ones((6, 5), "f")},
        **{"nu_log": np.zeros(3, "f"), "theta_log": np.zeros(3, "f")},
    }
    with float64(), pytest.raises(ValueError, match=message):
        prnn_jax.lru(np.ones((2, 7, 4), "f"), **{**params, **changed})


def test_a_layer_begins_with_gamma_where_none_is_given():
    nnx = pytest.importorskip("flax.nnx")
    import prnn_jax.nnx

    params = prnn_jax.init("lru", jax.random.key(0), 4, 5, state_size=3)
    params["gamma_log"] = None
    layer = prnn_jax.nnx.LRU.from_params(params)
    assert isinstance(layer.gamma_log, nnx.Param)
    x = np.random.default_rng(1).standard_normal((2, 7, 4)).astype(np.float32)
    np.testing.assert_allclose(layer(x), prnn_jax.lru(x, **params)[0], rtol=1e-6)


@pytest.mark.parametrize("given", [True, False], ids=["gamma", "no-gamma"])
@pytest.mark.parametrize("nu_log", [-np.inf, -120, 89, np.inf])
def test_gradients_where_lambda_is_0_or_1(nu_log, given):
    random = np.random.default_rng(2)
    w_ih, w_out = random.standard_normal((2, 4, 4)).astype("f")
    weights = w_ih, w_out, np.zeros(2, "f")
    gamma_log = np.zeros(2, "f") if given else None

    def loss(nu_log, w_ih, w_out, theta_log):
        args = w_ih, w_out, nu_log, theta_log, gamma_log
        return prnn_jax.lru(w_ih[None], *args)[0].sum()

    gradients = jax.grad(loss, (0, 1, 2, 3))(np.full(2, nu_log, "f"), *weights)
    assert all(np.isfinite(g).all() for g in gradients)
    np.testing.assert_array_equal(gradients[0], 0)
