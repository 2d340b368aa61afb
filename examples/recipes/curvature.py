"""Products with the Hessian and with a Gauss-Newton matrix, by reverse mode alone."""

import jax
import jax.numpy as jnp
import optax

import prnn_jax

params = prnn_jax.init("gru", jax.random.key(0), 4, 8)
x = jax.random.normal(jax.random.key(1), (3, 10, 4))
v = jax.tree.map(lambda p: jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)


def outputs(params, implementation=None):
    """Of the last step."""
    return prnn_jax.gru(x, params, implementation=implementation)[0][:, -1]


def loss(params, implementation=None):
    """The mean of squares."""
    return jnp.mean(outputs(params, implementation) ** 2)


@jax.jit
def hessian_product(params, v):
    """The gradient of what the gradient and v make."""
    return jax.grad(lambda p: optax.tree.vdot(jax.grad(loss)(p), v))(params)


@jax.jit
def gauss_newton_product(params, v):
    """J v is the transpose of u ↦ Jᵀ u, which `vjp` gives."""
    y, transposed = jax.vjp(outputs, params)
    _, product = jax.vjp(lambda u: transposed(u)[0], jnp.zeros_like(y))
    (jv,) = product(v)
    return transposed(2 / y.size * jv)[0]  # the Hessian of the mean square is 2 / size


def by_scan(params, v):
    """The same in forward mode."""
    _, of_hessian = jax.jvp(jax.grad(lambda p: loss(p, "scan")), (params,), (v,))
    y, jv = jax.jvp(lambda p: outputs(p, "scan"), (params,), (v,))
    return of_hessian, jax.vjp(outputs, params)[1](2 / y.size * jv)[0]


ours = hessian_product(params, v), gauss_newton_product(params, v)
for product, wanted in zip(ours, jax.jit(by_scan)(params, v), strict=True):
    difference = optax.tree.norm(jax.tree.map(jnp.subtract, product, wanted))
    assert difference < 1e-5 * optax.tree.norm(wanted)
print("both as in forward mode, whose products need a scan")
