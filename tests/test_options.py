"""Options as users write them: NumPy's and JAX's scalars, precisions, lists."""

import functools
import re

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core import FrozenDict
from jax import lax
from support import assert_bitwise_equal

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx
from prnn_jax import Params
from prnn_jax._call.call import Call

IN, HIDDEN, TIME, BATCH = 3, 4, 5, 2
X = jnp.asarray(np.random.default_rng(1).standard_normal((BATCH, TIME, IN)), "float32")
KEY = jax.random.key(0)


def some(gates: int = 4, *lead: int) -> Params:
    wide = gates * HIDDEN
    shapes = (*lead, IN, wide), (*lead, HIDDEN, wide), (*lead, wide)
    draw = np.random.default_rng(0).standard_normal
    return Params(*(jnp.asarray(draw(shape), jnp.float32) for shape in shapes))


def raises(*parts: str):
    return pytest.raises(ValueError, match=".*".join(map(re.escape, parts)))


def program(function, **options) -> str:
    """What is traced: the same text for the same call."""
    return str(jax.make_jaxpr(lambda: function(**options))())


LSTM = functools.partial(prnn_jax.lstm, X, some())
RNN = functools.partial(prnn_jax.rnn, X, some(1))
GRU = functools.partial(prnn_jax.gru, X, some(3))
STACK = functools.partial(prnn_jax.stack, "gru", X, [some(3)])
A_X, W_HH = jnp.ones((BATCH, TIME, 3 * HIDDEN)), jnp.ones((HIDDEN, 3 * HIDDEN))
RECURRENCE = functools.partial(prnn_jax.recurrence, "gru", A_X, W_HH)


def prepare(**options):
    return prnn_jax.prepare("gru", some(3), batch=1, time=1, **options)


def explain(**options):
    sizes = {"batch": 2, "time": 3, "hidden_size": 4}
    plan = prnn_jax.explain("gru", **{**sizes, **options})
    return jnp.zeros(hash(str(plan)) % 97)


# ---- True or False -------------------------------------------------------------------

FLAGS = {
    "reverse": (LSTM, "lstm"),
    "time_major": (LSTM, "lstm"),
    "reset_after": (GRU, "gru"),
    "recurrence: reverse": (RECURRENCE, "recurrence"),
    "recurrence: reset_after": (RECURRENCE, "recurrence"),
    "stack: time_major": (STACK, "stack"),
    "stack: reset_after": (STACK, "stack"),
    "stack: skip_connections": (STACK, "stack"),
    "prepare: reset_after": (prepare, "prepare"),
    "explain: training": (explain, "explain"),
}
TRUE = {"numpy": np.True_, "one": 1, "integer": np.int8(1), "jax": jnp.array(True)}
FALSE = {"numpy": np.False_, "zero": 0, "array": np.array(0), "jax": jnp.array(False)}


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name):
    function, op = FLAGS[name]
    name = name.rpartition(" ")[2]
    for known, given in ((True, TRUE), (False, FALSE)):
        expected = program(function, **{name: known})
        for value in given.values():
            assert program(function, **{name: value}) == expected
    for wrong in (2, 1.0, "True", None, np.ones(1, bool)):
        with raises(f"{op}: {name} must be True or False", f"got {wrong!r}."):
            function(**{name: wrong})
    with raises(f"{op}: {name} must be", "Tracer", f"static_argnames={name!r})"):
        jax.jit(lambda value: function(**{name: value}))(True)


def test_bidirectional_by_numpy():
    params = some(4, 2)
    y, _ = prnn_jax.lstm(X, params, bidirectional=np.True_)
    assert_bitwise_equal(y, prnn_jax.lstm(X, params, bidirectional=True)[0])


# ---- numbers -------------------------------------------------------------------------

SCALARS = [np.float32(0.25), np.float64(0.25), np.array(0.25), jnp.float32(0.25)]


