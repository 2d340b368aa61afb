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

_OF_CELL = re.compile(
    r"((?:.*\.)?)(\d+)\.cell(?:_fw|(_bw))?\.(weight_ih|weight_hh|bias_ih|bias_hh|weight_ho)"
)
#: Which of Paddle's parameters each of them is: names, no arrays.
_NAMES = "StructuredToParameterName@@"


def cell_keys(keys: Iterable[str]) -> dict[str, str]:
    """By PyTorch's key of each array of a layer of Paddle's the key of its cell's."""
    keys = list(keys)
    found = {}
    for match in filter(None, map(_OF_CELL.fullmatch, keys)):
        prefix, layer, reverse, own = match.groups()
        of_layer = f"_l{layer}{'_reverse' if reverse else ''}"
        if f"{prefix}weight_ih{of_layer}" in keys:  # of a layer, and no cell alone
            own = own.replace("_ho", "_hr")
            found[f"{prefix}{own}{of_layer}"] = match[0]
    return found


def as_pytorch(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state_dict with each array once, by PyTorch's name; of others than Paddle it.

    Where the two of an array are not the same numbers, both stay.
    """
    made = {k: v for k, v in arrays.items() if not k.startswith(_NAMES)}
    twice = cell_keys(made)
    projects = any("weight_hr" in key for key in twice)
    for key, of_cell in twice.items():
        array = made[of_cell]
        if "weight_hr" in key:
            array = np.swapaxes(np.asarray(array), 0, 1)
        elif not projects and not np.array_equal(made[key], array):
            continue
        made[key] = array
        del made[of_cell]
    return made


def as_paddle(
    op: str, new: Mapping[str, np.ndarray], arrays: Iterable[str]
) -> dict[str, np.ndarray]:
    """What changes of such a state_dict, under both of the names that it has there."""
    twice = cell_keys([key for key in arrays if not key.startswith(_NAMES)])
    for key in twice:
        check(
            "weight_hr" not in key or not new,
            f"{op}: a state_dict of PaddlePaddle must be of layers that do not project "
            f"h, got {twice[key]}: of such layers it gives arrays each other's names.",
        )
    return {**new, **{twice[key]: new[key] for key in new if key in twice}}
