"""Networks back into models of Keras, against Keras itself."""

import zipfile
from dataclasses import replace

import jax
import numpy as np
import pytest
from keras_support import (
    HIDDEN,
    IN,
    LAYERS,
    X,
    as_cudnn,
    built,
    file_of,
    h5py,
    keras,
    layers,
    model_of,
    named,
    weights_of_keras_2,
    without_names,
)
from support import assert_bitwise_equal

from prnn_jax.convert import Imported, import_keras, update_keras

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(net: Imported) -> Imported:
    """With other numbers everywhere."""
    return jax.tree.map(lambda array: 1.1 * array + 0.03, net)


def assert_computes_the_same(net: Imported, layer) -> None:
    y, _ = net(X)
    # A few roundings of values of a few: Keras' sums are in float32 as well.
    np.testing.assert_allclose(y, np.asarray(layer(X)), rtol=0, atol=2e-6)


def stored(path) -> list[np.ndarray]:
    """The arrays of a file of Keras 2."""
    with h5py.File(path) as file:
        group = file["model_weights/rnn"]
        return [np.asarray(group[name]) for name in group.attrs["weight_names"]]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_a_model(name, tmp_path):
    layer = LAYERS[name]()
    model = model_of(layer)
    before = model.get_weights()
    net = import_keras(model)
    assert update_keras(model, net) is model
    assert_bitwise_equal(model.get_weights(), before)
    new = trained(net)
    for file in ("model.keras", "model.h5"):
        path, to = tmp_path / file, tmp_path / f"new_{file}"
        model.save(path)
        content = path.read_bytes()
        assert update_keras(path, new, to=to) == to
        assert path.read_bytes() == content
        loaded = keras.saving.load_model(to)
        assert_computes_the_same(new, loaded.layers[1])
        assert_bitwise_equal(loaded.layers[2].get_weights(), before[-2:])
    update_keras(layer, new)
    assert_computes_the_same(new, layer)
    assert_bitwise_equal(import_keras(model).layers, new.layers)
    assert_bitwise_equal(model.get_weights()[-2:], before[-2:])


def test_a_file_keeps_its_optimizer(tmp_path):
    model = model_of(layers.GRU(HIDDEN, name="a"))
    model.compile("adam", "mse")
    model.fit(X, np.zeros((len(X), 2), np.float32), verbose=0)
    model.save(path := tmp_path / "model.keras")
    update_keras(path, trained(import_keras(path)), to=(to := tmp_path / "new.keras"))
    old, new = (keras.saving.load_model(one).optimizer for one in (path, to))
    assert new.iterations == 1
    for one, other in zip(old.variables, new.variables, strict=True):
        np.testing.assert_array_equal(other, one)
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(to) as other:
        assert one.namelist() == other.namelist()


def test_layers_of_models_in_a_model(tmp_path):
    both = layers.Bidirectional(layers.LSTM(3, return_sequences=True), name="both")
    inner = keras.Sequential([keras.Input((None, IN)), both], name="encoder")
    model = keras.Sequential(
        [
            keras.Input((None, IN)),
            inner,
            layers.LSTM(HIDDEN, return_sequences=True, name="one"),
            layers.LSTM(HIDDEN, return_sequences=True, name="two"),
        ]
    )
    deep = trained(import_keras(model, "encoder/both"))
    stack = trained(import_keras(model, ["one", "two"]))
    assert stack.places == ("one", "two")
    y = stack(deep(X)[0])[0]
    for file in ("model.keras", "model.h5"):
        path, half, to = (tmp_path / f"{n}{file}" for n in ("a_", "b_", "c_"))
        model.save(path)
        update_keras(path, deep, to=half)
        update_keras(half, replace(stack, places=()), ["one", "two"], to=to)
        loaded = keras.saving.load_model(to)
        np.testing.assert_allclose(y, np.asarray(loaded(X)), rtol=0, atol=2e-6)
    other = model_of(layers.LSTM(3, return_sequences=True, name="one"))
    with pytest.raises(ValueError, match="layer 0 must have the arrays of 'one'"):
        update_keras(model, trained(import_keras(other)))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("ways", [1, 2])
