"""Whole models of Keras as networks, against Keras itself."""

import builtins
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from keras_support import (
    HARD,
    HIDDEN,
    IN,
    LAYERS,
    X,
    Y,
    as_cudnn,
    assert_computes_the_same,
    both_ways,
    built,
    file_of,
    gru_with_hard_sigmoid,
    h5py,
    keras,
    layers,
    model_of,
)
from support import assert_bitwise_equal

from prnn_jax import Activation
from prnn_jax.convert import import_keras


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name):
    layer = built(LAYERS[name]())
    net = import_keras(layer)
    assert net.name == layer.name
    assert_computes_the_same(net, layer)


def test_a_layer_that_goes_backwards():
    layer = built(layers.LSTM(HIDDEN, go_backwards=True, **Y))
    net = import_keras(layer)
    assert net.reverse
    y, _ = net(X)
    np.testing.assert_allclose(y[:, ::-1], np.asarray(layer(X)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore")
def test_models_and_their_files(name, tmp_path):
    layer = LAYERS[name]()
    model = model_of(layer)
    net = import_keras(model)
    assert_computes_the_same(net, layer)
    for file in ("model.keras", "model.h5"):
        model.save(tmp_path / file)
        of_file = import_keras(tmp_path / file)
        assert of_file.options == net.options
        assert of_file.cell == net.cell
        assert_bitwise_equal(of_file.layers, net.layers)


@pytest.mark.filterwarnings("ignore")
def test_a_model_in_a_model(tmp_path):
    layer = layers.GRU(HIDDEN, name="inner_gru", **Y)
    inner = keras.Sequential([keras.Input((None, IN)), layer], name="encoder")
    model = keras.Sequential([keras.Input((None, IN)), inner, layers.Dense(2)])
    net = import_keras(model)
    assert net.name == "encoder/inner_gru"
    assert_computes_the_same(net, layer)
    for file in ("model.keras", "model.h5"):
        model.save(tmp_path / file)
        of_file = import_keras(str(tmp_path / file))
        assert of_file.name == net.name
        assert_bitwise_equal(of_file.layers, net.layers)


def test_names():
    model = model_of(
        layers.LSTM(HIDDEN, name="a", **Y),
        layers.LSTM(4, name="b", **Y),
        layers.GRU(4, name="c", **Y),
    )
    with pytest.raises(ValueError, match=r"one of 'a' \(LSTM\), 'b' .*, 'c' \(GRU\)"):
        import_keras(model)
    with pytest.raises(ValueError, match="got 'd'"):
        import_keras(model, "d")
    assert import_keras(model, "c").cell == "gru"
    two = import_keras(model, ["a", "b"])
    a, b = model.get_layer("a"), model.get_layer("b")
    np.testing.assert_allclose(two(X)[0], np.asarray(b(a(X))), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="must be alike"):
        import_keras(model, ["a", "c"])
    with pytest.raises(ValueError, match="of at least one network, got none"):
        import_keras(model, [])


# ---- Keras 2 -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("ways", [1, 2])
def test_layers_of_cudnn(kind, ways, tmp_path):
    name = f"{kind} both ways" if ways == 2 else kind
    layer = built(LAYERS[name]())
    given, gates = layer.get_weights(), {"LSTM": 4, "GRU": 3}[kind]
    halves = [given[3 * n : 3 * n + 3] for n in range(ways)]
    arrays = [a for half in halves for a in as_cudnn(half, gates)]
    wrapper = {"merge_mode": "concat"} if ways == 2 else None
    file_of(tmp_path / "model.h5", f"CuDNN{kind}", arrays, wrapper=wrapper)
    net = import_keras(tmp_path / "model.h5")
    assert net.name == "rnn"
    assert_computes_the_same(net, layer)


@pytest.mark.parametrize("version", ["2.2.4", "3.9.0"])
def test_a_hard_sigmoid_is_that_of_its_keras(version, tmp_path):
    path = tmp_path / "model.h5"
    weights = built(layers.GRU(HIDDEN, reset_after=False)).get_weights()
    file_of(path, "GRU", weights, HARD)
    with h5py.File(path, "a") as file:
        file.attrs["keras_version"] = version
    y = gru_with_hard_sigmoid(weights, 0.2 if version[0] == "2" else 1 / 6)
    ours, _ = import_keras(path)(X)
    # Sums of a few products below 4, in float32.
    np.testing.assert_allclose(ours, y, rtol=0, atol=2e-6)


def test_a_hard_sigmoid_of_an_unknown_keras_is_refused(tmp_path):
    weights = built(layers.GRU(HIDDEN, reset_after=False)).get_weights()
    file_of(tmp_path / "model.h5", "GRU", weights, HARD)
    with pytest.raises(ValueError, match="must have the attribute keras_version"):
        import_keras(tmp_path / "model.h5")


def test_what_does_not_tell_its_activations_may_have_any(tmp_path):
    weights = built(layers.GRU(HIDDEN, reset_after=False)).get_weights()
    file_of(tmp_path / "model.h5", "GRU", weights, {"activation": "tanh"})
    with pytest.raises(ValueError, match="got None"):
        import_keras(tmp_path / "model.h5")


@pytest.mark.parametrize(
    ("option", "kind", "other"),
    [
        ("activation", "LSTM", {"activation": "relu"}),
        ("recurrent_activation", "GRU", {"recurrent_activation": "hard_sigmoid"}),
        ("reset_after", "GRU", {"reset_after": False}),
        ("class", "GRU", {}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_directions_that_differ(option, kind, other, tmp_path):
    its = layers.LSTM if option == "class" else getattr(layers, kind)
    layer = layers.Bidirectional(
        getattr(layers, kind)(HIDDEN, **Y),
        backward_layer=its(HIDDEN, go_backwards=True, **Y, **other),
        name="both",
    )
    model = model_of(layer)
    files = [tmp_path / "model.keras", tmp_path / "model.h5"]
    for given in (layer, model, *files):
        if given in files:
            model.save(given)
        with pytest.raises(
            ValueError, match=f"'both' .* backward_layer .* {option} is"
        ):
            import_keras(given)


def test_a_backward_layer_that_is_alike(tmp_path):
    inner = (layers.GRU(HIDDEN, go_backwards=way, **Y) for way in (False, True))
    layer = layers.Bidirectional(next(inner), backward_layer=next(inner))
    model = model_of(layer)
    model.save(path := tmp_path / "model.keras")
    for given in (model, path):
        assert_computes_the_same(import_keras(given), layer)


def hard_sigmoid(x):
    """That of Keras 2."""
    return keras.ops.clip(0.2 * x + 0.5, 0, 1)


@pytest.mark.filterwarnings("ignore")
def test_a_function_with_the_name_of_one_of_keras(tmp_path):
    layer = built(layers.LSTM(HIDDEN, recurrent_activation=hard_sigmoid))
    with pytest.raises(ValueError, match=r"hard_sigmoid of .*, not Keras' own"):
        import_keras(layer)
    with keras.saving.custom_object_scope({"tanh": hard_sigmoid}):
        model = model_of(layers.GRU(HIDDEN, activation=jnp.tanh))
        model.save(tmp_path / "model.h5")
    with pytest.raises(ValueError, match=r"tanh of jaxlib.*, not Keras' own"):
        import_keras(tmp_path / "model.h5")


@pytest.mark.parametrize(
    "function",
    [
        *(jnp.tanh, jax.lax.tanh, jax.nn.relu, jax.nn.sigmoid, jax.nn.hard_sigmoid),
        *(jax.nn.softplus, jax.nn.elu, jax.nn.hard_tanh, keras.ops.leaky_relu),
        *(keras.ops.softsign, keras.activations.elu, keras.activations.linear),
    ],
    ids=lambda f: f.__name__,
)
def test_functions_that_are_those_of_keras(function):
    layer = built(layers.LSTM(HIDDEN, recurrent_activation=function, **Y))
    np.testing.assert_allclose(
        import_keras(layer)(X)[0], np.asarray(layer(X)), rtol=2e-6, atol=2e-6
    )


def test_a_function_that_is_not_that_of_its_name():
    """JAX's leaky_relu has another slope."""
    with pytest.raises(ValueError, match=r"leaky_relu of jax.*, not Keras' own"):
        import_keras(built(layers.LSTM(HIDDEN, activation=jax.nn.leaky_relu)))


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [
        (layers.Activation("relu"), "relu"),
        (layers.Activation("hard_sigmoid"), "hard_sigmoid"),
        (layers.Activation("leaky_relu"), Activation("leaky_relu", 0.2)),
        (layers.Activation(layers.ReLU()), "relu"),
        (layers.ReLU(), "relu"),
        (layers.ReLU(negative_slope=0.3), Activation("leaky_relu", 0.3)),
        (layers.ReLU(0.4), Activation("clipped_relu", 0.4)),
        (layers.LeakyReLU(0.1), Activation("leaky_relu", 0.1)),
        (layers.LeakyReLU(0.0), "relu"),
        (layers.ELU(0.5), Activation("elu", 0.5)),
    ],
    ids=lambda one: getattr(one, "name", None),
)
@pytest.mark.filterwarnings("ignore")
def test_layers_that_are_activations(activation, wanted, tmp_path):
    layer = layers.GRU(HIDDEN, activation=activation, **Y)
    model = model_of(layer)
    for given in (model, *(tmp_path / f"model.{kind}" for kind in ("h5", "keras"))):
        if given is not model:
            model.save(given)
        net = import_keras(given)
        assert net.activation == wanted
        assert_computes_the_same(net, layer)


@pytest.mark.parametrize(
    ("activation", "got"),
    [
        (layers.ReLU(threshold=0.1), "got 'ReLU'"),
        (layers.ReLU(1.0, negative_slope=0.1), "got 'ReLU'"),
        (layers.PReLU(), "got 'PReLU'"),
        (layers.Activation("gelu"), "got 'gelu'"),
        (
            layers.Activation(jax.nn.leaky_relu),
            "got .leaky_relu of jax.*not Keras' own",
        ),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_layers_that_no_activation_is(activation, got):
    with pytest.raises(ValueError, match=got):
        import_keras(built(layers.LSTM(HIDDEN, activation=activation)))


def test_directions_with_other_layers_as_activations():
    slopes = [layers.LeakyReLU(slope) for slope in (0.1, 0.2)]
    one, other = (
        layers.GRU(3, activation=its, go_backwards=n > 0, **Y)
        for n, its in enumerate(slopes)
    )
    layer = built(layers.Bidirectional(one, backward_layer=other))
    with pytest.raises(ValueError, match="whose activation is Activation"):
        import_keras(layer)


class SameName(keras.Model):
    """Keras lets a subclass have two layers of one name."""

    def __init__(self):
        super().__init__()
        self.one = layers.LSTM(HIDDEN, name="rnn", **Y)
        self.two = layers.LSTM(HIDDEN, name="rnn", activation="relu", **Y)
        self.other = layers.GRU(HIDDEN, name="other", **Y)

    def call(self, x):
        return self.other(self.two(self.one(x)))


def test_two_layers_of_one_name(tmp_path):
    model = SameName()
    model(X)
    model.save_weights(tmp_path / "model.weights.h5")
    for given in (model, tmp_path / "model.weights.h5"):
        with pytest.raises(ValueError, match="got 2 that are called 'rnn'"):
            import_keras(given, "rnn")
    assert import_keras(model, "other").cell == "gru"
    assert import_keras(model.one).activation == "tanh"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: 7, "must be a layer or a model of Keras, or the path of one, got int"),
        (lambda: layers.Dense(3), "it has none"),
        (lambda: layers.LSTM(3), "must have weights, and has none yet"),
        (
            lambda: built(layers.LSTM(3, recurrent_activation="gelu")),
            "recurrent_activation one of 'tanh', 'sigmoid', .* got 'gelu'",
        ),
        (lambda: built(layers.GRU(3, activation="selu")), "must have activation one"),
        (
            lambda: built(both_ways(layers.LSTM(3, **Y), merge_mode="ave")),
            "merge_mode 'concat' or 'sum', got 'ave'",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(model, message):
    with pytest.raises(ValueError, match=message):
        import_keras(model())


def test_files_that_do_not_fit(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_keras(tmp_path / "absent.h5")
    (tmp_path / "text.h5").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.h5 must be a file of HDF5"):
        import_keras(tmp_path / "text.h5")
    (tmp_path / "model.txt").write_text("no model")
    with pytest.raises(ValueError, match=r"must be a file \.keras, \.h5 or \.hdf5"):
        import_keras(tmp_path / "model.txt")
    (tmp_path / "model.weights.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cut into; model\.load_weights\(path\)"):
        import_keras(tmp_path / "model.weights.json")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["array"] = np.zeros(3)
    with pytest.raises(ValueError, match="it has none"):
        import_keras(tmp_path / "weights.h5")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("keras", "needs the package keras: pip"),
        ("tensorflow", "lacks the package tensorflow; .* set KERAS_BACKEND=jax"),
    ],
)
def test_a_file_without_keras_or_its_backend(missing, message, monkeypatch, tmp_path):
    def without(name, *arguments, real=builtins.__import__):
        if name == "keras":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *arguments)

    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.9.0"}')
        archive.writestr("config.json", "{}")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=message):
        import_keras(tmp_path / "model.keras")


def test_a_model_tells_its_own_activations(tmp_path):
    with pytest.raises(ValueError, match="whose model tells them"):
        import_keras(built(layers.LSTM(HIDDEN)), activation="tanh")
