"""bfloat16 and float16 on the CPU engine: arrays in 16 bits, arithmetic in float32."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, CONTROLS
from half_support import DTYPES, Half, assert_as_accurate, run
from support import (
    Program,
    assert_bitwise_equal,
    float64,
    named,
    oracle,
    quick_jit,
    run_python,
    scan,
)

import prnn_jax
from prnn_jax._engine import ffi


def controls_of(cell: str) -> tuple[str, ...]:
    return CONTROLS[:-1] if cell == "slstm" else CONTROLS


def cases() -> list[Half]:
    """Every cell plain and with all controls, and the other options of a call."""
    found = []
    for half in DTYPES:
        for cell in CELLS:
            found += [
                Half(cell, 9, (5,), 17, state=True, half=half),
                Half(
                    cell, batch=(4,), state=True, controls=controls_of(cell), half=half
                ),
            ]
        found += [
            Half("lstm", 1, (1,), 1, 9, half=half),
            Half("lstm", 33, (1,), 129, half=half),
            Half("lstm", 9, (17,), 64, reverse=True, state=True, half=half),
            Half("lstm", bidirectional=True, time_major=True, state=True, half=half),
            Half("lstm", 40, (3,), lean=True, state=True, half=half),
            Half("lstm", heads=3, hidden=32, half=half),
            Half("gru", 7, (2,), 257, bidirectional=True, state=True, half=half),
            Half("gru_reset_before", 3, (3,), 385, state=True, half=half),
        ]
    return found


CASES = cases()


@pytest.mark.parametrize("half", DTYPES)
@pytest.mark.parametrize("share", [1 / 3, 0.97])
@pytest.mark.parametrize("cell", [name for name in CELLS if name != "slstm"])
def test_gradients_under_a_fractional_zoneout(cell, share, half):
    """What a step has made is kept, not taken out of a mixture of 8 or 11 digits."""
    case = Half(cell, 9, (5,), 17, state=True, half=half)
    ours, of_scan, exact = gradients_under_zoneout(case, share)
    if "relu" not in cell:
        assert_as_accurate(ours, of_scan, exact)
        return
    # Where h is near a kink, rounding makes another gradient of a row, the scan's too.
    # Most rows are near none.
    errors, errors_of_scan = (
        np.abs(np.float64(gradients["x"]) - exact["x"]) for gradients in (ours, of_scan)
    )
    assert np.median(errors) <= np.median(errors_of_scan)


def gradients_under_zoneout(case: Half, share: float):
    """Ours, the scan's in 16 bits and in float64."""

    def gradients(implementation, dtype):
        def run(arrays):
            return case.table.function(
                arrays["x"],
                case.params(arrays),
                case.state_of(arrays),
                zoneout=(jnp.full((5, 9, 17), share, case.half).astype(dtype),)
                * case.table.states,
                implementation=implementation,
                **case.table.options,
            )

        @(quick_jit if implementation == "scan" else jax.jit)
        def of(arrays, cotangents):
            return jax.vjp(run, arrays)[1](cotangents)[0]

        dy, dstate = case.cotangents(dtype)
        dstate = dstate if case.table.states > 1 else dstate[0]
        return of(case.inputs(dtype), (dy, dstate))

    with float64():
        exact = jax.tree.map(np.asarray, gradients("scan", "float64"))
    of_scan = jax.tree.map(np.asarray, gradients("scan", case.half))
    ours = jax.tree.map(np.asarray, gradients("native", case.half))
    return ours, of_scan, exact


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_as_accurate_as_the_scan(case):
    of_scan, exact = scan(case, case.half), oracle(case)
    forward, gradients = run(case)
    assert_as_accurate(forward, of_scan.forward, exact.forward)
    assert_as_accurate(gradients, of_scan.gradients, exact.gradients)


@pytest.mark.parametrize("case", CASES[:2] + CASES[-1:], ids=str)
def test_one_native_call_each_way(case):
    program = Program.of(case.gradient(), case.inputs(), case.cotangents())
    assert program.calls == (1, 1)
    assert program.count("while") == case.lean


@pytest.mark.parametrize("half", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        Half("lstm", 130, (1,), 9, 5),
        Half("lstm", 100, (2,), 160, 33),  # weights for two threads to share
        Half("gru", 40, (3,), 9, 40, bidirectional=True, controls=("lengths",)),
        Half("gru_reset_before", 37, (9,), 33, 7, reverse=True),
        Half("rnn_tanh_skip", 65, (2,), 40, 1, time_major=True, controls=("resets",)),
        Half("slstm", 20, (4,), 8, 6, heads=2, biases=()),
        Half("lstm", 2, (1,), 160, 33),  # in place
    ],
    ids=str,
)
def test_it_makes_its_own_a_x(case, half):
    case = replace(case, half=half)
    assert Program.of(case.run, case.inputs()).count("dot") == 0
    found = named(*case.forward("native")(case.inputs()))
    assert_as_accurate(found, scan(case, half).forward, oracle(case).forward)


