"""Recurrences without a product in 16 bits, whose state is float32."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from linear_cells import CELLS, arrays_of, by_loop, ours, wide
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax._linear import table

DTYPES = "bfloat16", "float16"


def rms(values, exact) -> float:
    exact = np.asarray(exact, np.float64)
    square = np.mean((np.asarray(values, np.float64) - exact) ** 2)
    return float(np.sqrt(square / np.mean(exact**2)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", [None, "scan"])
def test_calls_one_after_the_other_are_one(implementation, dtype):
    random = np.random.default_rng(3)
    a = jnp.asarray(random.uniform(0.9, 1, (2, 24, 5)), dtype)
    b = jnp.asarray(random.standard_normal((2, 24, 5)), dtype)
    resets = random.uniform(size=(2, 24)) < 0.1
    h_0 = random.standard_normal((2, 5)).astype(np.float32)

    @jax.jit
    def call(h, *chunk):
        *factors, resets = chunk
        given = {"resets": resets, "implementation": implementation}
        return prnn_jax.linear_recurrence(*factors, h, **given)

    y, h_n = call(h_0, a, b, resets)
    assert (y.dtype, h_n.dtype) == (dtype, "float32")
    parts, h = [], h_0
    for n in range(24):
        part, h = call(h, *(x[:, n : n + 1] for x in (a, b, resets)))
        parts.append(part)
    assert_bitwise_equal((jnp.concatenate(parts, 1), h), (y, h_n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CELLS)
def test_single_steps_of_a_cell_are_as_accurate_as_one_call(name, dtype):
    def cast(v, to):
        return jnp.asarray(v, to if v.dtype.kind == "f" else None)

    given = arrays_of(name, ("resets",))
    arrays = jax.tree.map(lambda v: cast(v, dtype), given)
    for states in ("state", "reset_to"):
        arrays[states] = jax.tree.map(lambda v: v.astype("float32"), arrays[states])
    known = jax.tree.map(lambda v: np.asarray(v, np.float32), arrays)
    exact, _ = by_loop(name, wide({**known, "resets": given["resets"]}))
    run = jax.jit(functools.partial(ours, name))
    whole, last = run(arrays)
    assert whole.dtype == dtype
    assert all(s.dtype == "float32" for s in last)
    parts, state = [], arrays["state"]
    for n in range(whole.shape[1]):
        step = {k: arrays[k][:, n : n + 1] for k in ("x", "resets")}
        y, state = run({**arrays, **step, "state": state})
        parts.append(y)
    error, of_whole = (rms(y, exact) for y in (jnp.concatenate(parts, 1), whole))
    assert error <= 1.1 * of_whole + float(jnp.finfo(dtype).eps) / 4


def test_an_rg_lru_in_bfloat16_remembers():
    """Of numbers from 0.99 to 1 bfloat16 knows three."""
    random = np.random.default_rng(5)
    x = jnp.asarray(random.standard_normal((1, 2000, 8)), "bfloat16")
    w = jnp.asarray(random.standard_normal((8, 16)) / 8, "bfloat16")
    decay = jnp.asarray(random.uniform(6, 9, 8), "bfloat16")
    y, _ = prnn_jax.rg_lru(x, w, None, decay)
    assert y.dtype == "bfloat16"
    exact, _ = prnn_jax.rg_lru(
        *(v.astype("float32") for v in (x, w)), None, decay.astype("float32")
    )
    assert rms(y, exact) <= 2 * float(jnp.finfo("bfloat16").eps)


#: What lets a cell remember: the bias of each of its gates.
BIASES = {
    "min_gru": (-6, 0),
    "min_lstm": (-6, 0, 0),
    "sru": (6, 0),
    "qrnn": (0, 6, 0),
}


@pytest.mark.parametrize("cell", BIASES)
def test_a_cell_remembers_some_400_steps(cell):
    """With factors rounded to bfloat16 it was off by 3 to 10 %."""
    dtype = "bfloat16"
    x = np.random.default_rng(5).standard_normal((1, 2000, 8))
    params = prnn_jax.init(cell, jax.random.key(0), 8, 8, dtype=dtype)
    params["b_ih"] = jnp.repeat(jnp.array(BIASES[cell], dtype), 8)

    def run(x, params):
        return getattr(prnn_jax, cell)(x, **params)[0]

    given = jnp.asarray(x, dtype), params
    y = run(*given)
    assert y.dtype == dtype
    exact = run(*jax.tree.map(lambda v: v.astype("float32"), given))
    assert rms(y, exact) <= 2 * float(jnp.finfo(dtype).eps)


def test_a_cell_under_mask_holds_the_first_state():
    arrays = arrays_of("indrnn", ("mask",))
    half = jax.tree.map(
        lambda v: v.astype("bfloat16") if v.dtype.kind == "f" else v, arrays
    )
    half["state"] = arrays["state"]
    y, (h_n,) = ours("indrnn", half)
    assert (y.dtype, h_n.dtype) == ("bfloat16", "float32")
    np.testing.assert_array_equal(y[1, -1], arrays["state"][0][1].astype("bfloat16"))
    np.testing.assert_array_equal(h_n[1], arrays["state"][0][1])


def test_last_inputs_that_are_a_list_are_refused_in_words():
    params = prnn_jax.init("qrnn", jax.random.key(0), 4, 4)
    state = jnp.ones((1, 4)), [[[1.0] * 4]]
    with pytest.raises(ValueError, match="x_0 must be an array, got list"):
        prnn_jax.qrnn(jnp.ones((1, 3, 4)), **params, state_0=state)


LAYERS = {"LRU": "lru", "RGLRU": "rg_lru", "IndRNN": "indrnn"}


def layer_of(where: str, name: str, x, **options):
    """y of a layer that computes in bfloat16, and its parameters, in float32."""
    if where == "keras":
        library("keras")
        import prnn_jax.keras

        layer = getattr(prnn_jax.keras, name)(
            8, return_sequences=True, dtype="mixed_bfloat16", **options
        )
        return layer(x), layer.params
    if where == "linen":
        import prnn_jax.linen

        layer = getattr(prnn_jax.linen, name)(8, dtype=jnp.bfloat16, **options)
        y, variables = layer.init_with_output(jax.random.key(0), x)
        return y, variables["params"]
    from flax import nnx

    import prnn_jax.nnx

    options |= {"dtype": jnp.bfloat16, "rngs": nnx.Rngs(0)}
    if where == "stack":
        stack = prnn_jax.nnx.Stack(getattr(prnn_jax.nnx, name), 8, 8, 1, **options)
        return stack(x), stack.layers[0].params
    layer = getattr(prnn_jax.nnx, name)(8, 8, **options)
    return layer(x), layer.params


@pytest.mark.parametrize("where", ["nnx", "both directions", "stack", "linen", "keras"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_leave_in_float32_what_factors_are_made_of(name, where):
    x = np.random.default_rng(0).standard_normal((2, 300, 8)).astype(np.float32)
    cell = table.CELLS[LAYERS[name]]
    options = {"r_min": 0.99, "r_max": 0.999} if name == "LRU" else {}
    both = {"bidirectional": True} if where == "both directions" else {}
    y, params = layer_of(where, name, x, **options, **both)
    arrays = cell.arrays(name, params)
    arrays = {k: jnp.asarray(v) for k, v in arrays.items() if v is not None}
    assert {v.dtype.name for v in arrays.values()} == {"float32"}

    def of(dtypes):
        given = cell.bind({k: v.astype(dtypes(k)) for k, v in arrays.items()})
        return cell.function(jnp.asarray(x, dtypes("x")), **given, **both)[0]

    assert y.dtype == jnp.bfloat16
    kept = cell.float32_params
    expected = of(lambda k: "float32" if k in kept else "bfloat16")
    assert_bitwise_equal(np.asarray(y), np.asarray(expected))
    if name == "LRU":
        exact = of(lambda k: "float32")
        assert rms(y, exact) < 0.3 * rms(of(lambda k: "bfloat16"), exact)


def made_in_bfloat16(where: str, name: str):
    """A layer whose parameters are drawn in bfloat16, as a function, and these."""
    if where == "linen":
        library("flax")
        import prnn_jax.linen

        layer = getattr(prnn_jax.linen, name)(8, param_dtype=jnp.bfloat16)
        variables = layer.init(jax.random.key(0), jnp.zeros((1, 3, 8), jnp.bfloat16))
        return functools.partial(layer.apply, variables), variables["params"]
    if where in ("nnx", "nnx stack"):
        library("flax")
        from flax import nnx

        import prnn_jax.nnx as layers

        options = {"param_dtype": jnp.bfloat16, "rngs": nnx.Rngs(0)}
        make, first = functools.partial(layers.Stack, **options), lambda y: y
    else:
        library("equinox")
        import prnn_jax.equinox as layers

        options = {"dtype": jnp.bfloat16, "key": jax.random.key(0)}
        make, first = functools.partial(layers.Stack, **options), lambda out: out[0]
    if "stack" in where:
        made = make(getattr(layers, name), 8, 8, 1)
        params = made.params[0] if where == "equinox stack" else made.layers[0].params
    else:
        made = getattr(layers, name)(8, 8, **options)
        params = made.params
    return lambda x: first(made(x)), params


@pytest.mark.parametrize(
    "where", ["nnx", "nnx stack", "linen", "equinox", "equinox stack"]
)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_made_in_bfloat16_draw_in_float32_what_factors_are_made_of(name, where):
    """And compute in bfloat16, as without these."""
    call, params = made_in_bfloat16(where, name)
    cell = table.CELLS[LAYERS[name]]
    arrays = {k: v for k, v in cell.arrays(name, params).items() if v is not None}
    assert {k for k, v in arrays.items() if v.dtype == jnp.float32} == {
        *cell.float32_params
    }
    assert {v.dtype.name for v in arrays.values()} == {"float32", "bfloat16"}
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 30, 8)), jnp.bfloat16)
    expected, _ = cell.function(x, **cell.bind(arrays))
    y = call(x)
    assert y.dtype == jnp.bfloat16
    assert_bitwise_equal(np.asarray(y), np.asarray(expected))


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_keras_model_in_16_bits(name, policy, tmp_path):
    """Both directions, saved and loaded."""
    keras = library("keras")
    import prnn_jax.keras

    make = getattr(prnn_jax.keras, name)
    options = {"return_sequences": True, "dtype": policy}
    both = prnn_jax.keras.Bidirectional(make(8, **options), dtype=policy)
    model = keras.Sequential([keras.Input((30, 8)), both])
    cell = table.CELLS[LAYERS[name]]
    usual = "float32" if policy == "mixed_bfloat16" else "bfloat16"
    dtypes = {v.path.rsplit("/", 1)[-1]: v.dtype for v in model.weights}
    assert {name for name, dtype in dtypes.items() if dtype != "float32"} == (
        set() if usual == "float32" else dtypes.keys() - {*cell.float32_params}
    )
    x = np.random.default_rng(0).standard_normal((2, 30, 8)).astype(np.float32)
    y = np.asarray(model(x))
    assert y.dtype == jnp.bfloat16
    arrays = {k: v for k, v in cell.arrays(name, both.params).items() if v is not None}
    given = cell.bind(
        {
            k: v if k in cell.float32_params else v.astype(jnp.bfloat16)
            for k, v in arrays.items()
        }
    )
    x = jnp.asarray(x, jnp.bfloat16)
    expected, _ = cell.function(x, **given, bidirectional=True)
    assert_bitwise_equal(y, np.asarray(expected))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_bitwise_equal(np.asarray(again(x)), y)
    for own, loaded in zip(model.weights, again.weights, strict=True):
        assert own.dtype == loaded.dtype


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_begin_in_float32_where_factors_are_made_of_them(name):
    cell = table.CELLS[LAYERS[name]]
    key = jax.random.key(3)
    given = prnn_jax.init(LAYERS[name], key, 8, 8, dtype=jnp.bfloat16)
    exact = prnn_jax.init(LAYERS[name], key, 8, 8)
    arrays = cell.arrays(name, given)
    for own, array in cell.arrays(name, exact).items():
        if own in cell.float32_params:
            assert_bitwise_equal(np.asarray(arrays[own]), np.asarray(array))
        elif array is not None:
            assert arrays[own].dtype == jnp.bfloat16
    for library_name in ("nnx", "equinox"):
        library({"nnx": "flax"}.get(library_name, library_name))
        layers = importlib.import_module(f"prnn_jax.{library_name}")
        layer = getattr(layers, name).from_params(given)
        y = layer(x := jnp.ones((1, 20, 8), jnp.bfloat16))
        y = y if library_name == "nnx" else y[0]
        assert y.dtype == jnp.bfloat16
        expected, _ = cell.function(x, **cell.bind(arrays))
        assert_bitwise_equal(np.asarray(y), np.asarray(expected))


def test_an_indrnn_in_bfloat16_remembers_with_its_own_numbers_in_float32():
    x = np.ones((1, 2000, 1), np.float32)
    u, w = jnp.full(1, 0.9975), jnp.full((1, 1), 0.0025)

    def last(dtype, of_u):
        params = prnn_jax.Params(w.astype(dtype), u.astype(of_u), None, None)
        return float(prnn_jax.indrnn(jnp.asarray(x, dtype), params)[1][0, 0])

    exact = last("float32", "float32")
    assert abs(last("bfloat16", "float32") - exact) < 2**-7 * exact
    assert abs(last("bfloat16", "bfloat16") - exact) > 0.2 * exact