def test_layers_of_cudnn(kind, ways, tmp_path):
    layer = built(LAYERS[f"{kind} both ways" if ways == 2 else kind]())
    given, gates = layer.get_weights(), {"LSTM": 4, "GRU": 3}[kind]
    halves = [given[3 * n : 3 * n + 3] for n in range(ways)]
    arrays = [a for half in halves for a in as_cudnn(half, gates)]
    wrapper = {"merge_mode": "concat"} if ways == 2 else None
    path, to = tmp_path / "model.h5", tmp_path / "new.h5"
    file_of(path, f"CuDNN{kind}", arrays, wrapper=wrapper)
    net = import_keras(path)
    update_keras(path, net, to=to)
    assert_bitwise_equal(stored(to), arrays)
    update_keras(path, trained(net), to=to)
    assert_bitwise_equal(import_keras(to).layers, trained(net).layers)


def test_weights_alone_of_keras_3(tmp_path):
    recurrent = (
        layers.SimpleRNN(HIDDEN, activation="relu", return_sequences=True, name="a"),
        layers.Bidirectional(layers.GRU(HIDDEN), name="both", merge_mode="sum"),
    )
    model = model_of(*recurrent)
    path, half = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
    to = tmp_path / "c.weights.h5"
    model.save_weights(path)
    plain, both = (trained(import_keras(layer)) for layer in recurrent)
    update_keras(path, plain, to=half)
    update_keras(half, both, to=to)
    model.load_weights(to)
    assert_bitwise_equal(import_keras(model, "a").layers, plain.layers)
    assert_bitwise_equal(import_keras(model, "both").layers, both.layers)
    with pytest.raises(ValueError, match="has cell='rnn', got 'gru'"):
        update_keras(path, both, "a", to=to)


def test_weights_alone_of_keras_2(tmp_path):
    lstm, gru = built(LAYERS["LSTM"]()), built(LAYERS["GRU"]())
    groups = {
        "rnn_1": named("rnn_1", as_cudnn(lstm.get_weights(), 4)),
        "rnn_2": named("rnn_2/gru_cell_7", gru.get_weights()),
    }
    path, half, to = (tmp_path / f"{n}.hdf5" for n in "abc")
    weights_of_keras_2(path, "2.1.5", groups)
    told = {"activation": "softsign", "recurrent_activation": "hard_sigmoid"}
    one, two = import_keras(path, "rnn_1"), import_keras(path, "rnn_2", **told)
    update_keras(path, trained(one), to=half)
    update_keras(half, trained(two), to=to)
    again = import_keras(to, "rnn_1"), import_keras(to, "rnn_2", **told)
    for net, old in zip(again, (one, two), strict=True):
        assert_bitwise_equal(net.layers, trained(old).layers)


@pytest.mark.parametrize("kind", ["keras", "weights.h5", "h5"])
@pytest.mark.parametrize("name", ["ok", "none"])
def test_a_gru_without_bias_and_one_beside_it(kind, name, tmp_path):
    """Weights alone do not tell its reset_after; the network does."""
    ok = layers.GRU(HIDDEN, name="ok", return_sequences=True)
    none = layers.GRU(HIDDEN, use_bias=False, name="none", return_sequences=True)
    model = model_of(ok, none)
    path, to = tmp_path / f"model.{kind}", tmp_path / f"new.{kind}"
    save = model.save_weights if kind == "weights.h5" else model.save
    save(path)
    new = trained(import_keras(model, name))
    update_keras(path, new, to=to)
    if kind == "weights.h5":
        model.load_weights(to)
    else:
        model = keras.saving.load_model(to)
    x = X if name == "ok" else np.asarray(model.get_layer("ok")(X))
    y = np.asarray(model.get_layer(name)(x))
    # As in assert_computes_the_same.
    np.testing.assert_allclose(new(x)[0], y, rtol=0, atol=2e-6)


