"""Stack and ScannedRNN of prnn_jax.equinox."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import quick_jit as jit

import prnn_jax
import prnn_jax.equinox as layers
from prnn_jax._ops import layer_stack

IN, HIDDEN, TIME, BATCH, LAYERS = 3, 4, 6, 2, 3
KEY = jax.random.key(0)
MAKE = [layers.LSTM, layers.SLSTM, layers.GRU, layers.RNN]


@pytest.fixture(autouse=True)
def _few_layers_in_a_loop(monkeypatch):
    monkeypatch.setattr(layer_stack, "LOOP_FROM", 2)


def close(ours, theirs):
    """Equal up to the rounding of a few thousand operations on numbers near 1."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def normal(seed, *shape):
    draw = np.random.default_rng(seed).standard_normal
    return jnp.asarray(draw(shape, np.float32))


def one_by_one(layer_list, xs, **options):
    """What `Stack` does, with layers of their own."""
    states = []
    for layer in layer_list:
        xs, state = layer(xs, **options)
        states.append(state)
    return xs, jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)


# ---- Stack ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (layers.LSTM, {"use_bias": False}),
        (layers.SLSTM, {"heads": 2, "bidirectional": True, "merge": "sum"}),
        (layers.GRU, {"reset_after": False, "bidirectional": True}),
        (layers.RNN, {"activation": "relu", "skip": 0.3, "reserve": "lean"}),
    ],
)
def test_a_stack_is_its_layers(make, options):
    stack = layers.Stack(make, IN, HIDDEN, LAYERS, key=KEY, **options)
    width = stack.first.output_size
    alone = [
        make(IN if n == 0 else width, HIDDEN, key=key, **options)
        for n, key in enumerate(jax.random.split(KEY, LAYERS))
    ]
    xs = normal(1, BATCH, TIME, IN)
    controls = {"lengths": jnp.array([TIME, 4]), "resets": normal(2, BATCH, TIME) > 0.7}
    ours = jit(stack.__call__)(xs, **controls)
    close(ours, jit(functools.partial(one_by_one, alone))(xs, **controls))
    zeros = stack.zeros(BATCH)
    assert jax.tree.map(jnp.shape, zeros) == jax.tree.map(jnp.shape, ours[1])


def test_norm_and_skip_connections():
    stack = layers.Stack(
        layers.GRU, HIDDEN, HIDDEN, LAYERS, norm=True, skip_connections=True, key=KEY
    )
    drawn = jax.tree.map(lambda a: a + 0.1 * normal(a.size, *a.shape), stack)
    xs = normal(1, BATCH, TIME, HIDDEN)

    def by_hand(stack, xs):
        for n in range(LAYERS):
            part, norm = (
                (stack.first, stack.first_norm)
                if n == 0
                else jax.tree.map(
                    lambda a, n=n: a[n - 1], (stack.rest, stack.rest_norm)
                )
            )
            module = eqx.nn.LayerNorm(HIDDEN)
            module = eqx.tree_at(lambda m: (m.weight, m.bias), module, tuple(norm))
            xs = xs + part(jax.vmap(jax.vmap(module))(xs))[0]
        return xs

    def value_and_grads(run):
        return jit(jax.value_and_grad(lambda s, xs: jnp.sum(run(s, xs) ** 2), (0, 1)))

    ours = value_and_grads(lambda stack, xs: stack(xs)[0])(drawn, xs)
    theirs = value_and_grads(by_hand)(drawn, xs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(b).max()))


def test_dropout_is_that_of_the_function():
    rates = {"dropout": 0.3, "recurrent_dropout": 0.2, "zoneout": (0.1, 0.3)}
    stack = layers.Stack(layers.LSTM, IN, HIDDEN, LAYERS, **rates, key=KEY)
    xs, key = normal(1, BATCH, TIME, IN), jax.random.key(7)
    function = functools.partial(prnn_jax.stack, "lstm", xs, stack.layers, **rates)

    def joined(y, states):
        first, rest = states
        first = jax.tree.map(lambda a: a[None], first)
        return y, jax.tree.map(lambda *a: jnp.concatenate(a), first, rest)

    close(jit(lambda: stack(xs, key=key))(), jit(lambda: joined(*function(key=key)))())
    at_rest = jit(lambda: joined(*function()))()
    close(jit(lambda: stack(xs, inference=True))(), at_rest)
    frozen = eqx.nn.inference_mode(stack)
    close(jit(lambda: frozen(xs, key=key))(), at_rest)
    with pytest.raises(ValueError, match="Stack: key must be given"):
        stack(xs)


