"""What makes a recogniser a transducer: it also hears what it has written itself.

Graves 2012 (arXiv:1211.3711): a predictor over the labels so far, and a joint network,
which says after each frame and each label what to write next, or nothing: BLANK.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import prnn_jax
from prnn_jax import nnx as prnn

from .config import ModelConfig
from .text import BLANK

LAYER_NORM = prnn_jax.LayerNorm(of="sum", c="state")  # as in torchaudio's transducers


class Written(NamedTuple):
    """What a transducer has written of each row of a batch, as it remembers that."""

    features: jax.Array  # [batch, joint_size]
    carry: Any  # of the predictor


class Transducer(nnx.Module):
    """Predictor and joint network; the encoder is the rest of the recogniser."""

    def __init__(self, model: ModelConfig, rngs: nnx.Rngs):
        labels, size = model.labels, model.predictor_projection
        dtype = jnp.dtype(model.dtype)
        # Of BLANK: of nothing so far.
        self.embedding = nnx.Embed(labels, size, dtype=dtype, rngs=rngs)
        is_normed = model.predictor_layer_norm
        cell = prnn_jax.normed("lstm", LAYER_NORM) if is_normed else "lstm"
        only_plain = {} if is_normed else {"proj_size": size}
        self.recurrent = prnn.Stack(
            cell,
            size,
            model.predictor_size,
            num_layers=1,
            norm=True,
            **only_plain,
            implementation=model.implementation,
            dtype=dtype,
            rngs=rngs,
        )
        self.dropout = nnx.Dropout(model.dropout, deterministic=True)
        self.hidden = nnx.Linear(
            model.predictor_size if is_normed else size,
            model.joint_size,
            use_bias=False,
            dtype=dtype,
            rngs=rngs,
        )
        self.out = nnx.Linear(model.joint_size, labels, dtype=dtype, rngs=rngs)

    def predict(self, labels: jax.Array, dropout: nnx.Rngs | None = None) -> jax.Array:
        """[batch, label + 1, joint_size], after 0, 1, ... of labels [batch, label]."""
        before = jnp.pad(labels, ((0, 0), (1, 0)), constant_values=BLANK)
        y = self.recurrent(self.embedding(before))
        testing = dropout is None
        return self.hidden(self.dropout(y, deterministic=testing, rngs=dropout))

    def joint(self, heard: jax.Array, written: jax.Array) -> jax.Array:
        """Logits [..., labels] of the encoder's and the predictor's [..., joint_size].

        Each is half of a layer, of which the encoder has the bias.
        """
        joined = jnp.tanh((heard + written).astype(self.out.dtype))
        return self.out(joined).astype(jnp.float32)

    def begin(self, batch: int) -> Written:
        """Before anything is written."""
        carry = self.recurrent.initialize_carry((batch, self.embedding.features))
        return self._step(jnp.full(batch, BLANK), carry)

    def write(self, written: Written, labels: jax.Array) -> Written:
        """With one label more, [batch]; BLANK changes nothing."""
        more = self._step(labels, written.carry)
        says = labels != BLANK
        return jax.tree.map(
            lambda new, old: jnp.where(says[:, None], new, old), more, written
        )

    def _step(self, labels: jax.Array, carry: Any) -> Written:
        carry, y = self.recurrent(
            self.embedding(labels)[:, None], initial_carry=carry, return_carry=True
        )
        return Written(self.hidden(y[:, 0]), carry)
