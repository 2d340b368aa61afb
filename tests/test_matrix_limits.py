"""mlstm, linear_attention, delta_rule: what numbers hold, shapes, models of pages."""

import numpy as np
import pytest
from test_matrix_memory import CALLS, arrays_of, ours


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
