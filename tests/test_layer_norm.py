"""The LSTM and the GRU with layer norm inside of their steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normed_cells import BATCH, CELLS, HIDDEN, IN, KEY, TIME, arrays_of
from support import assert_bitwise_equal, float64, quick_jit

import prnn_jax
from prnn_jax import LayerNorm, normed

# ---- the equations -------------------------------------------------------------------


def layer_norm(a, gain, shift, epsilon, parts=1):
    """As published, a part of `parts` after the other."""
    out = []
    for part in np.split(a, parts, -1):
        mean, variance = part.mean(-1, keepdims=True), part.var(-1, keepdims=True)
        out.append((part - mean) / np.sqrt(variance + epsilon))
    return gain * np.concatenate(out, -1) + shift


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def by_numpy(name: str, x, p):
    """y and the last states, each variant written out for itself, in float64."""
    cell = CELLS[name]
    norm, batch, hidden = cell.norm, x.shape[0], p.w_hh.shape[0]
    gates = 4 if name.startswith("lstm") else 3
    own = np.split(p.peepholes, p.peepholes.size // hidden)
    parts, epsilon = (
        gates if "gate" in name or name == "lstm_basic" else 1,
        norm.epsilon,
    )
    cat, y = np.concatenate, []
    h = c = np.zeros((batch, hidden))
    for t in range(x.shape[1]):
        from_x, from_h = x[:, t] @ p.w_ih, h @ p.w_hh
        if name in ("lstm_torchaudio", "lstm_basic"):
            shift = p.b_ih + p.b_hh
            a = layer_norm(from_x + from_h, cat(own[:4]), shift, epsilon, parts)
            gain_c, shift_c = own[4:]
        else:
            a_x = layer_norm(from_x, cat(own[:gates]), p.b_ih, epsilon, parts)
            a_h = layer_norm(
                from_h, cat(own[gates : 2 * gates]), p.b_hh, epsilon, parts
            )
        if name.startswith("gru"):
            (x_r, x_z, x_n), (h_r, h_z, h_n) = (
                np.split(a_x, 3, -1),
                np.split(a_h, 3, -1),
            )
            r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
            n = np.tanh(x_n + r * (h_n + own[6]))
            h = (1 - z) * n + z * h
            y.append(h)
            continue
        if norm.of == "parts":
            a = a_x + a_h
        i, f, g, o = np.split(a, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        if name == "lstm_each_gate":
            h = sigmoid(o) * np.tanh(c)
        elif name == "lstm":
            h = sigmoid(o) * np.tanh(layer_norm(c, own[8], own[9], epsilon))
        else:
            if name == "lstm_fastrnns":
                gain_c, shift_c = own[8:]
            c = layer_norm(c, gain_c, shift_c, epsilon)
            h = sigmoid(o) * np.tanh(c)
        y.append(h)
    return np.stack(y, 1), ((h, c) if name.startswith("lstm") else h)


@pytest.mark.parametrize("name", CELLS)
def test_is_what_was_published(name):
    x, params = arrays_of(CELLS[name])
    with float64():
        ours = quick_jit(CELLS[name].__call__)(x, params)
        jax.tree.map(
            # Some roundings, which normalising makes larger.
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12),
            ours,
            by_numpy(name, x, params),
        )


def by_torch(name: str, x, p):
    """torchaudio's and haste's order of operations, by PyTorch's own layer norm."""
    torch = pytest.importorskip("torch")
    norm = torch.nn.functional.layer_norm
    p = {
        n: torch.tensor(a, requires_grad=True)
        for n, a in p._asdict().items()
        if a is not None
    }
    x = torch.tensor(x, requires_grad=True)
    hidden = p["w_hh"].shape[0]
    own = p["peepholes"].split(hidden)
    h = c = torch.zeros(x.shape[0], hidden, dtype=x.dtype)
    y, wide = [], len(p["b_ih"])
    for x_t in x.unbind(1):
        if name == "lstm_torchaudio":
            a = norm(x_t @ p["w_ih"] + h @ p["w_hh"], (wide,), torch.cat(own[:4]))
            i, f, g, o = (a + p["b_ih"] + p["b_hh"]).chunk(4, 1)
            c = norm(f.sigmoid() * c + i.sigmoid() * g.tanh(), (hidden,), *own[4:])
            h = o.sigmoid() * c.tanh()
        elif name == "lstm":
            a = (
                norm(h @ p["w_hh"], (wide,), torch.cat(own[4:8]))
                + p["b_ih"]
                + p["b_hh"]
            )
            a = a + norm(x_t @ p["w_ih"], (wide,), torch.cat(own[:4]))
            i, f, g, o = a.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * norm(c, (hidden,), *own[8:]).tanh()
        else:
            a_x = norm(x_t @ p["w_ih"], (wide,), torch.cat(own[:3]), p["b_ih"])
            a_h = norm(h @ p["w_hh"], (wide,), torch.cat(own[3:6]), p["b_hh"])
            (x_r, x_z, x_n), (h_r, h_z, h_n) = a_x.chunk(3, 1), a_h.chunk(3, 1)
            r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
            h = z * h + (1 - z) * (x_n + r * (h_n + own[6])).tanh()
        y.append(h)
    y = torch.stack(y, 1)
    y.sin().sum().backward()
    gradients = {n: a.grad.numpy() for n, a in p.items()}
    return y.detach().numpy(), x.grad.numpy(), gradients


