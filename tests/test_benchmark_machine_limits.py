"""What a machine allows at most: limits measured, and what they make of a layer."""

import functools

import pytest
from benchmark_support import LIMITS, needs_a_compiler

from benchmarks import _limits

quick = functools.partial(
    _limits.measure_limits, sizes=(1 << 14, 1 << 15), rounds=2, round_ms=0.2
)


@pytest.mark.parametrize(
    ("kib", "gb_per_s"), [(1, 400), (16, 400), (32, 200), (64, 100), (1024, 100)]
)
def test_bandwidth_is_interpolated_between_sizes(kib, gb_per_s):
    assert LIMITS.bandwidth(1, kib * 1024) == pytest.approx(gb_per_s)
    assert LIMITS.bandwidth(2, kib * 1024) == pytest.approx(2 * gb_per_s)


LSTM_64 = 4 * 64 * 64  # weights: 64 KiB


def test_threads_that_split_units_read_their_share():
    units = _limits.limit(LSTM_64, 1, LIMITS, 2, "hidden")
    assert units["thread_bytes"] == 32 * 1024
    assert units["reading_us"] == pytest.approx(32 * 1024 / 200e9 * 1e6)
    rows = _limits.limit(LSTM_64, 1, LIMITS, 2, "batch")
    assert rows["thread_bytes"] == 64 * 1024
    assert rows["reading_us"] == pytest.approx(64 * 1024 / 100e9 * 1e6)


def test_the_limit_is_the_longer_time():
    one, many = (_limits.limit(LSTM_64, b, LIMITS, 1, "batch") for b in (1, 64))
    assert (one["bound"], many["bound"]) == ("reading", "arithmetic")
    assert one["step_us"] == one["reading_us"]
    assert many["step_us"] == pytest.approx(2 * 4 * 64 * 64 * 64 / 200e9 * 1e6)


def test_hidden_parallel_steps_have_a_barrier():
    units = _limits.limit(LSTM_64, 1, LIMITS, 2, "hidden")
    assert units["bound"] == "barrier"
    assert units["step_us"] == pytest.approx(0.2 + units["reading_us"] / 2)
    assert "barrier_us" not in _limits.limit(LSTM_64, 1, LIMITS, 2, "batch")
    assert "barrier_us" not in _limits.limit(LSTM_64, 1, LIMITS, 1, "hidden")


def test_the_machine_uses_one_core_where_the_barrier_takes_longer():
    small = _limits.machine_limit(4 * 16 * 16, 1, LIMITS)
    assert small["threads"] == 1
    large = _limits.machine_limit(4 * 1024 * 1024, 1, LIMITS)
    assert large["threads"] == max(LIMITS.float32_gflops)
    assert large["partition"] == "hidden"


def test_the_machine_is_batch_parallel_where_each_thread_has_a_row():
    plan = _limits.machine_limit(4 * 16 * 16, max(LIMITS.float32_gflops), LIMITS)
    assert (plan["threads"], plan["partition"]) == (max(LIMITS.float32_gflops), "batch")


@pytest.mark.parametrize(
    ("trains", "projects", "passes", "products"),
    [
        (False, False, 1, 0),
        (False, True, 1, 1),
        (True, False, 2, 1),
        (True, True, 2, 4),
    ],
)
def test_a_layer_takes_its_passes_and_its_products(trains, projects, passes, products):
    step_us = _limits.machine_limit(LSTM_64, 3, LIMITS)["step_us"]
    product_us = 2 * LSTM_64 * 3 / 1e3 / (200 * max(LIMITS.float32_gflops))
    took = _limits.layer_us(LSTM_64, 3, LIMITS, trains=trains, projects=projects)
    assert took == pytest.approx(passes * step_us + products * product_us)


def test_limits_are_those_of_the_best_rounds():
    rows = [
        {"quantity": "million_barriers_per_s", "threads": 2, "rounds": [4, 8]},
        {"quantity": "float32_gflop_per_s", "threads": 1, "rounds": [1, 3, 2]},
        {"quantity": "read_gb_per_s", "threads": 1, "bytes": 1 << 14, "rounds": [5, 4]},
    ]
    limits = _limits.limits_of({"rows": rows})
    assert limits == _limits.Limits({1: {1 << 14: 5}}, {1: 3}, {}, {2: 1 / 8})


def test_two_measurements_are_joined_round_by_round():
    def measured(*rates: float) -> dict:
        rows = [
            {"quantity": "float32_gflop_per_s", "threads": n, "rounds": [rate]}
            for n, rate in enumerate(rates, 1)
        ]
        return {"vector_bytes": 64, "rows": rows}

    both = _limits.joined(measured(1, 7), measured(3, 4))
    assert _limits.limits_of(both).float32_gflops == {1: 3, 2: 7}
    assert both["vector_bytes"] == 64


@needs_a_compiler
def test_limits_are_measured_for_all_threads_and_sizes():
    limits = _limits.limits_of(quick({2, 1}))
    assert {n: [*curve] for n, curve in limits.read_gb_per_s.items()} == {
        n: [1 << 14, 1 << 15] for n in (1, 2)
    }
    assert [*limits.float32_gflops] == [1, 2]
    assert [*limits.barrier_us] == [2]


@needs_a_compiler
def test_sizes_that_are_no_whole_blocks_are_refused():
    with pytest.raises(RuntimeError, match="multiples of 16384"):
        quick({1}, sizes=(1000,))


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setattr(_limits, "compiler", lambda: None)
    with pytest.raises(RuntimeError, match="needs a C\\+\\+ compiler; set CXX"):
        quick({1})
