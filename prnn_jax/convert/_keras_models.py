"""Whole models of Keras 2 and 3: layers, models, files of these."""

import json
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._imported import Imported, joined
from prnn_jax.convert._keras_files import of_h5
from prnn_jax.convert._keras_functions import config_of
from prnn_jax.convert._keras_layers import (
    KINDS,
    OP,
    WRAPPERS,
    Layer,
    described,
    network,
)
from prnn_jax.convert._keras_weights import Told

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
    `dataclasses.replace(net, reverse=True)`.

    Args:
      model: a layer or a model, or the path of a `.keras` file, which Keras reads, or
        of an `.h5` or `.hdf5` file of Keras 2 or 3, which h5py reads; in it LSTM, GRU
        or SimpleRNN, CuDNNLSTM or CuDNNGRU, alone, in a Bidirectional or
        TimeDistributed layer, or as the cells of an RNN; in layers of one's own, too.
      name: of the layer, where there are several. A sequence of names: the layers of
        a network.
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
    return joined(OP, [network(layer) for layer in chosen(model, name, told)])


def chosen(model: Any, name: str | Sequence[str] | None, told: Told) -> list[Layer]:
    """The layers of a network, the first one first."""
    layers = list(_layers(model, told))
    found = {layer.name: layer for layer in layers}
    listed = ", ".join(map(str, layers))
    check(
        len(found) > 0,
        f"{OP}: the model must have a layer {', '.join(KINDS)}, or one of these, or "
        f"their cells, in {', '.join(WRAPPERS)}; it has none.",
    )
    if name is None:
        check(
            len(found) == 1,
            f"{OP}: name must say which layer is meant, one of {listed}.",
        )
        name = next(iter(found))
    names = [name] if isinstance(name, str) else list(name)
    for one in names:
        check(one in found, f"{OP}: name must be of {listed}, got {one!r}.")
    for one in names:
        called = sum(layer.name == one for layer in layers)
        check(
            called == 1,
            f"{OP}: the layers must have names of their own, got {called} that are "
            f"called {one!r}: {listed}. Import the layer itself, or give it another "
            "name.",
        )
        check(
            found[one].has_weights_alone or told == Told(),
            f"{OP}: activation, recurrent_activation and merge_mode must not be given "
            f"for {found[one]}, whose model tells them; they are for files of weights "
            "alone.",
        )
    return [found[one] for one in names]


# ---- where layers are ----------------------------------------------------------------


def _layers(model: Any, told: Told) -> Iterator[Layer]:
    if isinstance(model, (str, os.PathLike)):
        return _of_file(Path(model), told)
    check(
        hasattr(model, "get_config") and hasattr(model, "get_weights"),
        f"{OP}: model must be a layer or a model of Keras, or the path of one, got "
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
    return str(getattr(_package_of(layer), "__version__", "3")).startswith("2")


def _package_of(layer: Any) -> Any:
    """That of Keras' own class: keras, tf_keras, or TensorFlow with it inside."""
    for kind in type(layer).__mro__:
        if kind.__name__ in _KNOWN:
            package = sys.modules.get(kind.__module__.partition(".")[0])
            if "keras" in kind.__module__ and "prnn_jax" not in kind.__module__:
                return package
    return None


def _class_of(layer: Any) -> str:
    """The name of Keras' own class that an object is of."""
    for kind in type(layer).__mro__:
        if kind.__name__ in _KNOWN and "keras" in kind.__module__:
            return kind.__name__
    return type(layer).__name__


def _of_file(path: Path, told: Told) -> Iterator[Layer]:
    if not path.exists():
        raise FileNotFoundError(path)
    if path.suffix == ".keras":
        return _of_keras_file(path)
    check(
        path.suffix in (".h5", ".hdf5"),
        f"{OP}: {path} must be a file .keras, .h5 or .hdf5.",
    )
    return iter(of_h5(path, told))


def _of_keras_file(path: Path) -> Iterator[Layer]:
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise ImportError(
                f"{OP}: {path} needs keras, whose backend lacks the package "
                f"{error.name}; install it, or set KERAS_BACKEND=jax."
            ) from error
        message = f"{OP}: {path} needs the package keras: pip install keras."
        raise ImportError(message) from error
    try:
        with zipfile.ZipFile(path) as file:
            version = str(json.loads(file.read("metadata.json"))["keras_version"])
            file.getinfo("config.json")
    except (zipfile.BadZipFile, LookupError, ValueError, TypeError) as error:
        raise ValueError(
            f"{OP}: {path} must be a file of Keras' model.save, an archive with "
            f"metadata.json and config.json: {error}"
        ) from error
    of_keras_2 = version.startswith("2")
    try:
        model = keras.saving.load_model(path, compile=False)
    except (TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        reason = str(error).rpartition("Exception encountered: ")[2].strip()
        raise ValueError(
            f"{OP}: {path} must be a model that Keras can load. Import the modules "
            "that define and register its own layers before, or import an .h5 of it, "
            f"which is read without them. Keras says: {reason}"
        ) from error
    for layer in _of_object(model):
        yield replace(layer, of_keras_2=of_keras_2)
