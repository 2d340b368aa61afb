"""Whole models of Keras 2 and 3: layers, models, files of these."""

import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax._cells import CellName
from prnn_jax._checks import check
from prnn_jax.convert._imported import Imported, joined
from prnn_jax.convert._keras import activations, from_keras

_OP = "import_keras"
#: By class: the layer that has its arrays in our converter's order, and its cell.
_KINDS: dict[str, tuple[str, CellName]] = {
    "LSTM": ("LSTM", "lstm"),
    "GRU": ("GRU", "gru"),
    "SimpleRNN": ("SimpleRNN", "rnn"),
    "CuDNNLSTM": ("LSTM", "lstm"),
    "CuDNNGRU": ("GRU", "gru"),
}
_MODELS = "Sequential", "Functional", "Model"


@dataclass(frozen=True)
class _Layer:
    """A recurrent layer, maybe in a Bidirectional one, of a file or of an object."""

    name: str
    kind: str
    config: Mapping[str, Any]
    weights: Sequence[Any]
    of_keras_2: bool | None  # whose functions it has; None where nothing tells
    merge: str = ""  # of a Bidirectional layer

    def __str__(self) -> str:
        return f"{self.name!r} ({'Bidirectional ' if self.merge else ''}{self.kind})"


def import_keras(model: Any, name: str | Sequence[str] | None = None) -> Imported:
    """A recurrent network of a Keras model: its LSTM, GRU or SimpleRNN.

        net = prnn_jax.convert.import_keras("model.keras")     # or "model.h5"
        y, states = net(x)

    y is what the layer gives with return_sequences=True, but with go_backwards in the
    order of x and not of processing. Of a Bidirectional layer the directions are
    joined as merge_mode says. Dropout, masks (`net(x, lengths=...)` for padding at the
    end) and statefulness are the caller's.

    Args:
      model: a layer or a model, or the path of a `.keras` file, which Keras reads, or
        of an `.h5` file of Keras 2 or 3, which h5py reads; in it LSTM, GRU or
        SimpleRNN, CuDNNLSTM or CuDNNGRU, alone or in a Bidirectional layer.
      name: of the layer, where there are several. A sequence of names: the layers of
        a network.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: there is no such layer, or there are several and `name` says none of
        them; a layer has an activation that prnn_jax has not, such as gelu; its
        merge_mode is not "concat" or "sum"; weights are missing. Says which layer, and
        what to do.
      FileNotFoundError: there is no such file.
      ImportError: keras or h5py is needed to read a file, and missing.
    """
    found = {layer.name: layer for layer in _layers(model)}
    listed = ", ".join(map(str, found.values()))
    check(
        len(found) > 0,
        f"{_OP}: the model must have a layer {', '.join(_KINDS)}, or one of these in a "
        "Bidirectional; it has none.",
    )
    if name is None:
        check(
            len(found) == 1,
            f"{_OP}: name must say which layer is meant, one of {listed}.",
        )
        name = next(iter(found))
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        check(one in found, f"{_OP}: name must be of {listed}, got {one!r}.")
    return joined(_OP, [_network(found[one]) for one in names])


# ---- where layers are ----------------------------------------------------------------


def _layers(model: Any) -> Iterator[_Layer]:
    if isinstance(model, (str, os.PathLike)):
        return _of_file(Path(model))
    check(
        hasattr(model, "get_config") and hasattr(model, "get_weights"),
        f"{_OP}: model must be a layer or a model of Keras, or the path of one, got "
        f"{type(model).__name__}.",
    )
    return _of_object(model)


def _of_object(layer: Any, around: str | None = None) -> Iterator[_Layer]:
    """Those of a layer; `around`: the models that it is in, but for the outermost."""
    kind, name = _class_of(layer), f"{around or ''}{layer.name}"
    if kind in _KINDS or kind == "Bidirectional":
        arrays = layer.get_weights()
        yield from _layer(name, kind, layer.get_config(), arrays, _is_of_keras_2(layer))
        return
    inside = "" if around is None else f"{name}/"
    for inner in getattr(layer, "layers", ()):
        yield from _of_object(inner, inside)


