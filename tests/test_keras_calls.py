"""How prnn_jax.keras runs a call: dtypes, masks of one row, implementation."""

from typing import Any

import jax
import numpy as np
import pytest
from libraries import library

import prnn_jax

keras = library("keras")
import prnn_jax.keras as ours  # noqa: E402

NAMES = ["LSTM", "GRU", "SimpleRNN"]
BATCH, TIME, IN, UNITS = 4, 9, 5, 6
X = np.random.default_rng(0).standard_normal((BATCH, TIME, IN)).astype(np.float32)
ROW = np.arange(TIME)[None] % 3 > 0
#: Of sums of a few products below 4, in float32; Keras' loop has its own order.
CLOSE = {"rtol": 0, "atol": 1e-6}
STATES: dict[str, Any] = {"return_sequences": True, "return_state": True}


def leaves(results) -> list:
    return keras.tree.flatten(results)


def counting(layers, wrapper, dtype: str, inner: str):
    """Both ways a sum of all steps so far, which a half cannot count to the end."""
    layer = layers.SimpleRNN(
        1,
        activation="linear",
        use_bias=False,
        kernel_initializer="ones",
        recurrent_initializer="ones",
        dtype=inner,
        **STATES,
    )
    return wrapper(layer, dtype=dtype)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_layers_of_more_digits_than_what_is_around_them(half):
    ones = np.full((1, 500, 1), 200, np.float32)  # to 100000, which no float16 is
    theirs = counting(
        keras.layers, keras.layers.Bidirectional, f"mixed_{half}", "float32"
    )
    layer = counting(ours, ours.Bidirectional, f"mixed_{half}", "float32")
    wanted, made = leaves(theirs(ones)), leaves(layer(ones))
    assert [one.dtype for one in made] == [half, "float32", "float32"]
    for one, its in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one, its)
    assert float(made[1][0, 0]) == 100000
    # Nor are weights rounded on the way.
    layer.forward_layer.cell.kernel.assign([[1 + 2**-20]])
    assert float(layer(ones)[1][0, 0]) > 100000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("around", "inner", "backward"),
    [
        ("float32", "mixed_bfloat16", "mixed_bfloat16"),
        ("mixed_bfloat16", "float32", "float32"),
        ("mixed_bfloat16", "mixed_bfloat16", "float32"),
        ("float32", "float32", "mixed_float16"),
    ],
)
def test_each_side_runs_in_its_own_dtype(name, around, inner, backward):
    def both(layers):
        make = getattr(layers, name)
        return layers.Bidirectional(
            make(UNITS, dtype=inner, **STATES),
            backward_layer=make(UNITS, go_backwards=True, dtype=backward, **STATES),
            dtype=around,
        )

    theirs, layer = both(keras.layers), both(ours)
    for one in (theirs, layer):
        one.build(X.shape)
    layer.set_weights(theirs.get_weights())
    made = leaves(layer(X))
    assert [one.dtype for one in made] == [one.dtype for one in leaves(theirs(X))]
    x = keras.ops.cast(X, layer.compute_dtype)
    sides = layer.forward_layer(x), layer.backward_layer(x)
    pair = [keras.ops.cast(one[0], layer.compute_dtype) for one in sides]
    y = keras.ops.concatenate([pair[0], keras.ops.flip(pair[1], 1)], -1)
    wanted = [y, *sides[0][1:], *sides[1][1:]]
    for one, its in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one, its)


