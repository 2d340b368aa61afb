"""Masks of steps: what a row gives without the steps that do not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from support import assert_bitwise_equal

import prnn_jax

#: Of sums of a few products, in float32: rows of another length may be added in another
#: order.
CLOSE = {"rtol": 0, "atol": 2e-6}


def mask_of(case: Case) -> np.ndarray:
    """`[batch, time]`, with a row of no steps and one of all."""
    random = np.random.default_rng(3)
    mask = random.random((case.rows, case.time)) < 0.6
    mask[0], mask[-1] = False, True
    return mask


def oriented(case: Case, sequence):
    """From batch-major to what the call has."""
    return np.moveaxis(sequence, 1, 0) if case.time_major else sequence


def call(case: Case, arrays, mask, **options):
    y, state = case.table.function(
        oriented(case, arrays["x"]),
        case.params(arrays),
        case.state_of(arrays),
        mask=None if mask is None else oriented(case, mask),
        reverse=case.reverse,
        bidirectional=case.bidirectional,
        time_major=case.time_major,
        reserve="lean" if case.lean else "fast",
        **case.table.options,
        **options,
    )
    y = jnp.moveaxis(y, 0, 1) if case.time_major else y
    return y, state if isinstance(state, tuple) else (state,)


def expected(case: Case, arrays, mask):
    """Row by row, with nothing but the steps that count; y held, and the state."""
    rows = []
    for b, counts in enumerate(mask):
        at = np.flatnonzero(counts)
        row = {
            name: value[..., b : b + 1, :] if name.endswith("_0") else value
            for name, value in arrays.items()
        }
        row["x"] = arrays["x"][b : b + 1, at]
        y, state = call(case, row, None)
        sides = []
        for side, part in enumerate(np.split(np.asarray(y[0]), case.directions, -1)):
            h = row["h_0"][side, 0] if case.bidirectional else row["h_0"][0]
            held, place = [], dict(zip(at, part, strict=True))
            against = case.reverse != bool(side)
            for t in range(case.time)[:: -1 if against else 1]:
                h = place.get(t, h)
                held.append(h)
            sides.append(np.stack(held[:: -1 if against else 1]))
        rows.append((np.concatenate(sides, -1), state))
    y = np.stack([y for y, _ in rows])
    states = zip(*(state for _, state in rows), strict=True)
    return y, tuple(np.concatenate(state, -2) for state in states)


VARIANTS = [
    *(Case(cell, 9, (4,), 11, state=True) for cell in CELLS),
    Case("lstm", 9, (4,), 11, state=True, reverse=True),
    Case("gru", 9, (4,), 11, state=True, bidirectional=True),
    Case("lstm", 9, (4,), 11, state=True, bidirectional=True, time_major=True),
    Case("rnn_tanh", 9, (4,), 11, state=True, bidirectional=True, reverse=True),
    Case("lstm", 9, (4,), 11, state=True, heads=2, lean=True),
]


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_rows_are_as_without_the_others(case):
    arrays, mask = case.inputs(), mask_of(case)
    arrays["x"] = np.reshape(arrays["x"], (case.rows, case.time, -1))
    wanted, state = expected(case, arrays, mask)
    arrays["x"][~mask] = np.nan
    y, state_n = jax.jit(lambda a, m: call(case, a, m))(arrays, mask)
    np.testing.assert_allclose(y, wanted, **CLOSE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), state_n, state)
    zero, same = call(case, arrays, mask.astype(np.int8), masked_y="zero")
    np.testing.assert_allclose(zero, np.where(mask[..., None], wanted, 0), **CLOSE)
    assert_bitwise_equal(same, state_n)


def test_gradients_are_those_of_the_steps_that_count():
    """Of a mask at the end, those of lengths; and none of what does not count."""
    case = Case("lstm", 7, (3,), 9, state=True)
    arrays = case.inputs()
    lengths = np.array([0, 4, 7])
    mask = np.arange(7) < lengths[:, None]
    arrays["x"][~mask] = np.nan

    def loss(arrays, **options):
        y, (h, c) = prnn_jax.lstm(
            arrays["x"], case.params(arrays), case.state_of(arrays), **options
        )
        return jnp.sum(y**2) + jnp.sum(h * c)

    ours = jax.grad(loss)(arrays, mask=mask, masked_y="zero")
    assert_bitwise_equal(ours, jax.grad(loss)(arrays, lengths=lengths))
    # What is held is the last h once more.
    held = jax.grad(loss)(arrays, mask=mask)
    assert np.isfinite(held["x"]).all()
    assert (np.asarray(held["x"])[~mask] == 0).all()
    of_no_steps = 2 * 7 * arrays["h_0"][0] + arrays["c_0"][0]
    np.testing.assert_allclose(held["h_0"][0], of_no_steps, rtol=1e-5)


def test_zoneout_is_that_of_the_step():
    case = Case("gru", 6, (2,), 5, state=True)
    arrays, mask = case.inputs(), np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 1]])
    zoneout = np.random.default_rng(5).random((2, 6, 5)).astype(np.float32)
    y, h = prnn_jax.gru(
        arrays["x"], case.params(arrays), arrays["h_0"], mask=mask, zoneout=zoneout
    )
    for b in range(2):
        at = np.flatnonzero(mask[b])
        y_b, h_b = prnn_jax.gru(
            arrays["x"][b, at],
            case.params(arrays),
            arrays["h_0"][b],
            zoneout=zoneout[b, at],
        )
        np.testing.assert_allclose(y[b, at], y_b, **CLOSE)
        np.testing.assert_allclose(h[b], h_b, **CLOSE)


def test_in_a_vmap_and_a_stack():
    case = Case("gru", 6, (4,), 5, 5)
    arrays, mask = case.inputs(), np.random.default_rng(6).random((4, 6)) < 0.5
    params = case.params(arrays)
    y, _ = prnn_jax.gru(arrays["x"], params, mask=mask)
    each, _ = jax.vmap(lambda x, m: prnn_jax.gru(x, params, mask=m))(arrays["x"], mask)
    np.testing.assert_allclose(each, y, **CLOSE)
    second, _ = prnn_jax.gru(y, params, mask=mask)
    x = np.where(mask[..., None], arrays["x"], np.nan)
    for options in ({}, {"masked_y": "zero"}):
        of_stack, _ = prnn_jax.stack("gru", x, [params, params], mask=mask, **options)
        wanted = np.where(mask[..., None], second, 0) if options else second
        np.testing.assert_allclose(of_stack, wanted, **CLOSE)
    skipping, _ = prnn_jax.stack(
        "gru", x, [params] * 2, mask=mask, skip_connections=True
    )
    assert np.isfinite(skipping).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": np.ones((3, 5))}, r"mask must be \[\*batch, time\] = \[3, 7\], got"),
        ({"mask": "yes"}, "mask must be an array, got str"),
        ({"masked_y": "last"}, "masked_y must be .*'hold', 'zero'.*got 'last'"),
        (
            {"mask": np.ones((3, 7)), "lengths": np.ones(3, int)},
            "lengths must be None beside mask",
        ),
        (
            {"mask": np.ones((3, 7)), "resets": np.ones((3, 7))},
            "resets must be None beside mask",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(options, message):
    case = Case("lstm")
    arrays = case.inputs()
    with pytest.raises(ValueError, match=message):
        prnn_jax.lstm(arrays["x"], case.params(arrays), **options)
