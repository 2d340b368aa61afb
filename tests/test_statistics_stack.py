"""Statistics of stacks, of cells of one's own, under vmap; pictures and errors."""

import functools
import re
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
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
    in_time,
    params_of,
    planted,
    sigmoid,
)
from support import float64, run_python

import prnn_jax

# ---- stacks, directions, cells of one's own, vmap ------------------------------------


def test_layers_of_a_stack_are_layers():
    """Each on what the one before gives; gradients come down through all."""
    dy = np.asarray(drawn(BATCH, TIME, 2 * HIDDEN, seed=3), np.float32)
    first = prnn_jax.init("gru", KEY, IN, HIDDEN, bidirectional=True)
    rest = [
        prnn_jax.Layer(
            prnn_jax.init("gru", key, 2 * HIDDEN, HIDDEN, bidirectional=True),
            prnn_jax.Norm(jnp.linspace(0.5, 2, 2 * HIDDEN)),
        )
        for key in jax.random.split(KEY, 2)
    ]
    shared = {"bidirectional": True, "skip_connections": True}
    stats = prnn_jax.statistics("gru", X, [first, *rest], dy=dy, **shared)
    together = jax.tree.map(lambda *a: jnp.stack(a), *rest)
    together = prnn_jax.Layer(together.params, together.norm, stacked=True)
    assert_same(
        stats, prnn_jax.statistics("gru", X, [first, together], dy=dy, **shared)
    )
    by = {"implementation": "scan"}
    y, _ = prnn_jax.gru(X, first, bidirectional=True, **by)
    above = functools.partial(prnn_jax.stack, "gru", layers=rest, **shared, **by)
    _, pull = jax.vjp(lambda y: above(y)[0], y)
    alone = prnn_jax.statistics("gru", X, first, dy=pull(dy)[0], bidirectional=True)
    assert_same(stats[:1], alone)
    assert_same(stats[1:], prnn_jax.statistics("gru", y, rest, dy=dy, **shared))
    assert stats[1].parameters["w_hh"].count == 2 * HIDDEN * 3 * HIDDEN
    assert set(stats[0].saturation) == {*"rzn", "r_reverse", "z_reverse", "n_reverse"}


def test_each_direction_and_all_heads_are_counted():
    params = prnn_jax.init("lstm", KEY, IN, HIDDEN, bidirectional=True, heads=2)
    options = {"bidirectional": True, "time_major": True}
    x = planted(X, 1, 4, 0).swapaxes(0, 1)
    (both,) = prnn_jax.statistics("lstm", x, params, **options)
    ways = prnn_jax.convert.split_directions(params)
    for suffix, way, reverse in zip(("", "_reverse"), ways, (False, True), strict=True):
        (alone,) = prnn_jax.statistics("lstm", x, way, reverse=reverse, time_major=True)
        own = {name: both.forward[name + suffix] for name in alone.forward}
        assert_same(own, alone.forward)
        for gate, share in alone.saturation.items():
            assert both.saturation[gate + suffix] == share


def light_step(a_x, product, state):
    (h,) = state
    z, n = a_x
    h_z, h_n = product(h, 0), product(jax.nn.relu(h), 1)
    z = jax.nn.sigmoid(z + h_z)
    return ((1 - z) * h + z * jnp.tanh(n + h_n),)


def test_a_cell_of_ones_own():
    cell = prnn_jax.define_cell("light", light_step, gates="zn")
    x, p = drawn(BATCH, TIME, IN), params_of(2)
    dy = drawn(BATCH, TIME, HIDDEN)
    with float64():
        (stats,) = prnn_jax.statistics(cell, x, p, dy=dy)
    h, made = np.zeros((BATCH, HIDDEN)), []
    w_z, w_n = np.split(p.w_hh, 2, -1)
    for t in range(TIME):
        a_h = np.concatenate([h @ w_z, np.maximum(h, 0) @ w_n], -1) + p.b_hh
        a = x[:, t] @ p.w_ih + p.b_ih + a_h
        z, n = np.split(a, 2, -1)
        h = (1 - sigmoid(z)) * h + sigmoid(z) * np.tanh(n)
        made.append((a, h))
    for name, values in zip((PRE, "h"), in_time(made), strict=True):
        assert_are_of(stats.forward[name], values)
    assert stats.saturation == {}
    assert set(stats.backward) == {PRE, "h"}


def test_prepared_parameters_get_no_gradients():
    prepared = prnn_jax.prepare("gru", PLAIN, batch=BATCH, time=TIME)
    (stats,) = prnn_jax.statistics("gru", X, prepared, dy=DY)
    (plain,) = prnn_jax.statistics("gru", X, PLAIN, dy=DY)
    assert stats.parameters is None
    assert_same(stats.backward, plain.backward)


def test_under_vmap():
    """Over members of an ensemble, and over rows."""
    members = prnn_jax.Params(
        *(a if a is None else jnp.stack([a, 2 * a]) for a in PLAIN)
    )
    run = functools.partial(prnn_jax.statistics, "gru", dy=DY)
    each = jax.vmap(lambda p: run(X, p))(members)
    for n in range(2):
        alone = run(X, jax.tree.map(lambda a, n=n: a[n], members))
        assert_same(jax.tree.map(lambda a, n=n: a[n], each), alone)
    lengths = np.array([7, 2, 5])
    rows = jax.vmap(lambda x, n: prnn_jax.statistics("gru", x, PLAIN, lengths=n))
    (whole,) = prnn_jax.statistics("gru", X, PLAIN, lengths=lengths)
    (rows,) = rows(X, lengths)
    for name, one in whole.forward.items():
        np.testing.assert_array_equal(
            rows.forward[name].histogram.sum(0), one.histogram
        )


