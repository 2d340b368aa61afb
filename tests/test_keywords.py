"""Arguments that a layer has not: the error names it, and what may be meant."""

import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest
from libraries import library

from prnn_jax._layers.keywords import in_its_own_name

X = jnp.zeros((2, 3, 4))


def layer(host: str, name: str, *sizes, **options):
    """A layer of a host library, with what that asks for besides."""
    if host == "nnx":
        nnx = library("flax.nnx")
        options["rngs"] = nnx.Rngs(0)
    if host == "equinox":
        options["key"] = jax.random.key(0)
    library({"nnx": "flax", "linen": "flax"}.get(host, host))
    module = __import__(f"prnn_jax.{host}", fromlist=[name])
    return getattr(module, name)(*sizes, **options)


@pytest.mark.parametrize(
    ("host", "name", "sizes", "option", "hint"),
    [
        ("nnx", "LSTM", (4, 5), "hidden_size", "; hidden_features is its name here"),
        ("nnx", "GRU", (4, 5), "batch_first", "; batch axes come first but with time"),
        ("nnx", "RNN", (4, 5), "activation_fn", "; activation is its name here"),
        ("nnx", "LSTM", (4, 5), "recurrent_dropout", "; recurrent_dropout_rate is its"),
        ("nnx", "LSTM", (4, 5), "num_layers", "; a Stack has several layers"),
        ("nnx", "LSTM", (4, 5), "bidirectionl", "; did you mean bidirectional?"),
        ("nnx", "Stack", ("gru", 4, 5, 2), "dropout", "; dropout_rate is its name"),
        ("nnx", "ScannedRNN", (4, 5), "units", "; hidden_features is its name here"),
        ("linen", "LSTM", (), "units", "; features is its name here"),
        ("linen", "MinGRU", (5,), "in_features", "; the input tells its size"),
        ("linen", "Stack", ("gru", 5, 2), "dropout", "; dropout_rate is its name here"),
        ("linen", "Stack", ("gru", 5, 2), "merge", "; options={'merge': ...} is for"),
        ("linen", "ScannedRNN", (5,), "skip", "; options={'skip': ...} is for what"),
        ("equinox", "GRU", (4, 5), "features", "; hidden_size is its name here"),
        ("equinox", "LSTM", (4, 5), "bias", "; use_bias is its name here"),
        ("equinox", "LSTM", (4, 5), "frobnicate", ""),
        ("equinox", "Stack", ("gru", 4, 5, 2), "dropout_rate", "; dropout is its name"),
        ("keras", "LSTM", (), "hidden_size", "; units is its name here"),
        ("keras", "GRU", (5,), "nonlinearity", "; activation is its name here"),
        ("keras", "MinGRU", (5,), "bidirectional", "; Bidirectional runs both ways"),
    ],
)
def test_they_are_named(host, name, sizes, option, hint):
    with pytest.raises(TypeError) as caught:
        layer(host, name, *sizes, **{option: 1})
    message = f"{name}() got an unexpected keyword argument '{option}'{hint}"
    assert str(caught.value).startswith(message)
    assert type(pickle.loads(pickle.dumps(caught.value))) is TypeError


@pytest.mark.parametrize(
    ("host", "option", "meant"),
    [
        ("nnx", "lengths", "seq_lengths"),
        ("linen", "lengths", "seq_lengths"),
        ("linen", "state", "initial_carry"),
        ("equinox", "seq_lengths", "lengths"),
        ("equinox", "initial_carry", "state"),
    ],
)
@pytest.mark.parametrize("name", ["GRU", "MinGRU", "Stack"])
def test_those_of_a_call_are_named(host, option, meant, name):
    sizes = (5,) if host == "linen" else (4, 5)
    sizes = ("gru", *sizes, 2) if name == "Stack" else sizes
    made = layer(host, name, *sizes)
    message = rf"{name}\.__call__\(\) got .* '{option}'; {meant} is its name here"
    run = made
    if host == "linen":
        run = functools.partial(made.init, jax.random.key(0))
    with pytest.raises(TypeError, match=message):
        run(X, **{option: 1})


def test_another_name_of_what_is_missing():
    library("equinox")
    import prnn_jax.equinox as layers

    for make in (layers.LSTM, layers.GRU):
        message = rf"^{make.__name__}\(\) .*units.*; hidden_size is its name here$"
        with pytest.raises(TypeError, match=message):
            make(4, units=5, key=jax.random.key(0))


def test_signatures_stay():
    library("flax")
    import prnn_jax.linen
    import prnn_jax.nnx

    assert next(iter(inspect.signature(prnn_jax.linen.LSTM).parameters)) == "features"
    names = list(inspect.signature(prnn_jax.nnx.LSTM.__init__).parameters)
    assert names[1:3] == ["in_features", "hidden_features"]


def test_errors_of_what_a_method_runs_stay_as_they_are():
    def inner(a):
        return a

    class Given:
        @in_its_own_name
        def __call__(self, **options):
            return inner(**options)

    with pytest.raises(
        TypeError, match=r"inner\(\) got an unexpected .* 'b'$"
    ) as caught:
        Given()(b=1)
    assert type(caught.value) is TypeError
