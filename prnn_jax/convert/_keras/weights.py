"""Files of a Keras model's weights alone, which do not tell what its layers compute."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from prnn_jax.convert._keras.layers import SIDES, Layer, is_of_keras_2, overwritten

_ARRAYS = "kernel", "recurrent_kernel", "bias"
_BY_GATES = {1: "SimpleRNN", 3: "GRU", 4: "LSTM"}


class Told(NamedTuple):
    """What the caller says of layers, in Keras' words; None: nothing."""

    activation: str | None = None
    recurrent_activation: str | None = None
    merge_mode: str | None = None


def array_of(stored: Any) -> np.ndarray:
    """What a dataset of h5py has, which knows of bfloat16 that it is of two bytes."""
    array = np.asarray(stored)
    return array.view(ml_dtypes.bfloat16) if array.dtype == "V2" else array


def put(stored: Any, array: np.ndarray) -> None:
    """The inverse of `array_of`: writes into a dataset of h5py."""
    if stored.dtype == "V2":
        array = np.ascontiguousarray(array.astype(ml_dtypes.bfloat16)).view("V2")
    stored[...] = array


def of_weights(file: Any, told: Told) -> Iterator[Layer]:
    """The recurrent layers of a file of `save_weights`, open in h5py."""
    version = text_of(file.attrs.get("keras_version", ""))
    of_keras_2 = is_of_keras_2(version) if version else None
    if texts_of(file, "layer_names"):
        return _by_name(file, told, of_keras_2)
    return _by_object(file, told, of_keras_2)


def _by_name(file: Any, told: Told, of_keras_2: bool | None) -> Iterator[Layer]:
    """One group a layer, of arrays with names; of a model in the model all in one."""
    for layer in texts_of(file, "layer_names"):
        group = file[layer]
        found: dict[str, dict[str, Any]] = {}
        names_of_arrays = texts_of(group, "weight_names")
        is_whole = len({*names_of_arrays}) == len(names_of_arrays)
        for array in names_of_arrays:
            path, _, name = array.rpartition("/")
            found.setdefault(path, {})[name.partition(":")[0]] = group[array]
        holders = Counter(map(_holder_of, found))
        ways = Counter(_side_of(holder, "[^/]+")[0] for holder in holders)
        places: dict[str, dict[str, list[Any]]] = {}
        for path, arrays in found.items():
            place, side = path, ""
            if holders[_holder_of(path)] == 1:
                place, side = _side_of(_holder_of(path), "[^/]+")
                if ways[place] == 1:
                    place, side = _holder_of(path), ""
            its = [arrays[n] for n in _ARRAYS if n in arrays]
            places.setdefault(place, {})[side] = its if _is_recurrent(arrays) else []
        names = _names_of(layer, list(places))
        for name, sides in zip(names, places.values(), strict=True):
            if all(sides.values()):
                is_backward = "/backward_layer/" in name
                made = _layer(name, sides, told, of_keras_2, is_backward)
                yield made if is_whole else overwritten(made)


def _is_recurrent(arrays: dict[str, Any]) -> bool:
    recurrent = arrays.get("recurrent_kernel")
    return "kernel" in arrays and recurrent is not None and recurrent.ndim == 2


def _holder_of(path: str) -> str:
    """The path of arrays without that of their cell."""
    return re.sub(r"(?<=.)/[^/]*_cell(_\d+)?$", "", path)


def _side_of(path: str, of: str) -> tuple[str, str]:
    """A layer's path, and which direction of it this is, if it is one."""
    match = re.fullmatch(rf"(.+)/(forward|backward)_{of}", path)
    return (match[1], f"{match[2]}_layer") if match else (path, "")


def _names_of(layer: str, paths: list[str]) -> list[str]:
    """What the parts of a layer's group are called; the cells of an RNN after it."""
    if len(paths) == 1:
        return [layer]
    plain = [re.sub(r"/stacked_rnn_cells(_\d+)?(?=/)", "", path) for path in paths]
    plain = [
        re.sub(r"(?<=/)(forward|backward)_[^/]+(?=/)", r"\1_layer", path)
        for path in plain
    ]
    last = Counter(path.rpartition("/")[2] for path in plain)
    names = []
    for path in plain:
        inner = path.rpartition("/")[2]
        is_full = path.startswith(f"{layer}/")
        short = f"{layer}/{inner if last[inner] == 1 else path}"
        names.append(path if is_full else short)
    return names


