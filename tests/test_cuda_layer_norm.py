"""Layer norm inside of steps in the CUDA engine: on a GPU, or emulated."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_layer_norm_native as native
from normed_cells import CELLS, arrays_of
from on_cuda import HAS_GPU

import prnn_jax

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not HAS_GPU and shutil.which("c++") is None, reason="needs c++"),
]
DRAWS = 3

#: Each cell with some options, each of the options with some cells.
CASES = [
    ("lstm", "resets and zoneout"),
    ("lstm", "both ways"),
    ("lstm_torchaudio", "lengths in reverse"),
    ("lstm_basic", "dropout"),
    ("lstm_fastrnns", "mask"),
    ("lstm_each_gate", "a mask of one unit"),
    ("gru", "time-major"),
    ("gru", "zoneout by unit"),
    ("gru_each_gate", "plain"),
]


def ran(cuda, draws: int = DRAWS) -> bool:
    """Whether all of a comparison ran there, and nothing by a scan."""
    return HAS_GPU or cuda.ran == draws * ["forward:grid", "backward:grid"]


@pytest.fixture(autouse=True)
def exact_products():
    """Else those of float32 are TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize(("name", "options"), CASES)
def test_follows_the_scan(cuda, name, options):
    given = native.OPTIONS[options]
    directions = 1 + given.get("bidirectional", False)
    native.assert_follows_scan(CELLS[name], given, DRAWS, directions=directions)
    assert ran(cuda)


@pytest.mark.parametrize("sizes", native.SIZES.values(), ids=native.SIZES)
@pytest.mark.parametrize("name", ["lstm", "gru_each_gate"])
def test_of_all_sizes(cuda, name, sizes):
    """Of rows in one block and in many."""
    few = sizes.get("hidden", 33) < 16  # whose errors differ more
    draws = 4 * DRAWS if few else DRAWS
    native.assert_follows_scan(CELLS[name], {}, draws, **sizes)
    assert ran(cuda, draws)


@pytest.mark.parametrize("name", ["lstm_each_gate", "gru_each_gate"])
def test_where_terms_cancel(cuda, name):
    native.test_native_where_terms_cancel(name)
    assert ran(cuda, 64)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_what_is_made_again_follows_the_scan(cuda, name):
    """In three parts, of which all but the first begin with states that were kept."""
    lean = {"reserve": "lean", "lengths": np.array([37, 0, 23]), "zoneout": 0.3}
    native.assert_follows_scan(CELLS[name], lean, 2 * DRAWS, time=37)
    parts = 3 * ["backward:grid"]
    assert HAS_GPU or cuda.ran == 2 * DRAWS * ["forward:grid", *parts]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_16_bits_are_stored(cuda, name, dtype):
    native.test_16_bits_are_stored(name, dtype)
    assert ran(cuda, 1)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_nothing_comes_of_nothing(cuda, name):
    native.test_nothing_comes_of_nothing(name)


def test_tf32_is_as_near_as_its_products(cuda):
    """By the significand, which is that of float16."""
    x, params = jax.tree.map(np.float32, arrays_of(CELLS["lstm_torchaudio"]))
    with jax.default_matmul_precision("default"):
        y, _ = jax.jit(CELLS["lstm_torchaudio"])(x, params)
    exact, _ = CELLS["lstm_torchaudio"](x, params, implementation="scan")
    error = jnp.abs(y - exact).max() / jnp.abs(exact).max()
    assert 1e-6 < error < 8 * jnp.finfo(jnp.float16).eps


def test_an_ensemble_of_layers(cuda):
    """One call of groups, each with weights of its own."""
    pair = [jax.tree.map(np.float32, arrays_of(CELLS["gru"], seed=n)) for n in (1, 2)]
    x, params = jax.tree.map(lambda *a: np.stack(a), *pair)
    y, _ = jax.jit(jax.vmap(CELLS["gru"]))(x, params)
    for n, given in enumerate(pair):
        np.testing.assert_allclose(y[n], CELLS["gru"](*given)[0], rtol=0, atol=1e-5)
    assert HAS_GPU or "forward:grid" in cuda.ran


def test_explain_tells_what_keeps_a_large_layer_from_it():
    sizes = {"batch": 8, "time": 100, "platform": "gpu", "device": "NVIDIA H200"}
    cell = prnn_jax.normed("lstm")
    plan = prnn_jax.explain(cell, hidden_size=512, dtype="bfloat16", **sizes)
    assert plan.engine == "native", plan
    assert "no GPU has run such a call yet" in str(plan)
    plain = prnn_jax.explain("lstm", hidden_size=512, dtype="bfloat16", **sizes)
    assert 1.5 * plain.step_us < plan.step_us < 6 * plain.step_us
    plan = prnn_jax.explain(cell, hidden_size=4096, dtype="bfloat16", **sizes)
    assert plan.engine == "scan"
    assert "with layer norm is run where the chip holds all weights" in str(plan)
