"""What a stack is made of, and whether its parts fit together."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, Prepared, plain


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
      params: as for `prnn_jax.lstm` and the others, prepared or not.
      norm: of the layer's input, or None for none.
      stacked: whether this is several layers: every array of params and norm then has
        one more axis, before all others, of as many. It is no leaf of the pytree.
    """

    params: Params | Prepared
    norm: Norm | None = None
    stacked: bool = field(default=False, metadata={"static": True})


def check_layers(op: str, layers: Any) -> list[Layer]:
    """What a caller gives as the layers of a stack, each as one."""
    is_one = isinstance(layers, (Params, Prepared, Layer))
    if is_one or not isinstance(layers, (list, tuple)):
        hint = "; put it in a list" if is_one else ""
        raise ValueError(
            f"{op}: layers must be a sequence of prnn_jax.Params or prnn_jax.Layer, "
            f"got {type(layers).__name__}{hint}."
        )
    check(len(layers) > 0, f"{op}: layers must be at least one, got none.")
    for n, layer in enumerate(layers):
        inner = layer.params if isinstance(layer, Layer) else layer
        check(
            isinstance(inner, (Params, Prepared)),
            f"{op}: layers[{n}] must be prnn_jax.Params, or prnn_jax.Layer with such "
            f"params, got {type(inner).__name__}.",
        )
        norm = layer.norm if isinstance(layer, Layer) else None
        check(
            norm is None or isinstance(norm, Norm),
            f"{op}: norm of layers[{n}] must be prnn_jax.Norm(scale, bias) or None, "
            f"got {type(norm).__name__}.",
        )
    return [e if isinstance(e, Layer) else Layer(e) for e in layers]


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


def check_width(op: str, n: int, params: Params | Prepared, width: int) -> None:
    """The input of layer n must be as wide as what comes."""
    shape = getattr(plain(params)[0], "shape", ())
    if len(shape) < 2 or shape[-2] == width:
        return  # what else is wrong, the layer itself says
    source = "x" if n == 0 else f"the output of layer {n - 1}"
    raise ValueError(
        f"{op}, layer {n}: w_ih must be for an input of {width} features, which is "
        f"the width of {source}, got {list(shape)} (input {shape[-2]}). "
        "Bidirectional layers give 2*hidden features, with "
        'merge="sum" hidden.'
    )
