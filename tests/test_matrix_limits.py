"""mlstm, linear_attention, delta_rule: what numbers hold, shapes, models of pages."""

import numpy as np
import pytest
from test_matrix_memory import arrays_of, ours


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
