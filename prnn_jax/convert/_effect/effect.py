"""A recurrent network for audio, with what is around it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import GivenState
from prnn_jax._given import checks
from prnn_jax.convert._shared.imported import Imported

DenseActivation = Literal["", "tanh", "relu", "sigmoid", "softmax", "elu"]
ACTIVATIONS = {"": lambda a: a} | {
    name: getattr(jax.nn, name)
    for name in ("tanh", "relu", "sigmoid", "softmax", "elu")
}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=["activation"]
)
@dataclass(frozen=True)
class Dense:
    """A layer of an `Effect` without a state: activation(x w + b).

    Attributes:
      w: `[input, output]`.
      b: `[output]`.
      activation: "" for none.
    """

    w: Array
    b: Array
    activation: DenseActivation = ""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["network", "before", "after"],
    meta_fields=["skip", "input_gain", "output_gain", "sample_rate"],
)
@dataclass(frozen=True)
class Effect:
    r"""A recurrent network for audio: an amplifier's model, a pedal's, a synthesiser's.

    .. math:: y = g_{out} (\mathrm{after}(\mathrm{network}(\mathrm{before}(x))) + x_0)

    where :math:`x_0` are the first `skip` channels of x, and the first channel of x is
    multiplied by `input_gain` before all that. A pytree of its parameters: it can be
    jitted and trained, and `export_effect` writes it down again.

    Attributes:
      network: of layers of `lstm`, `gru` or `rnn`, with their initial states.
      before: dense layers before it.
      after: those after it.
      skip: how many channels of x are added; of one, to each channel of y.
      input_gain: a factor.
      output_gain: likewise.
      sample_rate: in Hz, at which it was trained; None where the file does not tell.
    """

    network: Imported
    before: tuple[Dense, ...] = ()
    after: tuple[Dense, ...] = ()
    skip: int = 0
    input_gain: float = 1.0
    output_gain: float = 1.0
    sample_rate: float | None = None

    def __call__(
        self,
        x: ArrayLike,
        state_0: Sequence[GivenState | None] | None = None,
        **options: Any,
    ) -> tuple[Array, tuple[Any, ...]]:
        """What the effect makes of a signal, or of its next block.

        Args:
          x: `[*batch, time, input]`: the signal, then what its knobs are set to.
          state_0: what an earlier call returned; if not given the network's own, or
            zeros.
          options: of `stack`, such as `lengths`; at steps that do not count the network
            gives zero, and y is what the rest makes of that.

        Returns:
          y `[*batch, time, output]`, and a state for each layer of the network.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        x = checks.jax_array("Effect", "x", x)
        first = self.before[0] if self.before else None
        w = first.w if first else self.network.layers[0].w_ih
        wanted = (*x.shape[:-1], w.shape[0])
        checks.shape("Effect", "x", x, ("*batch", "time", "input"), wanted)
        if self.input_gain != 1:
            x = jnp.concatenate([self.input_gain * x[..., :1], x[..., 1:]], -1)
        run = functools.partial(_dense, precision=options.get("precision"))
        y = functools.reduce(run, self.before, x)
        y, state = self.network(y, state_0, **options)
        y = functools.reduce(run, self.after, y)
        y = y + x[..., : self.skip] if self.skip else y
        return y if self.output_gain == 1 else self.output_gain * y, state


def _dense(x: Array, layer: Dense, precision: Any) -> Array:
    a = jnp.matmul(x, layer.w, precision=precision) + layer.b
    return ACTIVATIONS[layer.activation](a)
