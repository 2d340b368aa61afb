"""prnn_jax.equinox against Equinox's own cells under lax.scan and vmap."""

import functools
import operator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox_support import CELLS, KEY, MAKE, random_state, scan, value_and_grads
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from support import quick_jit as jit

import prnn_jax
import prnn_jax.equinox as layers


@CELLS
@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_same_as_equinox(make, cell_type, use_bias, reverse):
    cell = cell_type(IN, HIDDEN, use_bias, key=KEY)
    layer = make.from_cell(cell, reverse=reverse)
    xs, state = normal(1, BATCH, TIME, IN), random_state(cell_type, (BATCH,), 2)
    ours, d_layer, d_ours = value_and_grads(
        lambda layer, xs, state: layer(xs, state), layer, xs, state
    )
    run = functools.partial(scan, reverse=reverse)
    theirs, d_cell, d_theirs = value_and_grads(run, cell, xs, state)
    close(ours, theirs)
    close(d_ours, d_theirs)
    # A layer's parameters are a rearrangement of the cell's, and so are the gradients.
    close(d_layer, make.from_cell(d_cell, reverse=reverse))


@pytest.mark.parametrize(
    ("make", "cell_type", "merge"),
    [
        (layers.LSTM, eqx.nn.LSTMCell, "concat"),
        (layers.GRU, eqx.nn.GRUCell, "sum"),
    ],
    ids=["lstm-concat", "gru-sum"],
)
def test_bidirectional_is_two_cells(make, cell_type, merge):
    cells = tuple(cell_type(IN, HIDDEN, key=key) for key in jax.random.split(KEY))
    layer = make.from_cell(cells, merge=merge)
    xs, state = normal(1, BATCH, TIME, IN), random_state(cell_type, (BATCH, 2), 2)

    def both(cells, xs, state):
        sides = [jax.tree.map(operator.itemgetter(d), state) for d in (0, 1)]
        forward, last_forward = scan(cells[0], xs, sides[0])
        backward, last_backward = scan(cells[1], xs, sides[1], reverse=True)
        ys = jnp.concatenate([forward, backward], -1)
        ys = forward + backward if merge == "sum" else ys
        last = jax.tree.map(lambda *s: jnp.stack(s), last_forward, last_backward)
        return ys, last

    ours, d_layer, d_ours = value_and_grads(
        lambda layer, xs, state: layer(xs, state), layer, xs, state
    )
    theirs, d_cells, d_theirs = value_and_grads(both, cells, xs, state)
    close(ours, theirs)
    close(d_ours, d_theirs)
    close(d_layer, make.from_cell(d_cells, merge=merge))


@pytest.mark.parametrize(
    ("make", "bidirectional"),
    [
        (layers.LSTM, True),
        (layers.SLSTM, False),
        (layers.GRU, False),
        (layers.RNN, True),
    ],
)
def test_batch_axes_and_vmap_are_the_same(make, bidirectional):
    layer = make(IN, HIDDEN, bidirectional=bidirectional, key=KEY)
    directions = (2,) if bidirectional else ()
    xs = normal(1, 2, BATCH, TIME, IN)
    state = random_state(make, (*directions, 2, BATCH), 2)
    lengths = jnp.array([[TIME, 0, 5], [1, 6, TIME]])
    resets = normal(5, 2, BATCH, TIME) > 1
    axis = len(directions)

    def run(xs, state, lengths, resets):
        return layer(xs, state, lengths=lengths, resets=resets)

    def over_rows(run):
        return jax.vmap(run, in_axes=(0, axis, 0, 0), out_axes=(0, axis))

    mapped = jit(over_rows(over_rows(run)))
    arguments = xs, state, lengths, resets
    close(mapped(*arguments), jit(run)(*arguments))
    assert mapped.lower(*arguments).as_text().count("prnn_forward") == 1


def test_no_state_is_zeros():
    for make in MAKE:
        layer, xs = make(IN, HIDDEN, key=KEY), normal(1, BATCH, TIME, IN)
        assert jnp.shape(jax.tree.leaves(layer.zeros(BATCH))[0]) == (BATCH, HIDDEN)
        close(layer(xs), layer(xs, layer.zeros(BATCH)))


