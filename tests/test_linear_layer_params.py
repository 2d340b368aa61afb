"""Linear layers of given parameters, and what all of them refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_layers import (
    BATCH,
    HIDDEN,
    INPUT,
    LAYERS,
    by_function,
    each_layer,
    each_library,
    inputs,
    made,
    sizes,
)
from support import assert_bitwise_equal

import prnn_jax

#: What a layer made of parameters must be told besides.
UNTOLD = {
    "MinGRU": {"activation": "tanh"},
    "SRU": {"highway_bias": -1.0},
    "QRNN": {"pooling": "ifo"},
    "RGLRU": {"c": 4.0},
}


@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True}, {"use_bias": False}], ids=str
)
@each_library
@each_layer
def test_a_layer_of_parameters_is_the_layer(where, name, options):
    first, x = made(where, name, **options), inputs(name)
    merge = {"merge": "sum"}  # what parameters do not tell
    again = made(where, name, params=first.params, **UNTOLD.get(name, {}), **merge)
    assert_bitwise_equal(again.params, first.params)
    expected = by_function(
        name,
        first.params,
        x,
        bidirectional=options.get("bidirectional", False),
        **merge,
    )
    assert_bitwise_equal(again.run(x), expected)
    zeros = jax.tree.map(jnp.shape, again.zeros(2))
    assert zeros == jax.tree.map(jnp.shape, first.zeros(2))


@each_library
def test_parameters_of_init_make_a_layer(where):
    key = jax.random.key(1)
    for name, (function, _, arguments) in LAYERS.items():
        own = {"pooling": "ifo", "width": 3} if name == "QRNN" else {}
        given = prnn_jax.init(function.__name__, key, *sizes(name), **own)
        layer = made(where, name, params=given, **UNTOLD.get(name, {}))
        assert_bitwise_equal(
            layer.run(inputs(name)), function(inputs(name), **given, **arguments)
        )
    params = prnn_jax.init("indrnn", key, INPUT, HIDDEN)["params"]
    twice = params._replace(b_hh=params.b_ih + 1)
    of_two = made(where, "IndRNN", params=twice).params["params"]
    assert_bitwise_equal(of_two, params._replace(b_ih=2 * params.b_ih + 1))


WIDE = np.ones((4, 10), np.float32)


@pytest.mark.parametrize(
    ("name", "params", "options", "message"),
    [
        ("MinGRU", {"w_ih": WIDE[:, :9]}, {}, r"the last of 2\*hidden.*got \[4, 9\]"),
        ("MinGRU", {"w_ih": WIDE[None]}, {}, r"one of 2 if bidirectional, got \[1, 4"),
        ("MinGRU", {"w": WIDE}, {}, "arguments of prnn_jax.min_gru by name.* got w"),
        ("MinGRU", WIDE, {}, "arguments of prnn_jax.min_gru by name.* got ndarray"),
        ("MinGRU", {"b_ih": WIDE[0]}, {}, "w_ih must be an array, got NoneType"),
        (
            "MinGRU",
            {"w_ih": WIDE, "b_ih": WIDE[0, :9]},
            {},
            r"b_ih must be \[10\]",
        ),
        (
            "MinGRU",
            {"w_ih": WIDE, "b_ih": WIDE[0]},
            {"use_bias": False},
            "b_ih must be None for a layer without, got an array",
        ),
        ("SRU", {"w_ih": WIDE[:, :9]}, {}, r"w_skip must be \[4, 3\], got None"),
        ("QRNN", {"w_ih": WIDE[None, :, :9]}, {"pooling": "of"}, "pooling must be one"),
    ],
)
@each_library
def test_parameters_that_do_not_fit(where, name, params, options, message):
    with pytest.raises(ValueError, match=rf"{name}.from_params: .*{message}"):
        made(where, name, params=params, **options)


def test_params_of_an_nnx_layer_cannot_be_assigned():
    layer = made("nnx", "MinGRU").layer
    with pytest.raises(AttributeError, match=r"MinGRU.from_params\(params\) makes"):
        layer.params = layer.params


# ---- bad input -----------------------------------------------------------------------


@each_library
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("RGLRU", {"c": "8"}, "c must be a number"),
        ("QRNN", {"pooling": "io"}, "pooling must be one of 'f', 'fo', 'ifo'"),
        ("QRNN", {"width": 0}, "width must be at least 1"),
        ("QRNN", {"zoneout_rate": 2.0}, "zoneout_rate must be of numbers from 0 to 1"),
        ("IndRNN", {"steps": 0}, "steps must be at least 1"),
        ("IndRNN", {"activation": "rely"}, "activation must be"),
        ("SRU", {"reverse": True, "bidirectional": True}, "reverse must be False in a"),
        ("SRU", {"merge": "mean"}, "merge must be one of"),
        ("SRU", {"implementation": "native"}, "not available: with peepholes"),
    ],
)
def test_bad_options(where, name, options, message):
    with pytest.raises(ValueError, match=message):
        made(where, name, **options).run(inputs(name))


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("pooling", "those that not all layers have are here activation"),
        ("heads", "it is about the product in a step, and there is none"),
        ("zoneout_rate", "only QRNN has a zoneout_rate"),
        ("gate_activation", "gates are σ"),
    ],
)
@each_library
def test_an_option_of_another_layer(where, option, why):
    message = rf"there is no option {option}.*{why}"
    if where == "linen":
        message = f"unexpected keyword.*{option}"
    error = TypeError if where == "linen" else ValueError  # of a dataclass
    with pytest.raises(error, match=message):
        made(where, "MinGRU", **{option: 1})


@each_library
def test_bad_arrays(where):
    layer = made(where, "MinGRU")
    with pytest.raises(ValueError, match=r"must be \[\*batch, time, in.*got \[4\]"):
        layer.run(inputs("MinGRU")[0, 0])
    h = np.zeros((BATCH, 3), np.float32)
    with pytest.raises(ValueError, match=r"\[3, 5\], got \[3, 3\]"):
        layer.run(inputs("MinGRU"), h)
    message = r"hidden_\w+ must be in\w+ = 4, for its units are the input's, got 5"
    with pytest.raises(ValueError, match=message.replace("hidden_", "(hidden_)?")):
        made(where, "RGLRU", take=4)


def test_a_layer_of_equinox_without_a_key():
    with pytest.raises(ValueError, match=r"MinGRU: key must be .*, got None"):
        prnn_jax.equinox.MinGRU(3, 4)