def test_states_with_inputs_in_them_are_as_wide_in_all_layers():
    with pytest.raises(ValueError, match=r"whose states have inputs in them.* got 3"):
        layers.Stack("qrnn", 3, HIDDEN, 2, key=KEY)
    one = layers.Stack("qrnn", 3, HIDDEN, 1, key=KEY)
    assert one(normal(1, BATCH, TIME, 3))[0].shape == (BATCH, TIME, HIDDEN)
    with pytest.raises(ValueError, match="zoneout_rate is no option of a stack; zone"):
        layers.Stack("qrnn", 3, HIDDEN, 1, zoneout_rate=0.1, key=KEY)


def test_state_in_and_out():
    stack = layers.Stack(layers.LSTM, IN, HIDDEN, LAYERS, key=KEY)
    xs = normal(1, BATCH, TIME, IN)
    run = jit(stack.__call__)
    first, state = run(xs[:, :2])
    second, state = run(xs[:, 2:], state)
    close((jnp.concatenate([first, second], 1), state), run(xs))
    assert state[0].shape == (LAYERS, BATCH, HIDDEN)
    to = jax.tree.map(lambda a: a + 1, stack.zeros(BATCH))
    resets = jnp.zeros((BATCH, TIME), bool).at[:, 0].set(True)
    close(run(xs, resets=resets, reset_to=to), run(xs, to))


def test_vmap_over_rows():
    stack = layers.Stack(layers.GRU, IN, HIDDEN, LAYERS, dropout=0.4, key=KEY)
    xs, keys = normal(1, BATCH, TIME, IN), jax.random.split(KEY, BATCH)
    run = eqx.filter_jit(lambda xs, key: stack(xs, key=key))
    ys, state = eqx.filter_vmap(run)(xs, keys)
    assert state.shape == (BATCH, LAYERS, HIDDEN)
    close((ys[1], state[1]), run(xs[1], keys[1]))


@pytest.mark.parametrize("count", [1, 2])
def test_few_layers(count):
    stack = layers.Stack(layers.GRU, IN, HIDDEN, count, norm=True, key=KEY)
    ys, state = stack(normal(1, BATCH, TIME, IN))
    assert ys.shape == (BATCH, TIME, HIDDEN)
    assert state.shape == (count, BATCH, HIDDEN)
    assert (stack.rest is None) == (stack.rest_norm is None) == (count == 1)


def test_a_deep_stack_trains():
    stack = layers.Stack(
        layers.GRU,
        IN,
        HIDDEN,
        100,
        norm=True,
        skip_connections=True,
        dropout=0.05,
        implementation="scan",
        key=KEY,
    )
    xs, target = normal(1, BATCH, TIME, IN), normal(2, BATCH, TIME, HIDDEN)

    @eqx.filter_jit
    def step(stack, key):
        def loss(stack):
            return jnp.mean((stack(xs, key=key)[0] - target) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(stack)
        updates = jax.tree.map(lambda g: -0.003 * g, grads)
        return value, eqx.apply_updates(stack, updates)

    losses = []
    for key in jax.random.split(KEY, 6):
        value, stack = step(stack, key)
        losses.append(float(value))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layer": eqx.nn.GRUCell},
            "layer must be a class of this module",
        ),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"reverse": True}, "reverse must be False, got True"),
        ({"dropout": 1.0}, "Stack: dropout must be from 0 to below 1, got 1.0"),
        ({"zoneout": 2}, "Stack: zoneout must be from 0 to 1, got 2"),
    ],
)
def test_stacks_that_cannot_be(change, message):
    options = {"layer": layers.GRU, "input_size": IN, "hidden_size": HIDDEN}
    with pytest.raises(ValueError, match=message):
        layers.Stack(**{**options, "num_layers": 3, "key": KEY, **change})


def test_calls_that_do_not_fit():
    stack = layers.Stack(layers.GRU, IN, HIDDEN, 3, key=KEY)
    with pytest.raises(
        ValueError, match=r"Stack: xs must be .*input_size=3, got \[6, 2\]"
    ):
        stack(jnp.ones((TIME, IN - 1)))
    with pytest.raises(
        ValueError, match=r"state must have the axis of the 3 layers.*\[4\]"
    ):
        stack(jnp.ones((TIME, IN)), jnp.zeros(HIDDEN))
    with pytest.raises(ValueError, match=r"stack, layer 0: h_0 must be .*got \[2, 4\]"):
        stack(jnp.ones((TIME, IN)), jnp.zeros((3, BATCH, HIDDEN)))


