"""The CPU engine's functions, in units in the last place (ulp) of float32."""

import numpy as np
import pytest

from prnn_jax._engine import ffi

ISAS = [
    name for name in ("avx512", "avx2", "neon", "portable") if ffi.native.has_isa(name)
]
# As stated in cpu/vector_math.h.
BOUNDS_ULP = {"sigmoid": 3.0, "tanh": 3.0, "exp": 2.0, "log_sigmoid": 3.0}
#: What is defined and exact enough over all floats stays in a range and never falls.
RANGES = {
    "sigmoid": (0, 1),
    "tanh": (-1, 1),
    "exp": (0, np.inf),
    "log_sigmoid": (-np.inf, 0),
}
#: Below it sigmoid and exp are 0, for e^-87.3 is nearly the smallest normal float; exp
#: stays at e^87.3 above the opposite.
LOWEST = np.float32(-87.3)
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def exact(name: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    if name == "tanh":
        return np.tanh(x)
    if name == "exp":
        return np.exp(x)
    e = np.exp(-np.abs(x))  # no overflow, and no digits lost on either side
    if name == "log_sigmoid":
        return np.minimum(x, 0) - np.log1p(e)
    return np.where(x < 0, e / (1 + e), 1 / (1 + e))


def ours(name: str, isa: str, x: np.ndarray) -> np.ndarray:
    out = np.full_like(x, np.nan)
    getattr(ffi.native, name)(isa, x, out)
    return out


def errors_ulp(name: str, isa: str, x: np.ndarray) -> np.ndarray:
    wanted = exact(name, x)
    # The distance of floats at the exact value; below the normal ones it stays that of
    # the smallest normal.
    magnitude = np.maximum(np.abs(wanted), SMALLEST_NORMAL)
    _, exponent = np.frexp(magnitude)
    return np.abs(ours(name, isa, x) - wanted) / np.ldexp(1.0, exponent - 24)


def sweep() -> np.ndarray:
    """Every 512th float of either sign, of all magnitudes, and a fine grid around 0."""
    bits = np.arange(0, 0x7F800000, 512, dtype=np.uint32)
    positive = bits.view(np.float32)
    grid = np.linspace(0, 100, 2_000_001, dtype=np.float32)
    return np.concatenate([positive, -positive, grid, -grid])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BOUNDS_ULP)
def test_error_over_all_magnitudes(name, isa):
    x = sweep()
    x = x[x >= LOWEST] if name in ("sigmoid", "exp") else x
    x = x[x <= -LOWEST] if name in ("exp", "log_sigmoid") else x
    errors = errors_ulp(name, isa, x)
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS_ULP[name], f"{errors[worst]:.2f} ulp at {x[worst]!r}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("sigmoid", 0.0, 0.5),
        ("sigmoid", -0.0, 0.5),
        ("sigmoid", np.inf, 1.0),
        ("sigmoid", 1e30, 1.0),
        ("sigmoid", 20.0, 1.0),
        ("tanh", 0.0, 0.0),
        ("tanh", -0.0, -0.0),
        ("tanh", np.inf, 1.0),
        ("tanh", -np.inf, -1.0),
        ("tanh", 1e30, 1.0),
        ("tanh", -1e30, -1.0),
        ("tanh", 10.0, 1.0),
        ("tanh", 1e-20, 1e-20),
        ("exp", 0.0, 1.0),
        ("exp", -0.0, 1.0),
        ("exp", 1e-20, 1.0),
        ("log_sigmoid", 0.0, -np.log(np.float32(2))),
        ("log_sigmoid", 30.0, -np.exp(np.float32(-30))),
        ("log_sigmoid", -1e30, -1e30),
    ],
)
def test_special_values(name, isa, x, y):
    (got,) = ours(name, isa, np.float32([x]))
    assert got.tobytes() == np.float32(y).tobytes(), got


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sigmoid", "exp"])
def test_far_below_zero(name, isa):
    x = sweep()
    x = np.append(x[x < LOWEST], np.float32(-np.inf))
    np.testing.assert_array_equal(ours(name, isa, x), np.zeros_like(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BOUNDS_ULP)
def test_nan_gives_nan(name, isa):
    assert np.isnan(ours(name, isa, np.float32([np.nan, -np.nan]))).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BOUNDS_ULP)
def test_values_stay_in_range_and_do_not_fall(name, isa):
    x = np.sort(sweep())
    y = ours(name, isa, x)
    lowest, highest = RANGES[name]
    assert y.min() >= lowest
    assert y.max() <= highest
    # A step back is within the error on either side.
    back = 2 * BOUNDS_ULP[name] * np.spacing(np.abs(y[1:].astype(np.float32)))
    least = np.finfo(np.float32).eps if name in ("sigmoid", "tanh") else 0
    assert (np.diff(y) >= -np.maximum(back, least)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_tanh_is_odd(isa):
    x = np.abs(sweep())
    np.testing.assert_array_equal(ours("tanh", isa, -x), -ours("tanh", isa, x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BOUNDS_ULP)
@pytest.mark.parametrize("size", range(1, 35))
def test_every_length(name, isa, size):
    """Tails take other loads and stores than whole vectors."""
    x = np.linspace(-4, 4, 40, dtype=np.float32)
    out = np.full(40, np.nan, np.float32)
    getattr(ffi.native, name)(isa, x[:size], out[:size])
    np.testing.assert_array_equal(out[:size], ours(name, isa, x)[:size])
    assert np.isnan(out[size:]).all()
