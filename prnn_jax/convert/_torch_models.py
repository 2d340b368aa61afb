"""Whole models of PyTorch: modules, TorchScript, state_dicts, files of these."""

import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax.convert import _arrays
from prnn_jax.convert._imported import Imported, check_dtype
from prnn_jax.convert._pytorch import from_pytorch
from prnn_jax.convert._torch_weights import dequantized, effective, is_of_weights, whole

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
#: The arrays of a layer, or of a cell, whole or by a first letter, as in "enc_w_ih";
#: what is before them is a name.
_ARRAY = re.compile(
    r"(?:(.*)[._])?(weight|bias|w|b)(_(?:ih|hh|hr)(?:_l\d+(?:_reverse)?)?)"
)
_WHOLE = {"w": "weight", "b": "bias"}
#: What readers raise of files that are damaged, or of another kind.
_DAMAGED = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, LookupError),
    *(ValueError, TypeError, AttributeError),
)


def import_pytorch(
    model: Any,
    name: str | None = None,
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
        name), or of NumPy's arrays (`.npz`). In any of them an LSTM, GRU or RNN, or a
        cell of one of these, which becomes a network of one layer. Arrays that others
        have renamed are taken as PyTorch's where they are called `w_ih`, `w_hh`,
        `b_ih`, `b_hh` after the network's name, as in "enc_w_ih".
      name: which one, where there are several: the module's, such as "encoder.lstm".
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
    if hasattr(model, "named_modules"):
        return _of_modules(model, name)
    if isinstance(getattr(model, "state_dict", None), Mapping):
        model = model.state_dict  # of a program of torch.export
    check(
        hasattr(model, "items") and hasattr(model, "keys"),
        f"{_OP}: model must be a torch.nn.Module, TorchScript, a state_dict, or a path "
        f"to one of these, got {type(model).__name__}.",
    )
    return _of_arrays(_arrays.flat(model, "."), name, nonlinearity)


# ---- modules -------------------------------------------------------------------------


def _of_modules(model: Any, name: str | None) -> Imported:
    found = {path: one for path, one in model.named_modules() if _kind(one)}
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
    _check_forward(module, where)
    library_name, cell = _MODULES[_kind(module)]
    is_quantized = "quantized" in type(module).__module__
    own = dequantized(module) if is_quantized else effective(module)
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
    return _imported(library_name, cell, own, path, **options)


def _kind(module: Any) -> str:
    """The class of PyTorch that a module is of, or was before TorchScript; or ""."""
    scripted = getattr(module, "original_name", None)
    if isinstance(scripted, str):  # and so may be one of a user's own
        own = [name for name, _ in module.named_parameters(recurse=False)]
        is_one = scripted in _MODULES and any(n.startswith("weight_hh") for n in own)
        return scripted if is_one else ""
    theirs = _class_of(module)
    return "" if theirs is None else theirs.__name__


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
        cell != "rnn" or nonlinearity in ("tanh", "relu"),
        f"{_OP}: nonlinearity must be 'tanh' or 'relu' for the RNN {path!r}, whose "
        f"arrays do not tell it, got {nonlinearity!r}.",
    )
    options = {"activation": nonlinearity} if cell == "rnn" else {}
    of_path = networks[path]
    options["bidirectional"] = any(key.endswith("_reverse") for key in of_path)
    return _imported(library_name, cell, of_path, path, **options)


def keys_of(arrays: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of each network by its name, the key of each array by PyTorch's name of it."""
    networks: dict[str, dict[str, str]] = {}
    for key in arrays:
        match = _ARRAY.fullmatch(key)
        if match:
            whole = _WHOLE.get(match[2], match[2]) + match[3]
            networks.setdefault(match[1] or "", {})[whole] = key
    return networks


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


def read(path: Path, op: str = _OP) -> Any:
    """What a file holds; `op` begins the messages."""
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (*_DAMAGED, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"{op}: {path} must be a file of np.savez, of arrays alone: {error}"
            ) from error
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.flax import load_file  # JAX's arrays, bfloat16 too
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{op}: {path} needs the package safetensors: pip install safetensors."
            ) from error
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"{op}: {path} must be a file of safetensors: {error}"
            ) from error
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ImportError(f"{op}: {path} needs PyTorch: pip install torch.") from error
    check(
        path.suffix != ".pt2",
        f"{op}: {path} is a program of torch.export; pass torch.export.load(path).",
    )
    path.open("rb").close()  # or an OSError, which below says that it is damaged
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                names = file.namelist()
            if any(name.endswith("/constants.pkl") for name in names):
                return torch.jit.load(path, map_location="cpu")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (*_DAMAGED, zipfile.BadZipFile, OSError) as error:
        raise ValueError(
            f"{op}: {path} must be a state_dict of torch.save, or a file of "
            "torch.jit.save or safetensors. Of one that has more in it, and that you "
            f"trust, pass torch.load(path, weights_only=False). PyTorch says: {error}"
        ) from error


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
            f"{_OP}: name must say which network is meant, one of {listed}.",
        )
        (name,) = kinds
    check(name in kinds, f"{_OP}: name must be one of {listed}, got {name!r}.")
    check(
        kinds[name] != "unknown",
        f"{_OP}: {name!r} must have weight_hh [G*hidden, hidden], of G = 1, 3 or 4 "
        "gates.",
    )
    return name


def _imported(
    library_name: str, cell: CellName, arrays: dict[str, Any], path: str, **options
) -> Imported:
    for key, value in arrays.items():
        check_dtype(_OP, f"{path}.{key}", value, "model.float() makes it")
    matches = (re.search(r"_l(\d+)", key) for key in arrays)
    numbers = sorted({int(match[1]) for match in matches if match})
    check(
        numbers == list(range(len(numbers))),
        f"{_OP}: {path!r} must have the arrays of all layers from 0 on, got those "
        f"of {', '.join(map(str, numbers))}.",
    )
    # A cell's arrays have no number of a layer.
    one = {key: f"{key}_l0" for key in arrays if not re.search(r"_l\d+", key)}
    arrays = {one.get(key, key): value for key, value in arrays.items()}
    layers = from_pytorch(library_name, arrays)
    return Imported(layers=layers, cell=cell, name=path, places=(path,), **options)
