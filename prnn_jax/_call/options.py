"""The options of calls: what each may be, and what it is where it is not given.

Public functions list theirs, so that `help` and editors show them with their defaults;
what is below has them as one `Options`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypedDict

from jax import Array, lax
from jax.typing import ArrayLike

from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip

Implementation = Literal["native", "scan"]
#: Of the two directions' outputs.
Merge = Literal["concat", "sum"]
#: What y is at a step that does not count: the last output before it, or zero.
MaskedY = Literal["hold", "zero"]
#: Whether gates are kept for the backward pass, or made again.
Reserve = Literal["fast", "lean"]
Precision = lax.PrecisionLike
State = Array | tuple[Array, ...]
GivenState = ArrayLike | Sequence[ArrayLike]
Zoneout = float | ArrayLike | tuple[float | ArrayLike, ...] | None
Lengths = ArrayLike | Sequence[int]
Resets = ArrayLike | Sequence[Any]  # also lists of lists


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """All that a call may be given besides its input and parameters, as it is given.

    Functions have some of these, each with the same name and default in all of them;
    what a function has not is as usual. `prnn_jax.lstm` says what each is, `gru` and
    `rnn` what the last three are.
    """

    state_0: Any = None
    lengths: Lengths | None = None
    mask: ArrayLike | None = None
    masked_y: MaskedY = "hold"
    resets: Resets | None = None
    reset_to: Any = None
    recurrent_mask: ArrayLike | None = None
    zoneout: Zoneout = None
    reverse: bool = False
    bidirectional: bool = False
    merge: Merge = "concat"
    time_major: bool = False
    reserve: Reserve = "fast"
    precision: Precision = None
    implementation: Implementation | None = None
    activation: GivenActivations | None = "tanh"
    gate_activation: GivenActivation = "sigmoid"
    clip: Clip | None = None
    reset_after: bool = True
    cap: float = 20.0
    skip: float = 0.0

    @classmethod
    def of(cls, arguments: Mapping[str, Any], **others: Any) -> Self:
        """Of the arguments of a function, and others that it has not."""
        names = (field.name for field in fields(cls))
        known = {name: arguments[name] for name in names if name in arguments}
        return cls(**known, **others)


class LinearOptions(TypedDict, total=False):
    """Those of `linear_recurrence`, which what is made of it has too."""

    lengths: Lengths | None
    mask: ArrayLike | None
    masked_y: MaskedY
    resets: Resets | None
    reset_to: Any
    reverse: bool
    time_major: bool
    implementation: Implementation | None


class LinearCellOptions(LinearOptions, total=False):
    """And of cells without a product in a step: two directions."""

    bidirectional: bool
    merge: Merge


class MatrixOptions(TypedDict, total=False):
    """Those of recurrences whose state is a matrix."""

    lengths: Lengths | None
    resets: Resets | None
    reverse: bool
    time_major: bool
    chunk_size: int | None
    precision: Precision
    implementation: Implementation | None
