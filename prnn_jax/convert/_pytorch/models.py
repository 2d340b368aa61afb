"""Whole models of PyTorch: modules, TorchScript, state_dicts, files of these."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax.convert._pytorch.files import read
from prnn_jax.convert._pytorch.graphs import told_by
from prnn_jax.convert._pytorch.modules import (
    CELLS,
    MODULES,
    OP,
    QUANTIZED,
    attribute,
    check_any,
    check_forward,
    check_found,
    check_imported,
    check_readable,
    is_traced,
    kind_of,
    option,
)
from prnn_jax.convert._pytorch.paddle import as_pytorch
from prnn_jax.convert._pytorch.params import layers_of
from prnn_jax.convert._pytorch.weights import (
    dequantized,
    effective,
    keys_of,
    others_of,
    packed_paths,
    whole,
)
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.imported import Imported, check_dtype, joined

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
    module's layout (time first unless it has batch_first=True); so it does of a program
    of `torch.export`, unless that was decomposed. Arrays alone do not
    tell the layout: from a state_dict, x is `[*batch, time, input]`, as everywhere
    here; `net(x, time_major=True)` has it the other way. Dropout between layers is not
    imported; `net(x, dropout=..., key=...)` has it.

    Of a dynamically quantized module the weights are as many floats; what they multiply
    is not rounded, as PyTorch does, to 8 bits. `prnn_jax.prepare(...,
    weights="int8")` makes integers of them again. Of weights that the module makes of
    others, as with weight_norm or pruning, they are what it makes now in evaluation; a
    state_dict may have the parts of these two. Arrays alone do not tell what is
    computed of them: with others than PyTorch's beside them, as a cell with layer norm
    has, they are refused.

    Args:
      model: a `torch.nn.Module`, a TorchScript module, a program of `torch.export`, a
        state_dict (also a checkpoint with one inside), or the path of a file of
        TorchScript, of a state_dict, of safetensors (which needs the package of this
        name), or of NumPy's arrays (`.npz`), of a folder with a `model.safetensors` or
        `pytorch_model.bin`, or of the index of a checkpoint in several files
        (`model.safetensors.index.json`), of a `.nemo` file or an agent of
        Stable-Baselines3, or of a pickle of NumPy's arrays, as `paddle.save` makes of a
        state_dict. What a checkpoint has besides arrays, as hyper-parameters of
        Lightning's, is left out: no code of its packages is run, or needed. In any of
        them an LSTM, GRU or RNN, or a cell of one of these, which becomes a network of
        one layer. Arrays that others have renamed are taken as PyTorch's where they are
        called `w_ih`, `w_hh`, `b_ih`, `b_hh` after the name, as in "enc_w_ih".
      name: which one, where there are several: the module's, such as "encoder.lstm". A
        sequence of names: the layers of a network.
      nonlinearity: of an RNN, where there is no module or program that says it.

    Returns:
      The network, with its parameters as JAX's arrays.

    Raises:
      ValueError: a file is damaged, or of another kind; there is no recurrent
        network, or there are several and `name` says none of them; it has float64
        without `jax_enable_x64`; arrays do not fit together, or have others beside
        them; of arrays of an RNN, the nonlinearity is not given. Says what was found,
        and where.
      FileNotFoundError: there is no such file.
    """
    if isinstance(model, (str, Path)):
        model = read(Path(model))
    return network_in(model, name, nonlinearity)


