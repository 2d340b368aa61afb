"""The state_dicts of PaddlePaddle, whose layers have PyTorch's arrays, twice.

Once under PyTorch's names, and once under those of their cells, such as
"0.cell_bw.weight_ih" beside "weight_ih_l0_reverse". What projects h has its axes
exchanged, and only a cell's name; from there on PyTorch's names are of other arrays.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._shared.named_arrays import as_array

_OF_CELL = re.compile(
    r"((?:.*\.)?)(\d+)\.cell(?:_fw|(_bw))?\.(weight_ih|weight_hh|bias_ih|bias_hh|weight_ho)"
)
#: Which of Paddle's parameters each of them is: names, no arrays.
_NAMES = re.compile(r"(?:.*\.)?StructuredToParameterName@@(?:\..*)?")


def cell_keys(keys: Iterable[str]) -> dict[str, str]:
    """By PyTorch's key of each array of a layer of Paddle's the key of its cell's."""
    keys = {key for key in keys if not _NAMES.fullmatch(key)}
    found = {}
    for match in filter(None, map(_OF_CELL.fullmatch, sorted(keys))):
        prefix, layer, reverse, own = match.groups()
        of_layer = f"_l{layer}{'_reverse' if reverse else ''}"
        # Of a layer, and no cell alone; but of what projects h it has the cell's name.
        is_twice = f"{prefix}{'weight_ih' if own == 'weight_ho' else own}{of_layer}"
        if is_twice in keys:
            own = own.replace("_ho", "_hr")
            found[f"{prefix}{own}{of_layer}"] = match[0]
    return found


def as_pytorch(op: str, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state_dict with each array once, by PyTorch's name; of others than Paddle it.

    Where the two of an array are not the same numbers, both stay.
    """
    made = {k: v for k, v in arrays.items() if not _NAMES.fullmatch(k)}
    twice = cell_keys(made)
    projects = _projecting(twice)
    for key, of_cell in twice.items():
        array = made[of_cell]
        check(
            str(getattr(array, "dtype", "")) not in ("uint16", "paddle.bfloat16"),
            f"{op}: {of_cell} must have a floating dtype, got {array.dtype}; "
            "uint16 is how PaddlePaddle saves bfloat16; pass a state_dict with "
            "numpy.asarray(array).view(jnp.bfloat16) in the place of each such array.",
        )
        if "weight_hr" in key:
            array = np.asarray(as_array(op, of_cell, array)).T
        elif _network(key) not in projects and not _same(op, made[key], array):
            continue
        made[key] = array
        del made[of_cell]
    return made


def as_paddle(
    op: str, new: Mapping[str, np.ndarray], arrays: Iterable[str]
) -> dict[str, np.ndarray]:
    """What changes of such a state_dict, under both of the names that it has there."""
    twice = cell_keys(arrays)
    projects = _projecting(twice)
    for key in new:
        check(
            key not in twice or _network(key) not in projects,
            f"{op}: a state_dict of PaddlePaddle must be of layers that do not project "
            f"h, got {twice.get(key)}: of such layers it gives arrays each other's "
            "names.",
        )
    return {**new, **{twice[key]: new[key] for key in new if key in twice}}


def _network(key: str) -> str:
    """Its name, of PyTorch's key of an array."""
    return key.rpartition(".")[0]


def _projecting(keys: Iterable[str]) -> set[str]:
    """The networks that project h."""
    return {_network(key) for key in keys if "weight_hr" in key}


def _same(op: str, *arrays: Any) -> bool:
    """Whether two have the same numbers."""
    one, other = (np.asarray(as_array(op, "", array)) for array in arrays)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
