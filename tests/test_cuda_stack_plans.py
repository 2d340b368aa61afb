"""Plans of the CUDA engine for layers of a stack at once. Needs no GPU."""

import itertools
import re

import pytest
from cuda_plans import BYTES, GATES, PASSES, planned, plans_of


@pytest.mark.parametrize("number", BYTES)
@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_every_layer_of_a_stack_has_its_teams(cell, kind, number):
    size = BYTES[number]
    found = 0
    for layers, hidden, batch in itertools.product(
        (2, 5, 20), (8, 37, 128, 256, 512), (1, 9, 16, 40)
    ):
        sizes = {"groups": layers, "hidden": hidden, "batch": batch}
        planning = planned(cell, kind, number, **sizes, is_stack=True)
        # A GRU's candidate takes its two products apart.
        rows = GATES[cell] + (cell == "gru")
        products, published = (rows, 1) if kind == "forward" else (1, rows)
        padded = -(-hidden * size // 16) * 16 // size
        for plan in plans_of(planning):
            found += 1
            jobs, teams, warps_m = plan["jobs"], plan["teams"], plan["tile"][3]
            assert plan["exchange"] == "grid"
            assert plan["grid"] == plan["blocks"] * teams <= 132
            # Whole layers to each team, in the order of the jobs.
            assert teams % layers == 0
            assert jobs % teams == 0
            assert plan["rounds"] == jobs // teams
            assert plan["blocks"] == -(-padded // plan["units"])
            assert plan["units"] * products <= plan["rows"]
            depth, across = 2 * published * padded * size, 64 * (8 // warps_m)
            assert plan["k_blocks"] == -(-depth // across)
            assert plan["streamed_k_blocks"] == 0
            least = 100 * plan["step_us"] + (layers - 1) * plan["step_us"] / jobs
            assert plan["call_us"] > least
    assert found > 40


def test_small_layers_gain_most_at_once():
    """Twenty of 128 units take little longer than one; two of 1024 gain little."""

    def gain(layers, hidden, batch):
        sizes = {"hidden": hidden, "batch": batch, "time": 1000}
        at_once = planned(groups=layers, is_stack=True, **sizes)["best"]
        return layers * planned(**sizes)["best"]["call_us"] / at_once["call_us"]

    assert gain(20, 128, 8) > 8
    assert 2.5 < gain(5, 512, 8) < 5
    assert gain(2, 1024, 16) < 1


def test_stacks_without_a_plan_say_why():
    reason = planned(hidden=768, groups=3, is_stack=True)["reason"]
    assert "has no room for 3 layers at once, with hidden_size=" in reason
    largest = int(re.search(r"with hidden_size=(\d+) it has", reason)[1])
    assert planned(hidden=largest, groups=3, is_stack=True)["best"]
    assert not planned(hidden=largest + 1, groups=3, is_stack=True)["best"]
    for cell in "slstm", "gru_reset_before", "lstm_peephole":
        reason = planned(cell, groups=2, is_stack=True)["reason"]
        assert "no kernel runs layers of a stack at once" in reason
    reason = planned(groups=2, time=2**28, is_stack=True)["reason"]
    assert "a stack at once has arrays of fewer than 2^31 values" in reason
