"""The CUDA engine's own host path, over a strict fake of the CUDA runtime.

`cuda/launch.cc`, `cuda/instances.cu`, `ffi/cuda_handlers.cc` as they are. The runtime
(tests/fake_cuda) refuses what CUDA's documentation says is refused; kernels run in the
emulator.
"""

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case
from cuda_plans import planned
from emulated import emulation, forward
from jax import export
from support import assert_bitwise_equal, run_python

import prnn_jax

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs c++")

# One kernel for both in each pass and exchange, with less shared memory and with more.
SMALL, LARGE = (Case("lstm", 2, (2,), hidden, 3, state=True) for hidden in (40, 72))
ERROR = jax.errors.JaxRuntimeError


@pytest.fixture
def cuda(monkeypatch):
    with emulation(monkeypatch) as session:
        yield session


def training(case: Case):
    """Results and gradients, compiled now; a function without arguments."""
    dtype = "float32"
    arrays, cotangents = case.inputs(dtype), case.cotangents(dtype)

    @jax.jit
    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, "native"), arrays)
        return out, vjp(cotangents)

    compiled = run.lower(arrays, cotangents).compile()
    return lambda: jax.block_until_ready(compiled(arrays, cotangents))


def plan_of(case: Case, kind: str, exchange: str) -> dict:
    """The fastest plan of a float32 case with an exchange."""
    planning = planned(
        case.cell,
        kind,
        "float32",
        time=case.time,
        batch=case.batch[0],
        hidden=case.hidden,
    )
    found = [
        candidate["plan"]
        for candidate in planning["candidates"]
        if candidate["exchange"] == exchange and candidate["plan"]
    ]
    return min(found, key=lambda plan: plan["call_us"])


@pytest.mark.parametrize(
    "order", [(LARGE, SMALL), (SMALL, LARGE)], ids=["large first", "small first"]
)
@pytest.mark.parametrize("exchange", ["block", "cluster"])
def test_plans_of_one_kernel_do_not_take_from_each_other(cuda, order, exchange):
    """All are prepared before any runs, as XLA does; then each runs."""
    for kind in ("forward", "backward"):
        small, large = (plan_of(case, kind, exchange) for case in (SMALL, LARGE))
        assert small["tile"] == large["tile"]
        assert small["shared_bytes"] < large["shared_bytes"]
    programs = [training(case) for case in order]
    cuda.use(exchange=exchange)
    expected = [program() for program in programs]
    cuda.use(exchange=exchange)
    cuda.stages(execute=False)
    for program in programs:
        program()
    assert cuda.launches == []
    cuda.stages(initialize=False)
    for program, result in zip(programs, expected, strict=True):
        assert_bitwise_equal(program(), result)
    assert cuda.ran == [f"forward:{exchange}", f"backward:{exchange}"] * 2


def test_calls_with_controls_have_kernels_of_their_own(cuda):
    """Of one shape, both are prepared before any runs: they need more than 48 KB."""
    plain = dataclasses.replace(LARGE, hidden=200)
    cases = plain, dataclasses.replace(plain, controls=("lengths",))
    assert plan_of(plain, "forward", "cluster")["shared_bytes"] > 48 * 1024
    programs = [training(case) for case in cases]
    cuda.use(exchange="cluster")
    cuda.stages(execute=False)
    for program in programs:
        program()
    cuda.stages(initialize=False)
    for program in programs:
        program()
    assert cuda.ran == ["forward:cluster", "backward:cluster"] * 2


def test_a_captured_call_is_replayed(cuda):
    program = training(SMALL)
    cuda.use(exchange="grid")
    once = program()
    cuda.use(exchange="grid")
    cuda.stages(replays=3)
    assert_bitwise_equal(program(), once)
    assert cuda.ran == ["forward:grid", "backward:grid"]


def test_what_is_not_prepared_cannot_be_while_it_is_captured(cuda):
    """So that `initialize` is what loads kernels: else the capture would be lost."""
    program = forward(SMALL)
    cuda.use()
    cuda.stages(initialize=False, replays=1)
    with pytest.raises(ERROR, match="not permitted when stream is capturing"):
        program()
    cuda.stages()
    program()


