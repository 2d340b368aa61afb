"""How long is a step: ours, `lax.scan`, cuDNN through JAX, and torch.nn?

Run as `python -m benchmarks.gpu.peers`. A row for each point and contender, the most
telling points first, until the budget is spent. A step's time includes the input
projection, and in training all gradients. Calls are queued, as a program's are, and
waited for together. A contender that fails costs its own row, and the part says so at
its end. That ours has no plan for a point is no failure.
"""

import dataclasses
import functools
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

LIBRARIES = "jax", "torch"
CELLS, MODES = ("lstm", "gru", "rnn"), ("forward", "train")
HIDDEN_SIZES = 1024, 256, 768, 512, 129, 128, 2048, 1152
BATCHES = 16, 1, 64, 4, 32, 8
TIME = 512

#: Each decides something: where cuDNN is best, PRNN's point, the cliffs of cuDNN, batch
#: 1 and 64, the largest that fit.
FIRST = (
    ("lstm", 768, 16),
    ("lstm", 1024, 16),
    ("gru", 1024, 16),
    ("lstm", 256, 16),
    ("rnn", 1152, 4),
    ("lstm", 1024, 1),
    ("lstm", 1024, 64),
    ("gru", 256, 16),
    ("lstm", 2048, 4),
    ("lstm", 129, 16),
    ("lstm", 128, 16),
)

#: Stacks: hidden size, batch, layers. Ours run one after the other ("native") and all
#: at once; torch has a layer of so many.
STACKS = (256, 1, 5), (256, 16, 5), (512, 1, 5), (512, 8, 5), (512, 16, 5), (128, 8, 20)

#: The largest relative difference that rounding explains, over TIME steps. float32 is
#: multiplied as TF32 on a GPU.
TOLERANCES = {"bfloat16": 0.1, "float16": 0.02, "float32": 0.02}
DTYPES = tuple(TOLERANCES)  # in this order
SAMPLING_S = 0.25

#: Contenders that are this package, and are compared with the scan.
OURS = {"native", "at once"}

#: In what ours says of a layer that is too large.
NO_PLAN = "no persistent plan"


@dataclass(frozen=True)
class Point:
    """One layer, or a stack of them; input_size = hidden_size."""

    cell: str
    hidden: int
    batch: int
    dtype: str
    mode: str
    time: int
    layers: int = 1


def points(smoke: bool = False, quick: bool = False) -> Iterator[Point]:
    """All points, in the order in which they are measured.

    Args:
      smoke: tiny ones instead.
      quick: only those of FIRST, in bfloat16.
    """
    if smoke:
        for cell, mode in itertools.product(CELLS, MODES):
            yield Point(cell, 8, 2, "float32", mode, 4)
        yield Point("lstm", 8, 2, "float32", "train", 4, 3)
        return
    every = itertools.product(BATCHES, HIDDEN_SIZES, CELLS)
    rest = [(cell, hidden, batch) for batch, hidden, cell in every]
    rest = [shape for shape in rest if shape not in FIRST]
    for shapes in [FIRST] if quick else [FIRST, rest]:
        for dtype in DTYPES[:1] if quick else DTYPES:
            for (cell, hidden, batch), mode in itertools.product(shapes, MODES):
                yield Point(cell, hidden, batch, dtype, mode, TIME)
            if shapes is FIRST and dtype == DTYPES[0]:
                yield from _stacks()


def _stacks() -> Iterator[Point]:
    for cell, (hidden, batch, layers) in itertools.product(CELLS[:2], STACKS):
        for mode in MODES:
            yield Point(cell, hidden, batch, DTYPES[0], mode, TIME, layers)


# ---- JAX -----------------------------------------------------------------------------


