"""Layers of Keras inside of others: RNN of cells, TimeDistributed, a user's own."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from keras_support import BATCH, HIDDEN, IN, TIME, X, Y, keras, layers, random

import prnn_jax
import prnn_jax.keras as ours
from prnn_jax.convert import import_keras, update_keras


class Encoder(layers.Layer):
    """Not registered, with layers as attributes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.LSTM(HIDDEN, name="inner", **Y)
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(self.inner(x))


class Odd(layers.SimpleRNNCell):
    """Not a cell of Keras."""


def cells(*made):
    return layers.RNN(list(made), name="rnn", **Y)


ONE = {
    "LSTMCell": lambda: layers.RNN(layers.LSTMCell(HIDDEN), name="rnn", **Y),
    "GRUCell": lambda: layers.RNN(
        layers.GRUCell(HIDDEN, reset_after=False), name="rnn", **Y
    ),
    "SimpleRNNCell": lambda: layers.RNN(
        layers.SimpleRNNCell(HIDDEN, activation="relu", use_bias=False), name="rnn", **Y
    ),
}


def model_of(layer, shape=(None, IN)):
    model = keras.Sequential([keras.Input(shape), layer])
    values = [random(*w.shape, seed=n) for n, w in enumerate(model.get_weights())]
    model.set_weights(values)
    return model


def places(model, tmp_path):
    """The model itself, and both kinds of file."""
    paths = tmp_path / "model.keras", tmp_path / "model.h5"
    for path in paths:
        model.save(path)
    return model, *paths


@pytest.mark.parametrize("kind", ONE)
def test_cells_of_an_rnn(kind, tmp_path):
    model = model_of(ONE[kind]())
    for place in places(model, tmp_path):
        net = import_keras(place)
        assert net.name == "rnn"
        np.testing.assert_allclose(net(X)[0], model(X), atol=1e-6)


def test_several_cells_are_layers_of_one_network(tmp_path):
    made = [layers.GRUCell(HIDDEN, name="a"), layers.GRUCell(HIDDEN + 1, name="b")]
    model = model_of(cells(*made))
    for place in places(model, tmp_path):
        with pytest.raises(ValueError, match=r"one of 'rnn/a' \(GRU\), 'rnn/b'"):
            import_keras(place)
        net = import_keras(place, ["rnn/a", "rnn/b"])
        np.testing.assert_allclose(net(X)[0], model(X), atol=1e-6)
    twice = replace(net, layers=tuple(map(_doubled, net.layers)))
    for place in (model, tmp_path / "model.h5", tmp_path / "model.keras"):
        to = None if place is model else tmp_path / f"new{place.suffix}"
        changed = update_keras(place, twice, to=to)
        back = import_keras(changed, ["rnn/a", "rnn/b"])
        np.testing.assert_array_equal(back(X)[0], twice(X)[0])
    np.testing.assert_allclose(model(X), twice(X)[0], atol=1e-6)


def _doubled(params):
    return params._replace(w_hh=2 * params.w_hh)


def test_an_rnn_that_runs_backwards():
    layer = layers.RNN(layers.LSTMCell(HIDDEN), go_backwards=True, **Y)
    model = model_of(layer)
    y = import_keras(model)(X)[0]
    np.testing.assert_allclose(y, np.flip(model(X), 1), atol=1e-6)


def test_a_layer_inside_of_time_distributed(tmp_path):
    inner = layers.LSTM(HIDDEN, name="inner", **Y)
    model = model_of(layers.TimeDistributed(inner, name="each"), (2, TIME, IN))
    x = np.stack([X, X[::-1]], 1)
    for place in places(model, tmp_path):
        net = import_keras(place)
        assert net.name == "each/inner"
        np.testing.assert_allclose(net(x)[0], model(x), atol=1e-6)


def test_a_model_inside_of_time_distributed(tmp_path):
    dense = layers.Dense(IN + 1, name="d")
    deep = layers.LSTM(HIDDEN, name="l", **Y)
    inner = keras.Sequential([keras.Input((TIME, IN)), dense, deep], name="s")
    model = model_of(layers.TimeDistributed(inner, name="each"), (2, TIME, IN))
    x = np.stack([X, X[::-1]], 1)
    for place in places(model, tmp_path):
        net = import_keras(place)
        assert net.name == "each/s/l"
        np.testing.assert_allclose(net(dense(x))[0], model(x), atol=1e-6)


