"""Files of a Keras model's weights alone, against Keras itself and NumPy."""

import numpy as np
import pytest
from keras_support import (
    HARD,
    HIDDEN,
    LAYERS,
    X,
    Y,
    as_cudnn,
    assert_computes_the_same,
    both_ways,
    built,
    gru_with_hard_sigmoid,
    h5py,
    keras,
    layers,
    model_of,
    named,
    numbered,
    weights_of_keras_2,
)
from support import assert_bitwise_equal

from prnn_jax import Activation
from prnn_jax.convert import import_keras

GATES = {"activation": "tanh", "recurrent_activation": "sigmoid"}


def test_weights_alone_of_keras_3(tmp_path):
    inner = keras.Sequential([layers.LSTM(HIDDEN, name="deep", **Y)], name="inner")
    model = model_of(
        layers.SimpleRNN(HIDDEN, activation="relu", name="plain", **Y),
        both_ways(layers.GRU(HIDDEN, **Y), name="both", merge_mode="sum"),
        inner,
    )
    model.save_weights(tmp_path / "model.weights.h5")

    def imported(name, **told):
        return import_keras(tmp_path / "model.weights.h5", name, **told)

    gates = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    plain = imported("plain", activation="relu")
    both = imported("both", merge_mode="sum", **gates)
    deep = imported("inner/deep", **gates)
    assert deep.cell == "lstm"
    y = X
    for net in (plain, both, deep):
        y, _ = net(y)
    expected = inner(model.get_layer("both")(model.get_layer("plain")(X)))
    np.testing.assert_allclose(y, np.asarray(expected), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="alone, which do not tell it: pass activ"):
        imported("plain")
    with pytest.raises(ValueError, match="do not tell it: pass recurrent_activation="):
        imported("inner/deep", activation="tanh")
    with pytest.raises(ValueError, match="do not tell it: pass merge_mode="):
        imported("both", **gates)
    with pytest.raises(ValueError, match="got 'x'"):
        imported("x")


def test_weights_alone_of_keras_2(tmp_path):
    lstm, gru = built(LAYERS["LSTM"]()), built(LAYERS["GRU"]())
    both = built(LAYERS["LSTM both ways"]())
    before = built(LAYERS["GRU, reset before"]())
    given = both.get_weights()
    groups = {
        "dense": {"dense/kernel:0": X[0], "dense/bias:0": X[0, 0]},
        "empty": {},
        "conv": named("conv/conv_lstm_cell", [np.zeros((3, 3, 2, 8))] * 3),
        "rnn_1": named("rnn_1", as_cudnn(lstm.get_weights(), 4)),
        "rnn_2": named("rnn_2/gru_cell_7", gru.get_weights()),
        "both": named("both/forward_lstm/lstm_cell", given[:3])
        | named("both/backward_lstm/lstm_cell", given[3:]),
        "model": {"dense_1/kernel:0": X[0]}
        | named("a", before.get_weights())
        | named("b", as_cudnn(gru.get_weights(), 3)),
    }
    path = tmp_path / "weights.hdf5"
    weights_of_keras_2(path, "2.1.5", groups)
    gates = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    assert_computes_the_same(import_keras(path, "rnn_1"), lstm)
    assert_computes_the_same(import_keras(path, "rnn_2", **gates), gru)
    net = import_keras(path, "both", merge_mode="concat", **gates)
    assert_computes_the_same(net, both)
    assert_computes_the_same(import_keras(path, "model/a", **gates), before)
    assert_computes_the_same(import_keras(path, "model/b"), gru)
    hard = import_keras(path, "rnn_2", **HARD)
    assert hard.gate_activation == Activation("hard_sigmoid", 0.2, 0.5)
    with pytest.raises(ValueError, match="recurrent_activation 'sigmoid', as cuDNN"):
        import_keras(path, "rnn_1", **HARD)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([X[0], np.zeros((3, 7))], "recurrent kernel .* got \\[3, 7\\]"),
        ([np.zeros((2, 9)), np.zeros((3, 9))], "must have a bias, which tells"),
    ],
)
def test_weights_that_tell_too_little(arrays, message, tmp_path):
    path = tmp_path / "weights.h5"
    names = "rnn/kernel:0", "rnn/recurrent_kernel:0"
    weights_of_keras_2(path, "2.1.5", {"rnn": dict(zip(names, arrays, strict=True))})
    with pytest.raises(ValueError, match=message):
        import_keras(path, activation="tanh", recurrent_activation="sigmoid")


# ---- of Keras 2.12 and later, and of Keras 3 before 3.6: without names ---------------


