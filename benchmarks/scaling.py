"""How does a training step of the speech model scale over devices?

Strong scaling (32 utterances in all) and weak scaling (4 on each device) over 1 to 8
devices, which XLA makes of this machine's cores: beyond the number of cores, more
devices can only show what sharding itself costs. Then a model, not a measurement, of
the setting of Persistent RNNs (Diamos et al. 2016): 128 GPUs at 4 utterances each.
Run as `python -m benchmarks.scaling`.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys

from benchmarks import _command_line as command_line
from benchmarks import _harness as harness

NAME = "scaling"

DEVICES = 1, 2, 4, 8
STRONG, WEAK = 32, 4  # utterances: in all, and on each device
FRAMES, LABELS = 256, 24

#: What the model of 128 GPUs assumes: GPUs in a node, bytes per second of one GPU to
#: the others of its node and to other nodes, and seconds for a message to get under
#: way. Of the order of NVLink 4 and a 400 Gbit/s network; assumed, not measured.
GPUS, NODE = 128, 8
IN_NODE, BETWEEN_NODES, LATENCY_S = 450e9, 50e9, 10e-6
#: Times of a step at 4 utterances for which the model is given.
ASSUMED_MS = 1.0, 3.0, 10.0, 30.0

_SIZES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1}


# ---- in a process with its own number of devices -------------------------------------


def measure(utterances: int, budget_s: float) -> dict:
    """A step over all devices of this process: time, and what is communicated."""
    import jax
    import numpy as np
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from examples.speech.batches import Batch
    from examples.speech.config import RunConfig
    from examples.speech.model import Recogniser
    from examples.speech.optimizer import make_optimizer
    from examples.speech.train import prepare

    config = RunConfig()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    recogniser = Recogniser(config.model, config.features, nnx.Rngs(0))
    training = prepare(config, make_optimizer(config.train, 1000), recogniser)
    random = np.random.default_rng(0)
    frames = random.integers(FRAMES // 2, FRAMES + 1, utterances)
    batch = Batch(
        random.standard_normal((utterances, FRAMES, config.features.mel_bins)).astype(
            np.float32
        ),
        frames.astype(np.int32),
        random.integers(1, recogniser.out.out_features, (utterances, LABELS)).astype(
            np.int32
        ),
        np.full(utterances, LABELS, np.int32),
        np.arange(utterances, dtype=np.int32),
    )
    batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
    state = jax.device_put(training.state, NamedSharding(mesh, P()))
    compiled = training.step.lower(state, batch, 0).compile()
    timing = harness.measure(
        {"step": lambda: compiled(state, batch, 0)}, budget_s=budget_s
    )
    program = compiled.as_text()
    return {
        "step_ms": harness.Spread.of(timing["step"].seconds, 1e3).median,
        "all_reduce_bytes": all_reduce_bytes(program),
        "all_gathers": len(re.findall(r" all-gather(?:-start)?\(", program)),
        "native_calls": program.count('custom_call_target="prnn_'),
        "parameters": sum(x.size for x in jax.tree.leaves(training.state.params)),
    }


def all_reduce_bytes(program: str) -> int:
    """Of all all-reduces of a compiled program."""
    total = 0
    for results in re.findall(r"= (\(.*?\)|\S+) all-reduce(?:-start)?\(", program):
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", results):
            count = math.prod(int(size) for size in sizes.split(",") if size)
            total += count * _SIZES.get(kind, 4)
    return total


# ---- the rest ------------------------------------------------------------------------


def in_a_process(devices: int, utterances: int, budget_s: float) -> dict:
    """`measure`, where XLA sees so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", f"benchmarks.{NAME}"),
            *("--one", str(utterances), "--budget-s", str(budget_s)),
        ],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=harness.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{devices} devices:\n{done.stderr[-4000:]}")
    point = json.loads(done.stdout.splitlines()[-1])
    return {"devices": devices, "utterances": utterances, **point}


def all_reduce_ms(total_bytes: float) -> float:
    """Modelled: a ring in each node, a ring over the nodes, each GPU with its share."""
    nodes = GPUS // NODE
    inside = 2 * (NODE - 1) / NODE * total_bytes / IN_NODE
    between = 2 * (nodes - 1) / nodes * total_bytes / NODE / BETWEEN_NODES
    messages = 2 * (NODE - 1) + 2 * (nodes - 1)
    return 1e3 * (inside + between + messages * LATENCY_S)


def modelled(total_bytes: float, here_ms: float) -> list[dict]:
    """Efficiency of 128 GPUs, by what a step takes on one."""
    out = []
    for step_ms in (*ASSUMED_MS, here_ms):
        reduce_ms = all_reduce_ms(total_bytes)
        out.append(
            {
                "step_ms": step_ms,
                "is_measured_on_this_cpu": step_ms == here_ms,
                "all_reduce_ms": reduce_ms,
                "efficiency": step_ms / (step_ms + reduce_ms),
            }
        )
    return out


def tables(results: dict) -> str:
    """Of what was measured, and of the model."""
    rows = []
    for kind in ("strong", "weak"):
        first = results[kind][0]
        for point in results[kind]:
            each = point["step_ms"] / point["utterances"]
            speedup = first["step_ms"] / first["utterances"] / each
            rows.append(
                [
                    kind,
                    str(point["devices"]),
                    str(point["utterances"]),
                    f"{point['step_ms']:.0f}",
                    f"{speedup:.2f}×",
                    f"{point['all_reduce_bytes'] / 1e6:.2f}",
                    str(point["all_gathers"]),
                ]
            )
    header = [
        "scaling",
        "devices",
        "utterances",
        "ms per step",
        "utterances per second",
    ]
    header += ["all-reduce, MB", "all-gathers"]
    model = [
        [
            f"{point['step_ms']:.0f}"
            + (" (this CPU, measured)" if point["is_measured_on_this_cpu"] else ""),
            f"{point['all_reduce_ms']:.2f}",
            f"{100 * point['efficiency']:.0f} %",
        ]
        for point in results["model"]
    ]
    about = f"**Model, not measured**: {GPUS} GPUs at {WEAK} utterances each."
    return "\n\n".join(
        [
            harness.markdown(header, rows),
            about,
            harness.markdown(
                ["a step takes, ms", "all-reduce, ms", "efficiency"], model
            ),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = command_line.parser(NAME, __doc__ or "", 5.0, has_table=False)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--devices", type=command_line.positive(int), nargs="+", default=list(DEVICES)
    )
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(measure(options.one, options.budget_s)))
        return
    before = harness.load()
    strong, weak = [], []
    for devices in options.devices:
        strong.append(in_a_process(devices, STRONG, options.budget_s))
        weak.append(in_a_process(devices, WEAK * devices, options.budget_s))
    # One GPU of many sends what a device here sends, all-reduces of scalars included.
    sent = max(point["all_reduce_bytes"] for point in weak)
    results = {
        **harness.record(NAME, before, "flax", "optax"),
        "strong": strong,
        "weak": weak,
        "model": modelled(sent, weak[0]["step_ms"]),
    }
    print(tables(results))
    command_line.write(parser, options, results)


if __name__ == "__main__":
    main()
