"""The public functions: checks, the input projection, and the recurrence."""

import math
from dataclasses import replace
from typing import Literal, NamedTuple


import jax.numpy as jnp
from jax import Array, lax

from prnn_jax import _checks, _ffi
from prnn_jax._call import Call
from prnn_jax._checks import check
from prnn_jax._plan import engine_for
from prnn_jax._projection import project
from prnn_jax._recurrence import recurrence as _recurrence

Implementation = Literal["native", "scan"]
Activation = Literal["tanh", "relu", "clipped_relu"]
Precision = lax.Precision | str | None
State = Array | tuple[Array, Array]


class Params(NamedTuple):
    """Parameters of a recurrent layer with G gates (4 LSTM, 3 GRU, 1 RNN).

    Attributes:
      w_ih: `[input, G*hidden]`, gates in the order i f g o (LSTM) or r z n (GRU).
      w_hh: `[hidden, G*hidden]`.
      b_ih: `[G*hidden]`, or None for zero.
      b_hh: `[G*hidden]`, or None for zero. It differs from b_ih only in the GRU with
        reset_after, where its last third is inside the product with r.

    A bidirectional layer has a leading axis of 2 on each, forward then backward.
    """

    w_ih: Array
    w_hh: Array
    b_ih: Array | None = None
    b_hh: Array | None = None


