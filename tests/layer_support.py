"""What the tests of all libraries' layers share."""

import jax
import jax.numpy as jnp
import numpy as np

IN, HIDDEN, TIME, BATCH = 7, 11, 9, 3


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
