"""Layers of the host libraries from `Params`, and back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import assert_bitwise_equal

import prnn_jax
import prnn_jax.equinox
import prnn_jax.linen
import prnn_jax.nnx
from prnn_jax import BidirectionalParams, MultiHeadParams, Params

GATES = {"LSTM": 4, "SLSTM": 4, "GRU": 3, "RNN": 1}
IN, HIDDEN = 5, 6
X = np.random.default_rng(1).standard_normal((2, 4, IN)).astype(np.float32)


def params_of(cell: str, kind=Params, lead=(), biases=("b_ih", "b_hh")) -> Params:
    random, wide = np.random.default_rng(2), GATES[cell] * HIDDEN
    shapes = {"w_ih": (IN, wide), "w_hh": (HIDDEN, wide), "b_ih": (wide,)}
    shapes |= {"b_hh": (wide,)}
    arrays = {
        name: jnp.asarray(random.standard_normal((*lead, *shape)) / 2, jnp.float32)
        for name, shape in shapes.items()
        if name.startswith("w") or name in biases
    }
    return kind(**arrays)


KINDS = {
    "one": {},
    "both ways": {"kind": BidirectionalParams, "lead": (2,)},
    "heads": {"kind": MultiHeadParams, "lead": (3,)},
    "both ways with heads": {"kind": BidirectionalParams, "lead": (2, 3)},
    "one bias": {"biases": ("b_ih",)},
    "no bias": {"biases": ()},
}


def expected(cell: str, params: Params, **options):
    function = getattr(prnn_jax, cell.lower())
    is_both = isinstance(params, BidirectionalParams)
    return function(X, params, bidirectional=is_both, **options)[0]


def run_nnx(cell, params, **options):
    layer = getattr(prnn_jax.nnx, cell).from_params(params, **options)
    return layer(X), layer.params


def run_linen(cell, params, **options):
    layer, variables = getattr(prnn_jax.linen, cell).from_params(params, **options)
    made = jax.eval_shape(layer.init, jax.random.key(0), X)
    shapes = jax.tree.map(lambda a: (a.shape, a.dtype), (made, variables))
    assert shapes[0] == shapes[1]
    return layer.apply(variables, X), layer.to_params(variables)


def run_equinox(cell, params, **options):
    layer = getattr(prnn_jax.equinox, cell).from_params(params, **options)
    return layer(X)[0], layer.params


HOSTS = [run_nnx, run_linen, run_equinox]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("run", HOSTS)
def test_it_computes_what_the_function_does(run, cell, kind):
    params = params_of(cell, **KINDS[kind])
    y, back = run(cell, params)
    assert type(back) is type(params)
    assert_bitwise_equal((back.w_ih, back.w_hh), (params.w_ih, params.w_hh))
    assert_bitwise_equal(y, expected(cell, back))
    # Biases are added before they are added to sums: a rounding.
    np.testing.assert_allclose(y, expected(cell, params), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["one", "both ways with heads", "no bias"])
@pytest.mark.parametrize("run", HOSTS)
def test_peepholes(run, kind):
    params = params_of("LSTM", **KINDS[kind])
    own = np.random.default_rng(3).standard_normal((*params.w_hh.shape[:-1], 3))
    own = jnp.asarray(own.reshape(*params.w_hh.shape[:-2], -1), jnp.float32)
    params = params._replace(peepholes=own)
    y, back = run("LSTM", params)
    assert_bitwise_equal(back.peepholes, own)
    np.testing.assert_allclose(y, expected("LSTM", params), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="peepholes must be True for params with such"):
        run("LSTM", params, peepholes=False)
    with pytest.raises(ValueError, match="peepholes must be None"):
        run("SLSTM", params)


def test_peepholes_begin_with_zero_and_are_trained():
    key = jax.random.key(0)
    of_nnx = prnn_jax.nnx.LSTM(IN, HIDDEN, peepholes=True, rngs=nnx.Rngs(0))
    of_linen = prnn_jax.linen.LSTM(HIDDEN, peepholes=True)
    of_equinox = prnn_jax.equinox.LSTM(IN, HIDDEN, peepholes=True, key=key)
    variables = of_linen.init(key, X)
    gradients = [
        nnx.grad(lambda layer: layer(X).sum())(of_nnx)["peepholes"][...],
        jax.grad(lambda v: of_linen.apply(v, X).sum())(variables)["params"][
            "peepholes"
        ],
        eqx.filter_grad(lambda layer: layer(X)[0].sum())(of_equinox).peepholes,
    ]
    held = of_nnx.peepholes[...], variables["params"]["peepholes"], of_equinox.peepholes
    for peepholes, gradient in zip(held, gradients, strict=True):
        assert_bitwise_equal(peepholes, jnp.zeros(3 * HIDDEN))
        assert np.abs(gradient).min() > 0


def test_stacks_of_layers_with_peepholes():
    layers = [
        prnn_jax.init("lstm", jax.random.key(n), size, HIDDEN, peepholes=True)
        for n, size in enumerate((IN, HIDDEN, HIDDEN))
    ]
    layers = [p._replace(peepholes=p.peepholes + 0.5) for p in layers]
    layers[1] = layers[1]._replace(peepholes=None)
    wanted, _ = prnn_jax.stack("lstm", X, layers)
    of_nnx = prnn_jax.nnx.Stack.from_params("lstm", layers)
    of_linen, variables = prnn_jax.linen.Stack.from_params("lstm", layers)
    of_equinox = prnn_jax.equinox.Stack.from_params("lstm", layers)
    for y in (of_nnx(X), of_linen.apply(variables, X), of_equinox(X)[0]):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", HOSTS)
def test_the_other_gru(run):
    params = params_of("GRU")
    y, _ = run("GRU", params, reset_after=False)
    of_function = expected("GRU", params, reset_after=False)
    np.testing.assert_allclose(y, of_function, rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", HOSTS)
def test_options_of_the_layer(run):
    params = params_of("RNN")
    y, _ = run("RNN", params, activation="relu", skip=0.5)
    of_function = expected("RNN", params, activation="relu", skip=0.5)
    np.testing.assert_allclose(y, of_function, rtol=0, atol=1e-5)


@pytest.mark.parametrize("run", HOSTS)
def test_plain_params_of_two_directions(run):
    """What their axis is, the option says."""
    both = params_of("LSTM", lead=(2,))
    y, back = run("LSTM", both, bidirectional=True)
    assert isinstance(back, BidirectionalParams)
    assert y.shape == (2, 4, 2 * HIDDEN)


@pytest.mark.parametrize("run", HOSTS)
@pytest.mark.parametrize(
    ("cell", "params", "options", "message"),
    [
        ("LSTM", params_of("GRU"), {}, r"w_ih must be \[5, 24\], for 4 gates of 6"),
        ("GRU", tuple(params_of("GRU")), {}, "params must be prnn_jax.Params, got tup"),
        ("LSTM", params_of("LSTM", lead=(2,)), {}, "may be directions or heads"),
        (
            "LSTM",
            params_of("LSTM"),
            {"bidirectional": True},
            "before that one of 2 if bidirectional",
        ),
        (
            "LSTM",
            params_of("LSTM")._replace(b_ih=jnp.zeros(3)),
            {},
            r"b_ih must be \[24\]",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(run, cell, params, options, message):
    with pytest.raises(ValueError, match=message):
        run(cell, params, **options)


@pytest.mark.parametrize("run", [run_nnx, run_linen])
def test_a_bias_that_has_no_place(run):
    with pytest.raises(ValueError, match="recurrent_bias must be True"):
        run("GRU", params_of("GRU"), recurrent_bias=False)


def test_a_bias_that_has_no_place_in_equinox():
    with pytest.raises(ValueError, match="use_bias must be True"):
        run_equinox("LSTM", params_of("LSTM"), use_bias=False)


def test_params_are_not_assigned():
    layer = prnn_jax.nnx.LSTM.from_params(params_of("LSTM"))
    with pytest.raises(AttributeError, match=r"LSTM\.from_params\(params\) makes"):
        layer.params = params_of("LSTM")


def test_from_pytorch_to_every_host():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.GRU(IN, HIDDEN, num_layers=2, batch_first=True)
    net = prnn_jax.convert.import_pytorch(module)
    with torch.no_grad():
        of_torch = module(torch.from_numpy(X))[0].numpy()
    y = X
    for params in net.layers:
        y = prnn_jax.nnx.GRU.from_params(params)(y)
    np.testing.assert_allclose(y, of_torch, rtol=0, atol=1e-6)
    y = X
    for params in net.layers:
        y, _ = prnn_jax.equinox.GRU.from_params(params)(y)
    np.testing.assert_allclose(y, of_torch, rtol=0, atol=1e-6)


def test_an_equinox_layer_is_a_pytree_of_arrays():
    layer = prnn_jax.equinox.LSTM.from_params(params_of("LSTM"))
    arrays, _ = eqx.partition(layer, eqx.is_array)
    assert len(jax.tree.leaves(arrays)) == 3
