"""Training with weights in bfloat16 alone: small updates are not lost in rounding."""

import functools

import jax
import jax.numpy as jnp
import optax

import prnn_jax

x = jax.random.normal(jax.random.key(1), (16, 20, 4))
target = jnp.cumsum(x[..., :1], axis=1) / 4
optimizer = optax.adam(3e-4)


def loss(weights):
    """How far the layer is from a fourth of the sum so far."""
    params, readout = weights
    y, _ = prnn_jax.lstm(x.astype(readout.dtype), params)
    return jnp.mean(((y @ readout).astype(jnp.float32) - target) ** 2)


def train(dtype, apply_updates):
    """The loss after 500 steps; gradients and Adam's numbers are float32."""
    params = prnn_jax.init("lstm", jax.random.key(2), 4, 32)
    weights = params, jax.random.normal(jax.random.key(3), (32, 1)) / 6
    weights = jax.tree.map(lambda w: w.astype(dtype), weights)
    wide = functools.partial(jax.tree.map, lambda a: a.astype(jnp.float32))

    def step(n, carry):
        weights, state = carry
        updates, state = optimizer.update(wide(jax.grad(loss)(weights)), state)
        key = jax.random.fold_in(jax.random.key(4), n)
        return apply_updates(key, weights, updates), state

    carry = weights, optimizer.init(wide(weights))
    weights, _ = jax.lax.fori_loop(0, 500, step, carry)
    return float(loss(weights))


def to_nearest(_, weights, updates):
    """As optax does it."""
    return optax.apply_updates(weights, updates)


exact = train(jnp.float32, to_nearest)
stalled = train(jnp.bfloat16, to_nearest)
ours = train(jnp.bfloat16, prnn_jax.apply_updates)
print(f"loss: float32 {exact:.3f}, bfloat16 {stalled:.3f}, so rounded {ours:.3f}")
assert ours < 1.1 * exact < stalled
