"""The engine makes its own a_x, some steps at a time: chunks that come out even, or do
not, rows that end within one, and both ways of sharing the work."""

import math

import jax
import numpy as np
import pytest
from cases import Case
from support import (
    Program,
    assert_as_accurate,
    assert_bitwise_equal,
    named,
    oracle,
    scan,
)

import prnn_jax
from prnn_jax._engine import ffi, input_projection

CASES = [
    Case("lstm", 130, (1,), 9, 5),
    Case("lstm", 128, (1,), 160, 33),  # weights for two threads to share
    Case("gru", 33, (5,), 17, 3, controls=("lengths",)),
    Case("gru", 40, (3,), 9, 40, bidirectional=True, controls=("lengths",)),
    Case("gru_reset_before", 37, (9,), 33, 7, reverse=True),
    Case("rnn_tanh_skip", 65, (2,), 40, 1, time_major=True, controls=("resets",)),
    Case("slstm", 20, (4,), 8, 6, heads=2, biases=()),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_as_accurate_as_the_scan(case):
    forward = case.forward()
    assert Program.of(case.run, case.inputs()).count("dot") == 0
    found = named(*forward(case.inputs()))
    assert_as_accurate(found, scan(case).forward, oracle(case).forward)


def chunks(time: int, batch: int, hidden: int, input_size: int = 8) -> int:
    """Steps that are projected at a time, by one thread."""
    sizes = time, batch, 1, hidden, 0
    plan = ffi.native.cpu_plan("lstm", *sizes, False, 1, "float32", input_size)
    return plan["projected_steps"]


@pytest.mark.parametrize(("time", "batch"), [(1, 1), (5, 1), (64, 1), (500, 1)])
def test_chunks_are_as_long_as_the_sequence_or_some_rows(time, batch):
    longest = {1: 1, 5: 8, 64: 64, 500: 128}[time]
    assert chunks(time, batch, 16) == longest


def test_chunks_are_shorter_where_a_step_is_larger():
    assert chunks(128, 4, 16) == 32
    # 2 MiB of a_x in each step; two steps would do for the weights.
    assert chunks(128, 128, 1024) == 1


def test_chunks_are_longer_where_weights_are_larger():
    # A quarter of the cache has room for 2 steps of a_x, or of 4 MiB of weights for 8.
    assert chunks(128, 16, 512) == 4  # the fewest that make up for reading weights
    assert chunks(128, 16, 512, 520) == 8


def test_explain_tells():
    sizes = {"batch": 2, "time": 100, "hidden_size": 32}
    plan = prnn_jax.explain("gru", **sizes, input_size=8)
    assert plan.projected_steps == 64
    assert "input projection: 64 steps at a time, weights packed" in str(plan)
    assert "input projection" not in str(prnn_jax.explain("gru", **sizes))
    with pytest.raises(ValueError, match="input_size must be at least 1"):
        prnn_jax.explain("gru", **sizes, input_size=0)


@pytest.mark.parametrize(
    ("time", "batch", "hidden", "input_size", "way"),
    [
        (3, 1, 300, 64, "unpacked"),
        (100, 2, 32, 8, "packed"),
        (30, 1, 32, 8, "packed per panel"),  # all of them once
        (20, 2, 1024, 1024, "packed per panel"),  # too many to keep
        (100, 2, 1024, 1024, "by XLA"),  # and of more rows
    ],
)
def test_explain_tells_how_weights_are_read(time, batch, hidden, input_size, way):
    sizes = {"batch": batch, "time": time, "hidden_size": hidden}
    plan = prnn_jax.explain("lstm", **sizes, input_size=input_size)
    assert plan.projection_weights == way
    assert prnn_jax.explain("lstm", **sizes).projection_weights is None


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", 17, (16,), 256, 24),
        Case("gru", 17, (16,), 171, 24, bidirectional=True, controls=("lengths",)),
        Case("lstm", 1, (1,), 256, 24, bidirectional=True),  # unpacked
        Case("gru", 2, (3,), 171, 24, bidirectional=True),
    ],
    ids=str,
)
def test_bits_do_not_depend_on_how_weights_are_packed(case, monkeypatch):
    # As a whole; or, of so many that there is no room, when their turn comes; or not
    # at all. The other inputs have weights of 0; sums are of runs of 256.
    inputs, first = 2111, 1024
    monkeypatch.setattr(input_projection, "MAX_WEIGHTS", math.inf)
    jax.clear_caches()
    few = case.inputs()
    x, w = few["x"], few["w_ih"]
    many_x = np.ones((*x.shape[:-1], inputs), np.float32)
    many_w = np.zeros((*w.shape[:-2], inputs, w.shape[-1]), np.float32)
    some = slice(first, first + x.shape[-1])
    many_x[..., some], many_w[..., some, :] = x, w
    many = {**few, "x": many_x, "w_ih": many_w}
    assert math.prod(many_w.shape) > 2 << 20  # cpu/plan/planner.cc's kMostKept
    assert Program.of(case.run, many).count("dot") == 0
    forward = case.forward()
    assert_bitwise_equal(forward(many), forward(few))


def test_bits_do_not_depend_on_the_chunk():
    # A row alone is projected 64 steps at a time; one of many, 16.
    case = Case("lstm", 70, (6,), 24, 10)
    arrays = case.inputs()
    y, _ = case.forward()(arrays)
    for row in (0, 5):
        alone = {**arrays, "x": arrays["x"][row : row + 1]}
        params = prnn_jax.Params(*(alone[n] for n in ("w_ih", "w_hh")), *biases(alone))
        assert_bitwise_equal(prnn_jax.lstm(alone["x"], params)[0], y[row : row + 1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bits_do_not_depend_on_whether_rows_might_end(dtype):
    # Where none can, products go straight to a_x: of 40 steps, those of whole chunks.
    case = Case("gru", 40, (6,), 24, 10, bidirectional=True)
    arrays = {name: a.astype(dtype) for name, a in case.inputs().items()}
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh")), *biases(arrays))

    def run(lengths):
        return prnn_jax.gru(arrays["x"], params, bidirectional=True, lengths=lengths)

    assert_bitwise_equal(run(None), run(np.full(6, 40, np.int32)))


def biases(arrays: dict) -> tuple:
    return arrays.get("b_ih"), arrays.get("b_hh")
