"""A layer as actor-critic agents run it, for Equinox."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.options import State
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._layers.equinox.layer import Layer
from prnn_jax._layers.equinox.linear_layer import LinearLayer
from prnn_jax._layers.equinox.stack import Stack


class ScannedRNN(eqx.Module):
    """A layer as actor-critic agents have it: `(carry, (xs, resets)) -> (carry, ys)`.

    Stands for a cell under `jax.lax.scan` (or Flax's `nn.scan`) that replaces the carry
    by zeros where an episode begins; time comes first.
    `ScannedRNN(GRU(64, 128, key=key))`.

    Attributes:
      layer: what runs, with its parameters.

    Args:
      layer: one of this module, such as `GRU`, or a `Stack`, forward only.

    Raises:
      ValueError: it is no layer, or one that looks into the future.
    """

    layer: Layer | LinearLayer | Stack

    def __init__(self, layer: Layer | LinearLayer | Stack):
        check(
            isinstance(layer, (Layer, LinearLayer, Stack)),
            "ScannedRNN: layer must be a layer of prnn_jax.equinox, such as "
            f"GRU(64, 128, key=key), or a Stack, got {layer!r}.",
        )
        inner = layer.first if isinstance(layer, Stack) else layer
        for name in ("reverse", "bidirectional"):
            check(
                not getattr(inner, name),
                f"ScannedRNN: layer must run forward, got {name}=True, with which a "
                "step depends on later ones.",
            )
        self.layer = layer

    def __call__(
        self,
        carry: State | None,
        inputs: tuple[Array, Array],
        *,
        reset_to: State | None = None,
        key: Array | None = None,
        inference: bool | None = None,
    ) -> tuple[Any, Array]:
        """Runs the layer over some steps.

        Args:
          carry: the state before the first step, as the layer takes it; None for zeros.
          inputs: xs `[time, *batch, input_size]` and resets `[time, *batch]`: where not
            zero, the carry is replaced before that step.
          reset_to: what it is replaced with, shaped as carry; zeros if not given.
          key: as for the layer.
          inference: as for the layer.

        Returns:
          The last state and ys `[time, *batch, hidden_size]`.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        check(
            isinstance(inputs, (tuple, list)) and len(inputs) == 2,
            f"ScannedRNN: inputs must be (xs, resets), got {type(inputs).__name__}.",
        )
        xs, resets = inputs
        for array in jax.tree.leaves(carry)[:1]:
            is_stack = isinstance(self.layer, Stack)
            shape = jnp.shape(array)[1 if is_stack else 0 :]
            checks.steps("ScannedRNN", "xs", xs, "input_size", shape)
        ys, carry = self.layer(
            xs,
            carry,
            resets=resets,
            reset_to=reset_to,
            time_major=True,
            key=key,
            inference=inference,
        )
        return carry, ys

    def initialize_carry(self, *batch: int) -> Any:
        """The carry at the beginning, zeros, for batch axes of these sizes."""
        return self.layer.zeros(*batch)
