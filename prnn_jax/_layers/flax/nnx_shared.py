"""What all modules for Flax NNX share: types of their arguments, and random streams."""

from typing import Any, Required

from flax import nnx

from prnn_jax._layers.flax.shared import Initializer
from prnn_jax._layers.options import SharedOptions
from prnn_jax._linear.table import InitOptions

Rngs = nnx.Rngs | nnx.RngStream


class CommonOptions(SharedOptions, total=False):
    """Arguments of layers and stacks, as type checkers know those of `**options`."""

    kernel_init: Initializer
    recurrent_kernel_init: Initializer
    bias_init: Initializer
    heads: int | None
    time_major: bool
    return_carry: bool
    dtype: Any
    param_dtype: Any


class LayerOptions(CommonOptions, total=False):
    """Those of layers."""

    reverse: bool
    keep_order: bool
    recurrent_dropout_rate: float
    zoneout_rate: float | tuple[float, ...]
    deterministic: bool
    carry_init: Initializer | None
    rngs: Required[nnx.Rngs]


class StackOptions(CommonOptions, InitOptions, total=False):
    """Those of a stack, of any cell."""

    use_bias: bool
    reset_after: bool
    recurrent_bias: bool
    cap: float
    skip: float
    scale_first: bool


class ScannedOptions(StackOptions, total=False):
    """Those of a layer in `ScannedRNN`, of any cell."""

    recurrent_dropout_rate: float
    zoneout_rate: float | tuple[float, ...]
    deterministic: bool
    carry_init: Initializer | None


def rngs_with_params(rngs: nnx.Rngs | None) -> nnx.Rngs:
    """For a layer whose parameters are given, so that nothing of theirs is drawn."""
    if rngs is None:
        return nnx.Rngs(0)
    streams = dict(rngs.items())
    known = {} if streams.keys() & {"params", "default"} else {"params": 0}
    return nnx.Rngs(**known, **streams)


def refuse_params(layer: Any, name: str) -> None:
    """Raises AttributeError where an attribute that is set is a layer's `params`."""
    if name == "params":  # before nnx.Module looks at what it is
        own = type(layer).__name__
        raise AttributeError(
            f"{own}: params cannot be assigned; {own}.from_params(params) makes a "
            "layer of them."
        )


def stream_for(layer: Any, what: str, stream: Any) -> nnx.RngStream:
    """The stream from which something is drawn; an error if there is none."""
    if stream is None:
        raise ValueError(
            f"{type(layer).__name__}: {what} needs random numbers, but the layer was "
            f"made without {what} and keeps none; pass rngs=nnx.Rngs(...)."
        )
    return stream
