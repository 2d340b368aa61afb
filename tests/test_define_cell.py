"""Cells of one's own: a step in jax.numpy, and all that is around it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax.testing import check_cell

KEY = jax.random.key(0)
IN, HIDDEN, TIME, BATCH = 4, 9, 7, 3
X = jax.random.normal(jax.random.key(1), (BATCH, TIME, IN))
LENGTHS = np.array([7, 0, 3])


def lstm_step(a_x, product, state):
    h, c = state
    i, f, g, o = (x + y for x, y in zip(a_x, product(h), strict=True))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru_step(a_x, product, state):
    (h,) = state
    r, z = (jax.nn.sigmoid(x + y) for x, y in zip(a_x[:2], product(h)[:2], strict=True))
    n = jnp.tanh(a_x[2] + product(r * h, 2))
    return (n + z * (h - n),)


def peephole_step(a_x, product, state, p_i, p_f, p_o):
    h, c = state
    i, f, g, o = (x + y for x, y in zip(a_x, product(h), strict=True))
    i, f = jax.nn.sigmoid(i + p_i * c), jax.nn.sigmoid(f + p_f * c)
    c = f * c + i * jnp.tanh(g)
    return jax.nn.sigmoid(o + p_o * c) * jnp.tanh(c), c


OWN = {
    "lstm": prnn_jax.define_cell("my_lstm", lstm_step, gates="ifgo", states="hc"),
    "gru": prnn_jax.define_cell("my_gru", gru_step, gates="rzn"),
    "peephole": prnn_jax.define_cell(
        "my_peephole", peephole_step, gates="ifgo", states="hc", per_unit=3
    ),
}
OURS = {
    "lstm": prnn_jax.lstm,
    "gru": functools.partial(prnn_jax.gru, reset_after=False),
    "peephole": prnn_jax.lstm,
}


def params_of(cell: str, **options) -> prnn_jax.Params:
    kind = "gru" if cell == "gru" else "lstm"
    peepholes = {"peepholes": True} if cell == "peephole" else {}
    return prnn_jax.init(
        kind, KEY, IN, HIDDEN, scheme="pytorch", **peepholes, **options
    )


RESETS = np.arange(BATCH * TIME).reshape(BATCH, TIME) % 4 == 2
OPTIONS = {
    "plain": {},
    "lengths in reverse": {"lengths": LENGTHS, "reverse": True},
    "resets and zoneout": {"resets": RESETS, "zoneout": 0.3},
    "mask": {"mask": ~RESETS, "masked_y": "zero"},
    "dropout": {"recurrent_mask": np.eye(BATCH, HIDDEN, dtype=np.float32)},
    "both ways": {"bidirectional": True, "merge": "sum"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", OWN)
def test_is_the_cell_it_repeats(cell, options):
    params = params_of(cell, bidirectional="bidirectional" in options)

    def run(function, params, **more):
        call = functools.partial(function, **options, **more)
        (y, state), vjp = jax.vjp(call, X, params)
        return y, state, vjp((jnp.sin(y), jax.tree.map(jnp.cos, state)))

    ours = jax.jit(functools.partial(run, OWN[cell]))(params)
    scan = jax.jit(functools.partial(run, OURS[cell], implementation="scan"))(params)
    # The same scan of the same operations, which XLA may fuse in another way.
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(scan), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def layer_norm_step(a_x, product, state, gain, shift):
    """Along the units of a layer (or of a head)."""
    (h,) = state
    (a,) = (x + y for x, y in zip(a_x, product(h), strict=True))
    mean = a.mean(-1, keepdims=True)
    spread = jnp.sqrt(a.var(-1, keepdims=True) + 1e-5)
    return (jnp.tanh(gain * (a - mean) / spread + shift),)


def test_layer_norm_inside_of_a_step():
    cell = prnn_jax.define_cell("normed", layer_norm_step, gates="a", per_unit=2)
    params = cell.init(KEY, IN, HIDDEN)
    assert params.peepholes.shape == (2 * HIDDEN,)
    gain, shift = np.linspace(0.5, 2, HIDDEN), np.linspace(-1, 1, HIDDEN)
    own = jnp.asarray(np.concatenate([gain, shift]), jnp.float32)
    y, h_n = cell(X, params._replace(peepholes=own))
    h = np.zeros((BATCH, HIDDEN))
    w_ih, w_hh = np.asarray(params.w_ih, float), np.asarray(params.w_hh, float)
    for t in range(TIME):
        a = np.asarray(X[:, t], float) @ w_ih + h @ w_hh + np.asarray(params.b_ih)
        a = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
        h = np.tanh(gain * a + shift)
        # Some roundings of float32, which a normalisation makes larger.
        np.testing.assert_allclose(y[:, t], h, rtol=0, atol=2e-5)
    assert_bitwise_equal(h_n, y[:, -1])


def test_in_stacks_recurrences_heads_and_plans():
    cell = OWN["lstm"]
    layers = [params_of("lstm"), prnn_jax.init("lstm", KEY, HIDDEN, HIDDEN)]
    options = {"lengths": LENGTHS, "key": KEY, "dropout": 0.3, "zoneout": (0.1, 0.2)}
    ours, _ = prnn_jax.stack(cell, X, layers, **options)
    scan, _ = prnn_jax.stack("lstm", X, layers, implementation="scan", **options)
    np.testing.assert_allclose(ours, scan, rtol=1e-5, atol=1e-6)
    a_x = X @ layers[0].w_ih + layers[0].b_ih
    y, _ = prnn_jax.recurrence(cell, a_x, layers[0].w_hh, b_hh=layers[0].b_hh)
    np.testing.assert_allclose(y, cell(X, layers[0])[0], rtol=1e-5, atol=1e-6)
    heads = cell.init(KEY, IN, 2 * HIDDEN, heads=2)
    wanted, _ = prnn_jax.lstm(X, heads, implementation="scan")
    np.testing.assert_allclose(cell(X, heads)[0], wanted, rtol=1e-5, atol=1e-6)
    plan = prnn_jax.explain(cell, batch=1, time=1, hidden_size=HIDDEN)
    assert (plan.engine, plan.reasons) == ("scan", ("my_lstm is a cell of your own",))


def test_forward_mode_and_second_derivatives():
    params = params_of("gru")

    def hessian(function, **options):
        def loss(x):
            return (function(x, params, **options)[0] ** 2).sum()

        return jax.jit(jax.hessian(loss))(X[0])

    ours = hessian(OWN["gru"])
    assert np.abs(ours).max() > 0.01
    wanted = hessian(OURS["gru"], implementation="scan")
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


def test_one_made_again_is_another():
    def twice(a_x, product, state):
        del product
        return (2 * a_x[0] + 0 * state[0],)

    def thrice(a_x, product, state):
        del product
        return (3 * a_x[0] + 0 * state[0],)

    made = [prnn_jax.define_cell("scaled", step, gates="a") for step in (twice, thrice)]
    params = made[0].init(KEY, IN, HIDDEN)
    two, three = (cell(X, params)[0] for cell in made)
    np.testing.assert_allclose(three, 1.5 * two, rtol=1e-6)


def kept(a_x, product, state):
    del a_x, product
    return state


BAD = {
    "a name of ours": (("lstm", kept), {"gates": "a"}, "none of lstm, .* got 'lstm'"),
    "no function": (("own", 7), {"gates": "a"}, "step must be a function, got 7"),
    "gates": (("own", kept), {"gates": "aa"}, "gates must be different small letters"),
    "no h": (("own", kept), {"gates": "a", "states": "ch"}, "must be 'h', got 'ch'"),
    "a linear cell's name": (("min_gru", kept), {"gates": "a"}, "got 'min_gru'"),
    "a word of Python": (
        ("class", kept),
        {"gates": "a"},
        "no word of Python, .* got 'class'",
    ),
    "too few arguments": (
        ("own", kept),
        {"gates": "a", "per_unit": 2},
        "own: its step must take 5 arguments, a_x, product, state and 2 of per_unit",
    ),
    "per_unit": (("own", kept), {"gates": "a", "per_unit": -1}, "per_unit must be at"),
}


@pytest.mark.parametrize(("given", "options", "message"), BAD.values(), ids=BAD)
def test_what_makes_no_cell(given, options, message):
    with pytest.raises(ValueError, match=message):
        prnn_jax.define_cell(*given, **options)


RETURNS = {
    "too few": (lambda a_x, product, state: (), "of 1 states, got 0"),
    "an array": (lambda a_x, product, state: state[0], "of 1 states, got "),
    "a shape": (
        lambda a_x, product, state: (state[0][..., :1],),
        r"states of the shape and dtype of those before, float32 \[3, 1, 9\], got "
        r"float32 \[3, 1, 1\]",
    ),
    "a dtype": (
        lambda a_x, product, state: (state[0].astype(jnp.bfloat16),),
        "got bfloat16",
    ),
    "a number": (lambda a_x, product, state: (0.0,), "got float"),
}


@pytest.mark.parametrize(("step", "message"), RETURNS.values(), ids=RETURNS)
def test_what_a_step_must_return(step, message):
    cell = prnn_jax.define_cell("own", step, gates="a")
    with pytest.raises(ValueError, match=f"own: its step must return .*{message}"):
        cell(X, cell.init(KEY, IN, HIDDEN))


PRODUCTS = {
    "no letter of its": (
        lambda h: ("z",),
        "product's gate must be one of 'a', 'b', or",
    ),
    "a place past the last": (lambda h: (2,), "its place from 0 to 1, got 2"),
    "a place from the end": (lambda h: (-1,), "its place from 0 to 1, got -1"),
    "several": (lambda h: (slice(2),), "product's gate must be one of"),
    "some of h": (None, r"an array of h's shape, \[3, 1, 9\], got float32 \[3, 1, 2\]"),
    "the states": ((), r"an array of h's shape, \[3, 1, 9\], got tuple"),
}


@pytest.mark.parametrize(("gate", "message"), PRODUCTS.values(), ids=PRODUCTS)
def test_what_a_product_is_of(gate, message):
    def step(a_x, product, state):
        (h,) = state
        if gate == ():
            return product(state)
        return (product(h[..., :2])[0],) if gate is None else (product(h, *gate(h)),)

    cell = prnn_jax.define_cell("own", step, gates="ab")
    with pytest.raises(ValueError, match=message):
        cell(X, cell.init(KEY, IN, HIDDEN))


def test_a_gate_has_a_letter_and_a_place():
    def by(*gates):
        def step(a_x, product, state):
            (h,) = state
            a, b = (product(h, gate) for gate in gates)
            return (jnp.tanh(a_x[0] + a) + jnp.tanh(a_x[1] + b),)

        return prnn_jax.define_cell("own", step, gates="ab")

    params = by(0, 1).init(KEY, IN, HIDDEN)
    assert_bitwise_equal(by("a", "b")(X, params), by(0, 1)(X, params))


def test_what_such_a_cell_has_not():
    cell, params = OWN["gru"], params_of("gru")
    with pytest.raises(ValueError, match=r"my_gru has no activation, got 'relu'"):
        prnn_jax.stack(cell, X, [params], activation="relu")
    with pytest.raises(ValueError, match=r"reserve must be 'fast' for my_gru"):
        prnn_jax.stack(cell, X, [params], reserve="lean")
    with pytest.raises(
        ValueError, match=r'"native" is not available: my_gru is a cell'
    ):
        cell(X, params, implementation="native")
    with pytest.raises(ValueError, match=r"peepholes must be the units' own numbers"):
        OWN["peephole"](X, params_of("lstm"))


@pytest.mark.parametrize("cell", OWN)
def test_check_cell_finds_nothing(cell):
    check_cell(OWN[cell])
    with jax.enable_x64(True):
        check_cell(OWN[cell])


def over_the_batch(a_x, product, state):
    (h,) = state
    (a,) = (x + y for x, y in zip(a_x, product(h), strict=True))
    return (jnp.tanh(a - a.mean(0)),)


def without_end(a_x, product, state):
    (h,) = state
    (a,) = (x + y for x, y in zip(a_x, product(h), strict=True))
    return (jax.lax.stop_gradient(jnp.tanh(a)),)


FAULTS = {
    "batch": (over_the_batch, "a row depends on others"),
    "gradient": (without_end, "VJP"),
}


@pytest.mark.parametrize(("step", "message"), FAULTS.values(), ids=FAULTS)
def test_check_cell_finds_a_fault(step, message):
    cell = prnn_jax.define_cell("faulty", step, gates="a")
    with pytest.raises(AssertionError, match=message):
        check_cell(cell)


def test_check_cell_is_of_cells():
    with pytest.raises(ValueError, match=r"must be what prnn_jax\.define_cell gives"):
        check_cell(prnn_jax.lstm)
