"""What the importers of models give."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import GivenState, Merge
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import NAMES, CellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._ops import recurrent
from prnn_jax._ops.layer_stack import stack

_FUNCTIONS = {name: getattr(recurrent, name) for name in NAMES}
_ARRAYS = ["layers", "state_0"]
_STATIC = [
    "cell",
    "name",
    "places",
    "bidirectional",
    "merge",
    "reverse",
    "time_major",
    "reset_after",
    "activation",
    "gate_activation",
    "clip",
]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=_STATIC
)
@dataclass(frozen=True)
class Imported:
    """A recurrent network from elsewhere: its parameters, and how they are to be run.

    A pytree of its parameters. Calling it runs `prnn_jax.stack` so that it computes
    what the original does in evaluation.

    Attributes:
      layers: `Params` of the first layer to the last.
      cell: whose function runs them; of an LSTM of LiteRT with layer norm a
        `NormedCell`, which is one.
      name: where in the model it was found; empty for the model itself.
      places: the same of each of its parts, as `update_pytorch` and the others use
        them: of layers of Keras and of nodes of ONNX, the first layer first, and of a
        layer whose directions are two nodes the forward one first.
      bidirectional: whether each layer runs both ways.
      merge: of the two directions' y, "concat" or "sum".
      reverse: whether its one layer runs from the last step to the first.
      time_major: whether x is `[time, *batch, input]`.
      reset_after: of the GRU, as in `prnn_jax.gru`.
      activation: as in the cell's own function.
      gate_activation: likewise, of the LSTM and the GRU.
      clip: likewise; of ONNX it bounds pre-activations.
      state_0: the original's own initial states, if there are any and they are not
        zero: one for each layer, of one row, or of as many as x has.
    """

    layers: tuple[Params, ...]
    cell: CellName
    name: str = ""
    places: tuple[str, ...] = ()
    bidirectional: bool = False
    merge: Merge = "concat"
    reverse: bool = False
    time_major: bool = False
    reset_after: bool = True
    activation: GivenActivations = "tanh"
    gate_activation: GivenActivation = "sigmoid"
    clip: Clip | None = None
    state_0: tuple[Any, ...] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What it is run with: options of `stack`, or in reverse of the cell's own."""
        options: dict[str, Any] = {
            "bidirectional": self.bidirectional,
            "time_major": self.time_major,
        }
        if self.merge != "concat":
            options["merge"] = self.merge
        if self.reverse:
            options["reverse"] = True
        if self.cell == "gru":
            options["reset_after"] = self.reset_after
        if self.cell == "rnn" or self.activation != "tanh":
            options["activation"] = self.activation
        if self.gate_activation != "sigmoid":
            options["gate_activation"] = self.gate_activation
        if self.clip is not None:
            options["clip"] = self.clip
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
          state_0: a state for each layer, as its function takes it; if not given the
            network's own, or zeros.
          options: others of `stack`, such as `lengths`; or instead of the network's.

        Raises:
          ValueError: as `stack`.
        """
        options = {**self.options, **options}
        check(
            self.cell != "lstm" or not any(hasattr(s, "shape") for s in state_0 or ()),
            f"{self.name or 'network'}: state_0 must be of one (h, c) for each layer, "
            "got arrays; of PyTorch's (h_0, c_0), whose first axis is of layers, "
            "list(zip(h_0, c_0)) makes them where layers run one way.",
        )
        if state_0 is None and self.state_0 is not None:
            state_0 = self._states_for(jnp.shape(x), options["time_major"])
        if not self.reverse:
            return stack(self.cell, x, self.layers, state_0, **options)
        (params,) = self.layers
        (state,) = (None,) if state_0 is None else state_0
        y, state = _FUNCTIONS[self.cell](x, params, state, **options)
        return y, (state,)

    def _states_for(self, shape: tuple[int, ...], time_major: bool) -> tuple[Any, ...]:
        """The initial states for all rows of an x of this shape."""
        batch = shape[1:-1] if time_major else shape[:-2]
        directions = (2,) if self.bidirectional else ()

        def for_all(state: Array) -> Array:
            hidden = state.shape[-1]
            if not batch:
                return state.reshape(*directions, hidden)
            return jnp.broadcast_to(state, (*directions, *batch, hidden))

        return jax.tree.map(for_all, self.state_0)


def check_dtype(op: str, what: str, array: Any, remedy: str) -> None:
    """That JAX has the dtype of an array of a model: float64 only if told.

    Raises:
      ValueError: it would become float32.
    """
    is_double = str(getattr(array, "dtype", "")).endswith("float64")
    check(
        not is_double or jax.dtypes.canonicalize_dtype("float64") == "float64",
        f"{op}: {what} is float64, which JAX has with jax_enable_x64 only; {remedy} "
        "float32.",
    )


def joined(op: str, networks: Sequence[Imported]) -> Imported:
    """Networks as the layers of one.

    Raises:
      ValueError: there are none; they are not alike, do not fit on one another, or
        run in reverse; in the words of `op`.
    """
    check(len(networks) > 0, f"{op}: name must be of at least one network, got none.")
    first, *others = networks
    for other in others:
        check(
            (other.cell, other.options) == (first.cell, first.options),
            f"{op}: layers of one network must be alike; {other.name!r} is of "
            f"{other.cell} with {other.options}, {first.name!r} of {first.cell} with "
            f"{first.options}. Import them one by one, by name.",
        )
    check(
        not others or not first.reverse,
        f"{op}: {first.name!r} runs in reverse, and so cannot be one of several "
        "layers. Import them one by one, by name.",
    )
    for before, after in zip(networks, others, strict=False):
        w_hh, w_ih = before.layers[-1].w_hh, after.layers[0].w_ih
        both = before.bidirectional and before.merge == "concat"
        outputs = w_hh.shape[-2] * (2 if both else 1)
        check(
            w_ih.shape[-2] == outputs,
            f"{op}: layers of one network must fit on one another; {after.name!r} has "
            f"{w_ih.shape[-2]} inputs, {before.name!r} before it {outputs} outputs. "
            "Import them one by one, by name.",
        )
    states = tuple(one.state_0[0] if one.state_0 else None for one in networks)
    return replace(
        first,
        layers=tuple(layer for one in networks for layer in one.layers),
        places=tuple(place for one in networks for place in one.places),
        state_0=states if any(state is not None for state in states) else None,
    )