def jax_contenders(point: Point) -> dict[str, Callable[[], object]]:
    """Ours and the scan on the same arrays; cuDNN's LSTM, with weights of its own."""
    import jax
    import jax.numpy as jnp

    from benchmarks.gpu import _rows

    mode = _rows.MODES[point.mode]
    sizes = point.cell, point.batch, point.time, point.hidden
    arrays = _rows.arrays(*sizes, jnp.dtype(point.dtype), point.layers)
    runs: dict[str, Callable[[], object]] = {
        name: functools.partial(jax.jit(mode(point.cell, name)), *arrays)
        for name in ("native", "scan")
    }
    if point.layers > 1:
        run = functools.partial(jax.jit(mode(point.cell, None)), *arrays)
        runs["at once"] = functools.partial(_allowed_at_once, run)
        return runs
    on_gpu = jax.default_backend() == "gpu"
    if point.cell == "lstm" and point.dtype == "float32" and on_gpu:
        runs["cudnn"] = _cudnn(point, arrays[0], arrays[2])
    return runs


def _allowed_at_once(run: Callable[[], object]) -> object:
    """What it is when it is traced: in the first call."""
    os.environ["PRNN_CUDA_STACKS"] = "1"
    try:
        return run()
    finally:
        del os.environ["PRNN_CUDA_STACKS"]


def _cudnn(point: Point, x, weights):
    import jax
    import jax.numpy as jnp
    from jax.experimental import rnn

    hidden = point.hidden
    flat = rnn.init_lstm_weight(jax.random.key(0), hidden, hidden, 1, False)
    zeros = jnp.zeros((1, point.batch, hidden), jnp.float32)
    lengths = jnp.full((point.batch,), point.time, jnp.int32)

    def forward(x, flat):
        return rnn.lstm(x, zeros, zeros, flat, lengths, hidden, hidden, 1, 0.0, False)

    def loss(x, flat):
        return jnp.sum(weights * forward(x, flat)[0])

    run = forward if point.mode == "forward" else jax.grad(loss, argnums=(0, 1))
    return functools.partial(jax.jit(run), x, flat)


# ---- torch ---------------------------------------------------------------------------


