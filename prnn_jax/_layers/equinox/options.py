"""Arguments of layers and stacks for Equinox, as type checkers know `**options`."""

from typing import Any, Required

from jax import Array

from prnn_jax._layers.options import SharedOptions
from prnn_jax._linear.table import InitOptions


class CommonOptions(SharedOptions, total=False):
    """Those of layers and of stacks."""

    heads: int


class LayerOptions(CommonOptions, total=False):
    """Those of layers."""

    reverse: bool
    recurrent_dropout: float
    zoneout: float | tuple[float, ...]
    inference: bool
    key: Required[Array]


class StackOptions(CommonOptions, InitOptions, total=False):
    """Those of a stack, of any cell."""

    use_bias: bool
    dtype: Any
    reset_after: bool
    cap: float
    skip: float
