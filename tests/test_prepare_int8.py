"""Weights rounded to 8 bits: the native engine multiplies what the scan does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS, Case
from support import error_of, float64, named, run_python
from test_prepare import assert_same_bits, other, replaced

import prnn_jax
from prnn_jax._engine import ffi

CASES = [
    Case("lstm", 7, (3,), 33, 5, state=True),
    Case("lstm", 1, (1,), 192, 192, state=True),
    Case("lstm", 20, (17,), 64, 130),
    Case("lstm", 3, (2,), 513, 40),  # hidden-parallel
    Case("lstm_peephole", 6, (1,), 100, 70),
    Case("slstm", 20, (4,), 8, 6, heads=2, biases=()),
    Case("gru", 9, (1,), 129, 65, bidirectional=True, state=True),
    Case("gru", 5, (2, 3), 17, 3, time_major=True, controls=CONTROLS),
    Case("gru_reset_before", 5, (4,), 129, 20, reverse=True, controls=CONTROLS),
    Case("rnn_tanh_skip", 40, (2,), 65, 1, controls=("resets",)),
    Case("rnn_clipped_relu_skip", 1, (5,), 2, 1, biases=("b_ih",)),
    # More rows than are kept from panel to panel.
    Case("lstm", 16, (8,), 32, 1024),
    Case("gru", 2, (128,), 700, 3),
    Case("rnn_tanh", 2, (5,), 17, 16384),
]
#: A product's inputs have 16 bits, so many of them a scale: of a sum of their products,
#: 2^-16 of the largest times its weights. So far off is 1, at most, after some steps.
INPUT_ERROR = 5e-5


def prepared(case: Case, arrays: dict, **sizes) -> dict:
    """The arrays with weights rounded, and those packed."""
    return case.prepared(arrays, weights="int8", **sizes)


def without_packed(arrays: dict) -> dict:
    return {name: a for name, a in arrays.items() if name != "packed"}


def assert_follows(case: Case, ours, arrays: dict) -> None:
    """Off by no more than the scan itself, of the same weights, and by its inputs."""
    weights = without_packed(arrays)
    of_scan = named(*case.forward("scan")(weights))
    with float64():
        doubles = {
            name: np.asarray(a, np.float64)
            if jnp.issubdtype(jnp.asarray(a).dtype, jnp.floating)
            else a
            for name, a in weights.items()
        }
        exact = named(*jax.tree.map(np.asarray, case.forward("scan")(doubles)))
    for name, value in named(*ours).items():
        assert exact[name].dtype == np.float64
        allowed = 2 * error_of(of_scan[name], exact[name]) + INPUT_ERROR
        assert error_of(value, exact[name]) <= allowed, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_the_scan_of_rounded_weights(case, dtype):
    arrays = prepared(case, case.inputs(dtype))
    forward = case.forward()
    ours = forward(arrays)
    assert_follows(case, ours, arrays)
    for batch, time in ((1, 1), (1, 100), (9, 100)):  # packed for other calls
        other = prepared(case, case.inputs(dtype), batch=batch, time=time)
        assert_same_bits(forward(other), ours)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_on_each_instruction_set(isa):
    script = """
import test_prepare_int8 as tests
for case, dtype in zip(tests.CASES, ("float32", "bfloat16") * 9):
    arrays = tests.prepared(case, case.inputs(dtype), batch=1, time=20)
    tests.assert_follows(case, case.forward()(arrays), arrays)
