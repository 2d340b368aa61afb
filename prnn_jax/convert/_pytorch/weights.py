"""Weights by their names, and those that PyTorch makes of others."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from prnn_jax.convert._shared import named_arrays

_OWN = r"((?:weight|bias)_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)"
#: The arrays of a layer, or of a cell, whole or by a first letter, as in "enc_w_ih";
#: what is before them is a name.
_ARRAY = re.compile(
    r"(?:(.*)[._])?(weight|bias|w|b)(_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)"
)
_WHOLE = {"w": "weight", "b": "bias"}
#: What is kept of a layer's own array, maybe under the names that a parametrization or
#: a pruning gives it.
_KEPT = re.compile(rf"(?:parametrizations\.)?{_OWN}(?:\..+|_orig|_mask|_g|_v|_u|_raw)?")
#: The parts of one in a state_dict: of both weight_norms, and of a pruning.
_PART = re.compile(
    rf"(.*?)(?:parametrizations\.)?{_OWN}(_g|_v|_u|_orig|_mask|\.original\d?)"
)
#: Of which a wrapper that drops weights, as fastai's WeightDropout, makes one: in
#: evaluation it is the same.
_RAW = re.compile(rf"(?:(.*)\.)?{_OWN}_raw")
#: What a dynamically quantized layer, or a cell, has instead of arrays.
_PACKED = re.compile(r"(?:(.*)\.)?(?:_all_weight_values\.\d+\.param|_packed_weight_.h)")
#: The array that each sLSTM layer of an xLSTM has, in its cell or, of TiRex-2, itself.
_SLSTM = re.compile(r"(?:(.*?)\.)?(?:slstm_cell\.)?_recurrent_kernel_")
_NORMED = {"_g", "_v"}, {".original0", ".original1"}


def keys_of(arrays: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of each network by its name, the key of each array by PyTorch's name of it."""
    networks: dict[str, dict[str, str]] = {}
    for key in arrays:
        match = _ARRAY.fullmatch(key)
        if match and not _PACKED.fullmatch(key):
            whole = _WHOLE.get(match[2], match[2]) + match[3]
            networks.setdefault(match[1] or "", {})[whole] = key
    return networks


def packed_paths(arrays: Iterable[str]) -> list[str]:
    """The networks in a state_dict that are dynamically quantized."""
    found = (match[1] or "" for match in map(_PACKED.fullmatch, arrays) if match)
    return [*dict.fromkeys(found)]


def slstm_paths(arrays: Iterable[str]) -> list[str]:
    """The sLSTM layers in a state_dict, by the names that `import_xlstm` takes."""
    return [match[1] or "" for match in map(_SLSTM.fullmatch, arrays) if match]


def others_of(arrays: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What a state_dict has in the place of a network beside the network's arrays.

    Integers, which count steps, are nothing; nor is what has no such place, because it
    has a name of another's choice, such as "enc_w_ih" or "w_ih".
    """
    prefix = f"{path}." if path else ""
    own = keys_of(arrays).get(path, {})
    if any(key != f"{prefix}{name}" for name, key in own.items()):
        return {}
    return {
        key: value
        for key, value in arrays.items()
        if key.startswith(prefix)
        and not _KEPT.fullmatch(key.removeprefix(prefix))
        and re.search("float|complex", str(getattr(value, "dtype", "")))
    }


def kept_keys_of(arrays: Iterable[str], path: str) -> dict[str, str]:
    """The same of one network, of those arrays that are not kept in parts."""
    arrays = list(arrays)
    keys = {**keys_of(arrays).get(path, {}), **_raw_keys(arrays).get(path, {})}
    made = _parts(arrays)
    return {own: key for own, key in keys.items() if key not in made}


def effective(module: Any, parent: Any = None) -> dict[str, Any]:
    """A layer's own arrays as it computes with them, and no others that it has.

    Those of a weight_norm, of a pruning or another parametrization are attributes, and
    so may be others. The older of these work them out before each call of the module:
    as here.
    """
    import torch

    names = [*module.state_dict(), *(n for n, v in vars(module).items() if _is(v))]
    matches = map(_KEPT.fullmatch, names)
    kept = dict.fromkeys(match[1] for match in matches if match)
    made = getattr(module, "parametrizations", None)
    made = made if isinstance(made, torch.nn.ModuleDict) else torch.nn.ModuleDict()
    with torch.no_grad(), _in_evaluation(made):
        own = {n: made[n]() if n in made else getattr(module, n, None) for n in kept}
        for hook in getattr(module, "_forward_pre_hooks", {}).values():
            if hasattr(hook, "apply_mask"):
                own[hook._tensor_name] = hook.apply_mask(module)
            elif type(hook).__name__ == "WeightNorm":
                own[hook.name] = hook.compute_weight(module)
            elif type(hook).__name__ == "SpectralNorm":
                own[hook.name] = hook.compute_weight(module, do_power_iteration=False)
    own |= raw(module, parent)
    return {name: array.detach() for name, array in own.items() if array is not None}


@contextlib.contextmanager
def _in_evaluation(parametrizations: Any) -> Iterator[None]:
    """With these modules in evaluation, where in training they draw or change numbers.

    Their flags alone are set: a method `train` of their own may do more.
    """
    flags = [(one, one.training) for one in parametrizations.modules()]
    try:
        for one, _ in flags:
            one.training = False
        yield
    finally:
        for one, was_training in flags:
            one.training = was_training


def raw(module: Any, parent: Any = None) -> dict[str, Any]:
    """The parameters that a wrapper, the module's parent, drops some weights of."""
    owners = [one for one in (parent, module) if one is not None]
    pairs = [pair for one in owners for pair in one.named_parameters(recurse=False)]
    matches = ((_RAW.fullmatch(name), parameter) for name, parameter in pairs)
    return {match[2]: parameter for match, parameter in matches if match}


def _is(value: Any) -> bool:
    """Whether it is a tensor."""
    return hasattr(value, "detach")


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
    parts = _parts(arrays)
    made, unmade = dict(arrays), {}
    for name, keys in parts.items():
        given = [
            np.asarray(named_arrays.as_array(op, k, arrays[k])) for k in keys.values()
        ]
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
    for path, keys in _raw_keys(arrays).items():
        made |= {f"{path}.{own}".lstrip("."): arrays[key] for own, key in keys.items()}
    return made, unmade


def _parts(arrays: Iterable[str]) -> dict[str, dict[str, str]]:
    """By the key of each array that is kept in parts the keys of these."""
    parts: dict[str, dict[str, str]] = {}
    for key in arrays:
        if match := _PART.fullmatch(key):
            parts.setdefault(match[1] + match[2], {})[match[3]] = key
    return parts


def _raw_keys(arrays: Iterable[str]) -> dict[str, dict[str, str]]:
    """As `keys_of`, of the arrays that a wrapper drops weights of.

    They are its own or those of the module in it, whose name is whatever it may be.
    """
    arrays = list(arrays)
    networks: dict[str, dict[str, str]] = {}
    paths = [*keys_of(arrays)]
    for match in filter(None, map(_RAW.fullmatch, arrays)):
        around = match[1] or ""
        near = [
            path
            for path in paths
            if path == around or (path and path.rpartition(".")[0] == around)
        ]
        if len(near) == 1:
            networks.setdefault(near[0], {})[match[2]] = match[0]
    return networks


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
