"""Layers of packages on PyTorch that are none of its own: docs/migration/pytorch.md."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import prnn_jax

torch = library("torch")
nn = torch.nn

BATCH, TIME, IN, HIDDEN = 3, 8, 5, 6
X = torch.from_numpy(np.random.default_rng(1).standard_normal((BATCH, TIME, IN)))
#: Of sums of at most 30 products near 1 in float32, where the other side has float64.
CLOSE = {"rtol": 0, "atol": 4e-6}


@pytest.fixture(autouse=True)
def no_gradients():
    torch.manual_seed(3)
    with torch.no_grad():
        yield


def drawn(module):
    """The module in float64, with norms and biases that are not as they begin."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double().eval()


def of(array):
    return jnp.asarray(array.numpy(), jnp.float32)


def over_time(step, x, *states):
    """Every h of a step that gives the next states, h first."""
    y = []
    for x_t in x.unbind(1):
        states = step(x_t, *states)
        y.append(states[0])
    return torch.stack(y, 1), states


def zeros(width=HIDDEN):
    return torch.zeros(BATCH, width, dtype=torch.float64)


def test_the_lstm_with_layer_norm_of_di_engine():
    names = {"wx": (IN, 4 * HIDDEN), "wh": (HIDDEN, 4 * HIDDEN), "bias": (4 * HIDDEN,)}
    own = nn.ParameterDict({n: nn.Parameter(torch.zeros(s)) for n, s in names.items()})
    norms = drawn(nn.ModuleList([nn.LayerNorm(4 * HIDDEN) for _ in "xh"]))
    own = drawn(own)

    def step(x, h, c):
        a = norms[0](x @ own["wx"]) + norms[1](h @ own["wh"]) + own["bias"]
        i, f, o, u = a.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    wanted, _ = over_time(step, X, zeros(), zeros())

    def in_order(array):
        i, f, o, u = jnp.split(of(array), 4, -1)
        return jnp.concatenate([i, f, u, o], -1)

    cell = prnn_jax.normed("lstm", prnn_jax.LayerNorm(c=None))
    gains = cell.gains(x=in_order(norms[0].weight), h=in_order(norms[1].weight))
    bias = in_order(own["bias"] + norms[0].bias + norms[1].bias)
    weights = in_order(own["wx"]), in_order(own["wh"])
    y, _ = cell(of(X), prnn_jax.Params(*weights, bias, None, gains))
    np.testing.assert_allclose(y, wanted, **CLOSE)


@pytest.mark.parametrize("go_forward", [True, False])
def test_the_lstm_of_elmo(go_forward):
    """allennlp's LstmCellWithProjection."""
    cell, bound, lengths = 4 * HIDDEN, (0.3, 0.1), [8, 5, 1]
    layer = nn.ModuleDict(
        {
            "input_linearity": nn.Linear(IN, 4 * cell, bias=False),
            "state_linearity": nn.Linear(HIDDEN, 4 * cell),
            "state_projection": nn.Linear(cell, HIDDEN, bias=False),
        }
    )
    layer = drawn(layer)

    def step(x, h, c):
        a = layer["input_linearity"](x) + layer["state_linearity"](h)
        i, f, g, o = a.chunk(4, -1)
        c = (i.sigmoid() * g.tanh() + f.sigmoid() * c).clamp(-bound[0], bound[0])
        h = layer["state_projection"](o.sigmoid() * c.tanh())
        return h.clamp(-bound[1], bound[1]), c

    wanted = torch.zeros(BATCH, TIME, HIDDEN)
    for n, length in enumerate(lengths):
        x = X[n : n + 1, :length].expand(BATCH, -1, -1)
        x = x if go_forward else x.flip(1)
        y, _ = over_time(step, x, zeros(), zeros(cell))
        wanted[n, :length] = (y if go_forward else y.flip(1))[0]
    params = prnn_jax.Params(
        of(layer["input_linearity"].weight.T),
        of(layer["state_linearity"].weight.T),
        of(layer["state_linearity"].bias),
        None,
        w_hr=of(layer["state_projection"].weight.T),
    )
    y, _ = prnn_jax.lstm(
        of(X),
        params,
        lengths=jnp.asarray(lengths),
        reverse=not go_forward,
        clip=prnn_jax.Clip(state=bound[0], projection=bound[1]),
    )
    np.testing.assert_allclose(y, wanted, **CLOSE)