def test_a_hard_sigmoid_of_an_unknown_keras_is_refused(tmp_path):
    """tf_keras 2.21 and Keras 3.0 to 3.5 write groups alike: neither has attributes."""
    weights = built(layers.GRU(HIDDEN, reset_after=False)).get_weights()
    numbered(path := tmp_path / "a.weights.h5", {"layers/gru/cell": weights})
    with pytest.raises(ValueError, match=r"'layers/gru' .*attrs.\"keras_version\". = "):
        import_keras(path, **HARD)
    for version, scale in (("2.15.0", 0.2), ("3.0.0", 1 / 6)):
        with h5py.File(path, "a") as file:
            file.attrs["keras_version"] = version
        y, _ = import_keras(path, **HARD)(X)
        wanted = gru_with_hard_sigmoid(weights, scale)
        # Sums of a few products below 4, in float32.
        np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)


def test_a_hard_sigmoid_of_a_keras_that_writes_names(tmp_path):
    layer = layers.GRU(HIDDEN, recurrent_activation="hard_sigmoid", name="a", **Y)
    model_of(layer).save_weights(path := tmp_path / "a.weights.h5")
    assert_computes_the_same(import_keras(path, **HARD), layer)


@pytest.mark.parametrize("is_keras_3", [False, True])
def test_cells_of_one_rnn_are_layers(is_keras_3, tmp_path):
    cells = [layers.LSTMCell(HIDDEN, name=f"lstm_cell{n}") for n in ("", "_1")]
    rnn = layers.RNN(cells, name="r", **Y)
    model = model_of(rnn)
    path = tmp_path / "a.weights.h5"
    owner = "r" if is_keras_3 else "layers/rnn"
    if is_keras_3:
        model.save_weights(path)
    else:
        weights, inside = rnn.get_weights(), "layers/rnn/cell/cells/lstm_cell"
        numbered(path, {inside: weights[:3], f"{inside}_1": weights[3:]})
    names = [f"{owner}/lstm_cell", f"{owner}/lstm_cell_1"]
    with pytest.raises(ValueError, match=f"one of '{names[0]}' .*, '{names[1]}'"):
        import_keras(path, **GATES)
    assert_computes_the_same(import_keras(path, names, **GATES), rnn)


def test_cells_of_one_rnn_in_groups_by_name(tmp_path):
    """As Keras 2 saves weights as .hdf5."""
    cells = [layers.LSTMCell(HIDDEN), layers.LSTMCell(HIDDEN + 1)]
    rnn = layers.RNN(cells, name="r", **Y)
    model_of(rnn)
    weights = rnn.get_weights()
    inside = "r/stacked_rnn_cells/lstm_cell"
    groups = {
        "r": named(f"{inside}_1", weights[:3]) | named(f"{inside}_2", weights[3:])
    }
    weights_of_keras_2(path := tmp_path / "a.hdf5", "2.15.0", groups)
    names = ["r/lstm_cell_1", "r/lstm_cell_2"]
    with pytest.raises(ValueError, match=f"one of '{names[0]}' .*, '{names[1]}'"):
        import_keras(path, **GATES)
    assert_computes_the_same(import_keras(path, names, **GATES), rnn)


def test_layers_of_one_name_in_models_of_a_model(tmp_path):
    one, two = built(layers.LSTM(HIDDEN, **Y)), built(layers.LSTM(HIDDEN + 1, **Y))
    groups = {
        "mid": named("a/lstm/lstm_cell", one.get_weights())
        | named("b/lstm/lstm_cell", two.get_weights())
    }
    weights_of_keras_2(path := tmp_path / "a.hdf5", "2.15.0", groups)
    for name, layer in (("mid/a/lstm", one), ("mid/b/lstm", two)):
        assert_computes_the_same(import_keras(path, name, **GATES), layer)


