"""What lengths, resets, masks and heads mean: each said a second way.

Accuracy and gradients of all of them are in the table of cases (`cases.CASES`).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS, Case
from support import Program, assert_bitwise_equal, assert_follows_scan, float64

import prnn_jax
from prnn_jax import Params

KINDS = ["lstm", "slstm", "gru", "gru_reset_before", "rnn_tanh_skip"]

#: Where the rule is one for all cells: one with two states, one with two products.
SOME = ["lstm", "gru_reset_before"]
LENGTHS = np.array([0, 9, 4, 1])


def layer(cell: str, implementation: str | None = None, **options):
    """A cell's function of (x, params, state_0), and arrays for it."""
    case = Case(cell, 9, (4,), 6, 3, state=True)
    arrays = case.inputs(np.float64)
    params = Params(*(arrays[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
    names = [f"{name}_0" for name in "hcnm" if f"{name}_0" in arrays]
    states = tuple(arrays[name] for name in names)
    run = functools.partial(
        CELLS[cell].function,
        **CELLS[cell].options,
        implementation=implementation,
        **options,
    )
    return run, arrays["x"], params, states if len(states) > 1 else states[0]


def rows(tree, n):
    return jax.tree.map(lambda a: a[n : n + 1], tree)


def close(left, right, roundings=64):
    """Equal but for float64's rounding in another order."""
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=roundings * 2.3e-16)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", SOME)
def test_a_row_of_some_length_is_that_row_cut_short(cell, reverse):
    with float64():
        run, x, params, state_0 = layer(cell, "scan", reverse=reverse)
        y, state_n = run(x, params, state_0, lengths=LENGTHS)
        for n, length in enumerate(LENGTHS):
            row = run(x[n : n + 1, :length], params, rows(state_0, n))
            close((y[n : n + 1, :length], rows(state_n, n)), row)
            assert not y[n, length:].any()


@pytest.mark.parametrize("cell", SOME)
def test_a_reset_begins_a_new_sequence(cell):
    with float64():
        run, x, params, state_0 = layer(cell, "scan")
        resets = np.zeros(x.shape[:2])
        resets[0, 0], resets[1, 3], resets[1, 7], resets[3, 8] = 1, 2.5, -1, 1
        y, _ = run(x, params, state_0, resets=resets)
        half = jax.tree.map(lambda a: a / 2, state_0)
        z, _ = run(x, params, state_0, resets=resets, reset_to=half)
        for n in range(len(x)):
            edges = [0, *np.flatnonzero(resets[n]), x.shape[1]]
            for first, last in itertools.pairwise(edges):
                piece = x[n : n + 1, first:last]
                kept = first == 0 and not resets[n, 0]
                zero = rows(jax.tree.map(np.zeros_like, state_0), n)
                for whole, fresh in ((y, zero), (z, rows(half, n))):
                    begin = rows(state_0, n) if kept else fresh
                    close(whole[n : n + 1, first:last], run(piece, params, begin)[0])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_mask_scales_the_rows_of_the_weights(cell):
    with float64():
        run, x, params, state_0 = layer(cell, "scan")
        mask = np.random.default_rng(1).uniform(size=(4, 6))
        y, state_n = run(x, params, state_0, recurrent_mask=mask)
        for n in range(len(x)):
            scaled = params._replace(w_hh=mask[n][:, None] * params.w_hh)
            row = run(x[n : n + 1], scaled, rows(state_0, n))
            close((y[n : n + 1], rows(state_n, n)), row)


@pytest.mark.parametrize("cell", SOME)
def test_zoneout_keeps_a_share_of_the_state(cell):
    with float64():
        run, x, params, state_0 = layer(cell, "scan")
        close(run(x, params, state_0, zoneout=0.0), run(x, params, state_0))
        close(run(x, params, state_0, zoneout=1)[1], state_0)
        # One step: k of the old and the rest of the new.
        _, new = run(x[:, :1], params, state_0)
        _, mixed = run(x[:, :1], params, state_0, zoneout=0.3)
        expected = jax.tree.map(lambda a, b: 0.3 * a + 0.7 * b, state_0, new)
        close(mixed, expected)
        full = np.full((*x.shape[:2], 6), 0.3)
        parts = (full,) * CELLS[cell].states
        close(
            run(x, params, state_0, zoneout=parts)[0],
            run(x, params, state_0, zoneout=0.3)[0],
        )


def test_zoneout_may_differ_between_h_and_c():
    with float64():
        run, x, params, state_0 = layer("lstm", "scan")
        _, (h, c) = run(x, params, state_0, zoneout=(0, 1.0))
        close(c, state_0[1])
        assert np.abs(h - state_0[0]).max() > 0.1


@pytest.mark.parametrize("reserve", ["fast", "lean"])
@pytest.mark.parametrize("fraction", [0.25, 1 / 3, 0.999, 1.0])
@pytest.mark.parametrize("cell", [name for name in CELLS if name != "slstm"])
def test_gradients_under_a_fractional_zoneout(cell, fraction, reserve):
    case = Case(cell, 9, (4,), 6, 3, state=True)
    options = {**CELLS[cell].options, "zoneout": fraction, "reserve": reserve}

    def gradients(implementation, arrays):
        # The scan with the lean reserve makes the gates again, as the engine does.
        def loss(arrays):
            params = Params(*(arrays[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")))
            states = tuple(arrays[f"{n}_0"] for n in "hc"[: CELLS[cell].states])
            state_0 = states if len(states) > 1 else states[0]
            y, state_n = CELLS[cell].function(
                arrays["x"], params, state_0, implementation=implementation, **options
            )
            return sum(jnp.sin(3 * a).sum() for a in jax.tree.leaves((y, state_n)))

        return jax.grad(loss)(arrays)

    # Without XLA's fusion emitters (quick_jit): where the processor has AVX2 and no
    # more, those of jaxlib 0.10.2 make wrong gradients of the LSTM's scan in float64,
    # as finite differences show.
    assert_follows_scan(gradients, case.inputs())


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("activation", ["relu", "clipped_relu"])
def test_zoneout_leaves_a_shut_unit_shut(activation, implementation):
    """A share of 1/3 of numbers that are no multiples of it, and ReLUs that are shut.

    Rounding must not open them: then half of the gradients would be others.
    """
    random = np.random.default_rng(0)
    x, w_ih, w_hh = (random.normal(size=s) for s in ((2, 6, 3), (3, 5), (5, 5)))

    def gradient(dtype, implementation):
        def loss(w_hh):
            params = Params(jnp.asarray(w_ih, dtype), w_hh)
            y, _ = prnn_jax.rnn(
                jnp.asarray(x, dtype),
                params,
                activation=activation,
                cap=0.7,
                zoneout=1 / 3,
                implementation=implementation,
            )
            return (y**2).sum()

        return np.asarray(jax.grad(loss)(jnp.asarray(w_hh, dtype)))

    with float64():
        exact = gradient(jnp.float64, "scan")
    ours = gradient(jnp.float32, implementation)
    # Some 50 roundings of float32.
    np.testing.assert_allclose(ours, exact, rtol=0, atol=3e-6 * np.abs(exact).max())


@pytest.mark.parametrize("implementation", ["native", "scan"])
def test_a_share_of_zero_brings_nothing_over(implementation):
    """Of a step that overflows, where all of the old state stays; and back."""
    w_ih, w_hh = np.full((1, 2), 2, np.float32), np.ones((2, 2), np.float32)
    x = np.float32([1, 3e38, 1])[None, :, None]  # the second step's ReLU is infinite
    zoneout = np.float32([[[0, 0], [1, 1], [0, 0]]])

    def run(w_hh, zoneout, x):
        params = Params(w_ih, w_hh)
        return prnn_jax.rnn(
            x,
            params,
            activation="relu",
            zoneout=zoneout,
            implementation=implementation,
        )[0]

    y, vjp = jax.vjp(lambda w: run(w, zoneout, x), w_hh)
    # As without that step.
    short, short_vjp = jax.vjp(lambda w: run(w, zoneout[:, ::2], x[:, ::2]), w_hh)
    np.testing.assert_array_equal(y[:, ::2], short)
    np.testing.assert_array_equal(y[:, 1], y[:, 0])
    dy = np.float32([[[1, 2], [0, 0], [3, 5]]])
    np.testing.assert_array_equal(vjp(dy)[0], short_vjp(dy[:, ::2])[0])
    # And a gradient that is no number stays where it goes.
    dy = np.float32([[[0, 0], [np.nan, np.inf], [0, 0]]])
    at_first = np.float32([[[np.nan, np.inf], [0, 0], [0, 0]]])
    np.testing.assert_array_equal(vjp(dy)[0], vjp(at_first)[0])


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("cell", SOME)
def test_no_gradient_crosses_a_reset(cell, implementation):
    run, *arrays = layer(cell, implementation)
    x, params, state_0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), arrays)
    resets = np.zeros((4, 9), bool)
    resets[:, 5] = True

    def after(x, state_0):
        y, state_n = run(x, params, state_0, resets=resets)
        return sum(a.sum() for a in jax.tree.leaves((y[:, 5:], state_n)))

    dx, dstate_0 = jax.grad(after, (0, 1))(x, state_0)
    assert not np.asarray(dx)[:, :5].any()
    assert np.asarray(dx)[:, 5:].any()
    assert not any(np.asarray(d).any() for d in jax.tree.leaves(dstate_0))


def test_masks_get_no_gradient():
    run, x, params, state_0 = layer("gru", "scan")
    mask, zoneout = np.ones((4, 6)), np.full((4, 9, 6), 0.5)

    def loss(mask, zoneout):
        return run(x, params, state_0, recurrent_mask=mask, zoneout=zoneout)[0].sum()

    with float64():
        for gradient in jax.grad(loss, (0, 1))(mask, zoneout):
            assert not gradient.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": np.ones(4)}, "lengths must be whole numbers, got float64"),
        ({"lengths": np.ones(3, int)}, r"lengths must be \[\*batch\] = \[4\], got"),
        ({"lengths": 3}, r"lengths must be \[\*batch\] = \[4\], got \[\]"),
        ({"lengths": "long"}, "lengths must be an array, got str"),
        (
            {"resets": np.ones((9, 4))},
            r"resets must be \[\*batch, time\] = \[4, 9\], got \[9, 4\]",
        ),
        (
            {"reset_to": np.ones((4, 6), np.float32)},
            "reset_to is given without resets; give resets",
        ),
        (
            {"resets": np.ones((4, 9)), "reset_to": np.ones((4, 5), np.float32)},
            r"reset_to must be \[\*batch, hidden\] = \[4, 6\], got \[4, 5\]",
        ),
        (
            {"recurrent_mask": np.ones((6,), np.float32)},
            r"recurrent_mask must be \[\*batch, hidden\] = \[4, 6\], got \[6\]",
        ),
        (
            {"recurrent_mask": np.ones((4, 6), np.float16)},
            "same dtype, got x float32, recurrent_mask float16",
        ),
        ({"zoneout": 1.5}, "zoneout must be from 0 to 1, got 1.5"),
        ({"zoneout": (0.1, 0.2)}, "tuple of 1 of them, one for each state, got 2"),
        ({"zoneout": np.ones((4, 9))}, r"zoneout must be .*, got \[4, 9\]"),
        ({"merge": "mean"}, "merge must be one of 'concat', 'sum', got 'mean'"),
        ({"reserve": "none"}, "reserve must be one of 'fast', 'lean', got 'none'"),
    ],
    ids=str,
)
def test_bad_controls(options, message):
    run, *arrays = layer("gru")
    x, params, state_0 = jax.tree.map(lambda a: np.asarray(a, np.float32), arrays)
    with pytest.raises(ValueError, match="gru: .*" + message):
        run(x, params, state_0, **options)


def test_heads_are_layers_side_by_side():
    case = Case("lstm", 5, (3,), 7, 4, heads=3, state=True, bidirectional=True)
    with float64():
        arrays = case.inputs(np.float64)
        y, (h_n, c_n) = case.run(arrays, "scan")
        names = ("w_ih", "w_hh", "b_ih", "b_hh")
        for head in range(3):
            units = slice(7 * head, 7 * head + 7)
            params = Params(*(arrays[name][:, head] for name in names))
            state_0 = arrays["h_0"][..., units], arrays["c_0"][..., units]
            one, state_n = prnn_jax.lstm(
                arrays["x"], params, state_0, bidirectional=True, implementation="scan"
            )
            for direction in (0, 1):
                ours = y[..., 21 * direction :][..., units]
                close(ours, one[..., 7 * direction :][..., :7])
            close((h_n[..., units], c_n[..., units]), state_n)


def test_heads_that_do_not_fit():
    case = Case("lstm", 5, (3,), 7, 4, heads=3, state=True)
    arrays = case.inputs()
    for name, message in (
        ("h_0", r"h_0 must be \[\*batch, heads\*hidden\] = \[3, 21\], got \[3, 20\]"),
        ("w_ih", r"w_ih must be \[heads, input, 4\*hidden\] = \[3, 4, 28\]"),
        ("b_hh", r"b_hh must be \[heads, 4\*hidden\] = \[3, 28\]"),
    ):
        with pytest.raises(ValueError, match=message):
            case.run(arrays | {name: arrays[name][..., :-1]})


@pytest.mark.parametrize("cell", SOME)
def test_directions_are_summed(cell):
    case = Case(cell, 5, (3,), 7, 4, bidirectional=True)
    arrays = case.inputs()
    params = Params(*(arrays[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")))
    run = functools.partial(
        CELLS[cell].function,
        arrays["x"],
        params,
        bidirectional=True,
        **CELLS[cell].options,
    )
    y, _ = run()
    summed, _ = run(merge="sum")
    assert_bitwise_equal(summed, y[..., :7] + y[..., 7:])


def test_each_row_and_member_has_its_own_controls_under_vmap():
    """Mapped data go into the batch, mapped weights into the groups: one call each."""
    case = Case("lstm", 6, (3,), 9, 4, state=True)
    arrays = case.inputs()
    random = np.random.default_rng(3)
    lengths = random.integers(0, 7, (2, 3))
    resets = random.random((2, 3, 6)) < 0.3
    mask = random.uniform(size=(2, 3, 9)).astype(np.float32)
    names = ("w_ih", "w_hh", "b_ih", "b_hh")

    def run(scale, x, lengths, resets, mask):
        params = Params(*(scale * arrays[name] for name in names))
        return prnn_jax.lstm(
            x,
            params,
            (arrays["h_0"], arrays["c_0"]),
            lengths=lengths,
            resets=resets,
            recurrent_mask=mask,
            reverse=True,
        )

    x = np.stack([arrays["x"], -arrays["x"]])
    scale = np.array([1.0, 0.5], np.float32)
    for mapped in (0, None):
        in_axes = mapped, 0, 0, 0, 0
        given = scale if mapped == 0 else scale[0], x, lengths, resets, mask
        program = Program.of(jax.vmap(run, in_axes), *given)
        assert program.calls == (1, 0)
        assert program.count("while") == 0
        together = jax.jit(jax.vmap(run, in_axes))(*given)
        for n in range(2):
            one = scale[n] if mapped == 0 else scale[0]
            alone = jax.jit(run)(one, x[n], lengths[n], resets[n], mask[n])
            assert_bitwise_equal(jax.tree.map(lambda a, n=n: a[n], together), alone)
