"""mlstm, linear_attention and delta_rule: in chunks, step by step, and by a loop.

`COMPUTED` is h of the second head at the last step: of mlstm_kernels 2.0.6
(`mlstm_chunkwise__native_autograd`, jax), and of transformers 5.24.0's Qwen3-Next
(`torch_recurrent_gated_delta_rule`), both in float32, and the last m of the former.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_as_accurate, error_of, float64, quick_jit, run_python

import prnn_jax

BATCH, TIME, KEY, VALUE = (2, 3), 11, 4, 5
CALLS = {
    "mlstm": prnn_jax.mlstm,
    "linear_attention": prnn_jax.linear_attention,
    "delta_rule": prnn_jax.delta_rule,
}
KINDS = tuple(CALLS)
LENGTHS = np.array([[11, 0, 4], [7, 1, 10]])
RESETS = np.zeros((*BATCH, TIME), bool)
RESETS[0, :, [2, 3, 8]] = RESETS[1, 1, 0] = RESETS[1, 2, 10] = True
CONTROLS = {
    "plain": {},
    "lengths": {"lengths": LENGTHS},
    "resets": {"resets": RESETS},
    "reverse": {"reverse": True, "lengths": LENGTHS, "resets": RESETS},
}


def arrays_of(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """What a call of this kind takes, by name."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((*BATCH, *shape)).astype(np.float32)

    q, k, v = normal(TIME, KEY), normal(TIME, KEY), normal(TIME, VALUE)
    gate, other, s = normal(TIME), normal(TIME), normal(KEY, VALUE)
    if kind == "mlstm":
        state = s, normal(KEY), normal()
        return {"q": q, "k": k, "v": v, "i": 3 * gate, "f": 3 * other, "state_0": state}
    given = {"q": q, "k": k, "v": v, "log_f": -abs(other), "state_0": s}
    if kind == "linear_attention":
        return given
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return given | {"k": k, "beta": 2 / (1 + np.exp(-gate))}


def by_loop(kind: str, arrays: dict, lengths=None, resets=None, reverse=False) -> dict:
    """By the equations of the docstrings, without any factor e^m, in float64."""
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), arrays)
    q, k, v, first = (wide[name] for name in ("q", "k", "v", "state_0"))
    h = np.zeros((*BATCH, TIME, VALUE))
    states = {}
    for row in np.ndindex(BATCH):
        if kind == "mlstm":
            scale = np.exp(first[2][row])
            s, n = first[0][row] * scale, first[1][row] * scale
        else:
            s, n = first[row], np.zeros(KEY)
        steps = range(TIME if lengths is None else lengths[row])
        for t in reversed(steps) if reverse else steps:
            if resets is not None and resets[(*row, t)]:
                s, n = np.zeros_like(s), np.zeros_like(n)
            now = {name: x[(*row, t)] for name, x in wide.items() if name != "state_0"}
            q, k, v = now["q"], now["k"], now["v"]
            if kind == "mlstm":
                f, i = 1 / (1 + np.exp(-now["f"])), np.exp(now["i"])
                s, n = f * s + i * np.outer(k, v), f * n + i * k
                read, by_n = s.T @ q / np.sqrt(KEY), n @ q / np.sqrt(KEY)
                h[(*row, t)] = read / max(abs(by_n), 1)
                continue
            s = np.exp(now["log_f"]) * s
            v = now["beta"] * (v - s.T @ k) if kind == "delta_rule" else v
            s = s + np.outer(k, v)
            h[(*row, t)] = s.T @ q
        states[row] = s, n
    s, n = (np.array([states[row][j] for row in np.ndindex(BATCH)]) for j in (0, 1))
    found = {"h": h, "S": s.reshape(*BATCH, KEY, VALUE)}
    return found | ({"n": n.reshape(*BATCH, KEY)} if kind == "mlstm" else {})


def ours(kind: str, arrays: dict, **options) -> dict:
    """The same of a call: states without the factor e^m."""
    h, state = CALLS[kind](**arrays, **options)
    if kind != "mlstm":
        return {"h": h, "S": state}
    s, n, m = state
    scale = jnp.exp(m)[..., None]
    return {"h": h, "S": s * scale[..., None], "n": n * scale}