def test_layers_that_are_called_like_directions(tmp_path):
    one, two = built(layers.LSTM(HIDDEN, **Y)), built(layers.LSTM(HIDDEN, **Y))
    groups = {
        "mid": named("forward_a/lstm_cell", one.get_weights())
        | named("backward_a/lstm_cell", two.get_weights())
        | named("x/forward_b/lstm_cell", two.get_weights())
    }
    weights_of_keras_2(path := tmp_path / "a.hdf5", "2.15.0", groups)
    for name, layer in (("forward_a", one), ("backward_a", two), ("forward_b", two)):
        assert_computes_the_same(import_keras(path, f"mid/{name}", **GATES), layer)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_of_cudnn_without_names(kind, tmp_path):
    """Their arrays are in no cell."""
    one, both = built(LAYERS[kind]()), built(LAYERS[f"{kind} both ways"]())
    gates, given = {"LSTM": 4, "GRU": 3}[kind], both.get_weights()
    group = f"layers/cu_dnn{kind.lower()}"
    groups = {
        group: as_cudnn(one.get_weights(), gates),
        "layers/dense": [X[0], X[0, 0]],
        "layers/bidirectional/forward_layer": as_cudnn(given[:3], gates),
        "layers/bidirectional/backward_layer": as_cudnn(given[3:], gates),
    }
    numbered(path := tmp_path / "a.weights.h5", groups)
    assert_computes_the_same(import_keras(path, group), one)
    net = import_keras(path, "layers/bidirectional", merge_mode="concat")
    assert_computes_the_same(net, both)


def test_a_direction_by_itself(tmp_path):
    layer = both_ways(layers.LSTM(HIDDEN, **Y), merge_mode="ave", name="both")
    model_of(layer).save_weights(path := tmp_path / "a.weights.h5")
    sides = [
        import_keras(path, f"both/{side}_layer", **GATES)(X)[0]
        for side in ("forward", "backward")
    ]
    np.testing.assert_allclose(sum(sides) / 2, layer(X), rtol=0, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"got 'ave'; .* 'both/forward_layer', 'both/b"
    ):
        import_keras(path, merge_mode="ave", **GATES)


def test_what_cannot_be_told_of_one_layer_leaves_the_others(tmp_path):
    good = layers.GRU(HIDDEN, name="ok", **Y)
    model = model_of(good, layers.GRU(HIDDEN, use_bias=False, name="nb", **Y))
    model.save_weights(path := tmp_path / "a.weights.h5")
    assert_computes_the_same(import_keras(path, "ok", **GATES), good)
    with pytest.raises(ValueError, match=r"'nb' .* must have a bias, which tells"):
        import_keras(path, "nb", **GATES)


def test_a_missing_option_is_not_called_none(tmp_path):
    model_of(both_ways(layers.LSTM(HIDDEN, **Y), name="both")).save_weights(
        path := tmp_path / "a.weights.h5"
    )
    for given, option in (({}, "merge_mode"), ({"merge_mode": "sum"}, "activation")):
        with pytest.raises(ValueError, match=f"pass {option}=") as raised:
            import_keras(path, **given)
        assert "None" not in str(raised.value)


def test_names_in_several_attributes(tmp_path):
    """HDF5 has none of more than 64 KiB: Keras writes weight_names0, weight_names1."""
    layer = built(layers.LSTM(HIDDEN, **Y))
    groups = {"a": named("a/lstm_cell", layer.get_weights())}
    weights_of_keras_2(path := tmp_path / "a.hdf5", "2.15.0", groups)
    with h5py.File(path, "a") as file:
        for holder, name in ((file, "layer_names"), (file["a"], "weight_names")):
            texts = list(holder.attrs[name])
            del holder.attrs[name]
            for n, text in enumerate(texts):
                holder.attrs[f"{name}{n}"] = [text]
    assert_computes_the_same(import_keras(path, **GATES), layer)


@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_arrays_that_are_called_alike(has_config, tmp_path):
    """As Keras 3.0 does both ways: the file has one array for the two."""
    model = model_of(
        layers.Bidirectional(layers.LSTM(HIDDEN, return_sequences=True), name="both"),
        layers.LSTM(HIDDEN, name="one"),
    )
    model.save(path := tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/both"]
        names = ["kernel", "recurrent_kernel", "bias"]
        given = [group[name][...] for name in group.attrs["weight_names"][3:]]
        group.attrs["weight_names"] = names * 2
        for name, array in zip(names, given, strict=True):
            group[name] = array
        if not has_config:
            del file.attrs["model_config"]
            for name, value in file["model_weights"].attrs.items():
                file.attrs[name] = value
            for name in list(file["model_weights"]):
                file.move(f"model_weights/{name}", name)
    told = {} if has_config else {**GATES, "merge_mode": "concat"}
    with pytest.raises(ValueError, match="must have a name for each of its arrays"):
        import_keras(path, "both", **told)
    if has_config:
        with pytest.raises(ValueError, match="must have a name for each of its arrays"):
            import_keras(path, "both/forward_layer")
    told.pop("merge_mode", None)
    net = import_keras(path, "one", **told)
    assert_bitwise_equal(net.layers, import_keras(model.get_layer("one")).layers)
