"""Layers without a product in a step, of all host libraries, called alike."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library

import prnn_jax

BATCH, TIME, INPUT, HIDDEN = 3, 6, 4, 5

#: The function, the layer's options, and what they are to the function.
LAYERS: dict[str, tuple[Callable, dict, dict]] = {
    "MinGRU": (prnn_jax.min_gru, {"activation": "tanh"}, {"activation": "tanh"}),
    "MinLSTM": (prnn_jax.min_lstm, {}, {}),
    "SRU": (
        prnn_jax.sru,
        {"highway_bias": -1.0, "peepholes": True},
        {"skip_scale": np.sqrt(1 + 2 * np.exp(-1.0))},
    ),
    "QRNN": (prnn_jax.qrnn, {"width": 3, "pooling": "ifo"}, {"pooling": "ifo"}),
    "RGLRU": (prnn_jax.rg_lru, {"c": 4.0}, {"c": 4.0}),
    "LRU": (prnn_jax.lru, {"state_size": 3, "r_min": 0.5}, {}),
    "IndRNN": (prnn_jax.indrnn, {"steps": TIME}, {}),
}
STATES = {"SRU": "c_0", "QRNN": "state_0"}
LIBRARIES = {"nnx": "flax", "linen": "flax", "equinox": "equinox"}

each_library = pytest.mark.parametrize("where", LIBRARIES)
each_layer = pytest.mark.parametrize("name", LAYERS)


@dataclass
class Made:
    """A layer of any library, called alike."""

    run: Callable
    params: dict[str, Any]
    zeros: Callable
    layer: Any


def sizes(name: str) -> tuple[int, int]:
    return (HIDDEN if name == "RGLRU" else INPUT), HIDDEN


def inputs(name: str) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_normal((BATCH, TIME, sizes(name)[0])).astype(np.float32)


def made(
    where: str,
    name: str,
    take: int | None = None,
    params: Any = None,
    hidden: int = HIDDEN,
    **options,
) -> Made:
    """`run(x, state, ...)` gives y and the state in the functions' form.

    With params, the layer is made of these.
    """
    library(LIBRARIES[where])
    given = {"params": params} if params is not None else {}
    options = {**({} if given else LAYERS[name][1]), **options}
    size, _ = sizes(name)
    take = size if take is None else take
    if where == "equinox":
        import prnn_jax.equinox

        kind = getattr(prnn_jax.equinox, name)
        if given:
            layer = kind.from_params(params, **options)
        else:
            layer = kind(take, hidden, key=jax.random.key(0), **options)
        return Made(layer, layer.params, layer.zeros, layer)

    def call(both, layer, x, state=None, lengths=None, reset_to=None, **others):
        if both and state is not None:
            state = tuple(jax.tree.map(lambda s, n=n: s[n], state) for n in range(2))
        others |= {"initial_carry": state, "seq_lengths": lengths}
        carry, y = layer(x, return_carry=True, reset_carry=reset_to, **others)
        if both:
            carry = jax.tree.map(lambda *ways: jnp.stack(ways), *carry)
        return y, carry

    if "reverse" in options:
        options["keep_order"] = True
    if where == "nnx":
        from flax import nnx

        import prnn_jax.nnx

        kind = getattr(prnn_jax.nnx, name)
        if given:
            layer = kind.from_params(params, **options)
        else:
            layer = kind(take, hidden, rngs=nnx.Rngs(0), **options)
        run = functools.partial(call, layer.bidirectional, layer)
        return Made(
            run, layer.params, lambda n: layer.initialize_carry((n, take)), layer
        )
    import prnn_jax.linen

    if given:
        layer, variables = getattr(prnn_jax.linen, name).from_params(params, **options)
    else:
        layer = getattr(prnn_jax.linen, name)(hidden, **options)
        zero = jnp.zeros((1, 2, take))
        variables = layer.init(jax.random.key(0), zero, deterministic=True)

    def run(*args, rngs=None, **others):
        apply = functools.partial(layer.apply, variables, rngs=rngs)
        return call(layer.bidirectional, apply, *args, **others)

    def zeros(n):
        return layer.initialize_carry(jax.random.key(0), (n, take))

    return Made(run, layer.to_params(variables), zeros, layer)


def by_function(name: str, params: dict, x, state=None, **options):
    function, _, arguments = LAYERS[name]
    state = {STATES.get(name, "h_0"): state}
    return function(x, **params, **state, **arguments, **options)


def states(name: str, lead=()) -> Any:
    def normal(*shape):
        random = np.random.default_rng(1)
        return random.standard_normal((*lead, BATCH, *shape)).astype(np.float32)

    if name == "QRNN":
        return normal(HIDDEN), normal(2, INPUT)
    return normal(6 if name == "LRU" else HIDDEN)


def assert_close(found, expected) -> None:
    """But for sums in another order."""
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    jax.tree.map(close, found, expected)
