"""Cells with layer norm, of weights that are packed before the call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normed_cells import CELLS, arrays_of
from support import assert_bitwise_equal, error_of, float64, run_python
from test_prepare_int8 import INPUT_ERROR

import prnn_jax
from prnn_jax._engine import ffi, input_projection
from prnn_jax._given.params import Prepared

NAMES = "lstm", "lstm_torchaudio", "gru", "gru_each_gate"
SIZES = {
    "one step": {"batch": 1, "time": 1, "hidden": 192},
    "few units": {"batch": 3, "time": 7, "hidden": 5},
    "many rows": {"batch": 19, "time": 4, "hidden": 65},
    "both ways": {"batch": 2, "time": 5, "hidden": 33, "directions": 2},
    "heads": {"batch": 4, "time": 6, "hidden": 17, "heads": 3},
}


def drawn(name: str, dtype="float32", **sizes):
    """x, params, and the cell as they are for it."""
    as_given = functools.partial(jnp.asarray, dtype=dtype)
    x, params = jax.tree.map(as_given, arrays_of(CELLS[name], **sizes))
    both = sizes.get("directions") == 2
    params = prnn_jax.BidirectionalParams(*params) if both else params
    params = prnn_jax.MultiHeadParams(*params) if "heads" in sizes else params
    return x, params, {"bidirectional": both}


def packed(name: str, params, both, batch=2, time=3, weights=None) -> Prepared:
    out = prnn_jax.prepare(
        CELLS[name], params, batch=batch, time=time, weights=weights, **both
    )
    assert out.packed is not None
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name, sizes, dtype, monkeypatch):
    monkeypatch.setattr(input_projection, "ROWS_PER_WEIGHT", 0)  # a_x is native
    x, params, both = drawn(name, dtype, **sizes)
    run = jax.jit(functools.partial(CELLS[name], **both))
    expected = run(x, params)
    for batch, time in ((sizes["batch"], sizes["time"]), (9, 100)):
        assert_bitwise_equal(run(x, packed(name, params, both, batch, time)), expected)


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_what_is_read(name, weights):
    """The engine takes others for them, under their description."""
    x, params, both = drawn(name, batch=2, time=3, hidden=20)
    own = packed(name, params, both, weights=weights)
    turned = own.params._replace(w_hh=own.params.w_hh[::-1])
    others = packed(name, turned, both, weights=weights)
    words = np.array(own.packed)
    words[32:] = np.asarray(others.packed)[32:]
    given = Prepared(own.params, jnp.asarray(words))
    run = jax.jit(CELLS[name])
    assert_bitwise_equal(run(x, given), run(x, others))
    assert_bitwise_equal(run(x, Prepared(turned, own.packed)), run(x, turned))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_8_bits_as_the_scan_of_rounded_weights(name, sizes, dtype):
    x, params, both = drawn(name, dtype, **sizes)
    given = packed(name, params, both, weights="int8")
    run = functools.partial(CELLS[name], **both)
    ours = jax.jit(run)(x, given)
    scan = jax.jit(functools.partial(run, implementation="scan"))
    of_scan = scan(x, given.params)
    with float64():
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, given.params))
        exact = jax.tree.map(np.asarray, scan(*wide))
    leaves = map(jax.tree.leaves, (ours, of_scan, exact))
    for value, other, wanted in zip(*leaves, strict=True):
        # Each step divides it by a row's σ; 2.2 of it is the most that is left over.
        allowed = 2 * error_of(other, wanted) + 3 * INPUT_ERROR
        assert error_of(value, wanted) <= allowed


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "portable"])
def test_each_instruction_set_has_its_own(isa):
    if not ffi.native.has_isa(isa):
        pytest.skip(f"this processor or build lacks {isa}")
    script = """
import test_layer_norm_prepared as tests
for name in tests.NAMES[:3]:
    sizes = tests.SIZES["many rows"]
    tests.test_8_bits_as_the_scan_of_rounded_weights(name, sizes, "float32")
    tests.test_they_are_what_is_read(name, None)
"""
    run_python(script, timeout_s=300, PRNN_CPU_ISA=isa)


def test_a_cell_of_ones_own_is_as_it_was():
    def step(a_x, product, state):
        return (jnp.tanh(a_x[0] + product(state[0])[0]),)

    cell = prnn_jax.define_cell("own", step, gates="a")
    params = cell.init(jax.random.key(0), 4, 8)
    given = prnn_jax.prepare(cell, params, batch=1, time=1)
    assert given.packed is None
    x = jnp.ones((1, 3, 4))
    assert_bitwise_equal(cell(x, given), cell(x, params))
