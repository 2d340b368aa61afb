"""The forward pass: what the table of cases covers, and what options mean."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, CELLS, SMALL, Case
from support import (
    assert_as_accurate,
    assert_bitwise_equal,
    float64,
    named,
    oracle,
    scan,
)

import prnn_jax
from prnn_jax._engine import ffi

RECURRENCES = {
    "lstm": ("lstm", {}),
    "gru": ("gru", {}),
    "gru_reset_before": ("gru", {"reset_after": False}),
    "rnn_tanh_skip": ("rnn", {"skip": 0.7}),
    "rnn_clipped_relu": ("rnn", {"activation": "clipped_relu", "cap": 0.4}),
}


def projected(cell: str, time=6, batch=5, hidden=19, groups=1) -> dict:
    """Arguments of `recurrence` for a cell."""
    name, options = RECURRENCES[cell]
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[name]
    random = np.random.default_rng(11)

    def normal(*shape, scale=0.5):
        return (scale * random.standard_normal(shape)).astype(np.float32)

    lead = (2,) * (groups - 1)
    h_0 = normal(*lead, batch, hidden)
    return {
        "cell": name,
        "a_x": normal(batch, time, groups * gates * hidden),
        "w_hh": normal(*lead, hidden, gates * hidden, scale=hidden**-0.5),
        "state_0": (h_0, h_0[..., ::-1].copy()) if name == "lstm" else h_0,
        "b_hh": normal(*lead, gates * hidden),
        **options,
    }


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("partition", ["batch", "hidden"])
@pytest.mark.parametrize("cell", CELLS)
def test_the_table_covers_both_partitions(cell, partition, backward):
    def partition_of(case, processor):
        plan = ffi.native.cpu_plan(
            case.table.engine,
            case.time,
            case.rows,
            case.groups,
            case.hidden,
            0,
            backward,
            2,  # threads
            processor=processor,
        )
        return plan["partition"]

    cases = [case for case in CASES if case.cell == cell and case.time * case.rows > 0]
    for processor, *_ in ffi.native.known_processors():
        found = {partition_of(case, processor) for case in cases}
        assert partition in found, processor


def activations(options: dict) -> list[Callable]:
    """Of the gates, the candidate and the state, in NumPy."""
    alpha, beta = 1 / 6, 0.5
    chosen = options.get("gate_activation", "sigmoid")
    if isinstance(chosen, prnn_jax.Activation):
        chosen, alpha, beta = chosen
    known = {
        "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
        "tanh": np.tanh,
        "relu": lambda a: np.maximum(a, 0),
        "clipped_relu": lambda a: np.clip(a, 0, options["cap"]),
        "hard_sigmoid": lambda a: np.clip(alpha * a + beta, 0, 1),
        "softsign": lambda a: a / (1 + np.abs(a)),
        "elu": lambda a: np.where(a < 0, np.expm1(a), a),
    }
    two = options.get("activation", "tanh")
    if isinstance(two, prnn_jax.Activation):
        scale, of_a = two.alpha, two.beta
        known["scaled_tanh"] = lambda a: scale * np.tanh(of_a * a)
        two = two.name
    two = (two, two) if isinstance(two, str) else two
    return [known[name] for name in (chosen, *two)]


@pytest.mark.parametrize("cell", CELLS)
def test_the_oracle_follows_the_documented_equations(cell):
    # The equations of the docstrings, written once more, in NumPy, step by step.
    case = Case(cell, 4, (2,), 3, state=True)
    arrays = case.inputs(np.float64)
    options = case.table.options
    h, c, n, m = (arrays.get(name) for name in ("h_0", "c_0", "n_0", "m_0"))
    w_hh, b_hh = np.split(arrays["w_hh"], case.table.gates, -1), arrays["b_hh"]
    b_hh = np.split(b_hh, case.table.gates)

    gate, candidate, output = activations(options)
    y = []
    for t in range(case.time):
        a_x = arrays["x"][:, t] @ arrays["w_ih"] + arrays["b_ih"]
        a_x = np.split(a_x, case.table.gates, -1)
        a_h = [h @ w + b for w, b in zip(w_hh, b_hh, strict=True)]
        if cell.startswith("lstm"):
            i, f, g, o = (x + h for x, h in zip(a_x, a_h, strict=True))
            p_i, p_f, p_o = np.split(arrays.get("peepholes", np.zeros(9)), 3)
            c = gate(f + p_f * c) * c + gate(i + p_i * c) * candidate(g)
            h = gate(o + p_o * c) * output(c)
        elif cell == "slstm":
            i, f, z, o = (x + h for x, h in zip(a_x, a_h, strict=True))
            remembered = np.log(gate(f)) + m
            m = np.maximum(remembered, i)
            i, f = np.exp(i - m), np.exp(remembered - m)
            c, n = f * c + i * np.tanh(z), f * n + i
            h = gate(o) * c / n
        elif cell.startswith("gru"):
            r, z = gate(a_x[0] + a_h[0]), gate(a_x[1] + a_h[1])
            a_n = (r * h) @ w_hh[2] + b_hh[2] if "before" in cell else r * a_h[2]
            h = (1 - z) * candidate(a_x[2] + a_n) + z * h
        else:
            h = candidate(a_x[0] + a_h[0] + options.get("skip", 0) * h)
        y.append(h)
    ours = oracle(case).forward
    assert ours["y"].dtype == np.float64
    # Rounding of float64 alone: values and sums are below 10.
    np.testing.assert_allclose(ours["y"], np.stack(y, 1), rtol=0, atol=1e-14)
    np.testing.assert_allclose(ours["h_n"], h, rtol=0, atol=1e-14)
    for name, state in (("c_n", c), ("n_n", n), ("m_n", m)):
        if name in ours:
            np.testing.assert_allclose(ours[name], state, rtol=0, atol=1e-14)


def test_the_clipped_relu_of_the_table_is_clipped():
    values = oracle(Case("rnn_clipped_relu_skip")).forward["y"]
    assert np.mean(values == 0.4) > 0.1
    assert np.mean(values == 0.0) > 0.1


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_last_state_is_the_last_y(case):
    y, state = case.forward()(case.inputs())
    assert_bitwise_equal(y[:, -1], state[0])


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("time_major", [False, True], ids=["batch", "time_major"])
def test_no_time_gives_no_y_and_the_first_state(batch, time_major):
    case = Case("lstm", 0, batch, 7, time_major=time_major, state=True)
    arrays = case.inputs()
    y, state = case.forward()(arrays)
    assert y.shape == ((0, *batch, 7) if time_major else (*batch, 0, 7))
    assert_bitwise_equal(state, (arrays["h_0"], arrays["c_0"]))


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_recurrence_takes_what_a_layer_projects(cell):
    case = Case(cell, state=True)
    arrays = case.inputs()
    a_x = arrays["x"] @ arrays["w_ih"] + arrays["b_ih"]
    state_0 = case.state_of(arrays)
    y, state = prnn_jax.recurrence(
        cell.removesuffix("_tanh"), a_x, arrays["w_hh"], state_0, arrays["b_hh"]
    )
    state = state if cell == "lstm" else (state,)
    assert_as_accurate(named(y, state), scan(case).forward, oracle(case).forward)


def test_a_missing_state_and_missing_biases_are_zeros():
    given = projected("lstm")
    zeros = jnp.zeros((5, 19), jnp.float32)
    of_none = prnn_jax.recurrence("lstm", given["a_x"], given["w_hh"])
    of_zeros = prnn_jax.recurrence(
        "lstm",
        given["a_x"],
        given["w_hh"],
        (zeros, zeros),
        jnp.zeros(4 * 19, "float32"),
    )
    assert_bitwise_equal(of_none, of_zeros)


# The engine adds in one order whatever the layout, so these are equalities of bits.
# They start from projected input, whose product XLA may cut differently.


@pytest.mark.parametrize("cell", RECURRENCES)
def test_reverse_is_the_flipped_sequence(cell):
    given = projected(cell)
    y, state = prnn_jax.recurrence(**given, reverse=True)
    flipped = given | {"a_x": given["a_x"][:, ::-1]}
    y_flipped, state_flipped = prnn_jax.recurrence(**flipped)
    assert_bitwise_equal((y, state), (y_flipped[:, ::-1], state_flipped))
    assert not np.array_equal(y, prnn_jax.recurrence(**given)[0])


@pytest.mark.parametrize("cell", RECURRENCES)
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_bidirectional_is_two_runs_side_by_side(cell, reverse):
    given = projected(cell, groups=2)
    y, state = prnn_jax.recurrence(**given, bidirectional=True, reverse=reverse)
    for way in (0, 1):
        gates_hidden = given["a_x"].shape[-1] // 2
        one = given | {
            "a_x": given["a_x"][..., way * gates_hidden :][..., :gates_hidden],
            "w_hh": given["w_hh"][way],
            "b_hh": given["b_hh"][way],
            "state_0": jax.tree.map(lambda s, way=way: s[way], given["state_0"]),
        }
        y_one, state_one = prnn_jax.recurrence(**one, reverse=reverse != (way == 1))
        assert_bitwise_equal(y[..., 19 * way : 19 * way + 19], y_one)
        assert_bitwise_equal(jax.tree.map(lambda s, way=way: s[way], state), state_one)


@pytest.mark.parametrize("cell", RECURRENCES)
def test_time_major_only_moves_the_time_axis(cell):
    given = projected(cell)
    y, state = prnn_jax.recurrence(**given)
    moved = given | {"a_x": np.swapaxes(given["a_x"], 0, 1)}
    y_moved, state_moved = prnn_jax.recurrence(**moved, time_major=True)
    assert_bitwise_equal((y, state), (jnp.swapaxes(y_moved, 0, 1), state_moved))


@pytest.mark.parametrize("batch", [(), (1, 2, 3), (6, 1)], ids=str)
def test_batch_axes_are_rows(batch):
    rows = max(1, int(np.prod(batch)))
    given = projected("gru", batch=rows)
    y, state = prnn_jax.recurrence(**given)
    shaped = given | {
        "a_x": given["a_x"].reshape(*batch, *given["a_x"].shape[1:]),
        "state_0": given["state_0"].reshape(*batch, 19),
    }
    y_shaped, state_shaped = prnn_jax.recurrence(**shaped)
    assert y_shaped.shape == (*batch, 6, 19)
    assert_bitwise_equal(y.reshape(y_shaped.shape), y_shaped)
    assert_bitwise_equal(state.reshape(state_shaped.shape), state_shaped)


@pytest.mark.parametrize("cell", RECURRENCES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30], ids=str)
def test_extreme_values_spread_as_in_the_scan(cell, value):
    given = projected(cell)
    given["a_x"][2, 3, ::2] = value  # one row, from one time on
    y, state = prnn_jax.recurrence(**given, implementation="native")
    y_scan, state_scan = prnn_jax.recurrence(**given, implementation="scan")
    before, after = y[:, :3], y[2, 3:]
    assert np.isfinite(before).all()
    assert np.isfinite(np.delete(y, 2, 0)).all()
    if np.isnan(value):
        assert np.isnan(after).any()
    # Agreement to a few roundings where all is finite; else the same NaN, infinities.
    np.testing.assert_allclose(y, y_scan, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        np.stack(jax.tree.leaves(state)),
        np.stack(jax.tree.leaves(state_scan)),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_float32_calls_are_the_same_where_jax_has_float64(case):
    without = case.forward("native")(case.inputs())
    with float64():
        assert_bitwise_equal(case.forward("native")(case.inputs()), without)


def test_numpy_arrays_are_taken():
    given = projected("gru")
    on_device = {
        name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    assert_bitwise_equal(prnn_jax.recurrence(**given), prnn_jax.recurrence(**on_device))
