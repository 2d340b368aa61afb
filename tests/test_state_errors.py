"""Errors of states: each says what was expected, what came, and what to do."""

import pytest
from error_support import STATE, TWO, H, X, params, raises, zeros

import prnn_jax

CARRY = ((zeros(*STATE),) * 2,) * 2

# What is wrong: the call, and parts of the message: expected, came, to do.
STATES = {
    "a None within the state": (
        lambda: prnn_jax.lstm(zeros(*X), params(), (zeros(*STATE), None)),
        ("lstm: c_0 must be an array, got NoneType.",),
    ),
    "a None within reset_to": (
        lambda: prnn_jax.lstm(
            zeros(*X),
            params(),
            resets=zeros(*X[:2]),
            reset_to=(None, zeros(*STATE)),
        ),
        ("lstm: reset_to must be an array, got NoneType.",),
    ),
    "state of a GRU in a tuple": (
        lambda: prnn_jax.gru(zeros(*X), params(3), (zeros(*STATE),)),
        ("gru: state_0 must be h_0, an array, got a tuple of one; pass the array",),
    ),
    "state of two directions is a carry of Flax": (
        lambda: prnn_jax.lstm(zeros(*X), params(lead=TWO), CARRY, bidirectional=True),
        (
            "lstm: state_0 must be (h_0, c_0), each [2, *batch, hidden], forward "
            "before backward, got a pair of tuples; stack them: h_0 = jnp.stack("
            "[forward h_0, backward h_0]), and so on; a carry of Flax' layers has c "
            "before h.",
        ),
    ),
    "state of two directions is four arrays": (
        lambda: prnn_jax.lstm(
            zeros(*X), params(lead=TWO), (zeros(*STATE),) * 4, bidirectional=True
        ),
        (
            "lstm: state_0 must be (h_0, c_0), each [2, *batch, hidden], forward "
            "before backward, got 4 values; stack them: h_0 = jnp.stack([",
        ),
    ),
    "state of two directions of a GRU is a pair": (
        lambda: prnn_jax.gru(
            zeros(*X), params(3, TWO), (zeros(*STATE),) * 2, bidirectional=True
        ),
        (
            "gru: state_0 must be h_0, an array [2, *batch, hidden], forward before "
            "backward, got 2 values; stack them: h_0 = jnp.stack([forward h_0, "
            "backward h_0]).",
        ),
    ),
    "reset_to of two directions is a carry of Flax": (
        lambda: prnn_jax.lstm(
            zeros(*X),
            params(lead=TWO),
            resets=zeros(*X[:2]),
            reset_to=CARRY,
            bidirectional=True,
        ),
        ("lstm: reset_to must be (h_0, c_0), each [2, *", "got a pair of tuples; "),
    ),
    "state of one direction is a pair of tuples": (
        lambda: prnn_jax.lstm(zeros(*X), params(), CARRY),
        ("lstm: state_0 must be (h_0, c_0), got a pair of tuples.",),
    ),
    "state of a GRU is a pair": (
        lambda: prnn_jax.gru(zeros(*X), params(3), (zeros(*STATE),) * 2),
        ("gru: state_0 must be h_0, an array, got 2 values",),
    ),
    "state of an LSTM is h only": (
        lambda: prnn_jax.lstm(zeros(*X), params(), zeros(*STATE)),
        ("lstm: state_0 must be (h_0, c_0), got",),
    ),
    "state of an LSTM has three": (
        lambda: prnn_jax.lstm(zeros(*X), params(), (zeros(*STATE),) * 3),
        ("lstm: state_0 must be (h_0, c_0), got 3 values",),
    ),
    "h_0 is a number": (
        lambda: prnn_jax.gru(zeros(*X), params(3), 0.0),
        ("gru: h_0 must be an array, got float", "jnp.asarray"),
    ),
    "h_0 without batch": (
        lambda: prnn_jax.gru(zeros(*X), params(3), zeros(H)),
        ("gru: h_0 must be [*batch, hidden] = [2, 8], got [8]",),
    ),
    "c_0 for another batch": (
        lambda: prnn_jax.lstm(zeros(*X), params(), (zeros(*STATE), zeros(3, H))),
        ("lstm: c_0 must be [*batch, hidden] = [2, 8], got [3, 8]",),
    ),
    "h_0 transposed": (
        lambda: prnn_jax.gru(zeros(*X), params(3), zeros(H, 2)),
        ("gru: h_0 must be [*batch, hidden] = [2, 8], got [8, 2]", "transpose"),
    ),
    "bidirectional with one state": (
        lambda: prnn_jax.gru(
            zeros(*X), params(3, TWO), zeros(*STATE), bidirectional=True
        ),
        ("gru: h_0 must be [2, *batch, hidden] = [2, 2, 8], got [2, 8]",),
    ),
}


@pytest.mark.parametrize("wrong", STATES)
def test_states(wrong):
    call, message = STATES[wrong]
    with raises(*message):
        call()
