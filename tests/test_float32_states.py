"""States in float32 of calls in 16 bits: c of an LSTM, c, n and m of an sLSTM."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases import CONTROLS
from half_support import Half, assert_as_accurate, run
from support import assert_bitwise_equal, float64, oracle, quick_jit, scan
from test_unpacked import assert_same

import prnn_jax
from prnn_jax._engine import ffi


class Wide(Half):
    """A case of 16 bits whose states, and their cotangents, are float32."""

    def inputs(self, dtype=None):
        def is_state(name):
            return name.endswith("_0") or name.startswith("reset_")

        return {
            name: a.astype(np.float32) if not dtype and is_state(name) else a
            for name, a in super().inputs(dtype).items()
        }

    def cotangents(self, dtype=None):
        dy, dstate = super().cotangents(dtype)
        return dy, jax.tree.map(lambda a: a.astype(dtype or np.float32), dstate)


def cases() -> list[Wide]:
    plain = {"batch": (4,), "state": True}
    return [
        Wide("lstm", 9, **plain),
        Wide("lstm", controls=CONTROLS, **plain, half="float16"),
        Wide("slstm", controls=CONTROLS[:-1], **plain),
        Wide("slstm", 9, heads=3, hidden=32, lean=True, state=True, half="float16"),
        Wide("lstm_peephole", bidirectional=True, time_major=True, state=True),
        Wide("lstm", 40, reverse=True, lean=True, state=True),
        Wide("gru", 9, **plain),
    ]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_is_as_accurate_as_the_scan(case):
    exact = oracle(case)
    forward, gradients = run(case)
    assert_as_accurate(forward, scan(case, "").forward, exact.forward)
    # What is kept of the steps has 16 bits, as what the scan of such states keeps.
    narrow = scan(Half(**vars(case)), case.half).gradients
    of_scan = {name: d.astype(gradients[name].dtype) for name, d in narrow.items()}
    assert_as_accurate(gradients, of_scan, exact.gradients)


def in_calls_of(case: Half, steps: int, implementation=None):
    """`arrays -> (y, state)` of calls of so many steps, one after the other."""

    def run(arrays):
        params, state = case.params(arrays), case.state_of(arrays)
        controls = case.control_arrays(arrays["x"].dtype)
        resets = controls.get("resets", np.zeros(arrays["x"].shape[:-1], bool))

        def call(state, chunk):
            y, state = case.table.function(
                chunk[0],
                params,
                state,
                resets=chunk[1],
                time_major=True,
                implementation=implementation,
                **case.table.options,
            )
            return state, y

        count = case.time // steps
        chunks = jax.tree.map(
            lambda a: a.reshape(count, steps, *a.shape[1:]), (arrays["x"], resets)
        )
        state, y = jax.lax.scan(call, state, chunks)
        return y.reshape(case.time, *y.shape[2:]), state

    return run


STREAM = Wide("lstm", 24, (5,), 33, time_major=True, state=True, controls=("resets",))
STREAMS = [
    STREAM,
    replace(STREAM, cell="slstm", half="float16"),
    replace(STREAM, batch=(1,), controls=()),
]


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_calls_one_after_the_other_are_one(case, implementation):
    arrays = case.inputs()
    whole = jax.jit(in_calls_of(case, case.time, implementation))(arrays)
    for steps in (1, 6):
        parts = jax.jit(in_calls_of(case, steps, implementation))(arrays)
        # Short calls read weights unpacked, of which sums are not of pairs.
        is_native = implementation == "native" and case.half == "bfloat16"
        is_exact = not (is_native and ffi.native.sums_pairs())
        for part, of_whole in zip(*map(jax.tree.leaves, (parts, whole)), strict=True):
            assert_same(part, of_whole, is_exact)


@pytest.mark.parametrize("case", STREAMS[:2], ids=str)
def test_gradients_through_calls_are_those_of_one(case):
    """But of weights, which lax.scan sums in 16 bits."""
    arrays, cotangents = case.inputs(), case.cotangents()
    names = [name for name in arrays if name == "x" or name.endswith("_0")]

    def gradients(steps):
        def of(some):
            return in_calls_of(case, steps, "native")({**arrays, **some})

        @jax.jit
        def run(some, cotangents):
            return jax.vjp(of, some)[1](cotangents)[0]

        return run({name: arrays[name] for name in names}, cotangents)

    whole = jax.tree.map(np.asarray, gradients(case.time))
    exact = {name: oracle(case).gradients[name] for name in names}
    assert_as_accurate(gradients(1), whole, exact)


def long_memory(half):
    """An LSTM whose forget gates begin with a bias of 5, and what it is given."""
    case = Wide("lstm", 512, (2,), 64, 16, time_major=True, state=True, half=half)
    arrays = case.inputs()
    arrays["b_ih"][64:128] = 5
    return case, arrays


def test_a_long_memory_is_that_of_one_call():
    """Rounded to bfloat16 at each of 512 steps, c would be off by a third."""
    case, arrays = long_memory("bfloat16")
    with float64():
        wide = {name: np.float64(a) for name, a in arrays.items()}
        exact, _ = quick_jit(in_calls_of(case, 512, "scan"))(wide)
        exact = np.asarray(exact)

    def error(arrays, steps):
        y, _ = jax.jit(in_calls_of(case, steps, "native"))(arrays)
        return np.sqrt(np.mean((np.float64(y) - exact) ** 2) / np.mean(exact**2))

    narrow = arrays | {"c_0": arrays["c_0"].astype("bfloat16")}
    assert error(arrays, 1) == error(arrays, 512) < error(narrow, 1) / 2


def test_the_state_is_returned_as_it_was_given():
    case = Wide("lstm", state=True)
    arrays = case.inputs()
    x, params = arrays["x"], case.params(arrays)
    for dtypes in (
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
    ):
        state = arrays["h_0"].astype(dtypes[0]), arrays["c_0"].astype(dtypes[1])
        y, state_n = prnn_jax.lstm(x, params, state)
        assert y.dtype == "bfloat16"
        assert tuple(s.dtype for s in state_n) == dtypes
        np.testing.assert_array_equal(state_n[0], y[:, -1].astype(dtypes[0]))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_are_refused(dtype):
    case = Wide("lstm", state=True)
    with float64():
        arrays = case.inputs()
        state = arrays["h_0"], arrays["c_0"].astype(dtype)
        with pytest.raises(ValueError, match=f"the same dtype.*c_0 {dtype}"):
            prnn_jax.lstm(arrays["x"], case.params(arrays), state)


def test_under_vmap():
    case = Wide("lstm", 3, (4,), 9, state=True)
    arrays = case.inputs()
    params = case.params(arrays)

    def run(x, *state):
        return prnn_jax.lstm(x, params, state)

    given = arrays["x"], arrays["h_0"], arrays["c_0"]
    assert_bitwise_equal(jax.vmap(run)(*given), run(*given))
