"""Without implicit promotion of dtypes or ranks: nothing in the package leans on it."""

from typing import get_args

import jax
import jax.numpy as jnp
import pytest
from cases import CELLS, CONTROLS, Case

import prnn_jax
from prnn_jax._engine.linear_plan import LinearCellName

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


@pytest.mark.parametrize("implementation", ["native", "scan"])
@pytest.mark.parametrize("case", [c for c in CASES if c.cell == "lstm"], ids=str)
def test_16_bits_beside_states_of_float32(case, implementation):
    def loss(arrays):
        y, state = case.run(arrays, implementation)
        return sum(jnp.sin(s).astype("float32").sum() for s in (y, *state))

    def is_state(name):
        return name.endswith("_0") or name.startswith("reset_")

    arrays = {
        name: a if is_state(name) else a.astype("bfloat16")
        for name, a in case.inputs().items()
    }

    def program():
        return jax.jit(jax.grad(loss)).lower(arrays).as_text()

    expected = program()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert program() == expected


LINEAR_NAMES = get_args(LinearCellName)
X, LENGTHS = jnp.linspace(0, 1, 3 * 5 * 4).reshape(3, 5, 4), jnp.array([5, 3, 1])
ELSEWHERE = {
    "lengths": {"lengths": LENGTHS},
    "resets": {"resets": jnp.arange(15).reshape(3, 5) % 4 == 3},
    "mask": {"mask": jnp.arange(15).reshape(3, 5) % 3 > 0},
}


def assert_strict(run, *args) -> None:
    """With its gradient, by the arguments' first."""

    def program():
        def both(x, *rest):
            of_sum = jax.grad(
                lambda x: sum(
                    leaf.sum()
                    for leaf in jax.tree.leaves(run(x, *rest))
                    if jnp.issubdtype(leaf.dtype, jnp.floating)
                )
            )
            return run(x, *rest), of_sum(x)

        return jax.jit(both).lower(*args).as_text()

    expected = program()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert program() == expected


@pytest.mark.parametrize("how", ELSEWHERE)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", LINEAR_NAMES)
def test_cells_without_a_product(cell, bidirectional, how):
    options = {**ELSEWHERE[how], "bidirectional": bidirectional}
    if bidirectional and how == "resets":
        options = {"bidirectional": True}
    params = prnn_jax.init(cell, jax.random.key(0), 4, 4, bidirectional=bidirectional)
    function = getattr(prnn_jax, cell)
    assert_strict(lambda x, params: function(x, **params, **options), X, params)


@pytest.mark.parametrize("cell", LINEAR_NAMES)
def test_cells_without_a_product_in_16_bits(cell):
    params = prnn_jax.init(cell, jax.random.key(0), 4, 4, dtype="bfloat16")
    function = getattr(prnn_jax, cell)
    assert_strict(
        lambda x, params: function(x, **params, lengths=LENGTHS),
        X.astype("bfloat16"),
        params,
    )


@pytest.mark.parametrize("how", ELSEWHERE)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "min_gru"])
def test_stacks(cell, bidirectional, how):
    options = {"bidirectional": bidirectional, "merge": "sum"}
    if not (bidirectional and how == "resets"):
        options |= ELSEWHERE[how]
    params = prnn_jax.init(cell, jax.random.key(0), 4, 4, bidirectional=bidirectional)

    def run(x, params):
        return prnn_jax.stack(cell, x, [params, params], **options)

    assert_strict(run, X, params)


@pytest.mark.parametrize("cell", ["lstm", "slstm", "gru", "rnn"])
def test_statistics(cell):
    params = prnn_jax.init(cell, jax.random.key(0), 4, 4)

    def run(x, params):
        return prnn_jax.statistics(cell, x, params, dy=x, lengths=LENGTHS)

    assert_strict(run, X, params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stochastic_rounding(dtype):
    """Of weights, by updates that are wider, as wide, and narrower."""
    params = X.astype(dtype), X.astype(dtype), X
    updates = X, X.astype(dtype), X.astype(dtype)

    def program():
        key = jax.random.key(0)
        return jax.jit(prnn_jax.apply_updates).lower(key, params, updates).as_text()

    expected = program()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert program() == expected
