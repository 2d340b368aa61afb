"""prnn_jax.keras against the layers of Keras that its layers stand for."""

import functools

import jax
import numpy as np
import pytest
from libraries import library
from support import run_python

import prnn_jax

keras = library("keras")
import prnn_jax.keras as ours  # noqa: E402

NAMES = ["LSTM", "GRU", "SimpleRNN"]
BATCH, TIME, IN, UNITS = 4, 9, 5, 6
#: Of sums of a few products below 4, in float32; Keras' loop has its own order.
CLOSE = {"rtol": 0, "atol": 1e-6}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = random(BATCH, TIME, IN)
MASK = np.random.default_rng(1).random((BATCH, TIME)) < 0.6
MASK[0], MASK[1] = True, False


def pair(name: str, **options):
    """Keras' layer and ours, with the same weights, always the same."""
    keras.utils.set_random_seed(3)
    theirs = getattr(keras.layers, name)(UNITS, **options)
    layer = getattr(ours, name)(UNITS, **options)
    for one in (theirs, layer):
        one.build(X.shape)
    for weight in theirs.weights:
        weight.assign(weight + 0.3 * random(*weight.shape, seed=2))
    layer.set_weights(theirs.get_weights())
    return theirs, layer


def leaves(results) -> list[np.ndarray]:
    return [np.asarray(one) for one in keras.tree.flatten(results)]


def assert_close(ours, theirs, **tolerance) -> None:
    pairs = zip(leaves(ours), leaves(theirs), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, **{**CLOSE, **tolerance})


OPTIONS = [
    {},
    {"return_sequences": True, "return_state": True},
    {"return_sequences": True, "go_backwards": True},
    {"return_state": True, "go_backwards": True},
    {"use_bias": False},
    {"unroll": True, "return_sequences": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_states(name, options):
    theirs, layer = pair(name, **options)
    assert layer.explain(BATCH, TIME).engine == "native"
    for mask in (None, MASK):
        assert_close(layer(X, mask=mask), theirs(X, mask=mask))
    state = [random(BATCH, UNITS, seed=n) for n in range(2 if name == "LSTM" else 1)]
    assert_close(layer(X, initial_state=state), theirs(X, initial_state=state))


def test_reset_before_and_relu():
    theirs, layer = pair("GRU", reset_after=False, return_sequences=True)
    assert_close(layer(X), theirs(X))
    theirs, layer = pair("SimpleRNN", activation="relu", return_sequences=True)
    assert layer.explain(BATCH, TIME).engine == "native"
    assert_close(layer(X), theirs(X), atol=1e-5)  # sums grow


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LSTM", {"activation": "relu"}),
        ("LSTM", {"recurrent_activation": "hard_sigmoid"}),
        ("GRU", {"recurrent_activation": "softsign", "activation": "leaky_relu"}),
        ("SimpleRNN", {"activation": None}),
    ],
    ids=str,
)
def test_other_activations(name, options):
    theirs, layer = pair(name, return_sequences=True, **options)
    assert layer.explain(BATCH, TIME).engine == "native"
    assert_close(layer(X, mask=MASK), theirs(X, mask=MASK), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("LSTM", {"activation": "gelu"}, "activation must be one of tanh, sigmoid"),
        ("GRU", {"recurrent_activation": "selu"}, "hard_sigmoid, leaky_relu, got selu"),
    ],
)
def test_what_no_engine_has_is_keras_own(name, options, why):
    theirs, layer = pair(name, return_sequences=True, **options)
    plan = layer.explain(BATCH, TIME)
    assert plan.engine == "scan"
    assert why in plan.reasons[0]
    np.testing.assert_array_equal(layer(X, mask=MASK), theirs(X, mask=MASK))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "rates", [{"dropout": 0.5}, {"recurrent_dropout": 0.5}], ids=str
)
def test_dropout_draws_as_keras_does(name, rates):
    theirs, layer = pair(name, return_sequences=True, seed=7, **rates)
    wanted = theirs(X, training=True)
    assert np.abs(np.asarray(wanted) - theirs(X, training=False)).max() > 0.01
    # What is left of h counts double, so that roundings grow: as this of X does.
    again, _ = pair(name, return_sequences=True, seed=7, **rates)
    grown = np.abs(np.asarray(again(X * 1.0000004, training=True)) - wanted).max()
    assert grown < 1e-4
    assert_close(layer(X, training=True), wanted, atol=CLOSE["atol"] + grown)
    assert_close(layer(X, training=False), theirs(X, training=False))
    own = "recurrent_dropout" in rates and name != "SimpleRNN"
    plan = layer.explain(BATCH, TIME, training=True)
    assert plan.engine == ("scan" if own else "native")
    assert not own or "each gate" in plan.reasons[0]