# ---- what is carried -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cell_state_is_carried_in_float32(dtype):
    """i = 2^-12, g = tanh(10), f and o nearly 1: c grows by less than its rounding."""
    time, hidden = 2000, 3
    gates = np.full((4, hidden), 10.0)
    gates[0] = -np.log(2.0**12 - 1)
    gates[1] = 30.0
    a_x = jnp.asarray(np.tile(gates.reshape(-1), (1, time, 1)), dtype)
    w_hh = jnp.zeros((hidden, 4 * hidden), dtype)
    c_0 = jnp.full((1, hidden), 0.75, dtype)
    recurrence = functools.partial(prnn_jax.recurrence, "lstm", implementation="native")
    _, (_, c_n) = recurrence(a_x, w_hh, (jnp.zeros_like(c_0), c_0))
    with jax.enable_x64(True):
        exact = 0.75 + time * float(jax.nn.sigmoid(np.float64(a_x[0, 0, 0])))
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(c_n, np.float64), exact, rtol=eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_the_state_is_carried_in_float32(dtype):
    """dc grows by a little in each step, and is handed back whole."""
    time, hidden = 2000, 3
    gates = np.zeros((4, hidden))
    gates[0], gates[1], gates[3] = -30.0, 30.0, -8.0
    a_x = jnp.asarray(np.tile(gates.reshape(-1), (1, time, 1)), dtype)
    w_hh = jnp.zeros((hidden, 4 * hidden), dtype)
    zero = jnp.zeros((1, hidden), dtype)

    def total(c_0):
        y, (_, c_n) = prnn_jax.recurrence(
            "lstm", a_x, w_hh, (zero, c_0), implementation="native"
        )
        return y.sum(dtype=jnp.float32) + c_n.sum(dtype=jnp.float32)

    eps = float(jnp.finfo(dtype).eps)
    exact = 1 + time / (1 + np.exp(8.0))  # tanh'(0) = 1
    dc_0 = np.asarray(jax.grad(total)(zero), np.float64)
    np.testing.assert_allclose(dc_0, exact, rtol=2 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_in_two_calls_sees_h_as_it_was_stored(dtype):
    """The GRU carries nothing but h, so that where it is cut does not show."""
    case = Half("gru", 8, (3,), 19, state=True, half=dtype)
    arrays = case.inputs()
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    layer = functools.partial(prnn_jax.gru, params=params, implementation="native")
    whole, _ = layer(arrays["x"], state_0=arrays["h_0"])
    first, middle = layer(arrays["x"][:, :5], state_0=arrays["h_0"])
    second, _ = layer(arrays["x"][:, 5:], state_0=middle)
    assert_bitwise_equal(jnp.concatenate([first, second], 1), whole)


# ---- determinism ---------------------------------------------------------------------

#: Large enough to be batch-parallel and hidden-parallel.
SPREAD = [
    Half(cell, 5, (rows,), hidden, state=True, half=half)
    for half in DTYPES
    for cell, rows, hidden in [
        ("lstm", 5, 129),
        ("lstm", 3, 513),
        ("gru_reset_before", 3, 385),
        ("gru", 1, 769),
    ]
]

DIGEST = """
import hashlib, os
if os.environ.get("TEST_CORES") == "1":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, numpy as np
from test_determinism import recurrence_and_gradient
from test_half import SPREAD, recurrence_results
for case in SPREAD:
    digest = hashlib.sha256()
    for leaf in recurrence_results(case):
        digest.update(leaf.tobytes())
    print(case, digest.hexdigest())
"""


def recurrence_results(case: Half) -> list[np.ndarray]:
    """Native results alone: products outside are XLA's, and may depend on threads."""
    arrays, cotangents = case.inputs(), case.cotangents()
    random = np.random.default_rng(3)
    a_x = random.standard_normal((*case.order, case.table.gates * case.hidden))
    states = tuple(arrays[f"{n}_0"] for n in ("h", "c")[: case.table.states])

    def run(a_x, states):
        y, state = prnn_jax.recurrence(
            case.cell.split("_")[0],
            a_x,
            arrays["w_hh"],
            states if len(states) > 1 else states[0],
            arrays["b_hh"],
            implementation="native",
            **case.table.options,
        )
        return y, state if isinstance(state, tuple) else (state,)

    @jax.jit
    def both(a_x, states, cotangents):
        out, vjp = jax.vjp(run, a_x, states)
        return out, vjp(cotangents)

    results = both(a_x.astype(case.half), states, cotangents)
    return [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(results)]


def test_results_do_not_depend_on_the_number_of_threads():
    # Where sums are of pairs, they are not those of weights that are read unpacked.
    plan = {"PRNN_CPU_PLAN": "packed"} if ffi.native.sums_pairs() else {}
    alone = run_python(DIGEST, TEST_CORES="1", PJRT_NPROC="1", **plan)
    assert alone.count("\n") == len(SPREAD)
    assert run_python(DIGEST, PJRT_NPROC="3", **plan) == alone


def test_a_row_of_a_batch_is_that_row_alone():
    case = Half("lstm", 4, (11,), 33, 1, state=True)
    arrays = case.inputs()
    whole = case.forward("native")(arrays)
    for first, last in ((0, 1), (9, 11), (3, 8)):
        part = {
            name: a[first:last] if name in ("x", "h_0", "c_0") else a
            for name, a in arrays.items()
        }
        cut = jax.tree.map(lambda a, f=first, n=last: a[f:n], whole)
        assert_bitwise_equal(case.forward("native")(part), cut)


# ---- explain -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_explain_tells_how_weights_are_packed(dtype):
    sizes = {"batch": 4, "time": 10, "hidden_size": 64, "platform": "cpu"}
    plan = prnn_jax.explain("lstm", **sizes, dtype=dtype)
    in_float32 = prnn_jax.explain("lstm", **sizes)
    assert plan.engine == "native"
    assert (plan.weight_bits, in_float32.weight_bits) == (16, 32) or dtype == "float16"
    # The bias stays in float32.
    assert plan.weight_bytes == 4 * 64 * (64 * plan.weight_bits // 8 + 4)
    assert f"{plan.weight_bits} bits each" in str(plan)
