"""Parameters as layers usually begin with them."""

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack, get_args, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.controls import as_array
from prnn_jax._cells.table import AnyCell, Cell, CellName, Defined, check_cell_name
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, typed
from prnn_jax._given.statics import flag, number, size
from prnn_jax._linear.begin import begin
from prnn_jax._linear.table import InitOptions

Scheme = Literal["orthogonal", "keras", "pytorch"]

#: Of the gates that keep the old state: what they are called, and their opposites.
_KEEPS: dict[CellName, tuple[str, str]] = {"lstm": ("f", "i"), "gru": ("z", "")}
#: Cells with a forget gate.
_FORGETS = "lstm", "slstm"


@overload
def init(
    cell: AnyCell,
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    scheme: Scheme = "orthogonal",
    forget_bias: ArrayLike | None = None,
    chrono: float | None = None,
    bias: bool = True,
    peepholes: bool = False,
    proj_size: int | None = None,
    heads: int | None = None,
    bidirectional: bool = False,
    dtype: Any = jnp.float32,
) -> Params: ...


@overload
def init(
    cell: LinearCellName,
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    bias: bool = True,
    peepholes: bool = False,
    bidirectional: bool = False,
    dtype: Any = jnp.float32,
    **own: Unpack[InitOptions],
) -> dict[str, Any]: ...