def torch_contenders(point: Point) -> dict[str, Callable[[], object]]:
    """torch.nn, called as users do, and replayed from a CUDA graph."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, point.dtype)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    layer = getattr(torch.nn, point.cell.upper())
    layer = layer(point.hidden, point.hidden, point.layers, batch_first=True)
    layer = layer.to(device, dtype)
    shape = point.batch, point.time, point.hidden
    x, weights = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    leaves = [x.requires_grad_(), *layer.parameters()]

    def forward():
        with torch.no_grad():
            return layer(x)

    def train():
        return torch.autograd.grad(layer(x)[0], leaves, weights)

    run = forward if point.mode == "forward" else train

    runs = {"torch": run}
    if device == "cuda":
        runs["torch graph"] = functools.partial(_first_captured, run, [])
    return runs


def _wait_for_torch(_) -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _first_captured(run, graphs) -> None:
    """Captures `run` when first called, and replays it from then on."""
    import torch

    if not graphs:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = run()
        graphs.append((graph, kept))
    graphs[0][0].replay()


# ---- one library ---------------------------------------------------------------------


def _queued(run: Callable[[], object], wait: Callable, calls: int) -> float:
    """Seconds for one of several calls, all waited for at the end."""
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    wait(result)
    return (time.perf_counter() - start) / calls


def measure(
    rows, point: Point, contenders: dict[str, Callable], wait: Callable
) -> None:
    """Checks what can be compared, then times all that run, in turn."""
    from benchmarks import _harness as harness

    known = dataclasses.asdict(point)
    running = {}
    for name, run in contenders.items():
        try:
            harness.measure({name: run}, budget_s=0, min_rounds=1)  # compiles
            running[name] = run
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:300]
            has_no_plan = isinstance(error, ValueError) and NO_PLAN in text
            failed = {} if has_no_plan else {"ok": False}
            rows.write(**known, who=name, **failed, error=text)
            if "CUDA_ERROR" in text or "CUDA error" in text:
                raise  # the context is lost
    differences = {}
    for ours in OURS & set(running) if "scan" in running else ():
        pair = {name: running[name] for name in (ours, "scan")}
        try:
            differences[ours] = harness.check_agreement(
                str(point), pair, TOLERANCES[point.dtype]
            )
        except harness.DisagreementError as error:
            rows.write(**known, who=ours, ok=False, error=str(error)[:300])
            del running[ours]  # its time would mean nothing
    budget_s = SAMPLING_S if point.time == TIME else 0
    samplers = {n: functools.partial(_queued, r, wait) for n, r in running.items()}
    timings = harness.measure_samplers(samplers, budget_s=budget_s) if running else {}
    for name, timing in timings.items():
        spread = harness.Spread.of(timing.seconds, 1e6 / point.time)
        rows.write(
            **known,
            who=name,
            step_us=round(spread.median, 4),
            quartiles=[round(q, 4) for q in spread.quartiles],
            rounds=len(timing.seconds),
            **({"difference": differences.get(name)} if name in OURS else {}),
        )


def run_library(library: str, options) -> int:
    """All points that the budget has room for."""
    if library == "torch":
        os.environ["JAX_PLATFORMS"] = "cpu"  # JAX only times here
    from benchmarks.gpu import _rows

    if library == "jax":
        import jax

        _rows.require_gpu(options.smoke)
        contenders, wait = jax_contenders, jax.block_until_ready
        device = jax.devices()[0].device_kind
    else:
        import torch

        gpu = torch.cuda.is_available()
        if not gpu and not options.smoke:
            raise SystemExit(77)
        contenders, wait = torch_contenders, _wait_for_torch
        device = torch.cuda.get_device_name() if gpu else "cpu"
    rows = _rows.Rows("peers", options.out)
    module = sys.modules[library]
    rows.write(library=library, version=module.__version__, device=device)
    budget, longest = _rows.Budget(options.budget), 0.0
    for n, point in enumerate(points(options.smoke, options.quick)):
        if n < options.skip:
            continue
        if budget.left < longest:
            rows.write(library=library, stopped="budget", points=n)
            break
        began = time.monotonic()
        print(f"# {n} {point}", flush=True)
        measure(rows, point, contenders(point), wait)
        longest = max(longest, time.monotonic() - began)
        if library == "jax":
            sys.modules["jax"].clear_caches()
    return rows.status


def main() -> int:
    """The command line: the libraries one after the other, each in its process."""
    from benchmarks.gpu import _rows

    parser = _rows.parser(__doc__, 240)
    parser.add_argument("--library", choices=LIBRARIES, help="only this, in-process")
    parser.add_argument("--quick", action="store_true", help="the first few points")
    parser.add_argument("--skip", type=int, default=0, help="points")
    options = parser.parse_args()
    if options.library:
        return run_library(options.library, options)
    statuses, budget = [], _rows.Budget(options.budget)
    shares = {"jax": 0.6, "torch": 1.0}  # of what is left
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed", flush=True)
            continue
        seconds = budget.left * shares[library]
        command = [sys.executable, "-m", "benchmarks.gpu.peers", "--library", library]
        command += ["--budget", f"{seconds - 5:.0f}"] + ["--smoke"] * options.smoke
        command += ["--quick"] * options.quick
        command += ["--out", str(options.out)] if options.out else []
        skip = 0
        for _ in range(4):  # a process that a point has ended goes on behind it
            reached, done = _run(
                [*command, "--skip", str(skip)], min(seconds + 10, budget.left + 15)
            )
            statuses.append(done)
            if done in (0, 1, 77, None) or budget.left < 20:
                break
            skip = reached + 1
    return worst(statuses)


def worst(statuses: Sequence[int | None]) -> int:
    """Of all; None is of one that ran out of time, below 0 are signals."""
    if any(status not in (0, 77) for status in statuses):
        return 1
    return 77 if 77 in statuses else 0


def _run(command: list[str], timeout_s: float) -> tuple[int, int | None]:
    """The last point begun, and the exit status; None if it ran out of time."""
    reached = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        end = time.monotonic() + timeout_s
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None and time.monotonic() < end:
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith("# "):
                    reached = int(line.split()[1])
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            return reached, None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("# "):
                reached = int(line.split()[1])
        return reached, process.returncode


if __name__ == "__main__":
    sys.exit(main())
