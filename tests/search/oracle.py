"""The layers in NumPy, written from their equations: shares no code with the package.

Every array has one more axis in front than its user's has: of as many evaluations as
are made at once, or 1. With complex numbers, whose imaginary parts are tiny, it gives
exact derivatives: comparisons look at the real part.
"""

import functools
import math

import numpy as np

EPSILON = 1e-5  # of the layer norm
GATES = {"lstm": 4, "slstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "slstm": 4, "gru": 1, "rnn": 1}


def sigmoid(a):
    negative = np.real(a) < 0
    e = np.exp(np.where(negative, a, -a))
    return np.where(negative, e / (1 + e), 1 / (1 + e))


def log_sigmoid(a):
    negative = np.real(a) < 0
    rest = -np.log1p(np.exp(np.where(negative, a, -a)))
    return np.where(negative, a + rest, rest)


def activated(name, a, cap=None):
    """An activation of complex numbers near the real ones."""
    at = a.real
    if name == "sigmoid":
        return sigmoid(a)
    if name == "tanh":
        return np.tanh(a)
    if name == "softsign":
        return a / (1 + np.where(at < 0, -a, a))
    if name == "hard_sigmoid":
        a = a / 6 + 0.5
        return np.where(a.real <= 0, 0, np.where(a.real >= 1, 1, a))
    a = np.where(at > 0, a, 0)
    return np.where(at >= cap, cap, a) if name == "clipped_relu" else a


def bounded(a, most):
    """From -most to most; a complex step ends there."""
    if not most:
        return a
    return np.where(a.real >= most, most, np.where(a.real <= -most, -most, a))


def own_numbers(cell, normed):
    """Per unit, of a cell with layer norm: gains, and shifts that are no biases."""
    of, _, c, _ = normed.split()
    gains = GATES[cell] * (1 if of == "sum" else 2)
    return gains + (1 if cell == "gru" else 0 if c == "none" else 2)


def normed_step(cell, normed, own, biases, a_x, state, product):
    """The same with layer norm; neither a_x nor the product has a bias."""
    of, over, of_c, epsilon = normed.split()
    hidden, gates = state[0].shape[-1], GATES[cell]
    parts = gates if over == "gate" else 1
    b_ih, b_hh = biases
    own = [
        own[..., n * hidden : (n + 1) * hidden] for n in range(own.shape[-1] // hidden)
    ]

    def taken(count):
        out = np.concatenate(own[:count], -1)
        del own[:count]
        return out

    def standard(a, parts):
        a = a.reshape(*a.shape[:-1], parts, a.shape[-1] // parts)
        a = a - a.mean(-1, keepdims=True)
        a = a / np.sqrt((a * a).mean(-1, keepdims=True) + float(epsilon))
        return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])

    a_h = product(state[0], 0, gates)
    if of == "sum":
        a_h = taken(gates) * standard(a_x + a_h, parts) + b_ih + b_hh
        a_x = np.zeros_like(a_h)
    else:
        a_x = taken(gates) * standard(a_x, parts) + b_ih
        a_h = taken(gates) * standard(a_h, parts) + b_hh
    x, h = (
        [a[..., n * hidden : (n + 1) * hidden] for n in range(gates)]
        for a in (a_x, a_h)
    )
    if cell == "gru":
        r, z = sigmoid(x[0] + h[0]), sigmoid(x[1] + h[1])
        n = np.tanh(x[2] + r * (h[2] + taken(1)))
        return ((1 - z) * n + z * state[0],)
    c = sigmoid(x[1] + h[1]) * state[1] + sigmoid(x[0] + h[0]) * np.tanh(x[2] + h[2])
    seen = c if of_c == "none" else taken(1) * standard(c, 1) + taken(1)
    return sigmoid(x[3] + h[3]) * np.tanh(seen), seen if of_c == "state" else c


def step(cell, options, a_x, state, product):
    """The state after one step; `product(h, gates)` is `h w_hh + b_hh` of some gates.

    Gates are numbered in the order of the columns.
    """
    hidden = state[0].shape[-1]

    def gate(a, n):
        return a[..., n * hidden : (n + 1) * hidden]

    h = state[0]
    if cell == "rnn":
        a = a_x + product(h, 0, 1) + options["skip"] * h
        a = bounded(a, options["clip"])
        return (activated(options["activation"], a, options.get("cap")),)
    output = functools.partial(activated, options["activation"])

    def candidate(a):
        return output(bounded(a, options["clip"]))

    def of_gate(a):
        return activated(options["gate_activation"], bounded(a, options["clip"]))

    if cell == "gru":
        a_h = product(h, 0, 2)
        r, z = (of_gate(gate(a_x, n) + gate(a_h, n)) for n in (0, 1))
        if options["reset_after"]:
            n = candidate(gate(a_x, 2) + r * product(h, 2, 3))
        else:
            n = candidate(gate(a_x, 2) + product(r * h, 2, 3))
        return ((1 - z) * n + z * h,)
    a = a_x + product(h, 0, 4)
    i, f, g, o = (gate(a, n) for n in range(4))
    if cell == "lstm":
        c = of_gate(f) * state[1] + of_gate(i) * candidate(g)
        c = bounded(c, options["clip"])
        return of_gate(o) * output(c), c
    _, c, n, m = state
    is_new = ~(n.real > 0)  # nothing to forget yet
    kept = log_sigmoid(f) + m
    m = np.where(is_new | (i.real >= kept.real), i, kept)
    i, f = np.exp(i - m), np.where(is_new, 0, np.exp(kept - m))
    c, n = f * c + i * np.tanh(g), f * n + i
    return sigmoid(o) * c / n, c, n, m


@np.errstate(all="ignore")  # padding may hold what is no number
def layer(
    cell,
    x,
    params,
    state_0=None,
    *,
    lengths=None,
    resets=None,
    reset_to=None,
    mask=None,
    zoneout=None,
    reverse=False,
    bidirectional=False,
    merge="concat",
    time_major=False,
    **options,
):
    """y and the last state, a tuple. Inside, arrays are `[many, group, row, ...]`."""
    usual = {"skip": 0, "clip": 0, "activation": "tanh", "gate_activation": "sigmoid"}
    options = {**usual, "reset_after": True, **options}
    w_ih, w_hh, b_ih, b_hh, *own = params
    directions = 2 if bidirectional else 1
    groups, hidden = math.prod(w_hh.shape[1:-2]), w_hh.shape[-2]
    heads = groups // directions
    x = np.moveaxis(x, 1, -2) if time_major else x
    batch, time = x.shape[1:-2], x.shape[-2]
    rows = math.prod(batch)

    def weights(w, rank):
        return w.reshape(len(w), groups, *w.shape[w.ndim - rank :])

    def of_steps(v):  # resets, zoneout: [many, row, time, ...]
        v = np.moveaxis(v, 1, 1 + len(batch)) if time_major else v
        return v.reshape(len(v), rows, *v.shape[1 + len(batch) :])

    def from_user(s):
        s = s.reshape(len(s), directions, rows, heads, hidden)
        return np.moveaxis(s, 3, 2).reshape(len(s), groups, rows, hidden)

    def to_user(s):
        s = s.reshape(len(s), directions, heads, rows, hidden)
        lead = (2,) * (directions - 1)
        return np.moveaxis(s, 3, 2).reshape(len(s), *lead, *batch, heads * hidden)

    count = np.full((1, 1, rows), time)
    if lengths is not None:
        count = lengths.astype(np.int64).reshape(len(lengths), 1, rows)
    second = np.arange(groups) >= heads
    against = (second != reverse)[:, None]

    x = x.reshape(len(x), 1, rows, time, x.shape[-1])
    x = np.where((np.arange(time) < count[..., None])[..., None], x, 0)
    if w_ih is None:  # the pre-activations are given
        a_x = x.reshape(len(x), *x.shape[2:4], groups, w_hh.shape[-1])
        a_x = np.moveaxis(a_x, 3, 1)
    else:
        a_x = x @ weights(w_ih, 2)[:, :, None]
    w_hh = weights(w_hh, 2)
    b_ih, b_hh = (0 if b is None else weights(b, 1)[:, :, None] for b in (b_ih, b_hh))
    take = step
    if options.get("normed"):
        own = weights(*own, 1)[:, :, None]
        how = options["normed"], own, (b_ih, b_hh)
        b_ih = b_hh = 0

        def take(cell, _, *given):
            return normed_step(cell, *how, *given)

    if np.ndim(b_ih) > 0:
        a_x = a_x + b_ih[:, :, :, None]

    zeros = np.zeros((1, groups, rows, hidden))
    states = STATES[cell]
    state = (zeros,) * states if state_0 is None else tuple(map(from_user, state_0))
    instead = (zeros,) * states if reset_to is None else tuple(map(from_user, reset_to))
    mask = 1 if mask is None else from_user(mask)
    if resets is not None:
        resets = of_steps(resets)[:, None] != 0
    stays = []
    for k in zoneout or ():
        if np.ndim(k) > 0:
            k = of_steps(k).reshape(len(k), rows, time, directions, heads, hidden)
            k = np.moveaxis(k, (3, 4), (1, 2))
            k = k.reshape(len(k), groups, rows, time, hidden)
        stays.append(k)

    def product(h, first, last):
        columns = slice(first * hidden, last * hidden)
        h = mask * h @ w_hh[..., columns]
        return h + (b_hh if isinstance(b_hh, int) else b_hh[..., columns])

    every = [a_x, w_hh, count, *state, *instead, *stays]
    every += [a for a in (mask, resets, b_hh) if np.ndim(a) > 0]
    if options.get("normed"):
        every += [a for a in (how[1], *how[2]) if np.ndim(a) > 0]
    many = max((len(a) for a in every if np.ndim(a) > 0), default=1)
    kind = np.result_type(np.float64, *(a for a in every if np.ndim(a) > 0))
    y = np.zeros((many, groups, rows, time, hidden), kind)
    for s in range(time):
        counts = s < count
        t = np.where(against & counts, count - 1 - s, s)  # where the step lies

        def now(v, t=t):
            index = t.reshape(*t.shape, *(1,) * (v.ndim - 3))
            return np.take_along_axis(v, index, 3).squeeze(3)

        before = state
        if resets is not None:
            again = now(resets[..., None])
            state = [np.where(again, b, a) for a, b in zip(state, instead, strict=True)]
        after = take(cell, options, now(a_x), state, product)
        if stays:
            ks = [now(k) if np.ndim(k) > 0 else k for k in stays]
            pairs = zip(ks, state, after, strict=True)
            after = [k * old + (1 - k) * new for k, old, new in pairs]
        counts = counts[..., None]
        value = np.where(counts, after[0], 0)
        index = np.broadcast_to(t[..., None, None], (many, groups, rows, 1, 1))
        value = np.broadcast_to(value, (many, groups, rows, hidden))[..., None, :]
        np.put_along_axis(y, index, value, 3)
        state = tuple(
            np.where(counts, new, old) for new, old in zip(after, before, strict=True)
        )
    state = [np.broadcast_to(s, (many, groups, rows, hidden)) for s in state]

    y = y.reshape(many, directions, heads, rows, time, hidden)
    y = np.moveaxis(y, (1, 2), (3, 4)).reshape(
        many, *batch, time, directions, heads * hidden
    )
    y = y.sum(-2) if merge == "sum" else y.reshape(*y.shape[:-2], groups * hidden)
    y = np.moveaxis(y, -2, 1) if time_major else y
    return y, tuple(map(to_user, state))


def norm(x, scale, bias):
    """Layer norm over the features."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    axes = (len(scale), *(1,) * (x.ndim - 2), scale.shape[-1])
    u = centred / np.sqrt(variance + EPSILON) * scale.reshape(axes)
    return u if bias is None else u + bias.reshape(axes)


def stack(cell, x, layers, state_0, reset_to, *, skip_connections, **options):
    """Layers are `(params, norm or None)`. The last y, and all states."""
    time_major, lengths = options.get("time_major", False), options.get("lengths")
    if lengths is not None:  # what the padding holds is beside the layers, too
        t = np.arange(x.shape[1] if time_major else x.shape[-2])
        counts = t < lengths[..., None]
        counts = np.moveaxis(counts, -1, 1) if time_major else counts
        x = np.where(counts[..., None], x, 0)
    states = []
    for n, (params, scale_bias) in enumerate(layers):
        u = x if scale_bias is None else norm(x, *scale_bias)
        y, state = layer(
            cell,
            u,
            params,
            None if state_0 is None else state_0[n],
            reset_to=None if reset_to is None else reset_to[n],
            **options,
        )
        if skip_connections and y.shape[-1] == x.shape[-1]:
            y = y + x
        x = y
        states.append(state)
    return x, states


STEP = 1e-30  # so small that its square is nothing


def derivatives(run, arrays, directions):
    """Of each output along each direction: exact, as the derivative of `run` is.

    Args:
      run: a function of arrays by name, each with the axis in front, to outputs by
        name.
      arrays: by name, without it.
      directions: for each, by name, what changes.
    """

    def moved(name, a):
        if not any(name in d for d in directions):
            return a[None]
        rates = [d.get(name, np.zeros(a.shape)) for d in directions]
        return a[None] + STEP * 1j * np.stack(rates)

    outputs = run({name: moved(name, a) for name, a in arrays.items()})
    shape = (len(directions),)
    return {
        name: np.broadcast_to(np.imag(v) / STEP, shape + v.shape[1:])
        for name, v in outputs.items()
    }