def init(
    cell: AnyCell | LinearCellName,
    key: Array,
    input_size: int,
    hidden_size: int,
    *,
    scheme: Scheme = "orthogonal",
    forget_bias: ArrayLike | None = None,
    chrono: float | None = None,
    bias: bool = True,
    peepholes: bool = False,
    proj_size: int | None = None,
    heads: int | None = None,
    bidirectional: bool = False,
    dtype: Any = jnp.float32,
    **own: Unpack[InitOptions],
) -> Params | dict[str, Any]:
    r"""Draws the parameters of a layer.

    - "orthogonal": each gate's w_hh orthogonal (Saxe et al. 2014, arXiv:1312.6120), so
      w_hr, each gate's w_ih uniform after Glorot & Bengio (2010, AISTATS), biases zero.
    - "keras": the same of the gates' matrices side by side, as `keras.layers` has it.
    - "pytorch": everything uniform between :math:`±1/\sqrt{hidden}`, and two biases, as
      `torch.nn` has it.

    The cells without a product in a step begin as their papers have it, or, where these
    say nothing, with a w_ih that is normal with the variance 1/input_size and biases of
    zero: the SRU's weights uniform with that variance; the IndRNN's u uniform from 0 to
    :math:`2^{1/steps}`; the RG-LRU's Λ so that :math:`σ(Λ)^c` is uniform from 0.9 to
    0.999.

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", or what `define_cell` has made; or
        "min_gru", "min_lstm", "sru", "qrnn", "rg_lru", "lru" or "indrnn".
      key: of `jax.random`.
      input_size: of x.
      hidden_size: of the state, all heads together.
      scheme: see above.
      forget_bias: what the forget gate of the LSTM or the sLSTM begins with instead: a
        number (Jozefowicz et al. 2015, ICML), or one for each unit, `[hidden_size]`, or
        with heads `[hidden_size / heads]`, the same in each. By default 1 for the LSTM
        with "orthogonal" and "keras". The xLSTM's sLSTM in block k of n begins with
        `5 - 12 * jnp.linspace(0, 1, head) ** (0.3 + 1.3 * k / (n - 1))`.
      chrono: the longest dependency, in steps, that the layer is to remember: biases
        begin with :math:`b_f = \log u`, :math:`b_i = -b_f` (LSTM) or
        :math:`b_z = \log u` (GRU, whose z keeps the old state), u uniform from 1 to
        chrono - 1 (Tallec & Ollivier 2018, arXiv:1804.11188).
      bias: whether there are biases.
      peepholes: whether the LSTM, or the SRU, has peepholes; they begin with zero
        ("pytorch": like all else).
      proj_size: of h and y, all heads together, of an LSTM with the projection w_hr;
        None for one without.
      heads: into how many independent recurrences the state is divided; a divisor of
        hidden_size and proj_size. Of the RG-LRU, the blocks of its gates.
      bidirectional: two directions, drawn apart.
      dtype: of the arrays; in 16 bits what factors are made of (Λ of the RG-LRU, of the
        LRU all but its matrices, u of the IndRNN) is float32.
      **own: of cells without a product: the QRNN's pooling and width, what the bias of
        the SRU's highway begins with, highway_bias, the RG-LRU's c, and the steps that
        the IndRNN's sequences have, or None.

    Returns:
      `Params`; with two directions `BidirectionalParams`, with heads `MultiHeadParams`.
      Of a cell without a product the arguments of its function by name:
      `prnn_jax.min_gru(x, **prnn_jax.init("min_gru", key, 80, 256))`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """
    check_cell_name("init", cell, get_args(LinearCellName))
    checks.key("init", key)
    checks.known_options("init", own, InitOptions)
    checks.one_of("init", "scheme", scheme, get_args(Scheme))
    input_size = size("init", "input_size", input_size)
    hidden_size = size("init", "hidden_size", hidden_size)
    bias, peepholes = flag("init", "bias", bias), flag("init", "peepholes", peepholes)
    bidirectional = flag("init", "bidirectional", bidirectional)
    heads = None if heads is None else size("init", "heads", heads)
    dtype = checks.dtype("init", dtype)
    if cell in get_args(LinearCellName):
        has_heads = cell == "rg_lru"
        unfit = {"forget_bias": forget_bias, "chrono": chrono}
        unfit |= {} if has_heads else {"heads": heads}
        unfit |= {"scheme": None if scheme == "orthogonal" else scheme}
        for name, value in (unfit | {"proj_size": proj_size}).items():
            check(
                value is None,
                f"init: {name} must be left out for {cell}, whose parameters begin "
                f"as its paper has it and which has no product in a step, got "
                f"{value!r}.",
            )
        linear: Any = cell
        of_both = {"bias": bias, "bidirectional": bidirectional, "dtype": dtype}
        given = {**own, **({"peepholes": True} if peepholes else {})}
        given |= {"heads": heads} if has_heads else {}
        return begin("init", linear, key, input_size, hidden_size, given, **of_both)
    check(
        not own,
        f"init: only cells without a product in a step have {', '.join(own)}, got "
        f"cell={cell!r}.",
    )
    check(
        hidden_size % (heads or 1) == 0,
        f"init: heads must divide hidden_size={hidden_size}, got {heads}.",
    )
    check(
        not peepholes or cell == "lstm",
        f"init: peepholes must be False, which only the lstm has, got True for {cell}.",
    )
    if proj_size is not None:
        proj_size = size("init", "proj_size", proj_size)
        check(
            cell == "lstm",
            f"init: proj_size must be None, for only the lstm has a projection, got "
            f"{proj_size} for {cell}.",
        )
        check(
            proj_size % (heads or 1) == 0,
            f"init: heads must divide proj_size={proj_size}, got {heads}.",
        )
    names = {"rnn": "rnn_tanh"}
    row = cell.row if isinstance(cell, Defined) else names.get(cell, cell)
    table = Call(row).table
    count = 3 if peepholes else table.per_unit
    hidden = hidden_size // (heads or 1)
    first_bias = _first_bias(table, scheme, hidden, forget_bias, chrono, bias)
    projection = None if proj_size is None else proj_size // (heads or 1)

    def draw(key: Array) -> Params:
        sizes = input_size, hidden, projection
        return _draw(key, table, scheme, first_bias, *sizes, bias, count)

    lead = (2,) * bidirectional + (() if heads is None else (heads,))
    drawn = [draw(k) for k in jax.random.split(key, math.prod(lead))]
    stacked = jax.tree.map(
        lambda *arrays: (
            jnp.stack(arrays).reshape(*lead, *arrays[0].shape).astype(dtype)
        ),
        *drawn,
    )
    return typed(stacked, bidirectional=bidirectional, heads=heads is not None)


#: Of a key, the biases of all gates side by side.
FirstBias = Callable[[Array], Array]


