"""What does the CUDA engine's planner expect of a step, in µs? Modelled, not measured.

python -m benchmarks.cuda_model ["NVIDIA H200"]
"""

import argparse
import math

from prnn_jax._engine.modules import native

CELLS = {
    "rnn_tanh": (256, 1152, 4096),
    "gru": (256, 1024, 2560),
    "lstm": (256, 1024, 2048, 4096),
}
BATCHES = 1, 8, 16, 64
TIME = 1000


def cell_text(best: dict | None) -> str:
    if best is None:
        return "none"
    team = f"{best['exchange']} {best['teams']}x{best['blocks']}"
    rounds = f", {best['rounds']} rounds" if best["rounds"] > 1 else ""
    return f"{best['step_us']:.2f} ({team}{rounds})"


def table(device: str) -> str:
    """Markdown: exchange, teams x blocks, and µs per step of the whole batch."""
    head = ["bfloat16, modelled", *(f"batch {batch}" for batch in BATCHES)]
    lines = [head, ["---"] * len(head)]
    for cell, sizes in CELLS.items():
        for hidden in sizes:
            for which in ("forward", "backward"):
                plans = (
                    native.cuda_plan(
                        cell, which, "bfloat16", TIME, batch, 1, hidden, device
                    )["best"]
                    for batch in BATCHES
                )
                lines.append([f"{cell} {hidden} {which}", *map(cell_text, plans)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


#: Of stacks: cell, layers, hidden size.
STACKS = (
    *(("lstm", 5, 256), ("lstm", 5, 512), ("lstm", 20, 128), ("lstm", 2, 1024)),
    *(("gru", 5, 256), ("gru", 5, 512), ("rnn_tanh", 5, 512)),
)


def stack_text(cell: str, which: str, batch: int, layers: int, hidden: int, device):
    def call_us(groups: int, *, is_stack: bool) -> float:
        shape = TIME, batch, groups, hidden
        plan = native.cuda_plan(
            cell, which, "bfloat16", *shape, device, is_stack=is_stack
        )["best"]
        return math.inf if plan is None else plan["call_us"]

    gain = layers * call_us(1, is_stack=False) / call_us(layers, is_stack=True)
    return f"{gain:.2f}" if gain > 0 else "no room"


def stacks(device: str) -> str:
    """Markdown: layers one after the other, as a multiple of all at once."""
    head = ["bfloat16, modelled", *(f"batch {batch}" for batch in BATCHES)]
    lines = [head, ["---"] * len(head)]
    for cell, layers, hidden in STACKS:
        for which in ("forward", "backward"):
            of = layers, hidden, device
            gains = (stack_text(cell, which, batch, *of) for batch in BATCHES)
            lines.append([f"{cell} {layers} × {hidden} {which}", *gains])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda_model",
        description="How long is a step, as modelled?",
    )
    devices = native.recorded_devices()
    parser.add_argument("device", nargs="?", choices=devices, default="NVIDIA H200")
    device = parser.parse_args().device
    print(table(device), stacks(device), sep="\n\n")


if __name__ == "__main__":
    main()
