"""Ways that all cells without a product in a step have: two directions, and masks."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.options import LinearCellOptions, Merge, Options
from prnn_jax._call.step_mask import StepMask, check_alone, put_back, which_count
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._linear.run import Steps


def in_directions(
    op: str,
    one: Callable[[str, dict, Any, dict], tuple[Array, Any]],
    weights: dict[str, Any],
    state_0: Any,
    *,
    bidirectional: bool = False,
    merge: Merge = "concat",
    **options: Any,
) -> tuple[Array, Any]:
    """A layer that runs one way or both.

    Args:
      op: the function, for messages.
      one: `(op, weights, state_0, options)`, one direction.
      weights: arrays by name, or None; of two directions with a leading axis of 2.
      state_0: an array, a tuple of such, or None; likewise.
      bidirectional: whether there are two directions.
      merge: of their outputs.
      **options: of one direction.

    Raises:
      TypeError: there is no such option.
    """
    checks.known_options(op, options, LinearCellOptions)
    first, *_ = weights
    check(
        not isinstance(weights[first], Mapping),
        f"{op}: {first} must be an array, got {type(weights[first]).__name__}; write "
        f"{op}(x, **params).",
    )
    both = statics.flag(op, "bidirectional", bidirectional)
    checks.one_of(op, "merge", merge, ("concat", "sum"))
    if not both:
        return one(op, weights, state_0, options)
    reverse = statics.flag(op, "reverse", options.get("reverse", False))
    of_both = {**weights, "the initial state": state_0}
    of_both["reset_to"] = options.get("reset_to")
    sides = []
    for n, way in enumerate(("forward", "backward")):
        own = {name: _of_direction(op, name, x, n) for name, x in of_both.items()}
        state, reset_to = own.pop("the initial state"), own.pop("reset_to")
        of_way = {**options, "reverse": reverse != bool(n), "reset_to": reset_to}
        sides.append(one(f"{op}, {way}", own, state, of_way))
    (y, state), (y_back, state_back) = sides
    y = y + y_back if merge == "sum" else jnp.concatenate([y, y_back], -1)
    return y, jax.tree.map(lambda *ways: jnp.stack(ways), state, state_back)


def _of_direction(op: str, name: str, value: Any, n: int) -> Any:
    """One of two directions of an array, or of a tuple of them."""
    if isinstance(value, (tuple, list)):
        return tuple(_of_direction(op, name, x, n) for x in value)
    if value is None:
        return None
    shape = jnp.shape(checks.jax_array(op, name, value))
    check(
        shape[:1] == (2,),
        f"{op}: {name} must have a leading axis of 2, forward and backward, with "
        f"bidirectional=True, got {list(shape)}.",
    )
    return value[n]


#: Moves the steps of a sequence that count to the front.
Together = Callable[[Array], Array]


def in_fewer_steps(
    op: str,
    run: Callable[[Array, dict, Together], tuple[Array, Any]],
    x: Any,
    first: Any,
    options: dict,
) -> tuple[Array, Any]:
    """A layer whose y is not its state: a mask leaves its steps out, y is put back.

    Args:
      op: the function, for messages.
      run: `(x, options, together)`, of options without a mask; `together` is for other
        sequences.
      x: the input.
      first: what y holds where no step came before that counts; zeros if None.
      options: of one direction.
    """
    given = Options.of(options)
    check_alone(op, given)
    mask, masked_y = given.mask, given.masked_y
    others = {k: v for k, v in options.items() if k not in ("mask", "masked_y")}
    if mask is None:
        return run(x, others, lambda sequence: sequence)
    x = checks.jax_array(op, "x", x)
    steps = Steps.of(op, "x", x, "input", given.time_major)
    counts = which_count(op, mask, steps.batch, steps.time, steps)
    moved = StepMask.of(counts, steps)

    def together(sequence: Array) -> Array:
        return moved.together(steps, sequence)

    others["lengths"] = moved.lengths(steps)
    y, state = run(together(x), others, together)
    if y.size == 0:
        return y, state
    if first is None:
        first = jnp.zeros((*steps.batch, y.shape[-1]), y.dtype)
    reverse = bool(given.reverse)
    first = first.astype(y.dtype)  # which may be a float32 state of 16 bits
    y = put_back(counts[..., None], y, first, steps.axis, reverse, masked_y)
    return y, state
