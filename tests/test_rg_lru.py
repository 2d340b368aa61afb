"""The RG-LRU where its root is of almost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from linear_layers import LIBRARIES, each_library, made
from support import assert_bitwise_equal

import prnn_jax

C = 8.0


def exact(x, w, decay):
    """Gradients of the sum of y, in float64, of one row; i is not asked for."""
    x, w, decay = (np.float64(a) for a in (x, w, decay))
    r, i = (1 / (1 + np.exp(-a)) for a in np.split(x @ w, 2, -1))
    log_keeps = -np.logaddexp(0, -decay)
    log_a = C * r * log_keeps
    a, share = np.exp(log_a), np.sqrt(-np.expm1(2 * log_a))
    # h' = a h + share u: by hand, from the last step to the first.
    u, h = i * x, np.zeros(len(decay))
    before = []
    for t in range(len(x)):
        before.append(h)
        h = a[t] * h + share[t] * u[t]
    d, d_log = 0.0, np.zeros_like(log_a)
    for t in reversed(range(len(x))):
        d = d + 1
        of_share = a[t] ** 2 / np.where(share[t] > 0, share[t], np.inf)
        d_log[t] = a[t] * d * before[t] - d * u[t] * of_share
        d = a[t] * d
    return {
        "decay": (d_log * C * r / (1 + np.exp(decay))).sum(0),
        "r": d_log * log_a * (1 - r),
    }


def gradients(x, w, decay):
    """Of a_r, summed over steps, and of Λ."""

    def loss(b, decay):
        return prnn_jax.rg_lru(x[None], w, b, decay)[0].sum()

    of_b, of_decay = jax.jit(jax.grad(loss, (0, 1)))(jnp.zeros(w.shape[1]), decay)
    return of_b[: len(decay)], of_decay


@pytest.mark.parametrize("shut", [0.0, -60.0, -88.0, -1000.0])
@pytest.mark.parametrize("decay", [3.0, 20.0, 60.0, 80.0])
def test_gradients_where_nothing_enters(shut, decay):
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 2)).astype("f")
    w = np.concatenate([np.zeros((2, 2)), random.standard_normal((2, 2))], 1)
    x[0], w[0, 0] = [1.0, 0.3], shut  # of one unit, at some steps
    w, decays = w.astype("f"), np.full(2, decay, "f")
    with np.errstate(over="ignore"):
        wanted = exact(x, w, decays)
    # A log a below float32's smallest, 1e-38, has a root of 1e-19.
    of_r, of_decay = gradients(x, w, decays)
    np.testing.assert_allclose(of_r, wanted["r"].sum(0), rtol=2e-4, atol=1e-18)
    np.testing.assert_allclose(of_decay, wanted["decay"], rtol=2e-4, atol=1e-18)


@pytest.mark.parametrize("shut", [-88.0, -1000.0])
@pytest.mark.parametrize("implementation", [None, "scan"])
def test_a_gate_that_is_shut_has_no_gradient_and_no_nan(shut, implementation):
    def loss(x, w, b, decay):
        return prnn_jax.rg_lru(x, w, b, decay, implementation=implementation)[0].sum()

    given = jnp.ones((1, 1, 1)), jnp.zeros((1, 2)), jnp.array([shut, 0.0])
    for found in jax.grad(loss, (0, 1, 2, 3))(*given, jnp.array([3.0])):
        assert np.all(np.abs(found) < 1e-15)
    second = jax.grad(lambda b: jax.grad(loss, 2)(*given[:2], b, jnp.ones(1))[0])
    assert np.all(np.isfinite(second(given[2])))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("decay", [4.0, 10.0, 17.0, 18.0, 20.0])
def test_in_16_bits(decay, dtype):
    """y does not become zero, nor its gradient infinite, long before they would."""
    x, w = np.ones((1, 3, 1)), np.zeros((1, 2))
    given = [jnp.asarray(a, dtype) for a in (x, w, np.array([decay]))]
    y, _ = prnn_jax.rg_lru(given[0], given[1], None, given[2])
    wide = [a.astype(jnp.float32) for a in given]
    wanted, _ = prnn_jax.rg_lru(wide[0], wide[1], None, wide[2])
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype("f"), wanted, rtol=6 * eps)

    def loss(decay, x, w):
        return prnn_jax.rg_lru(x, w, None, decay)[0].astype(jnp.float32).sum()

    found = jax.grad(loss)(given[2], *given[:2])
    np.testing.assert_allclose(
        found.astype("f"), jax.grad(loss)(wide[2], *wide[:2]), rtol=20 * eps, atol=1e-7
    )


# ---- as RecurrentGemma has it ----

HEADS, SIZE, TIME = 2, 3, 7
HIDDEN = HEADS * SIZE
BEGINS = np.array([[1, 0, 0, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0]], bool)


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((2, TIME, HIDDEN)),
        "w_gates": random.standard_normal((HEADS, SIZE, 2 * SIZE)),
        "b_gates": random.standard_normal(2 * HIDDEN),
        "decay": random.uniform(2, 6, HIDDEN),
    }


def of_recurrent_gemma(x, w_gates, b_gates, decay, begins, h=0.0):
    """One row, step by step in float64: where it begins, all of i x enters."""
    y = []
    for step, is_first in zip(x, begins, strict=True):
        parts = [s @ w for s, w in zip(step.reshape(HEADS, SIZE), w_gates, strict=True)]
        r = np.concatenate([part[:SIZE] for part in parts]) + b_gates[:HIDDEN]
        i = np.concatenate([part[SIZE:] for part in parts]) + b_gates[HIDDEN:]
        r, i = 1 / (1 + np.exp(-r)), 1 / (1 + np.exp(-i))
        a = np.exp(-C * r * np.log1p(np.exp(-decay)))
        h = i * step if is_first else a * h + np.sqrt(1 - a * a) * i * step
        y.append(h)
    return np.stack(y)


def in_float32(given: dict) -> dict:
    return {name: jnp.asarray(a, jnp.float32) for name, a in given.items()}


def test_documents_in_a_row():
    given = arrays()
    x = given.pop("x")
    rows = zip(x, BEGINS, strict=True)
    wanted = [of_recurrent_gemma(row, **given, begins=b) for row, b in rows]
    weights = in_float32(given)
    y, h = prnn_jax.rg_lru(
        jnp.asarray(x, jnp.float32), **weights, resets=BEGINS, scale_first=False
    )
    np.testing.assert_allclose(y, wanted, atol=2e-6)
    np.testing.assert_allclose(h, [row[-1] for row in wanted], atol=2e-6)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("how", ["all", "lengths", "mask", "goes on"])
def test_which_step_is_the_first(how, reverse, time_major):
    given = arrays()
    x = given.pop("x")
    counts = np.ones((2, TIME), bool)
    options: dict = {"reverse": reverse, "time_major": time_major}
    if how == "lengths":
        options["lengths"] = jnp.array([4, 6])
        counts = np.arange(TIME) < np.array([[4], [6]])
    if how == "mask":
        counts = np.array([[0, 1, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0, 1]], bool)
        options["mask"] = counts.T if time_major else counts
    h_0 = np.full((2, HIDDEN), 0.5 if how == "goes on" else 0.0)
    if how == "goes on":
        options["h_0"] = jnp.asarray(h_0, jnp.float32)
    turned = x.swapaxes(0, 1) if time_major else x
    y, h = prnn_jax.rg_lru(
        jnp.asarray(turned, jnp.float32),
        **in_float32(given),
        **options,
        scale_first=False,
    )
    y = y.swapaxes(0, 1) if time_major else y
    for n in range(2):
        steps = np.flatnonzero(counts[n])
        steps = steps[::-1] if reverse else steps
        begins = np.arange(len(steps)) == (-1 if how == "goes on" else 0)
        wanted = of_recurrent_gemma(x[n][steps], **given, begins=begins, h=h_0[n])
        np.testing.assert_allclose(y[n][steps], wanted, atol=2e-6)
        np.testing.assert_allclose(h[n], wanted[-1], atol=2e-6)


def test_gates_of_heads_are_a_block_diagonal_matrix():
    given = in_float32(arrays())
    w = np.zeros((HIDDEN, 2 * HIDDEN), "f")
    for n, of_head in enumerate(given["w_gates"]):
        rows = slice(n * SIZE, (n + 1) * SIZE)
        w[rows, rows], w[rows, HIDDEN:][:, rows] = jnp.split(of_head, 2, -1)
    for b_gates in (given["b_gates"], None):
        given["b_gates"] = b_gates
        y, h = prnn_jax.rg_lru(**given)
        wanted = prnn_jax.rg_lru(**{**given, "w_gates": w})
        np.testing.assert_allclose(y, wanted[0], atol=1e-6)
        np.testing.assert_allclose(h, wanted[1], atol=1e-6)
    both = {n: None if a is None else jnp.stack([a, a]) for n, a in given.items()}
    both["x"] = given["x"]
    y, _ = prnn_jax.rg_lru(**both, bidirectional=True, scale_first=False)
    assert y.shape == (2, TIME, 2 * HIDDEN)


def test_errors_of_heads():
    given = in_float32(arrays())
    given["w_gates"] = given["w_gates"][:, :, 1:]
    with pytest.raises(ValueError, match=r"w_gates must be \[heads, size, 2\*size\]"):
        prnn_jax.rg_lru(**given)
    given = in_float32(arrays())
    with pytest.raises(ValueError, match="resets must be"):
        prnn_jax.rg_lru(**given, resets=jnp.zeros((2, 3)), scale_first=False)


# ---- layers, with the gates and first steps of RecurrentGemma ----


def wanted_of(given: dict, begins=BEGINS) -> np.ndarray:
    own = {name: a for name, a in given.items() if name != "x"}
    rows = zip(given["x"], begins, strict=True)
    return np.stack([of_recurrent_gemma(x, **own, begins=b) for x, b in rows])


def params_and_input() -> tuple[dict, jax.Array]:
    params = in_float32(arrays())
    return params, params.pop("x")


@each_library
def test_documents_in_a_row_of_layers(where):
    params, x = params_and_input()
    layer = made(where, "RGLRU", HIDDEN, params=params, scale_first=False)
    assert_bitwise_equal(layer.params, params)
    y, h = layer.run(x, resets=BEGINS)
    np.testing.assert_allclose(y, wanted_of(arrays()), atol=2e-6)
    # A call without a state begins, also where no reset says so; one with a state,
    # though it is of zeros, goes on.
    first = BEGINS & False
    np.testing.assert_array_equal(layer.run(x, resets=BEGINS & (x[..., 0] < 9))[0], y)
    assert_bitwise_equal(layer.run(x)[0][1], y[1])
    on, _ = layer.run(x, layer.zeros(2))
    np.testing.assert_allclose(on, wanted_of(arrays(), first), atol=2e-6)
    # One step at a time.
    state, parts = layer.zeros(2), []
    for t in range(TIME):
        part, state = layer.run(x[:, t : t + 1], state, resets=BEGINS[:, t : t + 1])
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, 1), y, atol=1e-6)
    np.testing.assert_allclose(state, h, atol=1e-6)


@each_library
@pytest.mark.parametrize("bidirectional", [False, True])
def test_two_heads_are_no_two_directions(where, bidirectional):
    params, x = params_and_input()
    assert params["w_gates"].shape[0] == 2
    options = {"bidirectional": bidirectional, "scale_first": False}
    if bidirectional:
        params = {name: jnp.stack([a, -a]) for name, a in params.items()}
    layer = made(where, "RGLRU", HIDDEN, params=params, scale_first=False)
    assert_bitwise_equal(layer.run(x), prnn_jax.rg_lru(x, **params, **options))
    assert layer.layer.heads == HEADS
    without = made(where, "RGLRU", HIDDEN, params={**params, "b_gates": None})
    assert_bitwise_equal(
        without.run(x),
        prnn_jax.rg_lru(x, **without.params, bidirectional=bidirectional),
    )


@each_library
def test_heads_are_drawn_apart(where):
    wide = 400
    layer = made(where, "RGLRU", wide, hidden=wide, heads=4)
    w = np.asarray(layer.params["w_gates"])
    assert w.shape == (4, 100, 200)
    for of_head in w:  # each of a fan of its own size
        assert np.std(of_head) == pytest.approx(0.1, rel=0.05)
    assert len({of_head[0, 0].item() for of_head in w}) == 4
    init = jax.nn.initializers.orthogonal()
    if where != "equinox":
        layer = made(where, "RGLRU", wide, hidden=wide, heads=4, kernel_init=init)
        for of_head in layer.params["w_gates"]:
            np.testing.assert_allclose(of_head @ of_head.T, np.eye(100), atol=1e-4)
    given = prnn_jax.init("rg_lru", jax.random.key(0), wide, wide, heads=4)
    shapes = [jax.tree.map(jnp.shape, p) for p in (given, layer.params)]
    assert shapes[0] == shapes[1]


@each_library
def test_a_stack_of_heads(where):
    library(LIBRARIES[where])
    params, x = params_and_input()
    layers = [params, jax.tree.map(lambda a: -a, params)]
    wanted, _ = prnn_jax.stack("rg_lru", x, layers, resets=BEGINS, scale_first=False)
    y, _ = prnn_jax.rg_lru(x, **params, resets=BEGINS, scale_first=False)
    y, _ = prnn_jax.rg_lru(y, **layers[1], resets=BEGINS, scale_first=False)
    assert_bitwise_equal(wanted, y)
    if where == "equinox":
        import prnn_jax.equinox as layers_of

        stack = layers_of.Stack.from_params("rg_lru", layers, scale_first=False)
        y, _ = stack(x, resets=BEGINS)
        assert stack.first.heads == HEADS
    elif where == "nnx":
        import prnn_jax.nnx as layers_of

        stack = layers_of.Stack.from_params("rg_lru", layers, scale_first=False)
        y = stack(x, resets=BEGINS)
    else:
        import prnn_jax.linen as layers_of

        own = {"options": {"scale_first": False}}
        stack, of = layers_of.Stack.from_params("rg_lru", layers, **own)
        y = stack.apply(of, x, resets=BEGINS)
    assert_bitwise_equal(y, wanted)
    narrow = prnn_jax.init("rg_lru", jax.random.key(0), 8, 8, heads=4)
    with pytest.raises(ValueError, match=r"layer 1: w_gates must be .* \(input 8\)"):
        prnn_jax.stack("rg_lru", x, [params, narrow])


@each_library
def test_errors_of_the_options_of_heads(where):
    with pytest.raises(ValueError, match=r"heads must divide \w+=6, got 4"):
        made(where, "RGLRU", 6, hidden=6, heads=4)
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        made(where, "RGLRU", 6, hidden=6, heads=0)
    with pytest.raises(ValueError, match="scale_first must be True or False"):
        made(where, "RGLRU", 6, hidden=6, scale_first="no")
    params, _ = params_and_input()
    with pytest.raises(ValueError, match="decay must be an array, got NoneType"):
        made(where, "RGLRU", HIDDEN, params={**params, "decay": None})
    wide = {**params, "w_gates": jnp.zeros((2, 3, 8))}
    with pytest.raises(ValueError, match=r"w_gates must be \[2, 3, 6\], got \[2, 3, 8"):
        made(where, "RGLRU", HIDDEN, params=wide)


def test_a_layer_of_keras(tmp_path):
    keras = library("keras")
    import prnn_jax.keras as layers_of

    params, x = params_and_input()
    options = {"return_sequences": True, "return_state": True, "scale_first": False}
    kind = layers_of.RGLRU
    layer = kind.from_params(params, **options)
    assert layer.input_size == HIDDEN
    y, h = layer(x)
    wanted, last = prnn_jax.rg_lru(x, **params, scale_first=False)
    np.testing.assert_allclose(y, wanted, atol=1e-6)
    # A call with a state goes on.
    start, h = layer(x[:, :3])
    rest, h = layer(x[:, 3:], initial_state=h)
    np.testing.assert_allclose(np.concatenate([start, rest], 1), wanted, atol=1e-6)
    np.testing.assert_allclose(h, last, atol=1e-6)
    mask = np.array([[1, 1, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1]], bool)
    wanted, _ = prnn_jax.rg_lru(x, **params, mask=mask, scale_first=False)
    np.testing.assert_allclose(layer(x, mask=mask)[0], wanted, atol=1e-6)

    own = {"heads": HEADS, "scale_first": False, "return_sequences": True}
    model = keras.Sequential([keras.Input((None, HIDDEN)), kind(HIDDEN, **own)])
    model.compile("adam", "mse")
    model.fit(x, np.zeros(x.shape), verbose=0)
    assert model.layers[0].params["w_gates"].shape == (HEADS, SIZE, 2 * SIZE)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(x), model(x))
    twice = {name: jnp.stack([a, a]) for name, a in params.items()}
    both = layers_of.Bidirectional.from_params(
        kind, twice, return_sequences=True, scale_first=False
    )
    wanted, _ = prnn_jax.rg_lru(x, **twice, bidirectional=True, scale_first=False)
    np.testing.assert_allclose(both(x), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="scale_first must be True in a stateful"):
        kind(HIDDEN, stateful=True, scale_first=False)
    with pytest.raises(ValueError, match="heads must divide units=6, got 4"):
        kind(HIDDEN, heads=4)(x)
