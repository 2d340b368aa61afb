"""Plans of the CUDA engine for recorded devices."""

from prnn_jax._engine.modules import native

H200, MIG = "NVIDIA H200", "NVIDIA H200 MIG 1g.18gb"
DEVICES = native.recorded_devices()


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
