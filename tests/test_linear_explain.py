"""What `explain` says of cells without a product in a step is what runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_cells import CELLS, arrays_of, ours
from support import float64

import prnn_jax
from prnn_jax._engine import ffi

SIZES = {"batch": 3, "time": 7, "hidden_size": 5}


def explained(name: str, **options) -> prnn_jax.Plan:
    """The plan of one of our cases."""
    function, _, kind = name.partition("-")
    if kind == "peepholes":
        options["peepholes"] = True
    return prnn_jax.explain(function, **SIZES, **options)


def engine_in(program: str) -> str:
    """Which engine a program has, by what is in it."""
    if "prnn_elementwise" in program:
        return "native"
    return "scan" if "stablehlo.while" in program else "associative_scan"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", CELLS)
def test_it_agrees_with_what_is_compiled(name, dtype):
    with float64():
        arrays = jax.tree.map(lambda v: jnp.asarray(v, dtype), arrays_of(name))
        program = jax.jit(functools.partial(ours, name)).lower(arrays).as_text()
    plan = explained(name, dtype=dtype, platform="cpu")
    assert plan.engine == engine_in(program)
    assert (plan.engine == "native") == (dtype != "float64" and name != "sru-peepholes")


@pytest.mark.parametrize("name", CELLS)
def test_it_agrees_with_what_is_compiled_for_a_gpu(name):
    arrays = jax.tree.map(np.asarray, arrays_of(name))
    run = jax.jit(functools.partial(ours, name))
    of = {"platforms": ("cuda",), "disabled_checks": prnn_jax.export_checks()}
    program = jax.export.export(run, **of)(arrays).mlir_module()
    plan = explained(name, device="NVIDIA H200")
    assert (plan.engine == "native") == (name != "sru-peepholes")
    if "cuda" in ffi.PLATFORMS:
        assert plan.engine == engine_in(program)


def test_the_reasons():
    text = str(explained("min_gru", platform="cpu"))
    assert "engine: native on cpu" in text
    assert "there is a native engine for cpu and float32" in text
    assert "one pass over memory" in text
    text = str(explained("rg_lru", platform="tpu"))
    assert "engine: associative_scan on tpu" in text
    assert "there is no native engine for the platform 'tpu'" in text
    text = str(explained("rg_lru", device="NVIDIA H200"))
    assert "engine: native on gpu" in text
    assert "steps: one after the other" in text
    assert "us in all" in text
    long = prnn_jax.explain(
        "rg_lru", batch=1, time=50000, hidden_size=64, device="NVIDIA H200"
    )
    assert long.chunks is not None
    assert long.chunks > 16
    assert f"in {long.chunks} chunks side by side" in str(long)
    assert "the forget gate sees the state" in str(explained("sru-peepholes"))


@pytest.mark.parametrize("name", ["min_gru", "indrnn", "linear_recurrence"])
def test_what_is_installed_here_is_no_reason_for_another_gpus_plan(name, monkeypatch):
    monkeypatch.setattr(ffi, "PLATFORMS", ("cpu",))
    plan = prnn_jax.explain(name, **SIZES, device="NVIDIA H200")
    assert plan.engine == "native"
    first, *_, last = plan.reasons
    assert first == "there is a native engine for gpu and float32"
    here = "scan" if name == "indrnn" else "associative_scan"
    assert last.startswith(
        f"this build has no CUDA engine: on a GPU its calls take jax.lax.{here}; pip"
    )
    assert "installation" not in str(plan)


def test_peepholes_of_an_lstm():
    plan = prnn_jax.explain("lstm", **SIZES, peepholes=True, platform="cpu")
    assert plan.engine == "native"
    plan = prnn_jax.explain("lstm", **SIZES, peepholes=True, proj_size=3)
    assert plan.engine == "native"


def test_bad_input():
    with pytest.raises(ValueError, match="peepholes must be False, which only lstm"):
        prnn_jax.explain("min_gru", **SIZES, peepholes=True)
    with pytest.raises(ValueError, match="proj_size must be None"):
        prnn_jax.explain("min_gru", **SIZES, proj_size=3)
    with pytest.raises(ValueError, match=r"cell must be one of .*'rnn'.*'min_gru'"):
        prnn_jax.explain("mingru", **SIZES)