def network_in(
    model: Any,
    name: str | Sequence[str] | None,
    nonlinearity: Literal["tanh", "relu"] | None = None,
    *,
    is_known: bool = False,
) -> Imported:
    """`import_pytorch` of a model; that is known to have it, whatever is beside it."""
    names: list[Any] = [name]
    if isinstance(name, Sequence) and not isinstance(name, str):
        names = [*name]
    if hasattr(model, "named_modules"):
        return joined(OP, [_of_modules(model, one) for one in names])
    told: dict[str, dict[str, Any]] = {}
    if isinstance(getattr(model, "state_dict", None), Mapping):
        told = told_by(model)  # a program of torch.export
        model = model.state_dict
    check(
        hasattr(model, "items") and hasattr(model, "keys"),
        f"{OP}: model must be a torch.nn.Module, TorchScript, a state_dict, or a path "
        f"to one of these, got {type(model).__name__}.",
    )
    arrays = dict(as_pytorch(OP, named_arrays.flat(model, ".")))
    given = nonlinearity, is_known, told
    return joined(OP, [_of_arrays(arrays, one, *given) for one in names])


# ---- modules -------------------------------------------------------------------------


def _of_modules(model: Any, name: str | None) -> Imported:
    modules = dict(model.named_modules(remove_duplicate=False))
    tied = {id(one): path for path, one in reversed(modules.items())}  # the first path
    found = {path: one for path, one in modules.items() if kind_of(one)}
    found = {p: one for p, one in found.items() if p == name or p == tied[id(one)]}
    for around in [path for path, one in found.items() if kind_of(one) not in MODULES]:
        inside = f"{around}." if around else ""
        found = {
            path: one
            for path, one in found.items()
            if path == around or not path.startswith(inside)
        }
    check_found(found, model, modules)
    path = _chosen(name, {path: kind_of(module) for path, module in found.items()})
    module = found[path]
    where = f"{path or 'the model'} ({kind_of(module)})"
    check_imported(where, kind_of(module))
    _check_whole(dict(module.named_parameters()))
    check_forward(module, where)
    library_name, cell = MODULES[kind_of(module)]
    is_quantized = "quantized" in type(module).__module__
    parent = modules.get(path.rpartition(".")[0]) if path else None
    own = dequantized(module) if is_quantized else effective(module, parent)
    if is_traced(module):  # whose parts, as of weight_norm, are put together as it runs
        made, _ = whole(OP, module.state_dict())
        own |= {name: made[key] for name, key in keys_of(made).get("", {}).items()}
    options: dict[str, Any] = {}
    if not kind_of(module).endswith("Cell"):
        options["time_major"] = not attribute(module, "batch_first", where)
        options["bidirectional"] = bool(attribute(module, "bidirectional", where))
    if cell == "rnn":
        nonlinearity = option(module, "nonlinearity")  # of a cell, or a layer
        mode = getattr(module, "mode", "")
        options["activation"] = nonlinearity or mode.removeprefix("RNN_").lower()
        check(
            options["activation"] in ("tanh", "relu"),
            f"{OP}: {where} does not tell its nonlinearity, tanh or relu; import its "
            "state_dict() with nonlinearity=.",
        )
    hint = f"{where} must have them as parameters, or as tensors"
    return _imported(library_name, cell, own, path, hint, **options)


# ---- arrays --------------------------------------------------------------------------


