"""Layers of the host libraries for cells that `define_cell` has made."""

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_bitwise_equal

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx

IN, HIDDEN, TIME, BATCH = 4, 6, 7, 3
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (BATCH, TIME, IN))
RESETS = np.arange(BATCH * TIME).reshape(BATCH, TIME) % 4 == 2


def step(a_x, product, state, gain):
    """Two states, the first of which is no LSTM's, and a number of each unit's own."""
    h, m = state
    a, b = (x + r for x, r in zip(a_x, product(h), strict=True))
    m = jax.nn.sigmoid(a + gain) * m + jnp.tanh(b)
    return jnp.tanh(m), m


def lone_step(a_x, product, state):
    (h,) = state
    return (jnp.tanh(a_x[0] + product(h)[0]),)


CELLS = {
    "two": prnn_jax.define_cell("two", step, gates="ab", states="hm", per_unit=1),
    "lone": prnn_jax.define_cell("lone", lone_step, gates="a"),
}


def params_of(cell: str, **options) -> prnn_jax.Params:
    params = CELLS[cell].init(KEY, IN, HIDDEN, **options)
    return jax.tree.map(
        lambda a: a + 0.1 * jnp.cos(jnp.arange(a.size)).reshape(a.shape), params
    )


class Made(NamedTuple):
    """A layer, called as the cell is: `run(x, state, ...)` gives y and the state."""

    run: Callable
    params: prnn_jax.Params
    zeros: Callable


def flax_call(layer: Callable, both: bool) -> Callable:
    """Of a layer that returns its carry."""

    def carry_of(state):
        if state is None or not both:
            return state
        return tuple(jax.tree.map(lambda s, n=n: s[n], state) for n in range(2))

    def run(x, state=None, lengths=None, reset_to=None, **others):
        states = {"initial_carry": carry_of(state), "reset_carry": carry_of(reset_to)}
        carry, y = layer(x, return_carry=True, seq_lengths=lengths, **states, **others)
        if both:
            carry = jax.tree.map(lambda *ways: jnp.stack(ways), *carry)
        return y, carry

    return run


def of_nnx(cell, params, **options):
    layer = prnn_jax.nnx.layer_of(cell).from_params(params, **options)
    zeros = functools.partial(layer.initialize_carry, (BATCH, IN))
    return Made(flax_call(layer, layer.bidirectional), layer.params, zeros)


def of_linen(cell, params, **options):
    layer, variables = prnn_jax.linen.layer_of(cell).from_params(params, **options)
    made = jax.eval_shape(layer.init, KEY, X)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, variables)
    run = flax_call(functools.partial(layer.apply, variables), layer.bidirectional)
    zeros = functools.partial(layer.initialize_carry, KEY, (BATCH, IN))
    return Made(run, layer.to_params(variables), zeros)


def of_equinox(cell, params, **options):
    options = {k: v for k, v in options.items() if k != "keep_order"}
    layer = prnn_jax.equinox.layer_of(cell).from_params(params, **options)
    return Made(layer, layer.params, functools.partial(layer.zeros, BATCH))


HOSTS = {"nnx": of_nnx, "linen": of_linen, "equinox": of_equinox}
MODULES = {
    "nnx": prnn_jax.nnx,
    "linen": prnn_jax.linen,
    "equinox": prnn_jax.equinox,
}
each_host = pytest.mark.parametrize("host", HOSTS)
each_cell = pytest.mark.parametrize("name", CELLS)


def states_of(name: str, lead=()) -> Any:
    def drawn(seed):
        return jax.random.normal(jax.random.key(seed), (*lead, BATCH, HIDDEN))

    return (drawn(2), drawn(3)) if name == "two" else drawn(2)


CONTROLS = {
    "plain": {},
    "resets-lengths": {"lengths": np.array([7, 0, 3]), "resets": RESETS},
    "mask": {"mask": ~RESETS},
    "reverse": {"reverse": True},
    "both ways": {"bidirectional": True, "merge": "sum"},
    "heads": {"heads": 2},
}


