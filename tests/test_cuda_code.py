"""The machine code of the CUDA engine, as the lint (cuda/lint.py) has it."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_once import made_once

from prnn_jax._engine import modules

ROOT = Path(__file__).parent.parent
LINT = ROOT / "cuda/lint.py"


sys.path.append(str(ROOT / "cuda"))
lint = importlib.import_module("lint")
machine_code = importlib.import_module("machine_code")
step_time = importlib.import_module("step_time")


def require_disassembler() -> None:
    if (
        machine_code.find_tool("cuobjdump") is None
        or machine_code.find_tool("nvdisasm") is None
    ):
        pytest.skip(
            "needs cuobjdump and nvdisasm: "
            "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )


# ---- the module ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def built() -> list[dict]:
    """What is known of each kernel of the module."""
    if modules.cuda is None:
        pytest.skip("the package was built without CUDA (PRNN_CUDA=ON needs nvcc)")
    require_disassembler()
    module = Path(modules.cuda.__file__)

    def make(written: Path) -> None:
        written.write_text(json.dumps(lint.summaries(module)))

    read = module, *sorted((ROOT / "cuda").glob("*.py"))
    return json.loads(made_once("machine_code.json", read, (), make).read_text())


def test_no_kernel_breaks_a_rule(built):
    assert len(built) > 100
    assert {k["kernel"]: k["violations"] for k in built if k["violations"]} == {}


def test_every_exchange_is_built(built):
    engines = [kernel for kernel in built if kernel["recurrence"]]
    exchanges = {kernel["exchange"] for kernel in engines}
    assert exchanges >= {"block", "cluster", "grid"}, [k["kernel"] for k in engines]


def nvcc_version() -> str:
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs the nvcc that the kernels were built with, on PATH")
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    return re.search(r"release [\d.]+, V([\d.]+)", done.stdout)[1]


def test_no_step_takes_more_cycles_than_recorded(built):
    """Modelled; `step_time.py --record` after a change that is for the better."""
    record = json.loads(step_time.RECORD.read_text())
    if nvcc_version() != record["nvcc"]:
        pytest.skip(f"recorded for nvcc {record['nvcc']}, this is {nvcc_version()}")
    recorded = record["cycles"]
    architectures = {name.split()[0] for name in recorded}
    kernels = [k for k in built if k["cycles"] and k["architecture"] in architectures]
    if not kernels:
        pytest.skip(f"not built for {architectures}")
    cycles = {f"{k['architecture']} {k['kernel']}": k["cycles"] for k in kernels}
    assert cycles.keys() == recorded.keys()
    longer = {k: (n, recorded[k]) for k, n in cycles.items() if n > recorded[k]}
    assert longer == {}


# ---- the command, and the compiler ---------------------------------------------------


def test_a_file_without_kernels_is_no_success(tmp_path):
    require_disassembler()
    (tmp_path / "empty.cubin").write_bytes(b"nothing")
    done = subprocess.run(
        [sys.executable, LINT, tmp_path / "empty.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "empty.cubin" in done.stderr


# One step of a grid exchange, with the wrappers of cuda/ptx.h.
SOURCE = r"""
#include "cuda/ptx.h"
#include "cuda/tile.h"
namespace prnn {
template <Exchange exchange, bool kSpills>
__global__ void __launch_bounds__(256, 1) kernel(float* p, int steps, int at) {
  using namespace ptx;
  float d[4] = {}, local[64] = {};
  const Word4 a{1u, 2u, 3u, 4u};
  std::uint32_t turns = 0;
  for (int t = 0; t < steps; ++t, p += 1024) {
    Word4 v = ld_relaxed_gpu_v2_b64(p + 4 * tid());
    while (!vote_all((v.x & v.y & v.z & v.w) != ~0u)) {
      spin(), ++turns;
      v = ld_relaxed_gpu_v2_b64(p + 4 * tid());
    }
    mma_m16n8k16_bf16(d, a, v.x, v.y);
    mma_m16n8k16_bf16(d, a, v.z, v.w);
    if (kSpills) d[0] += local[(at * t) & 63]++;
    bar_sync();
    prefetch_global_l2(p + 4096);
    st_relaxed_gpu_b64(p + 1024 + 2 * tid(), {cvt_rn_bf16x2(d[0], d[1]), turns});
  }
}
template __global__ void kernel<Exchange::kGrid, false>(float*, int, int);
template __global__ void kernel<Exchange::kGrid, true>(float*, int, int);
}  // namespace prnn
"""


def test_what_the_compiler_makes_of_a_step(tmp_path, capsys):
    """Wrappers become the instructions they are for, and the lint sees them."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    require_disassembler()
    source, cubin = tmp_path / "step.cu", tmp_path / "step.cubin"
    source.write_text(SOURCE)
    options = "-std=c++20", "-gencode=arch=compute_90a,code=sm_90a", "-cubin"
    subprocess.run(
        [nvcc, *options, f"-I{ROOT}", source, "-o", cubin], check=True, timeout=120
    )
    spills, good = sorted(machine_code.read(cubin), key=lambda k: "false" in k.name)
    assert good.name == "kernel<grid, false>"
    assert lint.violations(good, 2) == []
    loads = [i.opcode for i in good.instructions if i.opcode.startswith("LDG")]
    assert set(loads) == {"LDG.E.128.STRONG.GPU"}
    assert good.count("HMMA", inside=True) == 2
    (found,) = lint.violations(spills, 2)
    assert "local memory" in found

    written = tmp_path / "lint.json"
    assert lint.main([str(cubin), "--hmma", "2", "--json", str(written)]) == 1
    printed = capsys.readouterr()
    assert "local memory in the loop" in printed.err
    assert "| `kernel<grid, false>` |" in printed.out
    assert len(json.loads(written.read_text())) == 2
    only = ["--hmma", "2", "--only", "false"]
    assert lint.main([str(cubin), *only]) == 0
