"""vmap over any of a call's arrays and controls, nested: as each row by itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONTROLS, Case
from support import assert_as_accurate, float64, quick_jit

PARAMS = "w_ih", "w_hh", "b_ih", "b_hh"
RESET_TO = "reset_h", "reset_c"
LSTM = Case("lstm", 7, (2,), 5, 3, state=True, controls=CONTROLS)
GRU = Case("gru", 6, (), 5, 3, reverse=True, state=True, controls=CONTROLS)
BOTH = Case("gru", 5, (2,), 4, 3, bidirectional=True, heads=2, controls=CONTROLS)
RNN = Case("rnn_tanh", 7, (2,), 5, 3, time_major=True, controls=("lengths",))
RESET_BEFORE = Case("gru_reset_before", 6, (2,), 5, 3, controls=("lengths", "mask"))

#: What is mapped at each level, the outermost first.
TREES = [
    (LSTM, [(*PARAMS, "lengths")]),
    (RNN, [("x", *PARAMS), (*PARAMS, "lengths")]),
    (RNN, [("x", *PARAMS, "lengths"), (*PARAMS, "lengths")]),
    (LSTM, [(*PARAMS, "lengths"), ("x",)]),
    (GRU, [("lengths",), ("w_hh", "resets")]),
    (GRU, [("recurrent_mask", "b_ih"), ("lengths", "b_hh"), ("x", "w_ih")]),
    (LSTM, [("h_0", "zoneout"), ("w_hh", "lengths"), ("c_0", "resets")]),
    (BOTH, [("lengths", "zoneout"), ("w_ih",), ("x", *RESET_TO)]),
    (RESET_BEFORE, [("w_ih", "lengths"), ("x", "b_ih")]),
]


def another(name: str, values, k: int, case: Case):
    """Other values than those of a control or an array, of which k = 0 has none."""
    if isinstance(values, tuple):
        return tuple(another(name, value, k, case) for value in values)
    values = np.asarray(values)
    if name == "lengths":
        return ((values + 3 * k) % (case.time + 1)).astype(np.int32)
    if name in ("resets", "recurrent_mask", "zoneout"):
        return np.roll(values, k)
    return (values * (1 - 0.2 * k)).astype(values.dtype)


def mapped(case: Case, levels):
    """All arrays of a case and all controls, with an axis for each level in front."""
    out = case.inputs() | case.control_arrays()
    for names in reversed(levels):
        for name in set(names) & set(out):
            rows = [another(name, out[name], k, case) for k in range(2)]
            out[name] = jax.tree.map(lambda *row: np.stack(row), *rows)
    return out


def nested(levels, function, arrays):
    """`function` of each row."""
    for names in reversed(levels):
        axes = {name: 0 if name in names else None for name in arrays}
        function = jax.vmap(function, (axes,))
    return function(arrays)


def outputs(case: Case, implementation, arrays, order: int):
    """The results of a row, and a derivative of them by everything that has one."""
    floats = {name: arrays[name] for name in case.inputs()}

    def loss(floats):
        y, state = case.run(arrays | floats, implementation)
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)

    def slope(floats):
        return sum(jnp.sum(jnp.sin(g)) for g in jax.grad(loss)(floats).values())

    derivative = jax.grad(loss if order == 1 else slope)(floats)
    return case.run(arrays, implementation), derivative


def in_float64(case: Case, levels, arrays, order: int):
    run = functools.partial(outputs, case, "scan", order=order)
    with float64():
        wide = jax.tree.map(
            lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, arrays
        )
        exact = quick_jit(functools.partial(nested, levels, run))(wide)
        return jax.tree.map(np.asarray, exact)


@pytest.mark.parametrize(("case", "levels"), TREES, ids=str)
def test_each_row_is_a_call(case, levels):
    arrays = mapped(case, levels)
    exact = in_float64(case, levels, arrays, 1)

    def rows(run):
        return quick_jit(functools.partial(nested, levels, run))(arrays)

    scan = rows(functools.partial(outputs, case, "scan", order=1))
    ours = functools.partial(outputs, case, "native", order=1)
    assert_as_accurate(rows(ours), scan, exact)
    # The batched operation by the scan: as where there is no engine.
    lean = dataclasses.replace(case, lean=True)
    no_engine = functools.partial(outputs, lean, "scan", order=1)
    assert_as_accurate(rows(no_engine), scan, exact)


@pytest.mark.parametrize(("case", "levels"), [TREES[1], TREES[4]], ids=str)
def test_second_derivatives_of_each_row(case, levels):
    arrays = mapped(case, levels)
    exact = in_float64(case, levels, arrays, 2)

    def rows(implementation):
        run = functools.partial(outputs, case, implementation, order=2)
        return quick_jit(functools.partial(nested, levels, run))(arrays)

    assert_as_accurate(rows("native"), rows("scan"), exact)


@pytest.mark.parametrize("way", ["scan", "checkpoint", "eager"])
def test_rows_within(way):
    case, levels = TREES[1]
    arrays = mapped(case, levels)
    run = functools.partial(outputs, case, "native", order=1)
    if way == "checkpoint":
        run = jax.checkpoint(run)
    compute = functools.partial(nested, levels, run)
    if way == "scan":

        def compute(arrays):
            _, out = jax.lax.scan(
                lambda carry, a: (carry, nested(levels, run, a)),
                None,
                jax.tree.map(lambda a: jnp.asarray(a)[None], arrays),
            )
            return jax.tree.map(lambda a: a[0], out)

    scan = quick_jit(
        functools.partial(
            nested, levels, functools.partial(outputs, case, "scan", order=1)
        )
    )(arrays)
    assert_as_accurate(compute(arrays), scan, in_float64(case, levels, arrays, 1))


def test_no_rows():
    case = Case("lstm", 4, (2,), 5, 3, state=True)
    arrays = case.inputs()
    for names in (("x",), ("w_hh",), ("x", "w_ih", "h_0")):
        empty = {
            name: np.zeros((0, *a.shape), a.dtype) if name in names else a
            for name, a in arrays.items()
        }
        run = functools.partial(outputs, case, "native", order=1)
        (y, state), gradients = nested([names], run, empty)
        assert y.shape == (0, 2, 4, 5)
        assert [s.shape for s in state] == [(0, 2, 5)] * 2
        assert gradients["w_hh"].shape == (0, 5, 20)
