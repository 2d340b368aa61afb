"""Whole models of Keras 2 and 3: layers, models, files of these."""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._keras.files import (
    WEIGHTS,
    is_folder,
    is_h5,
    of_archive,
    of_h5,
    read_archive,
)
from prnn_jax.convert._keras.functions import config_of
from prnn_jax.convert._keras.layers import (
    KINDS,
    WRAPPERS,
    Layer,
    described,
    is_of_keras_2,
    network,
)
from prnn_jax.convert._keras.weights import Told
from prnn_jax.convert._shared.imported import Imported, joined

_OP = "import_keras"
#: Packages that have Keras' own classes, and ours that compute the same.
_HOMES = "keras", "tf_keras", "tensorflow", "prnn_jax"
_KNOWN = *KINDS, *WRAPPERS


def import_keras(
    model: Any,
    name: str | Sequence[str] | None = None,
    *,
    activation: str | None = None,
    recurrent_activation: str | None = None,
    merge_mode: str | None = None,
) -> Imported:
    """A recurrent network of a Keras model: its LSTM, GRU or SimpleRNN.

        net = prnn_jax.convert.import_keras("model.keras")     # or "model.h5"
        y, states = net(x)

    y is what the layer gives with return_sequences=True, but with go_backwards in the
    order of x and not of processing. Of a Bidirectional layer the directions are
    joined as merge_mode says. Dropout, masks (`net(x, lengths=...)` for padding at the
    end) and statefulness are the caller's.

    A file of `save_weights` has arrays alone. Those tell what a layer is, but not which
    activations it has, nor how a Bidirectional one joins its directions: say so, in
    Keras' words. Nor do they tell go_backwards, for which there is
    `dataclasses.replace(net, reverse=True)`, nor, before Keras 3.6, whose hard_sigmoid
    is meant: a file without the attribute keras_version is refused then.

    Args:
      model: a layer or a model, or the path of a `.keras` file of Keras 3, or of the
        folder of one, which Keras reads, or of a `.keras`, `.h5` or `.hdf5` file of
        Keras 2, or an `.h5` of Keras 3, which h5py reads; in it LSTM, GRU or
        SimpleRNN, CuDNNLSTM or CuDNNGRU, alone, in a Bidirectional or TimeDistributed
        layer, or as the cells of an RNN; of an object in layers of one's own, too.
      name: of the layer, where there are several; "bi/forward_layer" is one direction
        of a Bidirectional layer "bi". A sequence of names: the layers of a network.
      activation: of a file of weights alone, as all that follow: the layer's, such as
        "tanh". Weights of CuDNNLSTM and CuDNNGRU need none.
      recurrent_activation: the LSTM's or the GRU's, such as "sigmoid", or
        "hard_sigmoid", which Keras 2 has by default.
      merge_mode: a Bidirectional layer's, "concat" or "sum".

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: a file is damaged, or of another kind; there is no such layer,
        or there are several and `name` says none of them, or two are called so; a layer
        has an activation that prnn_jax has not, such as gelu, or a function that is not
        Keras' own; its merge_mode is not "concat" or "sum", or its backward_layer
        differs; weights are missing; weights alone do not tell an option that is not
        given, or more than weights tells one that is. Says which layer, and what to do.
      FileNotFoundError: there is no such file.
      ImportError: keras or h5py is needed to read a file, and missing.
    """
    told = Told(activation, recurrent_activation, merge_mode)
    layers = chosen(_OP, model, name, told)
    return joined(_OP, [network(_OP, layer) for layer in layers])


def chosen(
    op: str,
    model: Any,
    name: str | Sequence[str] | None,
    told: Told,
    remedy: str = "",
) -> list[Layer]:
    """The layers of a network, the first one first.

    Raises:
      ValueError: there are none; in the words of `op`, with a remedy for a wrong name.
    """
    layers = list(_layers(op, model, told))
    parts = [one for layer in layers for one in layer.directions]
    found = {layer.name: layer for layer in (*parts, *layers)}
    listed = ", ".join(map(str, layers))
    is_file = isinstance(model, (str, os.PathLike))
    hidden = ", or in layers of one's own, which only the model itself shows; pass it"
    check(
        len(found) > 0,
        f"{op}: the model must have a layer {', '.join(KINDS)}, or one of these, or "
        f"their cells, in {', '.join(WRAPPERS)}; it has none{hidden * is_file}.",
    )
    if name is None:
        check(
            len({layer.name for layer in layers}) == 1,
            f"{op}: name must say which layer is meant, one of {listed}.",
        )
        name = layers[0].name
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        check(one in found, f"{op}: name must be of {listed}, got {one!r}{remedy}.")
    for one in names:
        called = sum(layer.name == one for layer in (*layers, *parts))
        check(
            called == 1,
            f"{op}: the layers must have names of their own, got {called} that are "
            f"called {one!r}: {listed}. Import the layer itself, or give it another "
            "name.",
        )
        check(
            found[one].has_weights_alone or told == Told(),
            f"{op}: activation, recurrent_activation and merge_mode must not be given "
            f"for {found[one]}, whose model tells them; they are for files of weights "
            "alone.",
        )
    return [found[one] for one in names]


