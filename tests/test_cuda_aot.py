"""A training step, compiled for an NVIDIA H200 on a machine that has none.

XLA's CUDA plugin compiles without a driver when it is told what the GPU is like
(aot/h200.txtpb). What comes out is the program that an H200 would run: which calls it
makes, what it does to their arrays, what memory it needs, and whether it is captured in
a command buffer. Whether the calls compute the right thing is not seen here.
"""

import functools
import importlib.metadata
import json
import math
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import Program, run_python

from benchmarks.gpu.command_buffers import captured
from prnn_jax._engine import modules

FOLDER = Path(__file__).parent / "aot"
TARGETS = "prnn_forward", "prnn_backward"
LAYERS = 3
DTYPES = "float32", "bfloat16"

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # else the plugin looks for a driver
    "PRNN_CUDA_DEVICE": "NVIDIA H200",  # what our planner takes for the device
}
# Autotuning would need the device.
FLAGS = "--xla_gpu_autotune_level=0", "--xla_dump_hlo_as_text=true"


# The plugin may lie apart (`make aot`): every program that finds it looks for a GPU.
APART = Path(sys.prefix) / "aot"


def plugin_version(major: int) -> str | None:
    """Of the plugin for that CUDA, among what is installed or apart."""
    found = importlib.metadata.distributions(
        name=f"jax-cuda{major}-plugin", path=[*sys.path, str(APART)]
    )
    return next((distribution.version for distribution in found), None)


@pytest.fixture(scope="module", autouse=True)
def _needs_cuda_build_and_plugin() -> None:
    if modules.cuda is None:
        pytest.skip("the package was built without CUDA (PRNN_CUDA=ON needs nvcc)")
    jaxlib = importlib.metadata.version("jaxlib")
    for major in (13, 12):
        plugin = plugin_version(major)
        if plugin is None:
            continue
        if plugin != jaxlib:
            pytest.skip(f"jax-cuda{major}-plugin {plugin} is not for jaxlib {jaxlib}")
        if toolkit() is None:
            pytest.skip("XLA compiles for a GPU with ptxas, and there is none")
        return
    pytest.skip(
        "XLA's CUDA plugin is not installed: make aot, or pip install --no-deps "
        f"jax-cuda13-plugin=={jaxlib} jax-cuda13-pjrt=={jaxlib}"
    )


def toolkit() -> Path | None:
    """A folder with bin/ptxas: a CUDA toolkit, or what a wheel brings of one."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    on_path = shutil.which("ptxas")
    folders = [Path(name) for name in named if name]
    folders += [Path(on_path).resolve().parents[1]] if on_path else []
    folders += [Path("/usr/local/cuda")]
    for site in map(Path, sys.path):
        folders += [site / "nvidia/cu13", site / "nvidia/cuda_nvcc"]
    return next((f for f in folders if (f / "bin/ptxas").exists()), None)


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of the step.

    Attributes:
      program: after all optimizations.
      temp_bytes: what it needs besides its arguments and results.
      sequence_size: elements of a layer's y.
      folder: XLA's dumps.
    """

    program: Program
    temp_bytes: int
    sequence_size: int
    folder: Path

    def dump(self, name: str) -> str:
        """The file of XLA's dumps for the step that ends in `name`."""
        (path,) = self.folder.glob(f"*jit_step*{name}")
        return path.read_text()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """`(implementation, dtype) -> Compiled`, each compiled once."""

    @functools.cache
    def of(implementation: str | None, dtype: str) -> Compiled:
        folder = tmp_path_factory.mktemp("dump")
        printed = run_python(
            FOLDER / "train_step.py",
            str(FOLDER / "h200.txtpb"),
            str(implementation),
            dtype,
            **ENVIRONMENT,
            PYTHONPATH=os.pathsep.join([str(FOLDER.parent), *sys.path, str(APART)]),
            XLA_FLAGS=" ".join(
                [
                    *FLAGS,
                    f"--xla_dump_to={folder}",
                    f"--xla_gpu_cuda_data_dir={toolkit()}",
                ]
            ),
        )
        report = json.loads(printed.splitlines()[-1])
        program = Program(report.pop("text"))
        return Compiled(program, **report, folder=folder)

    return of


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layer_is_one_call_each_way(compiled, dtype):
    """With the platform's default implementation, so that is what users get."""
    ours = compiled(None, dtype).program
    assert ours.calls == (LAYERS, LAYERS)
    assert ours.count("while") == 0
    scan = compiled("scan", dtype).program
    assert scan.calls == (0, 0)
    assert scan.count("while") == 2 * LAYERS


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_sequence_is_transposed_or_copied(compiled, dtype):
    """The calls take and return arrays as the layers around them do."""
    ours = compiled(None, dtype)
    assert large(ours.program.text, "transpose", ours.sequence_size) == []
    assert large(ours.program.text, "copy", ours.sequence_size) == []
    scan = compiled("scan", dtype)  # which shows that the search finds some
    assert large(scan.program.text, "transpose", scan.sequence_size) != []


@pytest.mark.parametrize("dtype", DTYPES)
def test_workspace_shares_memory_with_other_arrays(compiled, dtype):
    """It is XLA's, planned with all other temporary arrays, and none of its own."""
    ours = compiled(None, dtype)
    shared = sharing_values(ours.dump("after_optimizations-buffer-assignment.txt"))
    found = 0
    for line in ours.program.text.splitlines():
        call = re.match(r" *%?(\S+) = \((.*)\) custom-call\(", line)
        if call is None or not any(f'"{target}"' in line for target in TARGETS):
            continue
        last = len(re.findall(r"\w+\[[\d,]*\]", call[2])) - 1
        assert f"{call[1]}{{{last}}}" in shared, line[:200]
        found += 1
    assert found == 2 * LAYERS


@pytest.mark.parametrize("dtype", DTYPES)
def test_less_temporary_memory_than_the_scan(compiled, dtype):
    assert compiled(None, dtype).temp_bytes < compiled("scan", dtype).temp_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_are_captured_in_a_command_buffer(compiled, dtype):
    ours = compiled(None, dtype)
    inside, outside = captured(ours.dump("thunk_sequence_after_thunk_passes.txt"))
    assert outside.count("kCustomCall") == 0, "the handlers lack kCmdBufferCompatible"
    assert inside.count("kCustomCall") >= 2 * LAYERS


# ---- reading XLA's text --------------------------------------------------------------


def large(text: str, operation: str, size: int) -> list[str]:
    """Instructions of a kind, in fusions too, with results of at least `size`."""
    instructions = re.findall(
        rf"^ *(?:ROOT )?%?(\S+) = \w+\[([\d,]*)\]\S* {operation}\(", text, re.MULTILINE
    )
    return [
        f"{name} [{shape}]"
        for name, shape in instructions
        if math.prod(int(n) for n in shape.split(",") if n) >= size
    ]


def sharing_values(text: str) -> set[str]:
    """Values, as `name{index}`, in allocations that hold others too."""
    sharing = set()
    for allocation in re.split(r"^allocation ", text, flags=re.MULTILINE)[1:]:
        values = re.findall(r"value: <\d+ (\S+) @", allocation)
        sharing |= set(values if len(values) > 1 else ())
    return sharing
