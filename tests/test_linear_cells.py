"""Cells without a product in a step, against loops over time in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_cells import (
    CELLS,
    HIDDEN,
    INPUT,
    TIME,
    arrays_of,
    both_by_loop,
    by_loop,
    check,
    ours,
    wide,
    with_gradients,
)
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax import Params

#: What bends a call, and its options.
CONTROLS = {
    "plain": ((), {}),
    "resets-lengths": (("resets", "lengths"), {}),
    "resets-lengths-reverse": (("resets", "lengths"), {"reverse": True}),
    "mask": (("mask",), {}),
    "mask-zero-reverse": (("mask",), {"masked_y": "zero", "reverse": True}),
}
each_cell = pytest.mark.parametrize("name", CELLS)
#: One of each kind.
some_cells = pytest.mark.parametrize(
    "name", ["min_gru", "indrnn", "sru-peepholes", "qrnn-fo"]
)


@pytest.mark.parametrize("controls", CONTROLS)
@each_cell
def test_is_the_loop(name, controls):
    what, options = CONTROLS[controls]
    check(name, arrays_of(name, what), **options)


@each_cell
def test_both_directions_are_two_loops(name):
    arrays = arrays_of(name, ("resets", "lengths"), directions=2)
    check(name, arrays, both_by_loop, of_ours={"bidirectional": True})


@some_cells
def test_merged_by_sum(name):
    arrays = arrays_of(name, ("mask",), directions=2)
    y, state = ours(name, arrays, bidirectional=True)
    exact = both_by_loop(name, wide(arrays))
    np.testing.assert_allclose(y, exact[0], rtol=2e-5, atol=2e-6)
    merged, same = ours(name, arrays, bidirectional=True, merge="sum")
    assert_bitwise_equal(merged, sum(jnp.split(y, 2, -1)))
    assert_bitwise_equal(same, state)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@each_cell
def test_one_step_at_a_time_is_the_sequence(name, reverse):
    arrays = arrays_of(name)
    y, state = ours(name, arrays, reverse=reverse)
    step = jax.jit(functools.partial(ours, name, reverse=reverse))
    parts, states = {}, arrays["state"]
    for t in reversed(range(TIME)) if reverse else range(TIME):
        given = {**arrays, "x": arrays["x"][:, t : t + 1], "state": states}
        parts[t], states = step(given)
    streamed = jnp.concatenate([parts[t] for t in range(TIME)], 1)
    # The products are of other sizes, and so summed in another order.
    np.testing.assert_allclose(streamed, y, rtol=2e-5, atol=2e-6)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6),
        states,
        state,
    )


@each_cell
def test_a_masked_step_is_no_step(name):
    """A sequence with steps left out is the sequence without them, bit by bit."""
    arrays = arrays_of(name)
    keep = np.array([0, 2, 3, 6])
    mask = np.broadcast_to(np.isin(np.arange(TIME), keep), (3, TIME))
    x = np.where(mask[..., None], arrays["x"], np.nan)
    y, state = ours(name, {**arrays, "x": x}, mask=mask)
    fewer, same = ours(name, {**arrays, "x": arrays["x"][:, keep]})
    np.testing.assert_allclose(y[:, keep], fewer, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(state[0], same[0], rtol=2e-5, atol=2e-6)
    gradients = with_gradients(
        functools.partial(ours, name), {**arrays, "x": x, "mask": mask}
    )[1]
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@each_cell
def test_padding_may_be_nan(name, reverse):
    arrays = arrays_of(name, ("lengths", "resets"))
    counts = np.arange(TIME) < arrays["lengths"][:, None]
    nan = {**arrays, "x": np.where(counts[..., None], arrays["x"], np.nan)}
    run = functools.partial(ours, name, reverse=reverse)
    assert_bitwise_equal(run(nan), run(arrays))
    gradients = with_gradients(run, nan)[1]
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@some_cells
def test_time_major_batch_axes_and_vmap(name):
    arrays = arrays_of(name, ("resets", "lengths"))
    y, state = ours(name, arrays, reverse=True)
    steps = ("x", "resets")
    moved = {k: np.moveaxis(v, 1, 0) if k in steps else v for k, v in arrays.items()}
    of_time = ours(name, moved, reverse=True, time_major=True)
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    jax.tree.map(near, (jnp.moveaxis(of_time[0], 0, 1), of_time[1]), (y, state))
    apart = {
        k: v if k == "weights" else jax.tree.map(lambda x: x[None], v)
        for k, v in arrays.items()
    }
    of_axes = ours(name, apart, reverse=True)
    jax.tree.map(near, jax.tree.map(lambda x: x[0], of_axes), (y, state))
    axes = {k: None if k == "weights" else 0 for k in arrays}
    rows = jax.vmap(functools.partial(ours, name, reverse=True), (axes,))(arrays)
    jax.tree.map(near, rows, (y, state))


@some_cells
def test_a_mask_of_a_time_major_call(name):
    arrays = arrays_of(name, ("mask",))
    y, state = ours(name, arrays)
    moved = {**arrays, **{k: np.moveaxis(arrays[k], 1, 0) for k in ("x", "mask")}}
    of_time = ours(name, moved, time_major=True)
    near = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    jax.tree.map(near, (jnp.moveaxis(of_time[0], 0, 1), of_time[1]), (y, state))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@each_cell
def test_16_bits(name, dtype):
    given = arrays_of(name, ("lengths",))
    arrays = jax.tree.map(
        lambda v: jnp.asarray(v, dtype if v.dtype.kind == "f" else None), given
    )
    y, state = ours(name, arrays)
    assert y.dtype == dtype
    assert all(s.dtype == dtype for s in state)
    known = jax.tree.map(
        lambda v: np.asarray(v, np.float64 if v.dtype == dtype else None), arrays
    )
    exact, _ = by_loop(name, known)
    loop, _ = by_loop(name, {**arrays, "lengths": known["lengths"]}, xp=jnp)
    error, of_loop = (np.abs(np.asarray(v, float) - exact).max() for v in (y, loop))
    assert error <= 2 * of_loop + 4 * float(jnp.finfo(dtype).eps)


@each_cell
def test_no_steps_leave_the_state(name):
    arrays = arrays_of(name)
    y, state = ours(name, {**arrays, "x": arrays["x"][:, :0]})
    assert y.shape == (3, 0, HIDDEN)
    assert_bitwise_equal(state, arrays["state"])


@pytest.mark.parametrize("name", [n for n in CELLS if n != "sru-peepholes"])
def test_the_native_engine_runs_it(name):
    arrays = arrays_of(name)
    run = jax.jit(functools.partial(ours, name, implementation="native"))
    assert "prnn_elementwise" in run.lower(arrays).as_text()
    assert_bitwise_equal(run(arrays), jax.jit(functools.partial(ours, name))(arrays))


@pytest.mark.parametrize(
    ("pooling", "controls"), [("f", "resets"), ("fo", "mask"), ("ifo", "lengths")]
)
def test_zoneout_of_a_qrnn(pooling, controls):
    name = f"qrnn-{pooling}"
    check(name, arrays_of(name, (controls, "zoneout")), reverse=True)


def test_zoneout_of_both_directions_and_its_mean():
    arrays = arrays_of("qrnn-ifo", ("zoneout",), directions=2)
    check("qrnn-ifo", arrays, both_by_loop, of_ours={"bidirectional": True})
    one = arrays_of("qrnn-fo")
    share = np.full((3, TIME, HIDDEN), 0.25, np.float32)
    by_array = ours("qrnn-fo", one, zoneout=share)
    assert_bitwise_equal(ours("qrnn-fo", one, zoneout=0.25), by_array)
    traced = jax.jit(lambda k: ours("qrnn-fo", one, zoneout=k))(0.25)
    np.testing.assert_allclose(traced[0], by_array[0], rtol=2e-6, atol=1e-6)
    # The paper's own words: dropout, without its rescaling, of 1 - f.
    assert_bitwise_equal(
        ours("qrnn-f", arrays_of("qrnn-f"), zoneout=1.0)[1][0],
        arrays_of("qrnn-f")["state"][0],
    )


def test_a_width_of_one_sees_the_step_alone():
    arrays = arrays_of("qrnn-f")
    state = arrays["state"][0], np.zeros((3, 0, INPUT), np.float32)
    w = arrays["weights"]["w_ih"]
    y, (_, before) = prnn_jax.qrnn(arrays["x"], w[2:], None, state, pooling="f")
    lone, _ = prnn_jax.qrnn(
        arrays["x"],
        w * np.array([0, 0, 1], np.float32)[:, None, None],
        None,
        (state[0], np.zeros((3, 2, INPUT), np.float32)),
        pooling="f",
    )
    assert before.shape == (3, 0, INPUT)
    np.testing.assert_allclose(y, lone, rtol=1e-5, atol=1e-6)


def test_a_decay_near_one_keeps_its_digits():
    # σ(20)^8 is 1 - 1.6e-8, which float32 rounds to 1: 1 - a^2 would be 0.
    x = jnp.ones((1, 1, 1))
    y, _ = prnn_jax.rg_lru(x, jnp.full((1, 2), 30.0), None, jnp.full(1, 20.0))
    a_squared = -np.expm1(16 * -np.log1p(np.exp(-20.0)))
    np.testing.assert_allclose(y[0, 0, 0], np.sqrt(a_squared), rtol=1e-4)


def test_what_hardly_enters_keeps_its_digits():
    # i / f is 5.6e-9, and f / (f + i) in float32 is 1: what enters would be 0.
    w = np.array([[-19.0, 19.0, 3.0]], np.float32)

    def entered(w):
        return prnn_jax.min_lstm(jnp.ones((1, 1, 1)), w)[0].sum()

    i, f = (1 / (1 + np.exp(-a)) for a in w[0, :2].astype(float))
    enters = i / (f + i)
    y, gradient = jax.value_and_grad(entered)(w)
    np.testing.assert_allclose(y, 3 * enters, rtol=1e-5)
    of_i = 3 * enters * (1 - enters) * (1 - i)
    np.testing.assert_allclose(gradient[0, 0], of_i, rtol=1e-5)
    np.testing.assert_allclose(gradient[0, 2], enters, rtol=1e-5)


# ---- bad input -----------------------------------------------------------------------

ONES = jnp.ones


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: prnn_jax.indrnn(x, Params(ONES((4, 5)), ONES((5, 5)))),
            r"params must be prnn_jax.Params whose w_hh is u, \[hidden\], got \[5, 5\]",
        ),
        (
            lambda x: prnn_jax.min_gru(x, ONES((4, 5))),
            r"w_ih must be \[input, 2\*hidden\] with hidden >= 1, got \[4, 5\]",
        ),
        (
            lambda x: prnn_jax.min_lstm(x, ONES((3, 6))),
            r"x must be \[..., input\] with input = 3 \(w_ih is \[3, 6\]\), got \[2, 3",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((2, 3, 9))),
            r"x must be \[..., input\] with input = 3 \(w_ih is \[2, 3, 9\]\), got",
        ),
        (
            lambda x: prnn_jax.rg_lru(x, ONES((4, 8)), None, ONES(3)),
            r"decay must be \[hidden\] = \[4\], got \[3\]",
        ),
        (
            lambda x: prnn_jax.min_gru(x[0, 0], ONES((4, 6))),
            r"x must have axes of time and input, got \[4\]",
        ),
        (
            lambda x: prnn_jax.min_gru(x, ONES((4, 6)), None, ONES((2, 4))),
            r"min_gru: h_0 must be \[\*batch, features\] = \[2, 3\], got \[2, 4\]",
        ),
        (
            lambda x: prnn_jax.min_gru(x, ONES((4, 6)), mask=ONES((2, 4))),
            r"min_gru: mask must be \[\*batch, time\] = \[2, 3\], got \[2, 4\]",
        ),
        (
            lambda x: prnn_jax.linear_recurrence(
                x, x, mask=ONES((2, 3)), lengths=[1, 1]
            ),
            "lengths must be None beside mask",
        ),
        (
            lambda x: prnn_jax.sru(
                x, ONES((4, 12)), mask=ONES((2, 3)), resets=ONES((2, 3))
            ),
            "resets must be None beside mask",
        ),
        (
            lambda x: prnn_jax.min_lstm(x, ONES((4, 6)), masked_y="last"),
            "masked_y must be one of 'hold', 'zero', got 'last'",
        ),
        (
            lambda x: prnn_jax.min_gru(x, ONES((4, 6)), bidirectional=True),
            r"w_ih must have a leading axis of 2, forward and backward, with "
            r"bidirectional=True, got \[4, 6\]",
        ),
        (
            lambda x: prnn_jax.min_gru(x, ONES((2, 3, 6)), bidirectional=True),
            r"min_gru, forward: x must be \[..., input\] with input = 3 \(w_ih is",
        ),
        (
            lambda x: prnn_jax.sru(x, ONES((4, 9))),
            r"w_skip must be \[input, hidden\] = \[4, 3\] where the input is not as "
            "wide as the state, got None",
        ),
        (
            lambda x: prnn_jax.sru(x, ONES((4, 12)), ONES(12)),
            r"b_ih must be \[2\*hidden\] = \[8\], got \[12\]",
        ),
        (
            lambda x: prnn_jax.sru(
                x, ONES((4, 12)), peepholes=ONES(8), implementation="native"
            ),
            "not available: with peepholes the forget gate sees the state",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((4, 12))),
            r"w_ih must be \[width, input, gates\*hidden\] with input = 4, got \[4, 12",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((2, 4, 9)), pooling="of"),
            "pooling must be one of 'f', 'fo', 'ifo', got 'of'",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((2, 4, 9)), None, ONES((2, 3))),
            r"state_0 must be \(c_0, x_0\), got ",
        ),
        (
            lambda x: prnn_jax.qrnn(
                x, ONES((3, 4, 9)), None, (ONES((2, 3)), ONES((2, 1, 4)))
            ),
            r"x_0 must be \[\*batch, width - 1, input\] = \[2, 2, 4\], got \[2, 1, 4\]",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((2, 4, 9)), zoneout=1.5),
            "zoneout must be from 0 to 1, got 1.5",
        ),
        (
            lambda x: prnn_jax.qrnn(x, ONES((2, 4, 9)), zoneout=ONES((2, 3))),
            r"zoneout must be \[\*batch, time, hidden\] = \[2, 3, 3\], got \[2, 3\]",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.ones((2, 3, 4)))