def _is_of_keras_2(layer: Any) -> bool:
    """By the module of Keras' own class."""
    for kind in type(layer).__mro__:
        package = sys.modules.get(kind.__module__.partition(".")[0])
        if kind.__name__ in _KINDS or kind.__name__ == "Bidirectional":
            return str(getattr(package, "__version__", "3")).startswith("2")
    return False


def _class_of(layer: Any) -> str:
    """The name of Keras' own class that an object is of."""
    for kind in type(layer).__mro__:
        is_known = kind.__name__ in _KINDS or kind.__name__ == "Bidirectional"
        if is_known and "keras" in kind.__module__:
            return kind.__name__
    return type(layer).__name__


def _of_file(path: Path) -> Iterator[_Layer]:
    if not path.exists():
        raise FileNotFoundError(path)
    if path.suffix == ".keras":
        try:
            import keras
        except ModuleNotFoundError as error:
            message = f"{_OP}: {path} needs the package keras: pip install keras."
            raise ImportError(message) from error
        found = _of_object(keras.saving.load_model(path, compile=False))
        of_keras_2 = _version_of(path).startswith("2")
        return (replace(layer, of_keras_2=of_keras_2) for layer in found)
    check(
        path.suffix in (".h5", ".hdf5"),
        f"{_OP}: {path} must be a file .keras, .h5 or .hdf5.",
    )
    return iter(_of_h5(path))


def _version_of(path: Path) -> str:
    """Of Keras, that has written a `.keras` file."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read("metadata.json"))["keras_version"]


def _of_h5(path: Path) -> list[_Layer]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        message = f"{_OP}: {path} needs the package h5py: pip install h5py."
        raise ImportError(message) from error
    check(h5py.is_hdf5(path), f"{_OP}: {path} must be a file of HDF5.")
    with h5py.File(path) as file:
        config: Any = file.attrs.get("model_config")
        check(
            config is not None,
            f"{_OP}: {path} must be of model.save(); it has weights alone, which do "
            "not tell activations. Give its arrays to from_keras.",
        )
        text = config.decode() if isinstance(config, bytes) else config
        weights: Any = file.get("model_weights", file)
        version = file.attrs.get("keras_version", weights.attrs.get("keras_version"))
        version = version.decode() if isinstance(version, bytes) else version
        of_keras_2 = None if version is None else version.startswith(("1.", "2."))
        return list(_of_config(json.loads(text), weights, "", of_keras_2))


def _of_config(
    model: Mapping, weights: Any, prefix: str, of_keras_2: bool | None
) -> Iterator[_Layer]:
    """The layers of a model's description; weights are those of the outer model."""
    inside = model["config"]
    for one in inside["layers"] if isinstance(inside, Mapping) else inside:
        kind, config = one["class_name"], one["config"]
        name = one.get("name") or (config.get("name") if kind not in _MODELS else None)
        name = name or (config.get("name", "") if isinstance(config, Mapping) else "")
        if kind in _MODELS:
            yield from _of_config(one, weights, f"{prefix}{name}/", of_keras_2)
        elif kind in _KINDS or kind == "Bidirectional":
            arrays = _arrays_of(weights, (prefix + name).split("/"))
            yield from _layer(prefix + name, kind, config, arrays, of_keras_2)


def _arrays_of(weights: Any, path: list[str]) -> list[np.ndarray]:
    """A layer's, in Keras' order. Those of a model in the model are in one group."""
    outer, inner = path[0], path[-1]
    if outer not in weights:
        return []
    group = weights[outer]
    names = [
        n.decode() if isinstance(n, bytes) else n for n in group.attrs["weight_names"]
    ]
    if len(path) > 1:
        names = [n for n in names if inner in n.split("/")]
    return [np.asarray(group[n]) for n in names]


def _layer(
    name: str,
    kind: str,
    config: Mapping,
    weights: Sequence[Any],
    of_keras_2: bool | None,
) -> Iterator[_Layer]:
    if kind != "Bidirectional":
        yield _Layer(name, kind, config, weights, of_keras_2)
        return
    inner = config["layer"]
    if inner["class_name"] in _KINDS:
        merge = str(config.get("merge_mode"))
        kind, config = inner["class_name"], inner["config"]
        yield _Layer(name, kind, config, weights, of_keras_2, merge)


