"""What is installed: its version, its public names, what it imports and links to."""

import ast
import re
import shutil
import subprocess
import tomllib
import types
from importlib import metadata
from pathlib import Path

import pytest
from support import run_python

import prnn_jax
from prnn_jax._engine import ffi, modules

ROOT = Path(__file__).parent.parent
MODULE = ffi.native.__file__


def test_the_version_is_the_repository_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata.version("prnn_jax") == project["version"]
    assert prnn_jax.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_an_isolated_build_takes_the_oldest_jaxlib():
    """Of the CUDA engine's package, too: XLA refuses modules of newer headers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (jax_,) = (d for d in project["project"]["dependencies"] if d.startswith("jax>="))
    oldest = jax_.replace("jax>=", "jaxlib==")
    for folder in ("", "packaging/cuda13"):
        text = (ROOT / folder / "pyproject.toml").read_text()
        assert oldest in tomllib.loads(text)["build-system"]["requires"]


# ---- names and imports ---------------------------------------------------------------


def test_the_public_names():
    functions = {"explain", "gru", "lstm", "recurrence", "rnn", "slstm", "stack"}
    functions |= {"plot_statistics", "statistics"}
    functions |= {"define_cell", "export_checks", "init", "prepare"}
    functions |= {"indrnn", "linear_recurrence", "lru", "min_gru", "min_lstm", "rg_lru"}
    functions |= {"delta_rule", "linear_attention", "mlstm"}
    functions |= {"apply_updates", "normed", "qrnn", "sru", "stochastic_round"}
    others = {"SAVED", "Layer", "Norm", "Params", "Plan", "Prepared"}
    others |= {"LayerStatistics", "ValueStatistics"}
    others |= {"Activation", "BidirectionalParams", "DefinedCell", "MultiHeadParams"}
    others |= {"Clip", "LayerNorm", "NormedCell"}
    assert set(prnn_jax.__all__) == functions | others
    public = {
        name
        for name, value in vars(prnn_jax).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(prnn_jax.__all__)
    for name in functions:
        assert getattr(prnn_jax, name).__doc__, name


# jax and numpy, and what they bring with them.
DEPENDENCIES = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy")

# As if no other package were installed.
ONLY_DEPENDENCIES = f"""
import sys
from importlib import metadata

class Others:
    names = metadata.packages_distributions().keys() - {{"prnn_jax", *{DEPENDENCIES}}}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Others())
assert {{"flax", "equinox", "pytest"}} <= Others.names
"""


def test_functions_need_only_jax_and_numpy():
    script = """
import jax, jax.numpy as jnp, prnn_jax
params = prnn_jax.Params(jnp.ones((2, 12)), jnp.ones((3, 12)))
y, _ = prnn_jax.lstm(jnp.ones((1, 4, 2)), params)
print(y.shape, "flax" in sys.modules, "equinox" in sys.modules)
"""
    assert run_python(ONLY_DEPENDENCIES + script).strip() == "(1, 4, 3) False False"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("nnx", 'prnn_jax.nnx needs Flax: pip install "prnn_jax[flax]".'),
        ("equinox", 'prnn_jax.equinox needs Equinox: pip install "prnn_jax[equinox]".'),
    ],
)
def test_layers_say_what_to_install(module, message):
    script = f"""
try:
    import prnn_jax.{module}
except ImportError as error:
    print(error)
"""
    assert run_python(ONLY_DEPENDENCIES + script).strip() == message


# ---- the compiled module -------------------------------------------------------------


def test_type_checkers_know_its_functions():
    compiled = {"_prnn": modules.native, "_prnn_cuda": modules.cuda}
    for name, module in compiled.items():
        if module is None:  # built without CUDA
            continue
        stub = ast.parse((ROOT / f"prnn_jax/{name}.pyi").read_text())
        described = {
            node.name for node in stub.body if isinstance(node, ast.FunctionDef)
        }
        assert described == {n for n in vars(module) if not n.startswith("_")}


def output_of(tool: str, *args: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    done = subprocess.run([tool, *args], capture_output=True, text=True, check=True)
    return done.stdout


def test_it_links_to_the_system_s_libraries_only():
    dynamic = output_of("readelf", "--dynamic", MODULE)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    names = {re.split(r"[.-]", name)[0] for name in needed}
    assert names <= {"libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld"}, (
        needed
    )
    assert "PATH)" not in dynamic  # RPATH, RUNPATH


def test_it_exports_its_initialisation_only():
    symbols = output_of("nm", "--dynamic", "--defined-only", MODULE)
    assert [line.split()[-1] for line in symbols.splitlines()] == ["PyInit__prnn"]
