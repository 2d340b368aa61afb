"""prnn_jax.init: what its docstring says of each array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import prnn_jax

KEY, IN, HIDDEN = jax.random.key(0), 40, 24
GATES = {"lstm": 4, "slstm": 4, "gru": 3, "rnn": 1}


def orthogonal(matrix) -> bool:
    rows, columns = matrix.shape
    small = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    return np.allclose(small, np.eye(min(rows, columns)), atol=1e-5)


@pytest.mark.parametrize("cell", GATES)
def test_orthogonal(cell):
    params = prnn_jax.init(cell, KEY, IN, HIDDEN)
    for gate in np.split(np.asarray(params.w_hh), GATES[cell], -1):
        assert orthogonal(gate)
    bound = np.sqrt(6 / (IN + HIDDEN))
    w_ih = np.abs(params.w_ih)
    assert 0.95 * bound < w_ih.max() <= bound
    assert params.b_hh is None
    bias = np.split(np.asarray(params.b_ih), GATES[cell])
    for n, gate in enumerate(bias):
        assert (gate == (1 if cell == "lstm" and n == 1 else 0)).all()


@pytest.mark.parametrize(("cell", "layer"), [("lstm", "LSTM"), ("gru", "GRU")])
def test_as_keras(cell, layer):
    """Its own layers' distributions, by their extremes; and its biases."""
    keras = library("keras")
    theirs = getattr(keras.layers, layer)(HIDDEN)
    theirs.build((None, None, IN))
    kernel, recurrent, bias = theirs.get_weights()
    params = prnn_jax.init(cell, KEY, IN, HIDDEN, scheme="keras")
    assert orthogonal(np.asarray(params.w_hh))
    assert orthogonal(recurrent)
    most = np.abs(params.w_ih).max(), np.abs(kernel).max()
    assert abs(most[0] / most[1] - 1) < 0.05
    if cell == "lstm":
        np.testing.assert_array_equal(params.b_ih, bias)
    else:
        assert not np.any(bias)
        assert not np.any(params.b_ih)


def test_as_pytorch():
    params = prnn_jax.init("gru", KEY, IN, HIDDEN, scheme="pytorch")
    bound = 1 / np.sqrt(HIDDEN)
    for array in jax.tree.leaves(params):
        assert 0.9 * bound < np.abs(array).max() <= bound
        assert abs(np.mean(array)) < bound / 4
    assert params.b_hh.shape == (3 * HIDDEN,)


def test_chrono():
    (i, f, g, o) = np.split(
        np.asarray(prnn_jax.init("lstm", KEY, IN, 500, chrono=100).b_ih), 4
    )
    np.testing.assert_array_equal(i, -f)
    assert not np.any(g)
    assert not np.any(o)
    assert np.exp(f).min() >= 1 - 1e-6
    assert 90 < np.exp(f).max() < 99 + 1e-3
    assert abs(np.exp(f).mean() - 50) < 5  # uniform from 1 to 99
    r, z, n = np.split(np.asarray(prnn_jax.init("gru", KEY, IN, 9, chrono=9).b_ih), 3)
    assert (z >= -1e-6).all()
    assert z.max() > 1
    assert not np.any([r, n])


@pytest.mark.parametrize("cell", ["lstm", "slstm"])
@pytest.mark.parametrize("scheme", ["orthogonal", "pytorch"])
def test_forget_bias(cell, scheme):
    """A number, or one for each unit of a head; other gates begin with zero."""
    given = {"scheme": scheme, "heads": 4, "bidirectional": True}
    of_units = 5 - 12 * np.linspace(0, 1, 6) ** 0.3
    for wanted in (3.0, np.float32(3), of_units, list(of_units), jnp.array(of_units)):
        params = prnn_jax.init(cell, KEY, IN, HIDDEN, forget_bias=wanted, **given)
        i, f, *others = np.split(np.asarray(params.b_ih), 4, -1)
        np.testing.assert_allclose(f, np.broadcast_to(wanted, (2, 4, 6)), rtol=1e-6)
        assert not np.any([i, *others])
        assert params.b_hh is None or not np.any(params.b_hh)


@pytest.mark.parametrize("scheme", ["orthogonal", "keras", "pytorch"])
def test_runs_with_heads_and_directions(scheme):
    x = jnp.ones((2, 3, IN))
    both = prnn_jax.init("gru", KEY, IN, HIDDEN, scheme=scheme, bidirectional=True)
    assert isinstance(both, prnn_jax.BidirectionalParams)
    y, _ = prnn_jax.gru(x, both, bidirectional=True)
    assert y.shape == (2, 3, 2 * HIDDEN)
    heads = prnn_jax.init("slstm", KEY, IN, HIDDEN, scheme=scheme, heads=4)
    assert isinstance(heads, prnn_jax.MultiHeadParams)
    assert heads.w_hh.shape == (4, 6, 24)
    assert len({float(a) for a in heads.w_ih[:, 0, 0]}) == 4
    y, _ = prnn_jax.slstm(x, heads)
    assert y.shape == (2, 3, HIDDEN)
    peeping = prnn_jax.init("lstm", KEY, IN, HIDDEN, scheme=scheme, peepholes=True)
    assert peeping.peepholes.shape == (3 * HIDDEN,)
    y, _ = prnn_jax.lstm(
        x.astype(jnp.bfloat16),
        prnn_jax.init(
            "lstm", KEY, IN, HIDDEN, scheme=scheme, dtype=jnp.bfloat16, bias=False
        ),
    )
    assert y.dtype == jnp.bfloat16
    again = prnn_jax.init("lstm", KEY, IN, HIDDEN, scheme=scheme, peepholes=True)
    np.testing.assert_array_equal(again.w_hh, peeping.w_hh)