def lstm(
    x: Array,
    params: Params,
    state_0: tuple[Array, Array] | None = None,
    *,
    reverse: bool = False,
    bidirectional: bool = False,
    time_major: bool = False,
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, tuple[Array, Array]]:
    r"""Long short-term memory over a whole sequence.

    .. math::
      i, f, o = σ(a_i), σ(a_f), σ(a_o) \quad c' = f c + i \tanh(a_g) \quad
      h' = o \tanh(c')

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}`, without peepholes (Hochreiter
    & Schmidhuber 1997, Neural Computation 9(8); Gers et al. 2000, ibid. 12(10)).

    Args:
      x: `[*batch, time, input]`, any number of batch axes, also none.
      params: `Params`, gate order i f g o.
      state_0: `(h_0, c_0)`, each `[*batch, hidden]`; zeros if not given.
      reverse: run from the last step to the first; y stays in the order of x.
      bidirectional: run both ways at once. The params have a leading axis of 2, so
        have the states, and y is `[*batch, time, 2*hidden]`, forward before backward.
      time_major: x and y are `[time, *batch, ...]`.
      precision: of matrix products, as in `jax.lax.dot`. The native engine for the CPU
        multiplies and adds in full float32 whatever it says.
      implementation: "native", "scan" (`lax.scan`), or None: native where there is an
        engine for the platform and dtype, scan elsewhere (`explain` tells which).

    Returns:
      y `[*batch, time, hidden]`, every h, and the last state `(h_n, c_n)`. With
      time = 0, y is empty and the state is state_0.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    call = Call("lstm", **_options("lstm", locals()))
    return _layer("lstm", call, x, params, state_0)


def gru(
    x: Array,
    params: Params,
    state_0: Array | None = None,
    *,
    reset_after: bool = True,
    reverse: bool = False,
    bidirectional: bool = False,
    time_major: bool = False,
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    r"""Gated recurrent unit over a whole sequence.

    .. math:: h' = (1 - z) n + z h \qquad r, z = σ(a_r), σ(a_z)

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}` and

    - reset after the product (cuDNN, PyTorch, Keras' default):
      :math:`n = \tanh(x W_{in} + b_{in} + r (h W_{hn} + b_{hn}))`
    - reset before it (Cho et al. 2014, arXiv:1406.1078; Haiku):
      :math:`n = \tanh(x W_{in} + b_{in} + (r h) W_{hn} + b_{hn})`

    Args:
      x: `[*batch, time, input]`.
      params: `Params`, gate order r z n.
      state_0: h_0 `[*batch, hidden]`; zeros if not given.
      reset_after: which of the two.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      time_major: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    cell = "gru" if reset_after else "gru_reset_before"
    call = Call(cell, **_options("gru", locals()))
    return _layer("gru", call, x, params, state_0)


def rnn(
    x: Array,
    params: Params,
    state_0: Array | None = None,
    *,
    activation: Activation = "tanh",
    cap: float = 20.0,
    skip: float = 0.0,
    reverse: bool = False,
    bidirectional: bool = False,
    time_major: bool = False,
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, Array]:
    r"""Elman network over a whole sequence, with a residual through time.

    .. math:: h' = f(x W_{ih} + b_{ih} + h W_{hh} + b_{hh} + s h)

    (Elman 1990, Cognitive Science 14(2); residual: Diamos et al. 2016, Persistent RNNs,
    ICML).

    Args:
      x: `[*batch, time, input]`.
      params: `Params` with one gate.
      state_0: h_0 `[*batch, hidden]`; zeros if not given.
      activation: f: "tanh", "relu", or "clipped_relu", min(max(a, 0), cap).
      cap: of the clipped ReLU.
      skip: s, the scale of the residual.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      time_major: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last h.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    call = _rnn_call("rnn", activation, cap, skip, _options("rnn", locals()))
    return _layer("rnn", call, x, params, state_0)


def recurrence(
    cell: Literal["lstm", "gru", "rnn"],
    a_x: Array,
    w_hh: Array,
    state_0: State | None = None,
    b_hh: Array | None = None,
    *,
    reset_after: bool = True,
    activation: Activation = "tanh",
    cap: float = 20.0,
    skip: float = 0.0,
    reverse: bool = False,
    bidirectional: bool = False,
    time_major: bool = False,
    precision: Precision = None,
    implementation: Implementation | None = None,
) -> tuple[Array, State]:
    """A recurrence over pre-activations that were computed outside.

    `lstm(x, params)` is `recurrence("lstm", x @ params.w_ih + params.b_ih, ...)`.

    Args:
      cell: "lstm", "gru" or "rnn", with the equations given there.
      a_x: `[*batch, time, G*hidden]` (bidirectional: `2*G*hidden`, forward first).
      w_hh: `[hidden, G*hidden]` (bidirectional: `[2, hidden, G*hidden]`).
      state_0: as for the cell's own function.
      b_hh: `[G*hidden]` (bidirectional: `[2, G*hidden]`), or None for zero.
      reset_after: as in `gru`.
      activation: as in `rnn`.
      cap: as in `rnn`.
      skip: as in `rnn`.
      reverse: as in `lstm`.
      bidirectional: as in `lstm`.
      time_major: as in `lstm`.
      precision: as in `lstm`.
      implementation: as in `lstm`.

    Returns:
      y `[*batch, time, hidden]` and the last state.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    _checks.one_of("recurrence", "cell", cell, ("lstm", "gru", "rnn"))
    options = _options("recurrence", locals())
    if cell == "rnn":
        call = _rnn_call("recurrence", activation, cap, skip, options)
    else:
        name = "gru_reset_before" if cell == "gru" and not reset_after else cell
        call = Call(name, **options)
    return _project_and_run("recurrence", call, a_x, None, w_hh, None, b_hh, state_0)


# ---- shared ----------------------------------------------------------------------------


def _options(op: str, arguments: dict) -> dict:
    """The fields of `Call` that all functions have, checked."""
    for name in ("reverse", "bidirectional", "time_major"):
        value = arguments[name]
        check(
            isinstance(value, bool),
            f"{op}: {name} must be True or False, known when tracing, got {value!r}.",
        )
    implementation = arguments["implementation"]
    _checks.one_of(op, "implementation", implementation, (None, "native", "scan"))
    precision = arguments["precision"]
    if precision is not None:
        precision = lax.Precision(precision)
    return {
        "reverse": arguments["reverse"],
        "bidirectional": arguments["bidirectional"],
        "time_major": arguments["time_major"],
        "precision": precision,
        "implementation": implementation,
    }


def _rnn_call(op: str, activation, cap, skip, options: dict) -> Call:
    activations = ("tanh", "relu", "clipped_relu")
    _checks.one_of(op, "activation", activation, activations)
    for name, value in (("cap", cap), ("skip", skip)):
        check(
            isinstance(value, (int, float)),
            f"{op}: {name} must be a Python number, got {type(value).__name__}.",
        )
    check(cap > 0, f"{op}: cap must be positive, got {cap}.")
    return Call(
        cell="rnn_tanh" if activation == "tanh" else "rnn_relu",
        skip=float(skip),
        cap=float(cap) if activation == "clipped_relu" else math.inf,
        **options,
    )


def _layer(op: str, call: Call, x, params, state_0):
    try:
        w_ih, w_hh, b_ih, b_hh = params
    except (TypeError, ValueError):
        raise ValueError(
            f"{op}: params must be prnn_jax.Params(w_ih, w_hh, b_ih, b_hh), got "
            f"{type(params).__name__}."
        ) from None
    return _project_and_run(op, call, x, w_ih, w_hh, b_ih, b_hh, state_0)


def _project_and_run(op: str, call: Call, x, w_ih, w_hh, b_ih, b_hh, state_0):
    """The way of every call; with w_ih None, x is a_x already."""
    gates, directions = call.table.gates, 2 if call.bidirectional else 1
    x_name = "x" if w_ih is not None else "a_x"
    arrays = {x_name: x, "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    states = _as_states(op, call, state_0)
    arrays |= dict(zip(("h_0", "c_0"), states or (), strict=False))
    arrays = {k: _checks.array(op, k, v) for k, v in arrays.items() if v is not None}
    _checks.same_dtype(op, arrays)

    lead = ("2",) * (directions - 1)
    check(
        w_hh.ndim == 1 + directions and w_hh.shape[-2] >= 1,
        f"{op}: w_hh must be [{', '.join((*lead, 'hidden', f'{gates}*hidden'))}] with "
        f"hidden >= 1, got {list(w_hh.shape)}.",
    )
    hidden = _hidden_size(w_hh.shape, gates)
    time_first = ("time", "*batch") if call.time_major else ("*batch", "time")
    features = "input" if w_ih is not None else "features"
    check(
        x.ndim >= 2,
        f"{op}: {x_name} must be [{', '.join((*time_first, features))}], got "
        f"{list(x.shape)}.",
    )
    batch = x.shape[1:-1] if call.time_major else x.shape[:-2]
    time = x.shape[0] if call.time_major else x.shape[-2]

    lead_sizes = (2,) * (directions - 1)
    wide = f"{gates}*hidden"
    axes = (*lead, "hidden", wide)
    _checks.shape(op, "w_hh", w_hh, axes, (*lead_sizes, hidden, gates * hidden))
    if w_ih is not None:
        sizes = (*lead_sizes, x.shape[-1], gates * hidden)
        _checks.shape(op, "w_ih", w_ih, (*lead, "input", wide), sizes)
    else:
        sizes = (*x.shape[:-1], directions * gates * hidden)
        axes = (*time_first, f"{'2*' if lead else ''}{wide}")
        _checks.shape(op, "a_x", x, axes, sizes)
    for name, b in (("b_ih", b_ih), ("b_hh", b_hh)):
        if b is not None:
            _checks.shape(op, name, b, (*lead, wide), (*lead_sizes, gates * hidden))
    for name, s in zip(("h_0", "c_0"), states or (), strict=False):
        sizes = (*lead_sizes, *batch, hidden)
        _checks.shape(op, name, s, (*lead, "*batch", "hidden"), sizes)

    rows = math.prod(batch)
    engine, reason = engine_for(call, x.dtype, _checks.platform())
    check(
        call.implementation != "native" or engine == "native",
        f'{op}: implementation="native" is not available: {reason}. '
        'implementation="scan" always runs; None chooses.',
    )
    if engine == "scan" or rows * time == 0:  # an empty call needs no engine
        call = _with_scan(call)

    b_hh = jnp.zeros_like(w_hh[..., 0, :]) if b_hh is None else b_hh
    if states is None:
        zeros = jnp.zeros((*lead_sizes, *batch, hidden), x.dtype)
        states = (zeros,) * call.table.states
    x, w_ih, w_hh, b_ih, b_hh, states = _ffi.match_varying(
        (x, w_ih, w_hh, b_ih, b_hh, states)
    )
    a_x = x if w_ih is None else _project(call, x, w_ih, b_ih, directions)
    a_x = a_x.reshape(
        *((time, rows) if call.time_major else (rows, time)), directions, gates * hidden
    )
    w_hh = w_hh.reshape(directions, hidden, gates * hidden)
    b_hh = b_hh.reshape(directions, gates * hidden)
    states = tuple(_to_rows(s, directions, rows, hidden) for s in states)

    y, states = _recurrence(call, a_x, w_hh, b_hh, states)
    steps = (time, *batch) if call.time_major else (*batch, time)
    y = y.reshape(*steps, directions * hidden)
    states = tuple(
        jnp.moveaxis(s, 1, 0).reshape(*lead_sizes, *batch, hidden) for s in states
    )
    return y, states if len(states) > 1 else states[0]


def _project(call: Call, x, w_ih, b_ih, directions: int) -> Array:
    """x w_ih + b_ih for all steps at once: [*, directions*G*hidden]."""
    if directions == 2:  # side by side: one product for both
        w_ih = jnp.concatenate([w_ih[0], w_ih[1]], -1)
        b_ih = None if b_ih is None else b_ih.reshape(-1)
    rows = math.prod(x.shape[:-1])
    return project(call, x.reshape(rows, x.shape[-1]), w_ih, b_ih)


def _to_rows(state, directions: int, rows: int, hidden: int) -> Array:
    return jnp.moveaxis(state.reshape(directions, rows, hidden), 0, 1)


def _with_scan(call: Call) -> Call:
    return replace(call, implementation="scan")


def _hidden_size(shape: tuple[int, ...], gates: int) -> int:
    """hidden, from the shape of w_hh; if that is transposed, its shorter side."""
    rows, columns = shape[-2:]
    return columns if rows == gates * columns else rows


def _as_states(op: str, call: Call, state_0):
    """state_0 as a tuple of arrays, or None."""
    if state_0 is None:
        return None
    names = ("h_0", "c_0")[: call.table.states]
    is_tuple = isinstance(state_0, (tuple, list))
    wanted = "(h_0, c_0)" if len(names) == 2 else "h_0, an array"
    if is_tuple != (len(names) == 2) or (is_tuple and len(state_0) != 2):
        came = f"{len(state_0)} values" if is_tuple else type(state_0).__name__
        raise ValueError(f"{op}: state_0 must be {wanted}, got {came}.")
    return tuple(state_0) if is_tuple else (state_0,)