def _by_object(file: Any, told: Told, of_keras_2: bool | None) -> Iterator[Layer]:
    """Groups as objects hold one another; arrays are numbered.

    Keras 3.6 and later say what each object is called; Keras 2 and 3.0 to 3.5 do not.
    """
    places: dict[str, dict[str, list[Any]]] = {}
    named: list[str] = []

    def visit(path: str, group: Any) -> None:
        holder, _, last = path.rpartition("/")
        if last != "vars":
            return
        if "name" in group.attrs:
            named.append(holder)
        arrays = [group[str(n)] for n in range(len(group)) if str(n) in group]
        if len(arrays) < 2 or arrays[1].ndim != 2:  # or it is of a ConvLSTM
            return
        is_cell = bool(re.search(r"(^|/)cell/cells/\w+$|(^|[/_])cell(_\d+)?$", holder))
        layer = re.sub(r"^cell$|(?<!cells)/cell$", "", holder)
        place, side = holder, ""
        if layer != holder or (not is_cell and _is_of_cudnn(arrays)):
            place, side = _side_of(layer, "layer")
        elif not is_cell:
            return
        places.setdefault(place, {})[side] = arrays

    file.visititems(visit)
    of_keras_2 = False if named and of_keras_2 is None else of_keras_2
    for place, sides in places.items():
        own = "".join(f"/{side}" for side in sides if side and len(sides) == 1)
        name = _name_of(file, place + own, bool(named))
        yield _layer(name, sides, told, of_keras_2, "/backward_layer/" in place)


def _is_of_cudnn(arrays: list[Any]) -> bool:
    """Whether they are of CuDNNLSTM or CuDNNGRU, which have no cells."""
    if [array.ndim for array in arrays] != [2, 2, 1]:
        return False
    (_, columns), (hidden, its), (biases,) = (array.shape for array in arrays)
    gates = [n for n in (3, 4) if n * hidden == columns]
    return bool(gates) and columns == its and biases == 2 * columns


def _name_of(file: Any, path: str, has_names: bool) -> str:
    """The names of the objects on a path; without any the path itself."""
    names = []
    for above in (path[: m.start()] for m in re.finditer("/|$", path)):
        if above.endswith("/cell"):  # StackedRNNCells
            continue
        last = above.rpartition("/")[2]
        if last in SIDES:
            names.append(last)
        elif f"{above}/vars" in file:
            names.append(text_of(file[f"{above}/vars"].attrs.get("name", "")))
    found = "/".join(filter(None, names)) if has_names else ""
    return found or path.replace("/cell/cells/", "/")


def _layer(
    name: str,
    sides: dict[str, list[Any]],
    told: Told,
    of_keras_2: bool | None,
    is_backward: bool = False,
) -> Layer:
    """A layer from the file's arrays of each direction: what it is, they tell."""
    # In the order of Keras, whatever that of the file.
    ordered = [sides[side] for side in SIDES if side in sides] or list(sides.values())
    _, recurrent, *bias = ordered[0]
    hidden = len(recurrent)
    kind = next(
        (k for n, k in _BY_GATES.items() if recurrent.shape == (hidden, n * hidden)),
        "RNN",
    )
    has_two = bool(bias) and bias[0].shape == (2 * recurrent.shape[-1],)
    config = {
        **told._asdict(),
        "reset_after": bias[0].ndim == 2 if bias else None,
        "go_backwards": is_backward,
    }
    stored = [array for side in ordered for array in side]
    arrays, places = [array_of(a) for a in stored], [a.name for a in stored]
    both = len(sides) > 1
    return Layer(
        *(name, f"CuDNN{kind}" if has_two else kind, config, arrays, of_keras_2),
        *(told.merge_mode if both else "", True, places),
        directions=tuple(
            _layer(f"{name}/{side}", {side: sides[side]}, told, of_keras_2, n == 1)
            for n, side in enumerate(SIDES)
            if both
        ),
    )


def texts_of(group: Any, name: str) -> list[str]:
    """An attribute of texts, which Keras cuts into numbered ones where it is long."""
    parts = [name] if name in group.attrs else []
    while (part := f"{name}{len(parts)}") in group.attrs:
        parts.append(part)
    return [text_of(text) for part in parts for text in group.attrs[part]]


def text_of(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)
