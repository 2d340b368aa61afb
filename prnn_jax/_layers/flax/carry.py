"""Carries as Flax has them, and states as the functions of `prnn_jax` do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Lengths, Resets
from prnn_jax._given.checks import check, in_dtype

Carry = Any  # a state, or a tuple of states; a pair of these if bidirectional


class ControlOptions(TypedDict, total=False):
    """Controls: what calls of all layers take besides their input."""

    initial_carry: Carry | None
    seq_lengths: Lengths | None
    mask: ArrayLike | None
    resets: Resets | None
    reset_carry: Carry | None


class CallOptions(ControlOptions, total=False):
    """And of those with a product, but return_carry, which types a call."""

    time_major: bool | None
    deterministic: bool | None


class LayerCallOptions(CallOptions, total=False):
    """And those of all layers."""

    reverse: bool | None
    keep_order: bool | None


def one_step(name: str, input_shape: Any) -> tuple[int, ...]:
    """The shape of one time step of an input.

    Raises:
      ValueError: it is none; in the words of layer `name`.
    """
    is_shape = isinstance(input_shape, (tuple, list)) and len(input_shape) >= 1
    check(
        is_shape,
        f"{name}: input_shape must be [*batch, in_features], got {input_shape!r}.",
    )
    return tuple(input_shape)


@dataclass(frozen=True)
class Form:
    """What a layer's carries look like.

    Attributes:
      order: the names of its arrays: "h", "ch" or "hcnm".
      bidirectional: whether it is a pair, forward and backward.
      states: the same names in the order of the functions.
    """

    order: str
    bidirectional: bool
    states: str

    def make(self, one: Callable[[str], Any]) -> Carry:
        """A carry of what `one(name)` returns for each array."""

        def side():
            made: Any = tuple(map(one, self.order))
            return made if len(made) > 1 else made[0]

        return (side(), side()) if self.bidirectional else side()

    def keys(self, key: Array) -> Callable[[], Array]:
        """Returns the keys of a carry's arrays one by one, split as Linen splits."""
        sides = jax.random.split(key) if self.bidirectional else [key]
        count = len(self.order)
        keys = iter(
            key
            for side in sides
            for key in (jax.random.split(side, count) if count > 1 else [side])
        )
        return lambda: next(keys)

    def in_state_order(self, values: tuple) -> tuple:
        """Values that are in the order of a carry, as a function takes them."""
        return tuple(values[self.order.index(s)] for s in self.states)

    def to_state(
        self,
        name: str,
        carry: Carry,
        shapes: Mapping[str, tuple[int, ...]],
        axes: Mapping[str, str],
        dtype: Any,
    ) -> Any:
        """A carry as a function takes it: in its order, directions stacked.

        Args:
          name: with which messages begin.
          carry: see there.
          shapes: of its arrays, by name.
          axes: what theirs are called.
          dtype: of the computation, and of the state where that is not float32 in
            one of 16 bits, which stays so.

        Raises:
          ValueError: it has another structure, or its arrays other shapes.
        """
        *_, last = self.order.replace("h", "") or "h"
        each, of_h = list(shapes[last]), f", h {axes['h']} = {list(shapes['h'])}"
        but = "" if axes["h"] == axes[last] else of_h
        one = f"({', '.join(self.order)})" if len(self.order) > 1 else self.order
        wanted = (
            f"a pair {one}, {one} (forward, backward)" if self.bidirectional else one
        )
        check(
            jax.tree.structure(carry) == jax.tree.structure(self.make(str))
            and all(
                jnp.shape(x) == shapes[s]
                for x, s in zip(
                    jax.tree.leaves(carry),
                    self.order * (1 + self.bidirectional),
                    strict=True,
                )
            ),
            f"{name} must be {wanted}, each {axes[last]} = {each}{but}, got "
            f"{_described(carry)}.",
        )
        leaves = [in_dtype(x, dtype) for x in jax.tree.leaves(carry)]
        count = len(self.order)
        states = tuple(
            jnp.stack(leaves[k::count]) if self.bidirectional else leaves[k]
            for k in range(count)
        )
        return self.in_state_order(states) if count > 1 else states[0]

    def from_state(self, state: Any) -> Carry:
        """The inverse of `to_state`."""
        if len(self.order) == 1:
            return (state[0], state[1]) if self.bidirectional else state
        carry = tuple(state[self.states.index(s)] for s in self.order)
        if not self.bidirectional:
            return carry
        return tuple(s[0] for s in carry), tuple(s[1] for s in carry)


def _described(carry: Any) -> str:
    """Shapes in the structure of a carry; of one array, that it is one."""
    if hasattr(carry, "shape"):
        return f"one array {list(carry.shape)}"
    return str(jax.tree.map(lambda x: list(jnp.shape(x)), carry))