ON_A_MESH = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P
import prnn_jax

params = prnn_jax.init("gru", jax.random.key(0), 4, 5)
x, dy = np.ones((4, 7, 4), np.float32), np.ones((4, 7, 5), np.float32)
run = jax.jit(
    lambda x, dy: prnn_jax.statistics("gru", x, params, dy=dy, lengths=[7, 3, 2, 1])
)
expected = run(x, dy)
for kind in (AxisType.Auto, AxisType.Explicit):
    with jax.set_mesh(jax.make_mesh((2,), ("rows",), axis_types=(kind,))):
        own = [jax.device_put(a, P("rows")) for a in (x, dy)]
        for a, b in zip(*map(jax.tree.leaves, (run(*own), expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        print(kind)
"""


def test_rows_on_two_devices():
    assert len(run_python(ON_A_MESH).splitlines()) == 2


def test_the_example_of_the_docs():
    """Rows by themselves, and the histogram as a writer of TensorBoard takes it."""
    page = Path(__file__).parents[1] / "docs/api/statistics.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    writer = mock.Mock()
    known = {"jax": jax, "jnp": jnp, "np": np, "prnn_jax": prnn_jax, "writer": writer}
    exec(program, known)
    assert list(known["rows"].forward["h"].first_nonfinite) == [-1, -1, 30, -1]
    (_, least, most, count, *_, limits, counts), _ = writer.add_histogram_raw.call_args
    (y, _) = prnn_jax.gru(known["x"], known["params"], implementation="scan")
    finite = np.abs(y)[np.isfinite(y)]
    assert count == counts.sum() == finite.size
    assert least < most == known["h"].largest
    inside, _ = np.histogram(finite, limits)  # of [2^e, 2^(e+1))
    # XLA may fuse the two scans in other ways: a value is rounded across an end.
    assert np.abs(counts[1:] - inside).sum() <= 2


# ---- pictures and errors -------------------------------------------------------------


def test_the_picture(tmp_path):
    library("matplotlib")
    x = planted(X, 1, 4, 0)
    dy = planted(DY, 0, 5, 1)
    stats = prnn_jax.statistics("gru", x, [PLAIN, SECOND], dy=dy)
    figure = prnn_jax.plot_statistics(stats)
    figure.savefig(tmp_path / "stats.png")
    *panels, last = figure.axes
    titles = [axes.get_title() for axes in panels]
    kinds = "values", "gradients", "largest by step", "saturated"
    assert titles == [f"layer {n}: {kind}" for n in range(2) for kind in kinds]
    (inputs,) = (n for n in panels[0].lines if n.get_label().startswith("a_x"))
    shares = stats[0].forward["a_x"].histogram / stats[0].forward["a_x"].count
    np.testing.assert_allclose(inputs.get_ydata(), shares)
    (of_h,) = (n for n in panels[2].lines if n.get_label() == "h")
    by_step = stats[0].backward["h"].largest_by_step
    np.testing.assert_array_equal(of_h.get_ydata(), by_step)
    heights = [bar.get_height() for bar in panels[3].patches]
    np.testing.assert_allclose(heights, [*stats[0].saturation.values()])
    begins = dict(
        zip(
            (label.get_text() for label in last.get_yticklabels()),
            (int(line.get_xdata()[0]) for line in last.lines),
            strict=True,
        )
    )
    assert begins["layer 0, a_x"] == begins["layer 1, h"] == 4
    assert begins["layer 1, gradient of h"] == 5
    forward = prnn_jax.statistics("gru", X, PLAIN)
    figure = prnn_jax.plot_statistics(forward[0])
    titles.remove("layer 0: gradients")
    assert [axes.get_title() for axes in figure.axes[:3]] == titles[:3]
    assert figure.axes[-1].texts[0].get_text() == "all values are finite"


def test_the_picture_without_matplotlib(monkeypatch):
    stats = prnn_jax.statistics("gru", X, PLAIN)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "prnn_jax\[plot\]"'):
        prnn_jax.plot_statistics(stats)


def plotted_traced():
    jax.jit(lambda x: prnn_jax.plot_statistics(prnn_jax.statistics("gru", x, PLAIN)))(X)


def plotted_several():
    run = jax.vmap(lambda x: prnn_jax.statistics("gru", x, PLAIN))
    prnn_jax.plot_statistics(run(X[None]))


call = functools.partial(prnn_jax.statistics, "gru", X)
ERRORS = {
    "statistics: dy must be [*batch, time, features of y] = [3, 7, 6], got [3, 6].": (
        lambda: call(PLAIN, dy=DY[:, 0])
    ),
    "all arrays must have the same dtype, got y float32, dy float16": (
        lambda: call(PLAIN, dy=DY.astype(np.float16))
    ),
    "statistics: saturated_below must be positive, got 0.": (
        lambda: call(PLAIN, saturated_below=0)
    ),
    "statistics: layers must be a sequence of prnn_jax.Params": lambda: call(None),
    "statistics, layer 1: w_ih must be for an input of 6": lambda: call([PLAIN, PLAIN]),
    "statistics: resets must be None beside mask": (
        lambda: call(PLAIN, mask=X[..., 0], resets=X[..., 0])
    ),
    "plot_statistics: stats must be what prnn_jax.statistics gives, got dict.": (
        lambda: prnn_jax.plot_statistics({})
    ),
    "plot_statistics: stats must be known numbers": plotted_traced,
    "plot_statistics: stats must be of one call": plotted_several,
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ERRORS[message]()
