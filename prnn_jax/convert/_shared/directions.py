"""Two directions, one layer."""

from collections.abc import Sequence

from prnn_jax._given.checks import check
from prnn_jax._given.params import BidirectionalParams, Params, described
from prnn_jax.convert._shared import layouts
from prnn_jax.convert._shared.named_arrays import check_is_params


def stack_directions(forward: Params, backward: Params) -> Params:
    """The `BidirectionalParams` of a layer from the `Params` of its two directions.

    Raises:
      ValueError: they differ in shapes or dtypes, or one lacks a bias of the other's.
    """
    op = "stack_directions"
    for side, params in (("forward", forward), ("backward", backward)):
        check(
            isinstance(params, Params),
            f"{op}: {side} must be prnn_jax.Params, got {described(params)}.",
        )
        check(
            not isinstance(params, BidirectionalParams) or params.w_hh.ndim < 3,
            f"{op}: {side} must be of one direction, got BidirectionalParams, w_hh "
            f"{list(params.w_hh.shape)}.",
        )
    return joined(op, (forward, backward))


def split_directions(params: Params) -> tuple[Params, Params]:
    """The inverse of `stack_directions`: forward, backward.

    Returns:
      Two `Params`; `MultiHeadParams` of a layer with heads.

    Raises:
      ValueError: params have no leading axis of 2, or one that is heads.
    """
    op = "split_directions"
    check_is_params(op, params)
    check(
        params.w_hh.ndim in (3, 4) and params.w_hh.shape[0] == 2,
        f"{op}: w_hh must be [2, hidden, G*hidden], got {list(params.w_hh.shape)}.",
    )
    forward, backward = layouts.split_directions(params, True)
    return forward, backward


def joined(op: str, sides: Sequence[Params]) -> Params:
    """The params of a layer from those of its one or two directions."""

    def listed(params: Params) -> str:
        arrays = {n: a for n, a in params._asdict().items() if a is not None}
        return ", ".join(f"{n} {list(a.shape)} {a.dtype}" for n, a in arrays.items())

    first, last = listed(sides[0]), listed(sides[-1])
    check(
        first == last,
        f"{op}: both directions must have the same arrays, got {first} forward and "
        f"{last} backward.",
    )
    return layouts.stack_directions(sides)
