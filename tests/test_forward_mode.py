"""Forward-mode differentiation: by the scan, or an error that says so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SMALL, Case

import prnn_jax

CASE = Case("lstm", 40, (2,), 6, 4, state=True)
WAYS = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "jvp of jit": lambda f, x: jax.jvp(jax.jit(f), (x,), (x,)),
    "jit of jvp": lambda f, x: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x),
    "hessian": lambda f, x: jax.hessian(f)(x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "vmap of jvp": lambda f, x: jax.vmap(lambda v: jax.jvp(f, (x,), (v,)))(x[None]),
}


#: Of the function that `jax.vjp` returns: what a solver of an adjoint equation, such as
#: diffrax' BacksolveAdjoint, may ask for.
OF_COTANGENTS = {
    "jvp": lambda back, dy: jax.jvp(back, (dy,), (dy,)),
    "jacfwd": lambda back, dy: jax.jacfwd(back)(dy),
    "jit of jacfwd": lambda back, dy: jax.jit(jax.jacfwd(back))(dy),
    "jit inside": lambda back, dy: jax.jvp(jax.jit(back), (dy,), (dy,)),
    # As jaxopt solves for an implicit derivative, by conjugate gradients.
    "linear_transpose": lambda back, dy: jax.linear_transpose(back, dy)(back(dy)),
}


def of(case: Case, name: str, implementation: str | None):
    """A scalar function of one of a case's arrays, and that array."""
    arrays = case.inputs()

    def function(value):
        y, state = case.run(arrays | {name: value}, implementation)
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(s * s) for s in state)

    return function, jnp.asarray(arrays[name])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["x", "w_hh", "c_0"])
def test_the_error_names_the_way(name, way):
    with pytest.raises(TypeError, match=r'implementation="scan" for it'):
        WAYS[way](*of(CASE, name, "native"))


def test_the_error_names_the_reserve_that_stands_in_the_way():
    lean = Case("lstm", 40, (2,), 6, 4, state=True, lean=True)
    for implementation, message in (
        ("scan", 'through reserve="lean"; pass reserve="fast" for it'),
        ("native", 'pass implementation="scan" and reserve="fast" for it'),
    ):
        with pytest.raises(TypeError, match=message):
            WAYS["jvp"](*of(lean, "x", implementation))


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_the_scan_has_tangents(case):
    function, w_hh = of(case, "w_hh", "scan")
    _, tangent = jax.jvp(function, (w_hh,), (w_hh,))
    gradient = jax.grad(of(case, "w_hh", "native")[0])(w_hh)
    # Two orders of summation of values of order 1.
    np.testing.assert_allclose(tangent, jnp.vdot(gradient, w_hh), rtol=1e-3, atol=1e-4)


def test_reverse_over_reverse_instead_of_hessian():
    function, h_0 = of(Case("gru", 5, (1,), 4, 3, state=True), "h_0", "native")
    scan, _ = of(Case("gru", 5, (1,), 4, 3, state=True), "h_0", "scan")
    ours = jax.jacrev(jax.jacrev(function))(h_0)
    np.testing.assert_allclose(ours, jax.hessian(scan)(h_0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("transformation", [jax.grad, jax.jacrev, jax.value_and_grad])
def test_nothing_of_it_is_in_a_program(transformation):
    function, x = of(CASE, "x", "native")
    text = jax.jit(transformation(function)).lower(x).as_text()
    plain = jax.jit(functools.partial(function)).lower(x).as_text()
    assert "prnn_tangent" not in text + plain
    assert "prnn_identity" not in text + plain


@pytest.mark.parametrize("way", ["jvp", "hessian", "linearize"])
def test_of_cells_without_a_product(way):
    params = prnn_jax.init("min_gru", jax.random.key(0), 5, 4)

    def function(x, **how):
        return jnp.sin(prnn_jax.min_gru(x, **params, **how)[0]).sum()

    x = jnp.ones((2, 3, 5))
    with pytest.raises(TypeError, match=r'pass implementation="scan" for it'):
        WAYS[way](function, x)
    WAYS[way](functools.partial(function, implementation="scan"), x)


@pytest.mark.parametrize("way", OF_COTANGENTS)
@pytest.mark.parametrize("cell", ["lstm", "min_gru"])
def test_the_error_of_cotangents(cell, way):
    params = prnn_jax.init(cell, jax.random.key(0), 5, 4)

    def back(**how):
        def function(x):
            if cell == "lstm":
                return prnn_jax.lstm(x, params, **how)[0]
            return prnn_jax.min_gru(x, **params, **how)[0]

        y, of_cotangent = jax.vjp(function, jnp.ones((2, 3, 5)))
        return of_cotangent, jnp.ones_like(y)

    with pytest.raises(TypeError, match=r'pass implementation="scan" for it'):
        OF_COTANGENTS[way](*back())
    OF_COTANGENTS[way](*back(implementation="scan"))