@pytest.mark.parametrize("controls", CONTROLS)
@each_host
@each_cell
def test_is_the_cell_of_its_params(host, name, controls):
    given = CONTROLS[controls]
    shapes = {k: v for k, v in given.items() if k in ("bidirectional", "heads")}
    own = {k: v for k, v in given.items() if k in ("reverse", "merge")}
    of_call = {k: v for k, v in given.items() if k not in {**shapes, **own}}
    lead = (2,) if "bidirectional" in given else ()
    params, state = params_of(name, **shapes), states_of(name, lead)
    if "resets" in of_call:
        of_call["reset_to"] = state
    order = {"keep_order": True} if "reverse" in own else {}
    layer = HOSTS[host](CELLS[name], params, **own, **order)
    assert_bitwise_equal(layer.params, params)
    assert type(layer.params) is type(params)
    both = {"bidirectional": True} if lead else {}
    wanted = CELLS[name](X, params, state, **own, **both, **of_call)
    # The same scan, which XLA may fuse in another way.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, layer.run(X, state, **of_call), wanted)


@each_host
@each_cell
def test_a_state_of_zeros_is_none(host, name):
    layer = HOSTS[host](CELLS[name], params_of(name))
    assert_bitwise_equal(layer.run(X, layer.zeros()), layer.run(X))


def test_drawn_trained_and_restored_by_nnx():
    layer_type = prnn_jax.nnx.layer_of(CELLS["two"])
    layer = layer_type(IN, HIDDEN, zoneout_rate=(0.1, 0.2), rngs=nnx.Rngs(0))
    assert layer.peepholes[...].shape == (HIDDEN,)

    @nnx.jit
    @nnx.grad
    def gradient(layer):
        return (layer(X) ** 2).sum()

    gradients = jax.tree.leaves(gradient(layer))
    assert len(gradients) == 4
    assert all(np.isfinite(g).all() and np.any(g) for g in gradients)
    graph, state = nnx.split(layer)
    again = nnx.merge(graph, jax.tree.map(jnp.array, state))
    layer.eval()
    again.eval()
    assert_bitwise_equal(again(X), layer(X))


def test_drawn_and_restored_by_equinox():
    layer_type = prnn_jax.equinox.layer_of(CELLS["two"])
    layer = layer_type(IN, HIDDEN, bidirectional=True, key=KEY)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, layer)
    file.seek(0)
    like = layer_type(IN, HIDDEN, bidirectional=True, key=jax.random.key(5))
    again = eqx.tree_deserialise_leaves(file, like)
    assert_bitwise_equal(again(X)[0], layer(X)[0])
    rows = jax.vmap(lambda x: layer(x)[0])(X)
    np.testing.assert_allclose(rows, layer(X)[0], rtol=1e-5, atol=1e-6)


def test_drawn_by_linen():
    layer = prnn_jax.linen.layer_of(CELLS["two"])(HIDDEN, heads=2)
    variables = layer.init(KEY, X)
    shapes = jax.tree.map(jnp.shape, variables["params"])
    assert shapes["peepholes"] == (2, HIDDEN // 2)
    assert shapes["w_hh"] == (2, HIDDEN // 2, HIDDEN)
    assert layer.apply(variables, X).shape == (BATCH, TIME, HIDDEN)


@each_cell
def test_where_episodes_begin(name):
    cell, of_time = CELLS[name], X.swapaxes(0, 1)
    module = prnn_jax.nnx.ScannedRNN(IN, HIDDEN, cell=cell, rngs=nnx.Rngs(0))
    carry = module.initialize_carry(BATCH, HIDDEN, cell)
    wanted = cell(X, module.layer.params, resets=RESETS)
    last, y = module(carry, (of_time, RESETS.T))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, (y.swapaxes(0, 1), last), wanted)
    of_linen = prnn_jax.linen.ScannedRNN(HIDDEN, cell)
    variables = {
        "params": {"layer": nnx.to_pure_dict(nnx.state(module.layer, nnx.Param))}
    }
    jax.tree.map(
        close, of_linen.apply(variables, carry, (of_time, RESETS.T)), (last, y)
    )


@pytest.mark.parametrize("name", ["min_gru", "indrnn"])
def test_where_episodes_begin_without_a_product(name):
    module = prnn_jax.nnx.ScannedRNN(IN, HIDDEN, cell=name, rngs=nnx.Rngs(0))
    carry = module.initialize_carry(BATCH, HIDDEN, name)
    last, y = module(carry, (X.swapaxes(0, 1), RESETS.T))
    function = getattr(prnn_jax, name)
    wanted = function(X, **module.layer.params, resets=RESETS)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, (y.swapaxes(0, 1), last), wanted)
    with pytest.raises(ValueError, match="another than qrnn, whose carry has the last"):
        module.initialize_carry(BATCH, HIDDEN, "qrnn")


