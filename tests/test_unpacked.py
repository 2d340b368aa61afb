"""Calls of few steps read weights that are not packed, and round no differently."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, CONTROLS, Case
from support import assert_bitwise_equal, run_python

import prnn_jax
from prnn_jax._engine import ffi


def most_steps(
    cell: str, rows: int, hidden: int, dtype: str = "float32", groups: int = 1
) -> int:
    """That read weights as they lie in memory; one more does not. At least 1."""
    engine = Case(cell, 1, (rows,), hidden).table.engine

    def is_unpacked(steps: int) -> bool:
        sizes = steps, rows, groups, hidden, 0
        plan = ffi.native.cpu_plan(engine, *sizes, False, 2, dtype, 0)
        return plan["weights"] == "unpacked"

    return next((n for n in range(1, 24) if not is_unpacked(n + 1)), 24)


def recurrence(case: Case, dtype: str):
    """`(a_x, state_0, controls) -> (y, state)`, and the arguments of the case."""
    arrays, controls = case.inputs(dtype), case.control_arrays(dtype)
    wide = case.groups * case.table.gates * case.hidden
    random = np.random.default_rng(4)
    a_x = random.standard_normal((*case.order, wide)).astype(dtype)
    run = functools.partial(
        prnn_jax.recurrence,
        case.cell.split("_")[0],
        w_hh=arrays["w_hh"],
        b_hh=arrays["b_hh"],
        bidirectional=case.bidirectional,
        implementation="native",
        **case.table.options,
    )
    if "reset_to" in case.controls:
        controls["reset_to"] = case.state_of(arrays, "reset_{}")

    def call(a_x, state_0, controls):
        return run(a_x, state_0=state_0, **controls)

    return jax.jit(call), a_x, case.state_of(arrays), controls


def first_steps(sequence, steps: int):
    return jax.tree.map(lambda x: x[:, :steps], sequence)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        *((rows, "float32") for rows in (1, 2, 3, 4)),
        *((rows, dtype) for rows in (1, 4) for dtype in ("bfloat16", "float16")),
    ],
)
@pytest.mark.parametrize("cell", CELLS)
def test_bits_are_those_of_a_longer_call(cell, rows, dtype):
    # Accumulation blocks of 64, vectors of units; remainders of one and of several.
    hidden = {1: 69, 2: 193, 3: 64, 4: 97}[rows]
    steps = most_steps(cell, rows, hidden, dtype)
    case = Case(cell, steps + 1, (rows,), hidden, state=True)
    run, a_x, state_0, _ = recurrence(case, dtype)
    y, _ = run(a_x, state_0, {})
    is_exact = dtype == "float32" or not ffi.native.sums_pairs()
    together, state_n = run(a_x[:, :steps], state_0, {})
    assert_same(together, y[:, :steps], is_exact)
    state, one_by_one = state_0, []
    for t in range(steps):
        step, state = run(a_x[:, t : t + 1], state, {})
        one_by_one.append(step)
    # c is rounded between calls in 16 bits.
    assert_same(jnp.concatenate(one_by_one, 1), together, dtype == "float32")
    if dtype == "float32":
        assert_bitwise_equal(state, state_n)


def assert_same(a, b, is_exact: bool) -> None:
    if is_exact:
        assert_bitwise_equal(a, b)
    else:
        np.testing.assert_allclose(
            a.astype(np.float32), b.astype(np.float32), rtol=0.05, atol=0.02
        )


@pytest.mark.parametrize("share", [(0, 0.75), (1, 0.5)])
@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before", "rnn_tanh_skip"])
def test_controls_do_to_both_alike(cell, share):
    steps = max(most_steps(cell, 2, 37, groups=2), 2)
    case = Case(
        cell,
        steps + 1,
        (2,),
        37,
        heads=2,
        state=True,
        controls=CONTROLS,
    )
    run, a_x, state_0, controls = recurrence(case, "float32")
    lengths = [int(steps * part) for part in share]  # no row has the last step
    controls["lengths"] = jnp.asarray(lengths)
    y, state = run(a_x, state_0, controls)
    short = {**controls, "resets": controls["resets"][:, :steps]}
    short["zoneout"] = first_steps(controls["zoneout"], steps)
    again = run(a_x[:, :steps], state_0, short)
    assert_bitwise_equal(again, (y[:, :steps], state))


WAYS = """
import hashlib
import json
import jax
import numpy as np
import prnn_jax
from cases import CONTROLS, Case
from test_unpacked import recurrence

def bits(cell, rows, steps):
    controls = {"heads": 2, "state": True, "controls": CONTROLS}
    case = Case(cell, steps, (rows,), 37, **controls)
    run, a_x, state_0, controls = recurrence(case, "float32")
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(run(a_x, state_0, controls)):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()

plan = prnn_jax.explain("lstm", time=5, batch=3, hidden_size=96, groups=2)
cells = ["lstm", "gru", "gru_reset_before", "rnn_tanh_skip"]
rows_and_steps = [(1, 11), (2, 23), (3, 5)]
print(json.dumps({
    "way": [plan.weights, plan.partition],
    "bits": [bits(cell, *sizes) for cell in cells for sizes in rows_and_steps],
}))
"""


def test_every_way_that_is_asked_for_gives_the_same_bits():
    def run(way: str) -> dict:
        return json.loads(run_python(WAYS, PRNN_CPU_PLAN=way, PRNN_CPU_WORKERS="1"))

    found = {way: run(way) for way in ("packed", "unpacked", "batch", "columns")}
    for way, entry in found.items():
        assert way in entry["way"]
    assert len({json.dumps(entry["bits"]) for entry in found.values()}) == 1


def test_the_projection_of_few_rows():
    case = Case("lstm", 3, (1,), 70, 131)
    arrays = case.inputs()
    exact = arrays["x"].astype(np.float64) @ arrays["w_ih"].astype(np.float64)
    params = prnn_jax.Params(
        jnp.asarray(arrays["w_ih"]), jnp.zeros((70, 280)), jnp.asarray(arrays["b_ih"])
    )
    # Gates that are far from 0 and 1 tell of a_x: c_1 = i g, at the first step.
    _, (_, c) = prnn_jax.lstm(arrays["x"][:, :1], params, implementation="native")
    a = exact[:, 0] + arrays["b_ih"]
    i, _, g, _ = np.split(a, 4, -1)
    np.testing.assert_allclose(c, np.tanh(g) / (1 + np.exp(-i)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before", "rnn_tanh_skip"])
def test_bits_of_a_layer_that_no_cache_holds(cell, rows, dtype):
    """Threads share the columns of its products, and not only the units."""
    steps = min(most_steps(cell, rows, 1041, dtype), 4)
    case = Case(cell, steps + 1, (rows,), 1041, state=True)
    run, a_x, state_0, _ = recurrence(case, dtype)
    y, _ = run(a_x, state_0, {})
    together, _ = run(a_x[:, :steps], state_0, {})
    is_exact = dtype == "float32" or not ffi.native.sums_pairs()
    assert_same(together, y[:, :steps], is_exact)


@pytest.mark.parametrize("rows", [1, 2])
def test_its_projection_is_that_of_a_longer_call(rows):
    case = Case("gru", 8, (rows,), 1041, 67)
    arrays = case.inputs()
    params = case.params(arrays)
    run = functools.partial(prnn_jax.gru, params=params, implementation="native")
    y, _ = run(arrays["x"])
    together, _ = run(arrays["x"][:, :2])
    assert_bitwise_equal(together, y[:, :2])