def both_ways(name, wrapper=ours.Bidirectional, backward=None, **options):
    """Keras' layer of two directions and ours, with the same weights."""
    wraps = {k: options.pop(k) for k in ("merge_mode",) if k in options}
    made = []
    for module, wrap in ((keras.layers, keras.layers.Bidirectional), (ours, wrapper)):
        inner = getattr(module, name)(UNITS, **options)
        if backward:
            given = {"go_backwards": True, **options, **backward}
            wraps["backward_layer"] = getattr(module, name)(UNITS, **given)
        made.append(wrap(inner, **wraps))
        made[-1].build(X.shape)
    made[1].set_weights(made[0].get_weights())
    return made


@pytest.fixture
def calls(monkeypatch):
    """How often the engines were called, and with what."""
    seen = []
    for name in NAMES:
        function = getattr(ours, name)._function

        @functools.wraps(function)
        def counted(*arguments, function=function, **options):
            seen.append(options)
            return function(*arguments, **options)

        monkeypatch.setattr(getattr(ours, name), "_function", staticmethod(counted))
    return seen


@pytest.mark.parametrize("wrapper", [keras.layers.Bidirectional, ours.Bidirectional])
@pytest.mark.parametrize("name", NAMES)
def test_bidirectional_with_masks(name, wrapper, calls):
    for whole in (True, False):
        theirs, layer = both_ways(name, wrapper, return_sequences=whole)
        assert isinstance(layer.backward_layer, getattr(ours, name))
        for mask in (None, MASK):
            calls.clear()
            assert_close(layer(X, mask=mask), theirs(X, mask=mask))
            assert len(calls) == (1 if wrapper is ours.Bidirectional else 2)


@pytest.mark.parametrize("mode", ["concat", "sum", "ave", "mul", None])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_bidirectional_merges_and_states(name, mode, calls):
    theirs, layer = both_ways(
        name, merge_mode=mode, return_state=True, return_sequences=True
    )
    per_side = 2 if name == "LSTM" else 1
    state = [random(BATCH, UNITS, seed=n) for n in range(2 * per_side)]
    for given in (None, state):
        results = [one(X, initial_state=given) for one in (layer, theirs)]
        assert [len(one) for one in results] == [len(results[1])] * 2
        for one, wanted in zip(*results, strict=True):
            assert_close(one, wanted)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("options", "training", "count"),
    [
        ({}, True, 1),
        ({"dropout": 0.5}, False, 1),
        ({"dropout": 0.5}, True, 2),
        ({"stateful": True}, False, 2),
        ({"activation": "gelu"}, False, 0),
        ({"backward": {"activation": "relu"}}, False, 2),
        ({"backward": {}}, False, 1),
    ],
)
def test_bidirectional_in_one_call_or_two(options, training, count, calls):
    theirs, layer = both_ways("GRU", return_sequences=True, seed=5, **options)
    assert_close(layer(X, training=training), theirs(X, training=training))
    assert len(calls) == count
    plan = layer.explain(BATCH, TIME, training=training)
    assert plan.engine == ("native" if count else "scan")


