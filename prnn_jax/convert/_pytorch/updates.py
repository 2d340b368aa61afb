"""Networks back into models of PyTorch: modules, state_dicts, files of these."""

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._pytorch.archives import repacked, weights_in
from prnn_jax.convert._pytorch.files import file_in, read, shards
from prnn_jax.convert._pytorch.models import network_in
from prnn_jax.convert._pytorch.modules import is_traced
from prnn_jax.convert._pytorch.paddle import as_paddle, as_pytorch
from prnn_jax.convert._pytorch.params import to_pytorch
from prnn_jax.convert._pytorch.safetensors import write_safetensors
from prnn_jax.convert._pytorch.weights import kept_keys_of, raw
from prnn_jax.convert._shared.imported import Imported, joined
from prnn_jax.convert._shared.named_arrays import as_array, flat
from prnn_jax.convert._shared.updates import (
    changed,
    check_network,
    destination,
    fitted,
    in_dtype,
)

_OP = "update_pytorch"


def update_pytorch(
    model: Any,
    net: Imported,
    name: str | Sequence[str] | None = None,
    *,
    to: Any = None,
) -> Any:
    """Puts a network back into the PyTorch model that it came from: import's inverse.

        net = prnn_jax.convert.import_pytorch(module)
        net = trained(net)                                   # in JAX
        prnn_jax.convert.update_pytorch(module, net)

    All else of the model stays as it is, and so does what was not trained, to the last
    bit. Arrays take the dtype and the device of those in whose places they come.

    Args:
      model: what `import_pytorch` takes. A module, of TorchScript too, is changed in
        place, also a traced one, of which the state_dict was imported; so is a program
        of `torch.export`, which gets tensors of its own where it had those of a module.
        Of a state_dict (with whatever it has around the network) comes a new one, which
        shares all other tensors with the given one. Tensors that are one, as those of
        tied modules, stay one; Paddle's become NumPy's, which its layers take.
      net: as imported, with other numbers: what optax or `jax.tree.map` make of it, or
        `dataclasses.replace(net, layers=layers)`.
      name: the network's place in this model, or those of its layers, if they are
        others than `net.places`, where it was found: "encoder.lstm" of a module that
        was imported from a checkpoint with "model.encoder.lstm".
      to: where the new file is written, if model is a path; of the same kind. Of a
        folder, a new one, with all that the old one has; of an index of files, an index
        in another folder, which gets the files, too.

    Returns:
      The module or program that was given, or the new state_dict; of a path `to`, as a
      Path.

    Raises:
      ValueError: the model has no such network (says so as `import_pytorch`), or one
        of another cell, activation, or shape; a module's weights are in 8 bits, or
        made of others, as by weight_norm and pruning; `to` is missing, or given for an
        object.
      FileNotFoundError: there is no such file.
    """
    check_network(_OP, net)
    places = net.places or (net.name,)
    names = places if name is None else (name,) if isinstance(name, str) else name
    if isinstance(model, (str, os.PathLike)):
        return _updated_file(Path(model), net, names, to)
    destination(_OP, model, to)
    return _updated(model, net, names)


def _updated_file(path: Path, net: Imported, names: Sequence[str], to: Any) -> Path:
    to = _new_folder(path, to) if path.is_dir() else destination(_OP, path, to)
    file = file_in(path, _OP)
    loaded = read(file, is_copied=True)
    if hasattr(loaded, "named_modules"):
        _updated(loaded, net, names).save(str(to))
        return to
    arrays = _new_arrays(loaded, net, names)
    target = to
    if path.is_dir():
        shutil.copytree(path, to)
        target = to / file.name
    files = shards(file, _OP)
    if files != [file]:
        check(
            target.parent.absolute() != file.parent.absolute()
            and target.name == file.name,
            f"{_OP}: to must be {file.name} in another folder than {file.parent}, "
            f"whose files stay as they are, got {target}.",
        )
        shutil.copyfile(file, target)
    for one in files:
        is_alone = files == [file]
        copied = target if is_alone else target.parent / one.name
        own = loaded if is_alone else read(one, is_copied=True)
        _write(one, copied, own, arrays)
    return to


def _new_folder(path: Path, to: Any) -> Path:
    new = Path(path if to is None else to)
    check(
        not new.exists() and path.absolute() not in new.absolute().parents,
        f"{_OP}: to must be the path of a new folder, which gets a copy of {path}, got "
        f"{to!r}.",
    )
    return new


