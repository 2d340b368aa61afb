"""Layers without a product in a step, of all host libraries."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

import prnn_jax

BATCH, TIME, INPUT, HIDDEN = 3, 6, 4, 5

#: The function, the layer's options, and what they are to the function.
LAYERS: dict[str, tuple[Callable, dict, dict]] = {
    "MinGRU": (prnn_jax.min_gru, {"activation": "tanh"}, {"activation": "tanh"}),
    "MinLSTM": (prnn_jax.min_lstm, {}, {}),
    "SRU": (
        prnn_jax.sru,
        {"highway_bias": -1.0, "peepholes": True},
        {"skip_scale": np.sqrt(1 + 2 * np.exp(-1.0))},
    ),
    "QRNN": (prnn_jax.qrnn, {"width": 3, "pooling": "ifo"}, {"pooling": "ifo"}),
    "RGLRU": (prnn_jax.rg_lru, {"c": 4.0}, {"c": 4.0}),
    "IndRNN": (prnn_jax.indrnn, {"steps": TIME}, {}),
}
STATES = {"SRU": "c_0", "QRNN": "state_0"}
LIBRARIES = {"nnx": "flax", "linen": "flax", "equinox": "equinox"}

each_library = pytest.mark.parametrize("where", LIBRARIES)
each_layer = pytest.mark.parametrize("name", LAYERS)


@dataclass
class Made:
    """A layer of any library, called alike."""

    run: Callable
    params: dict[str, Any]
    zeros: Callable
    layer: Any


def sizes(name: str) -> tuple[int, int]:
    return (HIDDEN if name == "RGLRU" else INPUT), HIDDEN


def inputs(name: str) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_normal((BATCH, TIME, sizes(name)[0])).astype(np.float32)


def made(
    where: str, name: str, take: int | None = None, params: Any = None, **options
) -> Made:
    """`run(x, state, ...)` gives y and the state in the functions' form.

    With params, the layer is made of these.
    """
    library(LIBRARIES[where])
    given = {"params": params} if params is not None else {}
    options = {**({} if given else LAYERS[name][1]), **options}
    size, hidden = sizes(name)
    take = size if take is None else take
    if where == "equinox":
        import prnn_jax.equinox

        kind = getattr(prnn_jax.equinox, name)
        if given:
            layer = kind.from_params(params, **options)
        else:
            layer = kind(take, hidden, key=jax.random.key(0), **options)
        return Made(layer, layer.params, layer.zeros, layer)

    def call(both, layer, x, state=None, lengths=None, reset_to=None, **others):
        if both and state is not None:
            state = tuple(jax.tree.map(lambda s, n=n: s[n], state) for n in range(2))
        others |= {"initial_carry": state, "seq_lengths": lengths}
        carry, y = layer(x, return_carry=True, reset_carry=reset_to, **others)
        if both:
            carry = jax.tree.map(lambda *ways: jnp.stack(ways), *carry)
        return y, carry

    if "reverse" in options:
        options["keep_order"] = True
    if where == "nnx":
        from flax import nnx

        import prnn_jax.nnx

        kind = getattr(prnn_jax.nnx, name)
        if given:
            layer = kind.from_params(params, **options)
        else:
            layer = kind(take, hidden, rngs=nnx.Rngs(0), **options)
        run = functools.partial(call, layer.bidirectional, layer)
        return Made(
            run, layer.params, lambda n: layer.initialize_carry((n, take)), layer
        )
    import prnn_jax.linen

    if given:
        layer, variables = getattr(prnn_jax.linen, name).from_params(params, **options)
    else:
        layer = getattr(prnn_jax.linen, name)(hidden, **options)
        zero = jnp.zeros((1, 2, take))
        variables = layer.init(jax.random.key(0), zero, deterministic=True)

    def run(*args, rngs=None, **others):
        apply = functools.partial(layer.apply, variables, rngs=rngs)
        return call(layer.bidirectional, apply, *args, **others)

    def zeros(n):
        return layer.initialize_carry(jax.random.key(0), (n, take))

    return Made(run, layer.to_params(variables), zeros, layer)


def by_function(name: str, params: dict, x, state=None, **options):
    function, _, arguments = LAYERS[name]
    state = {STATES.get(name, "h_0"): state}
    return function(x, **params, **state, **arguments, **options)


def states(name: str, lead=()) -> Any:
    def normal(*shape):
        random = np.random.default_rng(1)
        return random.standard_normal((*lead, BATCH, *shape)).astype(np.float32)

    return (normal(HIDDEN), normal(2, INPUT)) if name == "QRNN" else normal(HIDDEN)


def assert_close(found, expected) -> None:
    """But for sums in another order."""
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    jax.tree.map(close, found, expected)


@each_library
@each_layer
def test_it_is_the_function_of_its_params(where, name):
    layer, x = made(where, name), inputs(name)
    assert_bitwise_equal(layer.run(x), by_function(name, layer.params, x))
    resets = np.arange(BATCH * TIME).reshape(BATCH, TIME) % 4 == 1
    for bent in (
        {"lengths": np.array([6, 0, 3]), "resets": resets, "reset_to": states(name)},
        {"mask": resets},
    ):
        found = layer.run(x, states(name), **bent)
        expected = by_function(name, layer.params, x, states(name), **bent)
        assert_bitwise_equal(found, expected)


@each_library
@each_layer
def test_reverse_both_ways_and_other_options(where, name):
    x = inputs(name)
    layer = made(where, name, reverse=True)
    assert_bitwise_equal(layer.run(x), by_function(name, layer.params, x, reverse=True))
    options = {"bidirectional": True, "merge": "sum"}
    layer = made(where, name, **options)
    state = states(name, (2,))
    expected = by_function(name, layer.params, x, state, **options)
    assert_bitwise_equal(layer.run(x, state), expected)
    bare = made(where, name, use_bias=False)
    params = bare.params.get("params")
    biases = [v for k, v in bare.params.items() if k.startswith("b_")]
    assert (params.b_ih if params else biases[0]) is None
    assert bare.run(x)[0].shape == (BATCH, TIME, HIDDEN)


@each_library
@each_layer
def test_one_step_at_a_time(where, name):
    layer, x = made(where, name), inputs(name)
    y, last = layer.run(x)
    state, parts = layer.zeros(BATCH), []
    assert jax.tree.all(jax.tree.map(lambda s: not s.any(), state))
    for t in range(TIME):
        part, state = layer.run(x[:, t : t + 1], state)
        parts.append(part)
    assert_close((jnp.concatenate(parts, 1), state), (y, last))


@each_layer
def test_libraries_agree_on_shapes_and_time_major(name):
    x = inputs(name)
    shapes = []
    for where in LIBRARIES:
        layer = made(where, name)
        shapes.append(jax.tree.map(jnp.shape, layer.params))
        of_time = layer.run(np.moveaxis(x, 1, 0), time_major=True)
        y, state = layer.run(x)
        assert_close((jnp.moveaxis(of_time[0], 0, 1), of_time[1]), (y, state))
    assert shapes[0] == shapes[1] == shapes[2]


@each_layer
def test_gradients_and_dtypes(name):
    library("flax")
    from flax import nnx

    import prnn_jax.nnx

    take, hidden = sizes(name)
    kind = getattr(prnn_jax.nnx, name)
    layer = kind(take, hidden, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)

    def loss(layer):
        return (layer(inputs(name)).astype(jnp.float32) ** 2).sum()

    gradients = jax.tree.leaves(nnx.jit(nnx.grad(loss))(layer))
    assert len(gradients) >= 2
    assert all(np.isfinite(g).all() and np.any(g) for g in gradients)
    assert layer(inputs(name)).dtype == jnp.bfloat16
    narrow = kind(take, hidden, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    assert all(p.dtype == jnp.bfloat16 for p in jax.tree.leaves(narrow.params))


def test_outputs_of_a_reversed_flax_layer_are_in_the_order_of_processing():
    library("flax")
    from flax import nnx

    import prnn_jax.nnx

    layer = prnn_jax.nnx.MinGRU(INPUT, HIDDEN, reverse=True, rngs=nnx.Rngs(0))
    lengths = np.array([6, 0, 3])
    y = layer(inputs("MinGRU"), seq_lengths=lengths)
    kept = layer(inputs("MinGRU"), seq_lengths=lengths, keep_order=True)
    assert_bitwise_equal(y[0], kept[0, ::-1])
    assert_bitwise_equal(y[2, :3], kept[2, 2::-1])
    assert not y[1].any()


@each_library
def test_zoneout_of_the_qrnn(where):
    options = {"zoneout_rate": 0.5, "pooling": "f"}
    x = inputs("QRNN")
    off = {"inference": True} if where == "equinox" else {"deterministic": True}
    layer = made(where, "QRNN", **options)
    mean = prnn_jax.qrnn(x, **layer.params, pooling="f", zoneout=0.5)
    assert_bitwise_equal(layer.run(x, **off), mean)
    if where == "equinox":
        on = {"key": jax.random.key(3)}
        with pytest.raises(ValueError, match="key must be given to a layer that drops"):
            layer.run(x)
    elif where == "linen":
        on = {"rngs": {"dropout": jax.random.key(3)}, "deterministic": False}
    else:
        from flax import nnx

        on = {"rngs": nnx.Rngs(3)}
    y, _ = layer.run(x, **on)
    # What is drawn keeps the value of the step before it, bit by bit.
    same = np.asarray(y[:, 1:] == y[:, :-1])
    assert 0.3 < same.mean() < 0.7


@each_library
def test_parameters_begin_as_the_papers_have_them(where):
    wide = 1000

    def of(name, take=wide, **options):
        library(LIBRARIES[where])
        if where == "equinox":
            import prnn_jax.equinox

            make = getattr(prnn_jax.equinox, name)
            return make(take, wide, key=jax.random.key(0), **options).params
        if where == "nnx":
            from flax import nnx

            import prnn_jax.nnx

            make = getattr(prnn_jax.nnx, name)
            return make(take, wide, rngs=nnx.Rngs(0), **options).params
        import prnn_jax.linen

        layer = getattr(prnn_jax.linen, name)(wide, **options)
        variables = layer.init(jax.random.key(0), jnp.zeros((1, 1, take)))
        return layer.to_params(variables)

    log_a = -np.log1p(np.exp(-np.asarray(of("RGLRU")["decay"], np.float64)))
    kept = np.exp(8 * log_a)
    assert 0.9 <= kept.min() < 0.901
    assert 0.998 < kept.max() <= 0.9991
    u = of("IndRNN", 4)["params"].w_hh
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() <= 1
    u = of("IndRNN", 4, steps=10)["params"].w_hh
    assert 1.05 < u.max() <= 2**0.1
    params = of("SRU", 12, highway_bias=-2.0)
    assert 0.48 < np.abs(params["w_ih"]).max() <= 0.5  # √(3/12)
    assert_bitwise_equal(params["b_ih"], np.repeat(np.float32([0, -2]), wide))
    w = of("QRNN", 8)["w_ih"]
    assert np.std(w) == pytest.approx(1 / 4, rel=0.05)  # of 2 steps of 8 inputs


# ---- layers of parameters ------------------------------------------------------------

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
