"""What the importers of models give."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._cells import CellName
from prnn_jax._ops import Activation, GivenState
from prnn_jax._params import Params
from prnn_jax._stack import stack

_STATIC = ["cell", "name", "bidirectional", "time_major", "reset_after", "activation"]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["layers"], meta_fields=_STATIC
)
@dataclass(frozen=True)
class Imported:
    """A recurrent network from elsewhere: its parameters, and how they are to be run.

    A pytree of its parameters. Calling it runs `prnn_jax.stack` so that it computes
    what the original does in evaluation.

    Attributes:
      layers: `Params` of the first layer to the last.
      cell: whose function runs them.
      name: where in the model it was found; empty for the model itself.
      bidirectional: whether each layer runs both ways.
      time_major: whether x is `[time, *batch, input]`.
      reset_after: of the GRU, as in `prnn_jax.gru`.
      activation: of the RNN, as in `prnn_jax.rnn`.
    """

    layers: tuple[Params, ...]
    cell: CellName
    name: str = ""
    bidirectional: bool = False
    time_major: bool = False
    reset_after: bool = True
    activation: Activation = "tanh"

    @property
    def options(self) -> dict[str, Any]:
        """The options of `prnn_jax.stack` that it is run with."""
        options: dict[str, Any] = {
            "bidirectional": self.bidirectional,
            "time_major": self.time_major,
        }
        if self.cell == "gru":
            options["reset_after"] = self.reset_after
        if self.cell == "rnn":
            options["activation"] = self.activation
        return options

    def __call__(
        self,
        x: ArrayLike,
        state_0: Sequence[GivenState | None] | None = None,
        **options: Any,
    ) -> tuple[Array, tuple[Any, ...]]:
        """`prnn_jax.stack(cell, x, layers, state_0, ...)`, with y and the last states.

        Args:
          x: as `time_major` says.
          state_0: a state for each layer, as its function takes it; zeros if not given.
          options: others of `stack`, such as `lengths`; or instead of the network's.

        Raises:
          ValueError: as `stack`.
        """
        return stack(self.cell, x, self.layers, state_0, **{**self.options, **options})
