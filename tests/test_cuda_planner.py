"""The CUDA engine's planner: what fits, and what is chosen. Needs no GPU.

The compiled instances are the engine's own affair: nothing here depends on which there
are, apart from the sizes that must have a plan.
"""

import itertools
import math
import re

import hypothesis
import pytest
from cuda_plans import (
    BYTES,
    DEVICES,
    GATES,
    H200,
    MIG,
    PASSES,
    planned,
    plans_of,
    record,
)
from hypothesis import strategies as st

from prnn_jax._engine.modules import native

EVERY = list(itertools.product(GATES, PASSES, BYTES))

SETTINGS = hypothesis.settings(
    deadline=None, derandomize=True, max_examples=300, database=None
)


def fastest(planning: dict) -> float:
    return min((plan["call_us"] for plan in plans_of(planning)), default=math.inf)


def check(
    planning, cell, kind, number, *, time, batch, groups, hidden, device, max_sms
):
    """All that must be true of any answer."""
    has, size = record(device), BYTES[number]
    products, published = (GATES[cell], 1) if kind == "forward" else (1, GATES[cell])
    padded = -(-hidden * size // 16) * 16 // size
    sms = max_sms or has["sms"]
    assert planning["is_valid"]
    assert planning["reason"].endswith(".")
    assert (planning["best"] is None) == (not plans_of(planning))
    for candidate in planning["candidates"]:
        assert (candidate["plan"] is None) == bool(candidate["refusal"])
    for plan in plans_of(planning):
        m_tiles, register_blocks, n_tiles, warps_m = plan["tile"]
        assert plan["rows"] == 16 * m_tiles * warps_m
        assert plan["columns"] == 8 * n_tiles

        # Every unit has a block, no block is idle, and a block has its rows.
        blocks, units, panels = plan["blocks"], plan["units"], plan["panels"]
        is_streamed = register_blocks == 0
        assert 0 < units * products <= plan["rows"]
        assert blocks <= -(-padded // units)
        assert (panels - 1) * blocks * units < padded <= panels * blocks * units
        assert is_streamed or panels == 1

        # Every job has a team, and no team is idle.
        jobs, teams, rounds = plan["jobs"], plan["teams"], plan["rounds"]
        assert jobs == groups * -(-batch // plan["columns"])
        assert (rounds - 1) * teams < jobs <= rounds * teams
        assert 1 <= teams <= jobs

        # It can be resident.
        assert plan["grid"] == blocks * teams <= sms
        assert plan["shared_bytes"] <= has["shared_bytes"]
        if plan["exchange"] == "block":
            assert blocks == 1
        if plan["exchange"] == "cluster":
            assert 2 <= blocks <= 16
            assert teams <= has["clusters"][blocks]
        if plan["exchange"] == "grid":
            assert has["cooperative"]

        # The warps' k blocks reach to the last published value, and no k block further.
        depth_bytes, across = published * padded * size, 64 * (8 // warps_m)
        assert plan["k_blocks"] == panels * -(-depth_bytes // across)
        of_each = 8 * 1024 * m_tiles
        assert plan["shared_bytes"] > plan["shared_k_blocks"] * of_each
        if not is_streamed:
            assert plan["streamed_k_blocks"] == 0
            assert plan["shared_k_blocks"] == max(0, plan["k_blocks"] - register_blocks)
        else:  # what is streamed, there is no room for
            both = plan["shared_k_blocks"] + plan["streamed_k_blocks"]
            assert both == plan["k_blocks"]
            if plan["streamed_k_blocks"] > 0 and plan["shared_k_blocks"] > 0:
                assert plan["shared_bytes"] + of_each > has["shared_bytes"]
            assert teams == 1 or plan["streamed_k_blocks"] == 0  # the workspace's

        # Times: parts are parts.
        parts = plan["parts_us"]
        assert all(us >= 0 for us in parts.values())
        assert max(parts.values()) * rounds < plan["step_us"]
        assert plan["step_us"] <= 1.2 * sum(parts.values()) * rounds  # they overlap
        assert plan["call_us"] > time * plan["step_us"]
    if planning["best"] is None:
        assert 'implementation="scan" always runs' in planning["reason"]
        return
    best = planning["best"]
    assert best in plans_of(planning)
    assert "modelled with constants fitted on an NVIDIA H200" in planning["reason"]
    # What streams is for what nothing else is for. Of the others, the first of block,
    # cluster, grid that is within a tenth of the fastest.
    pool = [p for p in plans_of(planning) if p["tile"][1] > 0] or plans_of(planning)
    least = min(plan["call_us"] for plan in pool)
    near = [plan for plan in pool if plan["call_us"] <= 1.1 * least]
    order = ["block", "cluster", "grid"]
    first = min(order.index(plan["exchange"]) for plan in near)
    assert best["exchange"] == order[first]
    assert best["call_us"] == min(
        plan["call_us"] for plan in near if plan["exchange"] == best["exchange"]
    )


# ---- what must be true of every plan -------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cell", "kind", "number"), EVERY)
def test_plans_are_sound(cell, kind, number, device):
    hiddens = [1, 2, 7, 8, 33, 64, 127, 128, 129, 255, 257, 512, 768, 1000, 1024]
    hiddens += [1025, 1152, 1760, 2047, 2048, 2049, 2560, 3072, 4095, 4096]
    for hidden in hiddens:
        for batch, groups in ((1, 1), (5, 2), (9, 1), (64, 3), (129, 64)):
            sizes = {"time": 10, "batch": batch, "groups": groups, "hidden": hidden}
            at = {"device": device, "max_sms": 0}
            planning = planned(cell, kind, number, **sizes, **at)
            check(planning, cell, kind, number, **sizes, **at)


REQUESTS = st.fixed_dictionaries(
    {
        "cell": st.sampled_from(sorted(GATES)),
        "kind": st.sampled_from(PASSES),
        "number": st.sampled_from(sorted(BYTES)),
        "time": st.integers(1, 3000),
        "batch": st.integers(1, 129),
        "groups": st.integers(1, 64),
        "hidden": st.integers(1, 4096),
        "device": st.sampled_from(DEVICES),
    }
)


@SETTINGS
@hypothesis.given(REQUESTS, st.integers(0, 16), st.booleans())
def test_any_plan_is_sound(request, max_sms, cooperative):
    request["device"] = record(request["device"]) | {"cooperative": cooperative}
    check(planned(**request, max_sms=max_sms), **request, max_sms=max_sms)


@SETTINGS
@hypothesis.given(REQUESTS)
def test_equal_requests_have_equal_plans(request):
    assert planned(**request) == planned(**request)


@SETTINGS
@hypothesis.given(REQUESTS, st.data())
def test_more_sms_are_never_slower(request, data):
    sms = record(request["device"])["sms"]
    few = data.draw(st.integers(1, sms - 1))
    more = data.draw(st.integers(few, sms))
    some = fastest(planned(**request, max_sms=few))
    assert fastest(planned(**request, max_sms=more)) <= some
    assert fastest(planned(**request)) <= some


@SETTINGS
@hypothesis.given(REQUESTS, st.sampled_from(["batch", "groups", "time"]))
def test_more_work_is_never_faster(request, size):
    less = fastest(planned(**request))
    assert fastest(planned(**request | {size: request[size] + 1})) >= less


@SETTINGS
@hypothesis.given(REQUESTS)
def test_exact_products_fit_where_tf32_does_and_are_no_faster(request):
    exact = planned(**request | {"number": "float32_exact"})
    tf32 = planned(**request | {"number": "float32"})
    assert (exact["best"] is None) == (tf32["best"] is None)
    assert fastest(exact) >= fastest(tf32)


@SETTINGS
@hypothesis.given(REQUESTS)
def test_half_the_bytes_fit_where_all_do(request):
    if planned(**request | {"number": "float32"})["best"] is not None:
        assert planned(**request | {"number": "bfloat16"})["best"] is not None


@pytest.mark.parametrize("size", ["time", "batch", "groups", "hidden"])
def test_sizes_beyond_any_device(size):
    planning = planned(**{size: 2**40})
    assert planning["is_valid"]
    assert (planning["best"] is None) == (size == "hidden")


# ---- capacity ------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cell", "kind", "number"), EVERY)
def test_the_largest_hidden_is_the_largest(cell, kind, number, device):
    largest = native.cuda_largest_hidden(cell, kind, number, device)
    assert largest >= 128  # the smallest part of an H200
    at = {"device": device, "batch": 1}
    assert planned(cell, kind, number, hidden=largest, **at)["best"] is not None
    for more in (1, 2, 8, 64, 1000):
        beyond = planned(cell, kind, number, hidden=largest + more, **at)["best"]
        assert beyond["tile"][1] == 0  # streamed
    for hidden in range(1, largest, max(1, largest // 40)):
        assert planned(cell, kind, number, hidden=hidden, **at)["best"]["tile"][1] > 0


@pytest.mark.parametrize(
    ("cell", "hidden"), [("lstm", 2048), ("gru", 2560), ("rnn_tanh", 4096)]
)
@pytest.mark.parametrize("batch", [1, 8, 16, 64, 129])
def test_the_largest_layers_we_promise(cell, hidden, batch):
    for number in ("bfloat16", "float16"):
        planning = planned(cell, number=number, hidden=hidden, batch=batch)
        assert planning["best"] is not None, planning["text"]
        assert planning["best"]["exchange"] == "grid"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cell", "kind", "number"), EVERY)
def test_larger_layers_are_streamed(cell, kind, number, device):
    sms = record(device)["sms"]
    for hidden, max_sms in ((6000, 0), (8000, 0), (4000, sms // 2)):
        at = {"time": 3, "batch": 40, "groups": 2, "hidden": hidden}
        where = {"device": device, "max_sms": max_sms}
        planning = planned(cell, kind, number, **at, **where)
        assert planning["best"]["tile"][1] == 0, planning["reason"]
        assert planning["best"]["readings"] == -(-40 // planning["best"]["columns"])
        check(planning, cell, kind, number, **at, **where)


def test_a_streamed_step_takes_as_long_as_reading():
    """From L2 while half of it has room, else from memory."""
    device = record(H200)
    for hidden, rate in ((2200, "l2_bytes_per_s"), (8192, "dram_bytes_per_s")):
        plan = planned(hidden=hidden, batch=1)["best"]
        # Some blocks have a panel less, of 16 units.
        of_block = 8 * plan["streamed_k_blocks"] * 4096
        most = plan["blocks"] * of_block
        fullest = -(-hidden // 16) - plan["blocks"] * (plan["panels"] - 1)
        reason = planned(hidden=hidden, batch=1)["reason"]
        streamed = 1e6 * float(re.search(r": (\S+) MB are read", reason)[1])
        assert 0 < 0.99 * fullest * of_block < streamed
        assert streamed < min(1.01 * most, 8 * hidden**2)
        assert (streamed <= device["l2_bytes"] / 2) == (rate == "l2_bytes_per_s")
        assert plan["step_us"] > streamed / device[rate] * 1e6
        assert plan["parts_us"]["load"] > streamed / device[rate] * 1e6


@pytest.mark.parametrize("hidden", [1, 33, 128])
@pytest.mark.parametrize("device", DEVICES)
def test_a_small_layer_is_one_block(device, hidden):
    for cell in GATES:
        planning = planned(cell, hidden=hidden, batch=1, device=device)
        exchanges = [plan["exchange"] for plan in plans_of(planning)]
        assert "block" in exchanges, planning["text"]


def test_groups_and_slices_of_the_batch_run_side_by_side():
    one = planned(hidden=512, batch=8)["best"]
    two = planned(hidden=512, batch=8, groups=2)["best"]
    assert one["teams"] == 1
    assert two["teams"] == 2
    assert two["step_us"] < 1.5 * one["step_us"]


def test_a_slice_of_a_device_is_a_smaller_device():
    whole, part = record(H200), record(MIG)
    assert part["sms"] < whole["sms"]
    for cell, kind, number in EVERY:
        fits = native.cuda_largest_hidden(cell, kind, number, MIG)
        assert fits < native.cuda_largest_hidden(cell, kind, number, H200)
        limited = native.cuda_largest_hidden(cell, kind, number, H200, part["sms"])
        assert fits == limited


def test_clusters_are_for_devices_that_have_them():
    def exchanges(**request):
        return {plan["exchange"] for plan in plans_of(planned(hidden=400, **request))}

    assert "cluster" in exchanges(device=H200)
    assert "cluster" not in exchanges(device="NVIDIA A100-SXM4-80GB")
    few = native.recorded_device("NVIDIA GeForce RTX 5090")["clusters"]
    assert few[8] > 0
    assert few[9:] == [0] * 8


def test_without_a_cooperative_launch_there_is_no_grid():
    device = record(H200) | {"cooperative": False}
    assert planned(hidden=256, device=device)["best"]["exchange"] == "cluster"
    planning = planned(hidden=2048, device=device)
    assert planning["best"] is None
    largest = native.cuda_largest_hidden("lstm", "forward", "bfloat16", device)
    assert 256 <= largest <= 1024
    for part in ("needs a cooperative launch", "MPS and MIG", f"size={largest} fits"):
        assert part in planning["reason"]


# ---- devices -------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEVICES)
def test_a_record_may_be_given_as_a_dict(name):
    device = native.recorded_device(name)
    assert device["name"] == name
    assert planned(device=device) == planned(device=name)


@pytest.mark.parametrize("name", DEVICES)
def test_a_recorded_device_is_estimated_as_recorded(name):
    device = record(name)
    known = device["compute_capability"], device["sms"], device["shared_bytes"]
    assert native.estimated_device(name, *known) == device
    assert native.estimated_device(name, *known[:2]) == device


def test_other_devices_are_estimated_from_those_most_like_them():
    half = native.estimated_device("NVIDIA GH2", 90, 66)
    whole = record("NVIDIA H100 80GB HBM3")
    assert half["l2_bytes_per_s"] == whole["l2_bytes_per_s"] / 2
    assert half["clusters"] == [count // 2 for count in whole["clusters"]]
    ampere = native.estimated_device("NVIDIA GeForce RTX 3090", 86, 82, 101376)
    assert ampere["fma_per_clock"] == record("NVIDIA GeForce RTX 4090")["fma_per_clock"]
    assert ampere["clusters"] == [0] * 17
    check(
        planned(hidden=700, device=ampere),
        *("lstm", "forward", "bfloat16"),
        **{"time": 100, "batch": 8, "groups": 1, "hidden": 700},
        **{"device": ampere, "max_sms": 0},
    )


def test_one_block_is_no_cluster():
    device = record(H200) | {"clusters": [50] * 17}
    for candidate in planned(hidden=8, device=device)["candidates"]:
        if candidate["exchange"] == "cluster":
            assert candidate["refusal"] == "one block is no cluster"