@pytest.mark.parametrize("kind", ONE)
def test_an_rnn_of_a_cell_both_ways(kind, tmp_path):
    model = model_of(layers.Bidirectional(ONE[kind](), name="both"))
    for place in places(model, tmp_path):
        net = import_keras(place)
        assert net.name == "both"
        np.testing.assert_allclose(net(X)[0], model(X), atol=1e-6)
        to = None if place is model else tmp_path / f"new_{place.name}"
        twice = replace(net, layers=tuple(map(_doubled, net.layers)))
        changed = update_keras(place, twice, to=to)
        np.testing.assert_array_equal(import_keras(changed)(X)[0], twice(X)[0])
        if place is model:
            np.testing.assert_allclose(twice(X)[0], model(X), atol=1e-6)
            update_keras(model, net)


def test_an_rnn_of_several_cells_both_ways(tmp_path):
    made = [layers.LSTMCell(HIDDEN, name="a"), layers.LSTMCell(HIDDEN + 1, name="b")]
    model = model_of(layers.Bidirectional(cells(*made), name="both"))
    ways = "both/forward_layer", "both/backward_layer"
    for place in places(model, tmp_path):
        with pytest.raises(ValueError, match=f"one by one, by name: '{ways[0]}/a'"):
            import_keras(place)
        y = [import_keras(place, [f"{ways[0]}/a", f"{ways[0]}/b"])(X)[0]]
        back = X
        for cell in "ab":  # in reverse, one by one
            back, _ = import_keras(place, f"{ways[1]}/{cell}")(back)
        np.testing.assert_allclose(np.concatenate([*y, back], -1), model(X), atol=1e-6)


@pytest.mark.parametrize("merge", ["ave", "mul", None])
def test_directions_one_by_one(merge, tmp_path):
    """Of merges that we have not, and of a backward_layer of its own."""
    layer = layers.Bidirectional(
        layers.LSTM(HIDDEN, name="f", **Y),
        backward_layer=layers.GRU(HIDDEN, name="g", go_backwards=True, **Y),
        merge_mode=merge,
        name="both",
    )
    x = keras.Input((None, IN))
    y = layer(x)
    model = keras.Model(x, y)
    model.set_weights([random(*w.shape, seed=9) for w in model.get_weights()])
    for place in places(model, tmp_path):
        with pytest.raises(ValueError, match=f"got {merge!r}, .* 'both/back"):
            import_keras(place, "both")
        forward, backward = (
            import_keras(place, f"both/{side}_layer")(X)[0]
            for side in ("forward", "backward")
        )
        join = {"ave": lambda a, b: (a + b) / 2, "mul": np.multiply}
        ours = join[merge](forward, backward) if merge else (forward, backward)
        np.testing.assert_allclose(ours, model(X), atol=1e-6)


def test_layers_of_one_name_in_models_of_a_model(tmp_path):
    def inner(name):
        layer = layers.LSTM(HIDDEN, name="lstm", **Y)
        return keras.Sequential([keras.Input((None, IN)), layer], name=name)

    x, a, b = keras.Input((None, IN)), inner("A"), inner("B")
    middle = keras.Model(x, layers.Add()([a(x), b(x)]), name="mid")
    outer = keras.Input((None, IN))
    model = keras.Model(outer, middle(outer))
    model.set_weights(
        [random(*w.shape, seed=n) for n, w in enumerate(model.get_weights())]
    )
    for place in places(model, tmp_path):
        one, other = (import_keras(place, f"mid/{n}/lstm") for n in "AB")
        np.testing.assert_allclose(one(X)[0] + other(X)[0], model(X), atol=1e-6)
        np.testing.assert_allclose(one(X)[0], a(X), atol=1e-6)
        if place is not model:
            to = tmp_path / f"new_{place.name}"
            update_keras(place, replace(one, layers=other.layers), to=to)
            changed = keras.saving.load_model(to)
            np.testing.assert_allclose(changed(X), 2 * other(X)[0], atol=1e-6)