def _write(path: Path, to: Path, loaded: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """The file with those of the arrays that it has in the places of the old ones."""
    keys = flat(loaded, ".").keys()
    arrays = {key: array for key, array in arrays.items() if key in keys}
    if not arrays:
        shutil.copyfile(path, to)
        return
    if path.suffix == ".safetensors":
        arrays = {key: in_dtype(a, loaded[key].dtype) for key, a in arrays.items()}
        write_safetensors(path, to, arrays)
        return
    made = _replaced(loaded, _new_tensors(loaded, arrays))
    if path.suffix == ".npz":
        with to.open("wb") as file:
            np.savez(file, **made)
        return
    import torch

    inside = weights_in(path)
    if inside is None:
        torch.save(made, to)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(made, file := Path(folder, "weights"))
        repacked(path, to, inside, file)


def _updated(model: Any, net: Imported, names: Sequence[str]) -> Any:
    if not hasattr(model, "named_modules"):
        is_program = isinstance(getattr(model, "state_dict", None), Mapping)
        tree = model.state_dict if is_program else model
        check(
            isinstance(tree, Mapping),
            f"{_OP}: model must be what import_pytorch takes, got "
            f"{type(model).__name__}.",
        )
        new = _new_tensors(tree, _new_arrays(model, net, names))
        if not is_program:
            return _replaced(tree, new)
        import torch

        for key, tensor in new.items():
            is_parameter = isinstance(tree[key], torch.nn.Parameter)
            options = {"requires_grad": tree[key].requires_grad}
            tree[key] = (
                torch.nn.Parameter(tensor, **options) if is_parameter else tensor
            )
        return model
    import torch

    places = [*_places(model, net, names)]  # all are found before any is written
    for parameter, array in places:
        # Only there may those be written that were made in inference mode.
        with torch.inference_mode(parameter.is_inference()), torch.no_grad():
            parameter.copy_(torch.from_numpy(_plain(array)))
    return model


def _places(
    model: Any, net: Imported, names: Sequence[str]
) -> Iterator[tuple[Any, np.ndarray]]:
    """The parameters of a module that are to change, and what they become."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if any(is_traced(modules[name]) for name in names if name in modules):
        tree = model.state_dict()  # all that it tells; its tensors are the parameters
        yield from ((tree[k], a) for k, a in _new_arrays(tree, net, names).items())
        return
    shared = _Shared()
    for name, arrays, there in _new(model, net, names):
        module, own_changed = modules[name], changed(arrays, there)
        own = dict(module.named_parameters(remove_duplicate=False))
        own |= raw(module, modules.get(name.rpartition(".")[0]) if name else None)
        for key, array in arrays.items():
            parameter = own.get(key, own.get(key.removesuffix("_l0")))
            shared.check(f"{name}.{key}" if name else key, parameter, array)
            if key in own_changed:
                _check_kept(parameter is not None, name, key)
                yield parameter, array


class _Shared:
    """What tensors that are one are to become, which must be one, too."""

    def __init__(self):
        self._arrays: dict[Any, np.ndarray] = {}

    def check(self, key: str, tensor: Any, array: np.ndarray) -> None:
        storage = _storage(tensor)
        if storage is not None:
            where = tensor.storage_offset(), tensor.shape, tensor.stride()
            other = self._arrays.setdefault((storage.data_ptr(), *where), array)
            _check_agrees(np.array_equal(other, array, equal_nan=True), key)


def _check_agrees(condition: bool, key: str) -> None:
    check(
        condition,
        f"{_OP}: {key} shares its memory with another array of the network in the "
        "model, and they must have the same numbers.",
    )


def _check_kept(condition: bool, name: str, key: str) -> None:
    check(
        condition,
        f"{_OP}: {name or 'the model'} must have the parameter {key}, which it keeps "
        "in another form, such as 8 bits, or a weight_norm; update the module that it "
        "was made of.",
    )


def _new(
    model: Any, net: Imported, names: Sequence[str]
) -> Iterator[tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Of each place arrays by PyTorch's names: what they become, and what they are."""
    nonlinearity: Any = net.activation if net.cell == "rnn" else None
    each = [network_in(model, one, nonlinearity, is_known=True) for one in names]
    check(len(each) > 0, f"{_OP}: name must be of at least one network, got {names!r}.")
    net = fitted(_OP, net, joined(_OP, each))
    cell, first = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}[net.cell], 0
    for name, there in zip(names, each, strict=True):
        layers = net.layers[first : first + len(there.layers)]
        first += len(layers)
        yield name, to_pytorch(cell, layers), to_pytorch(cell, there.layers)


def _new_arrays(
    model: Any, net: Imported, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """What changes by the keys of a state_dict, with points between those of parts."""
    state = getattr(model, "state_dict", None)
    tree = flat(state if isinstance(state, Mapping) else model, ".")
    by_name = as_pytorch(_OP, tree)
    new: dict[str, np.ndarray] = {}
    shared = _Shared()
    for name, arrays, there in _new(model, net, names):
        keys = kept_keys_of(by_name, name)
        keys |= {f"{own}_l0": key for own, key in keys.items()}  # those of a cell
        for own, key in keys.items():
            if own in arrays:
                shared.check(key, by_name[key], arrays[own])
        for own, array in changed(arrays, there).items():
            _check_kept(own in keys, name, own)
            new[keys[own]] = array
    return as_paddle(_OP, new, tree)


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
        agrees = view is new[key] or ((view == new[key]) | (view != view)).all()
        _check_agrees(bool(agrees), key)
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
    if not str(value.dtype).startswith("torch."):  # Paddle's, whose layers take NumPy's
        return in_dtype(array, as_array(_OP, "the array", value).dtype)
    import torch

    return torch.from_numpy(_plain(array)).to(value.device, value.dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """In a dtype that PyTorch takes from NumPy, which bfloat16 is not."""
    return array if array.dtype.kind == "f" else array.astype(np.float32)