@pytest.mark.parametrize("name", NAMES)
def test_whole_numbers(name):
    x = np.arange(BATCH * TIME * IN).reshape(BATCH, TIME, IN) % 3
    for theirs, layer in (pair(name), both_ways(name)):
        assert_close(layer(x), theirs(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_from_params_and_back(name, bias):
    theirs, layer = pair(name, return_sequences=True, use_bias=bias)
    made = getattr(ours, name).from_params(layer.params, return_sequences=True)
    assert made.cell.use_bias == bias
    np.testing.assert_array_equal(made(X), layer(X))
    assert_close(made(X), theirs(X))
    theirs, layer = both_ways(name, return_sequences=True, use_bias=bias)
    made = ours.Bidirectional.from_params(
        getattr(ours, name), layer.params, return_sequences=True
    )
    np.testing.assert_array_equal(made(X), layer(X))
    assert isinstance(layer.params, prnn_jax.BidirectionalParams)


def test_from_params_of_another_library():
    """With one bias or two, with the reset before the product and after it."""
    key = jax.random.key(0)
    for scheme in ("pytorch", "keras"):
        params = prnn_jax.init("gru", key, IN, UNITS, scheme=scheme)
        for after in (True, False):
            made = ours.GRU.from_params(
                params, return_sequences=True, reset_after=after
            )
            y, _ = prnn_jax.gru(X, params, reset_after=after)
            assert_close(made(X), y)
    net = prnn_jax.convert.import_keras(made)
    assert net.reset_after is False


def test_from_params_that_do_not_fit():
    one = prnn_jax.init("gru", jax.random.key(0), IN, UNITS)
    both = prnn_jax.init("gru", jax.random.key(0), IN, UNITS, bidirectional=True)
    with pytest.raises(ValueError, match="params must be of one direction"):
        ours.GRU.from_params(both)
    with pytest.raises(ValueError, match="must be BidirectionalParams, got"):
        ours.Bidirectional.from_params(ours.GRU, one)
    with pytest.raises(ValueError, match="must not have units, use_bias, which params"):
        ours.GRU.from_params(one, units=3, use_bias=False)
    with pytest.raises(ValueError, match="must not have units, which params tell"):
        ours.Bidirectional.from_params(ours.GRU, both, units=3)
    with pytest.raises(ValueError, match="w_hh must be"):
        ours.LSTM.from_params(one)


def test_bidirectional_around_others():
    layer = ours.Bidirectional(keras.layers.GRU(UNITS))
    theirs = keras.layers.Bidirectional(keras.layers.GRU(UNITS))
    for one in (theirs, layer):
        one.build(X.shape)
    layer.set_weights(theirs.get_weights())
    np.testing.assert_array_equal(layer(X), theirs(X))
    with pytest.raises(ValueError, match="must be one of prnn_jax"):
        layer.explain(1, 2)


def test_stateful():
    layers = pair("GRU", stateful=True)
    for _ in range(2):
        results = [one(X) for one in layers]
    assert_close(*results)
    assert_close(layers[1].states, layers[0].states)
    layers[1].reset_state()
    first = keras.layers.GRU(UNITS)
    first.build(X.shape)
    first.set_weights(layers[0].get_weights())
    assert_close(layers[1](X), first(X))


def test_in_half_precision():
    theirs, layer = pair("LSTM", dtype="mixed_bfloat16", return_sequences=True)
    y = layer(X)
    assert y.dtype == theirs(X).dtype == "bfloat16"
    exact = keras.layers.LSTM(UNITS, return_sequences=True)
    exact.build(X.shape)
    exact.set_weights(theirs.get_weights())
    errors = [
        np.abs(np.float32(one) - np.asarray(exact(X))).max() for one in (y, theirs(X))
    ]
    assert errors[0] <= 2 * errors[1]


def model_with(layers, kind: str, name: str):
    """Words with padding, a bidirectional layer, one on it, a class."""
    make = getattr(layers, kind)
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, IN, mask_zero=True),
            layers.Bidirectional(make(UNITS, return_sequences=True)),
            make(UNITS, kernel_regularizer="l2", name="last"),
            keras.layers.Dense(3, activation="softmax"),
        ],
        name=name,
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    return model


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_model_is_trained_saved_and_loaded(name, tmp_path):
    random = np.random.default_rng(4)
    words = random.integers(0, 20, (32, TIME))  # 0 is padding, anywhere
    labels = random.integers(0, 3, 32)
    theirs = model_with(keras.layers, name, "theirs")
    model = model_with(ours, name, "ours")
    theirs.build(words.shape)
    model.build(words.shape)
    model.set_weights(theirs.get_weights())
    arguments = {"epochs": 3, "batch_size": 8, "shuffle": False, "verbose": 0}
    losses = [
        one.fit(words, labels, **arguments).history["loss"] for one in (model, theirs)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    # Adam divides by the size of a gradient: roundings of small ones grow.
    assert_close(model.get_weights(), theirs.get_weights(), atol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.get_layer("last")) is getattr(ours, name)
    given = {"verbose": 0}
    np.testing.assert_array_equal(
        loaded.predict(words, **given), model.predict(words, **given)
    )
    # And what Keras wrote is read by ours: the weights have the same names.
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    model.load_weights(tmp_path / "theirs.weights.h5")
    assert_close(model.predict(words, **given), theirs.predict(words, **given))


def test_a_batch_of_any_size():
    inputs = keras.Input((None, IN))
    model = keras.Model(inputs, ours.GRU(UNITS, return_sequences=True)(inputs))
    for rows, time in ((3, 4), (2, 7)):
        assert model(random(rows, time, IN)).shape == (rows, time, UNITS)


def test_not_yet_built():
    with pytest.raises(ValueError, match="must be built"):
        ours.LSTM(3).explain(1, 2)
    for layer in (ours.GRU(3), ours.MinGRU(3), ours.Bidirectional(ours.LSTM(3))):
        with pytest.raises(ValueError, match=r"must be built, .* before it has params"):
            _ = layer.params


BACKEND = """
import prnn_jax.keras as ours

try:
    ours.LSTM(3)
except ValueError as error:
    assert "backend must be jax, got numpy; set KERAS_BACKEND=jax" in str(error)
else:
    raise SystemExit("no error")
"""


def test_another_backend_is_an_error():
    run_python(BACKEND, KERAS_BACKEND="numpy")


WITHOUT_TENSORFLOW = """
import sys

sys.modules["tensorflow"] = None
try:
    import prnn_jax.keras
except ImportError as error:
    print(error)
"""


def test_a_backend_that_is_not_installed_is_an_error():
    said = run_python(WITHOUT_TENSORFLOW, KERAS_BACKEND="tensorflow").strip()
    assert said == (
        "prnn_jax.keras: Keras' backend lacks the package tensorflow; set "
        "KERAS_BACKEND=jax in the environment before keras is imported."
    )