def test_cells_in_a_file_of_weights_alone(tmp_path):
    cells = [layers.GRUCell(HIDDEN, name=name) for name in ("a", "b")]
    rnn = layers.RNN(cells, return_sequences=True, name="r")
    model = model_of(rnn)
    path, to = tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"
    model.save_weights(path)
    new = trained(import_keras(model, ["r/a", "r/b"]))
    update_keras(path, new, to=to)
    model.load_weights(to)
    assert_computes_the_same(new, rnn)


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_a_direction_by_itself(kind, tmp_path):
    inner = layers.LSTM(HIDDEN, return_sequences=True)
    layer = layers.Bidirectional(inner, merge_mode="mul", name="both")
    model = model_of(layer)
    path, to = tmp_path / f"model.{kind}", tmp_path / f"new.{kind}"
    model.save(path)
    names = [f"both/{side}_layer" for side in ("forward", "backward")]
    forward, backward = (import_keras(path, name) for name in names)
    update_keras(path, new := trained(backward), to=to)
    y = forward(X)[0] * new(X)[0]
    loaded = keras.saving.load_model(to).get_layer("both")
    np.testing.assert_allclose(y, np.asarray(loaded(X)), rtol=0, atol=2e-6)
    update_keras(model, new)
    np.testing.assert_allclose(y, np.asarray(layer(X)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["keras", "weights.h5", "h5"])
def test_files_in_bfloat16(kind, tmp_path):
    """Of which h5py knows the bytes alone."""
    layer = layers.GRU(
        HIDDEN,
        dtype="bfloat16",
        return_sequences=True,
        recurrent_initializer="glorot_uniform",  # JAX has no QR of bfloat16
    )
    model = model_of(layer)
    path, to = tmp_path / f"model.{kind}", tmp_path / f"new.{kind}"
    save = model.save_weights if kind == "weights.h5" else model.save
    save(path)
    gates = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    told = gates if kind == "weights.h5" else {}
    net = import_keras(path, **told)
    assert_bitwise_equal(net.layers, import_keras(layer).layers)
    new = trained(net)
    update_keras(path, new, to=to)
    if kind != "h5":  # Keras 3.15 saves such files, and does not read them
        read = model.load_weights if kind == "weights.h5" else keras.saving.load_model
        loaded = read(to) or model
        assert_bitwise_equal(import_keras(loaded).layers, new.layers)
    assert_bitwise_equal(import_keras(to, **told).layers, new.layers)
    exact = jax.tree.map(lambda array: array.astype(np.float32), new)
    update_keras(path, exact, to=to)
    assert_bitwise_equal(import_keras(to, **told).layers, new.layers)


def test_what_does_not_fit_is_an_error(tmp_path):
    model = model_of(layers.LSTM(HIDDEN, name="a"))
    model.save(path := tmp_path / "model.keras")
    net = import_keras(path)
    for change, message in (
        ({"activation": "relu"}, "has activation='tanh', got 'relu'"),
        ({"gate_activation": "relu"}, "has gate_activation='sigmoid', got 'relu'"),
        ({"layers": ()}, "must have 1 layer.s., .* got 0"),
    ):
        with pytest.raises(ValueError, match=f"update_keras: .*{message}"):
            update_keras(model, replace(net, **change))
    with pytest.raises(ValueError, match=r"name must be of 'a' .*, got 'b'"):
        update_keras(model, net, "b")
    with pytest.raises(ValueError, match="to must be the path of the new file"):
        update_keras(path, net)
    other = model_of(layers.LSTM(HIDDEN, name="z"))
    wanted = "update_keras: name must be of 'z' .*, got 'a', of net.places; pass name="
    with pytest.raises(ValueError, match=wanted):
        update_keras(other, net)
    with pytest.raises(ValueError, match=r"update_keras: .* activation one of"):
        update_keras(model_of(layers.LSTM(HIDDEN, activation="selu", name="a")), net)
    with pytest.raises(FileNotFoundError):
        update_keras(tmp_path / "absent.h5", net, to=tmp_path / "new.h5")


# ---- where .keras files keep their weights -------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_files_of_keras_3_0(name, tmp_path):
    """Which say no names: places are by classes."""
    model = model_of(LAYERS[name](), layers.LSTM(3, return_sequences=True))
    model.save(path := tmp_path / "now.keras")
    without_names(path, old := tmp_path / "old.keras")
    for layer in model.layers[1:3]:
        net = import_keras(old, layer.name)
        update_keras(old, new := trained(net), to=(to := tmp_path / "new.keras"))
        assert_bitwise_equal(import_keras(to, layer.name).layers, new.layers)
        loaded = keras.saving.load_model(to)
        for one, other in zip(model.layers, loaded.layers, strict=True):
            if one.name != layer.name:
                assert_bitwise_equal(other.get_weights(), one.get_weights())


def test_parts_of_models_in_files_of_keras_3_0(tmp_path):
    inner = keras.Sequential(
        [keras.Input((None, IN)), layers.GRU(4, name="g", return_sequences=True)],
        name="inner",
    )
    cells = [layers.LSTMCell(3, name="a"), layers.LSTMCell(4, name="b")]
    both = layers.Bidirectional(layers.GRU(2), merge_mode="mul", name="both")
    x = keras.Input((2, None, IN))
    y = layers.TimeDistributed(inner, name="each")(x)
    y = layers.Reshape((-1, 4))(y)
    y = layers.GRU(4, name="g", return_sequences=True)(y)
    y = layers.RNN(cells, return_sequences=True, name="rnn")(y)
    model = keras.Model(x, both(y))
    model.save(path := tmp_path / "now.keras")
    without_names(path, old := tmp_path / "old.keras")
    for name in ("each/inner/g", "g", ["rnn/a", "rnn/b"], "both/backward_layer"):
        new = trained(import_keras(old, name))
        update_keras(old, new, name, to=(to := tmp_path / "new.keras"))
        assert_bitwise_equal(import_keras(to, name).layers, new.layers)
        loaded = keras.saving.load_model(to)
        assert_bitwise_equal(import_keras(loaded, name).layers, new.layers)


def test_a_file_that_keeps_its_weights_elsewhere(tmp_path):
    """Without names, in a layer of one's own, which its description does not show."""

    @keras.saving.register_keras_serializable("test_update_keras")
    class Own(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.lstm = layers.LSTM(HIDDEN, name="a")

        def get_config(self):
            return super().get_config()

        def build(self, shape):
            self.lstm.build(shape)

        def call(self, x):
            return self.lstm(x)

    model = keras.Sequential([keras.Input((None, IN)), Own(name="own")])
    model.save(path := tmp_path / "now.keras")
    without_names(path, old := tmp_path / "old.keras")
    new, to = trained(import_keras(path)), tmp_path / "new.keras"
    with pytest.raises(
        ValueError, match=r"keep the weights of 'own/a' \(LSTM\) in model"
    ):
        update_keras(old, new, to=to)
    update_keras(path, new, to=to)
    assert_bitwise_equal(import_keras(to).layers, new.layers)


def test_a_folder(tmp_path):
    """As Keras saves with zipped=False."""
    layer = LAYERS["GRU"]()
    model_of(layer).save(path := tmp_path / "model.keras")
    folder, to = tmp_path / "folder", tmp_path / "new"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    net = import_keras(folder)
    assert_bitwise_equal(net.layers, import_keras(layer).layers)
    update_keras(folder, new := trained(net), to=to)
    assert_bitwise_equal(import_keras(to).layers, new.layers)
    assert_bitwise_equal(import_keras(folder).layers, net.layers)
    (folder / "model.weights.h5").unlink()
    with pytest.raises(ValueError, match=r"config\.json and model\.weights"):
        import_keras(folder)
