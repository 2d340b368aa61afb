"""The native engine runs where it should, and the scan only where `explain` says so.

Every accuracy test would pass with the scan: here is what fails when a call silently
falls back to it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case
from support import ISAS, Program, float64

import prnn_jax
from prnn_jax._engine import input_projection


@pytest.mark.parametrize("implementation", [None, "native"])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_compiled_programs_call_it(case, implementation):
    forward = functools.partial(case.run, implementation=implementation)
    program = Program.of(forward, case.inputs())
    assert program.calls == (1, 0)
    assert program.count("while") == 0
    gradient = Program.of(
        case.gradient(implementation), case.inputs(), case.cotangents()
    )
    assert gradient.calls == (1, 1)
    assert gradient.count("while") == 0


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_it_makes_its_own_a_x(case):
    assert Program.of(case.run, case.inputs()).count("dot") == 0


#: Bounds that leave a_x to XLA.
NEVER = {"MAX_WEIGHTS": 0, "MAX_ROWS": {0: 0}, "ROWS_PER_WEIGHT": 1e9}


@pytest.mark.parametrize("bound", NEVER)
def test_it_makes_a_x_where_that_is_faster(bound, monkeypatch):
    case = Case("lstm", 5, (2,), 9, 3)
    weights, rows = 3 * 4 * 9, 10
    for name, value in NEVER.items():
        monkeypatch.setattr(input_projection, name, value)
    just = {
        "MAX_WEIGHTS": (weights - 1, weights),
        "MAX_ROWS": ({rows: weights - 1, rows - 1: 2 * weights}, {rows: weights}),
        "ROWS_PER_WEIGHT": ((rows + 0.1) / weights, (rows - 0.1) / weights),
    }
    for value, products in zip(just[bound], (1, 0), strict=True):
        monkeypatch.setattr(input_projection, bound, value)
        jax.clear_caches()
        assert Program.of(case.run, case.inputs()).count("dot") == products


def test_it_makes_a_x_in_bfloat16_always(monkeypatch):
    for name, value in NEVER.items():
        monkeypatch.setattr(input_projection, name, value)
    jax.clear_caches()
    case = Case("lstm", 5, (2,), 9, 3)
    assert Program.of(case.run, case.inputs(jnp.bfloat16)).count("dot") == 0
    assert Program.of(case.run, case.inputs()).count("dot") == 1


def test_it_is_given_a_x_where_it_cannot_make_it():
    case = Case("lstm")
    without = {k: v[..., :0] if k == "x" else v for k, v in case.inputs().items()}
    without["w_ih"] = without["w_ih"][:0]
    assert Program.of(case.run, without).calls == (1, 0)


def test_calls_without_jit_use_it(monkeypatch):
    used = []
    call = jax.ffi.ffi_call

    def spy(target, *args, **kwargs):
        used.append(target)
        return call(target, *args, **kwargs)

    monkeypatch.setattr(jax.ffi, "ffi_call", spy)
    # A skip that no other test uses, lest an earlier program be used again.
    arrays = Case("rnn_tanh", 3, (2,), 4, 3).inputs()
    params = prnn_jax.Params(arrays["w_ih"], arrays["w_hh"])
    prnn_jax.rnn(arrays["x"], params, skip=0.123)
    assert set(used) == {"prnn_forward"}


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_scan_can_be_asked_for(case):
    program = Program.of(
        functools.partial(case.run, implementation="scan"), case.inputs()
    )
    assert program.calls == (0, 0)
    assert program.count("while") == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_dtypes_are_native(dtype):
    case = Case("lstm", state=True)
    arrays = {k: jnp.asarray(v, dtype) for k, v in case.inputs().items()}
    y, state = case.run(arrays)
    assert {y.dtype, *(s.dtype for s in state)} == {jnp.dtype(dtype)}
    assert Program.of(case.run, arrays).calls == (1, 0)
    y_32, _ = case.run(case.inputs())
    # A few roundings of values below 1.
    atol = 16 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype("float32"), y_32, rtol=0, atol=atol)


def test_float64_goes_to_the_scan():
    case = Case("lstm", state=True)
    with float64():
        arrays = case.inputs(np.float64)
        y, _ = case.run(arrays)
        assert y.dtype == np.float64
        assert Program.of(case.run, arrays).calls == (0, 0)


def test_float32_stays_native_where_jax_has_float64():
    case = Case("lstm", state=True)
    with float64():
        assert Program.of(case.run, case.inputs()).calls == (1, 0)


def test_an_empty_call_needs_no_engine():
    case = Case("lstm", 0, state=True)
    assert Program.of(case.run, case.inputs()).calls == (0, 0)


# ---- explain -------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_explain_tells_the_native_engine(cell, training):
    plan = prnn_jax.explain(
        cell, batch=4, time=10, hidden_size=33, training=training, platform="cpu"
    )
    assert plan.engine == "native"
    assert plan.instruction_set in ISAS
    assert plan.partition in ("batch", "hidden", "columns")
    assert plan.threads >= 1
    text = str(plan)
    for part in ("engine: native on cpu", plan.instruction_set, "because"):
        assert part in text


def test_explain_tells_why_a_dtype_goes_to_the_scan():
    plan = prnn_jax.explain("gru", batch=4, time=10, hidden_size=33, dtype="float64")
    assert plan.engine == "scan"
    assert "take float32, bfloat16, float16, not float64" in str(plan)


def test_explain_tells_why_a_platform_goes_to_the_scan():
    plan = prnn_jax.explain("gru", batch=4, time=10, hidden_size=33, platform="tpu")
    assert plan.engine == "scan"
    assert "no native engine for the platform 'tpu'" in str(plan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_explain_agrees_with_what_is_compiled(dtype):
    case = Case("gru")
    with float64():
        arrays = {k: jnp.asarray(v, dtype) for k, v in case.inputs().items()}
        plan = prnn_jax.explain("gru", batch=3, time=7, hidden_size=33, dtype=dtype)
        calls = Program.of(case.run, arrays).calls
    assert (plan.engine, calls) in (("native", (1, 0)), ("scan", (0, 0)))
    assert (plan.engine == "scan") == (dtype == "float64")


def test_other_platforms_are_lowered_to_the_scan():
    """A program exported for several platforms chooses when it runs."""
    case = Case("lstm", 4, (2,), 9, 3)
    checks = prnn_jax.export_checks()
    text = jax.export.export(
        jax.jit(case.run), platforms=("cpu", "tpu"), disabled_checks=checks
    )(case.inputs()).mlir_module()
    assert text.count("custom_call @prnn_forward") == 1
    assert text.count("stablehlo.while") == 1
