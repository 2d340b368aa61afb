"""The engine's LSTM and GRU with layer norm, beside the scan's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normed_cells import BATCH, CELLS, HIDDEN, TIME, arrays_of
from support import (
    assert_bitwise_equal,
    error_of,
    float64,
    quick_jit,
    run_python,
)

import prnn_jax
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls
from prnn_jax._call.primals import Primals
from prnn_jax._cells.normed import PER_UNIT
from prnn_jax._engine import ffi, scan
from prnn_jax._engine.modules import native
from prnn_jax.testing import check_cell

RESETS = np.arange(BATCH * TIME).reshape(BATCH, TIME) % 4 == 2
ZONEOUT = (
    np.random.default_rng(3).uniform(size=(BATCH, TIME, HIDDEN)).astype(np.float32)
)
OPTIONS = {
    "plain": {},
    "lengths in reverse": {"lengths": np.array([7, 0, 3]), "reverse": True},
    "resets and zoneout": {"resets": RESETS, "zoneout": 0.3},
    "zoneout by unit": {"zoneout": np.float32(ZONEOUT > 0.5)},
    "mask": {"mask": ~RESETS, "masked_y": "zero"},
    "dropout": {"recurrent_mask": np.float32(1.5 * (ZONEOUT[:, 0] > 0.3))},
    "a mask of one unit": {"recurrent_mask": np.eye(BATCH, HIDDEN, dtype=np.float32)},
    "both ways": {"bidirectional": True, "lengths": np.array([7, 2, 3])},
    "time-major": {"time_major": True},
}

LEAN = {
    "plain": {},
    "lengths and zoneout": {"lengths": np.array([37, 0, 20]), "zoneout": 0.3},
    "both ways, resets": {
        "bidirectional": True,
        "resets": np.arange(BATCH * 37).reshape(BATCH, 37) % 8 == 2,
    },
}

#: Arrays that errors are averaged over. Each step divides by σ, and what it was rounded
#: by with it: of one draw alone the scan's error is up to three times ours, or ours the
#: scan's, by chance.
DRAWS = 16


def assert_follows_scan(cell, options, draws=DRAWS, **sizes):
    """Errors of native calls, values and gradients, are at most twice the scan's.

    In the (geometric) mean over some draws; what is less than a rounding of an array's
    largest value counts as one.
    """

    def run(implementation, x, params, options):
        call = functools.partial(cell, implementation=implementation, **options)
        (y, state), vjp = jax.vjp(call, x, params)
        return y, state, vjp((jnp.cos(3 * y), jax.tree.map(jnp.sin, state)))

    static = {n: v for n, v in options.items() if isinstance(v, (bool, str))}
    traced = {n: v for n, v in options.items() if n not in static}
    function = functools.partial(
        lambda how, x, params, traced: run(how, x, params, static | traced)
    )
    scan = quick_jit(functools.partial(function, "scan"))
    ours = jax.jit(functools.partial(function, "native"))
    errors: dict[str, list] = {}
    for seed in range(draws):
        x, params = arrays_of(cell, seed=seed, **sizes)
        if options.get("time_major"):
            x = np.swapaxes(x, 0, 1)
        small = jax.tree.map(np.float32, (x, params))
        found = ours(*small, traced), scan(*small, traced)
        with float64():
            wide = {
                n: v.astype(np.float64)
                if getattr(v, "dtype", None) == np.float32
                else v
                for n, v in traced.items()
            }
            exact = scan(*jax.tree.map(np.float64, small), wide)
            exact = jax.tree.map(np.asarray, exact)
        for (path, value), of_scan, of_both in zip(
            jax.tree_util.tree_flatten_with_path(found[0])[0],
            jax.tree.leaves(found[1]),
            jax.tree.leaves(exact),
            strict=True,
        ):
            assert value.dtype == of_scan.dtype == np.float32
            assert np.isfinite(value).all()
            largest = np.abs(of_both).max()
            if largest == 0:  # of w_hh, where there is but a step
                assert not value.any()
                continue
            rounding = np.finfo(np.float32).eps * largest
            pair = [
                max(error_of(a, of_both), rounding) / rounding for a in (value, of_scan)
            ]
            errors.setdefault(jax.tree_util.keystr(path), []).append(pair)
    for name, of_both in errors.items():
        mean, of_scan = np.exp(np.log(of_both).mean(0))
        assert mean <= 2 * of_scan, (
            f"{name}: the error is {mean:.3g} roundings, the scan's {of_scan:.3g}"
        )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", CELLS)
def test_native_follows_the_scan(name, options):
    zoneout = options.get("zoneout")
    if isinstance(zoneout, np.ndarray) and name.startswith("lstm"):  # of both states
        options = options | {"zoneout": (zoneout, 0.25)}
    directions = 1 + options.get("bidirectional", False)
    assert_follows_scan(CELLS[name], options, directions=directions)


@pytest.mark.parametrize("options", LEAN.values(), ids=LEAN)
@pytest.mark.parametrize("name", ["lstm", "lstm_torchaudio", "gru", "gru_each_gate"])
def test_what_is_made_again_follows_the_scan(name, options):
    """Of more steps than a chunk has, and a rest."""
    directions = 1 + options.get("bidirectional", False)
    of = options | {"reserve": "lean"}
    assert_follows_scan(CELLS[name], of, directions=directions, time=37)


@pytest.mark.parametrize(
    ("name", "reserve", "values"),
    [
        ("lstm", "fast", 14),
        ("lstm_torchaudio", "fast", 10),
        ("lstm", "lean", 2),
        ("gru", "fast", 10),
        ("gru", "lean", 1),
    ],
)
def test_what_is_kept_of_a_step(name, reserve, values):
    """Of each unit, y among it."""
    x, params = jax.tree.map(jnp.float32, arrays_of(CELLS[name], time=50))
    run = functools.partial(CELLS[name], x, reserve=reserve)
    _, backward = jax.vjp(lambda params: run(params)[0], params)
    of_time = [a for a in jax.tree.leaves(backward) if a.ndim > 2 and 50 in a.shape[:2]]
    kept = sum(a.size for a in of_time) - x.size
    assert kept == values * BATCH * 50 * HIDDEN


SIZES = {
    "few units": {"hidden": 5, "batch": 1},
    "one step": {"time": 1},
    "many rows": {"batch": 21, "time": 3},
    "many units": {"hidden": 200, "batch": 9, "time": 4},
    "heads": {"heads": 3, "hidden": 17},
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", ["lstm", "lstm_torchaudio", "gru_each_gate"])
def test_native_of_all_sizes(name, sizes):
    assert_follows_scan(CELLS[name], {}, **sizes)


@pytest.mark.parametrize("name", ["lstm_each_gate", "gru_each_gate"])
def test_native_where_terms_cancel(name):
    """Of two values nothing is left but their sign, and ε: so of their gradient.

    Either's error is up to a hundredth, of some draws, and so there must be many.
    """
    assert_follows_scan(CELLS[name], {}, draws=64, hidden=2)


def test_native_calls_are_there():
    x, params = jax.tree.map(jnp.float32, arrays_of(CELLS["lstm"]))
    plan = prnn_jax.explain(CELLS["lstm"], batch=3, time=7, hidden_size=HIDDEN)
    assert plan.engine == "native", plan
    text = (
        jax.jit(jax.grad(lambda p: CELLS["lstm"](x, p)[0].sum()))
        .lower(params)
        .compile()
        .as_text()
    )
    for call in ("prnn_forward", "prnn_backward"):
        assert f'custom_call_target="{call}"' in text


def drawn(name: str, batch: int, hidden: int):
    """What the engines take: a call, primals and cotangents of y."""
    call = Call(CELLS[name].row, save="all", implementation="native")
    cell, rng = call.table, np.random.default_rng(5)
    wide, of_unit = cell.gates * hidden, sum(PER_UNIT[cell.state_names])

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)

    primals = Primals(
        draw(batch, 5, 1, wide),
        draw(1, hidden, wide),
        jnp.zeros((1, wide)),
        (draw(batch, 1, hidden),) * cell.states,
        Controls(),
        draw(1, of_unit * hidden),
    )
    return call, primals, draw(batch, 5, 1, hidden)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_rows_are_the_same_bits_in_any_batch(name):
    """Of the engine: what XLA makes of x is of another order in another batch."""
    call, primals, dy = drawn(name, 11, 72)

    @jax.jit
    def run(a_x, dy, states):
        given = primals._replace(source=a_x, state_0=states)
        y, state_n, saved = ffi.forward(call, given)
        backward = ffi.backward(call, given, (y, saved), (dy, state_n))
        return y, state_n, saved, backward

    arrays = primals.source, dy, primals.state_0
    whole = run(*arrays)

    def row_of(tree, row):
        return jax.tree.map(lambda a: a[row : row + 1], tree)

    for row in (0, 8, 10):
        assert_bitwise_equal(run(*row_of(arrays, row)), row_of(whole, row))


@pytest.mark.parametrize("name", ["lstm", "lstm_torchaudio", "gru"])
def test_platforms_without_the_engine_have_the_same_gradients(name):
    """A program for several platforms keeps what the engine keeps."""
    call, primals, dy = drawn(name, 3, 9)
    y, state_n, saved = ffi.forward(call, primals)
    scanned = scan.forward(call, *primals)
    given = primals, (y, saved), (dy, state_n)
    ours = ffi.backward(call, *given)
    of_scan = scan.backward(call, primals, (dy, state_n))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, ((y, state_n, saved), ours), (scanned, of_scan))


WAYS = """
import hashlib, jax, jax.numpy as jnp, numpy as np, prnn_jax
from prnn_jax import LayerNorm, normed
digest = hashlib.sha256()
torchaudio = normed("lstm", LayerNorm(of="sum", c="state"))
for cell in (normed("lstm"), torchaudio, normed("gru")):
    params = cell.init(jax.random.key(0), 5, 72, scheme="pytorch")
    for batch in (1, 3, 13):
        x = jax.random.normal(jax.random.key(1), (batch, 6, 5))
        def loss(x, params):
            return (cell(x, params, implementation="native")[0] ** 2).sum()
        out = jax.jit(jax.value_and_grad(loss))(x, params)
        for leaf in jax.tree.leaves(out):
            digest.update(np.asarray(leaf).tobytes())
