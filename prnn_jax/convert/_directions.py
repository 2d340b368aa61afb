"""Two directions, one layer."""

from collections.abc import Sequence

from prnn_jax import _weights
from prnn_jax._checks import check
from prnn_jax._ops import Params
from prnn_jax.convert._arrays import lead_of


def stack_directions(forward: Params, backward: Params) -> Params:
    """The `Params` of a bidirectional layer from those of its two directions.

    Raises:
      ValueError: they differ in shapes or dtypes, or one lacks a bias of the other's.
    """
    return joined("stack_directions", (forward, backward))


def split_directions(params: Params) -> tuple[Params, Params]:
    """The inverse of `stack_directions`: forward, backward.

    Raises:
      ValueError: params have no leading axis of 2.
    """
    check(
        lead_of("split_directions", params) == (2,),
        "split_directions: w_hh must be [2, hidden, G*hidden], got "
        f"{list(params.w_hh.shape)}.",
    )
    forward, backward = _weights.split_directions(params, True)
    return forward, backward


def joined(op: str, sides: Sequence[Params]) -> Params:
    """The params of a layer from those of its one or two directions."""

    def described(params: Params) -> str:
        arrays = {n: a for n, a in params._asdict().items() if a is not None}
        return ", ".join(f"{n} {list(a.shape)} {a.dtype}" for n, a in arrays.items())

    first, last = described(sides[0]), described(sides[-1])
    check(
        first == last,
        f"{op}: both directions must have the same arrays, got {first} forward and "
        f"{last} backward.",
    )
    return _weights.stack_directions(sides)