# ---- ScannedRNN ----------------------------------------------------------------------


def cell_with_resets(cell, carry, inputs):
    """What agents are usually written with."""

    def step(carry, inputs):
        x, reset = inputs
        carry = jax.tree.map(lambda a: jnp.where(reset[:, None], 0, a), carry)
        carry = jax.vmap(cell)(x, carry)
        return carry, carry[0] if isinstance(carry, tuple) else carry

    return jax.lax.scan(step, carry, inputs)


@pytest.mark.parametrize(
    ("make", "cell_type"),
    [(layers.LSTM, eqx.nn.LSTMCell), (layers.GRU, eqx.nn.GRUCell)],
)
def test_scanned_rnn_is_a_cell_with_resets(make, cell_type):
    cell = cell_type(IN, HIDDEN, key=KEY)
    rnn = layers.ScannedRNN(make.from_cell(cell))
    carry = jax.tree.map(lambda a: a + 0.5, rnn.initialize_carry(BATCH))
    inputs = normal(1, TIME, BATCH, IN), normal(2, TIME, BATCH) > 0.3

    def value_and_grads(run, module):
        def loss(module, carry, xs):
            out = run(module, carry, (xs, inputs[1]))
            return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(out)), out

        grad = jax.grad(loss, (0, 1, 2), has_aux=True)
        (d_module, *rest), out = jit(grad)(module, carry, inputs[0])
        return out, d_module, rest

    ours, d_rnn, d_ours = value_and_grads(lambda m, *a: m(*a), rnn)
    theirs, d_cell, d_theirs = value_and_grads(cell_with_resets, cell)
    close(ours, theirs)
    close(d_ours, d_theirs)
    close(d_rnn.layer, make.from_cell(d_cell))


def test_scanned_rnn_step_by_step():
    """Acting, a step at a time with the carry, is the same as learning from it all."""
    stack = layers.Stack(layers.GRU, IN, HIDDEN, 2, key=KEY)
    rnn = layers.ScannedRNN(stack)
    xs, resets = normal(1, TIME, BATCH, IN), normal(2, TIME, BATCH) > 0.3

    @jit
    def act(carry, inputs):
        carry, ys = rnn(carry, jax.tree.map(lambda a: a[None], inputs))
        return carry, ys[0]

    carry, outputs = rnn.initialize_carry(BATCH), []
    for inputs in zip(xs, resets, strict=True):
        carry, y = act(carry, inputs)
        outputs.append(y)
    close((carry, jnp.stack(outputs)), rnn(None, (xs, resets)))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_scanned_rnn_with_any_batch_axes(batch):
    rnn = layers.ScannedRNN(layers.LSTM(IN, HIDDEN, key=KEY))
    carry = rnn.initialize_carry(*batch)
    assert jax.tree.map(jnp.shape, carry) == ((*batch, HIDDEN),) * 2
    xs, resets = normal(1, TIME, *batch, IN), normal(2, TIME, *batch) > 0
    to = jax.tree.map(lambda a: a + 1, carry)
    carry, ys = rnn(carry, (xs, resets), reset_to=to)
    assert ys.shape == (TIME, *batch, HIDDEN)
    flat = (xs.reshape(TIME, -1, IN), resets.reshape(TIME, -1))
    to = jax.tree.map(lambda a: a.reshape(-1, HIDDEN), to)
    _, expected = rnn(None, flat, reset_to=to)
    close(ys.reshape(TIME, -1, HIDDEN), expected)


def test_scanned_rnn_that_cannot_be():
    with pytest.raises(ValueError, match=r"a layer of prnn_jax.equinox, .* got 'gru'"):
        layers.ScannedRNN("gru")
    for option in ("reverse", "bidirectional"):
        layer = layers.GRU(IN, HIDDEN, key=KEY, **{option: True})
        with pytest.raises(ValueError, match=f"run forward, got {option}=True"):
            layers.ScannedRNN(layer)
    rnn = layers.ScannedRNN(layers.GRU(IN, HIDDEN, key=KEY))
    with pytest.raises(ValueError, match=r"inputs must be \(xs, resets\), got "):
        rnn(None, jnp.ones((TIME, IN)))