# ---- where layers are ----------------------------------------------------------------


def _layers(op: str, model: Any, told: Told) -> Iterator[Layer]:
    if isinstance(model, (str, os.PathLike)):
        return iter(_of_file(op, Path(model), told))
    check(
        hasattr(model, "get_config") and hasattr(model, "get_weights"),
        f"{op}: model must be a layer or a model of Keras, or the path of one, got "
        f"{type(model).__name__}.",
    )
    return _of_object(model)


def _of_object(layer: Any, around: str | None = None) -> Iterator[Layer]:
    """Those of a layer; `around`: the models that it is in, but for the outermost."""
    kind, name = _class_of(layer), f"{around or ''}{layer.name}"
    if kind in KINDS or kind in ("Bidirectional", "RNN"):
        arrays, config = layer.get_weights(), config_of(layer, _package_of(layer))
        yield from described(name, kind, config, arrays, _is_of_keras_2(layer), layer)
        return
    inside = "" if around is None else f"{name}/"
    # A layer of the user's own has others as attributes, and no `layers`.
    within = getattr(layer, "_flatten_layers", None)
    inner = getattr(layer, "layers", None)
    if inner is None:
        inner = [] if within is None else within(include_self=False, recursive=False)
    for one in inner:
        yield from _of_object(one, inside)


def _is_of_keras_2(layer: Any) -> bool:
    return is_of_keras_2(str(getattr(_package_of(layer), "__version__", "3")))


def _package_of(layer: Any) -> Any:
    """That of Keras' own class: keras, tf_keras, or TensorFlow with it inside."""
    for kind in type(layer).__mro__:
        if kind.__name__ in _KNOWN:
            package = sys.modules.get(kind.__module__.partition(".")[0])
            if "keras" in kind.__module__ and "prnn_jax" not in kind.__module__:
                return package
    return None


def _class_of(layer: Any) -> str:
    """The name of Keras' own class that an object is of.

    One's own that computes something else has its module in front.
    """
    for kind in type(layer).__mro__:
        if kind.__module__.partition(".")[0] in _HOMES:
            if kind.__name__ in _KNOWN:
                return kind.__name__
        elif "call" in vars(kind):
            return f"{kind.__module__}>{kind.__name__}"
    return type(layer).__name__


def _of_file(op: str, path: Path, told: Told) -> Sequence[Layer]:
    if is_folder(path):
        return _of_keras_file(op, path)
    check(
        not path.name.endswith(".weights.json"),
        f"{op}: {path} must be a file .keras, .h5 or .hdf5, and lists the files that "
        "weights are cut into; model.load_weights(path), and pass the model.",
    )
    check(
        not path.is_dir() and path.suffix != ".index" and not _is_checkpoint(path),
        f"{op}: {path} must be a file .keras, .h5 or .hdf5, and is a SavedModel or a "
        'checkpoint of TensorFlow; load it with tf_keras, and model.save("model.h5").',
    )
    if not path.exists():
        raise FileNotFoundError(path)
    if path.suffix == ".keras" and not is_h5(path):
        return _of_keras_file(op, path)
    check(
        path.suffix in (".keras", ".h5", ".hdf5"),
        f"{op}: {path} must be a file .keras, .h5 or .hdf5.",
    )
    return of_h5(op, path, told)


def _is_checkpoint(path: Path) -> bool:
    """Whether it is the common beginning of a checkpoint's files."""
    return not path.exists() and path.with_name(f"{path.name}.index").exists()


def _of_keras_file(op: str, path: Path) -> Sequence[Layer]:
    metadata, config = read_archive(op, path, "metadata.json", "config.json")
    if path.is_dir():  # of which Keras raises any error
        read_archive(op, path, WEIGHTS)
    try:
        version = str(json.loads(metadata)["keras_version"])
    except (LookupError, ValueError, TypeError) as error:
        raise ValueError(
            f"{op}: metadata.json of {path} must have keras_version: {error}"
        ) from error
    if is_of_keras_2(version):
        return of_archive(op, path)
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise ImportError(
                f"{op}: {path} needs keras, whose backend lacks the package "
                f"{error.name}; install it, or set KERAS_BACKEND=jax."
            ) from error
        message = f"{op}: {path} needs the package keras: pip install keras."
        raise ImportError(message) from error
    if b'"prnn_jax>' in config:
        importlib.import_module("prnn_jax.keras")  # registers its layers
    try:
        model = keras.saving.load_model(path, compile=False)
    except (TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        reason = str(error).rpartition("Exception encountered: ")[2].strip()
        raise ValueError(
            f"{op}: {path} must be a model that Keras can load. Import the modules "
            "that define and register its own layers before, or import an .h5 of it, "
            f"which is read without them. Keras says: {reason}"
        ) from error
    return list(_of_object(model))
