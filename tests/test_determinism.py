"""Equal calls give equal bits, however the work is spread."""

import functools
import operator
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, SMALL, Case
from support import assert_bitwise_equal, run_python

import prnn_jax

# Large enough to be batch-parallel and hidden-parallel.
SPREAD = [
    Case("lstm", 9, (5,), 129, state=True),
    Case("lstm", 9, (3,), 513),
    Case("lstm", 5, (19,), 197),
    Case("gru", 9, (1,), 385, bidirectional=True),
    Case("gru_reset_before", 9, (3,), 385, state=True),
    Case("rnn_tanh_skip", 9, (2,), 769, reverse=True),
    Case("lstm", 5, (24,), 385),  # in lots, which threads take of each other
]

# What is kept for the backward pass lies in whole lines of memory.
KEPT = [
    Case("lstm", 9, (5,), 64, state=True),
    Case("lstm", 7, (3,), 48, bidirectional=True),
    Case("gru", 9, (5,), 64, state=True),
    Case("gru_reset_before", 9, (5,), 80, reverse=True),
]


@pytest.mark.parametrize("case", [*SMALL, *SPREAD], ids=str)
def test_equal_calls_are_bitwise_equal(case):
    forward, gradient = case.forward("native"), case.gradient("native")
    arrays, cotangents = case.inputs(), case.cotangents()
    first = forward(arrays), gradient(arrays, cotangents)
    for _ in range(5):
        again = forward(arrays), gradient(arrays, cotangents)
        assert_bitwise_equal(again, first)


DIGEST = """
import hashlib, os, sys
if os.environ.get("TEST_CORES") == "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax
from test_determinism import SPREAD, recurrence_and_gradient
for case in SPREAD:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(recurrence_and_gradient(case)):
        digest.update(memoryview(leaf).cast("B"))
    print(case, digest.hexdigest())
"""


def recurrence_and_gradient(case: Case):
    """Native results alone: products outside are XLA's, and may depend on threads."""
    arrays, (dy, dstate) = case.inputs(), case.cotangents()
    name = case.cell.split("_")[0]
    random = np.random.default_rng(3)
    wide = case.groups * case.table.gates * case.hidden
    a_x = random.standard_normal((*arrays["x"].shape[:-1], wide)).astype(np.float32)
    state_0 = arrays.get("h_0")
    if "c_0" in arrays:
        state_0 = (arrays["h_0"], arrays["c_0"])
    run = functools.partial(
        prnn_jax.recurrence,
        name,
        w_hh=arrays["w_hh"],
        state_0=state_0,
        b_hh=arrays["b_hh"],
        reverse=case.reverse,
        bidirectional=case.bidirectional,
        implementation="native",
        **case.table.options,
    )

    @jax.jit
    def both(a_x, cotangents):
        out, vjp = jax.vjp(run, a_x)
        return out, vjp(cotangents)

    dstate = dstate if case.table.states == 2 else dstate[0]
    return jax.tree.map(np.ascontiguousarray, both(a_x, (dy, dstate)))


@pytest.fixture(scope="module")
def with_one_thread() -> str:
    return run_python(DIGEST, TEST_CORES="1", PJRT_NPROC="1")


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_results_do_not_depend_on_the_number_of_threads(with_one_thread, threads):
    """XLA's pool has PJRT_NPROC threads, also where there are fewer cores."""
    assert with_one_thread.count("\n") == len(SPREAD)
    assert run_python(DIGEST, PJRT_NPROC=str(threads)) == with_one_thread


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_results_do_not_depend_on_the_number_of_cores(with_one_thread):
    script = f"import os; os.sched_setaffinity(0, range({os.cpu_count()}))\n{DIGEST}"
    assert run_python(script) == with_one_thread


def test_what_is_kept_past_the_caches_is_the_same():
    def run(cache_bytes: int) -> str:
        script = DIGEST.replace("SPREAD", "KEPT")
        return run_python(script, PRNN_CPU_CACHE_BYTES=str(cache_bytes))

    near, far = run(1 << 20), run(1 << 12)
    assert near.count("\n") == len(KEPT)
    assert far == near


@pytest.mark.parametrize("hidden", [9, 64, 257])
@pytest.mark.parametrize("cell", CELLS)
def test_a_row_of_a_batch_is_that_row_alone(cell, hidden):
    rows = 11
    case = Case(cell, 4, (rows,), hidden, 1, state=True)
    arrays = case.inputs()
    name = cell.split("_")[0]
    random = np.random.default_rng(7)
    wide = case.table.gates * hidden
    a_x = jnp.asarray(random.standard_normal((rows, 4, wide)), jnp.float32)

    @jax.jit
    def run(a_x, state_0):
        def native(a_x, state_0):
            return prnn_jax.recurrence(
                name,
                a_x,
                arrays["w_hh"],
                state_0,
                arrays["b_hh"],
                implementation="native",
                **case.table.options,
            )

        out, vjp = jax.vjp(native, a_x, state_0)
        return out, vjp(jax.tree.map(jnp.cos, out))

    state_0 = case.state_of(arrays)
    whole = run(a_x, state_0)
    # Other sizes are cut otherwise: alone, the last ones, a few in the middle.
    for first, last in ((0, 1), (9, 11), (3, 8)):
        cut = functools.partial(jax.tree.map, operator.itemgetter(slice(first, last)))
        assert_bitwise_equal(run(*cut((a_x, state_0))), cut(whole))
