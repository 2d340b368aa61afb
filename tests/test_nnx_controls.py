"""Controls of prnn_jax.nnx's layers: lengths, resets, heads, dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_support import past_the_end, projection, run
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from nnx_support import CELLS, carry_like, make_cell, value_and_grads
from support import quick_jit as jit

import prnn_jax
import prnn_jax.nnx as layers

FUNCTIONS = {
    layers.LSTM: prnn_jax.lstm,
    layers.SLSTM: prnn_jax.slstm,
    layers.GRU: prnn_jax.gru,
    layers.RNN: prnn_jax.rnn,
}


def with_biases(make, *sizes, **options):
    bias_init = jax.nn.initializers.normal(0.3)
    return make(*sizes, bias_init=bias_init, rngs=nnx.Rngs(0), **options)


# ---- lengths -------------------------------------------------------------------------

LENGTHS = np.array([4, TIME, 1])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("optimized-lstm", {}),
        ("lstm", {"reverse": True, "time_major": True}),
        ("gru", {"reverse": True, "keep_order": True}),
        ("simple-relu", {"reverse": True}),
    ],
)
def test_lengths_same_as_flax(name, options):
    """Where steps count. The carry, and how a reversed one is ordered, are Flax's."""
    cell = make_cell(name)
    layer = CELLS[name][0].from_cell(cell, **options)
    time_major = "time_major" in options
    x = normal(1, *((TIME, BATCH) if time_major else (BATCH, TIME)), IN)
    carry = carry_like(cell, (BATCH,), 2)
    ours, d_layer, d_ours = value_and_grads(layer, x, carry, LENGTHS)
    theirs, d_rnn, d_theirs = value_and_grads(
        nnx.RNN(cell, **options), x, carry, LENGTHS
    )
    close(ours, theirs)
    close(d_ours, d_theirs)
    close(d_layer.params, type(layer).from_cell(d_rnn.cell).params)

    # What is past the end: zeros come out, and whatever is there matters to nothing.
    past = past_the_end(LENGTHS, time_major=time_major)
    x = jnp.where(past, jnp.nan, x)
    y = run(layer, x, initial_carry=carry, seq_lengths=LENGTHS)
    close(y, ours[1])
    np.testing.assert_array_equal(y * past, 0)
    graph, params = nnx.split(layer)

    def loss(params, x):
        return nnx.merge(graph, params)(x, seq_lengths=LENGTHS).sum()

    for gradient in jax.tree.leaves(jit(jax.grad(loss, (0, 1)))(params, x)):
        assert np.isfinite(gradient).all()


def test_lengths_same_as_flax_bidirectional():
    cells = make_cell("gru", 0), make_cell("gru", 1)
    flax = nnx.Bidirectional(*map(nnx.RNN, cells))
    layer = layers.GRU.from_cell(cells)
    x = normal(1, BATCH, TIME, IN)
    carry = tuple(carry_like(cell, (BATCH,), 2 + i) for i, cell in enumerate(cells))
    ours, _, d_ours = value_and_grads(layer, x, carry, LENGTHS)
    theirs, _, d_theirs = value_and_grads(flax, x, carry, LENGTHS)
    close(ours, theirs)
    close(d_ours, d_theirs)
    # And with our layers in Flax's wrapper.
    ours = nnx.Bidirectional(*map(layers.GRU.from_cell, cells))
    options = {"seq_lengths": LENGTHS, "return_carry": True}
    close(run(ours, x, **options), run(layer, x, **options))


def test_lengths_of_several_batch_axes_and_of_zero():
    options = {"reverse": True, "return_carry": True}
    layer = layers.LSTM(IN, HIDDEN, **options, rngs=nnx.Rngs(0))
    x, lengths = normal(1, 2, BATCH, TIME, IN), np.array([[3, 0, TIME], [1, 5, 2]])
    carry = normal(2, 2, BATCH, HIDDEN), normal(3, 2, BATCH, HIDDEN)
    out = run(layer, x, initial_carry=carry, seq_lengths=lengths)
    rows = [
        run(
            layer,
            x[i],
            initial_carry=jax.tree.map(lambda s: s[i], carry),  # noqa: B023
            seq_lengths=lengths[i],
        )
        for i in range(2)
    ]
    close(out, jax.tree.map(lambda *a: jnp.stack(a), *rows))
    for last, first in zip(out[0], carry, strict=True):
        np.testing.assert_array_equal(last[0, 1], first[0, 1])


