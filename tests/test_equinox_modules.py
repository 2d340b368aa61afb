"""prnn_jax.equinox: initial parameters, dtypes, transformations, errors."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox_support import CELLS, KEY, MAKE
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from support import quick_jit as jit

import prnn_jax.equinox as layers
from prnn_jax._engine import weight_products

# ---- initialisation ------------------------------------------------------------------


@CELLS
def test_same_key_same_parameters(make, cell_type):
    cell, layer = cell_type(IN, HIDDEN, key=KEY), make(IN, HIDDEN, key=KEY)
    jax.tree.map(np.testing.assert_array_equal, layer.to_cell(), cell)


@pytest.mark.parametrize(
    ("make", "gates", "bidirectional"),
    [
        (layers.LSTM, 4, True),
        (layers.SLSTM, 4, False),
        (layers.GRU, 3, False),
        (layers.RNN, 1, True),
    ],
)
def test_initial_parameters(make, gates, bidirectional):
    features, hidden = 53, 61
    layer = make(features, hidden, bidirectional=bidirectional, key=KEY)
    lead = (2,) if bidirectional else ()
    assert layer.w_ih.shape == (*lead, features, gates * hidden)
    assert layer.w_hh.shape == (*lead, hidden, gates * hidden)
    assert layer.b_ih.shape == (*lead, gates * hidden)
    assert (layer.b_hn is not None) == (make is layers.GRU)
    lim = 1 / np.sqrt(hidden)
    for array in jax.tree.leaves(layer):
        assert np.abs(array).max() <= lim
        # The largest of n uniform values misses the limit by about 1/n of it.
        assert np.abs(array).max() > lim * (1 - 10 / array.size)
        # The mean of n is off by lim/sqrt(3n); 5 of those.
        assert np.abs(array.mean()) < 5 * lim / np.sqrt(3 * array.size)
    if bidirectional:
        assert not np.array_equal(layer.w_hh[0], layer.w_hh[1])


def test_biases_that_are_not_there():
    def biases(layer):
        return layer.b_ih, layer.b_hn

    assert biases(layers.GRU(IN, HIDDEN, use_bias=False, key=KEY)) == (None, None)
    assert layers.GRU(IN, HIDDEN, reset_after=False, key=KEY).b_hn is None
    assert layers.LSTM(IN, HIDDEN, key=KEY).b_hn is None


# ---- dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    ("dtype", "in_dtype", "out_dtype"),
    [
        (None, "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),  # promoted
        ("float32", "bfloat16", "float32"),
    ],
)
def test_dtypes(make, dtype, in_dtype, out_dtype):
    layer = make(IN, HIDDEN, dtype=dtype, key=KEY)
    assert layer.w_hh.dtype == jnp.dtype(dtype or "float32")
    xs = normal(1, TIME, IN).astype(in_dtype)

    def loss(layer, xs):
        ys, state = layer(xs)
        return ys.sum(), (ys, state)

    grads, out = jit(jax.grad(loss, has_aux=True))(layer, xs)
    assert {a.dtype for a in jax.tree.leaves(out)} == {jnp.dtype(out_dtype)}
    assert {g.dtype for g in jax.tree.leaves(grads)} == {layer.w_hh.dtype}
    exact = jax.tree.map(lambda a: a.astype("float32"), layer)
    # |y| is at most 1. Each step rounds to the 8 bits of bfloat16 and the recurrence
    # carries that on: a few per cent after TIME steps.
    ys = exact(xs.astype("float32"))[0]
    np.testing.assert_allclose(out[0].astype("float32"), ys, atol=0.05)


def test_a_state_of_another_dtype_is_promoted():
    layer = layers.GRU(IN, HIDDEN, dtype="bfloat16", key=KEY)
    ys, state = layer(jnp.ones((TIME, IN), "bfloat16"), jnp.zeros(HIDDEN, "float32"))
    assert ys.dtype == state.dtype == jnp.float32


def test_float64():
    with jax.enable_x64(True):
        layer = layers.LSTM(IN, HIDDEN, key=KEY)
        assert layer.w_hh.dtype == jnp.float64
        assert layer(jnp.ones((TIME, IN)))[0].dtype == jnp.float64


# ---- transformations -----------------------------------------------------------------


def test_filter_jit_grad_and_update():
    layer = layers.GRU(IN, HIDDEN, key=KEY)
    xs, target = normal(1, BATCH, TIME, IN), normal(2, BATCH, TIME, HIDDEN)

    @eqx.filter_jit
    def step(layer):
        def loss(layer):
            return jnp.mean((jax.vmap(layer)(xs)[0] - target) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(layer)
        updates = jax.tree.map(lambda g: -0.3 * g, grads)
        return value, eqx.apply_updates(layer, updates)

    losses = []
    for _ in range(5):
        value, layer = step(layer)
        losses.append(value)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_ensemble_by_filter_vmap():
    xs, keys = normal(1, BATCH, TIME, IN), jax.random.split(KEY, 3)
    many = eqx.filter_vmap(lambda key: layers.LSTM(IN, HIDDEN, key=key))(keys)
    run = eqx.filter_vmap(
        lambda layer, xs: layer(xs)[0], in_axes=(eqx.if_array(0), None)
    )
    for member, key in zip(run(many, xs), keys, strict=True):
        close(member, layers.LSTM(IN, HIDDEN, key=key)(xs)[0])


@pytest.mark.parametrize("make", MAKE)
def test_implementation_is_what_runs(make):
    xs = normal(1, BATCH, TIME, IN)

    def lowered(implementation):
        layer = make(IN, HIDDEN, implementation=implementation, key=KEY)
        loss = jax.jit(jax.grad(lambda xs: jax.vmap(layer)(xs)[0].sum()))
        return loss.lower(xs).as_text()

    native = lowered("native")
    assert "prnn_forward" in native
    assert "prnn_backward" in native
    assert "prnn_" not in lowered("scan")
    assert "stablehlo.while" in lowered("scan")


@pytest.mark.parametrize("make", MAKE)
def test_precision_reaches_the_products(make, monkeypatch):
    monkeypatch.setattr(weight_products, "MAX_MULTIPLY_ADDS", 0)  # all of them XLA's
    layer = make(IN, HIDDEN, precision="highest", key=KEY)
    gradient = jax.jit(jax.grad(lambda xs: layer(xs)[0].sum()))
    lowered = gradient.lower(normal(1, TIME, IN))
    assert "precision = [HIGHEST, HIGHEST]" in lowered.as_text()


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (layers.LSTM, {"merge": "mul"}, "merge must be one of 'concat', 'sum', got"),
        (layers.LSTM, {"implementation": "cuda"}, "implementation must be one of"),
        (layers.GRU, {"bidirectional": True, "reverse": True}, "reverse must be False"),
        (layers.RNN, {"activation": "gelu"}, "activation must be one of"),
        (layers.GRU, {"heads": 2}, "heads must divide hidden_size=11, got 2"),
        (layers.RNN, {"reserve": "none"}, "reserve must be one of"),
        (layers.SLSTM, {"zoneout": 0.1}, "zoneout must be 0 for the sLSTM"),
        (layers.LSTM, {"recurrent_dropout": 1}, "recurrent_dropout must be from 0 to"),
    ],
)
def test_unknown_options(make, options, message):
    with pytest.raises(ValueError, match=f"{make.__name__}: {message}"):
        make(IN, HIDDEN, key=KEY, **options)


def test_calls_that_do_not_fit():
    layer = layers.LSTM(IN, HIDDEN, key=KEY)
    with pytest.raises(ValueError, match=r"input_size=7, got \[9, 6\]"):
        layer(jnp.ones((TIME, IN - 1)))
    with pytest.raises(ValueError, match=r"time, input_size\].*got \[7\]"):
        layer(jnp.ones(IN))
    with pytest.raises(ValueError, match=r"state_0 must be \(h_0, c_0\)"):
        layer(jnp.ones((TIME, IN)), jnp.zeros(HIDDEN))
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        layers.LSTM(IN, 0, key=KEY)


def test_import_without_equinox_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.delitem(sys.modules, "prnn_jax.equinox")
    with pytest.raises(ImportError, match=r'pip install "prnn_jax\[equinox\]"'):
        import prnn_jax.equinox  # noqa: F401
