"""Parameters to and from the cells of Flax and Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import prnn_jax.equinox
import prnn_jax.nnx
from prnn_jax import Params
from prnn_jax.convert._shared import layouts

IN, HIDDEN = 5, 3
LAYOUTS = {
    **{f"nnx-{name}": layout for name, layout in layouts.NNX.items()},
    **{f"equinox-{name}": layout for name, layout in layouts.EQUINOX.items()},
}
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def equal(left, right):
    """Two trees are the same, bit by bit."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def random_params(cell, *lead, b_hh=False):
    draw = np.random.default_rng(0).standard_normal
    wide = GATES[cell] * HIDDEN
    shapes = (*lead, IN, wide), (*lead, HIDDEN, wide), (*lead, wide), (*lead, wide)
    params = Params(*(jnp.asarray(draw(shape, np.float32)) for shape in shapes))
    return params if b_hh else params._replace(b_hh=None)


# ---- the table -----------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2, 4)], ids=["one", "ensemble"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_from_params_and_back(layout, lead):
    params = random_params(layout.cell, *lead)
    if layout.bias_n is not None:
        params = layouts.join_biases(*params[:3], params.b_ih[..., :HIDDEN])
    arrays = layouts.from_params(layout, params)
    assert set(arrays) == set(layout.names)
    equal(layouts.to_params(layout, arrays), params)


def test_gates_are_found_by_name_and_turned():
    lstm, eqx_gru = layouts.NNX["LSTMCell"], layouts.EQUINOX["GRUCell"]
    params = random_params("lstm")
    arrays = layouts.from_params(lstm, params)
    for gate, (x, h) in enumerate([("ii", "hi"), ("if_", "hf"), ("ig", "hg")]):
        columns = np.s_[..., gate * HIDDEN : (gate + 1) * HIDDEN]
        equal(arrays[f"{x}.kernel"], params.w_ih[columns])
        equal(arrays[f"{h}.kernel"], params.w_hh[columns])
        equal(arrays[f"{h}.bias"], params.b_ih[columns])
    params = random_params("gru")
    arrays = layouts.from_params(eqx_gru, params)
    equal(arrays["weight_ih"], params.w_ih.T)
    equal(arrays["bias_n"], jnp.zeros(HIDDEN))  # the cell has one; it must not act


def test_missing_biases():
    layout = layouts.EQUINOX["GRUCell"]
    params = random_params("gru")._replace(b_ih=None)
    arrays = layouts.from_params(layout, params)
    assert arrays["bias"] is arrays["bias_n"] is None
    equal(layouts.to_params(layout, arrays), params)


@pytest.mark.parametrize("cell", GATES)
def test_separate_biases_computes_the_same(cell):
    params = random_params(cell, b_hh=True)
    *_, bias, bias_n = separate = layouts.separate_biases(cell, params)
    assert (bias_n is not None) == (cell == "gru")
    same = layouts.join_biases(*separate)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 4, IN), np.float32))
    function = getattr(prnn_jax, cell)
    # Biases are added in another order: some units in the last place of values below 1.
    np.testing.assert_allclose(function(x, params)[0], function(x, same)[0], atol=1e-6)
    only_b_hh = layouts.separate_biases(cell, params._replace(b_ih=None))
    np.testing.assert_allclose(only_b_hh[2] + params.b_ih, bias, atol=1e-6)


def test_a_bias_that_the_cell_has_no_place_for():
    params = random_params("gru", b_hh=True)
    with pytest.raises(ValueError, match="b_hh must be None"):
        layouts.from_params(layouts.NNX["GRUCell"], params)


@pytest.mark.parametrize("count", [1, 2])
def test_directions(count):
    sides = [random_params("gru", b_hh=True), random_params("gru", b_hh=True)][:count]
    params = layouts.stack_directions(sides)
    assert params.w_hh.shape == (2,) * (count - 1) + (HIDDEN, 3 * HIDDEN)
    back = layouts.split_directions(params, count == 2)
    equal(list(back), sides)


# ---- flax.nnx ------------------------------------------------------------------------

FLAX = {
    "optimized-lstm": (prnn_jax.nnx.LSTM, nnx.OptimizedLSTMCell, {}),
    "lstm": (prnn_jax.nnx.LSTM, nnx.LSTMCell, {}),
    "gru": (prnn_jax.nnx.GRU, nnx.GRUCell, {"dtype": jnp.bfloat16}),
    "simple": (prnn_jax.nnx.RNN, nnx.SimpleCell, {"dtype": None}),
    "simple-relu-residual": (
        prnn_jax.nnx.RNN,
        nnx.SimpleCell,
        {"activation_fn": jax.nn.relu, "residual": True, "param_dtype": jnp.bfloat16},
    ),
}


