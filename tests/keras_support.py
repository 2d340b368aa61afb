"""Layers, models and files of Keras with random weights."""

import io
import json
import zipfile

import numpy as np
import pytest
from libraries import library

keras = library("keras")
h5py = pytest.importorskip("h5py")
layers = keras.layers

IN, HIDDEN, BATCH, TIME = 5, 7, 3, 6


def both_ways(layer, **options):
    return layers.Bidirectional(layer, **options)


Y = {"return_sequences": True}
LAYERS = {
    "LSTM": lambda: layers.LSTM(HIDDEN, **Y),
    "LSTM without bias": lambda: layers.LSTM(HIDDEN, use_bias=False, **Y),
    "LSTM both ways": lambda: both_ways(layers.LSTM(HIDDEN, **Y)),
    "LSTM both ways, summed": lambda: both_ways(
        layers.LSTM(HIDDEN, **Y), merge_mode="sum"
    ),
    "GRU": lambda: layers.GRU(HIDDEN, **Y),
    "GRU, reset before": lambda: layers.GRU(HIDDEN, reset_after=False, **Y),
    "GRU both ways": lambda: both_ways(layers.GRU(HIDDEN, **Y)),
    "RNN": lambda: layers.SimpleRNN(HIDDEN, **Y),
    "RNN relu": lambda: layers.SimpleRNN(HIDDEN, activation="relu", **Y),
    "RNN softsign": lambda: layers.SimpleRNN(HIDDEN, activation="softsign", **Y),
    "LSTM relu": lambda: layers.LSTM(HIDDEN, activation="relu", **Y),
    "LSTM hard": lambda: layers.LSTM(HIDDEN, recurrent_activation="hard_sigmoid", **Y),
    "GRU leaky": lambda: layers.GRU(HIDDEN, activation="leaky_relu", **Y),
}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


X = random(BATCH, TIME, IN, seed=9)


def built(layer):
    """With numbers in all weights, biases too."""
    layer.build((None, None, IN))
    values = [random(*w.shape, seed=n) for n, w in enumerate(layer.get_weights())]
    layer.set_weights(values)
    return layer


def model_of(*recurrent):
    """With other layers around."""
    model = keras.Sequential(
        [keras.Input((None, IN)), layers.Dropout(0.5), *recurrent, layers.Dense(2)]
    )
    for layer in recurrent:
        values = [random(*w.shape, seed=n) for n, w in enumerate(layer.get_weights())]
        layer.set_weights(values)
    return model


def assert_computes_the_same(net, layer) -> None:
    y, _ = net(X)
    # A few roundings of values below 1: Keras' sums are in float32 as well.
    np.testing.assert_allclose(y, np.asarray(layer(X)), rtol=0, atol=1e-6)


HARD = {"activation": "tanh", "recurrent_activation": "hard_sigmoid"}


def gru_with_hard_sigmoid(weights, scale: float) -> np.ndarray:
    """A GRU with reset_after=False and `HARD`, in float64, of X."""
    kernel, recurrent, bias = (np.split(w, 3, -1) for w in weights)
    h, y = np.zeros((BATCH, HIDDEN)), []
    for t in range(TIME):
        a = [X[:, t] @ w + b for w, b in zip(kernel, bias, strict=True)]
        z, r = (np.clip(scale * (a[n] + h @ recurrent[n]) + 0.5, 0, 1) for n in (0, 1))
        h = z * h + (1 - z) * np.tanh(a[2] + (r * h) @ recurrent[2])
        y.append(h)
    return np.stack(y, 1)


def file_of(path, kind: str, weights, config=(), wrapper=None) -> None:
    """A file as Keras 2 writes it."""
    config = {"name": "rnn", "units": HIDDEN, **dict(config)}
    layer = {"class_name": kind, "config": config}
    if wrapper is not None:
        outer = {"name": "rnn", "layer": layer, **wrapper}
        layer = {"class_name": "Bidirectional", "config": outer}
    model = {"class_name": "Sequential", "config": [layer]}
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(model).encode()
        group = file.create_group("model_weights/rnn")
        names = [f"rnn/array_{n}:0" for n in range(len(weights))]
        group.attrs["weight_names"] = [name.encode() for name in names]
        for name, array in zip(names, weights, strict=True):
            group[name] = array


def as_cudnn(weights, gates: int) -> list[np.ndarray]:
    """The arrays of a layer as its CuDNN sibling has them."""
    kernel, recurrent, bias = weights
    by_gate = [k.T.reshape(k.shape) for k in np.split(kernel, gates, 1)]
    turned = [k.T for k in np.split(recurrent, gates, 1)]
    half = bias / 2
    two = bias.reshape(-1) if bias.ndim == 2 else np.concatenate([half, half])
    return [np.concatenate(by_gate, 1), np.concatenate(turned, 1), two]


def weights_of_keras_2(path, version: str, groups: dict) -> None:
    """A file of save_weights as Keras 2 writes it: groups of arrays by name."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in groups]
        file.attrs["keras_version"] = version
        for name, arrays in groups.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [n.encode() for n in arrays]
            for n, array in arrays.items():
                group[n] = array


def named(path: str, weights) -> dict:
    names = "kernel", "recurrent_kernel", "bias"
    return {f"{path}/{n}:0": w for n, w in zip(names, weights, strict=True)}


def numbered(file, groups: dict) -> None:
    """Groups as Keras 2.12 and later write `.weights.h5`: numbered arrays, no names."""
    with h5py.File(file, "w") as h5:
        for path, arrays in groups.items():
            group = h5.create_group(f"{path}/vars")
            for n, array in enumerate(arrays):
                group[str(n)] = array


def archive_of_keras_2(path, model: dict, groups: dict, version="2.21.0") -> None:
    """A `.keras` file as Keras 2.12 and later write it."""
    numbered(weights := io.BytesIO(), groups)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version}))
        archive.writestr("config.json", json.dumps(model))
        archive.writestr("model.weights.h5", weights.getvalue())


def told(kind: str, **config) -> dict:
    """The description of a layer or a model; Keras 2's layers tell time_major, too."""
    return {"class_name": kind, "config": config, "registered_name": None}


def without_names(path, to) -> None:
    """The `.keras` file as Keras 3.0 to 3.5 write it."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as made:
        for one in archive.namelist():
            content = archive.read(one)
            if one == "model.weights.h5":
                with h5py.File(file := io.BytesIO(content), "r+") as h5:
                    paths: list[str] = []
                    h5.visit(paths.append)
                    names = [h5[path].attrs.pop("name", "") for path in paths]
                    assert any(names)
                content = file.getvalue()
            made.writestr(one, content)
