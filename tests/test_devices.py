"""Several devices, threads and processes.

XLA runs the shards of a program at the same time, on one pool of threads. An engine
whose threads wait for each other could wait for ever there: hence the time limits.

Fork: a child of `os.fork` has only the thread that forked, not those of XLA's pool.
After a parent has used JAX, any JAX call in the child hangs, with or without this
package. What works, as is tested here, is `multiprocessing` with "spawn" or
"forkserver", and a fork before JAX is used for the first time.
"""

import pytest
from support import run_python

EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"
TIMEOUT_S = 120

PRELUDE = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import prnn_jax
from cases import Case
from support import assert_bitwise_equal

assert jax.device_count() == 8

def close(ours, theirs):
    # Sums over shards are in another order than sums over the batch: some roundings of
    # values of up to about 100.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4),
        ours,
        theirs,
    )

def loss(case, implementation, x, weights):
    y, state = case.run({**weights, "x": x}, implementation)
    return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)

def inputs(case):
    weights = case.inputs()
    return weights.pop("x"), weights
"""

SHARD_MAP = """
# Small, so that shards meet often; and large enough for shards to split their units.
for case in (
    Case("lstm", 16, (16,), 33), Case("gru_reset_before", 8, (8,), 385),
    Case("rnn_tanh", 16, (16,), 17, bidirectional=True), Case("gru", 8, (8,), 385),
):
    x, weights = inputs(case)
    mesh = jax.make_mesh((8,), ("data",))

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data")
    )
    def forward(x, weights):
        return case.run({**weights, "x": x}, "native")[0]

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("data"), P()), out_specs=(P("data"), P())
    )
    def gradient(x, weights):
        # The weights are the same on all devices, so their gradient is summed by JAX.
        return jax.grad(functools.partial(loss, case, "native"), (0, 1))(x, weights)

    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        y, gradients = forward(x, weights), gradient(x, weights)
        text = gradient.lower(x, weights).compile().as_text()
        assert text.count('custom_call_target="prnn_backward"') == 1
        assert "all-gather" not in text
        for n in range(ITERATIONS):
            assert_bitwise_equal(forward(x, weights), y)
            assert_bitwise_equal(gradient(x, weights), gradients)
    x, weights = inputs(case)
    close(y, case.run({**weights, "x": x}, "scan")[0])
    whole = jax.grad(functools.partial(loss, case, "scan"), (0, 1))
    close(gradients, whole(x, weights))
"""

PMAP = """
case = Case("lstm", 16, (2,), 33)
x, weights = inputs(Case("lstm", 16, (8, 2), 33))

@functools.partial(jax.pmap, in_axes=(0, None), axis_name="data")
def gradient(x, weights):
    gradients = jax.grad(functools.partial(loss, case, "native"), 1)(x, weights)
    return jax.lax.psum(gradients, "data")

first = gradient(x, weights)
for n in range(ITERATIONS):
    assert_bitwise_equal(gradient(x, weights), first)
whole = jax.grad(functools.partial(loss, Case("lstm", 16, (8, 2), 33), "scan"), 1)
close(jax.tree.map(lambda v: v[0], first), whole(x, weights))
"""

AUTO = """
# Without shard_map the call is right, though XLA gathers its arguments.
case = Case("gru", 16, (16,), 33)
x, weights = inputs(case)
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
sharded = jax.device_put(x, NamedSharding(mesh, P("data")))
gradient = jax.jit(jax.grad(functools.partial(loss, case, None), (0, 1)))
close(gradient(sharded, weights), gradient(x, weights))
"""


SCRIPTS = {"shard_map": SHARD_MAP, "pmap": PMAP, "auto": AUTO}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_eight_devices(kind):
    code = PRELUDE + SCRIPTS[kind].replace("ITERATIONS", "40")
    run_python(code, timeout_s=TIMEOUT_S, XLA_FLAGS=EIGHT_DEVICES)


def test_one_thread_for_eight_devices():
    """A pool with no thread to spare costs speed, never progress."""
    code = PRELUDE + SHARD_MAP.replace("ITERATIONS", "5")
    one_core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    run_python(
        one_core + code, timeout_s=TIMEOUT_S, XLA_FLAGS=EIGHT_DEVICES, PJRT_NPROC="1"
    )


@pytest.mark.parametrize("threads", [2, 6])
def test_python_threads_at_once(threads):
    script = """
import sys, threading
import jax
from cases import Case
from support import assert_bitwise_equal

cases = [Case("lstm", 12, (1,), 385), Case("gru_reset_before", 12, (9,), 33),
         Case("gru", 12, (3,), 257)]
calls = [(case.gradient("native"), case.inputs(), case.cotangents()) for case in cases]
expected = [jax.block_until_ready(f(a, d)) for f, a, d in calls]
done = []

def work(first):
    for n in range(60):
        f, arrays, cotangents = calls[(first + n) % 3]
        assert_bitwise_equal(f(arrays, cotangents), expected[(first + n) % 3])
    done.append(first)

count = int(sys.argv[1])
threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == list(range(count)), done
"""
    run_python(script, str(threads), timeout_s=TIMEOUT_S)


def test_many_short_calls_and_a_clean_exit():
    """Threads that come late to a call that has ended must find that out and go."""
    script = """
import jax
from cases import Case
case = Case("gru", 2, (1,), 385)
forward = case.forward("native")
arrays = jax.device_put(case.inputs())
for n in range(3000):
    out = forward(arrays)
jax.block_until_ready(out)
"""
    run_python(script, timeout_s=TIMEOUT_S)
    run_python(script, timeout_s=TIMEOUT_S, PJRT_NPROC="8")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing(method, tmp_path):
    """Child processes that import JAX anew, after the parent has used it."""
    path = tmp_path / "script.py"  # children import it, so it must be a file
    path.write_text(
        """
import multiprocessing, sys
import numpy as np
from cases import Case

case = Case("lstm", 9, (3,), 65)

def work(n):
    return np.asarray(case.forward("native")(case.inputs())[0])

if __name__ == "__main__":
    here = work(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for there in pool.map(work, range(4)):
            np.testing.assert_array_equal(there, here)
    print("same")
"""
    )
    assert run_python(path, method, timeout_s=TIMEOUT_S) == "same\n"


def test_fork_before_jax_is_used():
    script = """
import os, sys
import numpy as np

def digest():
    from cases import Case
    case = Case("lstm", 9, (3,), 65)
    return np.asarray(case.forward("native")(case.inputs())[0]).tobytes()

read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        pipe.write(digest())
    os._exit(0)
os.close(write)
with os.fdopen(read, "rb") as pipe:
    there = pipe.read()
_, status = os.waitpid(child, 0)
assert status == 0, status
assert there == digest() and there
"""
    run_python(script, timeout_s=TIMEOUT_S)
