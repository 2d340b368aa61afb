"""An overflow in float16: at which layer and step training ceases to be finite."""

import functools
import math

import jax
import jax.numpy as jnp

import prnn_jax

x, target = jax.random.normal(jax.random.key(0), (2, 8, 60, 16), jnp.float16)
init = functools.partial(prnn_jax.init, "rnn", input_size=16, hidden_size=16)
layers = [init(jax.random.key(n), dtype=jnp.float16) for n in range(3)]
# One layer has become unstable: what goes through it grows with every step.
layers[1] = layers[1]._replace(w_hh=layers[1].w_hh * 1.13)
run = functools.partial(prnn_jax.stack, "rnn", x, activation="relu")


def loss_of(y, scale):
    """In float32, and scaled, so that float16 holds small gradients."""
    return scale * jnp.mean((y.astype(jnp.float32) - target) ** 2)


@jax.jit
def is_finite(layers, scale):
    """Whether all gradients of a training step are."""
    gradient = jax.grad(lambda layers: loss_of(run(layers)[0], scale))(layers)
    total = sum(jnp.sum(jnp.abs(g), dtype="float32") for g in jax.tree.leaves(gradient))
    return jnp.isfinite(total)


@jax.jit
def look(layers, scale):
    """How large all that such a step computes is."""
    dy = jax.grad(loss_of)(run(layers)[0], scale)
    return prnn_jax.statistics("rnn", x, layers, dy=dy, activation="relu")


assert not is_finite(layers, 2.0**15)
stats = look(layers, 2.0**15)  # prnn_jax.plot_statistics(stats) draws it
assert not any(v.nonfinite for layer in stats for v in layer.forward.values())
# So it is the backward pass, which goes from the last layer to the first.
wrong = [n for n, layer in enumerate(stats) if layer.backward["h"].nonfinite]
step = int(stats[wrong[-1]].backward["h"].first_nonfinite)
print(f"layer {wrong[-1]}, backward from step {step} on")
assert wrong == [0, 1]

# How much larger than with a scale of 1 may gradients be?
stats = look(layers, 1.0)
most = max(v.largest for s in stats for v in (s.backward | s.parameters).values())
scale = 2.0 ** math.floor(math.log2(65504 / most) - 1)
assert is_finite(layers, scale)
print(f"with a scale of {scale:.0f} all is finite")