@pytest.mark.parametrize(
    ("cell", "options", "message"),
    [
        ("mamba", {}, "cell must be"),
        ("lstm", {"scheme": "xavier"}, "scheme must be"),
        ("lstm", {"heads": 5}, "heads must divide hidden_size=24, got 5"),
        ("gru", {"peepholes": True}, "peepholes must be False"),
        ("gru", {"forget_bias": 1.0}, "forget_bias must be None .* got 1.0 for gru"),
        (
            "slstm",
            {"forget_bias": [1, 2]},
            r"or \[hidden\] = \[24\] of a head, got \[2",
        ),
        ("lstm", {"forget_bias": 1.0, "chrono": 9}, "forget_bias must be None"),
        ("rnn", {"chrono": 9}, "chrono must be None, or more than 2"),
        ("lstm", {"chrono": 2}, "chrono must be None, or more than 2 steps"),
        ("lstm", {"chrono": 9, "bias": False}, "bias must be True"),
        ("lstm", {"width": 2}, "only cells without a product in a step have width"),
        ("min_gru", {"scheme": "keras"}, "scheme must be left out for min_gru"),
        ("min_gru", {"heads": 2}, "heads must be left out for min_gru"),
        ("sru", {"chrono": 9}, "chrono must be left out for sru"),
        ("indrnn", {"width": 2}, "indrnn has no width; .* it has activation, steps"),
        ("qrnn", {"pooling": "of"}, "pooling must be one of 'f', 'fo', 'ifo'"),
        ("lru", {"r_min": 1.0}, "r_min, r_max and max_phase must be 0 <= r_min"),
        ("lru", {"state_size": 0}, "state_size must be at least 1"),
        ("rg_lru", {}, "hidden_size must be input_size = 40, for its units"),
    ],
)
def test_what_does_not_fit_is_an_error(cell, options, message):
    with pytest.raises(ValueError, match=message):
        prnn_jax.init(cell, KEY, IN, HIDDEN, **options)


def test_a_misspelt_option_is_none():
    with pytest.raises(
        TypeError, match=r"init\(\) got an unexpected keyword .*'widht'"
    ):
        prnn_jax.init("qrnn", KEY, IN, HIDDEN, widht=3)


LINEAR = {
    "min_gru": {},
    "min_lstm": {"bias": False},
    "sru": {"peepholes": True, "highway_bias": -2.0},
    "qrnn": {"pooling": "ifo", "width": 3, "dtype": jnp.bfloat16},
    "rg_lru": {"c": 4.0},
    "lru": {"state_size": 3},
    "indrnn": {"steps": 10},
}


@pytest.mark.parametrize("cell", LINEAR)
def test_cells_without_a_product(cell):
    """The arguments of the function, that begin as its layers do."""
    size = HIDDEN if cell == "rg_lru" else IN
    options = LINEAR[cell]
    params = prnn_jax.init(cell, KEY, size, HIDDEN, **options)
    dtype = jnp.dtype(options.get("dtype", jnp.float32))
    assert {a.dtype for a in jax.tree.leaves(params)} == {dtype}
    function, x = getattr(prnn_jax, cell), jnp.ones((2, 3, size), dtype)
    of_function = {"pooling": "ifo"} if cell == "qrnn" else {}
    y, _ = function(x, **params, **of_function)
    assert y.shape == (2, 3, HIDDEN)
    again = prnn_jax.init(cell, KEY, size, HIDDEN, **options)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    both = prnn_jax.init(cell, KEY, size, HIDDEN, bidirectional=True, **options)
    y, _ = function(x, **both, **of_function, bidirectional=True)
    assert y.shape == (2, 3, 2 * HIDDEN)
    assert any((a[0] != a[1]).any() for a in jax.tree.leaves(both))  # drawn apart
    other = prnn_jax.init(cell, jax.random.key(7), size, HIDDEN, **options)
    pairs = zip(*map(jax.tree.leaves, (other, params)), strict=True)
    assert any((a != b).any() for a, b in pairs)


def test_what_cells_without_a_product_begin_with():
    u = prnn_jax.init("indrnn", KEY, 4, 1000, steps=10)["params"].w_hh
    assert 0 <= u.min() < 0.01
    assert 1.05 < u.max() <= 2**0.1
    log_a = -np.log1p(
        np.exp(-np.asarray(prnn_jax.init("rg_lru", KEY, 900, 900)["decay"]))
    )
    assert 0.9 <= np.exp(8 * log_a).min() < 0.901
    b_ih = prnn_jax.init("sru", KEY, 4, 1000, highway_bias=-2.0)["b_ih"]
    np.testing.assert_array_equal(b_ih, np.repeat(np.float32([0, -2]), 1000))
    w_ih = prnn_jax.init("qrnn", KEY, 8, 1000)["w_ih"]
    assert np.std(w_ih) == pytest.approx(1 / 4, rel=0.05)  # of 2 steps of 8 inputs
