"""Errors of arrays: each says what was expected, what came, and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from error_support import INPUT, STATE, TWO, H, X, params, raises, zeros
from support import assert_bitwise_equal

import prnn_jax


class Foreign:
    """An array of a library whose types are its own."""

    shape, dtype = (2, 7, INPUT), "torch.float32"


ONES = jax.tree.map(jnp.ones_like, params())

# What is wrong: the call, and parts of the message: expected, came, to do.
SHAPES = {
    "x of rank 1": (
        lambda: prnn_jax.lstm(zeros(INPUT), params()),
        ("lstm: x must be [*batch, time, input], got [5]",),
    ),
    "x of rank 1, time-major": (
        lambda: prnn_jax.gru(zeros(INPUT), params(3), time_major=True),
        ("gru: x must be [time, *batch, input], got [5]",),
    ),
    "w_ih for another input": (
        lambda: prnn_jax.lstm(zeros(*X), params(w_ih=zeros(INPUT + 1, 4 * H))),
        (
            "lstm: x must be [*batch, time, input] with input = 6 (w_ih is [6, 32]), "
            "got [2, 7, 5].",
        ),
    ),
    "x with features before time": (
        lambda: prnn_jax.gru(zeros(2, INPUT, 7), params(3)),
        (
            "gru: x must be [*batch, time, input] with input = 5 (w_ih is [5, 24]), "
            "got [2, 5, 7]; swap its last two axes: jnp.swapaxes(x, -1, -2).",
        ),
    ),
    "x of another width, in two directions": (
        lambda: prnn_jax.rnn(
            zeros(7, 2, 6), params(1, TWO), bidirectional=True, time_major=True
        ),
        (
            "rnn: x must be [time, *batch, input] with input = 5 (w_ih is [2, 5, 8]), "
            "got [7, 2, 6].",
        ),
    ),
    "x of another width, without a product": (
        lambda: prnn_jax.min_gru(zeros(2, 7, 6), zeros(INPUT, 2 * H)),
        (
            "min_gru: x must be [..., input] with input = 5 (w_ih is [5, 16]), got "
            "[2, 7, 6].",
        ),
    ),
    "params of an LSTM": (
        lambda: prnn_jax.gru(zeros(*X), params()),
        (
            "gru: w_hh must be [hidden, 3*hidden] = [8, 24], got [8, 32]; 4 gates are "
            "an lstm's.",
        ),
    ),
    "w_ih transposed": (
        lambda: prnn_jax.gru(zeros(*X), params(3, w_ih=zeros(3 * H, INPUT))),
        ("gru: w_ih must be [input, 3*hidden] = [5, 24], got [24, 5]", "transpose"),
    ),
    "w_hh transposed": (
        lambda: prnn_jax.lstm(zeros(*X), params(w_hh=zeros(4 * H, H))),
        ("lstm: w_hh must be [hidden, 4*hidden] = [8, 32], got [32, 8]", "transpose"),
    ),
    "w_hh of another cell": (
        lambda: prnn_jax.lstm(zeros(*X), params(w_hh=zeros(H, 3 * H))),
        (
            "lstm: w_hh must be [hidden, 4*hidden] = [8, 32], got [8, 24]; 3 gates are "
            "a gru's.",
        ),
    ),
    "w_hh of rank 1": (
        lambda: prnn_jax.rnn(zeros(*X), params(1, w_hh=zeros(H))),
        ("rnn: w_hh must be [hidden, 1*hidden] with hidden >= 1, got [8]",),
    ),
    "w_hh with no units": (
        lambda: prnn_jax.rnn(zeros(*X), params(1, w_hh=zeros(0, 0))),
        ("rnn: w_hh must be [hidden, 1*hidden] with hidden >= 1, got [0, 0]",),
    ),
    "b_ih of one gate": (
        lambda: prnn_jax.lstm(zeros(*X), params(b_ih=zeros(H))),
        ("lstm: b_ih must be [4*hidden] = [32], got [8]",),
    ),
    "b_hh of rank 2": (
        lambda: prnn_jax.lstm(zeros(*X), params(b_hh=zeros(1, 4 * H))),
        ("lstm: b_hh must be [4*hidden] = [32], got [1, 32]",),
    ),
    "bidirectional with the params of one way": (
        lambda: prnn_jax.lstm(zeros(*X), params(), bidirectional=True),
        (
            "lstm: w_hh must be [2, hidden, 4*hidden] with hidden >= 1, got [8, 32]; "
            "params are of one direction: prnn_jax.init(..., bidirectional=True) or "
            "prnn_jax.convert.stack_directions(forward, backward) makes two.",
        ),
    ),
    "bidirectional with three ways": (
        lambda: prnn_jax.lstm(zeros(*X), params(lead=(3,)), bidirectional=True),
        ("lstm: w_hh must be [2, hidden, 4*hidden] = [2, 8, 32], got [3, 8, 32]",),
    ),
    "heads of two ways, but not bidirectional": (
        lambda: prnn_jax.lstm(zeros(*X), params(lead=(*TWO, 3))),
        ("lstm: w_hh must be [hidden, 4*hidden] with hidden >= 1, got [2, 3, 8, 32]",),
    ),
    "bidirectional with one b_ih": (
        lambda: prnn_jax.gru(
            zeros(*X), params(3, TWO, b_ih=zeros(3 * H)), bidirectional=True
        ),
        ("gru: b_ih must be [2, 3*hidden] = [2, 24], got [24]",),
    ),
    "a_x of another cell": (
        lambda: prnn_jax.recurrence("gru", zeros(2, 7, 4 * H), zeros(H, 3 * H)),
        (
            "recurrence: a_x must be [*batch, time, 3*hidden] = [2, 7, 24], "
            "got [2, 7, 32]",
        ),
    ),
    "a_x of one way": (
        lambda: prnn_jax.recurrence(
            "gru", zeros(2, 7, 3 * H), zeros(2, H, 3 * H), bidirectional=True
        ),
        (
            "recurrence: a_x must be [*batch, time, 2*3*hidden] = [2, 7, 48], "
            "got [2, 7, 24]",
        ),
    ),
    "a_x of rank 1": (
        lambda: prnn_jax.recurrence("rnn", zeros(H), zeros(H, H)),
        ("recurrence: a_x must be [*batch, time, features], got [8]",),
    ),
}

KINDS = {
    "x is a list": (
        lambda: prnn_jax.lstm([[1.0]], params()),
        ("lstm: x must be an array, got list", "jnp.asarray"),
    ),
    "x of integers": (
        lambda: prnn_jax.lstm(zeros(*X, dtype="int32"), params()),
        ("lstm: x must have a floating dtype, got int32", "x.astype(jnp.float32)"),
    ),
    "complex weights": (
        lambda: prnn_jax.rnn(zeros(*X), params(1, w_hh=zeros(H, H, dtype="complex64"))),
        ("rnn: w_hh must be real, got complex64",),
    ),
    "x is None": (
        lambda: prnn_jax.lstm(None, params()),
        ("lstm: x must be an array, got NoneType.",),
    ),
    "x without values": (
        lambda: prnn_jax.lstm(jax.ShapeDtypeStruct(X, "float32"), params()),
        ("lstm: x must be an array, got ShapeDtypeStruct", "jax.eval_shape"),
    ),
    "x of another library": (
        lambda: prnn_jax.lstm(Foreign(), params()),
        (
            "lstm: x must be an array of JAX's or NumPy's, got Foreign of ",
            "torch.float32; convert it, e.g. x.detach().cpu().numpy().",
        ),
    ),
    "no w_ih": (
        lambda: prnn_jax.lstm(zeros(*X), params(w_ih=None)),
        ("lstm: w_ih must be an array, got NoneType.",),
    ),
    "no w_hh": (
        lambda: prnn_jax.gru(zeros(*X), params(3, w_hh=None)),
        ("gru: w_hh must be an array, got NoneType.",),
    ),
    "no a_x": (
        lambda: prnn_jax.recurrence("rnn", None, zeros(H, H)),
        ("recurrence: a_x must be an array, got NoneType.",),
    ),
    "params is a dict": (
        lambda: prnn_jax.lstm(zeros(*X), params()._asdict()),
        ("lstm: params must be prnn_jax.Params", "got dict; write", "(**params)"),
    ),
    "params is a layer's": (
        lambda: prnn_jax.lstm(zeros(*X), prnn_jax.Layer(params())),
        ("lstm: params must be prnn_jax.Params", "got Layer; pass its .params"),
    ),
    "params of several layers": (
        lambda: prnn_jax.lstm(zeros(*X), [params(), params()]),
        ("lstm: params must be prnn_jax.Params", "got list of Params", "stack"),
    ),
    "a number as recurrent_mask": (
        lambda: prnn_jax.lstm(zeros(*X), params(), recurrent_mask=1.0),
        ("lstm: recurrent_mask must be [*batch, hidden] = [2, 8], got []",),
    ),
    "resets of text": (
        lambda: prnn_jax.lstm(zeros(*X), params(), resets=np.full(X[:2], "no")),
        ("lstm: resets must be an array of numbers, got ndarray of <U2",),
    ),
    "lengths of unequal lists": (
        lambda: prnn_jax.lstm(zeros(*X), params(), lengths=[[1], [1, 2]]),
        ("lstm: lengths must be an array, got list",),
    ),
    "a number as key": (
        lambda: prnn_jax.stack("lstm", zeros(*X), [params()], key=0),
        ("stack: key must be of jax.random.key, or None, got 0",),
    ),
    "stack: x is None": (
        lambda: prnn_jax.stack("lstm", None, [params()]),
        ("stack: x must be an array, got NoneType",),
    ),
    "stack: a None within a state": (
        lambda: prnn_jax.stack("lstm", zeros(*X), [params()], [(zeros(*STATE), None)]),
        ("stack, layer 0: c_0 must be an array, got NoneType",),
    ),
    "prepare: a dict": (
        lambda: prnn_jax.prepare("lstm", params()._asdict(), batch=1, time=1),
        ("prepare: params must be prnn_jax.Params, got dict; write",),
    ),
    "prepare: no w_ih": (
        lambda: prnn_jax.prepare("lstm", params(w_ih=None), batch=1, time=1),
        ("prepare: w_ih must be an array, got NoneType.",),
    ),
    "prepare: w_ih of rank 1": (
        lambda: prnn_jax.prepare("lstm", params(w_ih=zeros(32)), batch=1, time=1),
        ("prepare: w_ih must be [input, 4*hidden], got [32]",),
    ),
    "prepare: time of half a step": (
        lambda: prnn_jax.prepare("lstm", params(), batch="1", time=1),
        ("prepare: batch must be a whole number, at least 1, got '1'",),
    ),
    "prepare: prepared already": (
        lambda: prnn_jax.prepare(
            "lstm", prnn_jax.Prepared(params(), None), batch=1, time=1
        ),
        ("prepare: params must be prnn_jax.Params, got Prepared; pass its .params",),
    ),
    "two dtypes": (
        lambda: prnn_jax.lstm(zeros(*X, dtype="bfloat16"), params()),
        (
            "lstm: all arrays must have the same dtype, got x bfloat16, w_ih float32",
            "cast them first",
        ),
    ),
    "a state of another dtype": (
        lambda: prnn_jax.gru(zeros(*X), params(3), zeros(*STATE, dtype="float16")),
        ("gru: all arrays must have the same dtype", "h_0 float16", "cast"),
    ),
    "params is an array": (
        lambda: prnn_jax.lstm(zeros(*X), zeros(INPUT, 4 * H)),
        ("lstm: params must be prnn_jax.Params(w_ih, w_hh, b_ih, b_hh), got",),
    ),
    "params is a dict of more": (
        lambda: prnn_jax.lstm(zeros(*X), dict.fromkeys("abcdef")),
        ("lstm: params must be prnn_jax.Params(w_ih, w_hh, b_ih, b_hh), got dict",),
    ),
    "params is None": (
        lambda: prnn_jax.gru(zeros(*X), None),
        ("gru: params must be prnn_jax.Params", "got NoneType"),
    ),
    "x is a pair": (
        lambda: prnn_jax.lstm((zeros(*X),) * 2, params()),
        ("lstm: x must be an array, got tuple of arrays; give one array.",),
    ),
    "lengths of another library": (
        lambda: prnn_jax.lstm(zeros(*X), params(), lengths=Foreign()),
        (
            "lstm: lengths must be an array of numbers, got Foreign of torch.float32; "
            "give lengths.detach().cpu().numpy().",
        ),
    ),
    "a dict in place of what is in it": (
        lambda: prnn_jax.min_gru(zeros(*X), {"w_ih": zeros(INPUT, 2 * H)}),
        ("min_gru: w_ih must be an array, got dict; write min_gru(x, **params).",),
    ),
    "a dict in place of what is in it, in two directions": (
        lambda: prnn_jax.sru(zeros(*X), {"w_ih": zeros(1)}, bidirectional=True),
        ("sru: w_ih must be an array, got dict; write sru(x, **params).",),
    ),
    "a dict as an IndRNN's params": (
        lambda: prnn_jax.indrnn(zeros(*X), params(1)._asdict()),
        ("indrnn: params must be", "got dict; write prnn_jax.Params(**params)."),
    ),
}


@pytest.mark.parametrize("wrong", SHAPES)
def test_shapes(wrong):
    call, message = SHAPES[wrong]
    with raises(*message):
        call()


@pytest.mark.parametrize("wrong", KINDS)
def test_kinds(wrong):
    call, message = KINDS[wrong]
    with raises(*message):
        call()


def test_the_right_call_is_right():
    # What the tables above change one thing of.
    y, (h, c) = prnn_jax.lstm(zeros(*X), params(), (zeros(*STATE), zeros(*STATE)))
    assert y.shape == (2, 7, H)
    assert h.shape == c.shape == STATE
    y, h = prnn_jax.gru(zeros(*X), params(3, TWO), bidirectional=True)
    assert y.shape == (2, 7, 2 * H)
    assert h.shape == (2, *STATE)


def test_lengths_may_be_a_list_of_traced_numbers():
    run = jax.jit(lambda n: prnn_jax.lstm(jnp.ones(X), ONES, lengths=[n, 7])[0])
    expected = prnn_jax.lstm(jnp.ones(X), ONES, lengths=[3, 7])[0]
    assert_bitwise_equal(run(3), expected)


def test_errors_come_while_tracing():
    with raises("lstm: w_hh must be [hidden, 4*hidden] = [8, 32], got [8, 24]"):
        jax.jit(prnn_jax.lstm).lower(zeros(*X), params(w_hh=zeros(H, 3 * H)))
