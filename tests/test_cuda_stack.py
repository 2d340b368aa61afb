"""Layers of a stack in one call of the CUDA engine, on a GPU or emulated."""

import functools
import math
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulated import assert_as_accurate_as
from jax import random
from on_cuda import HAS_GPU, NUMBERS
from support import assert_bitwise_equal, float64

import prnn_jax
from prnn_jax import Params
from prnn_jax._engine import gpu

pytestmark = pytest.mark.skipif(
    not HAS_GPU and shutil.which("c++") is None, reason="needs c++"
)

INPUT = 5


@pytest.fixture
def stacks(cuda, monkeypatch):
    """The CUDA engine, where layers may run at once."""
    monkeypatch.setenv(gpu.STACKS_VARIABLE, "1")
    # Of a few steps the model is for turns.
    monkeypatch.setattr(gpu, "LEAST_GAIN", 0.0)
    gpu._prefers_turns.cache_clear()
    yield cuda
    gpu._prefers_turns.cache_clear()


def arrays_of(
    cell: Any, dtype, layers: int = 3, hidden: int = 24, batch=(3,), time=4, **options
):
    """Parameters and states of layers, x, and cotangents of y and of the states."""
    gates, states = {"lstm": (4, 2), "gru": (3, 1), "rnn": (1, 1)}[cell]
    rng = np.random.default_rng(7)

    def draw(*shape: int) -> Any:
        scale = 1.5 / math.sqrt(shape[-2]) if len(shape) > 1 else 0.5
        return rng.uniform(-scale, scale, shape)

    columns = gates * hidden
    params = [
        Params(
            draw(INPUT if n == 0 else hidden, columns),
            draw(hidden, columns),
            draw(columns),
            draw(columns),
        )
        for n in range(layers)
    ]
    sequence = (time, *batch) if options.get("time_major") else (*batch, time)

    def state():
        each = tuple(draw(*batch, hidden) for _ in range(states))
        return each if states > 1 else each[0]

    def every():
        return [state() for _ in range(layers)]

    given = params, every(), draw(*sequence, INPUT)
    cotangents = draw(*sequence, hidden), tuple(every())
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), (given, cotangents))


def run(cell: Any, given, cotangents, **options) -> dict[str, np.ndarray]:
    """y, states and all gradients, by name."""

    @jax.jit
    def both(given, cotangents):
        def forward(params, states, x):
            return prnn_jax.stack(cell, x, params, states, **options)

        out, vjp = jax.vjp(forward, *given)
        return out, vjp(cotangents)

    out = jax.block_until_ready(both(given, cotangents))
    named, _ = jax.tree.flatten_with_path(out)
    return {jax.tree_util.keystr(path): np.asarray(a) for path, a in named}


def check(cell: str, number: str, **sizes) -> None:
    """As accurate as the layers' scans, by float64."""
    options = {k: sizes[k] for k in ("time_major", "reverse") if k in sizes}
    dtype = "float32" if number == "tf32" else number
    with jax.default_matmul_precision("highest" if number == "float32" else "default"):
        ours = run(cell, *arrays_of(cell, dtype, **sizes), **options)
    by_scan = functools.partial(run, implementation="scan", **options)
    bound = "float16" if number == "tf32" else number
    with jax.default_device(jax.devices("cpu")[0]):
        of_scan = by_scan(cell, *arrays_of(cell, bound, **sizes))
        with float64():
            exact = by_scan(cell, *arrays_of(cell, np.float64, **sizes))
    assert_as_accurate_as(ours, of_scan, exact, bound)


@pytest.mark.cuda
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_is_as_accurate_as_layers_one_after_the_other(stacks, cell, number):
    # 37 units fill no granule: values go through a mailbox of their own.
    check(cell, number, hidden=37)
    stacks.expect("forward:grid", "backward:grid")


SIZES = [
    {"layers": 2, "hidden": 64, "batch": (), "time": 1},
    {"layers": 5, "hidden": 24, "batch": (2, 3), "time_major": True},
    {"layers": 3, "hidden": 40, "batch": (20,), "time": 2},
]


@pytest.mark.cuda
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(stacks, sizes):
    check("lstm", "bfloat16", **sizes)
    stacks.expect("forward:grid", "backward:grid")


def layers(cell="lstm", **sizes):
    (params, states, x), _ = arrays_of(cell, "float32", **sizes)
    return params, states, x


ALONE = {
    "another cell": {"cell": "gru", "reset_after": False},
    "lengths": {"lengths": np.array([4, 2, 3])},
    "a mask": {"mask": np.ones((3, 4))},
    "resets": {"resets": np.zeros((3, 4), bool)},
    "skip connections": {"skip_connections": True},
    "dropout": {"dropout": 0.5, "key": random.key(0)},
    "the mean of zoneout": {"zoneout": 0.1},
    "clip": {"clip": prnn_jax.Clip(state=1.0)},
    "lean": {"reserve": "lean"},
}


