"""Infinities, NaN and huge numbers: as the scan, or better where its sums lose it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from support import error_of, float64, quick_jit

import prnn_jax

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Extreme:
    """What is done to the arrays of a case; None: nothing is there to be done."""

    name: str
    of: Callable[[Case, Arrays], Arrays | None]

    def __str__(self) -> str:
        return self.name


def scaled(name: str, factor: float) -> Extreme:
    def of(case: Case, arrays: Arrays):
        return {name: arrays[name] * np.float32(factor)} if name in arrays else None

    return Extreme(f"{name}*{factor:g}", of)


def one(name: str, at: tuple[int, ...], value: float) -> Extreme:
    def of(case: Case, arrays: Arrays):
        changed = arrays[name].copy()
        changed[at] = value
        return {name: changed}

    return Extreme(f"one_{name}={value:g}", of)


def biased(value: float, gate: int | None = None, h_0: float = 1) -> Extreme:
    """All of b_hh, or that of a gate."""

    def of(case: Case, arrays: Arrays):
        if gate is not None and gate >= case.table.gates:
            return None
        changed = arrays["b_hh"].copy().reshape(case.table.gates, -1)
        changed[slice(None) if gate is None else gate] = value
        return {"b_hh": changed.reshape(-1), "h_0": arrays["h_0"] * np.float32(h_0)}

    return Extreme(f"b_hh={value:g}-gate_{gate}-h_0*{h_0:g}", of)


INF, NAN = np.inf, np.nan
EXTREMES = [
    *(scaled("h_0", factor) for factor in (1e30, -1e37)),
    *(one("h_0", (0, 1), value) for value in (INF, -INF, NAN)),
    *(scaled("x", factor) for factor in (1e4, 1e20)),
    one("x", (0, 2, 1), INF),
    *(one("w_hh", (2, 1), value) for value in (INF, NAN)),
    *(scaled("w_hh", factor) for factor in (1e4, 1e30)),
    *(one("b_hh", (1,), value) for value in (INF, -INF)),
    *(biased(value) for value in (INF, -INF, -88, -200, 200)),
    *(biased(-200, gate, 1e30) for gate in range(4)),
    *(scaled(name, 1e30) for name in ("n_0", "m_0")),
]


def case_of(cell: str) -> Case:
    return Case(cell, 5, (3,), 5, 3, state=True)


@functools.cache
def results_of(cell: str, implementation: str) -> Callable:
    case = case_of(cell)

    def run(arrays, cotangents):
        out, vjp = jax.vjp(lambda a: case.run(a, implementation), arrays)
        return out, vjp(cotangents)[0]

    return (jax.jit if implementation == "native" else quick_jit)(run)


def extreme_cases() -> list[tuple[str, Extreme]]:
    """Of each cell, those that it has the arrays for."""
    return [
        (cell, extreme)
        for cell in CELLS
        for extreme in EXTREMES
        if extreme.of(case := case_of(cell), case.inputs()) is not None
    ]


@pytest.mark.parametrize(("cell", "extreme"), extreme_cases(), ids=str)
def test_is_as_the_scan(cell, extreme):
    case = case_of(cell)
    arrays = case.inputs()
    arrays |= extreme.of(case, arrays)
    ours = results_of(cell, "native")(arrays, case.cotangents())
    of_scan = results_of(cell, "scan")(arrays, case.cotangents())
    with float64():
        exact = results_of(cell, "scan")(
            jax.tree.map(lambda a: a.astype(np.float64), arrays),
            case.cotangents("float64"),
        )
        exact = jax.tree.map(np.asarray, exact)
    leaves, structure = jax.tree_util.tree_flatten_with_path(ours)
    for (path, a), b, c in zip(
        leaves,
        structure.flatten_up_to(of_scan),
        structure.flatten_up_to(exact),
        strict=True,
    ):
        a, b, name = np.asarray(a), np.asarray(b), jax.tree_util.keystr(path)
        # Products beyond float32 of both signs: NaN where each is rounded, the infinity
        # of the first where it is fused with its sum. The scan does as XLA likes.
        overflown = np.isnan(b) & np.isfinite(c) & np.isinf(a)
        same = ~overflown
        np.testing.assert_array_equal(
            np.isnan(a[same]), np.isnan(b[same]), err_msg=name
        )
        infinite = (np.isinf(a) | np.isinf(b)) & same
        np.testing.assert_array_equal(a[infinite], b[infinite], err_msg=name)
        there = np.isfinite(a) & np.isfinite(c)
        largest = np.max(np.abs(c[there]), initial=0)
        slack = 4 * np.finfo(np.float32).eps * largest  # as assert_as_accurate has it
        error, error_of_scan = (
            error_of(a[there], c[there]),
            error_of(b[there], c[there]),
        )
        assert error <= 2 * error_of_scan + slack, f"{name}: {error} {error_of_scan}"


def test_a_huge_cell_state_keeps_its_gradient():
    """∂c_n/∂c_0 is the product of the forget gates.

    The scan, in float64 too, adds to it what tanh(c) = ±1 has of the gradient of h,
    which is 0 as a sum of huge numbers: nothing is left.
    """
    case = case_of("lstm")
    arrays = case.inputs()
    params = [jnp.asarray(arrays[n]) for n in ("w_ih", "w_hh", "b_ih", "b_hh")]
    c_0 = arrays["c_0"] * np.float32(1e30)

    def last(c_0):
        run = functools.partial(prnn_jax.lstm, implementation="native")
        return run(arrays["x"], prnn_jax.Params(*params), (arrays["h_0"], c_0))[1][1]

    c_n, vjp = jax.vjp(last, c_0)
    (dc_0,) = vjp(jnp.ones_like(c_n))
    # To some roundings: what else has gone into c is of no size.
    np.testing.assert_allclose(dc_0, c_n / c_0, rtol=1e-5)


@pytest.mark.parametrize("gradient", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("controls", [(), ("lengths", "resets", "mask")])
@pytest.mark.parametrize("cell", ["rnn_relu", "rnn_clipped_relu_skip"])
def test_a_shut_unit_lets_no_gradient_through(cell, controls, implementation, gradient):
    """As a select, not as a product with zero: the square root's at 0, say."""
    case = Case(cell, 7, (3,), 9, 4, state=True, controls=controls)
    arrays, (dy, dstate) = case.inputs(), case.cotangents()
    (y, _), vjp = jax.vjp(lambda a: case.run(a, implementation), arrays)
    shut = (y <= 0) | (y >= CELLS[cell].options.get("cap", np.inf))
    assert shut.any()
    assert not shut.all()
    through = vjp((jnp.where(shut, gradient, dy), dstate))[0]
    without = vjp((jnp.where(shut, 0, dy), dstate))[0]
    jax.tree.map(np.testing.assert_array_equal, through, without)


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("cell", CELLS)
def test_what_does_not_count_reaches_no_gradient_of_a_state(cell, implementation):
    """NaN in the state and mask of an empty row, and in what padding is reset to."""
    case = Case(cell, 6, (3,), 5, 3, state=True, controls=("lengths",))
    arrays, (dy, dstate) = case.inputs(), case.cotangents()
    names = [name for name in arrays if name.endswith("_0")]
    params = prnn_jax.Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
    function = functools.partial(
        CELLS[cell].function, **CELLS[cell].options, implementation=implementation
    )

    def gradients(number):
        def run(state_0, reset_to):
            single = len(names) == 1
            y, state_n = function(
                arrays["x"],
                params,
                state_0[0] if single else state_0,
                lengths=np.array([6, 0, 2]),
                recurrent_mask=np.ones((3, 5), np.float32).copy() + mask,
                resets=np.eye(6, dtype=bool)[[2, 3, 4]],
                reset_to=reset_to[0] if single else reset_to,
            )
            return y, state_n

        mask = np.zeros((3, 5), np.float32)
        mask[1] = number
        state_0 = tuple(arrays[name].copy() for name in names)
        reset_to = tuple(0.5 * arrays[name] for name in names)
        for s, r in zip(state_0, reset_to, strict=True):
            s[1] = number
            r[1:] = number
        out, vjp = jax.vjp(run, state_0, reset_to)
        return out, vjp((dy, dstate if len(names) > 1 else dstate[0]))

    (y, state_n), of_states = gradients(np.nan)
    (expected, expected_n), of_expected = gradients(1.0)
    np.testing.assert_array_equal(y, expected)
    jax.tree.map(np.testing.assert_array_equal, of_states, of_expected)
    for ours, theirs in zip(
        jax.tree.leaves(state_n), jax.tree.leaves(expected_n), strict=True
    ):
        assert np.isnan(ours[1]).all()
        np.testing.assert_array_equal(ours[::2], theirs[::2])
