"""How large values are, against NumPy and a loop; planted infinities and saturation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CELLS
from statistics_support import (
    BATCH,
    DY,
    HIDDEN,
    IN,
    KEY,
    PLAIN,
    PRE,
    SECOND,
    TIME,
    X,
    assert_are_of,
    assert_same,
    drawn,
    numpy_gru,
    numpy_lstm,
    params_of,
    planted,
    sigmoid,
)
from support import float64

import prnn_jax
from prnn_jax._statistics import summaries

DTYPES = "float32", "bfloat16", "float16"

# ---- values --------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lstm", "lstm_peephole", "gru"])
def test_values_are_those_of_numpy(cell):
    gates = 3 if cell == "gru" else 4
    own = {"peepholes": drawn(3 * HIDDEN, seed=9)} if "peephole" in cell else {}
    x, params = drawn(BATCH, TIME, IN, scale=3), params_of(gates, **own)
    expected = (numpy_gru if cell == "gru" else numpy_lstm)(x, params)
    with float64():
        (stats,) = prnn_jax.statistics(cell.split("_")[0], x, params)
    assert stats.backward is None
    assert set(stats.forward) == set(expected)
    for name, values in expected.items():
        assert_are_of(stats.forward[name], values, by_step=True)
    names = "rzn" if cell == "gru" else "ifgo"
    assert set(stats.saturation) == set(names)
    for gate, a in zip(names, np.split(expected[PRE], gates, -1), strict=True):
        slope = 1 - np.tanh(a) ** 2 if gate in "gn" else sigmoid(a) * sigmoid(-a)
        share = (slope < 0.01).mean()
        assert share > 0
        np.testing.assert_allclose(stats.saturation[gate], share, rtol=1e-6)


def looped(cell, x, d, p, taps):
    """A loss, by a loop over steps; of taps on what each makes."""
    h = c = jnp.zeros((len(x), HIDDEN))
    loss = 0.0
    for t in range(x.shape[1]):
        a_x = x[:, t] @ p.w_ih + p.b_ih + taps[PRE][:, t]
        a_h = h @ p.w_hh + p.b_hh
        if cell == "lstm":
            i, f, g, o = jnp.split(a_x + a_h, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            c = c + taps["c"][:, t]
        else:
            (x_r, x_z, x_n), (h_r, h_z, h_n) = (jnp.split(a, 3, -1) for a in (a_x, a_h))
            n = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n)
            z = jax.nn.sigmoid(x_z + h_z)
            h = (1 - z) * n + z * h
        h = h + taps["h"][:, t]
        loss += jnp.sum(h * d[:, t])
    return loss


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_are_those_of_a_loop(cell):
    gates = 4 if cell == "lstm" else 3
    x, params = drawn(BATCH, TIME, IN), params_of(gates)
    dy = drawn(BATCH, TIME, HIDDEN, seed=8)
    widths = {PRE: gates * HIDDEN, "h": HIDDEN, "c": HIDDEN}
    if cell == "gru":
        del widths["c"]
    taps = {name: np.zeros((BATCH, TIME, n)) for name, n in widths.items()}
    with float64():
        (stats,) = prnn_jax.statistics(cell, x, params, dy=dy)
        gradient = jax.jit(jax.grad(functools.partial(looped, cell, x, dy), (0, 1)))
        of_params, expected = gradient(params, taps)
    assert set(stats.backward) == set(expected)
    for name, values in expected.items():
        assert_are_of(stats.backward[name], values, by_step=True)
    assert set(stats.parameters) == {"w_ih", "w_hh", "b_ih", "b_hh"}
    for name, one in stats.parameters.items():
        assert_are_of(one, getattr(of_params, name))
        assert one.largest_by_step is None


# ---- counting ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_every_number_is_in_its_bin(dtype):
    info = jnp.finfo(dtype)
    powers = 2.0 ** np.arange(max(info.minexp, -60), min(info.maxexp, 60))
    subnormal = float(info.smallest_subnormal) * np.array([1, 2, 3, 5])
    large = [float(info.max), -float(info.max)]
    exact = [0.0, -0.0, *powers, *-powers, *(powers * 1.5), *subnormal, *large]
    wrong = [np.inf, -np.inf, np.nan]
    with float64():
        values = np.asarray([*exact, *wrong]).astype(dtype)[:, None]
        at = np.arange(len(values), dtype=np.int32)[:, None]
        counted = np.ones((len(values), 1), bool)
        counted[-2] = False
        of = functools.partial(summaries.summary, time=len(values))
        stats = jax.jit(functools.partial(of, last=False))(values, counted, at)
        other = of(values, counted, at, last=True)
        by_step = np.abs([*exact, 0, 0, 0]).astype(dtype)
        np.testing.assert_array_equal(stats.largest_by_step, by_step)
        tiny = of(values[len(exact) - 6 : len(exact) - 2], True, at[:4], last=False)
        np.testing.assert_array_equal(tiny.largest, np.asarray(subnormal[-1], dtype))
    assert stats.dtype == dtype
    assert int(stats.nonfinite) == 2
    assert int(stats.first_nonfinite) == len(exact)
    assert int(other.first_nonfinite) == len(exact) + 2
    assert int(stats.count) == len(exact) + 2
    finite = {"count": len(exact), "nonfinite": 0, "first_nonfinite": -1}
    assert_are_of(dataclasses.replace(stats, **finite), values[: len(exact)])
    assert list(stats.exponents[[0, 1, 41, 81, 82]]) == [-41, -40, 0, 40, 41]


EACH = [(cell, DTYPES[n % 3]) for n, cell in enumerate([*CELLS, "projected"])]


@pytest.mark.parametrize(("cell", "dtype"), [*EACH, *(("gru", d) for d in DTYPES[1:])])
def test_every_value_is_counted_once_under_jit_too(cell, dtype):
    proj = {"proj_size": 3} if cell == "projected" else {}
    table = CELLS["lstm" if proj else cell]
    name = table.function.__name__
    own = {"peepholes": True} if table.per_unit else {}
    params = prnn_jax.init(name, KEY, IN, HIDDEN, dtype=dtype, **own, **proj)
    x = jnp.asarray(drawn(BATCH, TIME, IN), dtype)
    dy = jnp.ones((BATCH, TIME, proj.get("proj_size", HIDDEN)), dtype)
    run = functools.partial(prnn_jax.statistics, name, **table.options)
    stats = run(x, params, dy=dy)
    for values in (stats[0].forward, stats[0].backward):
        for one in values.values():
            total = int(one.zeros) + int(one.histogram.sum()) + int(one.nonfinite)
            assert total == int(one.count) > 0
            assert one.largest.dtype == one.dtype == dtype
    assert len(stats[0].backward) == table.states + 1
    width = proj.get("proj_size", HIDDEN)
    assert int(stats[0].forward["h"].count) == BATCH * TIME * width
    y, _ = table.function(x, params, implementation="scan", **table.options)
    largest = np.float64(stats[0].forward["h"].largest), np.float64(abs(y).max())
    # The same scan, which XLA may fuse in another way.
    np.testing.assert_allclose(*largest, rtol=8 * float(jnp.finfo(dtype).eps))
    if cell in ("lstm", "projected"):
        assert_same(jax.jit(run)(x, params, dy=dy), stats)


# ---- what is not finite, what does not count -----------------------------------------


@pytest.mark.parametrize(("reverse", "last"), [(False, 2), (True, 4)])
def test_the_first_step_that_is_not_finite(reverse, last):
    """NaN in one row: from there on in the order of processing, and in no other row."""
    x = planted(X, 1, 4, 0)
    stats = prnn_jax.statistics("gru", x, [PLAIN, SECOND], reverse=reverse, dy=DY)
    for n, layer in enumerate(stats):
        inputs, h = layer.forward["a_x"], layer.forward["h"]
        assert int(h.nonfinite) == (last + 1 if not reverse else 5) * HIDDEN
        expected = h.nonfinite * 3 if n else 3 * HIDDEN
        assert int(inputs.nonfinite) == int(expected)
        assert int(inputs.first_nonfinite) == int(h.first_nonfinite) == 4
    finite = prnn_jax.statistics("gru", X, PLAIN, reverse=reverse)
    assert int(finite[0].forward["h"].first_nonfinite) == -1


def test_what_stops_programs_does_not_stop_it():
    """It is called because JAX has found a NaN."""
    x, dy = planted(X, 1, 4, 0), planted(DY, 0, 5, 1, value=np.inf)
    found = prnn_jax.statistics("gru", x, PLAIN, dy=dy)
    with jax.debug_nans(True), jax.debug_infs(True):
        assert_same(prnn_jax.statistics("gru", x, PLAIN, dy=dy), found)
        with pytest.raises(FloatingPointError):
            prnn_jax.gru(x, PLAIN)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_gradient_that_is_not_finite(reverse):
    """Against the order of processing; forward all is finite."""
    dy = planted(DY, 0, 5, 1, value=np.inf)
    stats = prnn_jax.statistics("gru", X, [PLAIN, SECOND], dy=dy, reverse=reverse)
    for layer in stats:
        assert not any(int(one.nonfinite) for one in layer.forward.values())
        for one in layer.backward.values():
            assert int(one.nonfinite)
            assert int(one.first_nonfinite) == 5
        for one in layer.parameters.values():
            assert int(one.nonfinite)
            assert int(one.first_nonfinite) == -1


def test_steps_past_the_end_are_in_no_number():
    lengths = np.array([TIME, 3, 0])
    x, params = drawn(BATCH, TIME, IN), params_of(4)
    expected = [numpy_lstm(x[n : n + 1, :m], params) for n, m in enumerate(lengths[:2])]
    with float64():
        for flipped in (False, True):
            given = x.copy()
            if flipped:  # a row begins at the last step that counts
                for n, m in enumerate(lengths):
                    given[n, :m] = given[n, :m][::-1]
            given[1, 3:] = np.inf
            (stats,) = prnn_jax.statistics(
                "lstm", given, params, lengths=lengths, reverse=flipped
            )
            for name in expected[0]:
                values = [one[name].ravel() for one in expected]
                assert_are_of(stats.forward[name], np.concatenate(values))
                largest = np.zeros((2, TIME))
                for n, one in enumerate(expected):
                    of_row = np.abs(one[name][0]).max(-1)
                    largest[n, : len(of_row)] = of_row[::-1] if flipped else of_row
                by_step = stats.forward[name].largest_by_step
                np.testing.assert_allclose(by_step, largest.max(0), rtol=1e-12)
    nothing = prnn_jax.statistics("gru", X, PLAIN, lengths=np.zeros(BATCH, int), dy=DY)
    for one in (nothing[0].forward | nothing[0].backward).values():
        assert int(one.count) == int(one.histogram.sum()) == 0
    assert all(float(share) == 0 for share in nothing[0].saturation.values())


@pytest.mark.parametrize("reverse", [False, True])
def test_masked_steps_are_in_no_number(reverse):
    mask = np.arange(TIME) != 2
    params, dy = params_of(4), drawn(1, TIME, HIDDEN, seed=3)
    x = drawn(1, TIME, IN)
    run = functools.partial(prnn_jax.statistics, "lstm", reverse=reverse)
    with float64():
        kept = run(x[:, mask], params, dy=dy[:, mask])
        held = run(planted(x, 0, 2), params, dy=dy, mask=mask[None], masked_y="zero")
        assert held[0].backward["h"].largest_by_step[2] == 0

        def that_count(a):
            return a[mask] if a.shape == mask.shape else a

        assert_same(jax.tree.map(that_count, held), kept)
        late = run(planted(x, 0, 5), params, mask=mask[None])
    assert int(late[0].forward["h"].first_nonfinite) == 5
    assert int(late[0].forward["a_x"].nonfinite) == 4 * HIDDEN


def test_resets_stop_what_is_not_finite():
    resets = np.zeros((BATCH, TIME), bool)
    resets[:, 5] = True
    x = planted(X, 1, 4, 0)
    (stats,) = prnn_jax.statistics("gru", x, PLAIN, resets=resets)
    assert int(stats.forward["h"].nonfinite) == HIDDEN
    assert int(stats.forward["h"].first_nonfinite) == 4


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_zoneout_mixes_what_is_counted(cell):
    params = prnn_jax.init(cell, KEY, IN, HIDDEN)
    (stats,) = prnn_jax.statistics(cell, X, params, zoneout=0.4, dy=DY)
    function = getattr(prnn_jax, cell)
    y, _ = function(X, params, zoneout=0.4, implementation="scan")
    _, above = np.frexp(np.abs(y))
    counts = np.bincount(np.ravel(above) + 40, minlength=83)
    np.testing.assert_array_equal(stats.forward["h"].histogram, counts)
    inputs = stats.forward[PRE]
    assert int(inputs.count) == BATCH * TIME * params.w_hh.shape[-1]
    assert inputs.largest > 1.5  # which no h is
    (once,) = prnn_jax.statistics(cell, X[:, :1], params, zoneout=0.4, dy=DY[:, :1])
    assert once.backward["h"].largest == np.abs(DY[:, 0]).max()


# ---- saturation ----------------------------------------------------------------------


def biased(gates: int, *biases) -> prnn_jax.Params:
    """Weights of zero, and these biases, one for each gate."""
    params = jax.tree.map(np.zeros_like, params_of(gates, "float32"))
    b_ih = [np.broadcast_to(np.float32(b), HIDDEN) for b in biases]
    return params._replace(b_ih=np.concatenate(b_ih))


HALF = np.repeat([0.0, -90.0], HIDDEN // 2)
SATURATED = {
    "lstm": (4, (90, HALF, 0, -90), {}, {"i": 1, "f": 0.5, "g": 0, "o": 1}),
    "slstm": (4, (9, -90, 90, HALF), {}, {"f": 1, "z": 1, "o": 0.5}),
    "gru": (3, (0, HALF, 90), {}, {"r": 0, "z": 0.5, "n": 1}),
    "rnn": (1, (HALF,), {"activation": "relu"}, {"h": 1}),
    "clipped": (
        1,
        (HALF + 95,),
        {"activation": "clipped_relu", "cap": 50.0},
        {"h": 0.5},
    ),
    # 1/4 is the most that σ' can be; σ'(2.1) = 0.097, σ'(2.3) = 0.083.
    "below": (
        4,
        (2.1, 2.3, 0, -2.3),
        {"saturated_below": 0.09},
        {"i": 0, "f": 1, "g": 0, "o": 1},
    ),
}


@pytest.mark.parametrize("case", SATURATED)
def test_gates_saturated_by_their_biases(case):
    gates, biases, options, expected = SATURATED[case]
    cell = {"clipped": "rnn", "below": "lstm"}.get(case, case)
    params = biased(gates, *biases)
    (stats,) = prnn_jax.statistics(cell, X, params, **options)
    shares = {gate: float(share) for gate, share in stats.saturation.items()}
    assert shares == expected
