"""A layer with LoRA: its weights stay, what is trained is added to them."""

import jax
import jax.numpy as jnp
import optax

import prnn_jax

params = prnn_jax.init("lstm", jax.random.key(0), 8, 16)
x = jax.random.normal(jax.random.key(1), (4, 10, 8))
rank = 2


def begin(key, w):
    """a, and b that is zero: at first nothing is added."""
    a = jax.random.normal(key, (w.shape[0], rank)) / rank
    return a, jnp.zeros((rank, w.shape[1]))


def adapted(params, update):
    """The parameters with what is trained."""
    added = {name: getattr(params, name) + a @ b for name, (a, b) in update.items()}
    return params._replace(**added)


@jax.jit
def step(update, state):
    """Of what is trained alone there are gradients."""

    def loss(update):
        return jnp.mean(prnn_jax.lstm(x, adapted(params, update))[0] ** 2)

    value, gradients = jax.value_and_grad(loss)(update)
    changes, state = optimizer.update(gradients, state)
    return optax.apply_updates(update, changes), state, value


keys = jax.random.split(jax.random.key(2))
update = {"w_ih": begin(keys[0], params.w_ih), "w_hh": begin(keys[1], params.w_hh)}
optimizer = optax.adam(1e-2)
state, values = optimizer.init(update), []
for _ in range(20):
    update, state, value = step(update, state)
    values.append(value)
assert values[-1] < values[0]
print(f"the loss went from {values[0]:.3f} to {values[-1]:.3f}")
