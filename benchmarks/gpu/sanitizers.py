"""Does compute-sanitizer find anything in our kernels?

Run as `python -m benchmarks.gpu.sanitizers`. Small calls of every cell, dtype and way
of exchange, forward and backward, under each tool. Without compute-sanitizer, or with
`--smoke`, the calls run by themselves.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp

from benchmarks.gpu import _rows

TOOLS = "memcheck", "racecheck", "synccheck", "initcheck"

#: Exchange in a block, a cluster and a grid, with sizes that are no multiples of tiles.
SIZES = (33, 3), (200, 5), (777, 9)
DTYPES = "float32", "bfloat16", "float16"
STEPS = 5


def cases() -> list[tuple[str, str, int, int]]:
    """Cell, dtype, hidden size and batch: every pair of two of them once."""
    return [
        (cell, DTYPES[(n + m) % len(DTYPES)], hidden, batch)
        for n, (hidden, batch) in enumerate(SIZES)
        for m, cell in enumerate(_rows.CELLS)
    ]


def run_cases(smoke: bool) -> None:
    """All of them, each waited for, so that an error is told with its case."""
    chosen = [("lstm", "float32", 5, 2)] if smoke else cases()
    for cell, dtype, hidden, batch in chosen:
        arrays = _rows.arrays(cell, batch, STEPS, hidden, jnp.dtype(dtype))
        jax.block_until_ready(jax.jit(_rows.train(cell, None))(*arrays))
        print(f"case {cell} {dtype} H{hidden} B{batch}", flush=True)


def ours(log: str) -> list[str]:
    """The reports of a tool's log that name a kernel of ours."""
    reports = re.split(
        r"^=+ (?=Error|Invalid|Uninitialized|Race|Barrier|Warning)",
        log,
        flags=re.MULTILINE,
    )
    return [report for report in reports[1:] if "prnn" in report]


def only_ours(program: str) -> list[str]:
    """Options for our kernels alone; their name has changed over the years."""
    done = subprocess.run([program, "--help"], capture_output=True, check=False)
    for option in ("--kernel-name ", "--kernel-regex "):
        if option.encode() in done.stdout:
            return [option.strip(), "kernel_substring=prnn"]
    return []


def run_tool(tool: str, options, cache: str, timeout_s: float) -> dict:
    """The cases under a tool."""
    command = [shutil.which("compute-sanitizer") or "", "--tool", tool]
    command += ["--print-limit", "20"]
    if tool != "initcheck":  # which must see who wrote what
        command += only_ours(command[0])
    command += [sys.executable, "-m", "benchmarks.gpu.sanitizers", "--cases"]
    command += ["--smoke"] * options.smoke
    environment = {
        **os.environ,
        # One cudaMalloc for each array, so that its bounds are known.
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Under a tool a compilation takes long: the first one is for all.
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PRNN_CUDA_WATCHDOG_S": "0",  # a step takes milliseconds
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")
        + " --xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
    }
    finished = True
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        log, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        log = output if isinstance(output, str) else output.decode(errors="replace")
        status, finished = None, False
    summary = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+)", log)
    all_errors = sum(int(n or m) for n, m in summary)
    found = ours(log)
    for report in found[:3]:
        print(report[:2000], flush=True)
    if status not in (0, None) and not found:
        print(log[-3000:], flush=True)
    errors = len(found) if tool == "initcheck" else max(all_errors, len(found))
    return {
        "tool": tool,
        "ok": errors == 0 and status in (0, None) and (not finished or bool(summary)),
        "finished": finished,
        "cases": len(re.findall(r"^case ", log, re.MULTILINE)),
        "errors_in_our_kernels": errors,
        "errors_in_all": all_errors,
        "status": status,
    }


def main() -> int:
    """The command line."""
    parser = _rows.parser(__doc__, 120)
    parser.add_argument("--cases", action="store_true", help="run the cases, here")
    options = parser.parse_args()
    _rows.require_gpu(options.smoke)
    tool_exists = shutil.which("compute-sanitizer") is not None
    if options.cases:
        run_cases(options.smoke)
        return 0
    rows, budget = _rows.Rows("sanitizers", options.out), _rows.Budget(options.budget)
    if options.smoke:
        run_cases(options.smoke)
        rows.write(tool="none", ok=True, cases=1)
        return rows.status
    if not tool_exists:
        rows.write(tool="none", ok=False, error="compute-sanitizer is not on PATH")
        return rows.status
    with tempfile.TemporaryDirectory() as cache:
        for n, tool in enumerate(TOOLS):
            seconds = max(10.0, budget.left / (len(TOOLS) - n))
            rows.write(**run_tool(tool, options, cache, seconds))
    return rows.status


if __name__ == "__main__":
    sys.exit(main())