def test_the_quasi_rnn_of_speechbrain():
    w, zoneout = drawn(nn.Linear(IN, 3 * HIDDEN)), 0.2

    def one_way(x):
        z, f, o = w(x).chunk(3, -1)
        f = (1 - zoneout) * f.sigmoid()
        pairs = torch.stack([f * z.tanh(), 1 - f], -1)
        c, _ = over_time(lambda p, c: (p[..., 0] + p[..., 1] * c,), pairs, zeros())
        return o.sigmoid() * c

    wanted = torch.cat([one_way(X), one_way(X.flip(1)).flip(1)], -1)
    sign = jnp.repeat(jnp.asarray([1.0, -1.0, 1.0]), HIDDEN)
    weight, bias = sign * of(w.weight.T), sign * of(w.bias)
    both = jnp.stack([weight[None]] * 2), jnp.stack([bias] * 2)
    y, _ = prnn_jax.qrnn(of(X), *both, zoneout=zoneout, bidirectional=True)
    np.testing.assert_allclose(y, wanted, **CLOSE)


def light_step(a_x, product, state):
    (h,) = state
    a, z = (x + product(h, gate) for gate, x in enumerate(a_x))
    z = jax.nn.sigmoid(z)
    return (z * h + (1 - z) * jax.nn.relu(a),)


def test_the_light_gru_of_speechbrain():
    w = drawn(nn.Linear(IN, 2 * HIDDEN, bias=False))
    u = drawn(nn.Linear(HIDDEN, 2 * HIDDEN, bias=False))
    norm = drawn(nn.BatchNorm1d(2 * HIDDEN))
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)

    def step(a_x, h):
        a, z = (a_x + u(h)).chunk(2, -1)
        z = z.sigmoid()
        return (z * h + (1 - z) * a.relu(),)

    a_x = norm(w(X).transpose(1, 2)).transpose(1, 2)
    wanted, _ = over_time(step, a_x, zeros())
    light = prnn_jax.define_cell("light", light_step, gates="az")
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    weights = of((scale[:, None] * w.weight).T), of(u.weight.T)
    bias = of(norm.bias - scale * norm.running_mean)
    y, _ = light(of(X), prnn_jax.Params(*weights, bias, None))
    np.testing.assert_allclose(y, wanted, **CLOSE)


def test_the_sru_of_its_authors():
    weight, scale = torch.randn(IN, 3 * IN, dtype=torch.float64), 1.7
    peepholes, bias = torch.randn(2, 2 * IN, dtype=torch.float64)
    vf, vr, bf, br = *peepholes.chunk(2), *bias.chunk(2)

    def step(x, _, c):
        a, f, r = (x @ weight).view(BATCH, IN, 3).unbind(-1)  # of each unit together
        f, r = (f + vf * c + bf).sigmoid(), (r + vr * c + br).sigmoid()
        c = f * c + (1 - f) * a
        return r * c + (1 - r) * scale * x, c

    wanted, _ = over_time(step, X, zeros(IN), zeros(IN))
    w = of(weight).reshape(IN, IN, 3).swapaxes(1, 2).reshape(IN, 3 * IN)
    options = {"peepholes": of(peepholes), "skip_scale": scale}
    y, _ = prnn_jax.sru(of(X), w, of(bias), **options)
    np.testing.assert_allclose(y, wanted, **CLOSE)


def test_the_minimal_gru_in_log_space():
    """minGRU-pytorch's, whose candidates are positive."""
    weight = drawn(nn.Linear(IN, 2 * HIDDEN, bias=False)).weight
    a, z = (X @ weight.T).chunk(2, -1)
    a, z = torch.where(a >= 0, a + 0.5, a.sigmoid()), z.sigmoid()
    pairs = torch.stack([1 - z, z * a], -1)
    wanted, _ = over_time(lambda p, h: (p[..., 0] * h + p[..., 1],), pairs, zeros())
    a, z = jnp.split(of(X) @ of(weight.T), 2, -1)
    a, z = jnp.where(a >= 0, a + 0.5, jax.nn.sigmoid(a)), jax.nn.sigmoid(z)
    y, _ = prnn_jax.linear_recurrence(1 - z, z * a)
    np.testing.assert_allclose(y, wanted, **CLOSE)


