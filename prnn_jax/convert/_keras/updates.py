"""Networks back into models of Keras: layers, models, files of these."""

import io
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._keras.files import WEIGHTS, is_h5, of_places, read_archive
from prnn_jax.convert._keras.layers import Layer, network, weights_of
from prnn_jax.convert._keras.models import chosen
from prnn_jax.convert._keras.weights import Told, of_weights, put
from prnn_jax.convert._shared.imported import Imported, joined
from prnn_jax.convert._shared.updates import (
    changed,
    check_network,
    destination,
    fitted,
)

_OP = "update_keras"
#: What files of weights alone do not tell.
_TOLD = "activation", "gate_activation", "reverse"


def update_keras(
    model: Any,
    net: Imported,
    name: str | Sequence[str] | None = None,
    *,
    to: Any = None,
) -> Any:
    """Puts a network back into the Keras model that it came from: import's inverse.

        net = prnn_jax.convert.import_keras("model.keras")
        net = trained(net)                                   # in JAX
        prnn_jax.convert.update_keras("model.keras", net, to="trained.keras")

    All else of a model or a file stays as it is, the optimizer too, and so does what
    was not trained, to the last bit. Of CuDNNLSTM, which has two biases and adds them
    up, a new one is the first, and the second is zero.

    Args:
      model: what `import_keras` takes. A layer or a model is changed in place.
      net: as imported, with other numbers: what optax or `jax.tree.map` make of it, or
        `dataclasses.replace(net, layers=layers)`.
      name: the layer, or the layers in the order of `net.places`, where they have other
        names in this model.
      to: where the new file is written, if model is a path; of the same kind.

    Returns:
      The layer or model that was given; of a path `to`, as a Path.

    Raises:
      ValueError: the model has no such layer (says so as `import_keras`), or one of
        another cell, activation, or shape; a `.keras` file does not tell by names or
        places where the layer's weights are; `to` is missing, or given for an object.
      FileNotFoundError: there is no such file.
      ImportError: keras or h5py is needed to read a file, and missing.
    """
    check_network(_OP, net)
    to = destination(_OP, model, to)
    remedy = ", of net.places; pass name= to say which layer it is here"
    if name is None:
        layers = chosen(_OP, model, net.places or None, Told(), remedy)
    else:
        layers = chosen(_OP, model, name, Told())
    there = joined(_OP, [_network(layer, net) for layer in layers])
    net = fitted(_OP, net, there)
    new = [
        (layer, _new(layer, *params))
        for layer, *params in zip(layers, net.layers, there.layers, strict=True)
    ]
    if to is None:
        for layer, arrays in new:
            if arrays:
                given = layer.source.get_weights()
                layer.source.set_weights(
                    [arrays.get(n, a) for n, a in enumerate(given)]
                )
        return model
    path = Path(model)
    if path.is_dir() or (to.suffix == ".keras" and not is_h5(path)):
        _write_keras(path, to, new)
    else:
        shutil.copyfile(path, to)
        _write(to, new)
    return to


def _network(layer: Layer, net: Imported) -> Imported:
    """What a layer computes; as `net` says, where a file of weights alone does not."""
    if not layer.has_weights_alone:
        return network(_OP, layer)
    known: dict[str, Any] = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    if layer.config["reset_after"] is None:  # without a bias
        known["reset_after"] = net.reset_after
    config = {**layer.config, **known}
    merge = "concat" if layer.is_bidirectional else ""
    told = {name: getattr(net, name) for name in _TOLD}
    return replace(network(_OP, replace(layer, config=config, merge=merge)), **told)


def _new(layer: Layer, params: Params, there: Params) -> dict[int, np.ndarray]:
    """Those of a layer's arrays that are not what the model has, by their number."""
    new, old = (enumerate(weights_of(layer, one)) for one in (params, there))
    return changed(dict(new), dict(old))


def _write(file: Any, new: Sequence[tuple[Layer, dict[int, np.ndarray]]]) -> None:
    """Puts arrays into a file of HDF5, or into what is open as one."""
    import h5py

    with h5py.File(file, "r+") as h5:
        for layer, arrays in new:
            for n, array in arrays.items():
                put(h5[layer.source[n]], array)


def _write_keras(
    path: Path, to: Path, new: Sequence[tuple[Layer, dict[int, np.ndarray]]]
) -> None:
    """The archive, or its folder, with other arrays in its file of weights.

    Of Keras 2 it is known where these are. Keras 3 has read the others: those of 3.6
    and later say a layer's name, in older ones its place is by its description.
    """
    import h5py

    config, content = read_archive(_OP, path, "config.json", WEIGHTS)
    weights = io.BytesIO(content)
    with h5py.File(weights) as h5:
        stored = [*of_weights(h5, Told()), *of_places(config, h5, of_keras_2=False)]
    stored += [part for one in stored for part in one.directions]
    there = [(_stored(path, layer, stored), arrays) for layer, arrays in new]
    _write(weights, there)
    if path.is_dir():
        shutil.copytree(path, to, dirs_exist_ok=True)
        (to / WEIGHTS).write_bytes(weights.getvalue())
        return
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as made:
        for one in archive.infolist():
            is_new = one.filename == WEIGHTS
            made.writestr(one, weights.getvalue() if is_new else archive.read(one))


def _stored(path: Path, layer: Layer, stored: Sequence[Layer]) -> Layer:
    """The layer as it is in the file of weights."""
    if isinstance(layer.source, list):
        return layer
    alike = (one for one in stored if one.name == layer.name)
    found = [one for one in alike if _are_same(one.weights, layer.weights)]
    check(
        len(found) > 0,
        f"{_OP}: {path} must keep the weights of {layer} in {WEIGHTS} under its name "
        "or in the place that config.json tells; load the model with Keras, and update "
        "and save that.",
    )
    return found[0]


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in pairs)
