"""Without implicit promotion of dtypes or ranks: nothing in the package leans on it."""

import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, CONTROLS, Case

CASES = [
    Case(
        cell,
        5,
        (3,),
        4,
        3,
        state=True,
        bidirectional=cell in ("lstm", "gru_reset_before"),
        controls=CONTROLS[: -1 if cell == "slstm" else None],
        lean=lean,
    )
    for cell in CELLS
    for lean in (False, True)
]


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_strict_program_is_the_same(case, implementation):
    """Promotion is decided while tracing: programs are compared, and none is run."""

    def loss(arrays):
        y, state = case.run(arrays, implementation)
        return y.sum() + sum(jnp.sin(s).sum() for s in state)

    def program():
        def run(arrays):
            return case.run(arrays, implementation), jax.grad(loss)(arrays)

        return jax.jit(run).lower(case.inputs()).as_text()

    expected = program()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert program() == expected