def test_the_real_gated_recurrence_of_recurrent_gemma():
    """Of transformers, whose positions begin anew with each document."""
    heads, size = 2, HIDDEN // 2
    x = torch.cat([X, X[..., :1]], -1)  # as wide as the state
    w = torch.randn(2, heads, size, size, dtype=torch.float64)
    b, decay = torch.randn(2, heads, size, dtype=torch.float64), torch.randn(HIDDEN)
    positions = torch.arange(TIME).repeat(BATCH, 1)
    positions[1, 3:] -= 3

    def gate(x, w, b):
        parts = x.unflatten(-1, (heads, size))
        return (torch.einsum("bhi,hij->bhj", parts, w) + b).sigmoid().flatten(1)

    def step(x, position, h):
        first = (position == 0)[:, None]
        log_a = -8 * gate(x, w[0], b[0]) * nn.functional.softplus(decay)
        share = torch.where(first, 1, (1 - (2 * log_a).exp()).sqrt())
        kept = torch.where(first, 0, log_a.exp() * h)
        return kept + share * gate(x, w[1], b[1]) * x

    y, h = [], zeros()
    for given in zip(x.unbind(1), positions.unbind(1), strict=True):
        h = step(*given, h)
        y.append(h)
    params = {
        "w_gates": jnp.concatenate([of(w[0]), of(w[1])], -1),
        "b_gates": jnp.concatenate([of(b[0]).ravel(), of(b[1]).ravel()]),
        "decay": -of(decay),
    }
    found, _ = prnn_jax.rg_lru(
        of(x), **params, resets=positions.numpy() == 0, scale_first=False
    )
    np.testing.assert_allclose(found, torch.stack(y, 1), **CLOSE)


def test_the_selective_scan_of_mamba():
    states = 4
    delta = drawn(nn.Linear(IN, IN))(X).exp()
    b, c = (drawn(nn.Linear(IN, states, bias=False))(X) for _ in "bc")
    a, d = -torch.randn(IN, states).double().exp(), torch.randn(IN).double()

    def step(h, x, delta, b, c):
        enters = delta[..., None] * b[:, None] * x[..., None]
        h = (delta[..., None] * a).exp() * h + enters
        return (h * c[:, None]).sum(-1) + d * x, h

    y, h = [], torch.zeros(BATCH, IN, states, dtype=torch.float64)
    for given in zip(*(s.unbind(1) for s in (X, delta, b, c)), strict=True):
        out, h = step(h, *given)
        y.append(out)
    x, delta, b, c = map(of, (X, delta, b, c))
    keeps = jnp.exp(delta[..., None] * of(a))
    enters = delta[..., None] * b[..., None, :] * x[..., None]
    flat = BATCH, TIME, IN * states
    h, _ = prnn_jax.linear_recurrence(keeps.reshape(flat), enters.reshape(flat))
    h = h.reshape(*flat[:2], IN, states)
    found = (h * c[..., None, :]).sum(-1) + of(d) * x
    np.testing.assert_allclose(found, torch.stack(y, 1), rtol=2e-6, atol=4e-6)


def test_states_that_are_matrices():
    """Gated linear attention, as in flash-linear-attention; a decay for each key."""
    keys, values = 3, 4
    q, k, g = torch.randn(3, BATCH, TIME, 2, keys, dtype=torch.float64)
    v = torch.randn(BATCH, TIME, 2, values, dtype=torch.float64)
    g = nn.functional.logsigmoid(g)

    def step(given, s):
        q, k, v, g = given
        s = g.exp()[..., None] * s + k[..., None] * v[..., None, :]
        return (q[..., None] * s).sum(-2), s

    y, s = [], torch.zeros(BATCH, 2, keys, values, dtype=torch.float64)
    for given in zip(*(a.unbind(1) for a in (q, k, v, g)), strict=True):
        out, s = step(given, s)
        y.append(out)
    q, k, v, g = map(of, (q, k, v, g))
    enters = k[..., None] * v[..., None, :]
    keeps = jnp.broadcast_to(jnp.exp(g)[..., None], enters.shape)
    flat = BATCH, TIME, enters[0, 0].size
    s, _ = prnn_jax.linear_recurrence(keeps.reshape(flat), enters.reshape(flat))
    found = jnp.einsum("bthk,bthkv->bthv", q, s.reshape(enters.shape))
    np.testing.assert_allclose(found, torch.stack(y, 1), rtol=2e-6, atol=4e-6)


