"""The CPU engine's planner: which way a call is run, by a model of the processor."""

import itertools
import json

import pytest
from support import run_python

import prnn_jax
from prnn_jax._engine import ffi

PROCESSORS = [name for name, _, _ in ffi.native.known_processors()]
KIB, MIB = 1 << 10, 1 << 20


def plan(
    cell: str = "lstm",
    *,
    hidden: int,
    batch: int = 1,
    time: int = 64,
    groups: int = 1,
    backward: bool = False,
    threads: int = 2,
    dtype: str = "float32",
    inputs: int = 0,
    processor: str = "zen3",
    own: int = MIB,
    shared: int = 32 * MIB,
) -> dict:
    sizes = time, batch, groups, hidden, 0
    return ffi.native.cpu_plan(
        *(cell, *sizes, backward, threads, dtype, inputs, processor, own, shared)
    )


def rows_of(table: list[str]) -> list[tuple[bool, str, str, int, float]]:
    """(is the best, weights, partition, threads, µs of the call) of each line."""
    found = []
    for line in table[1:]:
        weights, partition, threads, _, us = line[1:].split()
        found.append((line[0] == "*", weights, partition, int(threads), float(us)))
    return found


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_best_way_is_the_one_that_takes_least(processor):
    cells, sizes = ("lstm", "gru_reset_before", "rnn_tanh"), (16, 130, 512, 1500)
    for cell, hidden, batch, time in itertools.product(
        cells, sizes, (1, 3, 16), (1, 5, 100)
    ):
        for backward in (False, True):
            found = plan(
                cell,
                hidden=hidden,
                batch=batch,
                time=time,
                backward=backward,
                threads=4,
                processor=processor,
            )
            table = rows_of(found["table"])
            (best,) = [row for row in table if row[0]]
            assert best[4] == min(row[4] for row in table)
            assert best[1:3] == (found["weights"], found["partition"])
            assert found["call_us"] == pytest.approx(best[4], abs=0.06)
            ways = {row[1] for row in table}
            assert ("unpacked" in ways) == (not backward and batch <= 4)


@pytest.mark.parametrize("processor", PROCESSORS)
class TestAnyProcessor:
    """What must hold whatever the rates are."""

    def test_a_small_step_is_for_one_thread(self, processor):
        assert plan(hidden=8, processor=processor, threads=8)["threads"] == 1

    def test_large_weights_of_one_row_are_shared(self, processor):
        found = plan(hidden=1024, processor=processor)
        assert found["threads"] == 2
        assert found["partition"] in ("hidden", "columns")

    def test_rows_are_shared_while_weights_stay_in_a_cache(self, processor):
        sizes = {"hidden": 128, "batch": 64, "processor": processor}
        assert plan(**sizes)["partition"] == "batch"

    def test_weights_of_few_steps_are_not_packed(self, processor):
        def is_unpacked(time: int, batch: int = 1) -> bool:
            found = plan(hidden=256, time=time, batch=batch, processor=processor)
            return found["weights"] == "unpacked"

        assert is_unpacked(1)
        assert not is_unpacked(1000)
        assert not is_unpacked(1, batch=5)
        steps = [is_unpacked(time) for time in range(1, 100)]
        assert steps == sorted(steps, reverse=True)  # one change

    def test_threads_take_whole_groups_of_a_population(self, processor):
        sizes = {"hidden": 16, "groups": 256, "processor": processor}
        for time, backward in itertools.product((1, 2, 32), (False, True)):
            found = plan(time=time, backward=backward, **sizes)
            assert (found["partition"], found["threads"]) == ("batch", 2)
        assert plan(time=1, **sizes)["weights"] == "unpacked"
        assert plan(time=100, **sizes)["weights"] == "packed"

    def test_packing_takes_longer_where_weights_are_far(self, processor):
        def us_of_packed(shared: int) -> list[float]:
            made = plan(hidden=512, processor=processor, shared=shared, time=2)
            rows = rows_of(made["table"])
            return [us for _, weights, *_, us in rows if weights == "packed"]

        far, near = us_of_packed(4 * MIB), us_of_packed(64 * MIB)
        assert len(far) == 2  # by one thread, and by two
        assert all(a > b for a, b in zip(far, near, strict=True))

    def test_a_step_takes_longer_the_farther_its_weights_are(self, processor):
        own, shared, memory = (
            plan(hidden=384, processor=processor, own=a, shared=b)["step_us"]
            for a, b in ((16 * MIB, 0), (64 * KIB, 64 * MIB), (64 * KIB, 0))
        )
        assert own < shared < memory

    def test_16_bits_are_half_to_read(self, processor):
        whole, half = (
            plan(hidden=1024, processor=processor, dtype=dtype)["parts_us"]["reading"]
            for dtype in ("float32", "bfloat16")
        )
        assert 0.2 * whole < half < 0.75 * whole

    def test_a_call_is_modelled_as_the_sum_of_its_steps(self, processor):
        sizes = {"hidden": 256, "batch": 8, "processor": processor}
        short, long = (plan(time=time, **sizes) for time in (100, 200))
        steps = 100 * short["step_us"]
        assert long["call_us"] - short["call_us"] == pytest.approx(steps)


