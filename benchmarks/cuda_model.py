"""What does the CUDA engine's planner expect of a step, in µs? Modelled, not measured.

python -m benchmarks.cuda_model ["NVIDIA H200"]
"""

import sys

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


def main() -> None:
    print(table(sys.argv[1] if len(sys.argv) > 1 else "NVIDIA H200"))


if __name__ == "__main__":
    main()
