"""The LSTM with a projection: what its controls mean, in layers, its errors."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from projected_support import HIDDEN, IN, OUT, ROWS, TIME, data, params_of
from support import assert_bitwise_equal

import prnn_jax

# ---- what controls mean --------------------------------------------------------------

X = data(ROWS, TIME, IN).astype(np.float32)
STATE = (
    data(ROWS, OUT, seed=1).astype(np.float32),
    data(ROWS, HIDDEN, seed=2).astype(np.float32),
)


@pytest.fixture(params=[None, "scan"], ids=str)
def lstm(request):
    return functools.partial(prnn_jax.lstm, implementation=request.param)


def assert_close(a, b):
    # The same operations on arrays of other shapes: a few roundings of float32.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), a, b
    )


def test_an_identity_is_none(lstm):
    params = params_of(size=HIDDEN)._replace(w_hr=np.eye(HIDDEN, dtype=np.float32))
    state = STATE[1], STATE[1]
    plain = lstm(X, params._replace(w_hr=None), state)
    assert_close(lstm(X, params, state), plain)


def test_resets_begin_anew(lstm):
    params = params_of()
    resets = np.zeros((ROWS, TIME), bool)
    resets[:, 4] = True
    y, state = lstm(X, params, resets=resets, reset_to=STATE)
    first, second = lstm(X[:, :4], params), lstm(X[:, 4:], params, STATE)
    assert_close((y, state), (np.concatenate([first[0], second[0]], 1), second[1]))


def test_a_recurrent_mask_scales_rows(lstm):
    params, mask = params_of(), np.float32([0, 2, 0.5])
    scaled = params._replace(w_hh=params.w_hh * mask[:, None])
    of_rows = np.broadcast_to(mask, (ROWS, OUT))
    ours = lstm(X, params, STATE, recurrent_mask=of_rows)
    assert_close(ours, lstm(X, scaled, STATE))


@pytest.mark.parametrize("masked_y", ["hold", "zero"])
def test_a_mask_leaves_steps_out(lstm, masked_y):
    params, mask = params_of(), np.ones((ROWS, TIME), bool)
    mask[:, [0, 3]] = False
    counts = [1, 2, 4, 5]
    y, state = lstm(X, params, STATE, mask=mask, masked_y=masked_y)
    short, last = lstm(X[:, counts], params, STATE)
    assert_close((y[:, counts], state), (short, last))
    between = (STATE[0], short[:, 1]) if masked_y == "hold" else (0 * STATE[0],) * 2
    assert_close((y[:, 0], y[:, 3]), between)


def test_merge_sums_directions(lstm):
    params = params_of(bidirectional=True)
    run = functools.partial(lstm, X, params, bidirectional=True)
    y = run()[0]
    assert y.shape == (ROWS, TIME, 2 * OUT)
    assert_close(run(merge="sum")[0], y[..., :OUT] + y[..., OUT:])


def test_recurrence_takes_it(lstm):
    params = params_of()
    a_x = X @ params.w_ih + params.b_ih
    implementation = lstm.keywords["implementation"]
    options = {"w_hr": params.w_hr, "implementation": implementation}
    ours = prnn_jax.recurrence("lstm", a_x, params.w_hh, STATE, **options)
    assert_close(ours, lstm(X, params, STATE))


# ---- init, layers --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["orthogonal", "keras", "pytorch"])
def test_init(scheme):
    params = params_of(scheme=scheme)
    assert params.w_hh.shape == (OUT, 4 * HIDDEN)
    assert params.w_hr.shape == (HIDDEN, OUT)
    if scheme == "pytorch":
        assert 0.5 < np.abs(params.w_hr).max() * math.sqrt(HIDDEN) <= 1
    else:
        of_columns = params.w_hr.T @ params.w_hr
        np.testing.assert_allclose(of_columns, np.eye(OUT), atol=1e-6)
    plain = prnn_jax.init("lstm", jax.random.key(0), IN, HIDDEN, scheme=scheme)
    assert_bitwise_equal(params.w_ih, plain.w_ih)  # nothing is drawn in another order
    several = params_of(size=4, scheme=scheme, heads=1, bidirectional=True)
    assert several.w_hr.shape == (2, 1, HIDDEN, 4)
    with pytest.raises(ValueError, match="heads must divide proj_size=3, got 7"):
        params_of(heads=7)
    with pytest.raises(
        ValueError, match="only the lstm has a projection, got 3 for gru"
    ):
        prnn_jax.init("gru", jax.random.key(0), IN, HIDDEN, proj_size=3)


def nnx_layer(params, x, **options):
    nnx = pytest.importorskip("flax.nnx")
    from prnn_jax.nnx import LSTM

    layer = LSTM.from_params(params, return_carry=True, **options)
    ((c, h), y) = layer(x)
    again = LSTM(IN, HIDDEN, proj_size=layer.proj_size, rngs=nnx.Rngs(0), **options)
    assert again.w_hr.shape == params.w_hr.shape
    assert jax.tree.map(jnp.shape, again.initialize_carry((ROWS, IN))) == (
        (ROWS, HIDDEN),
        (ROWS, OUT),
    )
    return y, (h, c), layer.params


def linen_layer(params, x, **options):
    pytest.importorskip("flax.linen")
    from prnn_jax.linen import LSTM

    layer, variables = LSTM.from_params(params, return_carry=True, **options)
    ((c, h), y) = layer.apply(variables, x)
    drawn = LSTM(HIDDEN, proj_size=OUT, **options).init(jax.random.key(0), x)
    assert drawn["params"]["w_hr"].shape == params.w_hr.shape
    return y, (h, c), layer.to_params(variables)


def equinox_layer(params, x, **options):
    pytest.importorskip("equinox")
    from prnn_jax.equinox import LSTM

    layer = LSTM.from_params(params, **options)
    assert layer.output_size == OUT
    y, state = layer(x)
    zeros = layer.zeros(ROWS)
    assert [a.shape for a in zeros] == [(ROWS, OUT), (ROWS, HIDDEN)]
    again = LSTM(IN, HIDDEN, proj_size=OUT, key=jax.random.key(0), **options)
    assert again.w_hr.shape == params.w_hr.shape
    return y, state, layer.params


LAYERS = [nnx_layer, linen_layer, equinox_layer]


@pytest.mark.parametrize("implementation", [None, "scan"])
@pytest.mark.parametrize("run", LAYERS)
def test_layers(run, implementation):
    params = params_of()
    y, state, back = run(params, X, implementation=implementation)
    expected = prnn_jax.lstm(X, params, implementation=implementation)
    assert_bitwise_equal((y, state), expected)
    assert_bitwise_equal(back, params)


@pytest.mark.parametrize("run", LAYERS)
@pytest.mark.parametrize("size", [OUT, None])
def test_layers_keep_it(run, size):
    params = params_of() if size is None else params_of()._replace(w_hr=None)
    wanted = "proj_size must be 3, which params have, or left out, got None"
    if size is not None:
        params = prnn_jax.init("lstm", jax.random.key(0), IN, HIDDEN)
        wanted = "proj_size must be None, which params have, or left out, got 3"
    with pytest.raises(ValueError, match=wanted):
        run(params, X, proj_size=size)


def stack_of(library, layers, x, **options):
    if library == "equinox":
        pytest.importorskip("equinox")
        from prnn_jax.equinox import Stack

        return Stack.from_params("lstm", layers, **options)(x)[0]
    pytest.importorskip("flax")
    if library == "nnx":
        from prnn_jax.nnx import Stack

        return Stack.from_params("lstm", layers, **options)(x)
    from prnn_jax.linen import Stack

    stack, variables = Stack.from_params("lstm", layers, options=options)
    return stack.apply(variables, x)


@pytest.mark.parametrize("library", ["nnx", "linen", "equinox"])
def test_stacks(library):
    make = functools.partial(prnn_jax.init, "lstm", bidirectional=True)
    layers = [
        make(jax.random.key(n), size, HIDDEN, proj_size=OUT)
        for n, size in enumerate((IN, 2 * OUT, 2 * OUT))
    ]
    y = stack_of(library, layers, X, implementation="scan")
    options = {"bidirectional": True, "implementation": "scan"}
    assert_close(y, prnn_jax.stack("lstm", X, layers, **options)[0])
    layers[-1] = make(jax.random.key(3), 2 * OUT, HIDDEN, proj_size=2)
    with pytest.raises(ValueError, match=r"as wide in all layers, .* got \[3, 3, 2\]"):
        stack_of(library, layers, X)


# ---- errors --------------------------------------------------------------------------

PARAMS = params_of()


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        ({"w_hr": PARAMS.w_hr.T}, {}, r"w_hr must be .*\[7, 3\], got \[3, 7\]; transp"),
        (
            {"w_hh": PARAMS.w_hh.T},
            {},
            r"w_hh must be .*\[3, 28\], got \[28, 3\]; trans",
        ),
        ({"w_hr": PARAMS.w_hr[:, :2]}, {}, r"w_hr must be .*\[7, 3\], got \[7, 2\]"),
        ({"w_hr": PARAMS.w_hr[None]}, {}, r"w_hr must be .*\[7, 3\], got \[1, 7, 3\]"),
        ({"w_hr": PARAMS.w_hr[0]}, {}, r"w_hr must be .*\[7, 3\], got \[3\]"),
        ({"w_hr": [[1.0]]}, {}, "w_hr must be an array, got list"),
        ({"w_hr": PARAMS.w_hr.astype("bfloat16")}, {}, "dtype, got .*w_hr bfloat16"),
        ({"w_hh": PARAMS.w_hh[:, :3]}, {}, r"w_hr must be .* with hidden >= 1, got"),
        ({"w_hh": PARAMS.w_hh[:0]}, {}, r"w_hh must be .* with projection >= 1, got"),
        ({"w_ih": PARAMS.w_ih[:, :4]}, {}, r"w_ih must be .*\[5, 28\], got \[5, 4\]"),
        (
            {},
            {"state_0": STATE[::-1]},
            r"h_0 must be \[\*batch, projection\] = \[4, 3\]",
        ),
        ({}, {"state_0": STATE[:1] * 2}, r"c_0 must be \[\*batch, hidden\] = \[4, 7\]"),
        (
            {},
            {"resets": np.zeros((ROWS, TIME)), "reset_to": STATE[::-1]},
            r"reset_to must be \[\*batch, projection\] = \[4, 3\], got \[4, 7\]",
        ),
        (
            {},
            {"recurrent_mask": STATE[1]},
            r"recurrent_mask must be \[\*batch, projection\] = \[4, 3\], got \[4, 7\]",
        ),
        ({}, {"zoneout": 0.1}, "zoneout must be None for the LSTM with a projection"),
    ],
    ids=str,
)
def test_what_does_not_fit(params, options, message):
    with pytest.raises(ValueError, match=message):
        prnn_jax.lstm(X, PARAMS._replace(**params), **options)


@pytest.mark.parametrize("cell", ["gru", "slstm", "rnn"])
def test_only_the_lstm_has_it(cell):
    params = prnn_jax.init(cell, jax.random.key(0), IN, HIDDEN)
    params = params._replace(w_hr=PARAMS.w_hr)
    with pytest.raises(ValueError, match="w_hr must be None, which only prnn_jax"):
        getattr(prnn_jax, cell)(X, params)
    with pytest.raises(ValueError, match="prepare: w_hr must be None"):
        prnn_jax.prepare(cell, params, batch=1, time=1)


def test_explain_tells():
    sizes = {"batch": 2, "time": 10, "hidden_size": 64, "proj_size": 16}
    assert prnn_jax.explain("lstm", **sizes, platform="cpu").engine == "native"
    assert prnn_jax.explain("lstm", **sizes, training=True).engine == "native"
    plan = prnn_jax.explain("lstm", **sizes, device="NVIDIA H200")
    assert plan.engine == "native"
    assert "w_hr w_hh is one matrix there" in str(plan)
    plan = prnn_jax.explain("lstm", **sizes, activation="softsign", platform="cpu")
    assert plan.engine == "native"
    with pytest.raises(ValueError, match="only the lstm has a projection, got 16"):
        prnn_jax.explain("gru", **sizes)
    prnn_jax.lstm(X, PARAMS, activation="elu", implementation="native")