@pytest.mark.parametrize("make", MAKE)
def test_a_sequence_cut_in_two(make):
    layer = make(IN, HIDDEN, key=KEY)
    xs = normal(1, TIME, IN)
    first, state = layer(xs[:4])
    second, state = layer(xs[4:], state)
    close((jnp.concatenate([first, second]), state), layer(xs))


@pytest.mark.parametrize(
    ("make", "function", "options"),
    [
        (layers.GRU, prnn_jax.gru, {"reset_after": False}),
        (layers.RNN, prnn_jax.rnn, {"activation": "relu"}),
        (layers.RNN, prnn_jax.rnn, {"activation": "clipped_relu", "cap": 0.4}),
        (layers.RNN, prnn_jax.rnn, {"skip": 0.25}),
        (layers.LSTM, prnn_jax.lstm, {"reverse": True}),
        (layers.SLSTM, prnn_jax.slstm, {"bidirectional": True}),
        (layers.SLSTM, prnn_jax.slstm, {"bidirectional": True, "merge": "sum"}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_options_reach_the_function(make, function, options):
    layer = make(IN, HIDDEN, key=KEY, **options)
    xs = normal(1, BATCH, TIME, IN)
    close(layer(xs), function(xs, layer.params, **options))
    bidirectional = {"bidirectional": layer.bidirectional}
    plain, _ = function(xs, layer.params, **bidirectional)
    assert (
        plain.shape != layer(xs)[0].shape
        or not np.allclose(layer(xs)[0], plain)
        or (options == bidirectional)
    )


@pytest.mark.parametrize("make", MAKE)
def test_controls_reach_the_function(make):
    layer = make(IN, HIDDEN, key=KEY)
    xs = normal(1, TIME, BATCH, IN)
    controls = {
        "lengths": jnp.array([TIME, 0, 5]),
        "resets": normal(2, TIME, BATCH) > 0.5,
        "reset_to": random_state(make, (BATCH,), 3),
        "time_major": True,
    }
    state = random_state(make, (BATCH,), 6)
    function = getattr(prnn_jax, make.__name__.lower())
    close(layer(xs, state, **controls), function(xs, layer.params, state, **controls))


def test_lean_reserve():
    fast, lean = (
        layers.LSTM(IN, HIDDEN, reserve=reserve, key=KEY)
        for reserve in ("fast", "lean")
    )
    xs = normal(1, BATCH, TIME, IN)

    def kept(layer):
        """Numbers that the forward pass keeps for the backward pass."""
        _, vjp = jax.vjp(lambda xs: layer(xs)[0], xs)
        return sum(a.size for a in jax.tree.leaves(vjp))

    close(
        jax.grad(lambda xs: fast(xs)[0].sum())(xs),
        jax.grad(lambda xs: lean(xs)[0].sum())(xs),
    )
    assert kept(lean) < kept(fast)


@pytest.mark.parametrize("make", MAKE)
def test_heads_are_layers_side_by_side(make):
    layer = make(IN, 2 * HIDDEN, heads=2, bidirectional=True, key=KEY)
    assert layer.w_hh.shape[:3] == (2, 2, HIDDEN)
    xs = normal(1, BATCH, TIME, IN)
    run = jit(lambda layer, xs: layer(xs))
    ys, state = run(layer, xs)
    ys = np.asarray(ys).reshape(BATCH, TIME, 2, 2, HIDDEN)
    alone = make(IN, HIDDEN, bidirectional=True, key=KEY)
    for head in range(2):
        arrays = [np.asarray(a)[:, head] for a in jax.tree.leaves(layer)]
        alone = jax.tree.unflatten(jax.tree.structure(alone), arrays)
        expected, last = run(alone, xs)
        close(ys[:, :, :, head].reshape(BATCH, TIME, -1), expected)
        units = slice(head * HIDDEN, (head + 1) * HIDDEN)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(last), strict=True):
            close(np.asarray(a)[..., units], b)


# ---- recurrent dropout and zoneout ---------------------------------------------------

RATES = {"recurrent_dropout": 0.3, "zoneout": 0.2}


def test_masks_are_those_of_a_stack():
    layer = layers.LSTM(IN, HIDDEN, bidirectional=True, **RATES, key=KEY)
    xs = normal(1, BATCH, TIME, IN)
    ys, (state,) = prnn_jax.stack(
        "lstm", xs, [layer.params], bidirectional=True, **RATES, key=KEY
    )
    close(layer(xs, key=KEY), (ys, state))
    assert not np.allclose(layer(xs, key=KEY)[0], layer(xs, key=jax.random.key(1))[0])


def test_inference():
    layer = layers.GRU(IN, HIDDEN, **RATES, key=KEY)
    xs = normal(1, BATCH, TIME, IN)
    mean = prnn_jax.gru(xs, layer.params, zoneout=0.2)
    close(layer(xs, inference=True), mean)
    frozen = eqx.nn.inference_mode(layer)
    close(frozen(xs), mean)
    close(frozen(xs, key=KEY), mean)
    close(frozen(xs, key=KEY, inference=False), layer(xs, key=KEY))
    close(eqx.nn.inference_mode(frozen, value=False)(xs, key=KEY), layer(xs, key=KEY))
    made = layers.GRU(IN, HIDDEN, **RATES, inference=True, key=KEY)
    close(made(xs), mean)


def test_training_needs_a_key():
    layer = layers.GRU(IN, HIDDEN, **RATES, key=KEY)
    with pytest.raises(
        ValueError, match="GRU: key must be given to a layer that drops"
    ):
        layer(normal(1, TIME, IN))


def test_rows_under_vmap_have_masks_of_their_own():
    layer = layers.GRU(IN, HIDDEN, recurrent_dropout=0.5, key=KEY)
    xs = jnp.broadcast_to(normal(1, TIME, IN), (BATCH, TIME, IN))
    keys = jax.random.split(KEY, BATCH)
    run = eqx.filter_jit(jax.vmap(lambda xs, key: layer(xs, key=key)[0]))
    ys = run(xs, keys)
    close(ys[1], layer(xs[1], key=keys[1])[0])
    assert not np.allclose(ys[0], ys[1])


def test_a_layer_that_drops_nothing_is_arrays_only():
    for make in MAKE:
        assert all(map(eqx.is_array, jax.tree.leaves(make(IN, HIDDEN, key=KEY))))
    layer = layers.LSTM(IN, HIDDEN, recurrent_dropout=0.1, key=KEY)
    assert [a for a in jax.tree.leaves(layer) if not eqx.is_array(a)] == [False]


def test_cells_with_dropout():
    cell = eqx.nn.LSTMCell(IN, HIDDEN, key=KEY)
    layer = layers.LSTM.from_cell(cell, recurrent_dropout=0.4)
    jax.tree.map(np.testing.assert_array_equal, layer.to_cell(), cell)
    xs = normal(1, TIME, IN)
    close(layer(xs, inference=True), layers.LSTM.from_cell(cell)(xs))
    with pytest.raises(ValueError, match=r"no cell with zoneout.*got \(0.4, 0.4\)"):
        layers.LSTM.from_cell(cell, zoneout=0.4).to_cell()
    with pytest.raises(ValueError, match="no cell with heads; heads must be 1, got 11"):
        layers.GRU(IN, HIDDEN, heads=HIDDEN, key=KEY).to_cell()


@pytest.mark.parametrize("name", ["LSTM", "MinGRU", "Stack"])
def test_zeros_takes_sizes_or_a_shape(name):
    sizes = ("gru", 3, 5, 2) if name == "Stack" else (3, 5)
    layer = getattr(layers, name)(*sizes, key=jax.random.key(0))
    for one, shape in ((layer.zeros(4, 2), (4, 2)), (layer.zeros(), ())):
        jax.tree.map(np.testing.assert_array_equal, one, layer.zeros(shape))
