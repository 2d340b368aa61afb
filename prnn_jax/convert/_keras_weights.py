"""Files of a Keras model's weights alone, which do not tell what its layers compute."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._keras_layers import OP, Layer

_ARRAYS = "kernel", "recurrent_kernel", "bias"
_BY_GATES = {1: "SimpleRNN", 3: "GRU", 4: "LSTM"}
#: Both ways, in the order of Keras; of Keras 2 with the name of a layer after it.
_DIRECTIONS = "forward_", "backward_"


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
    if "layer_names" not in file.attrs:
        return _of_keras_3(file, told)
    version = _text(file.attrs.get("keras_version", ""))
    of_keras_2 = version.startswith(("1.", "2.")) if version else None
    return _of_keras_2(file, told, of_keras_2)


def _of_keras_2(file: Any, told: Told, of_keras_2: bool | None) -> Iterator[Layer]:
    """One group a layer, of arrays with names; of a model in the model all in one."""
    for layer in map(_text, file.attrs["layer_names"]):
        group = file[layer]
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for array in map(_text, group.attrs["weight_names"]):
            *path, name = array.split("/")
            if len(path) > 1 and re.search(r"_cell(_\d+)?$", path[-1]):
                path.pop()
            way = path.pop() if path and path[-1].startswith(_DIRECTIONS) else ""
            of_layer = found.setdefault("/".join(path), {}).setdefault(way, {})
            of_layer[name.partition(":")[0]] = group[array]
        recurrent = {
            path: ways
            for path, ways in found.items()
            if all("recurrent_kernel" in arrays for arrays in ways.values())
        }
        for path, ways in recurrent.items():
            inner = f"{layer}/{path.rpartition('/')[2]}"
            sides = [ways[w] for w in sorted(ways, key=lambda w: w.startswith("back"))]
            arrays = [[a[n] for n in _ARRAYS if n in a] for a in sides]
            name = layer if len(found) == 1 else inner
            if arrays[0][1].ndim == 2:  # or it is of a ConvLSTM
                yield _layer(name, arrays, told, of_keras_2)


def _of_keras_3(file: Any, told: Told) -> Iterator[Layer]:
    """Groups as objects hold one another; arrays are numbered."""
    cells: dict[str, list[list[Any]]] = {}

    def visit(path: str, group: Any) -> None:
        is_cell = path.endswith("cell/vars") and len(group) > 1
        if is_cell and group["1"].ndim == 2:  # or it is of a ConvLSTM
            owner = path.removesuffix("cell/vars").rstrip("/")
            side = re.fullmatch(r"(.*)/(forward|backward)_layer", owner)
            arrays = [group[str(n)] for n in range(len(group))]
            sides = cells.setdefault(side[1] if side else owner, [])
            # In the order of Keras, whatever that of the file.
            is_forward = side is not None and side[2] == "forward"
            sides.insert(0 if is_forward else len(sides), arrays)

    file.visititems(visit)
    for path, arrays in cells.items():
        above = [path[: m.start()] for m in re.finditer("/|$", path)]
        named = [file[f"{p}/vars"] for p in above if f"{p}/vars" in file]
        names = [_text(group.attrs.get("name", "")) for group in named]
        yield _layer("/".join(filter(None, names)) or path, arrays, told, False)


def _layer(
    name: str, sides: list[list[Any]], told: Told, of_keras_2: bool | None
) -> Layer:
    """A layer from the file's arrays of each direction: what it is, they tell."""
    _, recurrent, *bias = sides[0]
    hidden = len(recurrent)
    gates, rest = divmod(recurrent.shape[-1], hidden)
    check(
        not rest and gates in _BY_GATES,
        f"{OP}: {name!r} must have a recurrent kernel [hidden, G*hidden] of G = 1, 3 "
        f"or 4 gates, got {list(recurrent.shape)}.",
    )
    kind = _BY_GATES[gates]
    check(
        kind != "GRU" or bool(bias),
        f"{OP}: {name!r} (GRU) must have a bias, which tells whether it has "
        "reset_after; without one give its arrays to from_keras, with reset_after=.",
    )
    is_cudnn = bool(bias) and bias[0].shape == (2 * gates * hidden,)
    kind = f"CuDNN{kind}" if is_cudnn else kind
    config = {**told._asdict(), "reset_after": bool(bias) and bias[0].ndim == 2}
    stored = [array for side in sides for array in side]
    arrays, places = [array_of(a) for a in stored], [a.name for a in stored]
    merge = str(told.merge_mode) if len(sides) > 1 else ""
    return Layer(name, kind, config, arrays, of_keras_2, merge, True, places)


def _text(given: Any) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)
