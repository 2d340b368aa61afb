"""Layers of Keras inside of others: RNN of cells, TimeDistributed, a user's own."""

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
    twice = prnn_jax.convert.Imported(
        **{**vars(net), "layers": tuple(_doubled(one) for one in net.layers)}
    )
    for place in (model, tmp_path / "model.h5"):
        to = None if place is model else tmp_path / "new.h5"
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


def test_a_layer_of_the_users_own(tmp_path):
    model = model_of(Encoder(name="encoder"))
    net = import_keras(model)
    assert net.name == "encoder/inner"
    wanted = model.layers[0].inner(X)
    np.testing.assert_allclose(net(X)[0], wanted, atol=1e-6)
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"Import the modules .* says: .*'Encoder'"):
        import_keras(tmp_path / "model.keras")


def test_cells_that_are_not_keras():
    with pytest.raises(ValueError, match="in Bidirectional, TimeDistributed, RNN; it"):
        import_keras(model_of(layers.RNN(Odd(HIDDEN), **Y)))


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