@pytest.mark.parametrize("name", ["lstm", "lstm_torchaudio", "gru"])
def test_gradients_are_those_of_pytorch(name):
    x, params = arrays_of(CELLS[name])
    y, dx, gradients = by_torch(name, x, params)
    with float64():

        def loss(x, params):
            y, _ = CELLS[name](x, params)
            return jnp.sin(y).sum(), y

        run = quick_jit(jax.grad(loss, (0, 1), has_aux=True))
        (dx_ours, ours), y_ours = run(x, params)
        close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
        close(y_ours, y)
        close(dx_ours, dx)
        for part, wanted in gradients.items():
            close(getattr(ours, part), wanted, err_msg=part)


# ---- what is around ------------------------------------------------------------------


def test_stacks_and_statistics():
    cell = CELLS["lstm"]
    x = jnp.float32(arrays_of(cell)[0])
    layers = [cell.init(KEY, size, HIDDEN) for size in (IN, HIDDEN, HIDDEN)]
    y, states = prnn_jax.stack(cell, x, layers, dropout=0.2, key=KEY, lengths=[7, 2, 3])
    assert y.shape == (BATCH, TIME, HIDDEN)
    assert len(states) == 3
    y, _ = prnn_jax.stack(cell, x, layers)
    wanted = x
    for layer in layers:
        wanted, _ = cell(wanted, layer)
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    (of_layer, *_) = prnn_jax.statistics(cell, x, layers[:1])
    gain, _ = np.split(layers[0].peepholes[: 8 * HIDDEN], 2)
    wanted = {
        "h": cell(x, layers[0])[0],
        "a_x": layer_norm(x @ layers[0].w_ih, gain, 0, 1e-5),
    }
    for what, values in wanted.items():
        largest = np.abs(values).max()
        np.testing.assert_allclose(of_layer.forward[what].largest, largest, rtol=1e-5)


def test_begins_with_gains_of_one():
    cell = CELLS["lstm"]
    for scheme in ("orthogonal", "pytorch"):
        params = cell.init(KEY, IN, HIDDEN, scheme=scheme, heads=3)
        own = np.split(np.asarray(params.peepholes), 10, -1)
        assert all((part == 1).all() for part in own[:9])
        assert (own[9] == 0).all()
    params = cell.init(KEY, IN, HIDDEN)
    np.testing.assert_array_equal(np.split(params.b_ih, 4)[1], 1.0)


