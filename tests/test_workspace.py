"""Sizes of workspaces: C++ states them, for symbolic time and batch by linearity."""

from fractions import Fraction

import jax.numpy as jnp
import pytest
from cases import CELLS, Case

from prnn_jax._call.call import Call, Sizes
from prnn_jax._call.controls import NONE
from prnn_jax._engine import workspaces

SIZES = (1, 1, 1, 1), (7, 3, 2, 17), (300, 40, 1, 129), (2, 64, 3, 1041)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", CELLS)
def test_an_expression_has_the_value_of_the_formula(cell, dtype, backward):
    # Fractions stand for symbols: no integers, and they can be looked at.
    call = Call(Case(cell, 1, (1,), 1).table.engine)
    controls = (
        NONE,
        NONE._replace(mask=jnp.ones(1)),
        NONE._replace(lengths=jnp.ones(1)),
    )
    for time, batch, groups, hidden in SIZES:
        known = Sizes(time, batch, groups, hidden, hidden)
        symbolic = Sizes(Fraction(time), Fraction(batch), groups, hidden, hidden)
        for of in controls:
            for size in (workspaces.cpu_floats, workspaces.cuda_bytes):
                options = {"backward": backward}
                value = size(call, known, of, dtype, **options)
                assert value >= 0
                assert size(call, symbolic, of, dtype, **options) == value


def test_it_is_enough_for_the_packed_weights():
    call, hidden = Call("lstm"), 129
    floats = workspaces.cpu_floats(
        call, Sizes(5, 2, 2, hidden, hidden), NONE, "float32", backward=False
    )
    assert floats >= 2 * 4 * hidden * (hidden + 1)
    half = workspaces.cpu_floats(
        call, Sizes(5, 2, 2, hidden, hidden), NONE, "bfloat16", backward=False
    )
    assert half < 0.7 * floats
