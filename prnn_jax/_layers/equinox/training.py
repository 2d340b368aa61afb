"""What layers and stacks for Equinox drop while they train."""

import equinox as eqx
from jax import Array

from prnn_jax._call.noise import Noise
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check


class Training(eqx.Module):
    """What a layer drops while it trains.

    Attributes:
      noise: the rates.
      inference: whether nothing is dropped; `eqx.nn.inference_mode` sets it.
    """

    noise: Noise = eqx.field(static=True)
    inference: bool

    @classmethod
    def of(cls, noise: Noise, inference: bool) -> "Training | None":
        """None where nothing is dropped: it then adds no leaf to a layer."""
        if not noise:
            return None
        return cls(noise, statics.flag("Layer", "inference", inference))

    def key(self, op: str, key: Array | None, inference: bool | None) -> Array | None:
        """What masks are drawn from, None at inference.

        Raises:
          ValueError: there is none though the layer is training.
        """
        inference = self.inference if inference is None else inference
        if statics.flag(op, "inference", inference):
            return None
        check(
            key is not None,
            f"{op}: key must be given to a layer that drops values while training, got "
            "None; without dropout it runs with inference=True (for a whole model, "
            "eqx.nn.inference_mode).",
        )
        checks.key(op, key, optional=True)
        return key