@pytest.mark.parametrize("implementation", [None, "scan"])
def test_zoneout_is_a_number_of_any_kind(implementation):
    run = functools.partial(LSTM, implementation=implementation)
    expected = run(zoneout=0.25)
    for value in SCALARS:
        assert_bitwise_equal(run(zoneout=value), expected)
    assert_bitwise_equal(run(zoneout=(np.float32(0.25), 0.25)), expected)
    # Another program, whose sums of numbers below 1 may be rounded otherwise.
    rounding = {"rtol": 1e-6, "atol": np.finfo(np.float32).eps}
    traced = jax.jit(lambda k: run(zoneout=k))(0.25)
    np.testing.assert_allclose(traced[0], expected[0], **rounding)
    pair = jax.jit(lambda k: run(zoneout=(k, 0.25)))(jnp.bfloat16(0.25))
    np.testing.assert_allclose(pair[0], expected[0], **rounding)
    each = jax.vmap(lambda k: run(zoneout=k)[0])(jnp.array([0.25, 0.0]))
    np.testing.assert_allclose(each[0], expected[0], **rounding)
    np.testing.assert_allclose(each[1], run()[0], **rounding)


@pytest.mark.parametrize("wrong", [np.nan, np.float32(np.nan), jnp.float32(-1), 1.5])
def test_zoneout_is_from_0_to_1(wrong):
    with raises("lstm: zoneout must be from 0 to 1, got"):
        LSTM(zoneout=wrong)


@pytest.mark.parametrize("name", ["cap", "skip"])
def test_cap_and_skip_are_numbers_of_any_kind(name):
    expected = program(RNN, activation="clipped_relu", **{name: 0.25})
    for value in SCALARS:
        assert program(RNN, activation="clipped_relu", **{name: value}) == expected
    with raises(f"rnn: {name} must be a number, known when tracing", "static_argnames"):
        jax.jit(lambda value: RNN(**{name: value}))(0.25)
    with raises(f"rnn: {name} must be a number, known when tracing, got ArrayImpl [1]"):
        RNN(**{name: jnp.ones(1)})


@pytest.mark.parametrize("name", ["dropout", "recurrent_dropout", "zoneout"])
def test_rates_of_a_stack_are_numbers_of_any_kind(name):
    run = functools.partial(prnn_jax.stack, "gru", X, [some(3)], key=KEY)
    expected = program(run, **{name: 0.25})
    for value in SCALARS:
        assert program(run, **{name: value}) == expected
    with raises(f"stack: {name} must be a number, known when tracing", "Tracer"):
        jax.jit(lambda value: run(**{name: value}))(0.25)
    with raises(f"stack: {name} must be from 0 to", "got nan"):
        run(**{name: np.float32(np.nan)})


@pytest.mark.parametrize("name", ["batch", "time", "hidden_size", "groups", "max_sms"])
def test_sizes(name):
    assert_bitwise_equal(explain(**{name: np.int64(3)}), explain(**{name: 3}))
    for wrong in (2.5, "2", None, [2]):
        if (name, wrong) == ("max_sms", None):
            continue  # all of them
        with raises(f"explain: {name} must be a whole number", f"got {wrong!r}."):
            explain(**{name: wrong})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"platform": 3}, "explain: platform must be a name, such as 'cpu', got 3."),
        ({"device": 3}, "explain: device must be a name, such as 'NVIDIA H200', got 3"),
        ({"dtype": "float"}, None),
        ({"dtype": "int32"}, "explain: dtype must be a floating one, such as"),
        ({"dtype": "half a float"}, "explain: dtype must be one, such as jnp.float32"),
        ({"precision": "exact"}, "explain: precision must be one of None"),
    ],
)
def test_what_explain_is_told(change, message):
    if message is None:
        explain(**change)
        return
    with raises(message):
        explain(**change)


# ---- precision -----------------------------------------------------------------------

