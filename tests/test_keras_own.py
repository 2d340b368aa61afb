"""Layers for Keras of cells that Keras has not, against the cells' own functions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import prnn_jax

keras = library("keras")
import prnn_jax.keras as layers  # noqa: E402

BATCH, TIME, IN, UNITS = 3, 7, 5, 5
X = np.random.default_rng(0).standard_normal((BATCH, TIME, IN)).astype(np.float32)
MASK = np.random.default_rng(1).random((BATCH, TIME)) < 0.6
MASK[0], MASK[1] = True, False
KEY = jax.random.key(2)


def step(a_x, product, state, gain):
    h, m = state
    a, b = (x + r for x, r in zip(a_x, product(h), strict=True))
    m = jax.nn.sigmoid(a + gain) * m + jnp.tanh(b)
    return jnp.tanh(m), m


LIGHT = prnn_jax.define_cell("light", step, gates="ab", states="hm", per_unit=1)

#: The layer, its options, the function and its own arguments.
LAYERS: dict[str, tuple[Any, dict, Callable, dict]] = {
    "MinGRU": (layers.MinGRU, {"activation": "tanh"}, prnn_jax.min_gru, {}),
    "MinLSTM": (layers.MinLSTM, {}, prnn_jax.min_lstm, {}),
    "SRU": (
        layers.SRU,
        {"peepholes": True, "highway_bias": -1.0, "activation": keras.activations.relu},
        prnn_jax.sru,
        {"skip_scale": np.sqrt(1 + 2 * np.exp(-1.0)), "activation": "relu"},
    ),
    "QRNN": (
        layers.QRNN,
        {"width": 3, "pooling": "ifo"},
        prnn_jax.qrnn,
        {"pooling": "ifo"},
    ),
    "RGLRU": (layers.RGLRU, {"c": 4.0}, prnn_jax.rg_lru, {"c": 4.0}),
    "LRU": (layers.LRU, {"state_size": 3}, prnn_jax.lru, {}),
    "IndRNN": (layers.IndRNN, {"steps": TIME}, prnn_jax.indrnn, {}),
    "light": (layers.layer_of(LIGHT), {}, LIGHT, {}),
}
LAYERS["MinGRU"][3]["activation"] = "tanh"
each_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str, **options):
    """A layer with weights that are not zero."""
    keras.utils.set_random_seed(3)
    kind, own, *_ = LAYERS[name]
    layer = kind(UNITS, **{**own, **options})
    layer.build(X.shape)
    for n, weight in enumerate(layer.weights):
        noise = np.random.default_rng(n).standard_normal(weight.shape)
        weight.assign(weight + 0.1 * noise)
    return layer


def by_function(name: str, layer, x=X, state=None, **options) -> tuple:
    """y and the states as a list, as Keras has it."""
    *_, function, arguments = LAYERS[name]
    given = layer.params
    given = {"params": given} if isinstance(given, prnn_jax.Params) else given
    of_state = {"SRU": "c_0", "QRNN": "state_0", "light": "state_0"}.get(name, "h_0")
    y, last = function(x, **given, **{of_state: state}, **arguments, **options)
    last = last if isinstance(last, tuple) else (last,)
    return y, *(s.reshape(BATCH, -1) for s in last)


def assert_close(found, expected) -> None:
    """But for sums in another order."""
    for a, b in zip(keras.tree.flatten(found), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@each_layer
def test_outputs_and_states(name):
    layer = made(name, return_sequences=True, return_state=True)
    assert_close(layer(X), by_function(name, layer))
    held = {"mask": MASK, "masked_y": "hold"}
    assert_close(layer(X, mask=MASK), by_function(name, layer, **held))
    zero = made(name, return_sequences=True, zero_output_for_mask=True)
    wanted = by_function(name, zero, mask=MASK, masked_y="zero")
    assert_close(zero(X, mask=MASK), wanted[:1])
    last = made(name)
    assert_close(last(X), [by_function(name, last)[0][:, -1]])


@each_layer
def test_initial_states_and_the_other_way(name):
    layer = made(name, return_sequences=True, return_state=True, go_backwards=True)
    y, *states = by_function(name, layer, reverse=True)
    assert_close(layer(X), [np.flip(y, 1), *states])
    state = [
        np.random.default_rng(n).standard_normal(s.shape) for n, s in enumerate(states)
    ]
    state = [s.astype(np.float32) for s in state]
    shapes = [s.shape for s in state]
    if name == "QRNN":
        shapes[1] = BATCH, 2, IN
    given = tuple(s.reshape(shape) for s, shape in zip(state, shapes, strict=True))
    given = given if len(given) > 1 else given[0]
    y, *states = by_function(name, layer, state=given, reverse=True)
    assert_close(layer(X, initial_state=state), [np.flip(y, 1), *states])


@each_layer
def test_a_stateful_layer_goes_on(name):
    layer = made(name, return_sequences=True)
    kept = LAYERS[name][0].from_config(
        {**layer.get_config(), "stateful": True, "name": "kept"}
    )
    kept.build(X[:, :3].shape)
    kept.set_weights(layer.get_weights())
    parts = [np.asarray(kept(X[:, :3])), np.asarray(kept(X[:, 3:]))]
    np.testing.assert_allclose(np.concatenate(parts, 1), layer(X), rtol=2e-5, atol=2e-6)
    kept.reset_state()
    np.testing.assert_array_equal(parts[0], kept(X[:, :3]))


@each_layer
def test_a_model_is_trained_saved_and_loaded(name, tmp_path):
    kind, own, *_ = LAYERS[name]
    keras.utils.set_random_seed(4)
    ways = [keras.layers.Bidirectional, layers.Bidirectional]
    sizes = [UNITS, 2 * UNITS] if name == "RGLRU" else [UNITS, UNITS]
    both = [
        way(kind(n, return_sequences=True, **own))
        for way, n in zip(ways, sizes, strict=True)
    ]
    model = keras.Sequential([keras.Input((None, IN)), *both])
    model.compile("adam", "mse")
    before = np.asarray(model(X))
    model.fit(X, np.zeros(before.shape), epochs=2, verbose=0)
    assert np.abs(np.asarray(model(X)) - before).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(X), model(X))
    layer = both[1]
    sides = layer.forward_layer.params, layer.backward_layer.params
    wanted = jax.tree.map(lambda *ways: jnp.stack(ways), *sides)
    for a, b in zip(*map(jax.tree.leaves, (layer.params, wanted)), strict=True):
        np.testing.assert_array_equal(a, b)


@each_layer
def test_a_layer_of_parameters(name):
    first = made(name, return_sequences=True)
    own = {k: v for k, v in LAYERS[name][1].items() if k not in ("width", "peepholes")}
    again = LAYERS[name][0].from_params(first.params, return_sequences=True, **own)
    np.testing.assert_array_equal(again(X), first(X))
    plan = again.explain(BATCH, TIME)
    assert plan.engine == ("scan" if name in ("SRU", "light") else "native")
    for told in ("units", "use_bias"):
        with pytest.raises(ValueError, match=f"options must not have {told}"):
            LAYERS[name][0].from_params(first.params, **{told: 1})


@each_layer
def test_both_directions_of_parameters(name):
    sides = [made(name), made(name, go_backwards=True)]
    sides[1].set_weights([w + 0.1 for w in sides[1].get_weights()])
    params = jax.tree.map(lambda *ways: jnp.stack(ways), *(s.params for s in sides))
    own = {k: v for k, v in LAYERS[name][1].items() if k not in ("width", "peepholes")}
    kind = LAYERS[name][0]
    both = layers.Bidirectional.from_params(kind, params, merge_mode="sum", **own)
    wanted = np.asarray(sides[0](X)) + np.asarray(sides[1](X))
    np.testing.assert_allclose(both(X), wanted, rtol=2e-5, atol=2e-6)
    for a, b in zip(*map(jax.tree.leaves, (both.params, params)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="params must have a leading axis of 2"):
        layers.Bidirectional.from_params(kind, sides[0].params, **own)


@each_layer
def test_without_bias_and_with_regularizers(name):
    kind, own, *_ = LAYERS[name]
    layer = kind(UNITS, use_bias=False, kernel_regularizer="l2", **own)
    layer.build(X.shape)
    assert not [w for w in layer.weights if w.name.startswith("b_")]
    assert len(layer.losses) == 1
    ones = kind(UNITS, kernel_initializer="ones", bias_initializer="ones", **own)
    ones.build(X.shape)
    named = {w.name: np.asarray(w) for w in ones.weights}
    (matrix,) = (w for n, w in named.items() if n in ("w_ih", "w_gates"))
    biases = [w for n, w in named.items() if n.startswith("b_")]
    assert len(biases) == (name != "LRU")
    assert (matrix == 1).all()
    assert all((bias == 1).all() for bias in biases)


def test_zoneout_is_drawn_while_training():
    layer = made("QRNN", zoneout_rate=0.5, pooling="f", return_sequences=True)
    mean = prnn_jax.qrnn(X, **layer.params, pooling="f", zoneout=0.5)[0]
    np.testing.assert_allclose(layer(X), mean, rtol=2e-5, atol=2e-6)
    y = np.asarray(layer(X, training=True))
    same = y[:, 1:] == y[:, :-1]
    assert 0.3 < same.mean() < 0.7
    assert (y != np.asarray(layer(X, training=True))).any()  # another draw


def test_parameters_begin_as_of_the_function():
    keras.utils.set_random_seed(1)
    layer = layers.SRU(1000, highway_bias=-2.0)
    layer.build((None, None, 12))
    params = layer.params
    assert 0.48 < np.abs(params["w_ih"]).max() <= 0.5  # √(3/12)
    np.testing.assert_array_equal(params["b_ih"], np.repeat([0, -2], 1000))
    drawn = np.asarray(params["w_skip"])
    again = layers.SRU(1000)
    again.build((None, None, 12))
    assert np.abs(np.asarray(again.params["w_skip"]) - drawn).max() > 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.MinGRU(3, recurrent_dropout=0.1),
            "recurrent_dropout here",
        ),
        (lambda: layers.MinGRU(3, dropout=0.1), "a layer of dropout before this one"),
        (lambda: layers.MinGRU(3, recurrent_initializer="zeros"), "product in a step"),
        (lambda: layers.MinGRU(3, recurrent_activation="tanh"), "gates are σ"),
        (lambda: layers.MinGRU(3, pooling="f"), "pooling"),
        (lambda: layers.MinGRU(3, return_sequence=True), "return_sequence"),
        (lambda: layers.MinGRU(3, activation="gelu")(X), "activation must be"),
        (lambda: layers.MinGRU(0)(X), "units must be at least 1"),
        (lambda: layers.RGLRU(3)(X), "units must be input_size = 5"),
        (lambda: layers.MinGRU(3).params, "must be built, by a call or build"),
        (lambda: layers.layer_of("light"), "must be what prnn_jax.define_cell gives"),
        (
            lambda: layers.MinGRU.from_params(
                prnn_jax.init("min_gru", KEY, 3, 4, bidirectional=True)
            ),
            "params must be of one direction",
        ),
        (
            lambda: layers.layer_of(LIGHT).from_params(LIGHT.init(KEY, 3, 4, heads=2)),
            "params must be of one direction and one head",
        ),
    ],
)
def test_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_explain_of_both_directions():
    both = layers.Bidirectional(layers.MinGRU(UNITS))
    both.build(X.shape)
    assert both.explain(BATCH, TIME).engine == "native"


def test_explain_is_of_the_state():
    on = {"device": "NVIDIA H200"}
    few, many = (
        layers.LRU(UNITS, state_size=size).explain(1, 4096, **on)
        for size in (64, 65536)
    )
    sizes = {"batch": 1, "time": 4096, "hidden_size": 65536}
    assert many == prnn_jax.explain("lru", **sizes, **on)
    assert many.chunks < few.chunks


@each_layer
def test_sizes_that_do_not_fit(name):
    layer = LAYERS[name][0]
    for units, message in (
        (0, "units must be at least 1, got 0"),
        (-1, "units must be at least 1, got -1"),
        (2.5, "units must be a whole number, at least 1, got 2.5"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(units)
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        layer(UNITS)(X[:, 0])
