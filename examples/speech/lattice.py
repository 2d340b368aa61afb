"""The loss of a transducer (Graves 2012, arXiv:1211.3711), in little memory.

At a node (t, u) of the lattice, u labels are written and frame t is being heard. Blank
leads to (t + 1, u), the next label to (t, u + 1); a text's probability is the sum over
all paths from (0, 0) to (frames, labels). The network's logits at all nodes, [batch,
time, label + 1, vocabulary], are never there at once: of some frames at a time, they
become the two numbers a node needs, and are made again for the gradient.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from .text import BLANK

FRAMES = 8  # whose logits are there at once: as many as a cache holds

Joint = Callable[[jax.Array, jax.Array], jax.Array]


def loss(
    joint: Joint,
    heard: jax.Array,
    written: jax.Array,
    labels: jax.Array,
    frames: jax.Array,
    label_lengths: jax.Array,
    at_once: int = FRAMES,
) -> jax.Array:
    """-log of the probability of each row's labels, [batch].

    Infinite, with a gradient of 0, for labels without a frame; 0 for neither.

    Args:
      joint: logits [..., vocabulary] of heard and written [..., feature].
      heard: [batch, time, feature], of which `frames` [batch] count.
      written: [batch, label + 1, feature], after 0, 1, ... labels.
      labels: [batch, label], of which `label_lengths` [batch] count.
      at_once: of how many frames the logits are made at a time.
    """
    blank, label = _log_probabilities(joint, heard, written, labels, at_once)
    return -log_likelihood(blank, label, frames, label_lengths)


def _log_probabilities(
    joint: Joint,
    heard: jax.Array,
    written: jax.Array,
    labels: jax.Array,
    at_once: int,
) -> tuple[jax.Array, ...]:
    """Of blank and of the next label at each node, [batch, time, label + 1] each."""
    batch, time, size = heard.shape
    # Nothing follows the last: what stands there leads out of the lattice.
    following = jnp.pad(labels, ((0, 0), (0, 1)))[:, None, :, None]

    @jax.checkpoint
    def of_some(heard):  # [batch, at_once, feature]
        logits = joint(heard[:, :, None], written[:, None])
        total = jax.nn.logsumexp(logits, -1)
        label = jnp.take_along_axis(logits, following, -1)[..., 0]
        return logits[..., BLANK] - total, label - total

    pieces = jnp.pad(heard, ((0, 0), (0, -time % at_once), (0, 0)))
    pieces = pieces.reshape(batch, -1, at_once, size).swapaxes(0, 1)
    return tuple(
        x.swapaxes(0, 1).reshape(batch, -1, written.shape[1])[:, :time]
        for x in lax.map(of_some, pieces)
    )


@jax.custom_vjp
def log_likelihood(
    blank: jax.Array, label: jax.Array, frames: jax.Array, label_lengths: jax.Array
) -> jax.Array:
    r"""log of the sum over all paths of the products of their probabilities, [batch].

    .. math::
      α_{t,u} = \log(e^{α_{t-1,u} + blank_{t-1,u}} + e^{α_{t,u-1} + label_{t,u-1}})

    All nodes of an anti-diagonal t + u at once: time + label steps.

    Args:
      blank: [batch, time, label + 1], of which `frames` [batch] count.
      label: the same; what stands for the last label's is not used.
    """
    return _forward(blank, label, frames, label_lengths)[0]


def _forward(blank, label, frames, label_lengths):
    counts = (jnp.arange(blank.shape[1]) < frames[:, None])[..., None]
    blank, label = (_diagonals(jnp.where(counts, x, -jnp.inf)) for x in (blank, label))

    def step(alpha, moves):
        blank, label = moves
        before, below = alpha + blank, _up(alpha + label)
        # Of the paths to a node, the share that comes by a label.
        share = jnp.where(below == -jnp.inf, 0.0, jax.nn.sigmoid(below - before))
        return jnp.logaddexp(before, below), (alpha, share)

    begin = jnp.full_like(blank[0], -jnp.inf).at[:, 0].set(0.0)
    _, (alpha, shares) = lax.scan(step, begin, (blank, label))
    rows = jnp.arange(len(frames))
    likelihood = alpha[frames + label_lengths, rows, label_lengths]
    return likelihood, (shares, frames, label_lengths)


def _backward(kept, d_likelihood):
    """A move's gradient is the share of all paths that take it.

    Shares of shares, from the end on: they add up to 1. Exponentials of sums along
    whole paths do not, by as much as these have been rounded.
    """
    shares, frames, label_lengths = kept
    column = jnp.arange(shares.shape[-1])

    def step(after, inputs):  # after: of the nodes of the diagonal that a move leads to
        share, n = inputs
        ends = (n == frames + label_lengths)[:, None] & (
            column == label_lengths[:, None]
        )
        label = _down(after * share)
        blank = after * (1 - share)
        return jnp.where(ends, d_likelihood[:, None], blank + label), (blank, label)

    inputs = shares, jnp.arange(len(shares))
    _, (blank, label) = lax.scan(step, jnp.zeros_like(shares[0]), inputs, reverse=True)
    return _rows(blank), _rows(label), None, None


log_likelihood.defvjp(_forward, _backward)


def _up(x: jax.Array) -> jax.Array:
    """[batch, u] of u - 1."""
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=-jnp.inf)


def _down(x: jax.Array) -> jax.Array:
    """[batch, u] of u + 1."""
    return jnp.pad(x[:, 1:], ((0, 0), (0, 1)))


def _diagonals(x: jax.Array) -> jax.Array:
    """[t + u, batch, u] of [batch, t, u], and of a t more; -inf where there is none."""
    batch, time, columns = x.shape
    # Rows of u, each as long as all diagonals and one more: without that one more, row
    # u begins u later.
    ends = (0, 0), (0, 0), (0, columns + 1)
    flat = jnp.pad(x.swapaxes(1, 2), ends, constant_values=-jnp.inf)
    flat = flat.reshape(batch, -1)[:, :-columns]
    return flat.reshape(batch, columns, time + columns).transpose(2, 0, 1)


def _rows(x: jax.Array) -> jax.Array:
    """The inverse of `_diagonals`."""
    diagonals, batch, columns = x.shape
    flat = jnp.pad(x.transpose(1, 2, 0).reshape(batch, -1), ((0, 0), (0, columns)))
    flat = flat.reshape(batch, columns, diagonals + 1)
    return flat[:, :, : diagonals - columns].swapaxes(1, 2)
