"""Stack of the host libraries, made of parameters, against prnn_jax.stack."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS
from flax import nnx
from support import quick_jit

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx

IN, HIDDEN, TIME, BATCH, LAYERS = 5, 6, 7, 3, 3
#: Of the names of the libraries' options for ours.
FLAX = {"lengths": "seq_lengths", "reset_to": "reset_carry", "state": "initial_carry"}
RATES = {
    "dropout": "dropout_rate",
    "recurrent_dropout": "recurrent_dropout_rate",
    "zoneout": "zoneout_rate",
}
KEY = jax.random.key(3)


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(0, 0.5, shape), jnp.float32)


def light_step(a_x, product, state, gain):
    h, m = state
    a, b = (x + r for x, r in zip(a_x, product(h), strict=True))
    m = jax.nn.sigmoid(a + gain) * m + jnp.tanh(b)
    return jnp.tanh(m), m


LIGHT = prnn_jax.define_cell("light", light_step, gates="ab", states="hm", per_unit=1)
#: Of cells that are not made for an input of another width than the state.
FIRST = {"rg_lru": HIDDEN, "qrnn": HIDDEN}
#: Arguments of `prnn_jax.stack` that layers have of themselves.
OF_STACK = {"sru": {"skip_scale": 3**0.5}}


def params_of(cell: Any, directions: int = 1, biases: int = 1) -> list[Any]:
    if cell not in ("lstm", "slstm", "gru", "rnn"):
        sizes = [FIRST.get(cell, IN)] + [directions * HIDDEN] * (LAYERS - 1)
        drawn = [
            prnn_jax.init(cell, KEY, n, HIDDEN, bidirectional=directions == 2)
            for n in sizes
        ]
        return jax.tree.map(lambda a: random(*a.shape, seed=a.size), drawn)
    gates, kind = CELLS["rnn_tanh" if cell == "rnn" else cell].gates, prnn_jax.Params
    lead = (2,) if directions == 2 else ()
    kind = prnn_jax.BidirectionalParams if lead else kind
    layers = []
    for n in range(LAYERS):
        size, wide = directions * HIDDEN if n else IN, gates * HIDDEN
        shapes = [(*lead, size, wide), (*lead, HIDDEN, wide)]
        shapes += [(*lead, wide)] * biases
        layers.append(kind(*(random(*s, seed=8 * n + k) for k, s in enumerate(shapes))))
    return layers


class Host(NamedTuple):
    """A library: `make(cell, layers, **options)` gives a function of x."""

    make: Callable
    to_states: Callable  # the library's, as a tuple of ours


def _nnx(cell, layers, **options):
    options = {RATES.get(name, name): value for name, value in options.items()}
    stack = prnn_jax.nnx.Stack.from_params(
        cell, layers, return_carry=True, rngs=nnx.Rngs(dropout=KEY), **options
    )

    def run(x, **given):
        given = {FLAX.get(name, name): value for name, value in given.items()}
        carries, y = stack(x, **given)
        return y, carries

    return run


def _linen(cell, layers, **options):
    options = {RATES.get(name, name): value for name, value in options.items()}
    own = {"norm", "skip_connections", *RATES.values()}
    attributes = {name: options.pop(name) for name in own & options.keys()}
    stack, variables = prnn_jax.linen.Stack.from_params(
        cell, layers, options={**options, "return_carry": True}, **attributes
    )

    def run(x, **given):
        given = {FLAX.get(name, name): value for name, value in given.items()}
        given = {"deterministic": False, **given}
        carries, y = stack.apply(variables, x, rngs={"dropout": KEY}, **given)
        return y, carries

    return run


def _equinox(cell, layers, **options):
    stack = prnn_jax.equinox.Stack.from_params(cell, layers, **options)

    def run(x, deterministic=False, **given):
        y, states = stack(x, key=KEY, inference=deterministic, **given)
        return y, [jax.tree.map(lambda a, n=n: a[n], states) for n in range(LAYERS)]

    return run


def _from_carries(cell: str, bidirectional: bool) -> Callable:
    def convert(carries):
        if bidirectional:
            carries = [
                jax.tree.map(lambda *s: jnp.stack(s), *carry) for carry in carries
            ]
        return tuple(c[::-1] if cell == "lstm" else c for c in carries)

    return convert


HOSTS = {"nnx": _nnx, "linen": _linen, "equinox": _equinox}


def states_of(host: str, cell: str, states: Any, bidirectional: bool) -> tuple:
    return (
        tuple(states)
        if host == "equinox"
        else _from_carries(cell, bidirectional)(states)
    )


def assert_close(ours, theirs) -> None:
    # The same functions; what XLA fuses them with differs.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), ours, theirs
    )


KINDS = [
    ("lstm", 1, 1, {}),
    ("slstm", 1, 1, {"norm": True}),
    ("gru", 1, 2, {"skip_connections": True}),
    ("gru", 1, 1, {"reset_after": False}),
    ("rnn", 1, 1, {"activation": "relu"}),
    ("lstm", 2, 1, {"norm": True, "skip_connections": True, "merge": "concat"}),
    ("min_gru", 1, 1, {"norm": True}),
    ("min_lstm", 2, 1, {"skip_connections": True}),
    ("sru", 1, 1, {"activation": "tanh"}),
    ("qrnn", 1, 1, {"skip_connections": True}),
    ("rg_lru", 1, 1, {"norm": True, "skip_connections": True}),
    ("lru", 1, 1, {"norm": True}),
    ("indrnn", 2, 1, {"norm": True}),
    (LIGHT, 1, 1, {"skip_connections": True}),
    (LIGHT, 2, 1, {"norm": True}),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}{k[1]}-{'-'.join(k[3])}")
@pytest.mark.parametrize("host", HOSTS)
def test_is_the_stack_of_its_parameters(host, kind):
    cell, directions, biases, options = kind
    layers = params_of(cell, directions, biases)
    first = FIRST.get(cell, IN)
    x = random(BATCH, TIME, first, seed=99)
    controls = {"lengths": jnp.array([TIME, 3, 0])}
    run = HOSTS[host](cell, layers, **options)
    y, states = quick_jit(lambda x: run(x, **controls))(x)
    entries: list = [
        prnn_jax.Layer(p, prnn_jax.Norm(jnp.ones(s), jnp.zeros(s)))
        if options.get("norm")
        else p
        for p, s in zip(layers, [first] + [directions * HIDDEN] * 2, strict=True)
    ]
    ours = {n: v for n, v in options.items() if n != "norm"} | OF_STACK.get(cell, {})
    wanted = quick_jit(
        lambda x: prnn_jax.stack(
            cell, x, entries, bidirectional=directions == 2, **controls, **ours
        )
    )(x)
    assert_close((y, states_of(host, cell, states, directions == 2)), wanted)


NOISY = {
    "lstm": {"dropout": 0.3, "recurrent_dropout": 0.2, "zoneout": 0.1},
    "min_gru": {"dropout": 0.3},
    "qrnn": {"dropout": 0.3, "zoneout": 0.1},
    LIGHT: {"dropout": 0.3, "recurrent_dropout": 0.2, "zoneout": (0.1, 0.2)},
}


@pytest.mark.parametrize("cell", NOISY, ids=str)
@pytest.mark.parametrize("host", HOSTS)
def test_noise_is_drawn_while_training_alone(host, cell):
    layers, rates = params_of(cell), NOISY[cell]
    run = HOSTS[host](cell, layers, **rates)
    x = random(BATCH, TIME, FIRST.get(cell, IN), seed=99)
    y, _ = run(x, deterministic=True)
    evaluated, _ = prnn_jax.stack(cell, x, layers, **rates)
    assert_close(y, evaluated)
    trained, _ = run(x, deterministic=False)
    assert np.abs(np.asarray(trained) - y).max() > 0.01
    if host == "equinox":
        wanted, _ = prnn_jax.stack(cell, x, layers, key=KEY, **rates)
        assert_close(trained, wanted)


@pytest.mark.parametrize("host", HOSTS)
def test_what_a_stack_of_linear_cells_has_not(host):
    layers = params_of("min_gru")
    for rate, why in (("recurrent_dropout", "product in a step"), ("zoneout", "none")):
        with pytest.raises(ValueError, match=f"{rate}.* must be 0.*(?:{why}|has no)"):
            HOSTS[host]("min_gru", layers, **{rate: 0.1})(random(BATCH, TIME, IN))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_single_layer_takes_a_mask(reverse):
    params, x = params_of("gru")[0], random(BATCH, TIME, IN, seed=99)
    mask = np.random.default_rng(1).random((BATCH, TIME)) < 0.5
    options = {"reverse": reverse, "keep_order": True}
    wanted, h = prnn_jax.gru(x, params, mask=mask, reverse=reverse)
    of_nnx = prnn_jax.nnx.GRU.from_params(params, return_carry=True, **options)
    carry, y = of_nnx(x, mask=mask)
    assert_close((y, carry), (wanted, h))
    of_linen, variables = prnn_jax.linen.GRU.from_params(params, **options)
    assert_close(of_linen.apply(variables, x, mask=mask), wanted)
    of_equinox = prnn_jax.equinox.GRU.from_params(params, reverse=reverse)
    assert_close(of_equinox(x, mask=mask), (wanted, h))


@pytest.mark.parametrize("host", HOSTS)
def test_carries_resets_and_masks(host):
    layers = params_of("lstm")
    x, mask = random(BATCH, TIME, IN, seed=99), np.arange(TIME) % 3 > 0
    mask = np.broadcast_to(mask, (BATCH, TIME))
    states = [
        tuple(random(BATCH, HIDDEN, seed=n + k) for k in (50, 60)) for n in range(3)
    ]
    carries: Any = tuple(state[::-1] for state in states)
    if host == "equinox":
        carries = jax.tree.map(lambda *each: jnp.stack(each), *states)
    run = HOSTS[host]("lstm", layers)
    resets = random(BATCH, TIME, seed=70) > 0.3
    y, after = run(x, state=carries, resets=resets, reset_to=carries)
    wanted = prnn_jax.stack("lstm", x, layers, states, resets=resets, reset_to=states)
    assert_close((y, states_of(host, "lstm", after, False)), wanted)
    assert_close(run(x, mask=mask)[0], prnn_jax.stack("lstm", x, layers, mask=mask)[0])


@pytest.mark.parametrize("host", ["nnx", "linen"])
def test_carries_with_inputs_in_them(host):
    """Of a QRNN's layers, whose inputs are not all as wide."""
    layers = [prnn_jax.init("qrnn", KEY, n, HIDDEN) for n in (IN, HIDDEN)]
    run, x = HOSTS[host]("qrnn", layers), random(BATCH, TIME, IN, seed=99)
    y, last = run(x)
    first, carry = run(x[:, :3])
    shapes = [((BATCH, HIDDEN), (BATCH, 1, n)) for n in (IN, HIDDEN)]
    assert jax.tree.map(jnp.shape, list(carry)) == shapes
    second, after = run(x[:, 3:], state=carry)
    assert_close((jnp.concatenate([first, second], 1), after), (y, last))
    stack = prnn_jax.nnx.Stack.from_params("qrnn", layers)
    zeros = stack.initialize_carry((BATCH, IN))
    assert jax.tree.map(jnp.shape, list(zeros)) == shapes


