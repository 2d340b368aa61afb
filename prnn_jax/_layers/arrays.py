"""A layer's arrays in the host libraries, from `Params`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.arguments import another_cells, projected_sizes
from prnn_jax._cells.table import Cell
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import (
    BidirectionalParams,
    MultiHeadParams,
    Params,
    described,
)
from prnn_jax._given.statics import flag, size
from prnn_jax.convert._shared import layouts


class LayerArrays(NamedTuple):
    """What a layer keeps, with one bias for each gate, and its sizes.

    Attributes:
      w_ih: as in `Params`.
      w_hh: as in `Params`.
      b_ih: as in `Params`, and b_hh added to it; None for zero.
      b_hn: `[hidden]`, of a GRU with reset_after, the part of b_hh that is inside the
        product with r; None for zero. With the leading axes of the others.
      peepholes: as in `Params`.
      w_hr: as in `Params`.
      input_size: of x.
      hidden_size: of the state, of all heads.
      proj_size: of h where there is a w_hr, of all heads; or None.
      heads: how many there are, or None.
      bidirectional: whether there are two directions.
    """

    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hn: Array | None
    peepholes: Array | None
    w_hr: Array | None
    input_size: int
    hidden_size: int
    proj_size: int | None
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
            checks.array(op, name, array)
    if cell.with_per_unit is None and not cell.per_unit:
        layouts.check_no_peepholes(op, params)
    if cell.with_projection is None:
        layouts.check_no_projection(op, params)
    check(
        bool(cell.engines) or params.b_hh is None,
        f"{op}: b_hh must be None, for the layer has one bias, b_ih, which the step of "
        f"{cell.function} sees in a_x, got an array; a bias that it sees elsewhere can "
        "be among its units' own numbers (per_unit).",
    )
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
    hidden = output = params.w_hh.shape[-2]
    if params.w_hr is not None:
        hidden, output = projected_sizes(
            params.w_hh.shape, params.w_hr.shape, cell.gates
        )
    inputs = params.w_ih.shape[-2] if params.w_ih.ndim > 1 else 0
    expected = {
        "w_ih": (*lead, inputs, cell.gates * hidden),
        "w_hh": (*lead, output, cell.gates * hidden),
        "b_ih": (*lead, cell.gates * hidden),
        "b_hh": (*lead, cell.gates * hidden),
        "peepholes": (*lead, (cell.per_unit or 3) * hidden),
        "w_hr": (*lead, hidden, output),
    }
    other = another_cells(params.w_hh.shape, cell.gates) if params.w_hr is None else ""
    for name, shape in expected.items():
        array = getattr(params, name)
        check(
            array is None or tuple(array.shape) == shape,
            f"{op}: {name} must be {list(shape)}, for {cell.gates} gates of {hidden} "
            f"units, got {[] if array is None else list(array.shape)}{other}.",
        )
    check(
        cell.base != "gru" or params.b_hh is None,
        f"{op}: b_hh must be None for the GRU with layer norm: add its parts of r and "
        "z to b_ih, and that of n to the n_shift among its peepholes.",
    )
    of_reset = cell.function == "gru" and options.get("reset_after", True)
    kind = "gru" if of_reset else "lstm"
    own = params.peepholes, params.w_hr
    arrays = *layouts.separate_biases(kind, params), *own
    heads = of_heads[0] if of_heads else None
    proj_size = None if params.w_hr is None else output * (heads or 1)
    sizes = inputs, hidden * (heads or 1), proj_size, heads
    return LayerArrays(*arrays, *sizes, bidirectional)


def alike(op: str, layers: Sequence[Any]) -> dict[str, bool]:
    """Options of all layers of a stack, where some are to have such parameters.

    Raises:
      ValueError: they have not one projection size, or none; in the words of `op`.
    """
    arrays = [getattr(params, "w_hr", None) for params in layers]
    widths = [None if w is None else w.shape[-1] for w in arrays]
    check(
        len(set(widths)) <= 1,
        f"{op}: w_hr must be as wide in all layers, or None in all, got {widths}.",
    )
    has_own = any(getattr(params, "peepholes", None) is not None for params in layers)
    return {"peepholes": True} if has_own else {}


def check_kept(
    op: str, given: LayerArrays, peepholes: Any, proj_size: int | None
) -> None:
    """A layer made of parameters must keep their peepholes and projection."""
    check(
        given.peepholes is None or peepholes is not None,
        f"{op}: peepholes must be True for params with such, got False.",
    )
    check(
        given.proj_size == proj_size,
        f"{op}: proj_size must be {given.proj_size}, which params have, or left out, "
        f"got {proj_size}.",
    )


def own_numbers(op: str, cell: Cell, peepholes: Any) -> int:
    """How many numbers each unit has for itself, by an option of a layer.

    Raises:
      ValueError: it is no flag, or the cell has none; in the words of `op`.
    """
    if cell.per_unit:  # of a cell of the user's, which is not without
        return cell.per_unit
    known = flag(op, "peepholes", peepholes)
    check(
        not known or cell.with_per_unit is not None,
        f"{op}: peepholes must be False, which only LSTM has, got True.",
    )
    return 3 if known else 0


def begin_own(cell: Cell, shape: tuple[int, ...], dtype: Any) -> Array:
    """What the numbers that units have for themselves begin with."""
    return jnp.broadcast_to(jnp.asarray(cell.own_begins(shape[-1]), dtype), shape)


def checked_proj_size(op: str, cell: Cell, proj_size: Any, heads: Any) -> int | None:
    """The option of a layer, checked.

    Raises:
      ValueError: it is no size, or the cell has none; in the words of `op`.
    """
    if proj_size is None:
        return None
    proj_size = size(op, "proj_size", proj_size)
    check(
        cell.with_projection is not None,
        f"{op}: proj_size must be None, which only LSTM has, got {proj_size}.",
    )
    check(
        proj_size % (heads or 1) == 0,
        f"{op}: heads must divide proj_size={proj_size}, got {heads}.",
    )
    return proj_size
