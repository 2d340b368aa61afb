"""Sharded programs: what is communicated, and that the numbers are those of one device.

The call inside a user's shard_map is in test_devices.py.
"""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sharded import CASES
from support import run_python

EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"
SCRIPT = Path(__file__).parent / "sharded.py"


@pytest.mark.parametrize("name", CASES)
def test_batch_and_heads_stay_apart(name):
    lines = run_python(SCRIPT, name, XLA_FLAGS=EIGHT_DEVICES).splitlines()
    reports = [json.loads(line) for line in lines]
    assert len(reports) == (12 if CASES[name].heads else 4)
    for report in reports:
        is_gradient = report["direction"] != "forward"
        assert (report["forward"], report["backward"]) == (1, int(is_gradient)), report
        # The sum of the weights' gradients over the batch; where heads are apart, that
        # of the input's over the heads, too.
        of_input = report["direction"] == "gradient" and "heads" in report["mesh"]
        sums = 2 if of_input else 1
        expected = {"all-reduce": sums} if is_gradient else {}
        assert report["collectives"] == expected, report
        # Sums over shards have another order: roundings of values up to 100.
        assert report["error"] < (1e-3 if is_gradient else 1e-5), report


MISPLACED = """
import jax, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import prnn_jax
from cases import Case
case = Case("lstm", 8, (16,), 8, 4)
arrays = case.inputs()
with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))):
    arrays["x"] = jax.device_put(arrays["x"], P(None, "data"))
    try:
        case.run(arrays)
    except ValueError as error:
        print(error)
"""


def test_a_sharded_time_axis_is_an_error_where_meshes_are_explicit():
    message = run_python(MISPLACED, XLA_FLAGS=EIGHT_DEVICES)
    assert "the time axis must not be sharded, but is over mesh axis 'data'" in message


UNPLACED = """
import jax, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import prnn_jax
x = np.random.default_rng(0).standard_normal((8, 6, 5)).astype("f")
for cell in ("lstm", "gru", "rnn", "slstm"):
    params = prnn_jax.init(cell, jax.random.key(0), 5, 7)
    def loss(params, x):
        return (getattr(prnn_jax, cell)(x, params)[0] ** 2).sum()
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    expected = gradient(params, x)
    with jax.set_mesh(jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))):
        put = jax.device_put(x, P("d"))
        closed = jax.jit(lambda x: jax.grad(loss, (0, 1))(params, x))
        for found in (gradient(params, put), closed(put)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
                         jax.device_get(found), jax.device_get(expected))
"""


def test_weights_made_before_an_explicit_mesh_have_gradients():
    run_python(UNPLACED, XLA_FLAGS=EIGHT_DEVICES)


OTHER_MESHES = """
import contextlib, jax, numpy as np, sys
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import prnn_jax
x = np.random.default_rng(0).standard_normal((8, 6, 5)).astype("f")
with_gspmd = sys.argv[1] == "gspmd"
jax.config.update("jax_use_shardy_partitioner", not with_gspmd)
kinds = (AxisType.Auto if with_gspmd else AxisType.Explicit, AxisType.Auto)
mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=kinds)
for cell, implementation in (("lstm", "native"), ("gru", "native"), ("rnn", "scan")):
    params = prnn_jax.init(cell, jax.random.key(0), 5, 7)
    def loss(params, x):
        run = getattr(prnn_jax, cell)
        return (run(x, params, implementation=implementation)[0] ** 2).sum()
    gradient = jax.grad(loss, (0, 1))
    expected = jax.jit(gradient)(params, x)
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    put = jax.device_put(params, whole), jax.device_put(x, rows)
    with contextlib.nullcontext() if with_gspmd else jax.set_mesh(mesh):
        found = jax.jit(gradient)(*put)
    assert found[1].sharding.is_equivalent_to(rows, 3), found[1].sharding
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
                 jax.device_get(found), jax.device_get(expected))
"""


@pytest.mark.parametrize("kind", ["explicit and auto", "gspmd"])
def test_meshes_of_two_kinds_and_programs_that_gspmd_divides(kind):
    run_python(OTHER_MESHES, kind, XLA_FLAGS=EIGHT_DEVICES)