def with_gradients(kind: str, arrays: dict, **options) -> tuple:
    """Of cotangents that are draws."""

    @quick_jit
    def both(arrays):
        run = functools.partial(ours, kind, **options)
        found, vjp = jax.vjp(run, arrays)
        rng = np.random.default_rng(1)
        draws = {
            name: jnp.asarray(rng.standard_normal(x.shape), x.dtype)
            for name, x in found.items()
        }
        return found, vjp(draws)[0]

    return jax.tree.map(np.asarray, both(arrays))


@functools.cache
def scanned(kind: str, controls: str, dtype: str) -> tuple:
    """Step by step."""
    arrays = jax.tree.map(lambda x: x.astype(dtype), arrays_of(kind))
    with float64() if dtype == "float64" else jax.enable_x64(False):
        options = CONTROLS[controls] | {"implementation": "scan"}
        return with_gradients(kind, arrays, **options)


@pytest.mark.parametrize("controls", CONTROLS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_equations(kind, controls):
    found, _ = scanned(kind, controls, "float64")
    want = by_loop(kind, arrays_of(kind), **CONTROLS[controls])
    for name, exact in want.items():
        atol = 1e-13 * abs(exact).max()
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=atol)


@pytest.mark.parametrize("chunk_size", [2, 4, 64])
@pytest.mark.parametrize("controls", CONTROLS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_the_steps(kind, controls, chunk_size):
    options = CONTROLS[controls] | {"chunk_size": chunk_size}
    found = with_gradients(kind, arrays_of(kind), **options)
    both = (scanned(kind, controls, dtype) for dtype in ("float32", "float64"))
    assert_as_accurate(found, *both)


@pytest.mark.parametrize("kind", KINDS)
def test_half_the_bits(kind):
    """In bfloat16 the products' operands are rounded, and sums are not."""
    arrays = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), arrays_of(kind))
    want = by_loop(kind, arrays)
    exact, rounding = abs(want["h"]).max(), float(jnp.finfo(jnp.bfloat16).eps)
    for chunk_size in (1, 4):
        found = ours(kind, arrays, chunk_size=chunk_size)
        assert found["h"].dtype == jnp.bfloat16
        assert found["S"].dtype == jnp.float32
        # Of a step h is rounded alone; of a chunk scores, states and what is written.
        assert (
            error_of(found["h"], want["h"]) <= (1, 4)[chunk_size > 1] * rounding * exact
        )


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_hand_on_their_state_are_one(kind):
    arrays = arrays_of(kind)
    first, second = (
        {name: x[:, :, part] for name, x in arrays.items() if name != "state_0"}
        for part in (slice(5), slice(5, None))
    )

    def in_two(arrays, first, second):
        h, state = CALLS[kind](**first, state_0=arrays["state_0"], chunk_size=2)
        more, _ = CALLS[kind](**second, state_0=state, chunk_size=4)
        return jnp.concatenate([h, more], 2)

    def gradient(run):
        return quick_jit(jax.value_and_grad(lambda *a: (run(*a) ** 2).sum()))

    def whole(arrays):
        return CALLS[kind](**arrays, chunk_size=4)[0]

    h, d = gradient(lambda a: in_two(a, first, second))(arrays)
    want, d_want = gradient(whole)(arrays)
    np.testing.assert_allclose(h, want, rtol=1e-5)
    of_state, wanted = (jax.tree.leaves(x["state_0"]) for x in (d, d_want))
    for mine, other in zip(of_state, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-5 * abs(other).max())


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_count_may_be_nan(kind):
    arrays, counts = arrays_of(kind), np.arange(TIME) < LENGTHS[..., None]
    state = arrays.pop("state_0")

    def masked(other):
        return {
            name: np.where(counts[..., None] if x.ndim == 4 else counts, x, other)
            for name, x in arrays.items()
        }

    options = {"lengths": LENGTHS, "chunk_size": 4}
    with_nan = with_gradients(kind, masked(np.nan) | {"state_0": state}, **options)
    want = with_gradients(kind, masked(0) | {"state_0": state}, **options)
    jax.tree.map(np.testing.assert_array_equal, with_nan, want)


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_exponentials_do_not_overflow(chunk_size):
    """What the gates let through is of any magnitude; h is a mean of values."""
    arrays = arrays_of("mlstm") | {"state_0": None}
    arrays["i"] = 100 * arrays["i"]
    arrays["f"] = 1000 * arrays["f"]
    with float64():
        wide = jax.tree.map(lambda x: x.astype(np.float64), arrays)
        want = np.asarray(prnn_jax.mlstm(**wide, implementation="scan")[0])
    run = functools.partial(prnn_jax.mlstm, chunk_size=chunk_size)
    h, _ = run(**arrays)
    assert error_of(h, want) <= 1e-4 * abs(want).max()
    d = jax.grad(lambda a: run(**a)[0].sum())(arrays)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(d))