def test_explain_tells_the_way_and_what_it_was_taken_for():
    found = prnn_jax.explain("lstm", batch=2, time=50, hidden_size=300)
    text = str(found)
    assert f"weights, {found.weights}" in text
    assert f"{found.step_us:.2f} us per step" in text
    assert f"{found.step_us:.2f} us a step, modelled for" in found.reasons[1]
    assert found.reasons[2].startswith("the model's rates are ")
    assert len(rows_of(list(found.candidates))) >= 3
    # Reading and multiplying overlap.
    parts = dict(found.step_parts_us)
    assert max(parts.values()) < found.step_us < sum(parts.values()) + 0.2


def test_an_unknown_processor_is_an_error():
    with pytest.raises(ValueError, match="no record of a processor 6502"):
        plan(hidden=8, processor="6502")


# ---- a file of rates -----------------------------------------------------------------

LOAD = """
import json
import prnn_jax
from prnn_jax._engine import ffi
plan = prnn_jax.explain("lstm", batch=1, time=9, hidden_size=400)
print(json.dumps([ffi.native.cpu_rates(), plan.weights, str(plan)]))
"""


def write(path, rates: dict) -> str:
    path.write_text("# measured\n" + "".join(f"{k} {v}\n" for k, v in rates.items()))
    return str(path)


def test_rates_come_from_a_file(tmp_path):
    rates = ffi.native.cpu_rates()
    assert rates["packed_own"] >= rates["packed_shared"] >= rates["packed_memory"] > 0
    for pack, weights in ((1e-3, "unpacked"), (1e4, "packed")):
        changed = {**rates, "pack": pack, "pack_uncached": pack}
        path = write(tmp_path / "rates.txt", changed)
        environment = {"PRNN_CPU_SHARED_CACHE_BYTES": str(64 * MIB)}
        printed = run_python(LOAD, PRNN_CPU_RATES=path, **environment)
        found, way, text = json.loads(printed)
        assert found == pytest.approx(changed)
        assert way == weights
        assert f"the model's rates are {path}" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pack": -1}, 'has the line "pack -1", which is no name with a number'),
        ({"pack": "fast"}, 'has the line "pack fast"'),
        ({"pack": "nan"}, 'has the line "pack nan"'),
        ({"pack": None}, "has no line for pack"),
        ({"packs": 3}, "has a line for packs, which is no rate"),
    ],
)
def test_a_file_that_is_wrong_is_refused(change, message, tmp_path):
    rates = {**ffi.native.cpu_rates(), **change}
    rates = {name: value for name, value in rates.items() if value is not None}
    path = write(tmp_path / "rates.txt", rates)
    script = """
try:
    import prnn_jax
except ValueError as error:
    print(error)
"""
    printed = run_python(script, PRNN_CPU_RATES=path)
    assert "PRNN_CPU_RATES must be a file that benchmarks/calibrate.py wrote" in printed
    assert message in printed
