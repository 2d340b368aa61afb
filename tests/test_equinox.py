"""prnn_jax.equinox against Equinox's own cells under lax.scan and vmap."""

import functools
import operator
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import quick_jit as jit

import prnn_jax
import prnn_jax.equinox as layers

IN, HIDDEN, TIME, BATCH = 7, 11, 9, 3
KEY = jax.random.key(0)
MAKE = [layers.LSTM, layers.SLSTM, layers.GRU, layers.RNN]


def close(ours, theirs):
    """Equal up to the rounding of float32, relative to the largest entry.

    Both sum the same products in another order. An entry is a sum of at most
    TIME * BATCH * 4 * HIDDEN of them, some thousand, whose rounding errors grow like
    the root of their number: 64 units in the last place.
    """
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        tolerance = 64 * np.finfo(np.float32).eps * np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def normal(seed, *shape):
    draw = np.random.default_rng(seed).standard_normal
    return jnp.asarray(draw(shape, np.float32))


def scan(cell, xs, state, reverse=False):
    """What a user of Equinox writes: a cell over one sequence."""
    is_lstm = isinstance(cell, eqx.nn.LSTMCell)

    def step(state, x):
        state = cell(x, state)
        return state, state[0] if is_lstm else state

    state, ys = lax.scan(step, state, xs, reverse=reverse)
    return ys, state


def value_and_grads(run, module, xs, state):
    """run(module, x, state) over a batch; with gradients of a random projection."""

    def loss(module, xs, state):
        out = jax.vmap(functools.partial(run, module))(xs, state)
        leaves = jax.tree.leaves(out)
        return sum(jnp.vdot(normal(i, *a.shape), a) for i, a in enumerate(leaves)), out

    grads, out = jit(jax.grad(loss, (0, 1, 2), has_aux=True))(module, xs, state)
    return out, grads[0], grads[1:]


def random_state(cell_type, batch, seed):
    count = {eqx.nn.LSTMCell: 2, layers.LSTM: 2, layers.SLSTM: 4}.get(cell_type, 1)
    h, *rest = (normal(seed + n, *batch, HIDDEN) for n in range(count))
    if count == 4:
        rest[1] = 1 + jnp.abs(rest[1])  # n, which divides
    return (h, *rest) if rest else h


CELLS = pytest.mark.parametrize(
    ("make", "cell_type"),
    [(layers.LSTM, eqx.nn.LSTMCell), (layers.GRU, eqx.nn.GRUCell)],
    ids=["lstm", "gru"],
)


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


# ---- initialisation ------------------------------------------------------------------


@CELLS
def test_same_key_same_parameters(make, cell_type):
    cell, layer = cell_type(IN, HIDDEN, key=KEY), make(IN, HIDDEN, key=KEY)
    jax.tree.map(np.testing.assert_array_equal, layer.to_cell(), cell)


@pytest.mark.parametrize(
    ("make", "gates", "bidirectional"),
    [
        (layers.LSTM, 4, True),
        (layers.SLSTM, 4, False),
        (layers.GRU, 3, False),
        (layers.RNN, 1, True),
    ],
)
def test_initial_parameters(make, gates, bidirectional):
    features, hidden = 53, 61
    layer = make(features, hidden, bidirectional=bidirectional, key=KEY)
    lead = (2,) if bidirectional else ()
    assert layer.w_ih.shape == (*lead, features, gates * hidden)
    assert layer.w_hh.shape == (*lead, hidden, gates * hidden)
    assert layer.b_ih.shape == (*lead, gates * hidden)
    assert (layer.b_hn is not None) == (make is layers.GRU)
    lim = 1 / np.sqrt(hidden)
    for array in jax.tree.leaves(layer):
        assert np.abs(array).max() <= lim
        # The largest of n uniform values misses the limit by about 1/n of it.
        assert np.abs(array).max() > lim * (1 - 10 / array.size)
        # The mean of n is off by lim/sqrt(3n); 5 of those.
        assert np.abs(array.mean()) < 5 * lim / np.sqrt(3 * array.size)
    if bidirectional:
        assert not np.array_equal(layer.w_hh[0], layer.w_hh[1])


def test_biases_that_are_not_there():
    def biases(layer):
        return layer.b_ih, layer.b_hn

    assert biases(layers.GRU(IN, HIDDEN, use_bias=False, key=KEY)) == (None, None)
    assert layers.GRU(IN, HIDDEN, reset_after=False, key=KEY).b_hn is None
    assert layers.LSTM(IN, HIDDEN, key=KEY).b_hn is None


# ---- dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    ("dtype", "in_dtype", "out_dtype"),
    [
        (None, "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),  # promoted
        ("float32", "bfloat16", "float32"),
    ],
)
def test_dtypes(make, dtype, in_dtype, out_dtype):
    layer = make(IN, HIDDEN, dtype=dtype, key=KEY)
    assert layer.w_hh.dtype == jnp.dtype(dtype or "float32")
    xs = normal(1, TIME, IN).astype(in_dtype)

    def loss(layer, xs):
        ys, state = layer(xs)
        return ys.sum(), (ys, state)

    grads, out = jit(jax.grad(loss, has_aux=True))(layer, xs)
    assert {a.dtype for a in jax.tree.leaves(out)} == {jnp.dtype(out_dtype)}
    assert {g.dtype for g in jax.tree.leaves(grads)} == {layer.w_hh.dtype}
    exact = jax.tree.map(lambda a: a.astype("float32"), layer)
    # |y| is at most 1. Each step rounds to the 8 bits of bfloat16 and the recurrence
    # carries that on: a few per cent after TIME steps.
    ys = exact(xs.astype("float32"))[0]
    np.testing.assert_allclose(out[0].astype("float32"), ys, atol=0.05)