@each_host
def test_a_cell_has_one_layer(host):
    module = MODULES[host]
    layer = module.layer_of(CELLS["two"])
    assert layer is module.layer_of(CELLS["two"])
    assert layer is not module.layer_of(CELLS["lone"])
    assert (layer.__module__, layer.__name__) == (f"prnn_jax.{host}", "two")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu"}, "two has no activation, got 'relu'"),
        ({"reserve": "lean"}, "reserve must be 'fast' for two"),
        ({"proj_size": 3}, "proj_size must be None, which"),
        ({"implementation": "native"}, "not available: two is a cell of your own"),
    ],
)
@each_host
def test_what_such_a_layer_has_not(host, options, message):
    with pytest.raises(ValueError, match=message):
        HOSTS[host](CELLS["two"], params_of("two"), **options).run(X)


@each_host
def test_misspelt_options_and_what_is_no_cell(host):
    with pytest.raises((TypeError, ValueError), match=r"unexpected keyword .*zoneot"):
        HOSTS[host](CELLS["two"], params_of("two"), zoneot=0.1)
    with pytest.raises(ValueError, match=r"must be what prnn_jax\.define_cell gives"):
        MODULES[host].layer_of("two")


@each_host
def test_parameters_that_do_not_fit(host):
    params = params_of("two")
    with pytest.raises(ValueError, match="b_hh must be None, for the layer has one"):
        HOSTS[host](CELLS["two"], params._replace(b_hh=params.b_ih))
    with pytest.raises(ValueError, match=r"peepholes must be \[6\], .* got \[18\]"):
        HOSTS[host](CELLS["two"], params._replace(peepholes=jnp.ones(3 * HIDDEN)))
    without = HOSTS[host](CELLS["two"], params._replace(peepholes=None))
    assert not without.params.peepholes.any()


PICKLED = CELLS | {
    "normed lstm": prnn_jax.normed("lstm", prnn_jax.LayerNorm(c="state")),
    "normed gru": prnn_jax.normed("gru"),
}


@pytest.mark.parametrize("name", PICKLED)
def test_cells_and_layers_are_pickled_by_what_they_are_made_of(name):
    cell = PICKLED[name]
    for make in (lambda a: pickle.loads(pickle.dumps(a)), copy.deepcopy, copy.copy):
        assert make(cell) is cell
    for library in (prnn_jax.nnx, prnn_jax.linen, prnn_jax.equinox):
        layer = library.layer_of(cell)
        assert pickle.loads(pickle.dumps(layer)) is layer
    assert copy.deepcopy(prnn_jax.linen.layer_of(cell)(HIDDEN)) == (
        prnn_jax.linen.layer_of(cell)(HIDDEN)
    )
    ours = prnn_jax.nnx.layer_of(cell)(IN, HIDDEN, rngs=nnx.Rngs(0))
    assert_bitwise_equal(pickle.loads(pickle.dumps(ours))(X), ours(X))
    ours = prnn_jax.equinox.layer_of(cell)(IN, HIDDEN, key=KEY)
    assert_bitwise_equal(pickle.loads(pickle.dumps(ours))(X[0]), ours(X[0]))


def test_equal_definitions_are_one_cell():
    assert prnn_jax.define_cell("lone", lone_step, gates="a") is CELLS["lone"]
    assert prnn_jax.define_cell("other", lone_step, gates="a") is not CELLS["lone"]

    class Step:
        __hash__ = None

        def __call__(self, *arguments):
            return lone_step(*arguments)

    cell = prnn_jax.define_cell("lone", Step(), gates="a")
    assert cell is not CELLS["lone"]
    assert copy.deepcopy(cell).name == "lone"
    params = params_of("lone")
    assert_bitwise_equal(cell(X, params)[0], CELLS["lone"](X, params)[0])
    local = prnn_jax.define_cell("lone", lambda *a: lone_step(*a), gates="a")
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(local)
