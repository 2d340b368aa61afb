"""Bounds inside of steps, of layers and stacks of all libraries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_support import BATCH, HIDDEN, IN, TIME, close, normal
from libraries import library

import prnn_jax
from prnn_jax import Clip

X = normal(0, BATCH, TIME, IN)
PRE = Clip(pre_activations=0.5, gradients=0.1)
CLIPS = {"lstm": PRE._replace(state=(-0.25, 0.5)), "gru": PRE, "rnn": PRE}
LAYERS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
each_cell = pytest.mark.parametrize("cell", CLIPS)


def params_of(cell: str, bidirectional: bool = False) -> prnn_jax.Params:
    return prnn_jax.init(
        cell,
        jax.random.key(1),
        IN,
        HIDDEN,
        scheme="pytorch",
        bidirectional=bidirectional,
    )


def with_gradient(run, params):
    """y of `run(params)`, and the gradient of the sum of its squares."""
    y, vjp = jax.vjp(run, params)
    return y, vjp(2 * y)[0].w_hh


def of_function(cell: str, params, **options):
    def run(params):
        return getattr(prnn_jax, cell)(X, params, clip=CLIPS[cell], **options)[0]

    y, gradient = with_gradient(run, params)
    plain = getattr(prnn_jax, cell)(X, params, **options)[0]
    assert abs(y - plain).max() > 0.01
    return y, gradient


@each_cell
def test_nnx(cell):
    library("flax")
    from prnn_jax import nnx

    def run(params):
        make = getattr(nnx, LAYERS[cell])
        return make.from_params(params, clip=CLIPS[cell])(X)

    params = params_of(cell)
    ours, wanted = with_gradient(run, params), of_function(cell, params)
    close(ours, wanted)


@each_cell
def test_linen(cell):
    library("flax")
    from prnn_jax import linen

    def run(params):
        make = getattr(linen, LAYERS[cell])
        layer, variables = make.from_params(params, clip=CLIPS[cell])
        assert hash(layer)
        return layer.apply(variables, X)

    params = params_of(cell)
    ours, wanted = with_gradient(run, params), of_function(cell, params)
    close(ours, wanted)


@each_cell
def test_equinox(cell):
    library("equinox")
    from prnn_jax import equinox

    def run(params):
        make = getattr(equinox, LAYERS[cell])
        return make.from_params(params, clip=CLIPS[cell])(X)[0]

    params = params_of(cell)
    ours, wanted = with_gradient(run, params), of_function(cell, params)
    close(ours, wanted)


def as_list(clip: Clip) -> Clip:
    """With what makes it no key of a dictionary."""
    return clip._replace(state=None if clip.state is None else list(clip.state))


@each_cell
def test_stacks(cell):
    library("flax")
    library("equinox")
    from prnn_jax import equinox, linen, nnx

    params = [params_of(cell)]
    wanted, _ = prnn_jax.stack(cell, X, params, clip=CLIPS[cell])
    options = {"clip": as_list(CLIPS[cell])}
    close(nnx.Stack.from_params(cell, params, **options)(X), wanted)
    layer, variables = linen.Stack.from_params(cell, params, options=options)
    assert hash(layer)
    close(layer.apply(variables, X), wanted)
    close(equinox.Stack.from_params(cell, params, **options)(X)[0], wanted)


@each_cell
def test_keras(cell):
    library("keras")
    from prnn_jax import keras as ours

    name = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}[cell]
    params = params_of(cell)
    if cell != "gru":
        params = params._replace(b_ih=params.b_ih + params.b_hh, b_hh=None)
    make = functools.partial(
        getattr(ours, name).from_params, return_sequences=True, clip=CLIPS[cell]
    )
    layer = make(params)
    wanted, _ = of_function(cell, params)
    np.testing.assert_allclose(layer(X), wanted, rtol=0, atol=1e-6)
    assert layer.explain(BATCH, TIME).engine == "native"
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.clip == layer.clip
    again.build((None, None, IN))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(X), layer(X))
    assert "clip" not in getattr(ours, name)(3).get_config()


def test_keras_both_ways():
    library("keras")
    from prnn_jax import keras as ours

    params = params_of("lstm", bidirectional=True)
    params = params._replace(b_ih=params.b_ih + params.b_hh, b_hh=None)
    layer = ours.Bidirectional.from_params(
        ours.LSTM, params, return_sequences=True, clip=CLIPS["lstm"]
    )
    wanted, _ = of_function("lstm", params, bidirectional=True)
    np.testing.assert_allclose(layer(X), wanted, rtol=0, atol=1e-6)


def test_keras_files_keep_it(tmp_path):
    keras = library("keras")
    from prnn_jax import keras as ours

    layer = ours.LSTM(HIDDEN, return_sequences=True, clip=CLIPS["lstm"])
    model = keras.Sequential([keras.Input((None, IN)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[0].clip == CLIPS["lstm"]
    np.testing.assert_array_equal(again(X), model(X))


def test_what_keras_runs_itself_has_none():
    library("keras")
    from prnn_jax import keras as ours

    layer = ours.LSTM(HIDDEN, clip=PRE, recurrent_dropout=0.5)
    layer(X)
    with pytest.raises(ValueError, match="clip must be None where Keras' own code"):
        layer(X, training=True)
    with pytest.raises(ValueError, match=r"GRU: clip.state must be None for the gru"):
        ours.GRU(HIDDEN, clip=Clip(state=1.0))
    with pytest.raises(ValueError, match=r"LSTM: clip.projection must be None, for Ke"):
        ours.LSTM(HIDDEN, clip=Clip(projection=1.0))


def test_layers_that_have_none_say_so():
    library("flax")
    library("equinox")
    from flax import nnx as flax_nnx

    from prnn_jax import equinox, linen, nnx

    key, message = jax.random.key(0), "clip must be None for the slstm"
    with pytest.raises(ValueError, match=message):
        nnx.SLSTM(IN, HIDDEN, clip=PRE, rngs=flax_nnx.Rngs(0))
    with pytest.raises(ValueError, match=message):
        linen.SLSTM(HIDDEN, clip=PRE).init(key, X)
    with pytest.raises(ValueError, match=message):
        equinox.SLSTM(IN, HIDDEN, clip=PRE, key=key)
    with pytest.raises(ValueError, match="LSTM, GRU and RNN have it"):
        nnx.MinGRU(IN, HIDDEN, clip=PRE, rngs=flax_nnx.Rngs(0))


def test_cells_of_libraries_have_none():
    library("flax")
    library("equinox")
    from flax import nnx as flax_nnx

    from prnn_jax import equinox, nnx

    layer = nnx.LSTM(IN, HIDDEN, clip=PRE, rngs=flax_nnx.Rngs(0))
    with pytest.raises(ValueError, match="clip must be None for a cell of Flax"):
        layer.to_cell()
    layer = equinox.LSTM(IN, HIDDEN, clip=PRE, key=jax.random.key(0))
    with pytest.raises(ValueError, match="Equinox has no cell with bounds"):
        layer.to_cell()


def test_statistics_see_what_is_shut():
    params = [params_of("lstm")]
    shut = [
        prnn_jax.statistics("lstm", X, params, clip=clip)[0].saturation["o"]
        for clip in (None, Clip(pre_activations=0.2))
    ]
    assert shut[0] == 0.0
    assert shut[1] > 0.25


def test_a_loop_of_equal_layers():
    params = prnn_jax.init("lstm", jax.random.key(0), HIDDEN, HIDDEN)
    layers = [jax.tree.map(lambda w, n=n: w * (1 + n / 20), params) for n in range(9)]
    x = normal(1, BATCH, TIME, HIDDEN)
    y, _ = prnn_jax.stack("lstm", x, layers, clip=CLIPS["lstm"])
    for layer in layers:
        x, _ = prnn_jax.lstm(x, layer, clip=CLIPS["lstm"])
    np.testing.assert_allclose(y, x, rtol=0, atol=1e-6)
    assert jnp.isfinite(y).all()
