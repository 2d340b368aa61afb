"""What the layers without a product in a step share for NNX and Linen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Lengths, Resets
from prnn_jax._given.checks import check, in_dtype
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.flax.carry import Carry, one_step
from prnn_jax._layers.flax.sequences import (
    batch_of,
    check_seq_lengths,
    in_order_of_processing,
)
from prnn_jax._layers.linear import Spec


@dataclass(frozen=True)
class Options(Spec):
    """A layer's options in either library, and how a call with them runs."""

    time_major: bool
    return_carry: bool
    keep_order: bool
    dtype: Any
    param_dtype: Any

    @staticmethod
    def _flags() -> tuple[str, ...]:
        return (*Spec._flags(), "time_major", "return_carry", "keep_order")

    def for_stack(self) -> dict[str, Any]:
        return super().for_stack() | {"time_major": self.time_major}

    def typed(self, params: Any) -> Any:
        """Parameters need no type to say what a leading axis is."""
        return params

    @property
    def float32_params(self) -> tuple[str, ...]:
        """Which parameters may stay float32 beside 16 bits."""
        return self.cell.float32_params

    def batch(self, inputs: Any, in_features: int | None = None) -> tuple[int, ...]:
        """Sizes of the batch axes of inputs, checked."""
        wanted = self.input_size if in_features is None else in_features
        return batch_of(self.name, inputs, wanted, time_major=self.time_major)

    # ---- carries ---------------------------------------------------------------------

    def initial_carry(self, input_shape: tuple[int, ...]) -> Carry:
        """Zeros in param_dtype; of one time step, `[*batch, in_features]`."""
        batch = one_step(self.name, input_shape)[:-1]
        return self.carry_of(self.zeros(batch, self.param_dtype))

    def carry_of(self, state: Any) -> Carry:
        """A state as Flax has it: of two directions a pair."""
        if not self.bidirectional:
            return state
        return tuple(jax.tree.map(lambda s, n=n: s[n], state) for n in range(2))

    def state_of(
        self, name: str, carry: Carry, batch: tuple[int, ...], dtype: Any
    ) -> Any:
        """The inverse of `carry_of`, checked; None stays."""
        if carry is None:
            return None
        wanted = jax.eval_shape(lambda: self.carry_of(self.zeros(batch, dtype)))
        shapes = [
            jax.tree.map(lambda x: list(jnp.shape(x)), c) for c in (wanted, carry)
        ]
        check(
            jax.tree.structure(wanted) == jax.tree.structure(carry)
            and shapes[0] == shapes[1],
            f"{name} must have the shapes {shapes[0]}, got {shapes[1]}.",
        )
        carry = jax.tree.map(lambda x: in_dtype(x, dtype), carry)
        if not self.bidirectional:
            return carry
        return jax.tree.map(lambda *ways: jnp.stack(ways), *carry)

    # ---- a call ----------------------------------------------------------------------

    def call(
        self,
        inputs: ArrayLike,
        arrays: Mapping[str, Array | None],
        key: Array | None,
        *,
        initial_carry: Carry | None = None,
        seq_lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_carry: Carry | None = None,
    ) -> Any:
        """y, or (carry, y) with return_carry.

        Args:
          inputs: as for the layers, and so the last five.
          arrays: the parameters by name.
          key: for zoneout; None where a call is deterministic.
          initial_carry: see there.
          seq_lengths: see there.
          mask: see there.
          resets: see there.
          reset_carry: see there.
        """
        name, batch = self.name, self.batch(inputs)
        given = inputs, dict(arrays)
        x, arrays = promoted(given, self.dtype, apart=self.float32_params)
        check_seq_lengths(name, seq_lengths, x, time_major=self.time_major)
        check(
            reset_carry is None or resets is not None,
            f"{name}: reset_carry is given without resets; give resets, or leave it "
            "out.",
        )
        y, state = self.run(
            x,
            arrays,
            key,
            state_0=self.state_of(
                f"{name}: initial_carry", initial_carry, batch, x.dtype
            ),
            lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_to=self.state_of(f"{name}: reset_carry", reset_carry, batch, x.dtype),
            time_major=self.time_major,
        )
        if self.reverse and not self.keep_order:
            y = in_order_of_processing(y, seq_lengths, time_major=self.time_major)
        return (self.carry_of(state), y) if self.return_carry else y
