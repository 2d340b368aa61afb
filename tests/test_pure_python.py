"""The package without its compiled module, as a pure-Python wheel installs it."""

from pathlib import Path

import pytest
from support import run_python

ROOT = Path(__file__).parents[1]

# Also without what Linux has and other systems lack.
WITHOUT_MODULE = """
import os, sys

class NoModule:
    def find_spec(self, name, path=None, target=None):
        if name in ("prnn_jax._prnn", "prnn_jax._prnn_cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoModule())
for name in ("sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)

import jax
import jax.numpy as jnp
import prnn_jax
"""


def test_everything_runs_by_scan_and_explain_says_why():
    script = """
for cell in ("lstm", "slstm", "gru", "rnn"):
    layer, call = prnn_jax.init(cell, jax.random.key(0), 3, 5), getattr(prnn_jax, cell)
    x = jax.random.normal(jax.random.key(1), (2, 7, 3))

    def loss(layer, implementation=None):
        y, _ = call(x, layer, lengths=jnp.array([7, 4]), implementation=implementation)
        return (y**2).sum()

    given = prnn_jax.prepare(cell, layer, batch=2, time=7)
    assert bool(jnp.allclose(loss(given), loss(layer)))
    found = jax.jit(jax.value_and_grad(loss))(layer)
    scan = jax.jit(jax.value_and_grad(lambda p: loss(p, "scan")))(layer)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), found, scan))

layers = [prnn_jax.init("lstm", jax.random.key(2), n, 4) for n in (3, 4)]
y, _ = prnn_jax.stack("lstm", x, layers)
assert y.shape == (2, 7, 4)
program = jax.export.export(
    jax.jit(lambda x: call(x, layer)[0]), disabled_checks=prnn_jax.export_checks()
)(x)
assert "custom_call" not in program.mlir_module()
for device in (None, "NVIDIA H200"):
    plan = prnn_jax.explain(
        "lstm", batch=4, time=100, hidden_size=256, device=device
    )
    print(plan.engine, "pure Python" in str(plan))
"""
    assert run_python(WITHOUT_MODULE + script).split("\n") == [
        "scan True",
        "scan True",
        "",
    ]


def test_layers_run_too():
    script = """
from flax import nnx
import prnn_jax.nnx
layer = prnn_jax.nnx.GRU(3, 5, bidirectional=True, rngs=nnx.Rngs(0))
grads = nnx.grad(lambda layer: (layer(jnp.ones((2, 7, 3))) ** 2).mean())(layer)
print(all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(grads)))
"""
    assert run_python(WITHOUT_MODULE + script).strip() == "True"


def test_asking_for_a_native_engine_is_an_error():
    script = """
params = prnn_jax.init("lstm", jax.random.key(0), 3, 5)
try:
    prnn_jax.lstm(jnp.ones((2, 7, 3)), params, implementation="native")
except ValueError as error:
    print(error)
"""
    message = run_python(WITHOUT_MODULE + script)
    assert 'lstm: implementation="native" is not available' in message
    assert "this installation is pure Python" in message
    assert f"the source folder {ROOT}: pip install -e . in it builds" in message


def test_a_source_folder_that_hides_an_installation_says_so(tmp_path):
    """Of Python that is started in a clone after `pip install .` there."""
    script = """
import sys, warnings
from pathlib import Path
site, root = map(Path, sys.argv[1:])
(site / "prnn_jax").mkdir()
info = site / "prnn_jax-0.1.0.dist-info"
info.mkdir()
(info / "METADATA").write_text("Name: prnn_jax\\nVersion: 0.1.0\\n")
(info / "RECORD").write_text("prnn_jax/__init__.py,,\\nprnn_jax/_prnn.abi3.so,,\\n")
sys.path[:0] = map(str, (root, site))

class NoModule:
    def find_spec(self, name, path=None, target=None):
        if name == "prnn_jax._prnn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoModule())
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    import prnn_jax
print(*(w.message for w in given if "prnn_jax" in str(w.message)))
"""
    said = run_python(script, str(tmp_path), str(ROOT))
    assert f"found the source folder {ROOT}, without a compiled module" in said
    assert f"before the installation {tmp_path / 'prnn_jax'}" in said


# ---- the CUDA engine's package -------------------------------------------------------


@pytest.mark.parametrize("version", ["9.9", None])
def test_a_cuda_package_of_another_version_is_refused(tmp_path, version):
    """A stand-in for `prnn_jax_cuda13`: None is this package's version."""
    script = """
import sys
from importlib import metadata
from pathlib import Path
folder, version = Path(sys.argv[1]), sys.argv[2]
version = metadata.version("prnn_jax") if version == "None" else version
(folder / "prnn_jax_cuda13").mkdir()
(folder / "prnn_jax_cuda13/__init__.py").touch()
# No _prnn_cuda inside, but a module that says what it was asked.
(folder / "prnn_jax_cuda13/_prnn_cuda.py").write_text(
    "ffi_api_version = lambda: (0, 1)\\n"
    "def cuda_targets():\\n    print('targets'); return {}\\n"
)
info = folder / f"prnn_jax_cuda13-{version}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Name: prnn_jax_cuda13\\nVersion: {version}\\n")

class NoModuleInside:
    def find_spec(self, name, path=None, target=None):
        if name == "prnn_jax._prnn_cuda":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoModuleInside())
sys.path.insert(0, str(folder))
try:
    import prnn_jax
    from prnn_jax._engine import ffi
    print(ffi.PLATFORMS)
except ImportError as error:
    print(error)
"""
    out = run_python(script, str(tmp_path), str(version))
    if version is None:
        assert out.split("\n")[-2] == "('cpu', 'cuda')"
        assert "targets" in out
    else:
        assert "prnn_jax_cuda13 must be of prnn_jax's version" in out
        assert "got 9.9: pip install" in out


def test_the_cuda_packages_source_folder_is_no_package(tmp_path):
    """It has no version, for nothing has installed it."""
    (tmp_path / "prnn_jax_cuda13").mkdir()
    (tmp_path / "prnn_jax_cuda13/__init__.py").touch()
    run_python(
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['prnn_jax._prnn_cuda'"
        "] = None; import prnn_jax",
        str(tmp_path),
    )
