"""Layers without a product in a step, of all host libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from linear_layers import (
    BATCH,
    HIDDEN,
    INPUT,
    LIBRARIES,
    TIME,
    assert_close,
    by_function,
    each_layer,
    each_library,
    inputs,
    made,
    sizes,
    states,
)
from support import assert_bitwise_equal

import prnn_jax


@each_library
@each_layer
def test_it_is_the_function_of_its_params(where, name):
    layer, x = made(where, name), inputs(name)
    assert_bitwise_equal(layer.run(x), by_function(name, layer.params, x))
    resets = np.arange(BATCH * TIME).reshape(BATCH, TIME) % 4 == 1
    for controls in (
        {"lengths": np.array([6, 0, 3]), "resets": resets, "reset_to": states(name)},
        {"mask": resets},
    ):
        found = layer.run(x, states(name), **controls)
        expected = by_function(name, layer.params, x, states(name), **controls)
        assert_bitwise_equal(found, expected)


@each_library
@each_layer
def test_reverse_both_ways_and_other_options(where, name):
    x = inputs(name)
    layer = made(where, name, reverse=True)
    assert_bitwise_equal(layer.run(x), by_function(name, layer.params, x, reverse=True))
    options = {"bidirectional": True, "merge": "sum"}
    layer = made(where, name, **options)
    state = states(name, (2,))
    expected = by_function(name, layer.params, x, state, **options)
    assert_bitwise_equal(layer.run(x, state), expected)
    bare = made(where, name, use_bias=False)
    params = bare.params.get("params")
    biases = [v for k, v in bare.params.items() if k.startswith("b_")]
    biases = [params.b_ih] if params else biases
    assert biases == [None] * (name != "LRU")
    assert bare.run(x)[0].shape == (BATCH, TIME, HIDDEN)


@each_library
@each_layer
def test_one_step_at_a_time(where, name):
    layer, x = made(where, name), inputs(name)
    y, last = layer.run(x)
    state, parts = layer.zeros(BATCH), []
    assert jax.tree.all(jax.tree.map(lambda s: not s.any(), state))
    for t in range(TIME):
        part, state = layer.run(x[:, t : t + 1], state)
        parts.append(part)
    assert_close((jnp.concatenate(parts, 1), state), (y, last))


@each_layer
def test_libraries_agree_on_shapes_and_time_major(name):
    x = inputs(name)
    shapes = []
    for where in LIBRARIES:
        layer = made(where, name)
        shapes.append(jax.tree.map(jnp.shape, layer.params))
        of_time = layer.run(np.moveaxis(x, 1, 0), time_major=True)
        y, state = layer.run(x)
        assert_close((jnp.moveaxis(of_time[0], 0, 1), of_time[1]), (y, state))
    assert shapes[0] == shapes[1] == shapes[2]


@each_layer
def test_gradients_and_dtypes(name):
    library("flax")
    from flax import nnx

    import prnn_jax.nnx

    take, hidden = sizes(name)
    kind = getattr(prnn_jax.nnx, name)
    layer = kind(take, hidden, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)

    def loss(layer):
        return (layer(inputs(name)).astype(jnp.float32) ** 2).sum()

    gradients = jax.tree.leaves(nnx.jit(nnx.grad(loss))(layer))
    assert len(gradients) >= 2
    assert all(np.isfinite(g).all() and np.any(g) for g in gradients)
    assert layer(inputs(name)).dtype == jnp.bfloat16


def test_outputs_of_a_reversed_flax_layer_are_in_the_order_of_processing():
    library("flax")
    from flax import nnx

    import prnn_jax.nnx

    layer = prnn_jax.nnx.MinGRU(INPUT, HIDDEN, reverse=True, rngs=nnx.Rngs(0))
    lengths = np.array([6, 0, 3])
    y = layer(inputs("MinGRU"), seq_lengths=lengths)
    kept = layer(inputs("MinGRU"), seq_lengths=lengths, keep_order=True)
    assert_bitwise_equal(y[0], kept[0, ::-1])
    assert_bitwise_equal(y[2, :3], kept[2, 2::-1])
    assert not y[1].any()


@each_library
def test_zoneout_of_the_qrnn(where):
    options = {"zoneout_rate": 0.5, "pooling": "f"}
    x = inputs("QRNN")
    off = {"inference": True} if where == "equinox" else {"deterministic": True}
    layer = made(where, "QRNN", **options)
    mean = prnn_jax.qrnn(x, **layer.params, pooling="f", zoneout=0.5)
    assert_bitwise_equal(layer.run(x, **off), mean)
    if where == "equinox":
        on = {"key": jax.random.key(3)}
        with pytest.raises(ValueError, match="key must be given to a layer that drops"):
            layer.run(x)
    elif where == "linen":
        on = {"rngs": {"dropout": jax.random.key(3)}, "deterministic": False}
    else:
        from flax import nnx

        on = {"rngs": nnx.Rngs(3)}
    y, _ = layer.run(x, **on)
    # What is drawn keeps the value of the step before it, bit by bit.
    same = np.asarray(y[:, 1:] == y[:, :-1])
    assert 0.3 < same.mean() < 0.7


@each_library
def test_parameters_begin_as_the_papers_have_them(where):
    wide = 1000

    def of(name, take=wide, **options):
        library(LIBRARIES[where])
        if where == "equinox":
            import prnn_jax.equinox

            make = getattr(prnn_jax.equinox, name)
            return make(take, wide, key=jax.random.key(0), **options).params
        if where == "nnx":
            from flax import nnx

            import prnn_jax.nnx

            make = getattr(prnn_jax.nnx, name)
            return make(take, wide, rngs=nnx.Rngs(0), **options).params
        import prnn_jax.linen

        layer = getattr(prnn_jax.linen, name)(wide, **options)
        variables = layer.init(jax.random.key(0), jnp.zeros((1, 1, take)))
        return layer.to_params(variables)

    log_a = -np.log1p(np.exp(-np.asarray(of("RGLRU")["decay"], np.float64)))
    kept = np.exp(8 * log_a)
    assert 0.9 <= kept.min() < 0.901
    assert 0.998 < kept.max() <= 0.9991
    u = of("IndRNN", 4)["params"].w_hh
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() <= 1
    u = of("IndRNN", 4, steps=10)["params"].w_hh
    assert 1.05 < u.max() <= 2**0.1
    params = of("SRU", 12, highway_bias=-2.0)
    assert 0.48 < np.abs(params["w_ih"]).max() <= 0.5  # √(3/12)
    assert_bitwise_equal(params["b_ih"], np.repeat(np.float32([0, -2]), wide))
    w = of("QRNN", 8)["w_ih"]
    assert np.std(w) == pytest.approx(1 / 4, rel=0.05)  # of 2 steps of 8 inputs