"""
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    run_python(script, PRNN_CPU_ISA=isa)


def test_they_are_integers_of_their_columns():
    case = Case("lstm", 3, (1,), 40, 30)
    arrays = case.inputs()
    arrays["w_ih"][:, 3] = 0
    rounded = prepared(case, arrays)
    for name in ("w_ih", "w_hh"):
        before, after = arrays[name], np.asarray(rounded[name])
        scale = np.abs(before).max(axis=0) / 127
        integers = after / np.where(scale > 0, scale, 1)
        np.testing.assert_allclose(integers, np.round(integers), atol=2e-5)
        assert np.all(np.abs(after - before) <= 0.5001 * scale)
        assert len(np.unique(np.round(integers))) > 50
    for name in ("b_ih", "b_hh"):
        np.testing.assert_array_equal(rounded[name], arrays[name])


def test_what_is_packed_is_what_is_read():
    case = Case("gru", 7, (2,), 33, 5)
    packed = replaced(case, weights="int8")
    ours = case.forward()({**prepared(case, case.inputs()), "packed": packed})
    assert_same_bits(ours, case.forward()(prepared(case, other(case))))


def test_a_fourth_of_the_bytes():
    case = Case("lstm", 3, (1,), 256, 256)
    whole = case.prepared(case.inputs())["packed"]
    assert prepared(case, case.inputs())["packed"].size < 0.27 * whole.size


# ---- inside programs ----


def test_inside_jit_and_vmap_over_weights():
    case = Case("lstm", 5, (2,), 33, 5)
    arrays = case.inputs()
    several = {n: np.stack([arrays[n], 2 * arrays[n]]) for n in ("w_ih", "w_hh")}

    @jax.jit
    @jax.vmap
    def run(weights):
        return case.run(prepared(case, {**arrays, **weights}))

    of_each = [
        case.forward()(prepared(case, {**arrays, "w_ih": w_ih, "w_hh": w_hh}))
        for w_ih, w_hh in zip(several["w_ih"], several["w_hh"], strict=True)
    ]
    for name, value in named(*run(several)).items():
        expected = np.stack([named(*one)[name] for one in of_each])
        # A vmap over weights reads them as params, in float32.
        assert error_of(value, expected.astype(np.float64)) <= INPUT_ERROR


def test_vmap_over_data_and_stack():
    case = Case("gru", 5, (2,), 20, 20)
    arrays = prepared(case, case.inputs())
    x = jnp.stack([arrays["x"], arrays["x"][::-1]])
    run = functools.partial(lambda arrays, x: case.run({**arrays, "x": x}), arrays)
    y, _ = jax.jit(jax.vmap(run))(x)
    np.testing.assert_array_equal(y[0], case.forward()(arrays)[0])
    layer = prnn_jax.prepare(
        "gru", case.params(case.inputs()), batch=2, time=5, weights="int8"
    )
    y, _ = prnn_jax.stack("gru", arrays["x"], [layer, layer])
    assert y.shape == (2, 5, 20)


def test_gradient_of_the_input():
    """By the rounded weights, which themselves are constant."""
    case = Case("lstm", 5, (2,), 33, 5, state=True)
    arrays = prepared(case, case.inputs())
    packed = arrays.pop("packed")

    def loss(floats, **extra):
        return jnp.sum(jnp.sin(case.run({**floats, **extra})[0]))

    ours = jax.jit(jax.grad(functools.partial(loss, packed=packed)))(arrays)
    expected = jax.jit(jax.grad(loss))(arrays)
    np.testing.assert_allclose(ours["x"], expected["x"], atol=INPUT_ERROR)
    assert not np.any(ours["w_hh"])


def test_other_engines_run_the_rounded_weights():
    case = Case("lstm", 6, (2,), 33, 5)
    arrays = prepared(case, case.inputs())
    assert_same_bits(
        case.forward("scan")(arrays), case.forward("scan")(without_packed(arrays))
    )
    with float64():
        arrays = prepared(case, case.inputs(jnp.float64))
        assert arrays["packed"] is None
        assert len(np.unique(np.asarray(arrays["w_hh"])[:, 0])) < 40


# ---- numbers that are none ----


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["x", "h_0", "w_hh", "w_ih"])
def test_what_is_no_number(name, value):
    """Makes what it reaches no number; what it does not reach is as without."""
    case = Case("lstm", 6, (3,), 33, 5, state=True)
    arrays = case.inputs()
    clean = np.asarray(case.forward()(prepared(case, arrays))[0])
    is_weight = name[:2] == "w_"
    arrays[name] = np.array(arrays[name])
    at = {
        "x": (1, 3, 2),
        "h_0": (1, 4),
        "w_hh": (4, 2 * 33 + 7),
        "w_ih": (2, 2 * 33 + 7),
    }
    arrays[name][at[name]] = value
    y = np.asarray(case.forward()(prepared(case, arrays))[0])
    first = 3 if name == "x" else 0
    if not is_weight:
        np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])
        assert np.all(np.isnan(y[1, first:]))
        np.testing.assert_array_equal(y[1, :first], clean[1, :first])
    else:
        assert np.all(np.isnan(y[:, 0, 7]))
        assert np.all(np.isnan(y[:, 1:]))
        np.testing.assert_array_equal(y[:, 0, :7], clean[:, 0, :7])


@pytest.mark.parametrize("size", [1e-30, 1e-38, 1e-44, 1e30])
def test_sizes_of_inputs(size):
    """A row of the smallest numbers is 0 to a product; large ones keep their scale."""
    case = Case("rnn_tanh_skip", 1, (2,), 16, 70, biases=())
    arrays = case.inputs()
    arrays["x"] = (arrays["x"] * size).astype(np.float32)
    arrays = prepared(case, arrays)
    assert_follows(case, case.forward()(arrays), arrays)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("weights must be one of None, 'int8', got 'int4'", {"weights": "int4"}),
        ("takes up to 16384 inputs and hidden units, got 16385", {"inputs": 16385}),
    ],
)
def test_errors(message, change):
    case = Case("lstm", 6, (2,), 8, change.pop("inputs", 5))
    given = {"params": case.params(case.inputs()), "batch": 1, "time": 1}
    with pytest.raises(ValueError, match=message):
        prnn_jax.prepare("lstm", **{**given, "weights": "int8", **change})