# ---- resets --------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru", "simple-residual"])
def test_resets_same_as_flax_step_by_step(name, reverse):
    cell = make_cell(name)
    x, carry = normal(1, BATCH, TIME, IN), carry_like(cell, (BATCH,), 2)
    resets = jnp.asarray(np.random.default_rng(0).random((BATCH, TIME)) < 0.3)
    resets = resets.at[0, 0].set(True).at[1, -1].set(True)
    graph, params = nnx.split(cell)

    def flax(params, x, carry, reset_carry):
        cell, y = nnx.merge(graph, params), [None] * TIME
        for t in reversed(range(TIME)) if reverse else range(TIME):
            carry = jax.tree.map(
                lambda r, s: jnp.where(resets[:, t, None], r, s),  # noqa: B023
                reset_carry,
                carry,
            )
            carry, y[t] = cell(carry, x[:, t])
        return carry, jnp.stack(y, 1)

    def ours(params, x, carry, reset_carry):
        options = {"reverse": reverse, "keep_order": True, "return_carry": True}
        layer = CELLS[name][0].from_cell(nnx.merge(graph, params), **options)
        resets_ = {"resets": resets.astype(jnp.float32), "reset_carry": reset_carry}
        return layer(x, initial_carry=carry, **resets_)

    def grads(run):
        def loss(*arguments):
            out = run(*arguments)
            return projection(out), out

        arguments = params, x, carry, carry_like(cell, (BATCH,), 4)
        return jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arguments)

    close(grads(ours), grads(flax))


def test_resets_are_to_zero_and_go_with_lengths():
    layer = layers.GRU(IN, HIDDEN, return_carry=True, rngs=nnx.Rngs(0))
    x, carry = normal(1, BATCH, TIME, IN), normal(2, BATCH, HIDDEN)
    resets = jnp.zeros((BATCH, TIME), jnp.int32).at[:, 5].set(1)
    last, y = run(layer, x, initial_carry=carry, resets=resets)
    _, before = run(layer, x[:, :5], initial_carry=carry)
    after, rest = run(layer, x[:, 5:])
    close((last, y), (after, jnp.concatenate([before, rest], 1)))
    # Resets in the padding do nothing.
    lengths = {"seq_lengths": np.full(BATCH, 5)}
    close(run(layer, x, resets=resets, **lengths), run(layer, x, **lengths))


# ---- heads and the sLSTM -------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("make", FUNCTIONS)
def test_heads_are_layers_side_by_side(make, bidirectional):
    gru = {"recurrent_bias": True} if make is layers.GRU else {}
    options = {"bidirectional": bidirectional, "return_carry": True, **gru}
    layer = with_biases(make, IN, 6, heads=3, **options)
    assert layer.w_ih.shape[-3:-1] == (3, IN)
    assert layer.w_hh.shape[-3:-1] == (3, 2)
    x = normal(1, BATCH, TIME, IN)
    carry, y = run(layer, x)

    single = with_biases(make, IN, 2, **options)
    heads = []
    for head in range(3):
        own = nnx.state(layer, nnx.Param)
        own = jax.tree.map(lambda p: p[:, head] if bidirectional else p[head], own)  # noqa: B023
        nnx.update(single, own)
        heads.append(run(single, x))
    # y is [forward head 0, 1, 2, backward head 0, 1, 2].
    y = y.reshape(BATCH, TIME, -1, 3, 2)
    expected = [y.reshape(BATCH, TIME, -1, 2) for _, y in heads]
    close(y, jnp.stack(expected, 3))
    close(
        carry, jax.tree.map(lambda *c: jnp.concatenate(c, -1), *(c for c, _ in heads))
    )


@pytest.mark.parametrize("bidirectional", [False, True])
def test_slstm_is_the_function(bidirectional):
    options = {"bidirectional": bidirectional, "reserve": "lean"}
    layer = with_biases(layers.SLSTM, IN, HIDDEN, return_carry=True, **options)
    x = normal(1, BATCH, TIME, IN)
    y, state = run(prnn_jax.slstm, x, layer.params, **options)
    carry = tuple(tuple(s[d] for s in state) for d in (0, 1))
    carry = carry if bidirectional else state
    close(run(layer, x), (carry, y))

    start = layer.initialize_carry((BATCH, IN))
    assert not np.any(jax.tree.leaves(start))
    close(run(layer, x, initial_carry=start), (carry, y))
    # Cut in two: the carry has everything.
    if not bidirectional:
        carry, first = run(layer, x[:, :4])
        carry, second = run(layer, x[:, 4:], initial_carry=carry)
        close((carry, jnp.concatenate([first, second], 1)), (state, y))


