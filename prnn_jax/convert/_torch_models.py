"""Whole models of PyTorch: modules, TorchScript, state_dicts, files of these."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax.convert import _arrays
from prnn_jax.convert._imported import Imported, check_dtype, joined
from prnn_jax.convert._pytorch import layers_of
from prnn_jax.convert._torch_files import read
from prnn_jax.convert._torch_weights import (
    dequantized,
    effective,
    is_of_weights,
    keys_of,
    whole,
)

_OP = "import_pytorch"
_CELLS: dict[int, tuple[str, CellName]] = {
    1: ("RNN", "rnn"),
    3: ("GRU", "gru"),
    4: ("LSTM", "lstm"),
}
_MODULES: dict[str, tuple[str, CellName]] = {
    f"{name}{kind}": (name, cell)
    for name, cell in _CELLS.values()
    for kind in ("", "Cell")
}
_NAMES = ", ".join(f"torch.nn.{name}" for name in _MODULES)
#: Where PyTorch has those of them that are imported: of floats, and of weights alone
#: in 8 bits. Others of these names round what they compute, too.
_HOMES = "torch.nn.modules.rnn", "torch.ao.nn.quantized.dynamic.modules.rnn"
_SHARDS = (
    "of a checkpoint in several files, import its folder, or its index "
    "(model.safetensors.index.json)"
)


def import_pytorch(
    model: Any,
    name: str | Sequence[str] | None = None,
    *,
    nonlinearity: Literal["tanh", "relu"] | None = None,
) -> Imported:
    """A recurrent network of PyTorch, from whatever has it.

        net = prnn_jax.convert.import_pytorch(model)    # or "model.safetensors"
        y, states = net(x)

    Of a module, `net` computes what the module does in evaluation, with x in the
    module's layout (time first unless it has batch_first=True). Arrays alone do not
    tell the layout: from a state_dict, x is `[*batch, time, input]`, as everywhere
    here; `net(x, time_major=True)` has it the other way. Dropout between layers is not
    imported; `net(x, dropout=..., key=...)` has it.

    Of a dynamically quantized module the weights are as many floats; what they multiply
    is not rounded, as PyTorch does, to 8 bits. `prnn_jax.prepare(...,
    weights="int8")` makes integers of them again. Of weights that the module makes of
    others, as with weight_norm or pruning, they are what it makes now; a state_dict
    may have the parts of these two.

    Args:
      model: a `torch.nn.Module`, a TorchScript module, a program of `torch.export`, a
        state_dict (also a checkpoint with one inside), or the path of a file of
        TorchScript, of a state_dict, of safetensors (which needs the package of this
        name), or of NumPy's arrays (`.npz`), of a folder with a `model.safetensors` or
        `pytorch_model.bin`, or of the index of a checkpoint in several files
        (`model.safetensors.index.json`). In any of them an LSTM, GRU or RNN, or a
        cell of one of these, which becomes a network of one layer. Arrays that others
        have renamed are taken as PyTorch's where they are called `w_ih`, `w_hh`,
        `b_ih`, `b_hh` after the network's name, as in "enc_w_ih".
      name: which one, where there are several: the module's, such as "encoder.lstm". A
        sequence of names: the layers of a network.
      nonlinearity: of an RNN, where there is no module that says it.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: a file is damaged, or of another kind; there is no recurrent
        network, or there are several and `name` says none of them; it has float64
        without `jax_enable_x64`; arrays do not fit together; of arrays of an RNN, the
        nonlinearity is not given. Says what was found, and where.
      FileNotFoundError: there is no such file.
    """
    if isinstance(model, (str, Path)):
        model = read(Path(model))
    names: list[Any] = [name]
    if isinstance(name, Sequence) and not isinstance(name, str):
        names = [*name]
    if hasattr(model, "named_modules"):
        return joined(_OP, [_of_modules(model, one) for one in names])
    if isinstance(getattr(model, "state_dict", None), Mapping):
        model = model.state_dict  # of a program of torch.export
    check(
        hasattr(model, "items") and hasattr(model, "keys"),
        f"{_OP}: model must be a torch.nn.Module, TorchScript, a state_dict, or a path "
        f"to one of these, got {type(model).__name__}.",
    )
    arrays = _arrays.flat(model, ".")
    return joined(_OP, [_of_arrays(arrays, one, nonlinearity) for one in names])


# ---- modules -------------------------------------------------------------------------


def _of_modules(model: Any, name: str | None) -> Imported:
    modules = dict(model.named_modules())
    found = {path: one for path, one in modules.items() if _kind(one)}
    for around in [path for path, one in found.items() if _kind(one) not in _MODULES]:
        inside = f"{around}." if around else ""
        found = {
            path: one
            for path, one in found.items()
            if path == around or not path.startswith(inside)
        }
    is_script = isinstance(getattr(model, "original_name", None), str)
    check(
        bool(found) or not is_script or any(True for _ in model.parameters()),
        f"{_OP}: the model must have its weights as parameters, and has none, as of "
        "TorchScript that torch.jit.freeze made, which has constants of them. Import "
        "the module that was frozen.",
    )
    if not found and hasattr(model, "state_dict"):
        there = ", ".join(map(repr, keys_of(model.state_dict())))
        check(
            not there,
            f"{_OP}: the model must have one of {_NAMES}, and has none; but arrays as "
            f"these have, of {there}. If they are used so, import its state_dict().",
        )
    path = _chosen(name, {path: _kind(module) for path, module in found.items()})
    module = found[path]
    where = f"{path or 'the model'} ({_kind(module)})"
    check(
        _kind(module) in _MODULES,
        f"{_OP}: {where} must be of {_NAMES}; PyTorch makes such ones of these, to "
        "compute with integers. Import the module of floats that it was made of.",
    )
    _check_whole(dict(module.named_parameters()))
    _check_forward(module, where)
    library_name, cell = _MODULES[_kind(module)]
    is_quantized = "quantized" in type(module).__module__
    parent = modules.get(path.rpartition(".")[0]) if path else None
    own = dequantized(module) if is_quantized else effective(module, parent)
    options: dict[str, Any] = {}
    if not _kind(module).endswith("Cell"):
        options["time_major"] = not _attribute(module, "batch_first", where)
        options["bidirectional"] = bool(_attribute(module, "bidirectional", where))
    if cell == "rnn":
        nonlinearity = getattr(module, "nonlinearity", None)  # of a cell, or a layer
        mode = getattr(module, "mode", "")
        options["activation"] = nonlinearity or mode.removeprefix("RNN_").lower()
        check(
            options["activation"] in ("tanh", "relu"),
            f"{_OP}: {where} does not tell its nonlinearity, tanh or relu; import its "
            "state_dict() with nonlinearity=.",
        )
    hint = f"{where} must have them as parameters, or as tensors"
    return _imported(library_name, cell, own, path, hint, **options)


def _kind(module: Any) -> str:
    """The class of PyTorch that a module is of, or was before TorchScript; or "".

    Of one that is not imported with its package.
    """
    scripted = getattr(module, "original_name", None)
    if isinstance(scripted, str):  # and so may be one of a user's own
        own = [name for name, _ in module.named_parameters(recurse=False)]
        is_one = scripted in _MODULES and any(n.startswith("weight_hh") for n in own)
        return scripted if is_one else ""
    theirs = _class_of(module)
    if theirs is None or theirs.__module__ in _HOMES:
        return "" if theirs is None else theirs.__name__
    return f"{theirs.__module__.removesuffix('.modules.rnn')}.{theirs.__name__}"


def _class_of(module: Any) -> type | None:
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") and kind.__name__ in _MODULES:
            return kind
    return None


def _check_forward(module: Any, where: str) -> None:
    """That a module computes what its class of PyTorch does."""
    theirs = _class_of(module)
    if theirs is None:
        return
    own = getattr(module.forward, "__func__", None)
    check(
        own is getattr(theirs, "forward", None),
        f"{_OP}: {where} has a forward of its own, which is not imported. If only the "
        "weights are meant, import its state_dict().",
    )
    hooks = [*module._forward_hooks.values()]
    hooks += [h for h in module._forward_pre_hooks.values() if not is_of_weights(h)]
    check(
        not hooks,
        f"{_OP}: {where} has hooks that may change what it computes, such as "
        f"{getattr(hooks[0], '__name__', type(hooks[0]).__name__) if hooks else ''}. "
        "Remove them before, or import its state_dict().",
    )


def _attribute(module: Any, name: str, where: str) -> Any:
    value = getattr(module, name, None)
    check(
        value is not None,
        f"{_OP}: {where} does not tell {name}, as modules that torch.jit.trace made do "
        "not; import its state_dict() instead, whose x is [*batch, time, input].",
    )
    return value


# ---- arrays --------------------------------------------------------------------------


def _of_arrays(arrays: dict[str, Any], name: str | None, nonlinearity) -> Imported:
    arrays, unmade = whole(_OP, arrays)
    for key, parts in unmade.items():
        network = next(iter(keys_of([key])))
        check(
            name is not None and name != network,
            f"{_OP}: {key} must be an array; the module makes it of {parts}. Pass the "
            "module itself.",
        )
    networks = {
        path: {own: arrays[key] for own, key in keys.items()}
        for path, keys in keys_of(arrays).items()
    }
    kinds = {path: _kind_of(of_path) for path, of_path in networks.items()}
    path = _chosen(name, {path: kind for path, (kind, _) in kinds.items()})
    library_name, cell = kinds[path]
    check(
        library_name != "unknown",
        f"{_OP}: {path!r} must have weight_hh [G*hidden, hidden], of G = 1, 3 or 4 "
        f"gates, got {_listed(networks[path])}; {_SHARDS}.",
    )
    check(
        cell != "rnn" or nonlinearity in ("tanh", "relu"),
        f"{_OP}: nonlinearity must be 'tanh' or 'relu' for the RNN {path!r}, whose "
        f"arrays do not tell it, got {nonlinearity!r}.",
    )
    options = {"activation": nonlinearity} if cell == "rnn" else {}
    of_path = networks[path]
    options["bidirectional"] = any(key.endswith("_reverse") for key in of_path)
    hint = f"these are of {path!r}; {_SHARDS}"
    return _imported(library_name, cell, of_path, path, hint, **options)


def _listed(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {list(np.shape(one))}" for key, one in arrays.items())


def _kind_of(arrays: Mapping[str, Any]) -> tuple[str, CellName]:
    """Which network it is, by how many gates a weight has."""
    if any(key.startswith("weight_hr") for key in arrays):  # of a projected LSTM alone
        return _CELLS[4]
    names = [key for key in arrays if key.startswith("weight_hh")]
    shape = np.shape(arrays[names[0]]) if names else ()
    gates, rest = divmod(shape[0], max(shape[1], 1)) if len(shape) == 2 else (0, 1)
    if rest or gates not in _CELLS:
        return "unknown", "lstm"
    return _CELLS[gates]


# ---- both ----------------------------------------------------------------------------


def _chosen(name: str | None, kinds: Mapping[str, str]) -> str:
    """The network that is asked for, or the only one there is."""
    listed = ", ".join(f"{path!r} ({kind})" for path, kind in kinds.items())
    check(
        len(kinds) > 0,
        f"{_OP}: the model must have one of {_NAMES}, or their arrays weight_ih, "
        "weight_hh; it has none.",
    )
    if name is None:
        check(
            len(kinds) == 1,
            f"{_OP}: name must say which network is meant, one of {listed}; a list of "
            "names makes them the layers of one.",
        )
        (name,) = kinds
    check(name in kinds, f"{_OP}: name must be one of {listed}, got {name!r}.")
    return name


def _imported(
    library_name: str,
    cell: CellName,
    arrays: dict[str, Any],
    path: str,
    hint: str,
    **options,
) -> Imported:
    _check_whole(arrays)
    for key, value in arrays.items():
        check_dtype(_OP, f"{path}.{key}", value, "model.float() makes it")
    matches = (re.search(r"_l(\d+)", key) for key in arrays)
    numbers = sorted({int(match[1]) for match in matches if match})
    check(
        numbers == list(range(len(numbers))),
        f"{_OP}: {path!r} must have the arrays of all layers from 0 on, got those "
        f"of {', '.join(map(str, numbers))}; {hint}.",
    )
    # A cell's arrays have no number of a layer.
    one = {key: f"{key}_l0" for key in arrays if not re.search(r"_l\d+", key)}
    arrays = {one.get(key, key): value for key, value in arrays.items()}
    layers = layers_of(_OP, library_name, arrays, hint)
    return Imported(layers=layers, cell=cell, name=path, places=(path,), **options)


def _check_whole(arrays: Mapping[str, Any]) -> None:
    """That no array lies in several processes, where all would have to take part."""
    for key, value in arrays.items():
        check(
            not hasattr(value, "full_tensor"),
            f"{_OP}: {key} must be a whole tensor, got a DTensor, as of fully_shard. "
            "Import what get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True)) of torch.distributed gives.",
        )
