"""mlstm, linear_attention, delta_rule: what numbers hold, shapes, models of pages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import float64, quick_jit
from test_matrix_memory import CALLS, arrays_of, ours

import prnn_jax


@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize(("kind", "gate"), [("mlstm", "i"), ("delta_rule", "beta")])
def test_one_gate_alone_may_have_heads(kind, gate, chunk_size):
    given = arrays_of(kind)
    del given["state_0"]
    alike = {
        name: x if name == gate else np.broadcast_to(x[0, 0], x.shape)
        for name, x in given.items()
    }
    shared = {name: x if name == gate else x[0, 0] for name, x in given.items()}
    found = ours(kind, shared, chunk_size=chunk_size)
    for name, want in ours(kind, alike, chunk_size=chunk_size).items():
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize("kind", ["linear_attention", "delta_rule"])
def test_float16_holds_its_own_numbers_alone(kind, chunk_size):
    """S and what is made of k and v may be beyond the largest of float16, 65504."""
    steps = np.ones((9, 1), np.float16)
    key = steps * (400 if kind == "linear_attention" else 1)
    gates = {"beta": steps[:, 0]} if kind == "delta_rule" else {}
    given = {"q": steps / 1024, "k": key, "v": steps * 400, **gates}
    s = np.full((1, 1), 400 * 400, np.float32)
    h, _ = CALLS[kind](**given, state_0=s, chunk_size=chunk_size)
    assert h.dtype == np.float16
    want = 160000 * np.arange(2, 11) if kind == "linear_attention" else np.full(9, 400)
    np.testing.assert_allclose(h[:, 0], want / 1024, rtol=2**-10)


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_gradient_where_epsilon_counts(chunk_size):
    """It is not divided by e^m as all else, so that h depends on m, as S does."""
    rng = np.random.default_rng(2)
    with float64():
        given = jax.tree.map(lambda x: jnp.asarray(x, float), arrays_of("mlstm"))
        way = jax.tree.map(lambda x: rng.standard_normal(x.shape), given)

        @quick_jit
        def total(step):
            arrays = jax.tree.map(lambda x, d: x + step * d, given, way)
            h, state = prnn_jax.mlstm(**arrays, epsilon=0.1, chunk_size=chunk_size)
            return sum(x.sum() for x in (h[..., 0], *state))

        _, found = jax.jvp(total, (0.0,), (1.0,))
        want = (total(1e-6) - total(-1e-6)) / 2e-6
    np.testing.assert_allclose(found, want, rtol=1e-6)
