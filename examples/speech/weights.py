"""How the recurrent weights are read: as they are, packed once, or in 8 bits."""

from typing import Literal

from flax import nnx

import prnn_jax

from .config import ModelConfig
from .model import Recogniser

Weights = Literal["plain", "prepared", "int8"]


def as_given(
    cell: str, params: prnn_jax.Params, weights: Weights, **options: int
) -> prnn_jax.Params | prnn_jax.Prepared:
    """A layer's parameters for many calls; options as of `prnn_jax.prepare`."""
    if weights == "plain":
        return params
    in_bits = "int8" if weights == "int8" else None
    return prnn_jax.prepare(cell, params, weights=in_bits, **options)


def rounded(model: ModelConfig, recogniser: Recogniser) -> Recogniser:
    """A copy whose recurrent weights are those of "int8", to see what they cost."""
    copy = nnx.clone(recogniser)
    size = {"batch": 1, "time": 1, "bidirectional": model.direction == "both"}
    for layer in copy.recurrent.layers:
        given = as_given(model.cell, layer.params, "int8", **size)
        nnx.update(layer, nnx.state(type(layer).from_params(given.params)))
    return copy
