"""Arguments of layers and stacks, as type checkers know those of `**options`."""

from typing import TypedDict

from prnn_jax._call.options import Implementation, Merge, Precision, Reserve
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip


class SharedOptions(TypedDict, total=False):
    """Those that all libraries' layers and stacks have, as functions have them."""

    bidirectional: bool
    merge: Merge
    reserve: Reserve
    precision: Precision
    implementation: Implementation | None
    activation: GivenActivations
    gate_activation: GivenActivation
    clip: Clip | None
    peepholes: bool
    proj_size: int | None