WITHOUT_A_CONTEXT = """
import equinox, jax, jax.numpy as jnp, numpy as np, prnn_jax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import prnn_jax.equinox, prnn_jax.nnx
key = jax.random.key
x = jax.random.normal(key(0), (4, 6, 8))
lengths, resets = jnp.array([6, 2, 3, 0]), jnp.zeros((4, 6), bool).at[:, 2].set(True)
normed = prnn_jax.normed("gru")
def statistics(x, p):
    found = prnn_jax.statistics("lstm", x, p)
    return jnp.stack([jnp.float32(a.sum()) for a in jax.tree.leaves(found)])
CALLS = {
    "lstm": lambda x, p: prnn_jax.lstm(x, p, lengths=lengths, resets=resets)[0],
    "scan": lambda x, p: prnn_jax.lstm(x, p, implementation="scan")[0],
    "gru": lambda x, p: prnn_jax.gru(x, p, bidirectional=True)[1],
    "min_gru": lambda x, p: prnn_jax.min_gru(x, p)[0],
    "indrnn": lambda x, p: prnn_jax.indrnn(x, p)[0],
    "normed": lambda x, p: normed(x, p)[0],
    "stack": lambda x, p: prnn_jax.stack("lstm", x, [p, p])[0],
    "statistics": statistics,
    "nnx": lambda x, p: p(x),
    "equinox": lambda x, p: jax.vmap(p)(x)[0],
}
PARAMS = {
    "gru": prnn_jax.init("gru", key(1), 8, 8, bidirectional=True),
    "min_gru": jax.random.normal(key(1), (8, 16)),
    "indrnn": prnn_jax.Params(jnp.eye(8), jnp.ones(8) / 2),
    "normed": normed.init(key(1), 8, 8),
    "nnx": prnn_jax.nnx.LSTM(8, 8, rngs=nnx.Rngs(0)),
    "equinox": prnn_jax.equinox.LSTM(8, 8, key=key(1)),
}
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
split, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
for name, call in CALLS.items():
    given = PARAMS.get(name, prnn_jax.init("lstm", key(1), 8, 8))
    arrays, rest = equinox.partition(given, equinox.is_array)
    def run(x, arrays):
        return call(x, equinox.combine(arrays, rest))
    ways = {"eager": run, "jit": jax.jit(run)}
    if name != "statistics":
        def loss(x, arrays):
            return sum((a ** 2).sum() for a in jax.tree.leaves(run(x, arrays)))
        ways["grad"] = jax.jit(jax.grad(loss, (0, 1)))
    for way, function in ways.items():
        expected = function(x, arrays)
        for of_x, of_arrays in ((split, whole), (split, None), (whole, whole)):
            put = jax.device_put(x, of_x)
            its = arrays if of_arrays is None else jax.device_put(arrays, of_arrays)
            if of_arrays is None and way != "jit":
                continue  # JAX itself has no eager operation of both
            found = function(put, its)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(
                a, b, rtol=1e-5, atol=1e-5, err_msg=f"{name} {way}"),
                jax.device_get(found), jax.device_get(expected))
"""


def test_an_explicit_mesh_need_not_be_set():
    """Arrays that were put on it tell it, as they do JAX's own operations."""
    run_python(WITHOUT_A_CONTEXT, XLA_FLAGS=EIGHT_DEVICES.replace("8", "2"))


FROM_THE_HOST = """
import jax, numpy as np
from jax.sharding import AxisType
from cases import Case
case = Case("lstm", 6, (16,), 33, 5, heads=2)
arrays, cotangents = case.inputs(), case.cotangents()
expected = case.forward()(arrays), case.gradient()(arrays, cotangents)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
with jax.set_mesh(mesh):
    found = case.forward()(arrays), case.gradient()(arrays, cotangents)
assert len(jax.tree.leaves(found)[0].sharding.device_set) == 8
jax.tree.map(np.testing.assert_array_equal, found, expected)
"""


def test_arrays_of_the_host_are_whole_on_every_device():
    run_python(FROM_THE_HOST, XLA_FLAGS=EIGHT_DEVICES)


PROCESS = """
import sys, functools
import jax, jax.numpy as jnp, numpy as np
rank, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, rank)
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from cases import Case
from sharded import loss
assert jax.device_count() == 4 and jax.local_device_count() == 2
case = Case("lstm", 6, (8,), 33, state=False)
others = case.inputs()
x = others.pop("x")
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
def place(value, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])
args = place(x, P("data")), jax.tree.map(lambda v: place(v, P()), others)
step = jax.value_and_grad(functools.partial(loss, case, None), 1)
compiled = jax.jit(step).lower(*args).compile()
text = compiled.as_text()
assert "all-gather" not in text and 'target="prnn_backward"' in text
value, gradients = compiled(*args)
expected = jax.value_and_grad(functools.partial(loss, case, "scan"), 1)(x, others)
local = lambda a: np.asarray(a.addressable_shards[0].data)
np.testing.assert_allclose(local(value), expected[0], rtol=1e-5)
for name in others:
    np.testing.assert_allclose(
        local(gradients[name]), expected[1][name], rtol=1e-4, atol=1e-4
    )
print("equal")
"""


def test_two_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    two = "--xla_force_host_platform_device_count=2"

    def process(rank: str) -> str:
        return run_python(PROCESS, rank, port, XLA_FLAGS=two)

    with ThreadPoolExecutor(2) as pool:
        assert all("equal" in out for out in pool.map(process, ("0", "1")))