def test_a_gate_that_forgets_all_costs_no_accuracy():
    """Sums of logarithms are of the steps between: none is a difference of two."""
    arrays = arrays_of("linear_attention")
    for least in (-1e4, -np.inf):
        arrays["log_f"][..., 3] = least
        found = ours("linear_attention", arrays, chunk_size=64)
        want = by_loop("linear_attention", arrays)
        error = 4 * np.finfo(np.float32).eps * abs(want["h"]).max()
        assert error_of(found["h"], want["h"]) <= error


@pytest.mark.parametrize("kind", KINDS)
def test_heads_may_share_arrays(kind):
    """Axes of 1 in the batch, or none, are as the same array for each."""
    arrays = arrays_of(kind)
    shared, alike = dict(arrays), dict(arrays)
    for name in ("q", "k"):
        shared[name] = arrays[name][:, :1]
        alike[name] = np.broadcast_to(shared[name], arrays[name].shape)
    gate = next(name for name in arrays if name in ("f", "log_f"))
    shared[gate] = arrays[gate][0, 0]
    alike[gate] = np.broadcast_to(shared[gate], arrays[gate].shape)
    options = {"chunk_size": 4, "lengths": LENGTHS[:, :1], "resets": RESETS[0, 0]}
    found = ours(kind, shared, **options)
    options["lengths"] = np.broadcast_to(LENGTHS[:, :1], BATCH)
    want = ours(kind, alike, **options)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_time_major_and_vmap(kind):
    arrays = arrays_of(kind)
    want, state = CALLS[kind](**arrays, chunk_size=4, resets=RESETS)
    major = {
        name: np.moveaxis(x, 2, 0) for name, x in arrays.items() if name != "state_0"
    }
    options = {"time_major": True, "resets": np.moveaxis(RESETS, 2, 0)}
    state_0 = arrays["state_0"]
    h, last = CALLS[kind](**major, state_0=state_0, chunk_size=4, **options)
    np.testing.assert_array_equal(np.moveaxis(h, 0, 2), want)
    jax.tree.map(np.testing.assert_array_equal, last, state)
    run = functools.partial(CALLS[kind], chunk_size=4)
    h, _ = jax.vmap(lambda a, r: run(**a, resets=r))(arrays, RESETS)
    np.testing.assert_allclose(h, want, rtol=0, atol=1e-6 * abs(want).max())


def test_no_steps():
    q = np.zeros((2, 0, 3), np.float32)
    s = np.ones((2, 3, 3), np.float32)
    h, last = prnn_jax.linear_attention(q, q, q, state_0=s)
    assert h.shape == (2, 0, 3)
    np.testing.assert_array_equal(last, s)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_any_time(kind):
    """Exported with a symbolic number of steps; whatever JAX is told to promote."""
    arrays = arrays_of(kind)
    del arrays["state_0"]
    (time,) = jax.export.symbolic_shape("time")
    shapes = {
        name: jax.ShapeDtypeStruct((*BATCH, time, *x.shape[3:]), x.dtype)
        for name, x in arrays.items()
    }
    run = jax.jit(lambda a: CALLS[kind](**a, chunk_size=4)[0])
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        program = jax.export.export(run)(shapes)
    want = run(arrays)
    np.testing.assert_allclose(program.call(arrays), want, rtol=0, atol=1e-5)


