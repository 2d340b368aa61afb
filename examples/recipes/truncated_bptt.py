"""Truncated back-propagation through time: the state goes on, gradients do not."""

import jax
import jax.numpy as jnp
import optax

import prnn_jax

SPAN = 25
x = jax.random.normal(jax.random.key(0), (4, 200, 8))
target = jnp.cumsum(x[..., 0], 1) * 0.1

params = {
    "rnn": prnn_jax.init("gru", jax.random.key(1), 8, 32, chrono=200),
    "out": jax.random.normal(jax.random.key(2), (32,)) * 0.1,
}
optimizer = optax.adam(3e-3)


def loss_of(params, state, x, target):
    """Of one span, and the state after it."""
    y, state = prnn_jax.gru(x, params["rnn"], state)
    return jnp.mean((y @ params["out"] - target) ** 2), state


@jax.jit
def step(params, moments, state, x, target):
    """One span's update."""
    (loss, state), grads = jax.value_and_grad(loss_of, has_aux=True)(
        params, state, x, target
    )
    updates, moments = optimizer.update(grads, moments)
    # The state is a number to the next span: nothing of this one's gradient.
    return optax.apply_updates(params, updates), moments, state, loss


moments, losses = optimizer.init(params), []
for _ in range(20):
    state, total = jnp.zeros((4, 32)), 0.0
    for t in range(0, 200, SPAN):
        span = x[:, t : t + SPAN], target[:, t : t + SPAN]
        params, moments, state, loss = step(params, moments, state, *span)
        total += float(loss)
    losses.append(total)
assert losses[-1] < losses[0] / 3
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