def flax_cell(cell_type, options, seed=0):
    init = {"bias_init": jax.nn.initializers.normal()}
    if "param_dtype" in options:  # the default, orthogonal, is for float32 only
        init["recurrent_kernel_init"] = jax.nn.initializers.normal()
    return cell_type(IN, HIDDEN, **init, **options, rngs=nnx.Rngs(seed))


@pytest.mark.parametrize("name", FLAX)
def test_flax_round_trip(name):
    layer_type, cell_type, options = FLAX[name]
    cells = flax_cell(cell_type, options), flax_cell(cell_type, options, 1)
    to_cell = {} if layer_type is not prnn_jax.nnx.LSTM else {"cell_type": cell_type}

    one = layer_type.from_cell(cells[0], time_major=True)
    assert one.time_major
    assert (one.in_features, one.hidden_features) == (IN, HIDDEN)
    pair = layer_type.from_cell(cells, merge="sum")
    assert pair.bidirectional
    assert pair.merge == "sum"
    assert pair.w_ih.shape == (2, *one.w_ih.shape)

    back = [one.to_cell(**to_cell), *pair.to_cell(**to_cell)]
    for cell, again in zip([cells[0], *cells], back, strict=True):
        assert type(again) is cell_type
        for attribute in ("dtype", "param_dtype", *options):
            assert getattr(again, attribute) == getattr(cell, attribute)
        equal(nnx.state(again, nnx.Param), nnx.state(cell, nnx.Param))
        equal(layer_type.from_cell(again).params, layer_type.from_cell(cell).params)


def test_flax_lstm_changes_its_cell():
    cell = flax_cell(nnx.LSTMCell, {})
    optimized = prnn_jax.nnx.LSTM.from_cell(cell).to_cell()
    assert type(optimized) is nnx.OptimizedLSTMCell
    equal(optimized.dense_h.bias[..., HIDDEN : 2 * HIDDEN], cell.hf.bias[...])


def test_flax_carry_init_is_taken_over():
    carry_init = jax.nn.initializers.normal()
    with pytest.warns(UserWarning, match="carry_init"):  # Flax's own
        cell = nnx.GRUCell(IN, HIDDEN, carry_init=carry_init, rngs=nnx.Rngs(0))
    layer = prnn_jax.nnx.GRU.from_cell(cell)
    assert layer.carry_init is carry_init
    with pytest.warns(UserWarning, match="carry_init"):
        assert layer.to_cell().carry_init is carry_init


def test_flax_recurrent_bias_can_be_added():
    cell = flax_cell(nnx.GRUCell, {})
    layer = prnn_jax.nnx.GRU.from_cell(cell, recurrent_bias=True)
    equal(layer.b_hn[...], jnp.zeros(HIDDEN))
    equal(layer.w_hh[...], cell.dense_h.kernel[...])


class _Cell(nnx.GRUCell):
    pass


@pytest.mark.parametrize(
    ("layer_type", "cell_type", "options", "message"),
    [
        (
            prnn_jax.nnx.LSTM,
            nnx.GRUCell,
            {},
            r"must be nnx.OptimizedLSTMCell or nnx.LSTMCell \(.*, got GRUCell",
        ),
        (prnn_jax.nnx.GRU, _Cell, {}, "must be nnx.GRUCell .* got _Cell"),
        (
            prnn_jax.nnx.GRU,
            nnx.GRUCell,
            {"gate_fn": jax.nn.silu},
            "gate_fn must be one of tanh, sigmoid, .* got silu; keep nnx.RNN",
        ),
        (
            prnn_jax.nnx.LSTM,
            nnx.LSTMCell,
            {"activation_fn": jax.nn.selu},
            "activation_fn must be one of tanh, .* got selu; keep nnx.RNN",
        ),
        (
            prnn_jax.nnx.RNN,
            nnx.SimpleCell,
            {"activation_fn": jax.nn.gelu},
            "activation_fn must be one of tanh, .* got gelu",
        ),
        (
            prnn_jax.nnx.LSTM,
            nnx.OptimizedLSTMCell,
            {"promote_dtype": lambda arrays, dtype: arrays},
            "promote_dtype must be Flax's own, got <lambda>",
        ),
    ],
)
def test_flax_cells_that_do_not_fit(layer_type, cell_type, options, message):
    with pytest.raises(
        ValueError, match=f"{layer_type.__name__}.from_cell: .*{message}"
    ):
        layer_type.from_cell(flax_cell(cell_type, options))


