"""Files of Keras 2 and 3 that h5py reads, and the recurrent layers in them."""

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from prnn_jax._given.checks import check
from prnn_jax.convert._keras.layers import (
    KINDS,
    SIDES,
    Layer,
    cells_of,
    class_of,
    count_of,
    described,
    is_of_keras_2,
    overwritten,
)
from prnn_jax.convert._keras.weights import (
    Told,
    array_of,
    of_weights,
    text_of,
    texts_of,
)

#: An archive's file of weights.
WEIGHTS = "model.weights.h5"
_MODELS = "Sequential", "Functional", "Model"
#: Where an object keeps its layers; the second that of Keras 2.12 and 2.13.
_CONTAINERS = "layers", "_layer_checkpoint_dependencies"


def of_h5(op: str, path: Path, told: Told) -> list[Layer]:
    """The layers of a file of HDF5: of a model, or of its weights alone.

    Raises:
      ValueError: it is no such file.
      ImportError: there is no h5py.
    """
    h5py = _h5py(op, path)
    check(h5py.is_hdf5(path), f"{op}: {path} must be a file of HDF5.")
    try:
        opened = h5py.File(path)
    except OSError as error:
        raise ValueError(f"{op}: {path} must be a file of HDF5: {error}") from error
    with opened as file:
        config: Any = file.attrs.get("model_config")
        if config is None:
            return list(of_weights(file, told))
        weights: Any = file.get("model_weights", file)
        version = file.attrs.get("keras_version", weights.attrs.get("keras_version"))
        of_keras_2 = None if version is None else is_of_keras_2(text_of(version))
        model = json.loads(text_of(config))
        return list(_of_model(model, _ByName(weights), "", of_keras_2))


def of_archive(op: str, path: Path) -> list[Layer]:
    """The layers of an archive of Keras 2, which Keras 3 does not load.

    Raises:
      ValueError: it is no such file.
      ImportError: there is no h5py.
    """
    h5py = _h5py(op, path)
    config, weights = read_archive(op, path, "config.json", WEIGHTS)
    try:
        opened = h5py.File(io.BytesIO(weights))
    except OSError as error:
        message = f"{op}: {WEIGHTS} of {path} must be a file of HDF5: {error}"
        raise ValueError(message) from error
    with opened as file:
        return of_places(config, file, of_keras_2=True)


def of_places(config: bytes, file: Any, *, of_keras_2: bool) -> list[Layer]:
    """The layers of an archive's description; its weights are open in h5py.

    Of these, places are known before Keras 3.6, which began to write names.
    """
    return list(_of_layer(json.loads(config), _ByPlace(file), None, of_keras_2))


def read_archive(op: str, path: Path, *names: str) -> list[bytes]:
    """Files in an archive of Keras, or in a folder that has been one.

    Raises:
      ValueError: they are not there.
    """
    try:
        if path.is_dir():
            return [(path / name).read_bytes() for name in names]
        with zipfile.ZipFile(path) as file:
            return [file.read(name) for name in names]
    except (zipfile.BadZipFile, LookupError, FileNotFoundError) as error:
        raise ValueError(
            f"{op}: {path} must be a file of Keras' model.save, an archive with "
            f"metadata.json, config.json and {WEIGHTS}: {error}"
        ) from error


def is_folder(path: Path) -> bool:
    """Whether it is what `model.save(path, zipped=False)` of Keras 3 makes."""
    return path.is_dir() and (path / "config.json").exists()


def is_h5(path: Path) -> bool:
    """Whether it is HDF5, by its first bytes; old .keras files of Keras 2 are."""
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _h5py(op: str, path: Path) -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        message = f"{op}: {path} needs the package h5py: pip install h5py."
        raise ImportError(message) from error
    return h5py


# ---- descriptions of models ----------------------------------------------------------


class _Place(Protocol):
    """Where a file has the arrays of a layer, or those of what is in it."""

    def of_layers(self, layers: Sequence[Mapping]) -> "Sequence[_Place]":
        """The places of a model's layers."""
        ...

    def of_wrapped(self, layer: Mapping) -> "_Place":
        """The place of the layer in a TimeDistributed one."""
        ...

    def arrays(self, layer: Mapping) -> list[Any]:
        """A recurrent layer's, in Keras' order."""
        ...


def _of_model(
    model: Mapping, place: _Place, prefix: str, of_keras_2: bool | None
) -> Iterator[Layer]:
    """The layers of a model's description, with names that begin with `prefix`."""
    inside = model["config"]
    layers = inside["layers"] if isinstance(inside, Mapping) else inside
    for one, its in zip(layers, place.of_layers(layers), strict=True):
        yield from _of_layer(one, its, prefix, of_keras_2)


