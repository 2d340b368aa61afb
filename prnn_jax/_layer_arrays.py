"""A layer's arrays in the host libraries, from `Params`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import Array

from prnn_jax import _checks, _weights
from prnn_jax._cells import Cell
from prnn_jax._checks import check
from prnn_jax._options import flag
from prnn_jax._params import BidirectionalParams, MultiHeadParams, Params, described


class LayerArrays(NamedTuple):
    """What a layer keeps, with one bias for each gate, and its sizes.

    Attributes:
      w_ih: as in `Params`.
      w_hh: as in `Params`.
      b_ih: as in `Params`, and b_hh added to it; None for zero.
      b_hn: `[hidden]`, of a GRU with reset_after, the part of b_hh that is inside the
        product with r; None for zero. With the leading axes of the others.
      peepholes: as in `Params`.
      input_size: of x.
      hidden_size: of the state, of all heads.
      heads: how many there are, or None.
      bidirectional: whether there are two directions.
    """

    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hn: Array | None
    peepholes: Array | None
    input_size: int
    hidden_size: int
    heads: int | None
    bidirectional: bool


def layer_arrays(op: str, cell: Cell, params: Any, options: dict) -> LayerArrays:
    """Those that a layer of the cell has with such parameters.

    Args:
      options: the layer's: bidirectional, where the type of params does not say it, and
        reset_after.

    Raises:
      ValueError: params are not those of one layer of the cell; in the words of `op`.
    """
    check(
        isinstance(params, Params),
        f"{op}: params must be prnn_jax.Params, got {described(params)}.",
    )
    for name, array in params._asdict().items():
        if array is not None or name in ("w_ih", "w_hh"):
            _checks.array(op, name, array)
    if cell.with_per_unit is None:
        _weights.check_no_peepholes(op, params)
    bidirectional = isinstance(params, BidirectionalParams)
    if "bidirectional" in options:
        bidirectional = flag(op, "bidirectional", options["bidirectional"])
    lead = params.w_hh.shape[:-2]
    of_heads = lead[1:] if bidirectional else lead
    shape = f"w_hh {list(params.w_hh.shape)}"
    check(
        len(of_heads) <= 1 and (not bidirectional or lead[:1] == (2,)),
        f"{op}: w_hh must be [hidden, G*hidden], with an axis of heads before these, "
        "and before that one of 2 if bidirectional, got "
        f"{shape}{' and bidirectional' if bidirectional else ''}.",
    )
    check(
        not of_heads or bidirectional or isinstance(params, MultiHeadParams),
        f"{op}: the leading axis of {shape} may be directions or heads; pass prnn_jax."
        "BidirectionalParams(*params) or prnn_jax.MultiHeadParams(*params).",
    )
    hidden = params.w_hh.shape[-2]
    inputs = params.w_ih.shape[-2] if params.w_ih.ndim > 1 else 0
    expected = {
        "w_ih": (*lead, inputs, cell.gates * hidden),
        "w_hh": (*lead, hidden, cell.gates * hidden),
        "b_ih": (*lead, cell.gates * hidden),
        "b_hh": (*lead, cell.gates * hidden),
        "peepholes": (*lead, 3 * hidden),
    }
    for name, shape in expected.items():
        array = getattr(params, name)
        check(
            array is None or tuple(array.shape) == shape,
            f"{op}: {name} must be {list(shape)}, for {cell.gates} gates of {hidden} "
            f"units, got {[] if array is None else list(array.shape)}.",
        )
    of_reset = cell.function == "gru" and options.get("reset_after", True)
    kind = "gru" if of_reset else "lstm"
    arrays = *_weights.separate_biases(kind, params), params.peepholes
    heads = of_heads[0] if of_heads else None
    sizes = inputs, hidden * (heads or 1), heads
    return LayerArrays(*arrays, *sizes, bidirectional)


def any_peepholes(layers: Sequence[Any]) -> dict[str, bool]:
    """The option of all layers of a stack, where some are to have such parameters."""
    has_own = any(getattr(params, "peepholes", None) is not None for params in layers)
    return {"peepholes": True} if has_own else {}


def check_kept(op: str, given: Any, kept: Any) -> None:
    """A layer made of parameters must keep their peepholes."""
    check(
        given is None or kept is not None,
        f"{op}: peepholes must be True for params with such, got False.",
    )


def has_peepholes(op: str, cell: Cell, peepholes: Any) -> bool:
    """The option of a layer, checked.

    Raises:
      ValueError: it is no flag, or the cell has none; in the words of `op`.
    """
    known = flag(op, "peepholes", peepholes)
    check(
        not known or cell.with_per_unit is not None,
        f"{op}: peepholes must be False, which only LSTM has, got True.",
    )
    return known