def test_flax_pairs_that_do_not_fit():
    cells = flax_cell(nnx.GRUCell, {}), flax_cell(nnx.GRUCell, {"dtype": jnp.bfloat16})
    with pytest.raises(ValueError, match="both cells must have the same sizes, dtypes"):
        prnn_jax.nnx.GRU.from_cell(cells)
    with pytest.raises(ValueError, match=r"a pair .*got 3 values"):
        prnn_jax.nnx.GRU.from_cell((*cells, cells[0]))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (prnn_jax.nnx.GRU, {"reset_after": False}, "reset_after=True, got False"),
        (prnn_jax.nnx.GRU, {"recurrent_bias": True}, "recurrent_bias=False, got True"),
        (prnn_jax.nnx.RNN, {"skip": 0.5}, "skip must be 0 or 1 .* got 0.5"),
        (
            prnn_jax.nnx.RNN,
            {"activation": "clipped_relu"},
            "activation must be one of 'tanh', .* got 'clipped_relu'",
        ),
    ],
)
def test_flax_has_no_such_cell(make, options, message):
    layer = make(IN, HIDDEN, rngs=nnx.Rngs(0), **options)
    with pytest.raises(ValueError, match=message):
        layer.to_cell()


def test_flax_cell_type_must_fit():
    layer = prnn_jax.nnx.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"cell_type must be .*, got GRUCell"):
        layer.to_cell(nnx.GRUCell)


# ---- equinox -------------------------------------------------------------------------

EQUINOX = {
    "lstm": (prnn_jax.equinox.LSTM, eqx.nn.LSTMCell),
    "gru": (prnn_jax.equinox.GRU, eqx.nn.GRUCell),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_round_trip(name, use_bias, dtype):
    layer_type, cell_type = EQUINOX[name]
    keys = jax.random.split(jax.random.key(0))
    cells = tuple(cell_type(IN, HIDDEN, use_bias, dtype, key=key) for key in keys)

    one = layer_type.from_cell(cells[0], reverse=True)
    assert one.reverse
    assert (one.input_size, one.hidden_size) == (IN, HIDDEN)
    assert one.w_ih.dtype == dtype
    equal(one.w_hh, cells[0].weight_hh.T)
    equal(one.to_cell(), cells[0])

    pair = layer_type.from_cell(cells, merge="sum")
    assert pair.bidirectional
    assert pair.merge == "sum"
    equal(pair.to_cell(), cells)


def test_equinox_ensemble():
    make = eqx.filter_vmap(lambda key: eqx.nn.GRUCell(IN, HIDDEN, key=key))
    cells = make(jax.random.split(jax.random.key(0), 4))
    layer = prnn_jax.equinox.GRU.from_cell(cells)
    assert layer.w_ih.shape == (4, IN, 3 * HIDDEN)
    equal(layer.to_cell(), cells)


def test_equinox_cells_that_do_not_fit():
    key = jax.random.key(0)
    gru = eqx.nn.GRUCell(IN, HIDDEN, key=key)
    with pytest.raises(ValueError, match=r"must be eqx.nn.LSTMCell .*, got GRUCell"):
        prnn_jax.equinox.LSTM.from_cell(gru)
    no_bias = eqx.nn.GRUCell(IN, HIDDEN, use_bias=False, key=key)
    with pytest.raises(ValueError, match="both cells must have the same"):
        prnn_jax.equinox.GRU.from_cell((gru, no_bias))
    with pytest.raises(ValueError, match=r"a pair .*got 3 values"):
        prnn_jax.equinox.GRU.from_cell((gru, gru, gru))
    with pytest.raises(TypeError, match="reset_after"):
        prnn_jax.equinox.GRU.from_cell(gru, reset_after=False)


def test_equinox_has_no_such_cell():
    key = jax.random.key(0)
    layer = prnn_jax.equinox.GRU(IN, HIDDEN, reset_after=False, key=key)
    with pytest.raises(ValueError, match="reset_after=True, got False"):
        layer.to_cell()
    assert not hasattr(prnn_jax.equinox.RNN, "from_cell")
