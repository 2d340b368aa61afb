"""ScannedRNN of both of Flax's libraries against `nn.scan` over a cell and a where."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax_support import from_linen_cell, projection, run
from jax import lax
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from support import quick_jit as jit

import prnn_jax
import prnn_jax.linen
import prnn_jax.nnx

CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell, "rnn": nn.SimpleCell}
FUNCTIONS = {
    "gru": prnn_jax.gru,
    "lstm": prnn_jax.lstm,
    "rnn": prnn_jax.rnn,
    "slstm": prnn_jax.slstm,
}


class Reference(nn.Module):
    """How the module is mostly written."""

    cell: str = "gru"

    @functools.partial(
        nn.scan, variable_broadcast="params", split_rngs={"params": False}
    )
    @nn.compact
    def __call__(self, carry, x):
        inputs, resets = x
        carry = jax.tree.map(
            lambda c: jnp.where(resets[..., None], jnp.zeros_like(c), c), carry
        )
        options = {"bias_init": jax.nn.initializers.normal(0.3), "name": "cell"}
        return CELLS[self.cell](HIDDEN, **options)(carry, inputs)


def inputs(cell="gru", batch=(BATCH,), time=TIME, seed=0, dtype=bool):
    """carry, (x, resets) with some resets, one of them before the first step."""
    like = prnn_jax.linen.ScannedRNN.initialize_carry(batch, HIDDEN, cell)
    carry = jax.tree.map(lambda c: normal(seed + c.ndim, *c.shape), like)
    resets = np.random.default_rng(seed).random((time, *batch)) < 0.3
    resets.reshape(time, -1)[0, 0] = True
    x = normal(seed + 1, time, *batch, IN)
    return carry, (x, jnp.asarray(resets, dtype))


@functools.cache
def variables_of(cell, seed=0):
    """Of the reference, and the same for our linen module."""
    carry, x = inputs(cell)
    params = Reference(cell).init(jax.random.key(seed), carry, x)["params"]
    ours = from_linen_cell(CELLS[cell].__name__, params["cell"])
    return {"params": params}, {"params": {"layer": ours}}


def out_and_grads(apply, variables, carry, x):
    """What apply returns, and the gradients of a random projection of it.

    With respect to all but resets, which may be no floats.
    """

    def loss(variables, carry, x, resets):
        out = apply(variables, carry, (x, resets))
        return projection(out), out

    return jit(jax.grad(loss, (0, 1, 2), has_aux=True))(variables, carry, *x)


def nnx_apply(cell, **options):
    """`apply` of our nnx module, for the variables of our linen one."""
    own = {"recurrent_bias": True} if cell == "gru" else {}
    module = prnn_jax.nnx.ScannedRNN(
        IN, HIDDEN, cell=cell, rngs=nnx.Rngs(0), **own, **options
    )
    graph, _ = nnx.split(module)

    def apply(variables, carry, x):
        state = jax.tree.map(nnx.Param, variables["params"])
        return nnx.merge(graph, nnx.State(state))(carry, x)

    return apply


@pytest.mark.parametrize(
    ("cell", "batch", "dtype"),
    [
        ("gru", (BATCH,), jnp.float32),  # dones that were initialised as jnp.zeros
        ("gru", (2, BATCH), bool),  # environments and agents
        ("lstm", (BATCH,), jnp.int8),
        ("rnn", (), bool),
    ],
)
def test_same_as_nn_scan(cell, batch, dtype):
    carry, x = inputs(cell, batch, dtype=dtype)
    reference, ours = variables_of(cell)
    d_flax, out = out_and_grads(Reference(cell).apply, reference, carry, x)
    module = prnn_jax.linen.ScannedRNN(cell=cell)
    for apply in (module.apply, nnx_apply(cell)):
        (d_params, *d_inputs), y = out_and_grads(apply, ours, carry, x)
        close(y, out)
        close(tuple(d_inputs), d_flax[1:])
        d_cell = from_linen_cell(CELLS[cell].__name__, d_flax[0]["params"]["cell"])
        close(d_params["params"]["layer"], d_cell)


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_same_as_the_function(cell):
    options = {"heads": 11, "reserve": "lean"}
    carry, x = inputs(cell)
    module = prnn_jax.linen.ScannedRNN(cell=cell, options=options)
    variables = module.init(jax.random.key(0), carry, x)
    params = dict(variables["params"]["layer"])
    b_hn = params.pop("b_hn", None)
    if b_hn is not None:
        params["b_hh"] = jnp.concatenate([jnp.zeros((11, 2)), b_hn], -1)

    state_0 = carry[::-1] if cell == "lstm" else carry
    y, state = run(
        FUNCTIONS[cell],
        x[0],
        prnn_jax.Params(**params),
        state_0,
        resets=x[1],
        time_major=True,
        reserve="lean",
    )
    expected = state[::-1] if cell == "lstm" else state, y
    close(run(module.apply, variables, carry, x), expected)
    close(run(nnx_apply(cell, **options), variables, carry, x), expected)


# ---- as it is used -------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_single_steps_in_a_scan_of_the_user(cell):
    """A rollout, which knows the next input only after a step."""
    carry, x = inputs(cell)
    _, variables = variables_of(cell)
    for apply in (prnn_jax.linen.ScannedRNN(cell=cell).apply, nnx_apply(cell)):

        @jit
        def rollout(carry, xs):
            def step(carry, x):
                x = jax.tree.map(lambda a: a[None], x)
                carry, y = apply(variables, carry, x)  # noqa: B023
                return carry, y[0]

            return lax.scan(step, carry, xs)

        close(rollout(carry, x), run(apply, variables, carry, x))


def test_the_carry_keeps_its_dtype():
    carry, x = inputs("lstm")
    options = {"dtype": jnp.bfloat16}
    module = prnn_jax.linen.ScannedRNN(cell="lstm", options=options)
    _, variables = variables_of("lstm")

    def step(carry, x):
        x = jax.tree.map(lambda a: a[None], x)
        return module.apply(variables, carry, x)

    # lax.scan refuses a carry that changes.
    new, y = jit(lambda carry, x: lax.scan(step, carry, x))(carry, x)
    assert y.dtype == jnp.bfloat16
    assert {c.dtype for c in new} == {jnp.dtype("float32")}


@pytest.mark.parametrize("shared", [True, False])
def test_vmap_over_agents(shared):
    agents = 2
    module = prnn_jax.linen.ScannedRNN()
    every = [inputs(seed=10 * agent) for agent in range(agents)]
    variables = [variables_of("gru", 0 if shared else agent)[1] for agent in (0, 1)]

    def stacked(trees):
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)

    params = variables[0] if shared else stacked(variables)
    mapped = jax.vmap(module.apply, (None if shared else 0, 0, 0))
    grads, out = out_and_grads(mapped, params, *stacked(every))
    for agent in range(agents):
        close(
            jax.tree.map(lambda a: a[agent], out),  # noqa: B023
            run(module.apply, variables[agent], *every[agent]),
        )
    assert jax.tree.map(jnp.shape, grads[0]) == jax.tree.map(jnp.shape, params)
    # The agents' axis is just one more batch axis.
    if shared:
        carry, (x, resets) = stacked(every)
        moved = jnp.moveaxis(x, 0, 1), jnp.moveaxis(resets, 0, 1)
        carry, y = run(module.apply, params, carry, moved)
        close((carry, jnp.moveaxis(y, 1, 0)), out)


def test_nnx_module_trains():
    carry, (x, resets) = inputs("lstm")
    module = prnn_jax.nnx.ScannedRNN(IN, HIDDEN, cell="lstm", rngs=nnx.Rngs(0))
    target = normal(9, TIME, BATCH, HIDDEN)

    @nnx.jit
    def step(module):
        def loss(module):
            return jnp.mean((module(carry, (x, resets))[1] - target) ** 2)

        value, grads = nnx.value_and_grad(loss)(module)
        params = nnx.state(module, nnx.Param)
        nnx.update(module, jax.tree.map(lambda p, g: p - 0.3 * g, params, grads))
        return value

    assert step(module) > step(module) > step(module)


@pytest.mark.parametrize("make", [prnn_jax.linen.ScannedRNN, prnn_jax.nnx.ScannedRNN])
def test_initialize_carry_is_static(make):
    key = jax.random.key(0)
    gru, lstm = nn.GRUCell(HIDDEN), nn.OptimizedLSTMCell(HIDDEN)
    close(make.initialize_carry(4, HIDDEN), gru.initialize_carry(key, (4, IN)))
    carry = make.initialize_carry((2, 4), HIDDEN, "lstm")
    close(carry, lstm.initialize_carry(key, (2, 4, IN)))
    carry = make.initialize_carry((), HIDDEN, "slstm", jnp.bfloat16)
    assert [(c.shape, c.dtype.name) for c in carry] == [((HIDDEN,), "bfloat16")] * 4


@pytest.mark.parametrize("proj_size", [None, 3])
def test_initialize_carry_of_a_module_is_its_own_cells(proj_size):
    options = {"proj_size": proj_size} if proj_size else {}
    of_nnx = prnn_jax.nnx.ScannedRNN(
        IN, HIDDEN, cell="lstm", rngs=nnx.Rngs(0), **options
    )
    of_linen = prnn_jax.linen.ScannedRNN(HIDDEN, cell="lstm", options=options)
    for module in (of_nnx, of_linen):
        c, h = module.initialize_carry(4, HIDDEN)
        assert (c.shape, h.shape) == ((4, HIDDEN), (4, proj_size or HIDDEN))
        assert module.initialize_carry(4, HIDDEN, "gru").shape == (4, HIDDEN)
        c, h = module.initialize_carry((2, 4))
        assert (c.shape, h.shape) == ((2, 4, HIDDEN), (2, 4, proj_size or HIDDEN))
    with pytest.raises(ValueError, match="hidden_size must be given"):
        prnn_jax.linen.ScannedRNN(cell="lstm").initialize_carry(4)


@pytest.mark.parametrize("state_size", [None, 3])
def test_the_carry_of_an_lru_is_its_state(state_size):
    options = {"state_size": state_size} if state_size else {}
    of_nnx = prnn_jax.nnx.ScannedRNN(
        IN, HIDDEN, cell="lru", rngs=nnx.Rngs(0), **options
    )
    of_linen = prnn_jax.linen.ScannedRNN(HIDDEN, cell="lru", options=options)
    x = inputs()[1]
    params = of_nnx.layer.params
    wanted, _ = prnn_jax.lru(x[0], **params, resets=x[1], time_major=True)
    batch = x[0].shape[1]
    carry = of_nnx.initialize_carry(batch)
    assert carry.shape == (batch, 2 * (state_size or HIDDEN))
    close(of_nnx(carry, x)[1], wanted)
    close(of_linen.initialize_carry(batch), carry)
    variables = {
        "params": {"layer": {k: v for k, v in params.items() if v is not None}}
    }
    close(of_linen.apply(variables, carry, x)[1], wanted)
    if state_size is None:
        close(prnn_jax.linen.ScannedRNN.initialize_carry(batch, HIDDEN, "lru"), carry)
        without = prnn_jax.linen.ScannedRNN(cell="lru")
        close(without.apply(variables, carry, x)[1], wanted)


def test_features_are_the_carrys_unless_given():
    carry, x = inputs()
    key = jax.random.key(0)
    given = prnn_jax.linen.ScannedRNN(features=HIDDEN).init(key, carry, x)
    found = prnn_jax.linen.ScannedRNN().init(key, carry, x)
    close(given, found)
    assert found["params"]["layer"]["w_hh"].shape == (HIDDEN, 3 * HIDDEN)


# ---- errors --------------------------------------------------------------------------


def test_calls_that_do_not_fit():
    carry, (x, resets) = inputs()
    linen = prnn_jax.linen.ScannedRNN()
    variables = linen.init(jax.random.key(0), carry, (x, resets))
    options = {"rngs": nnx.Rngs(0)}
    module = prnn_jax.nnx.ScannedRNN(IN, HIDDEN, **options)
    for call in (functools.partial(linen.apply, variables), module):
        with pytest.raises(ValueError, match=r"x must be a pair \(inputs, resets\)"):
            call(carry, x)
        with pytest.raises(ValueError, match=r"resets must be \[time, \*batch\] ="):
            call(carry, (x, resets.T))
        with pytest.raises(ValueError, match=r"initial_carry must be h, each"):
            call((carry, carry), (x, resets))
        with pytest.raises(ValueError, match=r"inputs must be \[time, \*batch, in"):
            call(carry, (x[0, 0], resets))
    with pytest.raises(ValueError, match=r"carry must be of arrays .*initialize_carry"):
        linen.apply(variables, (), (x, resets))
    with pytest.raises(ValueError, match="cell must be one of 'lstm', 'slstm', 'gru',"):
        prnn_jax.nnx.ScannedRNN(IN, HIDDEN, cell="mgu", **options)
    with pytest.raises(ValueError, match="cell must be one of 'lstm', 'slstm', 'gru',"):
        prnn_jax.linen.ScannedRNN(cell="mgu").apply(variables, carry, (x, resets))
    with pytest.raises(ValueError, match="cell must be one of 'lstm', 'slstm', 'gru',"):
        prnn_jax.linen.ScannedRNN.initialize_carry(3, HIDDEN, "mgu")
