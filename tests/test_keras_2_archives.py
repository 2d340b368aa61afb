"""Files .keras of Keras 2, which Keras 3 does not load.

Their groups, descriptions and metadata are laid out as tf_keras 2.21 writes them, and
Keras 2.13 where that differs.
"""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from keras_support import (
    HARD,
    HIDDEN,
    LAYERS,
    X,
    Y,
    archive_of_keras_2,
    as_cudnn,
    assert_computes_the_same,
    built,
    gru_with_hard_sigmoid,
    h5py,
    layers,
    told,
)

from prnn_jax.convert import import_keras, update_keras

GATES = {"activation": "tanh", "recurrent_activation": "sigmoid", "use_bias": True}
GRU = {**GATES, "reset_after": True}


def model_of(*described, name="model", kind="Sequential"):
    return told(kind, name=name, layers=[told("InputLayer", name="x"), *described])


def arrays_of(path) -> dict[str, np.ndarray]:
    """An archive's weights, by their paths."""
    arrays = {}

    def visit(name, one):
        if isinstance(one, h5py.Dataset):
            arrays[name] = one[()]

    with zipfile.ZipFile(path) as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
        with h5py.File(weights) as file:
            file.visititems(visit)
    return arrays


def of_class(name):
    """Description and groups of a model of one layer, `r`, that computes the same."""
    layer = built(LAYERS[name]())
    weights = layer.get_weights()
    kind = name.split()[0]
    config = {"name": "r", **(GRU if kind == "GRU" else GATES)}
    if "both" in name:
        path = "layers/bidirectional"
        inner = {**config, "name": "inner"}
        merge = "sum" if "sum" in name else "concat"
        own = told(
            "Bidirectional", name="r", layer=told(kind, **inner), merge_mode=merge
        )
        half = len(weights) // 2
        groups = {
            f"{path}/forward_layer/cell": weights[:half],
            f"{path}/backward_layer/cell": weights[half:],
            f"{path}/layer/cell": [],  # which was copied, and never built
        }
    else:
        own, groups = told(kind, **config), {f"layers/{kind.lower()}/cell": weights}
    return layer, own, groups


@pytest.mark.parametrize(
    "name", ["LSTM", "GRU", "LSTM both ways", "LSTM both ways, summed", "GRU both ways"]
)
def test_a_layer(name, tmp_path):
    layer, own, groups = of_class(name)
    path, to = tmp_path / "a.keras", tmp_path / "b.keras"
    archive_of_keras_2(path, model_of(own), groups)
    net = import_keras(path)
    assert net.name == "r"
    assert_computes_the_same(net, layer)
    (params,) = net.layers
    twice = params._replace(w_hh=2 * params.w_hh)
    update_keras(path, replace(net, layers=(twice,)), to=to)
    old, new = arrays_of(path), arrays_of(to)
    assert old.keys() == new.keys()
    for key, array in new.items():
        is_recurrent = key.endswith("cell/vars/1")
        np.testing.assert_array_equal(array, old[key] * (1 + is_recurrent))
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(to) as other:
        assert one.read("config.json") == other.read("config.json")


