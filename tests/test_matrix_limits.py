"""mlstm, linear_attention, delta_rule: what numbers hold, shapes, models of pages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import error_of, float64, quick_jit
from test_matrix_memory import BATCH, CALLS, TIME, arrays_of, by_loop, ours

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


def test_a_factor_of_each_head_is_of_all_steps():
    """As state_spaces.md has RetNet."""
    arrays, decay = arrays_of("linear_attention"), np.array([0.9, 0.8, 0.5])
    log_f = jnp.broadcast_to(jnp.log(decay)[:, None], (3, TIME))
    arrays["log_f"] = np.broadcast_to(np.log(decay)[:, None], (*BATCH, TIME))
    want = by_loop("linear_attention", arrays)["h"]
    h, _ = prnn_jax.linear_attention(**arrays | {"log_f": log_f}, chunk_size=4)
    assert error_of(h, want) <= 8 * np.finfo(np.float32).eps * abs(want).max()


def test_some_products_a_step_are_as_many_steps():
    """As state_spaces.md has DeltaProduct: S' = (f S) (1 - ...) (1 - ...) + ..."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((5, 2, 3)) for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, log_f = rng.uniform(0, 2, (5, 2)), -rng.uniform(0, 1, (5, 2))
    log_f[:, 1] = 0
    s, want = np.zeros((3, 3)), []
    for t in range(5):
        s = np.exp(log_f[t, 0]) * s
        for n in range(2):
            s = s - beta[t, n] * np.outer(k[t, n], k[t, n] @ s)
            s = s + beta[t, n] * np.outer(k[t, n], v[t, n])
        want.append(q[t, 1] @ s)
    given = (x.reshape(10, *x.shape[2:]) for x in (q, k, v, beta, log_f))
    with float64():
        h, _ = prnn_jax.delta_rule(*given, chunk_size=4)
    np.testing.assert_allclose(h[1::2], want, rtol=1e-12, atol=1e-13)


def test_a_message_has_the_axes_as_they_were_given():
    given = (np.zeros((time, 2, 1), np.float32) for time in (4, 4, 3))
    words = r"same \[time, \*batch\], .* v \[3, 2\]"
    with pytest.raises(ValueError, match=words):
        prnn_jax.linear_attention(*given, time_major=True)


def test_h_of_16_bits_is_rounded_once():
    """Not q divided by √d_k, too, which is no power of 2."""
    rng = np.random.default_rng(3)
    q, k, v = (
        jnp.asarray(rng.standard_normal((50, 1, 3)), jnp.bfloat16) for _ in range(3)
    )
    gates = jnp.full((50, 1), -3, jnp.float32)  # so small that 1 divides
    h, _ = prnn_jax.mlstm(q, k, v, gates, gates)
    wide = [np.asarray(x, np.float64)[:, 0] for x in (q, k, v)]
    of_q = (wide[0] * wide[1]).sum(-1, keepdims=True) * np.exp(-3) / 3**0.5
    assert (abs(of_q) < 1).all()
    half = 0.51 * float(jnp.finfo(jnp.bfloat16).eps)
    np.testing.assert_allclose(np.asarray(h, np.float64)[:, 0], of_q * wide[2], half)