def _first_bias(
    table: Cell,
    scheme: Scheme,
    hidden: int,
    forget_bias: ArrayLike | None,
    chrono: float | None,
    bias: bool,
) -> FirstBias | None:
    """What b_ih begins with, where that is not the scheme's own."""
    cell = table.base or table.function
    if chrono is not None:
        chrono = float(number("init", "chrono", chrono))
        check(
            cell in _KEEPS and chrono > 2,
            "init: chrono must be None, or more than 2 steps for a lstm or gru, got "
            f"{chrono:g} for {cell}.",
        )
    of_forget = jnp.ones(())
    if forget_bias is not None:
        of_forget = jnp.asarray(as_array("init", "forget_bias", forget_bias))
    shape = list(of_forget.shape)
    check(
        forget_bias is None or (cell in _FORGETS and chrono is None),
        f"init: forget_bias must be None beside chrono, and where there is no such "
        f"gate, got {shape or of_forget} for {cell}.",
    )
    check(
        shape in ([], [hidden]),
        f"init: forget_bias must be a number, or [hidden] = [{hidden}] of a head, got "
        f"{shape}.",
    )
    check(
        bias or (forget_bias is None and chrono is None),
        "init: bias must be True with forget_bias or chrono, got False.",
    )
    has_own = cell == "lstm" and scheme != "pytorch"
    if forget_bias is None and chrono is None and not has_own:
        return None
    keeps, lets_in = _KEEPS.get(cell, ("f", ""))  # pyright: ignore[reportArgumentType]

    def begins(key: Array) -> Array:
        of_gates = dict.fromkeys(table.gate_names, jnp.zeros(hidden))
        if chrono is None:
            of_gates[keeps] = jnp.broadcast_to(of_forget, hidden)
        else:
            u = jax.random.uniform(key, (hidden,), minval=1.0, maxval=chrono - 1)
            of_gates[keeps] = jnp.log(u)
            if lets_in:
                of_gates[lets_in] = -jnp.log(u)
        return jnp.concatenate(list(of_gates.values()))

    return begins


def _draw(
    key: Array,
    table: Cell,
    scheme: Scheme,
    first_bias: FirstBias | None,
    input_size: int,
    hidden: int,
    projection: int | None,
    bias: bool,
    own: int,
) -> Params:
    """Of one direction and head, in float32."""
    keys = [*jax.random.split(key, 6), jax.random.fold_in(key, 6)]
    output = hidden if projection is None else projection
    gates, wide = table.gates, table.gates * hidden
    if scheme == "pytorch":
        bound = 1 / math.sqrt(hidden)

        def uniform(n: int, *shape: int) -> Array:
            return jax.random.uniform(keys[n], shape, minval=-bound, maxval=bound)

        b_ih, b_hh = uniform(2, wide), uniform(3, wide)
        if first_bias is not None:
            b_ih, b_hh = first_bias(keys[4]), jnp.zeros(wide)
        return Params(
            uniform(0, input_size, wide),
            uniform(1, output, wide),
            b_ih if bias else None,
            b_hh if bias else None,
            None
            if not own
            else jnp.asarray(table.own_begins(own * hidden))
            if table.own
            else uniform(5, own * hidden),
            None if projection is None else uniform(6, hidden, projection),
        )

    def matrix(n: int, rows: int, of_gate: Callable) -> Array:
        if scheme == "keras":
            return of_gate(keys[n], (rows, wide))
        parts = jax.random.split(keys[n], gates)
        return jnp.concatenate([of_gate(k, (rows, hidden)) for k in parts], -1)

    b_ih = jnp.zeros(wide) if first_bias is None else first_bias(keys[4])
    orthogonal = jax.nn.initializers.orthogonal()
    return Params(
        matrix(0, input_size, jax.nn.initializers.glorot_uniform()),
        matrix(1, output, orthogonal),
        b_ih if bias else None,
        None,
        jnp.asarray(table.own_begins(own * hidden)) if own else None,
        None if projection is None else orthogonal(keys[6], (hidden, projection)),
    )