@pytest.mark.parametrize("name", [*NAMES, "MinGRU"])
def test_without_autocast_cells_cast_their_input(name):
    """As Keras' do, whose GRU's scan refuses the dtypes then."""
    usual, layer = (
        getattr(ours, name)(UNITS, dtype="mixed_bfloat16", autocast=autocast, **STATES)
        for autocast in (True, False)
    )
    for one in (usual, layer):
        one.build(X.shape)
    layer.set_weights(usual.get_weights())
    count = len(leaves(layer(X))) - 1
    states = [np.ones((len(X), UNITS), np.float16)] * count
    for given in {}, {"initial_state": states}:
        calls = (leaves(one(X, **given)) for one in (layer, usual))
        for one, its in zip(*calls, strict=True):
            assert one.dtype == its.dtype == "bfloat16"
            np.testing.assert_array_equal(one, its)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_cudnn_is_not_called_instead(name):
    """Keras' Bidirectional calls it on a GPU, where it knows the layers."""
    clip = prnn_jax.Clip(0.1)
    inner = getattr(ours, name)(UNITS, clip=clip)
    wrapped = keras.layers.Bidirectional(inner)
    for layer in (wrapped.forward_layer, wrapped.backward_layer):
        assert layer.use_cudnn is False
    layer = ours.Bidirectional(getattr(ours, name)(UNITS))
    layer.build(X.shape)
    assert layer.forward_layer.use_cudnn == "auto"
    assert layer._can_attempt_fused_lstm(None, None) is False
    assert layer._can_attempt_fused_gru(None, None) is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_mask_of_one_row_is_that_of_all(name, both_ways):
    made = []
    for layers in (keras.layers, ours):
        layer = getattr(layers, name)(UNITS, **STATES)
        made.append(layers.Bidirectional(layer) if both_ways else layer)
        made[-1].build(X.shape)
    theirs, layer = made
    layer.set_weights(theirs.get_weights())
    results = [leaves(one(X, mask=ROW)) for one in (layer, theirs)]
    for one, its in zip(*results, strict=True):
        np.testing.assert_allclose(one, its, **CLOSE)


def test_a_mask_of_one_row_of_cells_that_keras_has_not():
    layer = ours.MinGRU(UNITS, **STATES)
    wanted = layer(X, mask=np.repeat(ROW, BATCH, 0))
    for one, its in zip(leaves(layer(X, mask=ROW)), leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, its)


def both_of(name: str, **options):
    """A layer, and what is around two of them."""
    inner = getattr(ours, name)(UNITS, return_sequences=True, **options)
    return inner, ours.Bidirectional(inner)


@pytest.mark.parametrize("name", [*NAMES, "MinGRU"])
def test_a_layer_of_scans_can_be_exported(name):
    pairs = zip(both_of(name), both_of(name, implementation="scan"), strict=True)
    for usual, scanned in pairs:
        for layer in (usual, scanned):
            layer.build(X.shape)
        scanned.set_weights(usual.get_weights())
        np.testing.assert_allclose(scanned(X), usual(X), **CLOSE)
        plan = scanned.explain(BATCH, TIME)
        assert plan.engine == "scan"
        assert 'implementation="scan"' in plan.reasons[0]
        with pytest.raises(ValueError, match="custom calls whose targets"):
            jax.export.export(jax.jit(usual.__call__))(X)
        rows = jax.export.symbolic_shape("rows, time")
        x = jax.ShapeDtypeStruct((*rows, IN), X.dtype)
        program = jax.export.export(jax.jit(scanned.__call__))(x)
        np.testing.assert_allclose(program.call(X), scanned(X), **CLOSE)


@pytest.mark.parametrize("name", [*NAMES, "MinGRU"])
def test_implementation_is_saved(name):
    for layer in both_of(name, implementation="scan"):
        again: Any = type(layer).from_config(layer.get_config())
        assert getattr(again, "forward_layer", again).implementation == "scan"
    inner, _ = both_of(name)
    config = inner.get_config()
    assert "implementation" not in config  # as in files of before
    assert type(inner).from_config(config).implementation is None


def test_implementations_of_each_direction():
    layers = [
        ours.GRU(UNITS),
        ours.GRU(UNITS, go_backwards=True, implementation="scan"),
    ]
    layer = ours.Bidirectional(layers[0], backward_layer=layers[1])
    assert layer(X).shape == (BATCH, 2 * UNITS)
    assert "not alike" in layer._refusal(False, None)


def test_keras_own_implementations():
    """Numbers, about masks of dropout."""
    assert ours.GRU(UNITS, implementation=1).cell.implementation == 1
    assert ours.GRU(UNITS, implementation=1).implementation is None


@pytest.mark.parametrize("name", [*NAMES, "MinGRU"])
def test_other_implementations_are_an_error(name):
    with pytest.raises(ValueError, match=f"{name}: implementation must be one of None"):
        getattr(ours, name)(UNITS, implementation="fast")


def test_keras_own_code_is_no_engine():
    layer = ours.LSTM(UNITS, activation="gelu", implementation="native")
    with pytest.raises(ValueError, match="must not be 'native' where Keras' own code"):
        layer(X)