FULL, PRESETS = lax.Precision.HIGHEST, lax.DotAlgorithmPreset
PRECISIONS = {
    # as given: (as JAX's own, whether all of float32 is asked for)
    None: (None, False),
    "default": (lax.Precision.DEFAULT, False),
    "fastest": (lax.Precision.DEFAULT, False),
    "bfloat16": (lax.Precision.DEFAULT, False),
    "high": (lax.Precision.HIGH, False),
    "tensorfloat32": (lax.Precision.HIGH, False),
    "bfloat16_3x": (lax.Precision.HIGH, False),
    "highest": (FULL, True),
    "float32": (FULL, True),
    FULL: (FULL, True),
    ("highest", "highest"): ((FULL, FULL), True),
    ("high", "highest"): ((lax.Precision.HIGH, FULL), False),
    (FULL, FULL): ((FULL, FULL), True),
    "F32_F32_F32": (PRESETS.F32_F32_F32, True),
    "TF32_TF32_F32": (PRESETS.TF32_TF32_F32, False),
    PRESETS.F32_F32_F32: (PRESETS.F32_F32_F32, True),
    PRESETS.BF16_BF16_F32: (PRESETS.BF16_BF16_F32, False),
    lax.DotAlgorithm(np.float32, np.float32, np.float32): (None, True),
    lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32): (None, False),
}


def precisions_of(jaxpr) -> set:
    """Of all products in a program."""
    found = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found.add(str(eqn.params["precision"]))
        for inner in jex.core.jaxprs_in_params(eqn.params):
            found |= precisions_of(inner)
    return found


@pytest.mark.parametrize("given", PRECISIONS, ids=str)
def test_precision_is_as_jax_takes_it(given):
    known, exact = PRECISIONS[given]
    w = jnp.ones((IN, 2))
    theirs = jax.make_jaxpr(lambda: lax.dot(X[0], w, precision=given))()
    for same in (given, [*given] if type(given) is tuple else given):
        run = functools.partial(LSTM, implementation="scan", precision=same)
        ours = jax.make_jaxpr(run)()
        assert precisions_of(ours.jaxpr) == precisions_of(theirs.jaxpr)
    assert Call("lstm", precision=known if known else given).exact is exact
    assert explain(precision=given).size >= 0


@pytest.mark.parametrize("default", ["float32", "highest", "F32_F32_F32"])
def test_jax_s_default_precision_counts(default):
    with jax.default_matmul_precision(default):
        ours = jax.make_jaxpr(lambda: LSTM(implementation="scan"))()
        theirs = jax.make_jaxpr(lambda: X[0] @ jnp.ones((IN, 2)))()
        assert precisions_of(ours.jaxpr) == precisions_of(theirs.jaxpr)
        assert "exact = true" in jax.jit(lambda: LSTM()).lower().as_text()
    assert "exact = false" in jax.jit(lambda: LSTM()).lower().as_text()


@pytest.mark.parametrize("given", ["float32", ("high", "highest"), PRESETS.F32_F32_F32])
def test_gradients_with_a_precision(given):
    def loss(params, precision, implementation):
        options = {"precision": precision, "implementation": implementation}
        return jnp.sum(prnn_jax.gru(X, params, **options)[0] ** 2)

    exact = jax.grad(loss)(some(3), "highest", "scan")
    for implementation in (None, "scan"):
        ours = jax.grad(loss)(some(3), given, implementation)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
            ours,
            exact,
        )


@pytest.mark.parametrize("wrong", ["exact", 1, ("high",), ("high", None), ("a", "b")])
def test_other_precisions(wrong):
    with raises("lstm: precision must be one of None", f"got {wrong!r}."):
        LSTM(precision=wrong)
    with raises("precision must be one of None", f"got {wrong!r}."):
        prnn_jax.equinox.LSTM(IN, HIDDEN, precision=wrong, key=KEY)


# ---- layers --------------------------------------------------------------------------

ODD = {
    "reverse": np.False_,
    "zoneout_rate": [np.float32(0.25), jnp.float32(0.5)],
    "recurrent_dropout_rate": jnp.float32(0.25),
    "precision": ["highest", "highest"],
    "heads": np.int64(2),
    "deterministic": np.True_,
}
EVEN = {
    "reverse": False,
    "zoneout_rate": (0.25, 0.5),
    "recurrent_dropout_rate": 0.25,
    "precision": ("highest", "highest"),
    "heads": 2,
    "deterministic": True,
}