def test_two_threads(cuda):
    """Neither has anything prepared when both begin."""
    programs = [training(case) for case in (SMALL, LARGE)]
    cuda.use(exchange="block")
    expected = [program() for program in programs]
    cuda.use(exchange="block")
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(program) for program in 2 * programs]
    for future, result in zip(found, 2 * expected, strict=True):
        assert_bitwise_equal(future.result(), result)
    assert len(cuda.ran) == 8


def test_grids_of_two_streams_run_one_after_the_other(cuda):
    """The driver need not see to it: each might get a part of the SMs and wait."""
    program = training(SMALL)
    cuda.use(exchange="grid")
    expected = program()
    cuda.use(exchange="grid")
    with ThreadPoolExecutor(3) as threads:  # the fake has a stream for each
        found = [threads.submit(program) for _ in range(12)]
    for future in found:
        assert_bitwise_equal(future.result(), expected)
    assert len(cuda.ran) == 24
    assert not cuda.grids_overlapped


def test_two_devices():
    """In one program, and apart: each device has its own kernels to prepare."""
    run_python(TWO_DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2")


TWO_DEVICES = """
import jax, numpy as np, pytest
from jax.sharding import AxisType, PartitionSpec as P
from cases import Case
from emulated import emulation
from support import assert_bitwise_equal

case = Case("lstm", 2, (2,), 72, 3)
arrays = case.inputs("float32")
arrays, x = {n: a for n, a in arrays.items() if n != "x"}, np.concatenate(
    [arrays["x"], arrays["x"][::-1]])
run = lambda arrays, x: case.run({**arrays, "x": x}, "native")[0]
with emulation(pytest.MonkeyPatch()) as cuda:
    cuda.use(exchange="block", count=2)
    apart = []
    for n, device in enumerate(jax.devices()):
        here = jax.device_put((arrays, x[2 * n : 2 * n + 2]), device)
        apart.append(np.asarray(jax.jit(run)(*here)))
    assert cuda.calls["cudaGetDeviceProperties"] == 2
    assert_bitwise_equal(apart[1], apart[0][::-1])
    cuda.use(exchange="block", count=2)
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": (P(), P("batch")), "out_specs": P("batch")}
    split = jax.shard_map(run, mesh=mesh, check_vma=False, **specs)
    together = np.asarray(jax.jit(split)(arrays, x))
    assert cuda.ran == ["forward:block"] * 2
    assert_bitwise_equal(together, np.concatenate(apart))
"""


def test_the_device_of_a_call_is_made_current(cuda):
    """And the thread's own afterwards: the fake fails a call that changes it."""
    program = forward(SMALL)
    cuda.use(exchange="grid")  # not device 0, which is the thread's
    cuda.fail("", 0)
    program()
    stages = 2
    assert cuda.calls["cudaSetDevice"] == 2 * stages


# By an exchange, the functions that its calls make, in order, and what is said where
# one fails; None where another plan is taken.
LAUNCH, STATES = "the launch failed", "the states cannot be handed on"
FUNCTIONS = {
    "grid": {
        "cudaGetDevice": "the current device is unknown",
        "cudaSetDevice": "the device cannot be selected",
        "cudaGetDeviceProperties": "the device cannot be read",
        "cudaEventCreateWithFlags": "no event for the order of launches",
        "cudaHostAlloc": "no memory for the watchdog's report",
        "cudaHostGetDevicePointer": "the watchdog's report cannot be mapped",
        "cudaFuncSetAttribute": None,
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor": None,
        "cudaStreamIsCapturing": "whether the stream is captured is unknown",
        "cudaStreamWaitEvent": "the launch cannot wait for the one before",
        "cudaMemsetAsync": LAUNCH,
        "cudaLaunchKernelExC": LAUNCH,
        "cudaEventRecord": "the launch cannot be recorded",
    },
    "": {"cudaOccupancyMaxActiveClusters": None},
}


@pytest.mark.parametrize("exchange", FUNCTIONS)
def test_an_error_of_each_call_is_told_and_forgotten(cuda, exchange):
    """The next call works: these errors are none that stay with the device."""
    case = SMALL if exchange else CLUSTERS
    program = forward(case)
    cuda.use(exchange=exchange)
    cuda.fail("", 0)
    expected = program()
    messages = FUNCTIONS[exchange]
    if exchange:
        assert set(cuda.calls) == set(messages)
    for function, message in messages.items():
        cuda.use(exchange=exchange)
        cuda.fail(function)
        if message is None:
            program()
            assert cuda.calls[function] > 1
        else:
            with pytest.raises(ERROR, match=f"prnn_jax: {message}: invalid argument"):
                program()
            assert cuda.ran == []
            assert_bitwise_equal(program(), expected)
        assert cuda.host_blocks(cuda.first_device) == 1  # the watchdog's, kept for good


@pytest.mark.parametrize("function", ["cudaMemcpyAsync", "cudaMemsetAsync"])
def test_an_error_of_a_call_of_no_steps(cuda, function):
    arrays = jax.tree.map(jnp.asarray, SMALL.inputs())
    weights = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    state_0 = arrays["h_0"], arrays["c_0"]

    def train(x):
        def run(state_0, reset_to):
            resets = {"resets": x[:, 1:, 0] > 0, "reset_to": reset_to}
            return prnn_jax.lstm(
                x[:, 1:], weights, state_0, **resets, implementation="native"
            )[1]

        state, vjp = jax.vjp(run, state_0, state_0)
        return state, vjp(state)

    # Only where the number of steps is not known beforehand is a call of none made.
    (time,) = export.symbolic_shape("time")
    checks = [
        export.DisabledSafetyCheck.custom_call(f"prnn_{name}_emulated")
        for name in ("forward", "backward")
    ]
    exported = export.export(jax.jit(train), disabled_checks=checks)(
        jax.ShapeDtypeStruct((2, time, SMALL.input_size), "float32")
    )
    call, x = jax.jit(exported.call), arrays["x"][:, :1]
    cuda.fail("", 0)
    zeros = jax.tree.map(np.zeros_like, state_0)
    expected = jax.block_until_ready(call(x))
    assert_bitwise_equal(expected, (state_0, (state_0, zeros)))
    assert "cudaLaunchKernelExC" not in cuda.calls
    for nth in range(1, cuda.calls[function] + 1):
        cuda.fail(function, nth)
        # Which of the two is JAX's affair: it differs between calls of one program.
        with pytest.raises((ERROR, ValueError), match=f"prnn_jax: {STATES}: invalid"):
            jax.block_until_ready(call(x))
        assert_bitwise_equal(jax.block_until_ready(call(x)), expected)


# ---- what a driver refuses -----------------------------------------------------------

#: The planner takes a cluster, and has other plans.
CLUSTERS = Case("gru", 2, (1,), 40, 3)


def assert_close(ours, theirs) -> None:
    """Another order of sums, in bfloat16, of values up to 1."""
    for our, their in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(our.astype("f4"), their.astype("f4"), atol=0.02)


@pytest.mark.parametrize("limit", [{"largest_cluster": 1}, {"shared_bytes": 52 << 10}])
def test_a_plan_that_the_driver_refuses_is_another_plan(cuda, limit):
    """No room for a cluster; none for a block of so much shared memory."""
    program = forward(CLUSTERS)
    expected = program()
    assert cuda.launches == ["forward:cluster:2"]
    cuda.use(**limit)
    assert_close(program(), expected)
    assert cuda.launches == ["forward:grid"]


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ("block", "needs 1 block resident at once, but this process can have 0"),
        ("cluster", "cannot run a cluster of 2 blocks now"),
        ("grid", r"needs \d+ blocks resident at once, but this process can have 0"),
    ],
)
def test_no_plan_that_the_driver_takes(cuda, exchange, message):
    program = forward(CLUSTERS)
    cuda.use(exchange=exchange, shared_bytes=8 << 10)
    with pytest.raises(ERROR, match=message):
        program()
    assert cuda.launches == []


def test_a_build_without_kernels_for_the_device(cuda):
    program = forward(SMALL)
    cuda.use(has_image=False)
    with pytest.raises(ERROR, match="has no kernels for NVIDIA H200"):
        program()


def test_an_exchange_without_a_plan(cuda):
    program = forward(Case("lstm", 2, (1,), 200, 3))
    cuda.use(exchange="block")
    with pytest.raises(ERROR, match="no plan has PRNN_CUDA_EXCHANGE=block"):
        program()