def test_a_state_of_another_dtype_is_promoted():
    layer = layers.GRU(IN, HIDDEN, dtype="bfloat16", key=KEY)
    ys, state = layer(jnp.ones((TIME, IN), "bfloat16"), jnp.zeros(HIDDEN, "float32"))
    assert ys.dtype == state.dtype == jnp.float32


def test_float64():
    with jax.enable_x64(True):
        layer = layers.LSTM(IN, HIDDEN, key=KEY)
        assert layer.w_hh.dtype == jnp.float64
        assert layer(jnp.ones((TIME, IN)))[0].dtype == jnp.float64


# ---- transformations -----------------------------------------------------------------


def test_filter_jit_grad_and_update():
    layer = layers.GRU(IN, HIDDEN, key=KEY)
    xs, target = normal(1, BATCH, TIME, IN), normal(2, BATCH, TIME, HIDDEN)

    @eqx.filter_jit
    def step(layer):
        def loss(layer):
            return jnp.mean((jax.vmap(layer)(xs)[0] - target) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(layer)
        updates = jax.tree.map(lambda g: -0.3 * g, grads)
        return value, eqx.apply_updates(layer, updates)

    losses = []
    for _ in range(5):
        value, layer = step(layer)
        losses.append(value)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_ensemble_by_filter_vmap():
    xs, keys = normal(1, BATCH, TIME, IN), jax.random.split(KEY, 3)
    many = eqx.filter_vmap(lambda key: layers.LSTM(IN, HIDDEN, key=key))(keys)
    run = eqx.filter_vmap(
        lambda layer, xs: layer(xs)[0], in_axes=(eqx.if_array(0), None)
    )
    for member, key in zip(run(many, xs), keys, strict=True):
        close(member, layers.LSTM(IN, HIDDEN, key=key)(xs)[0])


@pytest.mark.parametrize("make", MAKE)
def test_implementation_is_what_runs(make):
    xs = normal(1, BATCH, TIME, IN)

    def lowered(implementation):
        layer = make(IN, HIDDEN, implementation=implementation, key=KEY)
        loss = jax.jit(jax.grad(lambda xs: jax.vmap(layer)(xs)[0].sum()))
        return loss.lower(xs).as_text()

    native = lowered("native")
    assert "prnn_forward" in native
    assert "prnn_backward" in native
    assert "prnn_" not in lowered("scan")
    assert "stablehlo.while" in lowered("scan")


@pytest.mark.parametrize("make", MAKE)
def test_precision_reaches_the_products(make):
    layer = make(IN, HIDDEN, precision="highest", key=KEY)
    gradient = jax.jit(jax.grad(lambda xs: layer(xs)[0].sum()))  # has products of XLA's
    lowered = gradient.lower(normal(1, TIME, IN))
    assert "precision = [HIGHEST, HIGHEST]" in lowered.as_text()


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (layers.LSTM, {"merge": "mul"}, "merge must be one of 'concat', 'sum', got"),
        (layers.LSTM, {"implementation": "cuda"}, "implementation must be one of"),
        (layers.GRU, {"bidirectional": True, "reverse": True}, "reverse must be False"),
        (layers.RNN, {"activation": "gelu"}, "activation must be one of"),
        (layers.GRU, {"heads": 2}, "heads must divide hidden_size=11, got 2"),
        (layers.RNN, {"reserve": "none"}, "reserve must be one of"),
        (layers.SLSTM, {"zoneout": 0.1}, "zoneout must be 0 for the sLSTM"),
        (layers.LSTM, {"recurrent_dropout": 1}, "recurrent_dropout must be from 0 to"),
    ],
)
def test_unknown_options(make, options, message):
    with pytest.raises(ValueError, match=f"{make.__name__}: {message}"):
        make(IN, HIDDEN, key=KEY, **options)


def test_calls_that_do_not_fit():
    layer = layers.LSTM(IN, HIDDEN, key=KEY)
    with pytest.raises(ValueError, match=r"input_size=7, got \[9, 6\]"):
        layer(jnp.ones((TIME, IN - 1)))
    with pytest.raises(ValueError, match=r"time, input_size\].*got \[7\]"):
        layer(jnp.ones(IN))
    with pytest.raises(ValueError, match=r"state_0 must be \(h_0, c_0\)"):
        layer(jnp.ones((TIME, IN)), jnp.zeros(HIDDEN))
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        layers.LSTM(IN, 0, key=KEY)


def test_import_without_equinox_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.delitem(sys.modules, "prnn_jax.equinox")
    with pytest.raises(ImportError, match=r'pip install "prnn_jax\[equinox\]"'):
        import prnn_jax.equinox  # noqa: F401
