"""`from_params` of layers and stacks, of a network that was imported."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import prnn_jax
from prnn_jax.convert import Imported

HOSTS = "nnx", "linen", "equinox"
IN, HIDDEN, TIME = 3, 4, 6
NETWORKS = {
    "lstm": {},
    "rnn": {"activation": "relu"},
    "gru": {"reset_after": False, "gate_activation": "hard_sigmoid"},
    "gru, both ways": {"bidirectional": True},
    "lstm, both ways, summed": {"bidirectional": True, "merge": "sum"},
    "lstm, clipped": {"clip": prnn_jax.Clip(pre_activations=0.1)},
    "lstm, time first": {"time_major": True},
    "gru, in reverse": {"reverse": True},
}


def network_of(name: str, layers: int) -> Imported:
    cell, options = name.partition(",")[0], NETWORKS[name]
    both = options.get("bidirectional", False)
    wide = HIDDEN * (2 if both and options.get("merge") != "sum" else 1)
    keys = jax.random.split(jax.random.key(1), layers)
    params = tuple(
        prnn_jax.init(cell, key, size, HIDDEN, bidirectional=both, scheme="pytorch")
        for key, size in zip(keys, [IN, *[wide] * (layers - 1)], strict=True)
    )
    return Imported(params, cell, **options)


def made(host: str, kind: str, given, **options):
    """A function of x, and what tells its parameters."""
    module = library(f"prnn_jax.{host}")
    make = getattr(module, kind).from_params(given, **options)
    if host == "linen":
        layer, variables = make
        return lambda x: layer.apply(variables, x), lambda: layer.to_params(variables)
    if host == "nnx":
        return make, lambda: make.params
    first = getattr(given, "time_major", False)
    return lambda x: make(x, time_major=first)[0], lambda: make.params


def inputs() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, TIME, IN))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", [n for n in NETWORKS if "reverse" not in n])
def test_a_stack_computes_what_the_network_does(name, host):
    for layers in (1, 3):
        net, x = network_of(name, layers), inputs()
        run, params = made(host, "Stack", net)
        expected = net(x)[0]
        np.testing.assert_allclose(run(x), expected, atol=1e-6)
        # And back, where there is one bias of two.
        again = dataclasses.replace(net, layers=params())
        np.testing.assert_allclose(again(x)[0], expected, atol=1e-6)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_layer_computes_what_the_network_does(name, host):
    net, x = network_of(name, 1), inputs()
    run, params = made(host, net.cell.upper(), net)
    expected = net(x)[0]
    np.testing.assert_allclose(run(x), expected, atol=1e-6)
    again = dataclasses.replace(net, layers=[params()])
    np.testing.assert_allclose(again(x)[0], expected, atol=1e-6)


@pytest.mark.parametrize("host", HOSTS)
def test_options_override_the_network_s(host):
    net, x = network_of("rnn", 1), inputs()
    as_tanh = dataclasses.replace(net, activation="tanh")
    options = {"activation": "tanh"}
    run, _ = made(host, "RNN", net, **options)
    np.testing.assert_allclose(run(x), as_tanh(x)[0], atol=1e-6)
    nested = {"options": options} if host == "linen" else options
    run, _ = made(host, "Stack", net, **nested)
    np.testing.assert_allclose(run(x), as_tanh(x)[0], atol=1e-6)


def test_equinox_has_time_major_in_calls_alone():
    net, module = network_of("lstm, time first", 1), library("prnn_jax.equinox")
    for make in (module.LSTM.from_params, module.Stack.from_params):
        assert make(net)(inputs(), time_major=True)[0].shape == (2, TIME, HIDDEN)
        with pytest.raises(TypeError, match="time_major"):
            make(net, time_major=True)


@pytest.mark.parametrize("host", HOSTS)
def test_errors(host):
    net = network_of("lstm", 2)
    module = library(f"prnn_jax.{host}")
    with pytest.raises(ValueError, match=r"one layer of lstm, got 2 of lstm; Stack"):
        module.LSTM.from_params(net)
    with pytest.raises(ValueError, match=r"one layer of gru, got 2 of lstm; Stack"):
        module.GRU.from_params(net)
    with pytest.raises(ValueError, match="layers must not be given with"):
        module.Stack.from_params(net, net.layers)
    with pytest.raises(ValueError, match="layers must be the parameters of each"):
        module.Stack.from_params("lstm")
    with pytest.raises(ValueError, match="reverse must be False, got True"):
        module.Stack.from_params(network_of("gru, in reverse", 1))
    begun = dataclasses.replace(net, state_0=((jnp.ones(HIDDEN),) * 2,) * 2)
    with pytest.raises(ValueError, match="initial states of its own, state_0"):
        module.Stack.from_params(begun)
