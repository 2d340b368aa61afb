"""Plans of the CUDA engine for recorded devices."""

from prnn_jax._engine.modules import native

H200, MIG = "NVIDIA H200", "NVIDIA H200 MIG 1g.18gb"
DEVICES = native.recorded_devices()

GATES = {"lstm": 4, "slstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float32_exact": 4}
PASSES = "forward", "backward"


def planned(
    cell="lstm",
    kind="forward",
    number="bfloat16",
    *,
    time=100,
    batch=8,
    groups=1,
    hidden=512,
    device=H200,
    max_sms=0,
    is_stack=False,
) -> dict:
    return native.cuda_plan(
        cell, kind, number, time, batch, groups, hidden, device, max_sms, is_stack
    )


def record(device) -> dict:
    return native.recorded_device(device) if isinstance(device, str) else device


def plans_of(planning: dict) -> list[dict]:
    """Of all candidates that have one."""
    return [c["plan"] for c in planning["candidates"] if c["plan"] is not None]
