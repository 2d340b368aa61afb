"""Arguments of layers and stacks for Equinox, as type checkers know `**options`."""

from typing import Any, Required, TypedDict

from jax import Array

from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._ops.run import Implementation, Merge, Precision, Reserve


class CommonOptions(TypedDict, total=False):
    """Those of layers and of stacks."""

    bidirectional: bool
    merge: Merge
    heads: int
    reserve: Reserve
    precision: Precision
    implementation: Implementation | None
    activation: GivenActivations
    gate_activation: GivenActivation
    peepholes: bool
    proj_size: int | None


class LayerOptions(CommonOptions, total=False):
    """Those of layers."""

    reverse: bool
    recurrent_dropout: float
    zoneout: float | tuple[float, ...]
    inference: bool
    key: Required[Array]


class StackOptions(CommonOptions, total=False):
    """Those of a stack, of any cell."""

    use_bias: bool
    dtype: Any
    reset_after: bool
    cap: float
    skip: float