# ---- a layer -------------------------------------------------------------------------


def _network(layer: _Layer) -> Imported:
    converted, cell = _KINDS[layer.kind]
    check(
        layer.merge in ("", "concat", "sum"),
        f"{_OP}: {layer} must have merge_mode 'concat' or 'sum', got {layer.merge!r}.",
    )
    chosen = _activations(layer)
    weights = list(layer.weights)
    check(len(weights) > 0, f"{_OP}: {layer} must have weights, and has none yet.")
    reset_after = cell == "gru" and bool(layer.config.get("reset_after", False))
    if layer.kind.startswith("CuDNN"):
        reset_after = cell == "gru"
        weights = _from_cudnn(layer, weights, converted)
    params = from_keras(converted, weights, reset_after=reset_after)
    return Imported(
        layers=(params,),
        cell=cell,
        name=layer.name,
        bidirectional=bool(layer.merge),
        merge="sum" if layer.merge == "sum" else "concat",
        reverse=bool(layer.config.get("go_backwards", False)),
        time_major=bool(layer.config.get("time_major", False)),
        reset_after=reset_after or cell != "gru",
        **chosen,
    )


def _activations(layer: _Layer) -> dict[str, Any]:
    """Ours, for arrays do not tell them."""
    if layer.kind.startswith("CuDNN"):
        return {}
    ours = {"activation": "activation"}
    if layer.kind != "SimpleRNN":
        ours["recurrent_activation"] = "gate_activation"
    known = activations(of_keras_2=bool(layer.of_keras_2))
    options = {}
    for keras_name, option in ours.items():
        given: Any = _name_of(layer.config.get(keras_name))
        check(
            given in known,
            f"{_OP}: {layer} must have {keras_name} one of "
            f"{', '.join(map(repr, known))}, got {given!r}.",
        )
        check(
            given != "hard_sigmoid" or layer.of_keras_2 is not None,
            f"{_OP}: {layer} has hard_sigmoid, which Keras 2 and 3 define differently, "
            "but the file must have the attribute keras_version to tell which; add it.",
        )
        options[option] = known[given]
    return options


def _name_of(activation: Any) -> str | None:
    """A name, or what Keras writes for a function of its own."""
    if isinstance(activation, Mapping):
        inner = activation.get("config")
        return inner if isinstance(inner, str) else activation.get("class_name")
    return activation


def _from_cudnn(layer: _Layer, weights: list, converted: str) -> list[np.ndarray]:
    """The arrays of CuDNNLSTM and CuDNNGRU as those of LSTM and GRU.

    Each gate's kernel is cuDNN's `[hidden, input]` under the shape of Keras', its
    recurrent kernel transposed; there are two biases, one after the other.
    """
    gates = {"LSTM": 4, "GRU": 3}[converted]
    check(
        len(weights) in (3, 6),
        f"{_OP}: {layer} must have a kernel, a recurrent kernel and a bias for each "
        f"direction, got {len(weights)} arrays.",
    )
    made: list[np.ndarray] = []
    for first in range(0, len(weights), 3):
        kernel, recurrent, bias = (np.asarray(w) for w in weights[first : first + 3])
        inputs, hidden = len(kernel), len(recurrent)
        shapes = [
            (inputs, gates * hidden),
            (hidden, gates * hidden),
            (2 * gates * hidden,),
        ]
        check(
            [kernel.shape, recurrent.shape, bias.shape] == shapes,
            f"{_OP}: {layer} must have arrays of the shapes {shapes}, got "
            f"{[kernel.shape, recurrent.shape, bias.shape]}.",
        )
        of_gates = np.split(kernel, gates, 1)
        made.append(np.concatenate([k.reshape(hidden, inputs).T for k in of_gates], 1))
        made.append(np.concatenate([k.T for k in np.split(recurrent, gates, 1)], 1))
        two = bias.reshape(2, -1)
        made.append(two if converted == "GRU" else two.sum(0))
    return made