@pytest.mark.parametrize("options", ALONE.values(), ids=ALONE)
def test_layers_with_more_than_the_step_take_turns(stacks, options):
    cell = options.get("cell", "lstm")
    if cell == "gru":
        keys = random.split(random.key(1), 2)
        params = [
            prnn_jax.init("gru", k, INPUT if n == 0 else 8, 8)
            for n, k in enumerate(keys)
        ]
        x = jnp.ones((3, 4, INPUT))
    else:
        params, _, x = layers(layers=2, hidden=8)
    given = {k: v for k, v in options.items() if k != "cell"}
    jax.block_until_ready(jax.jit(lambda: prnn_jax.stack(cell, x, params, **given))())
    if not HAS_GPU:
        assert len(stacks.ran) == 2


def test_layers_take_turns_unless_asked(stacks, monkeypatch):
    params, states, x = layers(layers=2, hidden=8)
    for value in "0", "":
        monkeypatch.setenv(gpu.STACKS_VARIABLE, value)
        stacks.use()
        run_it = jax.jit(lambda: prnn_jax.stack("lstm", x, params, states))
        jax.block_until_ready(run_it())
        if not HAS_GPU:
            assert len(stacks.ran) == 2


def test_a_wrong_layer_is_named(stacks):
    params, states, x = layers(layers=3, hidden=8)
    wrong = [*params[:2], params[2]._replace(w_ih=jnp.zeros((9, 32)))]
    with pytest.raises(
        ValueError, match=r"stack, layer 2: w_ih must be for an input of 8"
    ):
        prnn_jax.stack("lstm", x, wrong, states)


@pytest.mark.parametrize("of_weights", [False, True], ids=["data", "weights"])
def test_vmap(stacks, of_weights):
    """Rows, or weights, of which each has a call."""
    params, states, x = layers(layers=2, hidden=8)

    def loss(params, x):
        return (prnn_jax.stack("lstm", x, params, states)[0] ** 2).sum()

    def times(scale):
        return jax.tree.map(lambda w: w * scale, params)

    gradient = jax.grad(loss, (0, 1))
    scaled = jnp.asarray([1.0, 0.5, 2.0])
    if of_weights:
        several = jax.vmap(lambda s: gradient(times(s), x))
        one = [gradient(times(s), x) for s in scaled]
    else:
        several = jax.vmap(lambda s: gradient(params, x * s))
        one = [gradient(params, x * s) for s in scaled]
    want = jax.tree.map(lambda *each: jnp.stack(each), *one)
    got = jax.jit(several)(scaled)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_prepared_layers_are_constants(stacks):
    params, states, x = layers(layers=2, hidden=8)
    prepared = [prnn_jax.prepare("lstm", p, batch=3, time=4) for p in params]

    def loss(layers, x):
        return (prnn_jax.stack("lstm", x, layers, states)[0] ** 2).sum()

    at_once = jax.jit(jax.grad(loss, (0, 1), allow_int=True))
    of_layers, dx = jax.block_until_ready(at_once(prepared, x))
    stacks.expect("forward:grid", "backward:grid")
    assert not any(np.any(p.params.w_ih) or np.any(p.params.w_hh) for p in of_layers)
    np.testing.assert_allclose(dx, at_once(params, x)[1], rtol=1e-5)


def test_second_derivative_is_that_of_layers_one_after_the_other(stacks):
    params, states, x = layers(layers=2, hidden=8, batch=(1,), time=2)

    def penalty(x, **options):
        def loss(x):
            return (prnn_jax.stack("lstm", x, params, states, **options)[0] ** 2).sum()

        return (jax.grad(loss)(x) ** 2).sum()

    with jax.default_matmul_precision("highest"):
        got = jax.jit(jax.grad(penalty))(x)
        want = jax.grad(functools.partial(penalty, implementation="scan"))(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_is_torchs_layer_of_several(stacks, cell):
    """With the parameters that torch has drawn."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    layer = getattr(torch.nn, cell.upper())(INPUT, 24, 3, batch_first=True)
    x = torch.randn(3, 7, INPUT)
    with torch.no_grad():
        want, last = layer(x)
    params = prnn_jax.convert.from_pytorch(cell.upper(), layer.state_dict())
    with jax.default_matmul_precision("highest"):
        run_it = jax.jit(lambda: prnn_jax.stack(cell, x.numpy(), params))
        y, states = jax.block_until_ready(run_it())
    stacks.expect("forward:grid")
    np.testing.assert_allclose(y, want, atol=1e-6)
    hidden = states if cell != "lstm" else [h for h, _ in states]
    np.testing.assert_allclose(hidden, last if cell != "lstm" else last[0], atol=1e-6)


@pytest.mark.parametrize("seed", range(1, 4))
def test_schedules_do_not_matter(stacks, seed):
    if HAS_GPU:
        pytest.skip("has no seed")
    seen = []
    for each in 0, seed:
        stacks.use(seed=each)
        seen.append(run("lstm", *arrays_of("lstm", "bfloat16", hidden=37)))
    assert_bitwise_equal(*seen)
