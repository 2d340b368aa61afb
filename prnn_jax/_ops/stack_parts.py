"""What a stack is made of, and whether its parts fit together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.call import Call
from prnn_jax._call.options import Options
from prnn_jax._cells.activations import GivenActivations
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, Prepared, described
from prnn_jax._linear.call import LinearCall

_EPSILON = 1e-5  # of layer norm's variance, as in Equinox and PyTorch


@dataclass(frozen=True, kw_only=True, eq=False)
class StackOptions(Options):
    """What a stack may be given, as `stack` says; its zoneout is a share."""

    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    zoneout: float | tuple[float, ...] = 0.0
    key: Array | None = None
    skip_connections: bool = False
    activation: GivenActivations | None = None


class Norm(NamedTuple):
    """Layer norm of a layer's input (Ba et al. 2016, arXiv:1607.06450).

    Attributes:
      scale: `[input]`.
      bias: `[input]`, or None for zero.
    """

    scale: Array
    bias: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    """A layer of a stack, or several that are equal but for the numbers in them.

    Attributes:
      params: as for `prnn_jax.lstm` and the others, prepared or not; of a cell without
        a product in a step, the arguments of its function by name.
      norm: of the layer's input, or None for none.
      stacked: whether this is several layers: every array of params and norm then has
        one more axis, before all others, of as many. It is no leaf of the pytree.
    """

    params: Params | Prepared | Mapping[str, Any]
    norm: Norm | None = None
    stacked: bool = field(default=False, metadata={"static": True})


def check_layers(op: str, call: Call | LinearCall, layers: Any) -> list[Layer]:
    """What a caller gives as the layers of a stack, each as one."""
    is_linear = isinstance(call, LinearCall)
    is_one = isinstance(layers, (Params, Prepared, Layer))
    if is_linear and isinstance(layers, Mapping):
        is_one = "params" not in layers
    if is_one or not isinstance(layers, (list, tuple)):
        alone = f"{type(layers).__name__}; put it in a list"
        came = alone if is_one else described(layers, several=True)
        raise ValueError(
            f"{op}: layers must be a sequence of prnn_jax.Params or prnn_jax.Layer, "
            f"got {came}."
        )
    check(len(layers) > 0, f"{op}: layers must be at least one, got none.")
    entries = [e if isinstance(e, Layer) else Layer(e) for e in layers]
    for n, (inner, norm) in enumerate((e.params, e.norm) for e in entries):
        check(
            is_linear or isinstance(inner, (Params, Prepared)),
            f"{op}: layers[{n}] must be prnn_jax.Params, or prnn_jax.Layer with such "
            f"params, got {described(inner, several=True)}.",
        )
        check(
            norm is None or isinstance(norm, Norm),
            f"{op}: norm of layers[{n}] must be prnn_jax.Norm(scale, bias) or None, "
            f"got {type(norm).__name__}.",
        )
    if isinstance(call, Call):
        return entries
    arrays = call.table.arrays
    return [
        replace(e, params=arrays(f"{op}, layer {n}", e.params))
        for n, e in enumerate(entries)
    ]


def size_of(op: str, n: int, layer: Layer) -> int:
    """How many layers it is."""
    if not layer.stacked:
        return 1
    sizes = {jnp.shape(array)[:1] for array in jax.tree.leaves(layer)}
    if len(sizes) != 1 or min(sizes, default=()) < (1,):
        listed = ", ".join(str(list(jnp.shape(a))) for a in jax.tree.leaves(layer))
        raise ValueError(
            f"{op}: layers[{n}] is stacked, so all its arrays must have the same "
            f"first axis, that of the layers, at least 1 long; got {listed}."
        )
    return sizes.pop()[0]


def check_form(
    op: str, name: str, given, sizes: list[int], layers: list[Layer]
) -> list:
    """A state for each entry of layers, None where there is none."""
    if given is None:
        return [None] * len(layers)
    came = f"{len(given)}" if isinstance(given, (list, tuple)) else type(given).__name__
    check(
        isinstance(given, (list, tuple)) and len(given) == len(layers),
        f"{op}: {name} must be a sequence of {len(layers)} states (or None), one for "
        f"each of layers, got {came}.",
    )
    for n, (state, size, layer) in enumerate(zip(given, sizes, layers, strict=True)):
        for array in jax.tree.leaves(state) if layer.stacked else ():
            check(
                jnp.shape(array)[:1] == (size,),
                f"{op}: {name}[{n}] must begin with the axis of the {size} stacked "
                f"layers, got {list(jnp.shape(array))}.",
            )
    return list(given)


def check_width(
    op: str, n: int, call: Call | LinearCall, params: Any, width: int
) -> None:
    """The input of layer n must be as wide as what comes."""
    name, matrix = call.matrix(params)
    shape = getattr(matrix, "shape", ())
    if len(shape) < 2:
        return  # what else is wrong, the layer itself says
    takes = shape[-2]
    if isinstance(call, LinearCall):
        takes = call.table.input_size(params)
    if takes == width:
        return
    source = "x" if n == 0 else f"the output of layer {n - 1}"
    raise ValueError(
        f"{op}, layer {n}: {name} must be for an input of {width} features, which is "
        f"the width of {source}, got {list(shape)} (input {takes}). "
        "Bidirectional layers give 2*hidden features, with "
        'merge="sum" hidden.'
    )


def normalized(op: str, x: Array, norm: Norm) -> Array:
    """Layer norm over the features, computed in at least float32."""
    given = {"scale": norm.scale, "bias": norm.bias}
    arrays = {f"norm.{k}": v for k, v in given.items() if v is not None}
    arrays = {name: checks.jax_array(op, name, a) for name, a in arrays.items()}
    for name, value in arrays.items():
        checks.shape(op, name, value, ("input",), x.shape[-1:])
    checks.same_dtype(op, {"x": x, **arrays})
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    along = [1] * (x.ndim - 1) + [-1]
    u = centred * lax.rsqrt(variance + _EPSILON)
    scaled = u * arrays["norm.scale"].astype(u.dtype).reshape(along)
    if norm.bias is not None:
        scaled += arrays["norm.bias"].astype(u.dtype).reshape(along)
    return scaled.astype(x.dtype)