def _of_arrays(
    given: dict[str, Any],
    name: str | None,
    nonlinearity: str | None,
    is_known: bool,
    told: Mapping[str, Mapping[str, Any]],
) -> Imported:
    arrays, unmade = whole(OP, given)
    for key, parts in unmade.items():
        network = next(iter(keys_of([key])))
        check(
            name is not None and name != network,
            f"{OP}: {key} must be an array; the module makes it of {parts}. Pass the "
            "module itself.",
        )
    networks = {
        path: {own: arrays[key] for own, key in keys.items()}
        for path, keys in keys_of(arrays).items()
    }
    cells = {path: _cell_of(of_path) for path, of_path in networks.items()}
    kinds = {path: library_name for path, (library_name, _) in cells.items()}
    kinds |= dict.fromkeys(packed_paths(given), QUANTIZED)
    inside = [key for key, value in given.items() if hasattr(value, "named_modules")]
    check(
        bool(kinds) or not inside,
        f"{OP}: the model must have arrays of a network; it has whole modules, "
        f"{', '.join(map(repr, inside))}. Pass one of these.",
    )
    check_any(kinds, given)
    path = _chosen(name, kinds)
    check_readable(repr(path), kinds[path])
    others = {} if is_known else others_of(given, path)
    listed = _listed(dict([*others.items()][:4])) + (", ..." if len(others) > 4 else "")
    check(
        not others,
        f"{OP}: {path!r} must have the arrays of PyTorch's layer or cell and no "
        f"others, got {listed} beside them, as of one that computes something else. If "
        "these are no part of it, pass a dict without them.",
    )
    library_name, cell = cells[path]
    check(
        library_name != "unknown",
        f"{OP}: {path!r} must have weight_hh [G*hidden, hidden], of G = 1, 3 or 4 "
        f"gates, got {_listed(networks[path])}; {_SHARDS}.",
    )
    own = (told[key] for key in keys_of(arrays)[path].values() if key in told)
    options: dict[str, Any] = {**next(own, {})}
    nonlinearity = options.get("activation", nonlinearity)
    check(
        cell != "rnn" or nonlinearity in ("tanh", "relu"),
        f"{OP}: nonlinearity must be 'tanh' or 'relu' for the RNN {path!r}, whose "
        f"arrays do not tell it, got {nonlinearity!r}.",
    )
    if cell == "rnn":
        options["activation"] = nonlinearity
    of_path = networks[path]
    options["bidirectional"] = any(key.endswith("_reverse") for key in of_path)
    hint = f"these are of {path!r}; {_SHARDS}"
    return _imported(library_name, cell, of_path, path, hint, **options)


def _listed(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {list(np.shape(one))}" for key, one in arrays.items())


def _cell_of(arrays: Mapping[str, Any]) -> tuple[str, CellName]:
    """Which network it is, by how many gates a weight has."""
    if any(key.startswith("weight_hr") for key in arrays):  # of a projected LSTM alone
        return CELLS[4]
    names = [key for key in arrays if key.startswith("weight_hh")]
    shape = np.shape(arrays[names[0]]) if names else ()
    gates, rest = divmod(shape[0], max(shape[1], 1)) if len(shape) == 2 else (0, 1)
    if rest or gates not in CELLS:
        return "unknown", "lstm"
    return CELLS[gates]


# ---- both ----------------------------------------------------------------------------


def _chosen(name: str | None, kinds: Mapping[str, str]) -> str:
    """The network that is asked for, or the only one there is."""
    listed = ", ".join(f"{path!r} ({kind})" for path, kind in kinds.items())
    if name is None:
        check(
            len(kinds) == 1,
            f"{OP}: name must say which network is meant, one of {listed}; a list of "
            "names makes them the layers of one.",
        )
        (name,) = kinds
    check(name in kinds, f"{OP}: name must be one of {listed}, got {name!r}.")
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
        check_dtype(OP, f"{path}.{key}", value, "model.float() makes it")
    matches = (re.search(r"_l(\d+)", key) for key in arrays)
    numbers = sorted({int(match[1]) for match in matches if match})
    check(
        numbers == list(range(len(numbers))),
        f"{OP}: {path!r} must have the arrays of all layers from 0 on, got those "
        f"of {', '.join(map(str, numbers))}; {hint}.",
    )
    # A cell's arrays have no number of a layer.
    one = {key: f"{key}_l0" for key in arrays if not re.search(r"_l\d+", key)}
    arrays = {one.get(key, key): value for key, value in arrays.items()}
    layers = layers_of(OP, library_name, arrays, hint)
    return Imported(layers=layers, cell=cell, name=path, places=(path,), **options)


def _check_whole(arrays: Mapping[str, Any]) -> None:
    """That no array lies in several processes, where all would have to take part."""
    for key, value in arrays.items():
        check(
            not hasattr(value, "full_tensor"),
            f"{OP}: {key} must be a whole tensor, got a DTensor, as of fully_shard. "
            "Import what get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True)) of torch.distributed gives.",
        )
