"""The CUDA engine from the public functions down: on a GPU, or emulated."""

import functools
import math
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import on_cuda
import pytest
from cases import CELLS, Case
from emulated import EXCHANGES, results
from on_cuda import HAS_GPU, NUMBERS, check
from support import assert_bitwise_equal

import prnn_jax

pytestmark = pytest.mark.skipif(
    not HAS_GPU and shutil.which("c++") is None, reason="needs c++"
)


@pytest.mark.cuda
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("cell", CELLS)
def test_is_as_accurate_as_the_scan(cuda, cell, number, exchange):
    # H fills no tile and no granule; half precision so takes the padded mailbox. The
    # gradient of a ReLU jumps: fewer values, so that none comes near where it does.
    sizes = (2, (1,), 37) if "relu" in cell else (5, (3,), 37)
    cuda.use(exchange=exchange)
    check(Case(cell, *sizes, bidirectional=True, state=True), number)
    cuda.expect(f"forward:{exchange}", f"backward:{exchange}")


# Sizes and options apart from the table of all formats: what each adds, once.
SHAPES = [
    Case("lstm", 1, (1,), 1, 1),
    Case("gru", 9, (1,), 33, reverse=True, state=True),
    Case("gru_reset_before", 9, (2,), 40, reverse=True, time_major=True, state=True),
    Case("gru_reset_before", 0, state=True),
    Case("rnn_tanh", 4, (), 7, state=True),
    Case("lstm", 3, (2, 3), 24, time_major=True, state=True),
    Case("gru", 3, (17,), 40, bidirectional=True, reverse=True, time_major=True),
    Case("rnn_tanh_skip", 3, (9,), 129, state=True),
    Case("lstm", 2, (3,), 200, biases=()),
    Case("lstm", 0, state=True),
]


@pytest.mark.cuda
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_sizes_and_options(cuda, case):
    """With the plan of the planner's choice."""
    check(case, "bfloat16")
    if not HAS_GPU:
        assert len(cuda.ran) == (2 if case.time else 0)


def test_rows_beyond_a_tile_take_rounds(emulated):
    emulated.use(exchange="grid", device="NVIDIA H200 MIG 1g.18gb")
    check(Case("gru", 3, (40,), 72, bidirectional=True, state=True), "bfloat16")


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_schedules_do_not_matter(emulated, exchange):
    case = Case("lstm", 4, (3,), 37, state=True)
    seen = []
    for seed in range(1, 6):
        emulated.use(exchange=exchange, seed=seed)
        seen.append(results(case, "bfloat16"))
    for other in seen[1:]:
        assert_bitwise_equal(other, seen[0])


@pytest.mark.cuda
def test_chunks_of_a_stream_give_the_same_as_one_call(cuda):
    case = Case("gru", 6, (2,), 48, state=True)
    arrays = case.inputs("bfloat16")

    @jax.jit
    def whole(arrays):
        return case.run(arrays, "native")

    @jax.jit
    def chunked(arrays):
        first, (h,) = case.run(arrays | {"x": arrays["x"][:, :2]}, "native")
        second, state = case.run(arrays | {"x": arrays["x"][:, 2:], "h_0": h}, "native")
        return jnp.concatenate([first, second], 1), state

    cuda.use(exchange="grid")
    assert_bitwise_equal(chunked(arrays), whole(arrays))


@pytest.mark.cuda
def test_mapped_weights_become_groups_of_one_call(cuda):
    case = Case("rnn_tanh", 3, (2,), 21, state=True)
    arrays = case.inputs("float16")
    members = {
        name: jnp.stack([value, value / 2, -value]) for name, value in arrays.items()
    }
    run = jax.jit(jax.vmap(lambda a: case.run(a, "native")))
    together = jax.block_until_ready(run(members))
    if not HAS_GPU:
        assert len(cuda.ran) == 1
    for n in range(3):
        one = jax.jit(lambda a: case.run(a, "native"))(
            {name: value[n] for name, value in members.items()}
        )
        assert_bitwise_equal(jax.tree.map(lambda x, n=n: x[n], together), one)


