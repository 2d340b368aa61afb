"""Errors of options: each says what was expected, what came, and what to do."""

import jax
import numpy as np
import pytest
from error_support import H, X, params, raises, zeros

import prnn_jax

# What is wrong: the call, and parts of the message: expected, came, to do.
OPTIONS = {
    "reverse is an integer": (
        lambda: prnn_jax.lstm(zeros(*X), params(), reverse=2),
        ("lstm: reverse must be True or False, known when tracing, got 2",),
    ),
    "time_major is None": (
        lambda: prnn_jax.gru(zeros(*X), params(3), time_major=None),
        ("gru: time_major must be True or False", "got None"),
    ),
    "bidirectional is an array": (
        lambda: prnn_jax.rnn(zeros(*X), params(1), bidirectional=np.ones(1, bool)),
        ("rnn: bidirectional must be True or False",),
    ),
    "reverse is traced": (
        lambda: jax.jit(lambda r: prnn_jax.lstm(zeros(*X), params(), reverse=r))(True),
        ("lstm: reverse must be True or False, known when tracing", "Tracer"),
    ),
    "another implementation": (
        lambda: prnn_jax.lstm(zeros(*X), params(), implementation="cudnn"),
        ("lstm: implementation must be one of None, 'native', 'scan', got 'cudnn'",),
    ),
    "native for float8": (
        lambda: prnn_jax.rnn(
            zeros(*X, dtype="float8_e4m3fn"),
            jax.tree.map(lambda p: p.astype("float8_e4m3fn"), params(1)),
            implementation="native",
        ),
        (
            'rnn: implementation="native" is not available',
            "float16, not float8_e4m3fn",
            'implementation="scan" always runs',
        ),
    ),
    "another activation": (
        lambda: prnn_jax.rnn(zeros(*X), params(1), activation="gelu"),
        ("rnn: activation must be one of 'sigmoid', 'tanh',", "got 'gelu'"),
    ),
    "an activation that is a function": (
        lambda: prnn_jax.lstm(zeros(*X), params(), activation=jax.nn.relu),
        (
            "lstm: activation must be one of",
            "got the function relu; activations are given by name: activation='relu'.",
        ),
    ),
    "a gate_activation that is a function of its own": (
        lambda: prnn_jax.gru(zeros(*X), params(3), gate_activation=lambda a: a),
        ("got the function", "are given by name: gate_activation='tanh'."),
    ),
    "no cap": (
        lambda: prnn_jax.rnn(zeros(*X), params(1), activation="clipped_relu", cap=0),
        ("rnn: cap must be positive, got 0",),
    ),
    "cap is not a number": (
        lambda: prnn_jax.rnn(zeros(*X), params(1), cap=float("nan")),
        ("rnn: cap must be positive, got nan",),
    ),
    "cap is an array": (
        lambda: prnn_jax.rnn(zeros(*X), params(1), cap=zeros(1)),
        ("rnn: cap must be a number, known when tracing, got ArrayImpl [1]",),
    ),
    "skip is a string": (
        lambda: prnn_jax.recurrence("rnn", zeros(2, 7, H), zeros(H, H), skip="a"),
        ("recurrence: skip must be a number, known when tracing, got str",),
    ),
    "another cell": (
        lambda: prnn_jax.recurrence("qrnn", zeros(2, 7, H), zeros(H, H)),
        ("recurrence: cell must be one of 'lstm', 'slstm', 'gru', 'rnn', got 'qrnn'",),
    ),
    "another precision": (
        lambda: prnn_jax.lstm(zeros(*X), params(), precision="exact"),
        ("lstm: precision must be", "'exact'"),
    ),
    "explain: another cell": (
        lambda: prnn_jax.explain("rnn_tanh", batch=1, time=1, hidden_size=1),
        ("explain: cell must be one of 'lstm', 'slstm', 'gru', 'rnn', ", "'rnn_tanh'"),
    ),
    "explain: no units": (
        lambda: prnn_jax.explain("gru", batch=1, time=1, hidden_size=0),
        ("explain: hidden_size must be at least 1, got 0",),
    ),
    "explain: no rows": (
        lambda: prnn_jax.explain("gru", batch=0, time=1, hidden_size=1),
        ("explain: batch must be at least 1, got 0",),
    ),
}


@pytest.mark.parametrize("wrong", OPTIONS)
def test_options(wrong):
    call, message = OPTIONS[wrong]
    with raises(*message):
        call()


def test_forward_mode_is_refused():
    """A limit of custom_vjp, said by JAX; the scan has forward mode."""

    def run(x, implementation):
        return prnn_jax.lstm(x, params(), implementation=implementation)[0]

    x = zeros(*X)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: run(x, "native"), (x,), (x,))
    jax.jvp(lambda x: run(x, "scan"), (x,), (x,))
