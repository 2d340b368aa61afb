"""Are our calls captured in CUDA graphs, and do they compute the same there?

Run as `python -m benchmarks.gpu.command_buffers`. One program with a chain of calls and
with two calls that are independent of each other runs under several flags of XLA, each
in a process of its own; all results must have the same bits. Then two Python threads.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import _rows

GRAPHS = "--xla_gpu_graph_min_graph_size=1"
# Or each process would choose its own products, which round differently.
SAME_PRODUCTS = "--xla_gpu_autotune_level=0"
VARIANTS = {
    "default": "",
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "every size": GRAPHS,
    "concurrent": f"{GRAPHS} --xla_gpu_command_buffer_scheduling_mode=CONCURRENT",
}


def captured(text: str) -> tuple[list[str], list[str]]:
    """Kinds of thunks inside of command buffers, and outside of them.

    Args:
      text: XLA's dump `thunk_sequence_after_thunk_passes.txt`.
    """
    inside, outside = [], []
    buffer_indent = None
    for line in text.splitlines():
        thunk = re.match(r"( *)\d+: (k\w+)", line)
        if thunk is None:
            continue
        indent = len(thunk[1])
        if buffer_indent is not None and indent <= buffer_indent:
            buffer_indent = None
        if buffer_indent is not None:
            inside.append(thunk[2])
        elif thunk[2] == "kCommandBuffer":
            buffer_indent = indent
        else:
            outside.append(thunk[2])
    return inside, outside


def step(cell: str):
    """A training step with two calls side by side and one after them."""

    def loss(params, x):
        run = _rows.forward(cell, None)
        left, _ = run(x, params, None)
        right, _ = run(x[:, ::-1], jax.tree.map(lambda p: 0.5 * p, params), None)
        y, _ = run(left + right, params, None)
        return jnp.mean(jnp.square(y).astype(jnp.float32))

    def update(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        params = jax.tree.map(lambda p, g: p - g.astype(p.dtype), params, gradients)
        return params, value

    return jax.jit(update, donate_argnums=0)


def run_steps(smoke: bool) -> dict:
    """A digest of all bits after some steps, and the time of one."""
    cells = [("lstm", 8, 2)] if smoke else [("lstm", 512, 16), ("gru", 1024, 4)]
    steps, length = (3, 4) if smoke else (40, 64)
    digest, times = hashlib.sha256(), {}
    for cell, hidden, batch in cells:
        dtype = jnp.float32 if smoke else jnp.bfloat16
        x, params, _ = _rows.arrays(cell, batch, length, hidden, dtype)
        run = step(cell)
        params, value = run(params, x)
        jax.block_until_ready(params)
        roll = jax.jit(lambda x, n: jnp.roll(x, n, axis=1))
        jax.block_until_ready(roll(x, 0))
        began = time.perf_counter()
        for n in range(steps):  # in new buffers, so that graphs must be updated
            params, value = run(params, roll(x, n))
        jax.block_until_ready(params)
        times[cell] = round(1e6 * (time.perf_counter() - began) / steps, 1)
        for leaf in (*jax.tree.leaves(params), value):
            assert np.isfinite(np.asarray(leaf, np.float32)).all()
            digest.update(np.asarray(leaf).tobytes())
    return {"digest": digest.hexdigest(), "call_us": times}


def run_variant(name: str, flags: str, smoke: bool, timeout_s: float) -> dict:
    """The steps in a process with these flags, and what was captured there."""
    with tempfile.TemporaryDirectory() as folder:
        inherited = os.environ.get("XLA_FLAGS", "")
        dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text=true"
        command = [sys.executable, "-m", "benchmarks.gpu.command_buffers", "--child"]
        try:
            done = subprocess.run(
                command + ["--smoke"] * smoke,
                env={
                    **os.environ,
                    "XLA_FLAGS": f"{inherited} {SAME_PRODUCTS} {flags} {dump}",
                },
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"variant": name, "ok": False, "error": "out of time"}
        if done.returncode != 0:
            return {"variant": name, "ok": False, "error": done.stderr[-400:]}
        inside = outside = 0
        for path in Path(folder).glob("*jit_update*thunk_sequence_after_thunk_passes*"):
            here, there = captured(path.read_text())
            inside += here.count("kCustomCall")
            outside += there.count("kCustomCall")
    found = json.loads(done.stdout.splitlines()[-1])
    return {"variant": name, **found, "captured": inside, "not_captured": outside}


def two_threads(smoke: bool) -> dict:
    """Two threads call at the same time; without errors, all as in the first call."""
    sizes = [(8, 2), (12, 1)] if smoke else [(1024, 16), (768, 8)]
    calls = []
    for hidden, batch in sizes:
        arrays = _rows.arrays("lstm", batch, 4 if smoke else 128, hidden, jnp.float32)
        run = jax.jit(_rows.train("lstm", None))
        calls.append((run, arrays, jax.block_until_ready(run(*arrays))))
    wrong = [0] * len(calls)

    def work(n: int) -> None:
        run, arrays, first = calls[n]
        for _ in range(5 if smoke else 200):
            wrong[n] += int(_rows.differing(first, run(*arrays)))

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(work, n) for n in range(len(calls))]
    raised = [error for future in futures if (error := future.exception())]
    return {
        "variant": "two threads",
        "ok": sum(wrong) == 0 and not raised,
        "differing": sum(wrong),
        **({"error": _rows.message(raised[0])} if raised else {}),
    }


def main() -> int:
    """The command line."""
    parser = _rows.parser(__doc__, 90)
    parser.add_argument("--child", action="store_true", help="run the steps, here")
    options = parser.parse_args()
    _rows.require_gpu(options.smoke)
    if options.child:
        print(json.dumps(run_steps(options.smoke)))
        return 0
    rows, budget = (
        _rows.Rows("command_buffers", options.out),
        _rows.Budget(options.budget),
    )
    # While a process of its own holds the GPU's memory, this one must not.
    expected = None
    variants = [*VARIANTS.items()][: 2 if options.smoke else None]
    for name, flags in variants:
        found = run_variant(name, flags, options.smoke, max(10.0, budget.left))
        expected = expected or found.get("digest")
        on_gpu = jax.default_backend() == "gpu"
        want = on_gpu and name != "no command buffers"
        found.setdefault(
            "ok",
            found.get("digest") == expected
            and (not want or (found["captured"] > 0 and found["not_captured"] == 0)),
        )
        rows.write(**found)
    rows.write(**two_threads(options.smoke))
    return rows.status


if __name__ == "__main__":
    sys.exit(main())
