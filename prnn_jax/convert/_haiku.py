"""The cores of Haiku."""

from collections.abc import Mapping
from typing import Any

from jax import Array

from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._shared import named_arrays
from prnn_jax.convert._shared.layouts import Layout

# Gates are i g f o and z r a, and z is 1 minus ours.
_LAYOUTS = {
    "LSTM": Layout(
        "lstm",
        ("linear/w",),
        ("linear/w",),
        ("linear/b",),
        order="igfo",
        forget_bias=1.0,
    ),
    "GRU": Layout(
        "gru_reset_before", ("w_i",), ("w_h",), ("b",), order="zrn", negated="z"
    ),
    "VanillaRNN": Layout(
        "rnn", ("linear/w",), ("linear_1/w",), ("linear/b",), bias_hh=("linear_1/b",)
    ),
}
_VANILLA_ONE_BIAS = Layout("rnn", ("linear/w",), ("linear_1/w",), ("linear/b",))

# As Haiku calls a module that is not given a name.
_MODULES = {"LSTM": "lstm", "GRU": "gru", "VanillaRNN": "vanilla_rnn"}


def from_haiku(
    cell: str, params: Mapping[str, Mapping[str, Any]], module: str | None = None
) -> Params:
    """`hk.LSTM`, `hk.GRU` or `hk.VanillaRNN` as `Params`.

    What `hk.dynamic_unroll(core, x, state)` computes of x `[time, batch, input]` is

    - LSTM: `prnn_jax.lstm(x, params, (state.hidden, state.cell), time_major=True)`.
      Haiku adds 1 to f's bias whenever it runs; here the 1 is in the bias. Where that
      sum is rounded, the way back does not give the same bits.
    - GRU: `prnn_jax.gru(x, params, state, reset_after=False, time_major=True)`. Haiku's
      z is the share of the new state, ours that of the old one: z's parameters change
      their sign.
    - VanillaRNN: `prnn_jax.rnn(x, params, state, activation="relu", time_major=True)`.

    Args:
      cell: "LSTM", "GRU" or "VanillaRNN".
      params: as `hk.transform(...).init` makes them, also of a model with more in it.
      module: the core's name among them, with all that is in front of it, e.g.
        "net/~/lstm". By default what Haiku calls a first core without a name: "lstm",
        "gru", "vanilla_rnn". Its arrays are: LSTM, `linear` with w
        `[input+hidden, 4*hidden]` and b; GRU, w_i `[input, 3*hidden]`, w_h
        `[hidden, 3*hidden]` and b; VanillaRNN, `linear` with w `[input, hidden]` and b,
        `linear_1` with w `[hidden, hidden]` and, with double_bias, b.

    Returns:
      `Params` with b_ih, and with b_hh from a VanillaRNN with double_bias.

    Raises:
      ValueError: no such module; arrays are missing, unknown, or of wrong shapes.
    """
    op = "from_haiku"
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    named_arrays.check_mapping(
        op, "params", params, "as hk.transform(...).init makes it"
    )
    _check_module(op, module)
    prefix = f"{_MODULES[cell] if module is None else module}/"
    given = named_arrays.flat(params, "/")
    arrays = {
        name.removeprefix(prefix): value
        for name, value in given.items()
        if name.startswith(prefix)
    }
    inside = [m for m in _modules_of(layout, given) if prefix.startswith(f"{m}/")]
    check(
        not inside or prefix[:-1] in inside,
        f"{op}: module must be the core's name, {' or '.join(map(repr, inside))}, got "
        f"{module!r}, which is a part of it.",
    )
    check(
        bool(arrays),
        f"{op}: params must have a module {prefix[:-1]!r}, got "
        f"{', '.join(map(repr, params))}; name the core's with module="
        f"{' or '.join(map(repr, _modules_of(layout, given)))}.",
    )
    if cell == "VanillaRNN" and "linear_1/b" not in arrays:
        layout = _VANILLA_ONE_BIAS
    return named_arrays.read(op, layout, arrays)


def to_haiku(
    cell: str, params: Params, module: str | None = None
) -> dict[str, dict[str, Array]]:
    """The inverse of `from_haiku`; `hk.data_structures.merge` adds it to a model's.

    Haiku's cores have a bias, zero where params have none. Only the VanillaRNN keeps
    two, and needs double_bias=False if there is no b_hh; for the others they become
    one, their sum.

    Args:
      cell: "LSTM", "GRU" (of `prnn_jax.gru` with reset_after=False only) or
        "VanillaRNN".
      params: with the gates that the core has, of one direction.
      module: as in `from_haiku`.

    Raises:
      ValueError: shapes do not fit.
    """
    op = "to_haiku"
    layout = named_arrays.layout_of(op, _LAYOUTS, cell)
    named_arrays.check_is_params(op, params)
    _check_module(op, module)
    if cell == "VanillaRNN" and params.b_hh is None:
        layout = _VANILLA_ONE_BIAS
    prefix = f"{_MODULES[cell] if module is None else module}/"
    return named_arrays.nested(
        named_arrays.write(op, layout.named(prefix), params), "/"
    )


def _modules_of(layout: Layout, arrays: Mapping[str, Any]) -> list[str]:
    """Names of the modules that have the arrays of such a core."""
    needed = {*layout.names} - {"linear_1/b"}  # there with double_bias
    ends = f"/{layout.weights[0]}"
    modules = [name.removesuffix(ends) for name in arrays if name.endswith(ends)]
    return [m for m in modules if all(f"{m}/{name}" in arrays for name in needed)]


def _check_module(op: str, module: Any) -> None:
    """A module's name must be one."""
    check(
        module is None or isinstance(module, str),
        f"{op}: module must be its name among params, got {type(module).__name__}.",
    )