@pytest.mark.parametrize("host", HOSTS)
def test_layers_that_do_not_fit_are_errors(host):
    make = HOSTS[host]
    layers = params_of("gru")
    with pytest.raises(ValueError, match=r"layer 1 must be for an input of 6 features"):
        make("gru", [layers[0], layers[0]])
    with pytest.raises(ValueError, match="at least one, got none"):
        make("gru", [])
    with pytest.raises(ValueError, match=r"must be .*'?lstm'?.*got 'transformer'"):
        make("transformer", layers)


def test_drawn_layers_are_those_of_the_libraries():
    """Without parameters given: sizes, names, and that they are trained."""
    stack = prnn_jax.nnx.Stack(
        "gru", IN, HIDDEN, 2, norm=True, bidirectional=True, rngs=nnx.Rngs(0)
    )
    names = {"/".join(map(str, path)) for path, _ in nnx.state(stack).flat_state()}
    assert "layers/1/w_hh" in names
    assert "norms/0/scale" in names
    x = random(BATCH, TIME, IN)
    gradients = nnx.grad(lambda stack: jnp.sum(stack(x) ** 2))(stack)
    sizes = [float(jnp.abs(g).max()) for g in jax.tree.leaves(gradients)]
    assert len(sizes) == 10
    assert min(sizes) > 0

    linen = prnn_jax.linen.Stack(prnn_jax.linen.GRU, HIDDEN, 2, norm=True)
    variables = linen.init(KEY, x)["params"]
    alone = prnn_jax.linen.GRU(HIDDEN).init(KEY, x)["params"]
    assert jax.tree.map(jnp.shape, variables["layers_0"]) == jax.tree.map(
        jnp.shape, alone
    )
    assert set(variables) == {"layers_0", "layers_1", "norms_0", "norms_1"}
    carry = linen.initialize_carry(None, (BATCH, IN))
    assert jax.tree.map(jnp.shape, carry) == ((BATCH, HIDDEN),) * 2

    by_name = prnn_jax.equinox.Stack("gru", IN, HIDDEN, 2, key=KEY)
    by_class = prnn_jax.equinox.Stack(prnn_jax.equinox.GRU, IN, HIDDEN, 2, key=KEY)
    assert eqx.tree_equal(by_name, by_class)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reverse": True}, "reverse must be False"),
        ({"dropout_rate": 1.0}, "dropout_rate must be from 0 to below 1"),
        ({"num_layers": 0}, "num_layers must be"),
    ],
)
def test_options_that_do_not_fit_are_errors(options, message):
    given = {"num_layers": 2, **options}
    with pytest.raises(ValueError, match=message):
        prnn_jax.nnx.Stack("lstm", IN, HIDDEN, rngs=nnx.Rngs(0), **given)
    own = {n: v for n, v in given.items() if n in ("num_layers", "dropout_rate")}
    others = {n: v for n, v in given.items() if n not in own}
    with pytest.raises(ValueError, match=message):
        prnn_jax.linen.Stack("lstm", HIDDEN, options=others, **own).init(
            KEY, random(BATCH, TIME, IN)
        )
    with pytest.raises(ValueError, match="options must not have features"):
        prnn_jax.linen.Stack("lstm", HIDDEN, 2, options={"features": 3}).init(
            KEY, random(BATCH, TIME, IN)
        )