print(digest.hexdigest())
"""


def test_ways_and_threads_change_no_bit():
    ways = [{}, {"PRNN_CPU_WORKERS": "3"}] + [
        {"PRNN_CPU_PLAN": plan} for plan in ("batch", "hidden", "columns", "unpacked")
    ]
    digests = {run_python(WAYS, **way) for way in ways}
    assert len(digests) == 1, digests


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_on_each_instruction_set(isa):
    if not native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    script = """
import test_layer_norm_native as tests
for name in ("lstm", "lstm_torchaudio", "gru_each_gate"):
    tests.test_native_follows_the_scan(name, tests.OPTIONS["lengths in reverse"])
"""
    run_python(script, timeout_s=300, PRNN_CPU_ISA=isa)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_16_bits_are_stored(name, dtype):
    x, params = arrays_of(CELLS[name])
    half = jax.tree.map(lambda a: jnp.asarray(a, dtype), (x, params))

    def loss(implementation, x, params):
        y, _ = CELLS[name](x, params, implementation=implementation)
        return (y.astype(jnp.float32) ** 2).sum(), y

    def errors(implementation):
        run = jax.grad(functools.partial(loss, implementation), (0, 1), has_aux=True)
        (dx, dp), y = quick_jit(run)(*half)
        assert y.dtype == dx.dtype == dp.peepholes.dtype == dtype
        tree = y, dx, dp.w_hh, dp.peepholes
        return [
            np.abs(np.float64(a) - b).max() for a, b in zip(tree, exact, strict=True)
        ]

    with float64():
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), half)
        run = jax.grad(functools.partial(loss, "scan"), (0, 1), has_aux=True)
        (dx, dp), y = quick_jit(run)(*wide)
        exact = [np.asarray(a) for a in (y, dx, dp.w_hh, dp.peepholes)]
    for ours, of_scan in zip(errors("native"), errors("scan"), strict=True):
        assert ours <= 2 * of_scan + 1e-3


# ---- transformations -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm_torchaudio", "gru"])
def test_transformations(name):
    cell = CELLS[name]
    x, params = jax.tree.map(jnp.float32, arrays_of(cell))
    wanted = cell(x, params)[0]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    twice = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), params)
    both = jax.vmap(lambda p: cell(x, p)[0])(twice)
    close(both[0], wanted)
    close(both[1], cell(x, jax.tree.map(lambda a: 2 * a, params))[0])
    close(jax.vmap(lambda row: cell(row, params)[0])(x), wanted)

    def loss(implementation, x):
        return (cell(x, params, implementation=implementation)[0] ** 2).sum()

    def second(implementation):
        of = functools.partial(loss, implementation)
        run = jax.grad(lambda x: (jax.grad(jax.checkpoint(of))(x) ** 2).sum())
        return jax.jit(run)(x)

    ours, of_scan = second(None), second("scan")
    close(ours, of_scan, atol=1e-3 * np.abs(of_scan).max())
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(functools.partial(loss, None), (x,), (x,))
    jax.jvp(functools.partial(loss, "scan"), (x,), (x,))


@pytest.mark.parametrize("name", ["lstm", "lstm_torchaudio", "gru"])
def test_nothing_comes_of_nothing(name):
    x, params = jax.tree.map(jnp.float32, arrays_of(CELLS[name]))
    for empty in (x[:, :0], x[:0]):
        y, _ = CELLS[name](empty, params)
        assert y.shape == (*empty.shape[:2], HIDDEN)
        gradients = jax.grad(lambda p: CELLS[name](empty, p)[0].sum())(params)  # noqa: B023
        assert not any(np.any(g) for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("projects", [True, False], ids=["x", "a_x"])
def test_what_is_no_number_where_it_does_not_count(projects, implementation):
    cell = CELLS["lstm"]
    x, params = jax.tree.map(jnp.float32, arrays_of(cell))
    lengths = np.array([7, 0, 3])
    counts = np.arange(TIME)[None] < lengths[:, None]
    options = {"lengths": lengths, "implementation": implementation}
    if not projects:
        x = x @ params.w_ih

    def run(x, params):
        if projects:
            y, _ = cell(x, params, **options)
        else:
            own = {"peepholes": params.peepholes}
            y, _ = prnn_jax.recurrence(cell, x, params.w_hh, **own, **options)
        return (y**2).sum()

    run = jax.jit(jax.grad(run, (0, 1)))
    clean = run(jnp.where(counts[..., None], x, 0), params)
    dirty = run(jnp.where(counts[..., None], x, jnp.nan), params)
    assert_bitwise_equal(clean, dirty)


@pytest.mark.parametrize("name", CELLS)
def test_check_cell_finds_nothing(name):
    # Of a gate of four units alone, finite differences tell nothing.
    check_cell(CELLS[name], derivatives=CELLS[name].norm.over == "gates")