def test_reserve_reaches_the_function():
    x = normal(1, BATCH, TIME, IN)

    def program(reserve):
        layer = layers.GRU(IN, HIDDEN, reserve=reserve, rngs=nnx.Rngs(0))
        return str(jax.make_jaxpr(jax.grad(lambda x: layer(x).sum()))(x))

    assert "lean=True" in program("lean")
    assert "lean=True" not in program("fast")


# ---- dropout and zoneout -------------------------------------------------------------


def train(layer, x, seed=0, **options):
    """The layer with dropout."""

    @jit
    def call(key):
        return layer(x, rngs=nnx.Rngs(dropout=key), **options)

    return call(jax.random.key(seed))


@pytest.mark.parametrize("make", [layers.SLSTM, layers.GRU])
def test_recurrent_dropout(make):
    layer = with_biases(make, IN, HIDDEN, recurrent_dropout_rate=0.4)
    x = normal(1, BATCH, TIME, IN)
    y, evaluated = train(layer, x), run(layer, x, deterministic=True)
    close(evaluated, run(FUNCTIONS[make], x, layer.params)[0])
    close(y, train(layer, x))
    assert not np.allclose(y, train(layer, x, 1))
    assert not np.allclose(y[:, 1:], evaluated[:, 1:])
    # The first step starts from zeros, which no mask changes.
    close(y[:, 0], evaluated[:, 0])

    layer.eval()
    close(train(layer, x), evaluated)
    close(train(layer, x, deterministic=False), y)
    layer.train()
    assert not layer.deterministic
    assert nnx.view(layer, deterministic=True).deterministic


def test_recurrent_dropout_is_one_mask_per_row_for_all_steps():
    """A network that copies h: its masks multiply up, without any other change."""
    width, rate = 512, 0.25
    layer = layers.RNN(
        1,
        width,
        activation="relu",
        bidirectional=True,
        kernel_init=jax.nn.initializers.zeros,
        recurrent_kernel_init=lambda key, shape, dtype: jnp.eye(*shape, dtype=dtype),
        recurrent_dropout_rate=rate,
        rngs=nnx.Rngs(0),
    )
    ones = (jnp.ones((2, width)),) * 2
    y = train(layer, jnp.zeros((2, 3, 1)), initial_carry=ones)
    first = y[:, 0, :width]
    assert set(np.unique(first)) == {0, np.float32(1 / (1 - rate))}
    for step in (1, 2):  # the same mask again
        np.testing.assert_allclose(y[:, step, :width], first ** (step + 1), rtol=1e-6)
    rows = [first[0], first[1], y[0, -1, width:], y[1, -1, width:]]
    assert len({row.tobytes() for row in np.asarray(rows)}) == 4  # all drawn apart
    # Share of zeros of n draws is off by sqrt(rate (1 - rate) / n); 5 of those.
    zeros = np.mean(np.asarray(rows) == 0)
    assert abs(zeros - rate) < 5 * np.sqrt(rate * (1 - rate) / (4 * width))


def test_zoneout():
    x = normal(1, BATCH, TIME, IN)
    carry = normal(2, BATCH, HIDDEN), normal(3, BATCH, HIDDEN)
    options = {"initial_carry": carry, "return_carry": True}

    # The rates are in the order of the carry: c stays, h does not.
    layer = with_biases(layers.LSTM, IN, HIDDEN, zoneout_rate=(1.0, 0.0))
    for deterministic in (False, True):
        (c, h), _ = train(layer, x, deterministic=deterministic, **options)
        close(c, carry[0])
        assert not np.any(np.isclose(h, carry[1], atol=0))

    layer = with_biases(layers.LSTM, IN, HIDDEN, zoneout_rate=(0.2, 0.3))
    layer.eval()
    y, (h, c) = run(prnn_jax.lstm, x, layer.params, carry[::-1], zoneout=(0.3, 0.2))
    close(run(layer, x, **options), ((c, h), y))

    # In training, some of the old state stays as it is.
    layer = with_biases(layers.GRU, IN, HIDDEN, zoneout_rate=0.5, bidirectional=True)
    y = train(layer, x)
    stays = np.asarray(y[:, 1:, :HIDDEN] == y[:, :-1, :HIDDEN])
    assert abs(stays.mean() - 0.5) < 5 * np.sqrt(0.25 / stays.size)
    assert not np.array_equal(y, train(layer, x, 1))


