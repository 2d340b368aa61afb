"""prnn_jax.nnx against flax.nnx's own cells and wrappers."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from nnx_support import CELLS, carry_like, make_cell, value_and_grads
from support import quick_jit as jit

import prnn_jax
import prnn_jax.nnx as layers
from prnn_jax._engine import weight_products

# name: (options of nnx.RNN and of the layer, batch axes, whether a carry is given)
CALLS = {
    "plain": ({}, (BATCH,), False),
    "reverse-time-major-carry": (
        {"reverse": True, "time_major": True},
        (2, BATCH),
        True,
    ),
    "keep-order-carry": ({"reverse": True, "keep_order": True}, (), True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CELLS)
def test_same_as_flax(name, call):
    options, batch, with_carry = CALLS[call]
    cell = make_cell(name)
    shape = (TIME, *batch, IN) if "time_major" in options else (*batch, TIME, IN)
    x, carry = normal(1, *shape), carry_like(cell, batch, 2) if with_carry else None

    layer_type = CELLS[name][0]
    layer = layer_type.from_cell(cell, **options)
    ours, d_layer, d_ours = value_and_grads(layer, x, carry)
    rnn = nnx.RNN(cell, **options)
    if carry is None:  # zeros; what draws them in nnx.RNN is not for jax.grad
        carry = jax.tree.map(jnp.zeros_like, carry_like(cell, batch, 0))
    theirs, d_rnn, d_theirs = value_and_grads(rnn, x, carry)
    close(ours, theirs)
    close(d_ours if with_carry else d_ours[0], d_theirs if with_carry else d_theirs[0])
    # A layer's parameters are a rearrangement of the cell's, and so are the gradients.
    close(d_layer.params, layer_type.from_cell(d_rnn.cell).params)


@pytest.mark.parametrize("name", ["optimized-lstm", "gru"])
def test_options_of_the_call_override_those_of_the_layer(name):
    cell = make_cell(name)
    layer = CELLS[name][0].from_cell(cell, time_major=True, keep_order=True)
    x = normal(1, BATCH, TIME, IN)
    options = {"time_major": False, "reverse": True, "keep_order": False}
    options["return_carry"] = True
    close(layer(x, **options), nnx.RNN(cell)(x, **options))


@pytest.mark.parametrize(
    ("name", "merge"),
    [("optimized-lstm", "concat"), ("gru", "sum"), ("simple-relu", "concat")],
)
def test_same_as_flax_bidirectional(name, merge):
    cells = make_cell(name, 0), make_cell(name, 1)
    merge_fn = {"merge_fn": jnp.add} if merge == "sum" else {}
    flax = nnx.Bidirectional(*map(nnx.RNN, cells), **merge_fn)
    layer_type = CELLS[name][0]
    layer = layer_type.from_cell(cells, merge=merge)
    x = normal(1, BATCH, TIME, IN)
    carry = tuple(carry_like(cell, (BATCH,), 2 + i) for i, cell in enumerate(cells))

    ours, d_layer, d_ours = value_and_grads(layer, x, carry)
    theirs, d_flax, d_theirs = value_and_grads(flax, x, carry)
    close(ours, theirs)
    close(d_ours, d_theirs)
    d_cells = d_flax.forward_rnn.cell, d_flax.backward_rnn.cell
    close(d_layer.params, layer_type.from_cell(d_cells).params)
    if merge == "concat":
        close(layer(x, time_major=False), flax(x))


def test_layers_fit_into_flax_bidirectional():
    cells = make_cell("lstm", 0), make_cell("lstm", 1)
    x = normal(1, BATCH, TIME, IN)
    ours = nnx.Bidirectional(*map(layers.LSTM.from_cell, cells))
    theirs = nnx.Bidirectional(*map(nnx.RNN, cells))
    close(ours(x, return_carry=True), theirs(x, return_carry=True))


def test_a_sequence_cut_in_two():
    layer = layers.LSTM(IN, HIDDEN, return_carry=True, rngs=nnx.Rngs(0))
    x = normal(1, BATCH, TIME, IN)
    carry, first = layer(x[:, :4])
    carry, second = layer(x[:, 4:], initial_carry=carry)
    close((carry, jnp.concatenate([first, second], 1)), layer(x))


def test_a_sequence_of_no_steps_returns_the_carry():
    layer = layers.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0))
    carry = normal(1, BATCH, HIDDEN), normal(2, BATCH, HIDDEN)
    x = jnp.zeros((BATCH, 0, IN))
    last, y = layer(x, initial_carry=carry, return_carry=True)
    assert y.shape == (BATCH, 0, HIDDEN)
    close(last, carry)


# ---- what only our layers have -------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "function", "options"),
    [
        (layers.GRU, prnn_jax.gru, {"reset_after": False}),
        (layers.RNN, prnn_jax.rnn, {"activation": "clipped_relu", "cap": 0.4}),
        (layers.RNN, prnn_jax.rnn, {"skip": 0.25}),
    ],
    ids=["reset-before", "clipped-relu", "skip"],
)
def test_options_reach_the_function(make, function, options):
    bias_init = jax.nn.initializers.normal(0.3)
    layer = make(IN, HIDDEN, bias_init=bias_init, rngs=nnx.Rngs(0), **options)
    x = normal(1, BATCH, TIME, IN)
    y, h = function(x, layer.params, **options)
    close(layer(x, return_carry=True), (h, y))
    assert not np.allclose(y, function(x, layer.params)[0])


def test_recurrent_bias_is_the_bias_that_r_multiplies():
    layer = layers.GRU(
        IN,
        HIDDEN,
        recurrent_bias=True,
        bias_init=jax.nn.initializers.normal(0.3),
        rngs=nnx.Rngs(0),
    )
    assert layer.b_hn.shape == (HIDDEN,)
    np.testing.assert_array_equal(layer.params.b_hh[: 2 * HIDDEN], 0)
    np.testing.assert_array_equal(layer.params.b_hh[2 * HIDDEN :], layer.b_hn[...])
    x = normal(1, BATCH, TIME, IN)
    close(layer(x), prnn_jax.gru(x, layer.params)[0])
    _, d_layer, _ = value_and_grads(layer, x, None)
    assert np.abs(d_layer.b_hn[...]).min() > 0


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU, layers.RNN])
def test_no_redundant_parameters(make):
    params = nnx.state(make(IN, HIDDEN, rngs=nnx.Rngs(0)), nnx.Param)
    assert set(params) == {"w_ih", "w_hh", "b_ih"}


# ---- initialisation ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "gates", "bidirectional"), [(layers.LSTM, 4, False), (layers.GRU, 3, True)]
)
def test_initial_parameters(make, gates, bidirectional):
    features, hidden = 257, 61
    layer = make(features, hidden, bidirectional=bidirectional, rngs=nnx.Rngs(0))
    directions = 2 if bidirectional else 1
    w_ih = layer.w_ih[...].reshape(directions, features, gates, hidden)
    w_hh = layer.w_hh[...].reshape(directions, hidden, gates, hidden)
    # Variance 1/fan_in. That of n samples is off by sqrt(2/n) of itself; 5 of those.
    n = features * hidden
    variance = w_ih.var((1, 3)) * features
    np.testing.assert_allclose(variance, 1, atol=5 * np.sqrt(2 / n))
    # Orthogonal by gate. QR is accurate to some units in the last place.
    gram = jnp.einsum("dhgi,dhgj->dgij", w_hh, w_hh)
    eye = np.broadcast_to(np.eye(hidden), gram.shape)
    np.testing.assert_allclose(gram, eye, atol=16 * np.finfo(np.float32).eps)
    np.testing.assert_array_equal(layer.b_ih[...], 0)
    # All drawn independently: no two gates or directions are alike.
    blocks = w_hh.transpose(0, 2, 1, 3).reshape(directions * gates, -1)
    assert len(np.unique(blocks[:, 0])) == directions * gates


def test_initialisers_are_called_for_each_gate():
    shapes = []

    def init(key, shape, dtype):
        shapes.append(shape)
        return jnp.full(shape, len(shapes), dtype)

    layer = layers.GRU(
        IN,
        HIDDEN,
        kernel_init=init,
        recurrent_kernel_init=init,
        bias_init=init,
        rngs=nnx.Rngs(0),
    )
    assert shapes == [(IN, HIDDEN)] * 3 + [(HIDDEN, HIDDEN)] * 3 + [(HIDDEN,)] * 3
    np.testing.assert_array_equal(layer.w_ih[0, ::HIDDEN], [1, 2, 3])


def test_carry_init():
    x = normal(1, BATCH, TIME, IN)
    carry_init = jax.nn.initializers.normal(1.0)
    layer = layers.LSTM(IN, HIDDEN, carry_init=carry_init, rngs=nnx.Rngs(0))
    first, second = layer(x), layer(x)
    assert not np.allclose(first, second)  # another draw
    close(layer(x, rngs=nnx.Rngs(3)), layer(x, rngs=nnx.Rngs(3)))
    carry = layer.initialize_carry((BATCH, IN), nnx.Rngs(3))
    close(layer(x, initial_carry=carry), layer(x, rngs=nnx.Rngs(3)))

    plain = layers.GRU(IN, HIDDEN, bidirectional=True, rngs=nnx.Rngs(0))
    assert not nnx.state(plain, nnx.RngState)
    zeros = plain.initialize_carry((BATCH, IN))
    close(zeros, (jnp.zeros((BATCH, HIDDEN)),) * 2)
    close(plain(x, initial_carry=zeros), plain(x))


# ---- dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU, layers.RNN])
@pytest.mark.parametrize(
    ("dtype", "param_dtype", "in_dtype", "out_dtype"),
    [
        (None, "float32", "float32", "float32"),
        (None, "float32", "bfloat16", "float32"),  # promoted
        (None, "bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32", "bfloat16"),
        ("float32", "bfloat16", "bfloat16", "float32"),
        (None, "float32", "int32", "float32"),
    ],
)
def test_dtypes(make, dtype, param_dtype, in_dtype, out_dtype):
    layer = make(IN, HIDDEN, dtype=dtype, param_dtype=param_dtype, rngs=nnx.Rngs(0))
    exact = make(IN, HIDDEN, rngs=nnx.Rngs(0))
    nnx.update(exact, jax.tree.map(lambda p: p.astype("float32"), nnx.state(layer)))
    x = (3 * normal(1, BATCH, TIME, IN)).astype(in_dtype)
    graph, params = nnx.split(layer)

    def loss(params):
        layer = nnx.merge(graph, params)
        carry = layer.initialize_carry((BATCH, IN))
        carry, y = layer(x, initial_carry=carry, return_carry=True)
        return y.sum(), (carry, y)

    grads, (carry, y) = jit(jax.grad(loss, has_aux=True))(params)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(param_dtype)}
    assert y.dtype == out_dtype
    # A carry begins in param_dtype; float32 stays beside 16 bits.
    wide = jnp.promote_types(out_dtype, param_dtype)
    assert {a.dtype for a in jax.tree.leaves(carry)} == {wide}
    # |y| is about 1. Each step rounds to the 8 bits of bfloat16 and the recurrence
    # carries that on: some per cent after TIME steps.
    np.testing.assert_allclose(y.astype("float32"), exact(x), atol=0.1)


# ---- transformations -----------------------------------------------------------------


def test_nnx_jit_grad_and_update():
    layer = layers.GRU(IN, HIDDEN, rngs=nnx.Rngs(0))
    x, target = normal(1, BATCH, TIME, IN), normal(2, BATCH, TIME, HIDDEN)

    @nnx.jit
    def step(layer):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - target) ** 2))(
            layer
        )
        params = nnx.state(layer, nnx.Param)
        nnx.update(layer, jax.tree.map(lambda p, g: p - 0.3 * g, params, grads))
        return loss

    losses = [step(layer) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_ensemble_by_nnx_vmap():
    x = normal(1, BATCH, TIME, IN)
    keys = jax.random.split(jax.random.key(0), 3)

    def make(key):
        init = {"recurrent_kernel_init": jax.nn.initializers.normal()}
        return layers.LSTM(IN, HIDDEN, **init, rngs=nnx.Rngs(key))

    many = nnx.vmap(make)(keys)
    y = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(many, x)
    for member, key in zip(y, keys, strict=True):
        close(member, make(key)(x))


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU, layers.RNN])
def test_implementation_is_what_runs(make):
    x = normal(1, BATCH, TIME, IN)

    def lowered(implementation):
        layer = make(IN, HIDDEN, implementation=implementation, rngs=nnx.Rngs(0))
        loss = jax.jit(jax.grad(lambda x: layer(x).sum()))
        return loss.lower(x).as_text()

    native = lowered("native")
    assert "prnn_forward" in native
    assert "prnn_backward" in native
    assert "prnn_" not in lowered("scan")
    assert "stablehlo.while" in lowered("scan")


@pytest.mark.parametrize("make", [layers.LSTM, layers.GRU, layers.RNN])
def test_precision_reaches_the_products(make, monkeypatch):
    monkeypatch.setattr(weight_products, "MAX_MULTIPLY_ADDS", 0)  # all of them XLA's
    layer = make(IN, HIDDEN, precision="highest", rngs=nnx.Rngs(0))
    x = normal(1, BATCH, TIME, IN)
    gradient = jax.jit(jax.grad(lambda x: layer(x).sum()))
    assert "precision = [HIGHEST, HIGHEST]" in gradient.lower(x).as_text()


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (layers.LSTM, {"merge": "mul"}, "merge must be one of 'concat', 'sum', got"),
        (layers.LSTM, {"implementation": "cuda"}, "implementation must be one of"),
        (
            layers.LSTM,
            {"bidirectional": True, "reverse": True},
            "reverse must be False",
        ),
        (layers.RNN, {"activation": "gelu"}, "activation must be one of"),
        (
            layers.GRU,
            {"reset_after": False, "recurrent_bias": True},
            "recurrent_bias must be False",
        ),
    ],
)
def test_unknown_options(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(IN, HIDDEN, rngs=nnx.Rngs(0), **options)


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="hidden_features must be at least 1, got 0"):
        layers.LSTM(IN, 0, rngs=nnx.Rngs(0))


def test_calls_that_do_not_fit():
    layer = layers.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0))
    both = layers.GRU(IN, HIDDEN, bidirectional=True, rngs=nnx.Rngs(0))
    x, h = jnp.ones((BATCH, TIME, IN)), jnp.zeros((BATCH, HIDDEN))
    with pytest.raises(ValueError, match=r"in_features=7, got \[3, 9, 6\]"):
        layer(x[..., 1:])
    with pytest.raises(ValueError, match=r"\[\*batch, time, in_features\].*got \[7\]"):
        layer(x[0, 0])
    with pytest.raises(
        ValueError, match=r"must be \(c, h\), each .*= \[3, 11\], got one array"
    ):
        layer(x, initial_carry=h)
    with pytest.raises(ValueError, match=r"got \(\[11\], \[11\]\)"):
        layer(x, initial_carry=(h[0], h[0]))
    with pytest.raises(ValueError, match=r"a pair h, h \(forward, backward\)"):
        both(x, initial_carry=h)
    with pytest.raises(ValueError, match="reverse must be False in a bidirectional"):
        both(x, reverse=True)
    with pytest.raises(
        ValueError, match=r"LSTM: seq_lengths must be \[\*batch\] = \[3\], got"
    ):
        layer(x, seq_lengths=np.array([1, 2]))
    with pytest.raises(ValueError, match=r"lengths must be from 0 to time = 9, got 10"):
        layer(x, seq_lengths=np.array([1, 2, 10]))
    with pytest.raises(
        ValueError, match=r"resets must be \[\*batch, time\] = \[3, 9\]"
    ):
        layer(x, resets=np.zeros((TIME, BATCH)))
    with pytest.raises(ValueError, match="reset_carry is given without resets"):
        layer(x, reset_carry=(h, h))
    with pytest.raises(ValueError, match=r"LSTM: reset_carry must be \(c, h\)"):
        layer(x, resets=np.zeros((BATCH, TIME)), reset_carry=h)
    with pytest.raises(ValueError, match=r"pass rngs=nnx\.Rngs"):
        layer.initialize_carry((IN,), carry_init=jax.nn.initializers.normal())


def test_what_has_a_cell_in_it_is_no_cell():
    rnns = [nnx.RNN(nnx.LSTMCell(IN, HIDDEN, rngs=nnx.Rngs(n))) for n in range(2)]
    with pytest.raises(ValueError, match=r"got RNN; pass its \.cell\.$"):
        layers.LSTM.from_cell(rnns[0])
    both = nnx.Bidirectional(*rnns)
    with pytest.raises(ValueError, match=r"got Bidirectional; pass a pair, \(it\."):
        layers.LSTM.from_cell(both)
    pair = both.forward_rnn.cell, both.backward_rnn.cell
    assert layers.LSTM.from_cell(pair).bidirectional


def test_import_without_flax_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, "prnn_jax.nnx")
    with pytest.raises(ImportError, match=r'pip install "prnn_jax\[flax\]"'):
        import prnn_jax.nnx  # noqa: F401
