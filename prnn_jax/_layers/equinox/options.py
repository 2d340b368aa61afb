"""Arguments of layers and stacks for Equinox, as type checkers know `**options`."""

from typing import Any, Required, TypedDict

from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Implementation, Lengths, Merge, Precision, Resets
from prnn_jax._layers.options import SharedOptions
from prnn_jax._linear.table import InitOptions, OwnOptions


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
    scale_first: bool


class LinearOptions(OwnOptions, total=False):
    """Arguments of a layer, as type checkers know them."""

    reverse: bool
    bidirectional: bool
    merge: Merge
    inference: bool
    precision: Precision
    implementation: Implementation | None
    key: Required[Array]


class ControlOptions(TypedDict, total=False):
    """Of a call: which steps count, and where rows begin anew."""

    lengths: Lengths | None
    mask: ArrayLike | None
    resets: Resets | None
