"""Masks of steps: those that count are moved together, run, and put back.

Between the steps that count a state only waits, so a row without the others, which
`lengths` then ends, is the same recurrence in fewer steps.
"""

from typing import Any, NamedTuple, Protocol, Self

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.arguments import Layout
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, as_array
from prnn_jax._call.options import MaskedY, Options
from prnn_jax._given import checks
from prnn_jax._given.checks import check


class Timed(Protocol):
    """What says where time is: a `Call`, for example."""

    @property
    def time_major(self) -> bool: ...


class StepMask(NamedTuple):
    """Which steps count; each array `[*batch, time]`, or time-major.

    Attributes:
      counts: bool.
      order: int32, of which step each is when those that count are moved to the front.
    """

    counts: Array
    order: Array

    @classmethod
    def of(cls, counts: Array, call: Timed) -> Self:
        """Of what `which_count` gives."""
        order = jnp.argsort(~counts, axis=_axis(call), stable=True)
        return cls(counts, order.astype(jnp.int32))

    def lengths(self, call: Timed) -> Array:
        """How many steps of each row count, `[*batch]`."""
        return jnp.sum(self.counts, _axis(call), dtype=jnp.int32)

    def together(self, call: Timed, sequence: Array) -> Array:
        """A sequence `[*batch, time, features]` with the steps that count in front."""
        axis = _axis(call)
        axis = axis - 1 if axis < 0 else axis
        return jnp.take_along_axis(sequence, self.order[..., None], axis)

    def controls(self, call: Call, given: Layout, controls: Controls) -> Controls:
        """Those of a call of such steps; their sequences are the engines'."""
        if controls.zoneout is None:
            return controls
        order = self.order.reshape(*given.order, 1, 1)
        zoneout = jnp.take_along_axis(controls.zoneout, order, call.time_axis)
        return controls._replace(zoneout=zoneout)

    def apart(
        self, call: Call, given: Layout, y: Array, h_0: Array, masked_y: MaskedY
    ) -> Array:
        """The inverse of `together`, of y as a sequence of the engines.

        Args:
          h_0: `[batch, N, output]`, what is held where nothing came before.
        """
        axis = call.time_axis
        counts = self.counts.reshape(*given.order, 1, 1)
        if not call.bidirectional:
            return put_back(counts, y, h_0, axis, call.reverse, masked_y)
        sides = zip(jnp.split(y, 2, 2), jnp.split(h_0, 2, 1), strict=True)
        ways = call.reverse, not call.reverse
        return jnp.concatenate(
            [
                put_back(counts, *side, axis, way, masked_y)
                for side, way in zip(sides, ways, strict=True)
            ],
            2,
        )


def which_count(
    op: str, mask: Any, batch: tuple[int, ...], time: int, call: Timed
) -> Array:
    """A mask, checked in the words of function `op`, as bool."""
    mask = as_array(op, "mask", mask)
    names = ("time", "*batch") if call.time_major else ("*batch", "time")
    sizes = (time, *batch) if call.time_major else (*batch, time)
    checks.shape(op, "mask", mask, names, sizes)
    return jnp.asarray(mask).astype(bool)


def put_back(
    counts: Array, y: Array, first: Array, axis: int, against: bool, masked_y: MaskedY
) -> Array:
    """The inverse of `StepMask.together`, of one direction.

    Args:
      counts: which steps do, as many axes as y.
      y: of the steps that count in front.
      first: what is held where nothing came before; y without time.
      axis: of time.
      against: whether it is run from the last step to the first.
      masked_y: what is where a step does not count.
    """
    # In the order of time: of the steps that count, how many came up to here.
    before = jnp.cumsum(counts, axis, dtype=jnp.int32)
    if masked_y == "zero":
        at = jnp.maximum(before - 1, 0)
        return jnp.where(counts, jnp.take_along_axis(y, at, axis), 0)
    last = before - (counts.astype(jnp.int32) if against else 1)
    is_first = last >= before[_last(axis)] if against else last < 0
    at = jnp.clip(last, 0, y.shape[axis] - 1)
    first = jnp.expand_dims(first, axis)
    return jnp.where(is_first, first, jnp.take_along_axis(y, at, axis))


def _axis(call: Timed) -> int:
    """Of time, in an array without features."""
    return 0 if call.time_major else -1


def _last(axis: int) -> tuple:
    return (slice(None),) * axis + (slice(-1, None),)


def check_alone(op: str, options: Options) -> None:
    """A mask says all that lengths do, and leaves no place for resets."""
    checks.one_of(op, "masked_y", options.masked_y, ("hold", "zero"))
    if options.mask is None:
        return
    of_resets = "what a reset at a step that does not count does is not defined"
    for name, given, why in (
        ("lengths", options.lengths, "take steps past the end out of the mask"),
        ("resets", options.resets, of_resets),
    ):
        check(given is None, f"{op}: {name} must be None beside mask; {why}.")
