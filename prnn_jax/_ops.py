"""The public functions: checks, the input projection, and the recurrence."""

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax import _checks, _cuda, _ffi
from prnn_jax._arguments import check_arguments
from prnn_jax._call import Call
from prnn_jax._checks import check
from prnn_jax._plan import engine_for, target_platform
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

    with :math:`a = x W_{ih} + b_{ih} + h W_{hh} + b_{hh}`, without peepholes
    (Hochreiter & Schmidhuber 1997, Neural Computation 9(8); Gers et al. 2000,
    ibid. 12(10)).

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


# ---- shared --------------------------------------------------------------------------


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
        names = [p.name.lower() for p in lax.Precision]
        if not isinstance(precision, lax.Precision):
            _checks.one_of(op, "precision", precision, (None, *names))
            precision = lax.Precision(precision)
    elif _default_precision() in ("highest", "float32"):
        precision = lax.Precision.HIGHEST  # the native engines must know, too
    return {
        "reverse": arguments["reverse"],
        "bidirectional": arguments["bidirectional"],
        "time_major": arguments["time_major"],
        "precision": precision,
        "implementation": implementation,
        "max_sms": _cuda.max_sms(),
    }


def _default_precision() -> str | None:
    """What `jax.default_matmul_precision` says."""
    return getattr(jax.config, "jax_default_matmul_precision", None)


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


def _layer(op: str, call: Call, x, params, state_0) -> tuple[Array, Any]:
    try:
        w_ih, w_hh, b_ih, b_hh = params
    except (TypeError, ValueError):
        raise ValueError(
            f"{op}: params must be prnn_jax.Params(w_ih, w_hh, b_ih, b_hh), got "
            f"{type(params).__name__}."
        ) from None
    return _project_and_run(op, call, x, w_ih, w_hh, b_ih, b_hh, state_0)


def _project_and_run(
    op: str, call: Call, x, w_ih, w_hh, b_ih, b_hh, state_0
) -> tuple[Array, Any]:
    """The way of every call; with w_ih None, x is a_x already."""
    given = check_arguments(op, call, x, w_ih, w_hh, b_ih, b_hh, state_0)
    engine, reason = engine_for(
        call, x.dtype, target_platform(), given.directions, given.hidden
    )
    check(
        call.implementation != "native" or engine == "native",
        f'{op}: implementation="native" is not available: {reason}. '
        'implementation="scan" always runs; None chooses.',
    )
    if engine == "scan" or given.is_empty:  # an empty call needs no engine
        call = replace(call, implementation="scan")

    x, w_ih, w_hh, b_ih, b_hh, states = _ffi.match_varying(given.arrays_or_zeros())
    directions, hidden, rows = given.directions, given.hidden, math.prod(given.batch)
    columns = call.table.gates * hidden
    a_x = x if w_ih is None else _project(call, x, w_ih, b_ih)
    order = (given.time, rows) if call.time_major else (rows, given.time)
    y, states = _recurrence(
        call,
        a_x.reshape(*order, directions, columns),
        w_hh.reshape(directions, hidden, columns),
        b_hh.reshape(directions, columns),
        tuple(jnp.moveaxis(s.reshape(directions, rows, hidden), 0, 1) for s in states),
    )
    y = y.reshape(*x.shape[:-1], directions * hidden)
    state_n = [jnp.moveaxis(s, 1, 0).reshape(given.state_shape) for s in states]
    return y, tuple(state_n) if len(state_n) > 1 else state_n[0]


def _project(call: Call, x: Array, w_ih: Array, b_ih: Array | None) -> Array:
    """x w_ih + b_ih for all steps at once: [rows of x, directions*G*hidden]."""
    if call.bidirectional:  # side by side: one product for both
        w_ih = jnp.concatenate([w_ih[0], w_ih[1]], -1)
        b_ih = None if b_ih is None else b_ih.reshape(-1)
    rows = math.prod(x.shape[:-1])
    return project(call, x.reshape(rows, x.shape[-1]), w_ih, b_ih)