def largest_before(log_keeps, log_enters):
    """m = max(log_keeps + m of the step before, log_enters), of m before both."""
    total = jnp.cumsum(jnp.broadcast_to(log_keeps, log_enters.shape), 1)
    m = total + jax.lax.cummax(log_enters - total, axis=1)
    first = jnp.full_like(m[:, :1], -jnp.inf)
    return jnp.concatenate([first, m[:, :-1]], 1), m


def test_the_mlstm_of_xlstm():
    """Its exponents, of which float32 holds few, less a largest one, for all steps."""
    size = 4
    q, k, v = torch.randn(3, BATCH, TIME, size, dtype=torch.float64)
    i, f = 60 * torch.randn(2, BATCH, TIME, dtype=torch.float64)
    c = torch.zeros(BATCH, size, size, dtype=torch.float64)
    n, m, y = (
        torch.zeros(BATCH, size, dtype=torch.float64),
        torch.tensor(-torch.inf),
        [],
    )
    for t in range(TIME):
        log_f = nn.functional.logsigmoid(f[:, t])
        new = torch.maximum(log_f + m, i[:, t])
        keeps, enters = ((a - new).exp()[:, None] for a in (log_f + m, i[:, t]))
        key = enters * k[:, t] / size**0.5
        c = keeps[..., None] * c + key[..., None] * v[:, t, None]
        n, m = keeps * n + key, new
        below = torch.maximum((q[:, t] * n).sum(-1).abs(), (-m).exp())
        y.append((q[:, t, :, None] * c).sum(-2) / below[:, None])
    q, k, v, i, f = map(of, (q, k, v, i, f))
    log_f = jax.nn.log_sigmoid(f)
    before, m = largest_before(log_f, i)
    ones = jnp.ones((BATCH, TIME, 1))
    both = jnp.concatenate([v, ones], -1)[..., None, :]  # c, and beside it n
    enters = (jnp.exp(i - m)[..., None] * k / size**0.5)[..., None] * both
    keeps = jnp.exp(log_f + before - m)[..., None, None]
    flat = BATCH, TIME, enters[0, 0].size
    keeps = jnp.broadcast_to(keeps, enters.shape).reshape(flat)
    c, _ = prnn_jax.linear_recurrence(keeps, enters.reshape(flat))
    out = jnp.einsum("btk,btkv->btv", q, c.reshape(enters.shape))
    below = jnp.maximum(jnp.abs(out[..., -1]), jnp.exp(-m))
    # Exponents up to some hundreds are off by as many times eps.
    found = out[..., :-1] / below[..., None]
    np.testing.assert_allclose(found, torch.stack(y, 1), rtol=1e-4, atol=1e-4)


def test_the_wkv_of_rwkv_4():
    """As in transformers: a mean by weights exp(k), which decay."""
    u, k, v = torch.randn(HIDDEN), *torch.randn(2, BATCH, TIME, HIDDEN)
    decay, k = -torch.randn(HIDDEN).exp(), 60 * k
    y, seen = [], []
    for t in range(TIME):
        seen = [a + decay for a in seen] + ([k[:, t - 1]] if t else [])
        weights = torch.stack([*seen, k[:, t] + u]).double().softmax(0)
        y.append((weights * v[:, : t + 1].swapaxes(0, 1)).sum(0))
    decay, u, k, v = map(of, (decay, u, k, v))
    before, m = largest_before(decay, k)
    enters = jnp.exp(k - m)
    both = jnp.concatenate([enters * v, enters], -1)
    keeps = jnp.tile(jnp.exp(decay + before - m), 2)
    sums, _ = prnn_jax.linear_recurrence(keeps, both)
    sums = jnp.concatenate([jnp.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
    top = jnp.maximum(before, k + u)
    kept, enters = jnp.exp(before - top), jnp.exp(k + u - top)
    weighted, weights = (kept * a for a in jnp.split(sums, 2, -1))
    found = (weighted + enters * v) / (weights + enters)
    np.testing.assert_allclose(found, torch.stack(y, 1), rtol=1e-4, atol=1e-4)