def test_a_hard_sigmoid_is_that_of_keras_2(tmp_path):
    weights = built(layers.GRU(HIDDEN, reset_after=False)).get_weights()
    own = told("GRU", name="r", reset_after=False, **HARD)
    archive_of_keras_2(
        path := tmp_path / "a.keras", model_of(own), {"layers/gru/cell": weights}
    )
    # Sums of a few products below 4, in float32.
    wanted = gru_with_hard_sigmoid(weights, 0.2)
    np.testing.assert_allclose(import_keras(path)(X)[0], wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_of_cudnn(kind, tmp_path):
    layer = built(LAYERS[kind]())
    arrays = as_cudnn(layer.get_weights(), {"LSTM": 4, "GRU": 3}[kind])
    own, group = told(f"CuDNN{kind}", name="r"), f"layers/cu_dnn{kind.lower()}"
    archive_of_keras_2(path := tmp_path / "a.keras", model_of(own), {group: arrays})
    assert_computes_the_same(import_keras(path), layer)


def test_cells_of_an_rnn(tmp_path):
    cells = [layers.LSTMCell(HIDDEN), layers.LSTMCell(HIDDEN + 1)]
    rnn = built(layers.RNN(cells, **Y))
    inner = [told("LSTMCell", name=n, **GATES) for n in ("lstm_cell_1", "lstm_cell_2")]
    stack = told("StackedRNNCells", name="s", cells=inner)
    inside, weights = "layers/rnn/cell/cells/lstm_cell", rnn.get_weights()
    groups = {inside: weights[:3], f"{inside}_1": weights[3:]}
    own = told("RNN", name="r", cell=stack)
    archive_of_keras_2(path := tmp_path / "a.keras", model_of(own), groups)
    net = import_keras(path, ["r/lstm_cell_1", "r/lstm_cell_2"])
    assert_computes_the_same(net, rnn)


def test_a_model_inside_of_time_distributed(tmp_path):
    layer = built(layers.LSTM(HIDDEN, **Y))
    inner = model_of(told("LSTM", name="r", **GATES), name="s")
    own = told("TimeDistributed", name="td", layer=inner)
    groups = {"layers/time_distributed/layer/layers/lstm/cell": layer.get_weights()}
    archive_of_keras_2(path := tmp_path / "a.keras", model_of(own), groups)
    net = import_keras(path)
    assert net.name == "td/s/r"
    assert_computes_the_same(net, layer)


def test_layers_of_one_class_and_of_one_name(tmp_path):
    """The number after a group's name is its place among those of its class."""
    made = [built(layers.GRU(HIDDEN + n, **Y)) for n in range(12)]
    own = [told("GRU", name=f"g{n}", **GRU) for n in range(10)]
    inner = [
        model_of(told("GRU", name="g", **GRU), name=name, kind="Functional")
        for name in ("a", "b")
    ]
    groups = {
        f"layers/gru{f'_{n}' if n else ''}/cell": made[n].get_weights()
        for n in range(10)
    } | {
        f"layers/functional{end}/layers/gru/cell": layer.get_weights()
        for end, layer in zip(("", "_1"), made[10:], strict=True)
    }
    archive_of_keras_2(path := tmp_path / "a.keras", model_of(*own, *inner), groups)
    for name, layer in zip(
        [*(f"g{n}" for n in range(10)), "a/g", "b/g"], made, strict=True
    ):
        assert_computes_the_same(import_keras(path, name), layer)


def test_layers_of_a_functional_model_of_keras_2_13(tmp_path):
    """Each of its layers is twice among its dependencies, and is saved once."""
    made = [built(layers.LSTM(HIDDEN, **Y)) for _ in range(2)]
    own = [told("LSTM", name=name, **GATES) for name in "ab"]
    held = "_layer_checkpoint_dependencies"
    groups = {
        f"{held}/{group}/cell": layer.get_weights()
        for group, layer in zip(("lstm", "lstm_2"), made, strict=True)
    }
    model = model_of(*own, kind="Functional")
    archive_of_keras_2(path := tmp_path / "a.keras", model, groups, "2.13.1")
    for name, layer in zip("ab", made, strict=True):
        assert_computes_the_same(import_keras(path, name), layer)


def test_a_layer_that_is_in_two_models(tmp_path):
    """It is saved in the first, so that the second's groups tell no places."""
    one, two = built(layers.LSTM(HIDDEN, **Y)), built(layers.GRU(HIDDEN, **Y))
    shared = told("LSTM", name="a", **GATES)
    own = [model_of(shared, name="s"), shared, told("LSTM", name="b", **GATES)]
    groups = {
        "layers/sequential/layers/lstm/cell": one.get_weights(),
        "layers/lstm/cell": one.get_weights(),
        "layers/gru/cell": two.get_weights(),
    }
    model = model_of(*own, told("GRU", name="c", **GRU))
    archive_of_keras_2(path := tmp_path / "a.keras", model, groups)
    for name, layer in (("s/a", one), ("c", two)):
        assert_computes_the_same(import_keras(path, name), layer)
    with pytest.raises(
        ValueError, match=r"'b' \(LSTM\) must have weights, .* can be told"
    ):
        import_keras(path, "b")


def test_a_file_of_hdf5_by_that_name(tmp_path):
    """As Keras up to 2.11 wrote it."""
    layer = built(layers.LSTM(HIDDEN, **Y))
    path, to = tmp_path / "a.keras", tmp_path / "b.keras"
    names = [f"r/{n}:0" for n in ("kernel", "recurrent_kernel", "bias")]
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(
            model_of(told("LSTM", name="r", **GATES))
        )
        file.attrs["keras_version"] = "2.3.1"
        group = file.create_group("model_weights/r")
        group.attrs["weight_names"] = names
        for name, array in zip(names, layer.get_weights(), strict=True):
            group[name] = array
    net = import_keras(path)
    assert_computes_the_same(net, layer)
    update_keras(path, net, to=to)
    assert_computes_the_same(import_keras(to), layer)


def test_what_is_no_such_file(tmp_path):
    model = {"class_name": "Mine", "config": {}, "registered_name": "Custom>Mine"}
    archive_of_keras_2(path := tmp_path / "a.keras", model, {"l/cell": [X[0], X[0]]})
    with pytest.raises(
        ValueError, match="in layers of one's own, which only the model"
    ):
        import_keras(path)
    for inside, message in (
        ({"metadata.json": "{}", "config.json": ""}, "must have keras_version"),
        (
            {"metadata.json": '{"keras_version": "2.15"}', "config.json": "{}"},
            "archive",
        ),
        (
            {
                "metadata.json": '{"keras_version": "2.15"}',
                "config.json": "{}",
                "model.weights.h5": "no",
            },
            r"model\.weights\.h5 of .* must be a file of HDF5",
        ),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in inside.items():
                archive.writestr(name, text)
        with pytest.raises(ValueError, match=message):
            import_keras(path)


def test_files_of_tensorflow(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "ckpt.index").write_bytes(b"")
    for name in ("saved", "ckpt", "ckpt.index"):
        with pytest.raises(ValueError, match="load it with tf_keras, and model"):
            import_keras(tmp_path / name)
