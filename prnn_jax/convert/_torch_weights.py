"""Weights that PyTorch makes of others, of modules and of state_dicts."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from prnn_jax.convert import _arrays

#: What is kept of a layer's own array, maybe under the names that a parametrization or
#: a pruning gives it.
_KEPT = re.compile(
    r"(?:parametrizations\.)?((?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)"
    r"(?:\..+|_orig|_mask|_g|_v|_u)?"
)
#: The parts of one in a state_dict: of both weight_norms, and of a pruning.
_PART = re.compile(
    r"(.*?)(?:parametrizations\.)?((?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)"
    r"(_g|_v|_u|_orig|_mask|\.original\d?)"
)
_NORMED = {"_g", "_v"}, {".original0", ".original1"}


def effective(module: Any) -> dict[str, Any]:
    """A layer's own arrays as it computes with them, and no others that it has.

    Those of a weight_norm, of a pruning or another parametrization are attributes.
    The older of these work them out before each call of the module: as here.
    """
    matches = map(_KEPT.fullmatch, module.state_dict())
    own = {match[1]: getattr(module, match[1]) for match in matches if match}
    for hook in getattr(module, "_forward_pre_hooks", {}).values():
        if hasattr(hook, "apply_mask"):
            own[hook._tensor_name] = hook.apply_mask(module)
        elif type(hook).__name__ == "WeightNorm":
            own[hook.name] = hook.compute_weight(module)
        elif type(hook).__name__ == "SpectralNorm":
            own[hook.name] = hook.compute_weight(module, do_power_iteration=False)
    return {name: array.detach() for name, array in own.items()}


def is_of_weights(hook: Any) -> bool:
    """Whether a hook only makes weights: those of `effective`."""
    is_pruning = hasattr(hook, "apply_mask")  # of torch.nn.utils.prune
    return is_pruning or type(hook).__name__ in ("WeightNorm", "SpectralNorm")


def dequantized(module: Any) -> dict[str, Any]:
    """The weights of a dynamically quantized module as the numbers they stand for."""
    weights = {
        name: weight.dequantize() if weight.is_quantized else weight.float()
        for name, weight in module.get_weight().items()
    }
    return {**weights, **module.get_bias()}


def whole(op: str, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A state_dict with the arrays of which it has the parts.

    Returns:
      It, and by the name of each array that only the module can make its parts.
    """
    parts: dict[str, dict[str, str]] = {}
    for key in arrays:
        if match := _PART.fullmatch(key):
            parts.setdefault(match[1] + match[2], {})[match[3]] = key
    made, unmade = dict(arrays), {}
    for name, keys in parts.items():
        given = [np.asarray(_arrays.as_array(op, k, arrays[k])) for k in keys.values()]
        by_part = dict(zip(keys, given, strict=True))
        array = None
        if keys.keys() == {"_orig", "_mask"}:
            array = by_part["_orig"] * by_part["_mask"].astype(by_part["_orig"].dtype)
        elif set(keys) in _NORMED:
            array = _normed(*(by_part[part] for part in sorted(keys)))
        if array is None:
            unmade[name] = ", ".join(keys.values())
        else:
            made[name] = array
    return made, unmade


def _normed(g: np.ndarray, v: np.ndarray) -> np.ndarray | None:
    """g v / |v|, the norm along axes of which g has one; None if they do not fit."""
    if g.ndim not in (0, v.ndim) or any(
        a not in (1, b) for a, b in zip(g.shape, v.shape, strict=False)
    ):
        return None
    axes = tuple(n for n in range(v.ndim) if g.ndim == 0 or g.shape[n] == 1)
    wide = v.astype(np.promote_types(v.dtype, np.float32))
    norm = np.sqrt((wide**2).sum(axes, keepdims=True))
    return (g.astype(wide.dtype) * (wide / norm)).astype(v.dtype)
