"""Errors of prnn_jax.stack: each says in which layer, what was expected, what came."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stack_cases import HIDDEN, Case, restack

import prnn_jax
from prnn_jax import Layer, Norm


def wrong(**changes):
    arrays = Case(layers=6, norm=True, state=True).arrays(input_size=HIDDEN)
    return {**arrays, **changes}


PARAMS = [layer.params for layer in wrong()["layers"]]
NARROW = PARAMS[0]._replace(w_ih=PARAMS[0].w_ih[:4])
OTHER_DTYPE = PARAMS[0]._replace(w_hh=PARAMS[0].w_hh.astype(np.float16))
SHORT_NORM = Norm(np.ones(5, np.float32))
STACKED = restack(wrong(), 2)


WRONG = [
    (
        {"cell": "elman"},
        "cell must be one of 'lstm', 'slstm', 'gru', 'rnn', .* got",
    ),
    ({"layers": PARAMS[0]}, "layers must be a sequence.*Params; put it in a list"),
    (
        {"layers": PARAMS[0]._asdict()},
        r"layers must be a sequence.*dict; write prnn_jax.Params\(\*\*params\)",
    ),
    (
        {"layers": {"params": PARAMS[0]._asdict()}},
        r"layers must be.*dict; of a layer of Linen, pass layer.to_params\(variables\)",
    ),
    *(
        ({"layers": types.SimpleNamespace(params=given)}, "Namespace; pass its .params")
        for given in (PARAMS[0], tuple(PARAMS))
    ),
    (
        {"layers": [types.SimpleNamespace(params=PARAMS[0])]},
        r"layers\[0\] must be .*Params.*Namespace; pass its .params",
    ),
    ({"layers": []}, "layers must be at least one, got none"),
    (
        {"layers": [PARAMS[0], PARAMS[1][:2]]},
        r"layers\[1\] must be .*Params.*got tuple",
    ),
    ({"layers": [Layer(PARAMS[0], np.ones(3))]}, r"norm of layers\[0\].*got ndarray"),
    (
        {"layers": [PARAMS[0], NARROW], "state_0": None},
        r"layer 1: w_ih must be for an input of 6 features, which is the width of the "
        r"output of layer 0, got \[4, 24\]",
    ),
    (
        {"layers": [NARROW] * 6},
        "layer 0: w_ih must be for an input of 6 features, which is the width of x",
    ),
    (
        {"layers": [NARROW] * 6, "x": np.ones((2, 7, 4), np.float32)},
        "layer 1: w_ih must be for an input of 6 features, .* layer 0",
    ),
    (
        {"layers": [PARAMS[0], OTHER_DTYPE], "state_0": None},
        "layer 1: all arrays must have the same dtype",
    ),
    (
        {"layers": [Layer(PARAMS[0], SHORT_NORM)], "state_0": None},
        r"layer 0: norm.scale must be \[input\] = \[6\], got \[5\]",
    ),
    (
        {"state_0": wrong()["state_0"][:2]},
        "state_0 must be a sequence of 6 states .*, one for each of layers, got 2",
    ),
    ({"state_0": np.zeros((6, 2, 6))}, "state_0 must be a sequence of 6.*got "),
    (
        {"state_0": [state[0] for state in wrong()["state_0"]]},
        r"layer 0: state_0 must be \(h_0, c_0\)",
    ),
    (
        {**STACKED, "state_0": [None, None, wrong()["state_0"][0]]},
        r"state_0\[2\] must begin with the axis of the 4 stacked layers, got \[2, 6\]",
    ),
    (
        {"layers": [Layer(PARAMS[0], stacked=True)], "state_0": None},
        r"layers\[0\] is stacked.*same first axis.*\[6, 24\], \[6, 24\], \[24\]",
    ),
    ({"reset_to": wrong()["state_0"]}, "reset_to is given without resets"),
    ({"dropout": 1.0}, "stack: dropout must be from 0 to below 1, got 1.0"),
    ({"recurrent_dropout": jnp.ones(1)}, "recurrent_dropout must be a number"),
    ({"zoneout": 1.5}, "stack: zoneout must be from 0 to 1, got 1.5"),
    ({"zoneout": (0.1, 0.1, 0.1)}, "zoneout must be a number or a tuple of 2.*got 3"),
    ({"cell": "slstm", "zoneout": 0.1}, "zoneout must be 0 for the sLSTM"),
    ({"skip_connections": 2}, "skip_connections must be True or False.* got 2"),
    ({"x": np.ones(6, np.float32)}, r"x must be \[\*batch, time, input\], got \[6\]"),
    ({"lengths": np.ones(3, int)}, r"lengths must be \[\*batch\] = \[2\], got \[3\]"),
    ({"lengths": np.array([8, 1])}, "lengths must be from 0 to time = 7, got 8"),
    ({"implementation": "cuda"}, "stack: implementation must be one of"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_errors_say_where_and_what(changes, message):
    arguments = {"cell": "lstm", "implementation": "scan", **wrong(), **changes}
    with pytest.raises(
        ValueError, match=f"^stack(, |: ).*{message.removeprefix('stack: ')}"
    ):
        prnn_jax.stack(**arguments)


LINEAR = [prnn_jax.init("qrnn", jax.random.key(n), 5, 5) for n in range(2)]
OF_LINEAR = [
    (
        {"cell": "min_gru", "pooling": "f"},
        "min_gru has no pooling, got 'f'; it",
    ),
    ({"reserve": "lean"}, "reserve must be 'fast' for qrnn, which has no product"),
    ({"recurrent_dropout": 0.1}, "recurrent_dropout must be 0 for qrnn, which has no"),
    ({"cell": "sru", "zoneout": 0.1}, "zoneout must be 0 for sru, which has none"),
    ({"zoneout": (0.1, 0.1)}, "zoneout must be a number or a tuple of 1"),
    ({"layers": LINEAR[0]}, "layers must be a sequence.*dict; put it in a list"),
    ({"layers": PARAMS}, "layer 0: params must be arguments of prnn_jax.qrnn by name"),
    ({"layers": [LINEAR[0], {"w": 1}]}, "layer 1: params must be arguments .* got w"),
    ({"x": np.ones((2, 3, 4), np.float32)}, r"layer 0: w_ih must be for an input of 4"),
    ({"cell": "lstm"}, r"layers\[0\] must be prnn_jax.Params, .* got dict"),
    ({"cell": "lstm", "c": 4.0}, "only cells without a product in a step have c"),
]


@pytest.mark.parametrize(("changes", "message"), OF_LINEAR)
def test_errors_of_cells_without_a_product(changes, message):
    x = np.ones((2, 3, 5), np.float32)
    with pytest.raises(ValueError, match=f"^stack(, |: ).*{message}"):
        prnn_jax.stack(**{"cell": "qrnn", "x": x, "layers": LINEAR, **changes})


def test_an_error_of_such_a_layer_says_which():
    state = [None, (np.ones((2, 5), np.float32), np.ones((2, 2, 5), np.float32))]
    with pytest.raises(ValueError, match=r"^qrnn: x_0 must be") as raised:
        prnn_jax.stack("qrnn", np.ones((2, 3, 5), np.float32), LINEAR, state)
    assert raised.value.__notes__ == ["It was said of stack, layer 1."]


def test_a_misspelt_option_is_an_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'poolng'"):
        prnn_jax.stack("qrnn", np.ones((2, 3, 5)), LINEAR, poolng="f")
