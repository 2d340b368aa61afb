"""The QRNN against PyTorch's convolution and derivatives, by the paper's equations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_as_accurate, float64

import prnn_jax

BATCH, TIME, INPUT, HIDDEN = 3, 9, 4, 5


def arrays_of(pooling: str, width: int) -> dict[str, Any]:
    random = np.random.default_rng(width)
    columns = (1 + len(pooling)) * HIDDEN

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    return {
        "x": normal(BATCH, TIME, INPUT),
        "w_ih": normal(width, INPUT, columns),
        "b_ih": normal(columns),
        "state_0": (normal(BATCH, HIDDEN), normal(BATCH, width - 1, INPUT)),
    }


def ours(arrays: dict, *, pooling: str, reverse: bool) -> tuple:
    return prnn_jax.qrnn(**arrays, pooling=pooling, reverse=reverse)


def weights(tree: Any, xp: Any) -> Any:
    """What gradients are asked of: a number for each output."""
    return jax.tree.map(
        lambda y: xp.cos(xp.arange(np.prod(y.shape))).reshape(y.shape), tree
    )


@functools.partial(jax.jit, static_argnames=("pooling", "reverse"))
def with_gradients(arrays: dict, *, pooling: str, reverse: bool) -> tuple:
    out, pull = jax.vjp(
        functools.partial(ours, pooling=pooling, reverse=reverse), arrays
    )
    cotangents = jax.tree.map(lambda w, y: w.astype(y.dtype), weights(out, jnp), out)
    return out, pull(cotangents)[0]


def by_pytorch(arrays: dict, dtype: str, *, pooling: str, reverse: bool) -> tuple:
    """A masked convolution and a loop over the pooling (Bradbury et al. 2017, § 2)."""
    torch = library("torch")
    leaves, structure = jax.tree.flatten(arrays)
    of_torch = [torch.tensor(leaf, dtype=getattr(torch, dtype)) for leaf in leaves]
    given = jax.tree.unflatten(structure, [t.requires_grad_() for t in of_torch])
    c, before = given["state_0"]
    x = given["x"].flip(1) if reverse else given["x"]
    seen = torch.cat([before, x], 1).mT  # [batch, channels, time]
    kernel = given["w_ih"].permute(2, 1, 0)  # [out, in, width]
    a = torch.nn.functional.conv1d(seen, kernel, given["b_ih"]).mT
    z, f, *others = a.chunk(1 + len(pooling), -1)
    z, f = torch.tanh(z), torch.sigmoid(f)
    enters = torch.sigmoid(others[1]) if pooling == "ifo" else 1 - f
    rows = []
    for t in range(TIME):
        c = f[:, t] * c + enters[:, t] * z[:, t]
        rows.append(c if pooling == "f" else torch.sigmoid(others[0][:, t]) * c)
    y = torch.stack(rows, 1)
    width = kernel.shape[-1]
    last = seen.mT[:, seen.shape[-1] - (width - 1) :]
    out = (y.flip(1) if reverse else y), (c, last)
    flat = jax.tree.leaves(out)
    loss = sum(
        (torch.tensor(w, dtype=y.dtype) * y).sum()
        for w, y in zip(jax.tree.leaves(weights(out, np)), flat, strict=True)
    )
    gradients = torch.autograd.grad(loss, of_torch)
    as_numpy = functools.partial(jax.tree.map, lambda t: t.detach().numpy())
    return as_numpy(out), jax.tree.unflatten(structure, as_numpy(list(gradients)))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("pooling", ["f", "fo", "ifo"])
def test_is_a_convolution_of_pytorch_and_its_pooling(pooling, width, reverse):
    arrays = arrays_of(pooling, width)
    how = {"pooling": pooling, "reverse": reverse}
    exact = by_pytorch(arrays, "float64", **how)
    with float64():
        wide = jax.tree.map(lambda a: a.astype(np.float64), arrays)
        near = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
        jax.tree.map(near, with_gradients(wide, **how), exact)
    theirs = by_pytorch(arrays, "float32", **how)
    assert_as_accurate(with_gradients(arrays, **how), theirs, exact)
