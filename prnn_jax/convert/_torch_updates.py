"""Networks back into models of PyTorch: modules, state_dicts, files of these."""

import copy
import json
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._arrays import flat
from prnn_jax.convert._imported import Imported
from prnn_jax.convert._pytorch import to_pytorch
from prnn_jax.convert._torch_models import import_pytorch, keys_of, read
from prnn_jax.convert._updates import (
    changed,
    check_fits,
    check_network,
    destination,
    in_dtype,
)

_OP = "update_pytorch"


def update_pytorch(
    model: Any, net: Imported, name: str | None = None, *, to: Any = None
) -> Any:
    """Puts a network back into the PyTorch model that it came from: import's inverse.

        net = prnn_jax.convert.import_pytorch(module)
        net = trained(net)                                   # in JAX
        prnn_jax.convert.update_pytorch(module, net)

    All else of the model stays as it is, and so does what was not trained, to the last
    bit. Arrays take the dtype and the device of those in whose places they come.

    Args:
      model: what `import_pytorch` takes. A module, of TorchScript too, is changed in
        place; of a state_dict (with whatever it has around the network) comes a new
        one, which shares all other tensors with the given one. Tensors that are one,
        as those of tied modules, stay one.
      net: as imported, with other numbers: what optax or `jax.tree.map` make of it, or
        `dataclasses.replace(net, layers=layers)`.
      name: the network's place in this model, if it is another than `net.name`, where
        it was found: "encoder.lstm" of a module that was imported from a checkpoint
        with "model.encoder.lstm".
      to: where the new file is written, if model is a path; of the same kind.

    Returns:
      The module that was given, or the new state_dict; of a path `to`, as a Path.

    Raises:
      ValueError: the model has no such network (says so as `import_pytorch`), or one
        of another cell, activation, or shape; a module's weights are in 8 bits, or
        made of others, as by weight_norm and pruning; `to` is missing, or given for an
        object.
      FileNotFoundError: there is no such file.
    """
    check_network(_OP, net)
    to = destination(_OP, model, to)
    name = net.name if name is None else name
    if to is None:
        return _updated(model, net, name)
    path = Path(model)
    loaded = read(path)
    if path.suffix == ".safetensors":
        new = _new_arrays(loaded, net, name)
        new = {key: in_dtype(a, loaded[key].dtype) for key, a in new.items()}
        _write_safetensors(path, to, new)
        return to
    made = _updated(loaded, net, name)
    if path.suffix == ".npz":
        with to.open("wb") as file:
            np.savez(file, **made)
    elif hasattr(made, "named_modules"):
        made.save(str(to))
    else:
        import torch

        torch.save(made, to)
    return to


def _updated(model: Any, net: Imported, name: str) -> Any:
    if not hasattr(model, "named_modules"):
        return _replaced(model, _new_tensors(model, _new_arrays(model, net, name)))
    import torch

    module = dict(model.named_modules()).get(name)
    own = {} if module is None else dict(module.named_parameters())
    arrays = _new(import_pytorch(model, name), net)
    # Of all before any is written.
    places: dict[str, Any] = {
        key: own.get(key, own.get(key.removesuffix("_l0"))) for key in arrays
    }
    for key, parameter in places.items():
        check(
            parameter is not None,
            f"{_OP}: {name or 'the model'} must have the parameter {key}, which it "
            "keeps in another form, such as 8 bits, or a weight_norm; update the "
            "module that it was made of.",
        )
    with torch.no_grad():
        for key, array in arrays.items():
            places[key].copy_(torch.from_numpy(_plain(array)))
    return model


def _new(there: Imported, net: Imported) -> dict[str, np.ndarray]:
    """Arrays by PyTorch's names that are not what the model has."""
    check_fits(_OP, net, there)
    cell = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}[net.cell]
    return changed(*(to_pytorch(cell, one.layers) for one in (net, there)))


def _new_arrays(model: Any, net: Imported, name: str) -> dict[str, np.ndarray]:
    """The same by the keys of a state_dict, with points between those of its parts."""
    nonlinearity: Any = net.activation if net.cell == "rnn" else None
    there = import_pytorch(model, name, nonlinearity=nonlinearity)
    keys = keys_of(flat(model, "."))[name]
    keys |= {f"{whole}_l0": key for whole, key in keys.items()}  # those of a cell
    return {keys[whole]: array for whole, array in _new(there, net).items()}


def _new_tensors(model: Mapping, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """By the keys of a state_dict what is new, of each the kind and dtype it had.

    Tensors that share memory, as those of tied modules do, are one in two places: they
    do so after it too, in a new memory, which has the new numbers.
    """
    tree = flat(model, ".")
    new = {key: _like(tree[key], array) for key, array in arrays.items()}
    views: dict[str, Any] = {}
    memories: dict[int, Any] = {}  # by where the old one begins
    for key in arrays:
        if (storage := _storage(tree[key])) is not None:
            memories.setdefault(storage.data_ptr(), storage.clone())
    for key, value in tree.items():
        storage = _storage(value)
        if storage is not None and storage.data_ptr() in memories:
            memory = memories[storage.data_ptr()]
            where = value.storage_offset(), value.shape, value.stride()
            view = value.detach().new_empty(0).set_(memory, *where)
            if key in arrays:
                view.copy_(new[key])
            views[key] = view
    for key in arrays:
        view = views.get(key, new[key])
        check(
            view is new[key] or bool(((view == new[key]) | (view != view)).all()),
            f"{_OP}: {key} shares its memory with another array of the network in the "
            "model, and they must have the same numbers.",
        )
    return new | views


def _storage(value: Any) -> Any:
    """The memory of a tensor that has one; None of all else."""
    is_dense = str(getattr(value, "layout", "")) == "torch.strided"
    is_tensor = is_dense and hasattr(value, "untyped_storage")
    return value.untyped_storage() if is_tensor and value.numel() else None


def _replaced(tree: Mapping, arrays: Mapping[str, Any], prefix: str = "") -> Any:
    """A tree of mappings with other arrays in the places of some."""
    new = copy.copy(tree) if isinstance(tree, MutableMapping) else dict(tree)
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            new[key] = _replaced(value, arrays, f"{path}.")
        elif path in arrays:
            new[key] = arrays[path]
    return new


def _like(value: Any, array: np.ndarray) -> Any:
    """An array of the kind, dtype and device of another."""
    if isinstance(value, np.ndarray):
        return in_dtype(array, value.dtype)
    if not hasattr(value, "detach"):
        return jnp.asarray(array, value.dtype)
    import torch

    return torch.from_numpy(_plain(array)).to(value.device, value.dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """In a dtype that PyTorch takes from NumPy, which bfloat16 is not."""
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def _write_safetensors(path: Path, to: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The file with other bytes in the places of some tensors.

    Eight bytes say how long the JSON after them is, which says where in the rest each
    tensor lies.
    """
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for key, array in arrays.items():
        first, end = (start + offset for offset in header[key]["data_offsets"])
        check(
            array.nbytes == end - first,
            f"{_OP}: {key} of {path} is {header[key]['dtype']}, which JAX has with "
            "jax_enable_x64 only.",
        )
        content[first:end] = array.tobytes()
    to.write_bytes(content)
