"""What tests of statistics share: layers, values by NumPy, comparisons."""

import jax
import numpy as np

import prnn_jax

KEY = jax.random.key(0)
IN, HIDDEN, TIME, BATCH = 4, 6, 7, 3
PRE = "pre_activations"


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def drawn(*shape, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def params_of(gates: int, dtype="float64", **more) -> prnn_jax.Params:
    wide = gates * HIDDEN
    shapes = {"w_ih": (IN, wide), "w_hh": (HIDDEN, wide), "b_ih": wide, "b_hh": wide}
    arrays = {
        name: drawn(*np.atleast_1d(shape), seed=n + 1).astype(dtype)
        for n, (name, shape) in enumerate(shapes.items())
    }
    return prnn_jax.Params(**arrays, **more)


def numpy_lstm(x, p, h=0.0, c=0.0):
    """Of x [batch, time, input]: a_x, pre-activations, h, c; [batch, time, …]."""
    a_x = x @ p.w_ih + p.b_ih
    made = []
    for t in range(x.shape[1]):
        own = np.zeros(3 * HIDDEN) if p.peepholes is None else p.peepholes
        p_i, p_f, p_o = np.split(own, 3)
        h = np.zeros((len(x), HIDDEN)) + h
        i, f, g, o = np.split(a_x[:, t] + h @ p.w_hh + p.b_hh, 4, -1)
        i, f = i + p_i * c, f + p_f * c
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        o = o + p_o * c
        h = sigmoid(o) * np.tanh(c)
        made.append((np.concatenate([i, f, g, o], -1), h, c))
    return {"a_x": a_x, **dict(zip((PRE, "h", "c"), in_time(made), strict=True))}


def numpy_gru(x, p):
    a_x, h, made = x @ p.w_ih + p.b_ih, np.zeros((len(x), HIDDEN)), []
    for t in range(x.shape[1]):
        (x_r, x_z, x_n) = np.split(a_x[:, t], 3, -1)
        (h_r, h_z, h_n) = np.split(h @ p.w_hh + p.b_hh, 3, -1)
        a = x_r + h_r, x_z + h_z, x_n + sigmoid(x_r + h_r) * h_n
        z, n = sigmoid(a[1]), np.tanh(a[2])
        h = (1 - z) * n + z * h
        made.append((np.concatenate(a, -1), h))
    return {"a_x": a_x, **dict(zip((PRE, "h"), in_time(made), strict=True))}


def in_time(made):
    return (np.stack(one, 1) for one in zip(*made, strict=True))


def assert_are_of(stats, values, *, by_step=False):
    """Statistics of finite values; by step, of [batch, time, units]."""
    values = np.asarray(values, np.float64)
    if by_step:
        largest = np.abs(values).max((0, 2))
        np.testing.assert_allclose(stats.largest_by_step, largest, rtol=1e-12)
    _, above = np.frexp(np.abs(values[values != 0]))  # |v| < 2^above
    bins = np.clip(above - 1, -41, 41) + 41
    np.testing.assert_array_equal(stats.histogram, np.bincount(bins, minlength=83))
    assert int(stats.count) == values.size
    assert int(stats.zeros) == (values == 0).sum()
    assert int(stats.nonfinite) == 0
    assert int(stats.first_nonfinite) == -1
    largest = np.abs(values).max(initial=0)
    np.testing.assert_allclose(stats.largest, largest, rtol=1e-12)


def assert_same(left, right):
    """Two trees of statistics, of the same numbers in another order."""
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


PLAIN = prnn_jax.init("gru", KEY, IN, HIDDEN)
SECOND = prnn_jax.init("gru", KEY, HIDDEN, HIDDEN)
X = np.asarray(drawn(BATCH, TIME, IN), np.float32)
DY = np.asarray(drawn(BATCH, TIME, HIDDEN, seed=3), np.float32)


def planted(array, *index, value=np.nan):
    array = array.copy()
    array[index] = value
    return array