def test_dropout_in_nnx_transformations():
    layer = layers.GRU(
        IN, HIDDEN, recurrent_dropout_rate=0.5, zoneout_rate=0.1, rngs=nnx.Rngs(0)
    )
    x = normal(1, BATCH, TIME, IN)

    @nnx.jit
    def step(layer):
        return nnx.value_and_grad(lambda m: m(x).sum())(layer)

    (first, d_first), (second, _) = step(layer), step(layer)
    assert first != second
    assert set(d_first) == {"w_ih", "w_hh", "b_ih"}
    # A layer without dropout keeps no random state; Flax's wrapper, which hands on its
    # own stream for carries, leaves that of dropout alone.
    assert not nnx.state(layers.GRU(IN, HIDDEN, rngs=nnx.Rngs(0)), nnx.RngState)
    both = nnx.Bidirectional(layer, layer)
    call = nnx.jit(lambda module: module(x))
    assert not np.allclose(call(both), call(both))


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (layers.GRU, {"heads": 4}, r"heads must be .* hidden_features=11, got 4"),
        (layers.GRU, {"heads": 0}, "got 0"),
        (layers.LSTM, {"reserve": "all"}, "reserve must be one of 'fast', 'lean'"),
        (layers.LSTM, {"recurrent_dropout_rate": 1.0}, "from 0 to below 1, got 1.0"),
        (layers.LSTM, {"zoneout_rate": -0.1}, "from 0 to 1, got -0.1"),
        (layers.LSTM, {"zoneout_rate": (0.1,)}, "or 2 of them, .* got 1 values"),
        (layers.SLSTM, {"zoneout_rate": 0.1}, "slstm has no zoneout"),
        (
            layers.SLSTM,
            {"carry_init": jax.nn.initializers.zeros},
            "carry_init must be None",
        ),
    ],
)
def test_options_that_do_not_fit(make, options, message):
    with pytest.raises(ValueError, match=f"{make.__name__}: .*{message}"):
        make(IN, HIDDEN, rngs=nnx.Rngs(0), **options)


def test_no_cell_of_flax_is_the_same():
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match=r"LSTM.to_cell: heads must be None .* got 11"):
        layers.LSTM(IN, HIDDEN, heads=11, rngs=rngs).to_cell()
    with pytest.raises(ValueError, match=r"zoneout_rate must be 0 .* got 0.1"):
        layers.GRU(IN, HIDDEN, zoneout_rate=0.1, rngs=rngs).to_cell()
    with pytest.raises(ValueError, match=r"SLSTM.to_cell: Flax has no cell"):
        layers.SLSTM(IN, HIDDEN, rngs=rngs).to_cell()
    with pytest.raises(ValueError, match=r"SLSTM.from_cell: Flax has no cell"):
        layers.SLSTM.from_cell(make_cell("lstm"))
    with pytest.raises(ValueError, match=r"LSTM.from_cell: heads must be None"):
        layers.LSTM.from_cell(make_cell("lstm"), heads=11)
    # Dropout is off where a trained layer is used; cells have none, and need none.
    cell = make_cell("gru")
    layer = layers.GRU.from_cell(cell, recurrent_dropout_rate=0.1, rngs=nnx.Rngs(1))
    close(nnx.state(layer.to_cell(), nnx.Param), nnx.state(cell, nnx.Param))


def test_messages_name_the_layer_and_its_argument():
    x = jnp.ones((BATCH, TIME, IN))
    for other in (
        layers.MinGRU(IN, HIDDEN, rngs=nnx.Rngs(0)),
        layers.Stack("gru", IN, HIDDEN, 2, rngs=nnx.Rngs(0)),
        layers.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0)),
    ):
        name = type(other).__name__
        message = f"^{name}: seq_lengths must be whole numbers, got float32"
        with pytest.raises(ValueError, match=message):
            other(x, seq_lengths=jnp.ones(BATCH))
        message = rf"^{name}: input_shape must be \[\*batch, in_features\], got 4"
        with pytest.raises(ValueError, match=message):
            other.initialize_carry(4)
