"""Programs that evaluate a jaxpr by its equations, and are transformed themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import prnn_jax

X = jnp.sin(jnp.arange(2 * 7 * 5.0)).reshape(2, 7, 5)
WAYS = {
    "itself": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(jnp.stack([x, -x])).sum()),
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 3)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cell", ["lstm", "min_gru"])
def test_equation_by_equation(cell, way):
    params = prnn_jax.init(cell, jax.random.key(0), 5, 4)

    def function(x):
        if cell == "lstm":
            return jnp.sum(prnn_jax.lstm(x, params)[0] ** 2)
        return jnp.sum(prnn_jax.min_gru(x, **params)[0] ** 2)

    def evaluated(of):
        run = jaxpr_as_fun(jax.make_jaxpr(of)(X))
        return lambda x: run(x)[0]

    wanted = WAYS[way](function)(X)
    np.testing.assert_array_equal(WAYS[way](evaluated(function))(X), wanted)
    if way == "grad":
        np.testing.assert_array_equal(evaluated(jax.grad(function))(X), wanted)