def _of_layer(
    layer: Mapping, place: _Place, prefix: str | None, of_keras_2: bool | None
) -> Iterator[Layer]:
    """Those of a layer's description; without a prefix it is the outermost model."""
    kind, config = class_of(layer), layer["config"]
    name = "" if prefix is None else prefix + _name_of(layer)
    if kind in _MODELS:
        inside = "" if prefix is None else f"{name}/"
        yield from _of_model(layer, place, inside, of_keras_2)
    elif kind == "TimeDistributed":
        inner = config["layer"]
        its = place.of_wrapped(inner)
        yield from _of_layer(inner, its, f"{name}/", of_keras_2)
    elif kind in KINDS or kind in ("Bidirectional", "RNN"):
        stored = place.arrays(layer)
        arrays, paths = [array_of(a) for a in stored], [a.name for a in stored]
        found = described(name, kind, config, arrays, of_keras_2, paths)
        yield from found if len({*paths}) == len(paths) else map(overwritten, found)


def _name_of(layer: Mapping) -> str:
    config = layer["config"]
    own = config.get("name", "") if isinstance(config, Mapping) else ""
    return layer.get("name") or own


class _ByName(NamedTuple):
    """All that is in a layer of the outermost model is in one group, by its names."""

    weights: Any
    path: tuple[str, ...] = ()

    def of_layers(self, layers: Sequence[Mapping]) -> "list[_ByName]":
        return [self._replace(path=(*self.path, _name_of(one))) for one in layers]

    def of_wrapped(self, layer: Mapping) -> "_ByName":
        is_model = class_of(layer) in _MODELS
        return self._replace(path=(*self.path, _name_of(layer))) if is_model else self

    def arrays(self, layer: Mapping) -> list[Any]:
        outer, *inner = self.path
        if outer not in self.weights:
            return []
        group = self.weights[outer]
        names = texts_of(group, "weight_names")
        if inner:
            names = [n for n in names if inner[-1] in n.split("/")]
            for above in reversed(inner[:-1]):
                # A model may be missing in the names of what is in it.
                names = [n for n in names if above in n.split("/")] or names
            if len(names) > count_of(layer):  # of several that are called alike
                return []
        return [group[n] for n in names]


class _ByPlace(NamedTuple):
    """Groups as objects hold one another; those in a list by their classes."""

    group: Any

    def of_layers(self, layers: Sequence[Mapping]) -> "list[_ByPlace]":
        held = next((self._at(n) for n in _CONTAINERS if n in self.group), _ByPlace({}))
        return held.of_list(layers)

    def of_list(self, objects: Sequence[Mapping]) -> "list[_ByPlace]":
        """Of each class in order; where some are kept elsewhere, none can be told."""
        kinds = [_in_snake_case(one["class_name"]) for one in objects]
        stored = {kind: self._numbered(kind) for kind in set(kinds)}
        wanted, seen = Counter(kinds), Counter()
        places = []
        for kind in kinds:
            its = stored[kind]
            is_there = len(its) == wanted[kind]
            places.append(self._at(its[seen[kind]]) if is_there else _ByPlace({}))
            seen[kind] += 1
        return places

    def of_wrapped(self, layer: Mapping) -> "_ByPlace":
        return self._at("layer")

    def arrays(self, layer: Mapping) -> list[Any]:
        kind, config = class_of(layer), layer["config"]
        if not count_of(layer):
            return []
        if kind == "Bidirectional":
            sides = config["layer"], config.get("backward_layer") or config["layer"]
            there = [self._at(side) for side in SIDES]
        elif kind == "RNN":
            sides = cells_of(config)
            is_stack = class_of(config["cell"]) == "StackedRNNCells"
            cell = self._at("cell")
            there = cell._at("cells").of_list(sides) if is_stack else [cell]
        else:
            holder = self._at("cell") if "cell" in self.group else self
            arrays = holder._at("vars").group
            return [arrays[str(n)] for n in range(len(arrays))]
        parts = zip(there, sides, strict=True)
        return [array for place, side in parts for array in place.arrays(side)]

    def _at(self, name: str) -> "_ByPlace":
        return _ByPlace(self.group.get(name, {}))

    def _numbered(self, kind: str) -> list[str]:
        """The groups of a class, in order."""
        found = [re.fullmatch(rf"{kind}(?:_(\d+))?", name) for name in self.group]
        return [m[0] for m in sorted(filter(None, found), key=lambda m: int(m[1] or 0))]


def _in_snake_case(kind: str) -> str:
    """What Keras calls a group after a class."""
    name = re.sub(r"\W+", "", kind.rpartition(">")[2])
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