def test_layers_that_a_file_does_not_tell_apart(tmp_path):
    """A layer that is called as a model elsewhere: .h5 has names of arrays alone."""
    deep, one = (layers.LSTM(HIDDEN, name=name, **Y) for name in ("x", "r"))
    inner = keras.Sequential([keras.Input((None, IN)), deep], name="r")
    outer = keras.Sequential([inner], name="q")
    middle = keras.Sequential([outer, one], name="mid")
    model = model_of(middle)
    _, keras_file, h5 = places(model, tmp_path)
    y = import_keras(keras_file, "mid/q/r/x")(X)[0]
    y = import_keras(keras_file, "mid/r")(y)[0]
    np.testing.assert_allclose(y, model(X), atol=1e-6)
    with pytest.raises(ValueError, match="none that can be told from another layer's"):
        import_keras(h5, "mid/r")


def test_a_layer_of_the_users_own(tmp_path):
    model = model_of(Encoder(name="encoder"))
    net = import_keras(model)
    assert net.name == "encoder/inner"
    wanted = model.layers[0].inner(X)
    np.testing.assert_allclose(net(X)[0], wanted, atol=1e-6)
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"Import the modules .* says: .*'Encoder'"):
        import_keras(tmp_path / "model.keras")


@pytest.mark.parametrize("is_registered", [False, True])
def test_a_class_of_the_users_own_with_a_name_of_keras(is_registered, tmp_path):
    def call(self, sequences, initial_state=None, **options):
        return 2 * layers.LSTM.call(self, sequences, initial_state, **options)

    own = type("LSTM", (layers.LSTM,), {"call": call})
    if is_registered:
        keras.saving.register_keras_serializable("mine")(own)
    with keras.saving.custom_object_scope({} if is_registered else {"LSTM": own}):
        model = model_of(layers.Bidirectional(own(HIDDEN, **Y), merge_mode="sum"))
    model.save(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="it has none"):
        import_keras(tmp_path / "model.h5")


def test_cells_that_are_not_keras():
    with pytest.raises(ValueError, match="in Bidirectional, TimeDistributed, RNN; it"):
        import_keras(model_of(layers.RNN(Odd(HIDDEN), **Y)))


def test_a_file_of_ours_where_our_module_is_not_imported(tmp_path):
    model = model_of(ours.LSTM(HIDDEN, **Y))
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    program = (
        "import numpy, prnn_jax.convert;"
        "net = prnn_jax.convert.import_keras('model.keras');"
        "numpy.save('y.npy', net(numpy.load('x.npy'))[0])"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(X), atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: ours.LSTM(HIDDEN, clip=prnn_jax.Clip(0.5, (-0.2, 0.3)), **Y),
        lambda: ours.Bidirectional(
            ours.GRU(HIDDEN, clip=prnn_jax.Clip(pre_activations=0.4), **Y)
        ),
        lambda: layers.Bidirectional(
            ours.SimpleRNN(HIDDEN, clip=prnn_jax.Clip(pre_activations=0.4), **Y)
        ),
    ],
    ids=["LSTM", "GRU both ways", "RNN in Keras' Bidirectional"],
)
def test_layers_of_ours_with_a_clip(layer, tmp_path):
    model = model_of(layer())
    for place in places(model, tmp_path):
        net = import_keras(place)
        assert net.clip is not None
        np.testing.assert_allclose(net(X)[0], model(X), atol=1e-6)
        assert net(X)[0].shape[0] == BATCH


def test_a_class_of_one_s_own_that_computes_something_else():
    @keras.saving.register_keras_serializable("mine")
    class LSTM(layers.LSTM):
        def call(self, sequences, initial_state=None, mask=None, training=False):
            return 2 * super().call(sequences, initial_state, mask, training)

    @keras.saving.register_keras_serializable("mine")
    class Named(layers.LSTM):
        """Not another computation."""

    with pytest.raises(ValueError, match="it has none"):
        import_keras(model_of(LSTM(HIDDEN, **Y)))
    both = LSTM(HIDDEN, **Y), layers.GRU(HIDDEN, name="as_it_is", **Y)
    model = keras.Sequential([keras.Input(X.shape[1:]), *both])
    assert import_keras(model).name == "as_it_is"
    layer = Named(HIDDEN, **Y)
    model_of(layer)
    np.testing.assert_allclose(import_keras(layer)(X)[0], layer(X), atol=1e-6)
