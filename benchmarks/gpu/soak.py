"""Do results stay the same, bit for bit, over 100 000 steps beside other work?

Run as `python -m benchmarks.gpu.soak`. The other work is matrix products on another
stream of the same process, from torch if it is there.
"""

import contextlib
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp

from benchmarks.gpu import _rows

STEPS, TIME = 100_000, 1000

#: One for each way in which blocks exchange values, as far as their sizes tell.
CASES = (
    ("lstm", 1024, 16, "bfloat16"),
    ("lstm", 256, 8, "float32"),
    ("gru", 96, 16, "bfloat16"),
)


@contextlib.contextmanager
def products(size: int):
    """Products on a stream of their own meanwhile; gives what counts them.

    What is raised there is raised here, at the end.
    """
    import torch

    stop, count = threading.Event(), itertools.count()
    made = [0]

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
            while not stop.is_set():
                for _ in range(16):
                    torch.mm(a, a)
                    made[0] = next(count)
                stream.synchronize()

    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(work)
        try:
            yield lambda: made[0]
        finally:
            stop.set()
    beside.result()


def soak(rows, case, mode: str, beside, steps: int, chunk: int, budget) -> None:
    """Calls until `steps` are made, each compared with the first."""
    cell, hidden, batch, dtype = case
    arrays = _rows.arrays(cell, batch, chunk, hidden, jnp.dtype(dtype))
    run = jax.jit(_rows.MODES[mode](cell, None))
    first = jax.block_until_ready(run(*arrays))
    calls, differing, began = 0, jnp.int32(0), time.perf_counter()
    with beside() as made:
        while calls * chunk < steps and budget.left > 0:
            differing += _rows.differing(first, run(*arrays))
            calls += 1
            if calls % 8 == 0:
                differing.block_until_ready()
        wrong = int(differing)
        others = made()
    rows.write(
        cell=cell,
        hidden=hidden,
        batch=batch,
        dtype=dtype,
        mode=mode,
        ok=wrong == 0,
        steps=calls * chunk,
        differing_arrays=wrong,
        products_beside=others,
        step_us=round(1e6 * (time.perf_counter() - began) / (calls * chunk), 3),
    )


def main() -> int:
    """The command line."""
    options = _rows.parser(__doc__, 60).parse_args()
    _rows.require_gpu(options.smoke)
    rows = _rows.Rows("soak", options.out)
    budget = _rows.Budget(options.budget)
    steps, chunk = (20, 5) if options.smoke else (STEPS, TIME)
    cases = [("lstm", 8, 2, "float32")] if options.smoke else CASES

    @contextlib.contextmanager
    def alone():
        yield lambda: 0

    beside = {"alone": alone}
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            beside = {"beside": lambda: products(4096), **beside}
    # Every case for a share of the time, so that none is left out.
    every = list(itertools.product(cases, ("forward", "train"), beside.values()))
    for n, (case, mode, other) in enumerate(every):
        share = _rows.Budget(budget.left / (len(every) - n))
        soak(rows, case, mode, other, steps, chunk, share)
    return rows.status


if __name__ == "__main__":
    sys.exit(main())
