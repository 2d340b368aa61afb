"""What puts a network back into a model: checks, and which of its arrays are new."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._shared.imported import Imported
from prnn_jax.convert._shared.named_arrays import check_is_params

_Key = TypeVar("_Key")

#: What the arrays mean; how x lies, and dropout and the like, are no part of that.
_MEANING = "cell", "reverse", "reset_after", "activation", "gate_activation", "clip"


def check_network(op: str, net: Any) -> None:
    """`net` must be a network with values."""
    check(
        isinstance(net, Imported),
        f"{op}: net must be prnn_jax.convert.Imported, got {type(net).__name__}; of "
        "layers that were trained alone, dataclasses.replace(net, layers=layers).",
    )
    for params in net.layers:
        check_is_params(op, params)
    check(
        not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(net)),
        f"{op}: net must have values, got tracers; call it outside of jit and grad.",
    )


def fitted(op: str, net: Imported, there: Imported) -> Imported:
    """The network with the arrays that the model has, so that it can take its place.

    Layers of Flax and Equinox have one bias where the model has two: b_hh is zero then.

    Raises:
      ValueError: it is not what the model's own could have become by training.
    """
    for name in _MEANING:
        wanted, given = getattr(there, name), getattr(net, name)
        check(
            wanted == given,
            f"{op}: net must be like the network {there.name!r} of the model, which "
            f"has {name}={wanted!r}, got {given!r}.",
        )
    check(
        len(there.layers) == len(net.layers),
        f"{op}: net must have {len(there.layers)} layer(s), as {there.name!r} of the "
        f"model has, got {len(net.layers)}.",
    )
    layers = map(_with_b_hh, net.layers, there.layers)
    net = replace(net, layers=tuple(layers))
    for n, (wanted, given) in enumerate(zip(there.layers, net.layers, strict=True)):
        check(
            _shapes(wanted) == _shapes(given),
            f"{op}: layer {n} must have the arrays of {there.name!r} of the model, "
            f"{_shapes(wanted)}, got {_shapes(given)}.",
        )
    wanted, given = (_states(one.state_0) for one in (there, net))
    check(
        wanted == given,
        f"{op}: state_0 must be like that of {there.name!r} of the model, {wanted}, "
        f"got {given}.",
    )
    return net


def _with_b_hh(params: Params, there: Params) -> Params:
    """With zeros for b_hh where only the sum of the model's two biases is given."""
    if there.b_hh is None or params.b_hh is not None or params.b_ih is None:
        return params
    return params._replace(b_hh=jnp.zeros_like(params.b_ih))


def _shapes(params: Params) -> str:
    arrays = {name: a for name, a in params._asdict().items() if a is not None}
    return ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items())


def _states(state_0: Any) -> Any:
    return jax.tree.map(lambda state: list(np.shape(state)), state_0)


def changed(new: Mapping[_Key, Any], old: Mapping[_Key, Any]) -> dict[_Key, np.ndarray]:
    """Those of some arrays that are not what they were."""
    return {
        name: np.asarray(array)
        for name, array in new.items()
        if not np.array_equal(np.asarray(array), np.asarray(old[name]))
    }


def in_dtype(array: Any, dtype: Any) -> np.ndarray:
    """An array in the dtype of the one whose place it takes, and contiguous."""
    return np.ascontiguousarray(np.asarray(array).astype(dtype))


def destination(op: str, model: Any, to: Any) -> Path | None:
    """Where the new file is written; None where the model is an object."""
    is_path = isinstance(model, (str, os.PathLike))
    check(
        is_path == (to is not None),
        f"{op}: to must be the path of the new file where model is a path, and None "
        f"where it is an object, got model {type(model).__name__} and to={to!r}.",
    )
    if not is_path:
        return None
    path, new = Path(model), Path(to)
    check(
        path.suffix == new.suffix
        and path.absolute() != new.absolute()
        and not (path.exists() and new.exists() and path.samefile(new)),
        f"{op}: to must be another file {path.suffix or 'of the same kind'} than "
        f"{path}, which stays as it is, got {new}.",
    )
    return new
