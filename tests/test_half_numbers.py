"""Every number in 16 bits through each instruction set: results, rounding, NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from half_support import DTYPES, Half, assert_as_accurate, run
from support import ISAS, oracle, run_python, scan

import prnn_jax
from prnn_jax._engine import ffi


def every_number(dtype: str) -> np.ndarray:
    """But for what is subnormal in float32 too, which XLA's threads take for zero."""
    numbers = np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype))
    magnitude = np.abs(numbers.astype(np.float32))
    return numbers[~(magnitude < np.finfo(np.float32).tiny) | (magnitude == 0)]


def identity(a_x: np.ndarray) -> jax.Array:
    """Through the engine and back: ReLU of a and of -a, without weights."""
    size = a_x.size
    both = jnp.asarray(np.stack([a_x, -a_x])).reshape(2, 1, size)
    w_hh = jnp.zeros((1, 1), a_x.dtype)
    y, _ = prnn_jax.recurrence(
        "rnn",
        jnp.swapaxes(both, 0, 1).reshape(2 * size, 1, 1),
        w_hh,
        activation="relu",
        implementation="native",
    )
    return np.asarray(y).reshape(2, size)


SAVE = """
import sys, numpy as np, prnn_jax, test_half_numbers
isa, path = sys.argv[1:]
plan = prnn_jax.explain("lstm", batch=1, time=1, hidden_size=1)
assert plan.instruction_set == isa, plan
test_half_numbers.save_results(path)
"""

#: Around the widths of 4, 8 and 16 floats, rows around those of a block, odd depths.
SMALL = [
    Half(cell, 4, (rows,), hidden, 3, state=True, half=half)
    for half in DTYPES
    for cell, rows, hidden in [
        ("lstm", 1, 3),
        ("lstm", 5, 17),
        ("slstm", 9, 40),
        ("gru", 2, 9),
        ("gru_reset_before", 9, 31),
        ("rnn_tanh_skip", 3, 97),
        ("rnn_clipped_relu_skip", 4, 65),
    ]
]


def save_results(path: str) -> None:
    """With whatever instruction set this process has chosen."""
    results = {}
    for n, case in enumerate(SMALL):
        for kind, arrays in zip(("forward", "gradients"), run(case), strict=True):
            for name, a in arrays.items():
                results[f"{n} {kind} {name}"] = np.asarray(a).view(np.uint16)
    for dtype in DTYPES:
        results[dtype] = identity(every_number(dtype)).view(np.uint16)
    np.savez(path, **results)


def check_results(path: str) -> None:
    """Of those that another process has saved."""
    results = np.load(path)
    for n, case in enumerate(SMALL):
        # Rounding carries some pre-activations over a ReLU's edge, where its gradient
        # jumps.
        kinds = ("forward",) if "relu" in case.cell else ("forward", "gradients")
        for kind in kinds:
            of_scan = getattr(scan(case, case.half), kind)
            exact = getattr(oracle(case), kind)
            ours = {
                name: results[f"{n} {kind} {name}"].view(jnp.dtype(case.half))
                for name in exact
            }
            assert_as_accurate(ours, of_scan, exact)
    for dtype in DTYPES:
        numbers, through = every_number(dtype), results[dtype].view(jnp.dtype(dtype))
        is_nan = np.isnan(numbers.astype(np.float32))
        for given, got in ((numbers, through[0]), (-numbers, through[1])):
            with np.errstate(invalid="ignore"):  # NaN
                positive = np.where(given > 0, given, np.zeros_like(given))
            np.testing.assert_array_equal(got[~is_nan], positive[~is_nan])
        assert np.isnan(through[:, is_nan].astype(np.float32)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_each_instruction_set(isa, tmp_path):
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    path = str(tmp_path / "results.npz")
    run_python(SAVE, isa, path, PRNN_CPU_ISA=isa)
    check_results(path)


ROUND = """
import sys, numpy as np, jax.numpy as jnp, prnn_jax
from test_half_numbers import DTYPES, rounding_of
for dtype in DTYPES:
    got, wanted = rounding_of(dtype)
    np.testing.assert_array_equal(got, wanted)
"""


def rounding_of(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Sums of two numbers as the engine rounds them, and as NumPy does."""
    numbers = every_number(dtype)
    numbers = numbers[np.isfinite(numbers.astype(np.float32))]
    numbers = numbers[numbers > 0]
    a, b = np.random.default_rng(5).choice(numbers, (2, 50_000))
    # Of like size, so that sums are between two numbers.
    with np.errstate(over="ignore"):
        near = (a.astype(np.float32) * 1.37).astype(a.dtype)
        alike = np.isfinite(near.astype(np.float32)) & (np.arange(a.size) % 2 == 0)
        b = np.where(alike, near, b)
        exact = a.astype(np.float32) + b.astype(np.float32)
    y, _ = prnn_jax.recurrence(
        "rnn",
        jnp.asarray(a).reshape(-1, 1, 1),
        jnp.zeros((1, 1), dtype),
        jnp.asarray(b).reshape(-1, 1),
        activation="relu",
        skip=1.0,
        implementation="native",
    )
    with np.errstate(over="ignore"):
        wanted = exact.astype(jnp.dtype(dtype))
    return np.asarray(y).reshape(-1).view(np.uint16), wanted.view(np.uint16)


@pytest.mark.parametrize("isa", ISAS)
def test_results_are_rounded_to_nearest_even(isa):
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    run_python(ROUND, PRNN_CPU_ISA=isa)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "gru_reset_before"])
def test_nan_stays_nan(cell, dtype):
    case = Half(cell, 3, (2,), 5, half=dtype)
    arrays = case.inputs()
    arrays["x"] = arrays["x"].copy()
    arrays["x"][0, 1] = np.nan
    y, _ = case.forward("native")(arrays)
    is_nan = np.isnan(np.asarray(y, np.float32))
    assert is_nan[0, 1:].all()
    assert not is_nan[0, 0].any()
    assert not is_nan[1].any()
