"""Files of HDF5 of Keras 2 and 3, and the recurrent layers in them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._keras_layers import (
    KINDS,
    OP,
    WRAPPERS,
    Layer,
    class_of,
    described,
)
from prnn_jax.convert._keras_weights import Told, array_of, of_weights

_MODELS = "Sequential", "Functional", "Model"


def of_h5(path: Path, told: Told) -> list[Layer]:
    """The layers of a file of HDF5: of a model, or of its weights alone.

    Raises:
      ValueError: it is no such file.
      ImportError: there is no h5py.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        message = f"{OP}: {path} needs the package h5py: pip install h5py."
        raise ImportError(message) from error
    check(h5py.is_hdf5(path), f"{OP}: {path} must be a file of HDF5.")
    try:
        opened = h5py.File(path)
    except OSError as error:
        raise ValueError(f"{OP}: {path} must be a file of HDF5: {error}") from error
    with opened as file:
        config: Any = file.attrs.get("model_config")
        if config is None:
            return list(of_weights(file, told))
        text = config.decode() if isinstance(config, bytes) else config
        weights: Any = file.get("model_weights", file)
        version = file.attrs.get("keras_version", weights.attrs.get("keras_version"))
        version = version.decode() if isinstance(version, bytes) else version
        of_keras_2 = None if version is None else version.startswith(("1.", "2."))
        return list(_of_config(json.loads(text), weights, "", of_keras_2))


def _of_config(
    model: Mapping, weights: Any, prefix: str, of_keras_2: bool | None
) -> Iterator[Layer]:
    """The layers of a model's description; weights are those of the outer model."""
    inside = model["config"]
    for one in inside["layers"] if isinstance(inside, Mapping) else inside:
        kind, config = class_of(one), one["config"]
        name = one.get("name") or (config.get("name") if kind not in _MODELS else None)
        name = name or (config.get("name", "") if isinstance(config, Mapping) else "")
        if kind in _MODELS:
            yield from _of_config(one, weights, f"{prefix}{name}/", of_keras_2)
        elif kind in KINDS or kind in WRAPPERS:
            stored = _stored(weights, (prefix + name).split("/"))
            arrays, places = [array_of(a) for a in stored], [a.name for a in stored]
            yield from described(
                prefix + name, kind, config, arrays, of_keras_2, places
            )


def _stored(weights: Any, path: list[str]) -> list[Any]:
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
    return [group[n] for n in names]
