"""What the tests of the layers for Flax share."""

import jax
import jax.numpy as jnp
import numpy as np
from support import quick_jit as jit

IN, HIDDEN, TIME, BATCH = 7, 11, 9, 3


# A linen cell's gates: names of the kernels of x, of those of h, and where biases are.
_GATES = {
    "LSTMCell": ("ifgo", "h", ""),
    "OptimizedLSTMCell": ("ifgo", "h", ""),
    "GRUCell": ("rzn", "i", "hn"),
    "SimpleCell": ("", "i", ""),
}


def close(ours, theirs):
    """Equal up to the rounding of float32, relative to the largest entry.

    Both sum the same products in another order. An entry is a sum of at most
    TIME * BATCH * 4 * HIDDEN of them, some thousand, whose rounding errors grow like
    the root of their number: 64 units in the last place.
    """
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        tolerance = 64 * np.finfo(np.float32).eps * np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def normal(seed, *shape):
    draw = np.random.default_rng(seed).standard_normal
    return jnp.asarray(draw(shape, np.float32))


def projection(out):
    """A number that depends on all of out, each entry weighted at random."""
    leaves = enumerate(jax.tree.leaves(out))
    return sum(jnp.vdot(normal(i, *leaf.shape), leaf) for i, leaf in leaves)


def from_linen_cell(name, params):
    """The parameters of a cell of Linen as those of our layer."""
    gates, biased, bias_n = _GATES[name]
    gates = gates or ("",)

    def beside(side, what):
        return jnp.concatenate([params[side + gate][what] for gate in gates], -1)

    ours = {
        "w_ih": beside("i", "kernel"),
        "w_hh": beside("h", "kernel"),
        "b_ih": beside(biased, "bias"),
    }
    return ours | ({"b_hn": params[bias_n]["bias"]} if bias_n else {})


def past_the_end(lengths, *, time_major=False, time=TIME):
    """Which steps [batch, time, 1] do not count."""
    past = np.arange(time) >= np.asarray(lengths)[:, None]
    return (past.T if time_major else past)[..., None]


def run(module, *arguments, **options):
    """What module(...) returns, compiled as one program."""
    return jit(lambda: module(*arguments, **options))()