def test_options_of_linen_s_layers_can_be_hashed():
    odd, even = (prnn_jax.linen.LSTM(HIDDEN, **options) for options in (ODD, EVEN))
    assert odd == even
    assert hash(odd) == hash(even)
    module = prnn_jax.linen.RNN(np.int64(HIDDEN), skip=jnp.float32(1), cap=np.array(3))
    assert hash(module) == hash(prnn_jax.linen.RNN(HIDDEN, skip=1.0, cap=3))
    variables = odd.init(KEY, X)
    run = jax.jit(lambda module, v: module.apply(v, X), static_argnums=0)
    assert_bitwise_equal(run(odd, variables), run(even, variables))


def test_options_of_linen_s_scanned_rnn():
    """As a TrainState has it: a module's method, among what `jit` compares."""
    options = {"zoneout_rate": [0.25], "deterministic": True, "heads": 2}
    made = prnn_jax.linen.ScannedRNN(HIDDEN, options=options)
    frozen = FrozenDict({**options, "zoneout_rate": (0.25,)})
    same = prnn_jax.linen.ScannedRNN(HIDDEN, options=frozen)
    assert made == same
    assert hash(made) == hash(same)
    xs = jnp.swapaxes(X, 0, 1), jnp.zeros((TIME, BATCH))
    carry = made.initialize_carry(BATCH, HIDDEN)
    variables = made.init(KEY, carry, xs)
    run = jax.jit(lambda apply, v: apply(v, carry, xs), static_argnums=0)
    assert_bitwise_equal(run(made.apply, variables), run(same.apply, variables))


def test_options_of_nnx_s_layers():
    odd, even = (
        prnn_jax.nnx.LSTM(IN, np.int64(HIDDEN), rngs=nnx.Rngs(0), **options)
        for options in (ODD, EVEN)
    )
    left, right = nnx.graphdef(odd), nnx.graphdef(even)
    assert left == right
    assert hash(left) == hash(right)
    assert_bitwise_equal(nnx.jit(lambda m: m(X))(odd), nnx.jit(lambda m: m(X))(even))
    layer = prnn_jax.nnx.RNN(IN, HIDDEN, skip=jnp.float32(1), rngs=nnx.Rngs(0))
    assert hash(nnx.graphdef(layer)) == hash(
        nnx.graphdef(prnn_jax.nnx.RNN(IN, HIDDEN, skip=1.0, rngs=nnx.Rngs(0)))
    )


def test_options_of_equinox_s_layers():
    def make(**options):
        return prnn_jax.equinox.LSTM(IN, HIDDEN, key=KEY, **options)

    odd = make(
        reverse=np.True_,
        heads=np.int64(2),
        zoneout=[np.float32(0.25), jnp.float32(0.5)],
        recurrent_dropout=jnp.float32(0.25),
        precision=["highest", "highest"],
        inference=np.True_,
    )
    even = make(
        reverse=True,
        heads=2,
        zoneout=(0.25, 0.5),
        recurrent_dropout=0.25,
        precision=("highest", "highest"),
        inference=True,
    )
    left, right = jax.tree.structure(odd), jax.tree.structure(even)
    assert left == right
    assert hash(left) == hash(right)
    run = jax.jit(lambda w, layer: layer(X, inference=True)[0])
    assert_bitwise_equal(run(0, odd), run(0, even))
    rnn = functools.partial(prnn_jax.equinox.RNN, IN, HIDDEN, key=KEY)
    structures = [jax.tree.structure(rnn(skip=s)) for s in (jnp.float32(1), 1.0)]
    assert structures[0] == structures[1]


@pytest.mark.parametrize("name", ["reverse", "bidirectional", "use_bias"])
def test_flags_of_equinox_s_layers(name):
    with raises(f"LSTM: {name} must be True or False", "got 'yes'."):
        prnn_jax.equinox.LSTM(IN, HIDDEN, key=KEY, **{name: "yes"})


@pytest.mark.parametrize("name", ["reverse", "time_major", "keep_order"])
def test_flags_of_flax_s_layers(name):
    with raises(f"LSTM: {name} must be True or False", "got 'yes'."):
        prnn_jax.nnx.LSTM(IN, HIDDEN, rngs=nnx.Rngs(0), **{name: "yes"})
    with raises(f"LSTM: {name} must be True or False", "got 'yes'."):
        prnn_jax.linen.LSTM(HIDDEN, **{name: "yes"}).init(KEY, X)
