"""Carries as Flax has them, and states as the functions of `prnn_jax` do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._checks import check

Carry = Any  # a state, or a tuple of states; a pair of these if bidirectional

_STATES = "hcnm"  # the states, in the order of the functions


@dataclass(frozen=True)
class Form:
    """What a layer's carries look like.

    Attributes:
      order: the names of its arrays: "h", "ch" or "hcnm".
      bidirectional: whether it is a pair, forward and backward.
    """

    order: str
    bidirectional: bool

    def make(self, one: Callable[[], Any]) -> Carry:
        """A carry of what `one()` returns for each array."""

        def side():
            count = len(self.order)
            return tuple(one() for _ in range(count)) if count > 1 else one()

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
        return tuple(values[self.order.index(s)] for s in _STATES[: len(values)])

    def to_state(
        self, name: str, carry: Carry, shape: tuple[int, ...], axes: str, dtype: Any
    ) -> Any:
        """A carry as a function takes it: in its order, directions stacked.

        Raises:
          ValueError: it has another structure, or its arrays not this shape, whose axes
            are called `axes`; the message begins with the name.
        """
        one = f"({', '.join(self.order)})" if len(self.order) > 1 else self.order
        wanted = (
            f"a pair {one}, {one} (forward, backward)" if self.bidirectional else one
        )
        check(
            jax.tree.structure(carry) == jax.tree.structure(self.make(lambda: 0))
            and all(jnp.shape(x) == shape for x in jax.tree.leaves(carry)),
            f"{name} must be {wanted}, each {axes} = {list(shape)}, got "
            f"{jax.tree.map(lambda x: list(jnp.shape(x)), carry)}.",
        )
        leaves = [jnp.asarray(x, dtype) for x in jax.tree.leaves(carry)]
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
        carry = tuple(state[_STATES.index(s)] for s in self.order)
        if not self.bidirectional:
            return carry
        return tuple(s[0] for s in carry), tuple(s[1] for s in carry)