@pytest.mark.cuda
def test_nan_goes_through_and_ends(cuda):
    """A NaN is no value that has not come: no bit pattern of it may be waited for."""
    case = Case("lstm", 3, (2,), 40, state=True)
    for pattern in (0xFFFF, 0x7FFF, 0x7FC0):
        arrays = case.inputs("bfloat16")
        nan = np.array(pattern, np.uint16).view(jnp.bfloat16)
        arrays["x"] = arrays["x"].copy()
        arrays["x"][0, 1, 0] = nan
        arrays["h_0"] = arrays["h_0"].copy()
        arrays["h_0"][1] = nan
        cuda.use(exchange="grid")
        y = np.asarray(jax.jit(lambda a: case.run(a, "native"))(arrays)[0], np.float32)
        assert np.isnan(y[0, 1:]).all()
        assert np.isfinite(y[0, 0]).all()
        assert np.isnan(y[1]).all()


def test_activations_kept_for_the_backward_pass(emulated):
    """In bfloat16, bytes per unit and step, y included: what the paper's memory is."""
    time, rows, hidden = 6, 4, 32
    for cell, most in (("lstm", 12), ("slstm", 18), ("gru", 10), ("rnn_tanh", 2)):
        case = Case(cell, time, (rows,), hidden, state=True)
        text = case.gradient("native").lower(
            case.inputs("bfloat16"), case.cotangents("bfloat16")
        )
        (line,) = (
            line
            for line in text.as_text().splitlines()
            if "custom_call @prnn_forward_emulated" in line
        )
        shapes = re.findall(
            r"tensor<([0-9x]*)x(bf16|f32|ui8)>", line.rsplit("->", 1)[1]
        )
        width = {"bf16": 2, "f32": 4, "ui8": 1}
        sizes = [
            math.prod(int(n) for n in shape.split("x")) * width[kind]
            for shape, kind in shapes
        ]
        *results_, workspace = sizes
        states = 2 + 4 * (case.table.states - 1)  # h in bfloat16, the others in float32
        kept = sum(results_) - states * rows * hidden
        assert kept == most * time * rows * hidden, cell
        assert workspace <= kept


def test_where_no_kernel_is_the_scan_runs_and_native_says_why(emulated):
    emulated.use()
    params = prnn_jax.init("lstm", jax.random.key(0), 3, 8, proj_size=5)
    x = jax.numpy.ones((2, 4, 3))
    run = functools.partial(prnn_jax.lstm, clip=prnn_jax.Clip(projection=1.0))
    jax.block_until_ready(jax.jit(run)(x, params))
    assert emulated.ran == []
    with pytest.raises(ValueError, match=r"clip\.projection has no CUDA kernel"):
        run(x, params, implementation="native")
    with pytest.raises(
        ValueError, match="mask of an LSTM with a projection has no CUDA"
    ):
        prnn_jax.lstm(
            x,
            params,
            recurrent_mask=jax.numpy.ones((2, 5)),
            implementation="native",
        )


def test_weights_that_the_chip_does_not_hold(emulated, monkeypatch):
    monkeypatch.setenv("PRNN_CUDA_MAX_SMS", "2")
    jax.clear_caches()
    emulated.use(exchange="grid")
    case = Case("lstm", 2, (3,), 300, state=True)
    plan = prnn_jax.explain(
        "lstm", batch=3, time=2, hidden_size=300, dtype="bfloat16", device="NVIDIA H200"
    )
    assert plan.streamed_k_blocks
    assert "panels of" in str(plan)
    check(case, "bfloat16")
    emulated.expect("forward:grid", "backward:grid")


def test_what_the_environment_may_ask(emulated, monkeypatch):
    case = Case("lstm", 2, (1,), 64)
    for variable, value in (
        ("PRNN_CUDA_MAX_SMS", "many"),
        ("PRNN_CUDA_DEVICE", "NVIDIA H9000"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with pytest.raises(ValueError, match=f"{variable} must be .*{value}"):
                case.forward("native").lower(case.inputs("bfloat16"))
    emulated.use(exchange="grid")
    monkeypatch.setenv("PRNN_CUDA_MAX_SMS", "1")
    jax.clear_caches()
    with pytest.raises(jax.errors.JaxRuntimeError, match="max_sms"):
        jax.block_until_ready(case.forward("native")(case.inputs("bfloat16")))


def test_what_the_tests_do_on_a_gpu(monkeypatch):
    """With the engine that is here: the lines that only a GPU would run."""
    monkeypatch.setattr(on_cuda, "HAS_GPU", True)
    with on_cuda.session(monkeypatch) as engine:
        engine.use(exchange="grid")
        check(Case("lstm", 3, (2,), 17, state=True), "tf32")
        engine.expect("forward:grid", "backward:grid")
    assert "PRNN_CUDA_EXCHANGE" not in os.environ