def test_parts_of_a_mesh():
    """Sequences of each device's own rows, in shard_map and where types say so."""
    program = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from test_matrix_memory import CALLS, arrays_of
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
for kind, call in CALLS.items():
    arrays = arrays_of(kind)
    del arrays["state_0"]
    run = jax.jit(lambda a: call(**a, chunk_size=4)[0])
    want = run(arrays)
    with jax.set_mesh(mesh):
        given = jax.device_put(arrays, NamedSharding(mesh, P("d")))
        h = run(given)
        assert jax.typeof(h).sharding.spec[0] == "d", jax.typeof(h)
        of_each = jax.shard_map(run, out_specs=P("d"), mesh=mesh, in_specs=P("d"))
        for found in h, of_each(given):
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)
"""
    run_python(program, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def of_peers() -> dict[str, np.ndarray]:
    """One row, two heads, 8 steps: as what made `COMPUTED` was given."""
    rng = np.random.default_rng(5)
    draws = {name: rng.standard_normal((1, 2, 8, 3)) for name in "qkv"}
    draws |= {name: rng.standard_normal((1, 2, 8)) for name in ("i", "f")}
    return {name: draw.astype(np.float32) for name, draw in draws.items()}


# fmt: off
COMPUTED = {
    "mlstm": [0.2031054, -0.06567413, 0.04874391],
    "m": -0.91407406,
    "delta_rule": [0.2189598, 0.01868888, 0.01147151],
}
# fmt: on


def test_mlstm_of_its_authors():
    h, (_, _, m) = prnn_jax.mlstm(**of_peers(), epsilon=1e-6, chunk_size=4)
    np.testing.assert_allclose(h[0, 1, -1], COMPUTED["mlstm"], rtol=2e-6)
    np.testing.assert_allclose(m[0, 1], COMPUTED["m"], rtol=2e-6)


def test_gated_delta_net_of_transformers():
    given = of_peers()
    beta, log_f = 1 / (1 + np.exp(-given.pop("i"))), -np.exp(given.pop("f"))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in map(given.get, "qk"))
    h, _ = prnn_jax.delta_rule(
        q / np.float32(3**0.5), k, given["v"], beta, log_f, chunk_size=4
    )
    np.testing.assert_allclose(h[0, 1, -1], COMPUTED["delta_rule"], rtol=2e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": np.zeros((2, 3, 11, 3), np.float32)}, "q and k must have equally many"),
        ({"v": np.zeros((2, 3, 10, 5), np.float32)}, r"must have the same \[\*batch"),
        ({"v": np.zeros((2, 2, 11, 5), np.float32)}, r"must have the same \[\*batch"),
        ({"q": np.zeros((4,), np.float32)}, r"q must be \[\*batch, time, d_k\]"),
        ({"beta": np.zeros((), np.float32)}, r"beta must be \[\*batch, time\]"),
        ({"state_0": np.zeros((2, 3, 5, 4), np.float32)}, "transpose its last two"),
        ({"lengths": np.array([1, 2])}, r"lengths must be \[\*batch\]"),
        ({"resets": np.zeros((2, 1, 3), bool)}, r"must have the same \[\*batch"),
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"implementation": "native"}, "implementation must be"),
        ({"v": np.zeros((2, 3, 11, 5), np.int32)}, "v must have a floating"),
        ({"reset_to": 0}, "delta_rule"),
    ],
)
def test_what_does_not_fit(changes, words):
    with pytest.raises((ValueError, TypeError), match=words):
        prnn_jax.delta_rule(**(arrays_of("delta_rule") | changes))


def test_a_state_of_mlstm_is_three_arrays():
    arrays = arrays_of("mlstm")
    with pytest.raises(ValueError, match="the three arrays S, n and m"):
        prnn_jax.mlstm(**arrays | {"state_0": arrays["state_0"][0]})
