"""Parameters of a layer, and what their leading axis means."""

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import Array

from prnn_jax._given.checks import check


class Params(NamedTuple):
    """Parameters of a recurrent layer with G gates (4 LSTM, sLSTM, 3 GRU, 1 RNN).

    Attributes:
      w_ih: `[input, G*hidden]`, gates in the order i f g o (LSTM), i f z o (sLSTM) or
        r z n (GRU).
      w_hh: `[hidden, G*hidden]`; with w_hr `[projection, G*hidden]`.
      b_ih: `[G*hidden]`, or None for zero.
      b_hh: `[G*hidden]`, or None for zero. It differs from b_ih only in the GRU with
        reset_after, where its last third is inside the product with r.
      peepholes: `[3*hidden]`, of an LSTM whose gates i, f and o see c, in that order
        (Gers & Schmidhuber 2000); None for one without.
      w_hr: `[hidden, projection]`, of an LSTM whose h is the product of what its units
        give with this matrix (LSTMP, Sak et al. 2014, arXiv:1402.1128; PyTorch's
        proj_size); None for one without.

    With heads each has a leading axis `heads` (`MultiHeadParams`); of a bidirectional
    layer each has a leading axis of 2 (`BidirectionalParams`), before that of heads.
    These two are `Params` that say which it is: without their name, the call's
    bidirectional says it, and a leading axis of 2 in a call without is a warning.
    """

    w_ih: Array
    w_hh: Array
    b_ih: Array | None = None
    b_hh: Array | None = None
    peepholes: Array | None = None
    w_hr: Array | None = None


class BidirectionalParams(Params):
    """`Params` whose leading axis, of 2, is the direction: forward, then backward.

    An axis of heads may follow. A call with them must say bidirectional=True.
    """

    __slots__ = ()


class MultiHeadParams(Params):
    """`Params` whose leading axis is the head: w_hh are blocks on a diagonal.

    So `w_ih [heads, input, G*hidden]`, `w_hh [heads, hidden, G*hidden]`, and biases
    `[heads, G*hidden]`, with hidden that of a head. The layer's state and output are
    `heads*hidden` wide, head by head (h and output `heads*projection`, with w_hr);
    every head reads all of the input.
    """

    __slots__ = ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared:
    """A layer's parameters together with what `prepare` has made of them.

    Attributes:
      params: as they were given, or rounded to 8 bits. Constant: they get no gradient.
      packed: the same numbers in the order in which the CPU engine of this machine
        reads them, uint32; None where there is no such engine. Not to be changed. With
        other parameters a call does not read it, and takes longer.
    """

    params: Params
    packed: Array | None


def plain(params: Params | Prepared) -> Params:
    """The parameters, prepared or not."""
    return params.params if isinstance(params, Prepared) else params


def described(thing: Any, *, several: bool = False) -> str:
    """What is no `Params`, or no one `Params`, as a message calls it.

    Args:
      thing: what came.
      several: whether those of the layers of a stack would do, too.
    """
    name, inner = type(thing).__name__, getattr(thing, "params", None)
    if isinstance(thing, Mapping) and thing and set(thing) <= set(Params._fields):
        return f"{name}; write prnn_jax.Params(**params)"
    if isinstance(thing, Mapping) and "params" in thing:
        return f"{name}; of a layer of Linen, pass layer.to_params(variables)"
    if isinstance(inner, Params) or (several and isinstance(inner, (tuple, dict))):
        return f"{name}; pass its .params"
    is_tuple = isinstance(thing, (tuple, list)) and not several
    if is_tuple and any(isinstance(p, Params) for p in thing):
        return f"{name} of Params; pass one of them, or call prnn_jax.stack"
    return name


def typed(params: Params, *, bidirectional: bool, heads: bool) -> Params:
    """The same by the type that says what their leading axis is."""
    if bidirectional:
        return BidirectionalParams(*params)
    return MultiHeadParams(*params) if heads else Params(*params)


def check_lead(op: str, params: Any, w_hh: Any, *, bidirectional: bool) -> None:
    """The leading axis must mean what the call takes it for.

    Where nothing says what an axis of 2 is, it is heads, with a warning.

    Raises:
      ValueError: the type of params says something else; in the words of `op`.
    """
    shape = getattr(w_hh, "shape", ())
    if bidirectional:
        check(
            not isinstance(params, MultiHeadParams) or len(shape) != 3,
            f"{op}: params are MultiHeadParams, w_hh {list(shape)}, without an axis of "
            "directions, but bidirectional=True. Leave that out, or make params of "
            "both directions: prnn_jax.convert.stack_directions(forward, backward).",
        )
        return
    of_two = len(shape) >= 3 and shape[0] == 2
    check(
        not isinstance(params, BidirectionalParams) or not of_two,
        f"{op}: params are BidirectionalParams, w_hh {list(shape)}; write "
        "bidirectional=True, or take one direction of "
        "prnn_jax.convert.split_directions(params). If the axis of 2 is heads, write "
        "prnn_jax.MultiHeadParams(*params).",
    )
    if of_two and len(shape) == 3 and not isinstance(params, MultiHeadParams):
        warn_of_two(op, shape, "params = prnn_jax.MultiHeadParams(*params)")


def warn_of_two(op: str, shape: tuple[int, ...], heads: str) -> None:
    """Warns that an axis of 2 is taken for heads; `heads` is what says so."""
    warnings.warn(
        f"{op}: the leading axis of w_hh {list(shape)} is taken for two heads, but may "
        f"be two directions. Write bidirectional=True if it is; {heads} if it is not.",
        UserWarning,
        stacklevel=_levels_to_caller(),
    )


def _levels_to_caller() -> int:
    """`stacklevel`, for `warn_of_two`, of the innermost frame that is a user's."""
    ours = __name__.partition(".")[0]
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in (ours, "jax", "jaxlib"):
            break
        frame, level = frame.f_back, level + 1
    return level