def test_gains_from_their_parts():
    cell = CELLS["lstm_torchaudio"]
    of = {"sum": np.ones(12), "c": 2 * np.ones(3), "c_shift": np.zeros(3)}
    wanted = np.concatenate([np.ones(12), 2 * np.ones(3), np.zeros(3)])
    np.testing.assert_array_equal(cell.gains(**of), wanted)
    with pytest.raises(ValueError, match="the parts must be sum, c, c_shift, got sum"):
        cell.gains(sum=np.ones(12))
    with pytest.raises(ValueError, match="c must be"):
        cell.gains(**of | {"c": np.ones(4)})


def test_equal_options_are_one_cell():
    assert normed("lstm", LayerNorm(c="state")) is CELLS["lstm_fastrnns"]
    assert normed("gru") is not normed("gru", LayerNorm(epsilon=1e-3))


BAD = {
    "cell": (("rnn",), "cell must be one of 'lstm', 'gru'|cell must be"),
    "norm": (("lstm", {"of": "sum"}), "norm must be a prnn_jax.LayerNorm, got"),
    "of": (("lstm", LayerNorm(of="both")), "of must be"),  # pyright: ignore
    "over": (("lstm", LayerNorm(over="all")), "over must be"),  # pyright: ignore
    "c": (("lstm", LayerNorm(c="h")), "c must be"),  # pyright: ignore
    "epsilon": (("lstm", LayerNorm(epsilon=0)), "epsilon must be a number between 0"),
    "of of a gru": (("gru", LayerNorm(of="sum")), "of must be 'parts', or left out"),
    "c of a gru": (("gru", LayerNorm(c=None)), "c must be 'output', or left out"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_what_makes_no_cell(given, message):
    with pytest.raises(ValueError, match=f"normed: .*{message}"):
        normed(*given)


def test_what_such_a_cell_has_not():
    x, params = jax.tree.map(jnp.float32, arrays_of(CELLS["lstm"]))
    with pytest.raises(ValueError, match="peepholes must be the units' own numbers"):
        CELLS["lstm"](x, params._replace(peepholes=None))
    with pytest.raises(ValueError, match="has no activation"):
        prnn_jax.stack(CELLS["lstm"], x, [params], activation="relu")


def test_layers_of_the_host_libraries():
    cell = CELLS["gru"]
    x, params = jax.tree.map(jnp.float32, arrays_of(cell))
    params = params._replace(b_hh=None)
    wanted = cell(x, params)[0]
    flax = pytest.importorskip("flax")
    import prnn_jax.linen
    import prnn_jax.nnx

    layer = prnn_jax.nnx.layer_of(cell)(IN, HIDDEN, rngs=flax.nnx.Rngs(0))
    own = np.split(np.asarray(layer.peepholes[...]), 7)
    assert (np.stack(own[:6]) == 1).all()
    assert (own[6] == 0).all()
    assert_bitwise_equal(prnn_jax.nnx.layer_of(cell).from_params(params)(x), wanted)
    of_linen = prnn_jax.linen.layer_of(cell)
    layer, variables = of_linen.from_params(params)
    assert_bitwise_equal(layer.apply(variables, x), wanted)
    drawn = of_linen(HIDDEN).init(KEY, x)["params"]["peepholes"]
    np.testing.assert_array_equal(np.split(np.asarray(drawn), 7)[0], 1.0)
    with pytest.raises(ValueError, match="b_hh must be None for the GRU with layer"):
        prnn_jax.nnx.layer_of(cell).from_params(params._replace(b_hh=params.b_ih))


def test_a_layer_of_equinox():
    pytest.importorskip("equinox")
    import prnn_jax.equinox

    cell = CELLS["lstm"]
    x, params = jax.tree.map(jnp.float32, arrays_of(cell))
    params = params._replace(b_hh=None)
    layer = prnn_jax.equinox.layer_of(cell).from_params(params)
    np.testing.assert_allclose(layer(x)[0], cell(x, params)[0], atol=1e-6)
    layer = prnn_jax.equinox.layer_of(cell)(IN, HIDDEN, key=KEY)
    np.testing.assert_array_equal(layer.peepholes, cell.init(KEY, IN, HIDDEN).peepholes)
