"""prnn_jax.linen against flax.linen's own cells and wrappers, and prnn_jax.nnx."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax_support import from_linen_cell, past_the_end, projection, run
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from support import quick_jit as jit

import prnn_jax
import prnn_jax.linen as layers
import prnn_jax.nnx
from prnn_jax._engine import weight_products

BIAS_INIT = jax.nn.initializers.normal(0.3)
LENGTHS = np.array([4, TIME, 1])

# name: (layer, its options, Flax's cell, its options)
CELLS = {
    "lstm": (layers.LSTM, {}, nn.LSTMCell, {}),
    "optimized-lstm": (layers.LSTM, {}, nn.OptimizedLSTMCell, {}),
    "gru": (layers.GRU, {}, nn.GRUCell, {}),
    "simple-relu": (
        layers.RNN,
        {"activation": "relu"},
        nn.SimpleCell,
        {"activation_fn": jax.nn.relu},
    ),
    "simple-residual": (layers.RNN, {"skip": 1.0}, nn.SimpleCell, {"residual": True}),
}


def pair(name, seed=0, **options):
    """A layer and an `nn.RNN`, each with its variables, that compute the same."""
    make, own, cell_type, cell_options = CELLS[name]
    cell = cell_type(HIDDEN, bias_init=BIAS_INIT, **cell_options)
    rnn = nn.RNN(cell, **options)
    params = rnn.init(jax.random.key(seed), normal(0, 1, 1, IN))["params"]
    ours = {"params": from_linen_cell(cell_type.__name__, params["cell"])}
    return (make(HIDDEN, **own, **options), ours), (rnn, {"params": params})


def carry_like(name, batch, seed):
    shape = (*batch, HIDDEN)
    if CELLS[name][0] is layers.LSTM:
        return normal(seed, *shape), normal(seed + 1, *shape)
    return normal(seed, *shape)


def value_and_grads(module, variables, x, carry, lengths=None, time_major=False):
    """(carry, y), and the gradients of a random projection of them."""

    def loss(variables, x, carry):
        out = module.apply(
            variables, x, initial_carry=carry, seq_lengths=lengths, return_carry=True
        )
        if lengths is not None:
            past = past_the_end(lengths, time_major=time_major)
            out = out[0], jnp.where(past, 0, out[1])
        return projection(out), out

    grad = jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    (d_variables, *d_inputs), out = grad(variables, x, carry)
    return out, d_inputs, d_variables["params"]


@pytest.mark.parametrize(
    ("name", "options", "lengths"),
    [
        ("lstm", {}, None),
        ("optimized-lstm", {"reverse": True, "time_major": True}, LENGTHS),
        ("gru", {"reverse": True, "keep_order": True}, LENGTHS),
        ("gru", {"reverse": True}, LENGTHS),
        ("simple-relu", {"time_major": True}, LENGTHS),
        ("simple-residual", {"reverse": True, "keep_order": True}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_same_as_flax(name, options, lengths):
    ours, theirs = pair(name, **options)
    time_major = "time_major" in options
    x = normal(1, *((TIME, BATCH) if time_major else (BATCH, TIME)), IN)
    inputs = x, carry_like(name, (BATCH,), 2), lengths, time_major
    out, d_inputs, d_params = value_and_grads(*ours, *inputs)
    flax_out, d_flax_inputs, d_flax = value_and_grads(*theirs, *inputs)
    close(out, flax_out)
    close(d_inputs, d_flax_inputs)
    cell = CELLS[name][2].__name__
    close(d_params, from_linen_cell(cell, d_flax["cell"]))


@pytest.mark.parametrize(
    ("name", "merge", "lengths"),
    [("lstm", "concat", LENGTHS), ("gru", "sum", None)],
    ids=["lstm", "gru"],
)
def test_same_as_flax_bidirectional(name, merge, lengths):
    (one, first), (rnn, flax_first) = pair(name, 0)
    (_, second), (backward_rnn, flax_second) = pair(name, 1)
    merge_fn = {"merge_fn": jnp.add} if merge == "sum" else {}
    flax = nn.Bidirectional(rnn, backward_rnn, **merge_fn)
    sides = ("forward_rnn", flax_first), ("backward_rnn", flax_second)
    flax_variables = {"params": {side: v["params"] for side, v in sides}}
    layer = one.clone(bidirectional=True, merge=merge)
    variables = jax.tree.map(lambda *p: jnp.stack(p), first, second)
    x = normal(1, BATCH, TIME, IN)
    carry = carry_like(name, (BATCH,), 2), carry_like(name, (BATCH,), 4)

    out, d_inputs, d_params = value_and_grads(layer, variables, x, carry, lengths)
    theirs = value_and_grads(flax, flax_variables, x, carry, lengths)
    close((out, d_inputs), theirs[:2])
    cell = CELLS[name][2].__name__
    d_sides = [
        from_linen_cell(cell, theirs[2][side]["cell"])
        for side in ("forward_rnn", "backward_rnn")
    ]
    close(d_params, jax.tree.map(lambda *p: jnp.stack(p), *d_sides))

    # And our layers in Flax's wrapper.
    wrapped = nn.Bidirectional(one, one.clone(), **merge_fn)
    params = {"forward_rnn": first["params"], "backward_rnn": second["params"]}
    options = {"initial_carry": carry, "seq_lengths": lengths, "return_carry": True}
    ours = run(wrapped.apply, {"params": params}, x, **options)
    close(ours, run(layer.apply, variables, x, **options))


def test_options_of_the_call_override_those_of_the_layer():
    (layer, ours), (rnn, theirs) = pair("gru", time_major=True, keep_order=True)
    x = normal(1, BATCH, TIME, IN)
    options = {"time_major": False, "reverse": True, "keep_order": False}
    options["return_carry"] = True
    close(run(layer.apply, ours, x, **options), run(rnn.apply, theirs, x, **options))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_initial_carry_is_drawn_as_flax_does(name, bidirectional):
    make, _, cell_type, _ = CELLS[name]
    carry_init = jax.nn.initializers.normal(1.0)
    layer = make(HIDDEN, carry_init=carry_init, bidirectional=bidirectional)
    cell = cell_type(HIDDEN, carry_init=carry_init)
    key, shape = jax.random.key(5), (BATCH, IN)
    carry = layer.initialize_carry(key, shape)
    if bidirectional:
        both = [cell.initialize_carry(k, shape) for k in jax.random.split(key)]
        close(carry, tuple(both))
    else:
        close(carry, cell.initialize_carry(key, shape))
    x = normal(1, BATCH, TIME, IN)
    variables = layer.init(jax.random.key(0), x)
    drawn = run(layer.apply, variables, x, init_key=key)
    close(drawn, run(layer.apply, variables, x, initial_carry=carry))
    assert not np.allclose(drawn, run(layer.apply, variables, x))


# ---- against prnn_jax.nnx, which shares all but the shell --------------------

# name: (options, options of the call)
SAME = {
    "LSTM": ({"heads": 2, "bidirectional": True}, {"seq_lengths": LENGTHS}),
    "SLSTM": ({"heads": 5, "reserve": "lean"}, {"seq_lengths": LENGTHS}),
    "GRU": ({"reset_after": False, "heads": 1}, {"reverse": True}),
    "RNN": ({"activation": "clipped_relu", "cap": 0.4, "skip": 0.3}, {}),
}


@pytest.mark.parametrize("name", SAME)
def test_same_as_nnx(name):
    options, call = SAME[name]
    options = {"return_carry": True, "bias_init": BIAS_INIT, **options}
    theirs = getattr(prnn_jax.nnx, name)(IN, 10, rngs=nnx.Rngs(0), **options)
    layer = getattr(layers, name)(10, **options)
    params = {name: value[...] for name, value in nnx.state(theirs, nnx.Param).items()}
    x = normal(1, BATCH, TIME, IN)
    drawn = layer.init(jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, params)

    call = {**call, "resets": np.random.default_rng(0).random((BATCH, TIME)) < 0.3}
    carry = theirs.initialize_carry((BATCH, IN))
    close(layer.initialize_carry(jax.random.key(0), (BATCH, IN)), carry)
    call["initial_carry"] = jax.tree.map(lambda c: c + 0.5, carry)
    call["reset_carry"] = jax.tree.map(lambda c: c + 0.3, carry)
    close(run(layer.apply, {"params": params}, x, **call), run(theirs, x, **call))


def test_gru_has_the_biases_of_linens_unless_told():
    x = normal(1, BATCH, TIME, IN)

    def params(**options):
        layer = layers.GRU(HIDDEN, **options)
        return layer, layer.init(jax.random.key(0), x)["params"]

    assert "b_hn" in params()[1]
    assert "b_hn" not in params(recurrent_bias=False)[1]
    layer, before = params(reset_after=False)
    assert set(before) == {"w_ih", "w_hh", "b_ih"}
    y, _ = run(prnn_jax.gru, x, prnn_jax.Params(**before), reset_after=False)
    close(run(layer.apply, {"params": before}, x), y)
    with pytest.raises(ValueError, match="recurrent_bias must be False"):
        params(reset_after=False, recurrent_bias=True)


def test_initial_parameters():
    features, hidden = 257, 61
    layer = layers.LSTM(hidden, bidirectional=True, param_dtype=jnp.bfloat16)
    params = layer.init(jax.random.key(0), jnp.zeros((1, 1, features)))["params"]
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    w_ih = params["w_ih"].astype(jnp.float32).reshape(2, features, 4, hidden)
    w_hh = params["w_hh"].astype(jnp.float32).reshape(2, hidden, 4, hidden)
    # Variance 1/fan_in. That of n samples is off by sqrt(2/n) of itself; 5 of those.
    variance = w_ih.var((1, 3)) * features
    np.testing.assert_allclose(variance, 1, atol=5 * np.sqrt(2 / (features * hidden)))
    # Orthogonal by gate, up to the rounding of bfloat16: 2^-9 of each factor.
    gram = jnp.einsum("dhgi,dhgj->dgij", w_hh, w_hh)
    np.testing.assert_allclose(
        gram, np.broadcast_to(np.eye(hidden), gram.shape), atol=2**-8
    )
    np.testing.assert_array_equal(params["b_ih"], 0)


# ---- dropout -------------------------------------------------------------------------


def test_dropout():
    layer = layers.LSTM(HIDDEN, recurrent_dropout_rate=0.4, zoneout_rate=(0.1, 0.2))
    x = normal(1, BATCH, TIME, IN)
    variables = layer.init(jax.random.key(0), x, deterministic=True)

    @jit
    def train(key):
        rngs = {"dropout": key}
        return layer.apply(variables, x, deterministic=False, rngs=rngs)

    first, second = train(jax.random.key(1)), train(jax.random.key(2))
    assert not np.allclose(first, second)
    close(first, train(jax.random.key(1)))

    params = prnn_jax.Params(**variables["params"])
    expected, _ = run(prnn_jax.lstm, x, params, zoneout=(0.2, 0.1))
    close(run(layer.apply, variables, x, deterministic=True), expected)
    quiet = layer.clone(deterministic=True)
    close(run(quiet.apply, variables, x), expected)
    with pytest.raises(Exception, match="deterministic"):  # Flax's own
        layer.apply(variables, x)


# ---- dtypes and transformations ------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "in_dtype", "out_dtype"),
    [
        (None, "bfloat16", "float32"),  # promoted
        ("bfloat16", "float32", "bfloat16"),
        (None, "int32", "float32"),
    ],
)
def test_dtypes(dtype, in_dtype, out_dtype):
    layer = layers.GRU(HIDDEN, dtype=dtype, return_carry=True)
    x = (3 * normal(1, BATCH, TIME, IN)).astype(in_dtype)
    variables = layer.init(jax.random.key(0), x)

    def loss(variables):
        carry, y = layer.apply(variables, x)
        return y.sum(), (carry, y)

    grads, out = jit(jax.grad(loss, has_aux=True))(variables)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert {a.dtype for a in jax.tree.leaves(out)} == {jnp.dtype(out_dtype)}


def test_vmap_over_parameters():
    many = nn.vmap(
        layers.GRU,
        in_axes=None,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        axis_size=3,
    )(HIDDEN)
    x = normal(1, BATCH, TIME, IN)
    variables = many.init(jax.random.key(0), x)
    assert variables["params"]["w_hh"].shape == (3, HIDDEN, 3 * HIDDEN)
    y = run(many.apply, variables, x)
    one = jit(layers.GRU(HIDDEN).apply)
    for n in range(3):
        close(y[n], one(jax.tree.map(lambda p: p[n], variables), x))  # noqa: B023


@pytest.mark.parametrize("implementation", ["native", "scan"])
def test_implementation_and_precision_are_what_runs(implementation, monkeypatch):
    monkeypatch.setattr(weight_products, "MAX_MULTIPLY_ADDS", 0)  # all are XLA's
    layer = layers.LSTM(HIDDEN, implementation=implementation, precision="highest")
    x = normal(1, BATCH, TIME, IN)
    variables = layer.init(jax.random.key(0), x[:0])
    gradient = jax.jit(jax.grad(lambda x: layer.apply(variables, x).sum()))
    program = gradient.lower(x).as_text()
    assert ("prnn_forward" in program) == (implementation == "native")
    assert "precision = [HIGHEST, HIGHEST]" in program


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (layers.LSTM, {"heads": 2}, r"heads must be .* features=11, got 2"),
        (layers.LSTM, {"merge": "mul"}, "merge must be one of"),
        (layers.GRU, {"bidirectional": True, "reverse": True}, "reverse must be False"),
        (layers.SLSTM, {"zoneout_rate": 0.1}, "slstm has no zoneout"),
        (layers.RNN, {"activation": "gelu"}, "activation must be one of"),
        (layers.RNN, {"features": 0}, "features must be at least 1, got 0"),
    ],
)
def test_options_that_do_not_fit(make, options, message):
    layer = make(**{"features": HIDDEN, **options})
    with pytest.raises(ValueError, match=message):
        layer.init(jax.random.key(0), jnp.ones((BATCH, TIME, IN)))


def test_calls_that_do_not_fit():
    layer, x = layers.LSTM(HIDDEN), jnp.ones((BATCH, TIME, IN))
    variables = layer.init(jax.random.key(0), x)
    h = jnp.zeros((BATCH, HIDDEN))
    with pytest.raises(ValueError, match=r"inputs must be \[.*\], got \[7\]"):
        layer.apply(variables, x[0, 0])
    with pytest.raises(ValueError, match=r"must be \(c, h\), each .*, features\]"):
        layer.apply(variables, x, initial_carry=h)
    with pytest.raises(ValueError, match="reset_carry is given without resets"):
        layer.apply(variables, x, reset_carry=(h, h))


def test_import_without_flax_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    monkeypatch.delitem(sys.modules, "prnn_jax.linen")
    with pytest.raises(ImportError, match=r'pip install "prnn_jax\[flax\]"'):
        import prnn_jax.linen  # noqa: F401


def test_sizes_of_the_input_are_not_told():
    with pytest.raises(ValueError, match=r"kernel_init must be .*got 11; layers of L"):
        layers.LSTM(IN, HIDDEN).init(jax.random.key(0), normal(0, 1, 1, IN))
    with pytest.raises(
        ValueError, match=r"dropout_rate must .*got 2; a stack of Linen"
    ):
        layers.Stack("gru", IN, HIDDEN, 2).init(jax.random.key(0), normal(0, 1, 1, IN))


@pytest.mark.parametrize(
    "layer",
    [layers.LSTM(HIDDEN), layers.SRU(HIDDEN), layers.Stack("gru", HIDDEN, 2)],
    ids=lambda layer: type(layer).__name__,
)
def test_to_params_takes_variables_or_what_is_in_them(layer):
    variables = layer.init(jax.random.key(0), normal(0, 1, 1, IN))
    same = layer.to_params(variables), layer.to_params(variables["params"])
    jax.tree.map(np.testing.assert_array_equal, *same)
    for other in ({"params": {"rnn": variables["params"]}}, variables["params"], 3):
        if other is variables["params"]:
            other = layers.RGLRU(IN).init(jax.random.key(0), normal(0, 1, 1, IN))
        with pytest.raises(
            ValueError, match=r"to_params: variables must be of the lay"
        ):
            layer.to_params(other)
    with pytest.raises(ValueError, match=r"input_shape must be .*, got 4"):
        layer.initialize_carry(jax.random.key(0), 4)
