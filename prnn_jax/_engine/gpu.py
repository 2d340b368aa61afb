"""What the CUDA engine can run, and on which GPU: as the planner says (cuda/planner.h).

Programs are made for a GPU that need not be here: an AOT compiler or an export sees
none. What is asked at that time is only whether a plan exists; the plan itself is made
where the program runs, for the GPU that is there.
"""

import functools
import json
import os
import re
from typing import Any

import jax
import jax.numpy as jnp

from prnn_jax._call.call import Call
from prnn_jax._engine.modules import cuda, native

DTYPES = ("float32", "bfloat16", "float16")

#: Environment variable: the GPU that programs are made for where it is not this
#: machine's, by its name on record.
DEVICE_VARIABLE = "PRNN_CUDA_DEVICE"

#: Environment variable: how many SMs a call may take, 0 for all. The rest is left to
#: what runs beside it: collectives, whose kernels must not wait for ours to end.
MAX_SMS_VARIABLE = "PRNN_CUDA_MAX_SMS"

#: What NCCL takes at most, by default, for one collective.
_FOR_COLLECTIVES = 20

#: What stands between two matrices that are one on a GPU: see `_engine.folded`.
BETWEEN = "{} has no CUDA kernel: it stands between w_hr and w_hh, which are one there"

#: Environment variable: 0 keeps calls out of CUDA graphs.
GRAPHS_VARIABLE = "PRNN_CUDA_GRAPHS"

#: Environment variable: 1 lets layers of a stack run at once. No GPU has measured it.
STACKS_VARIABLE = "PRNN_CUDA_STACKS"

#: How many times as fast as one after the other layers of a stack run at once, by the
#: model, where they do.
LEAST_GAIN = 1.0

#: Of the GPUs on record that can run everything, the one with the least room.
_UNKNOWN = "NVIDIA A100-SXM4-80GB"


def number(call: Call, dtype) -> str:
    """The number format of a call, as the planner names it."""
    name = jnp.dtype(dtype).name
    return "float32_exact" if name == "float32" and call.exact else name


def recorded(name: str) -> dict[str, Any] | None:
    """The GPU of that name on record."""
    known = name in native.recorded_devices()
    return native.recorded_device(name) if known else None


def _local_gpu() -> Any:
    """This machine's GPU: the one that JAX would take. None where there is none."""
    gpu: Any = getattr(jax.config, "jax_default_device", None)
    if getattr(gpu, "platform", None) == "gpu":
        return gpu
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        return None


def _is_nvidias(gpu: Any) -> bool:
    """AMD's are "gpu" to JAX, too; their compute capability is a word, as gfx942."""
    return re.fullmatch(r"\d+\.\d+", str(gpu.compute_capability)) is not None


def other_gpu() -> str:
    """What the GPU here is called, if it is not NVIDIA's and no other is meant."""
    gpu = None if os.environ.get(DEVICE_VARIABLE) else _local_gpu()
    return "" if gpu is None or _is_nvidias(gpu) else gpu.device_kind


def local_device() -> dict[str, Any] | None:
    """This machine's GPU, of NVIDIA's. None where there is none."""
    gpu = _local_gpu()
    if gpu is None or not _is_nvidias(gpu):
        return None
    return native.estimated_device(
        gpu.device_kind,
        round(10 * float(gpu.compute_capability)),
        gpu.core_count,
        getattr(gpu, "shared_memory_per_block_optin", 0),
    )


def known_device() -> dict[str, Any] | None:
    """The GPU that programs are made for; None where nothing says which.

    Raises:
      ValueError: PRNN_CUDA_DEVICE names none on record.
    """
    asked = os.environ.get(DEVICE_VARIABLE)
    if not asked:
        return local_device()
    device = recorded(asked)
    if device is None:
        names = ", ".join(repr(name) for name in native.recorded_devices())
        raise ValueError(
            f"prnn_jax: {DEVICE_VARIABLE} must be one of {names}, got {asked!r}."
        )
    return device


def target_device() -> dict[str, Any]:
    """That, or one whose programs others can run, too."""
    return known_device() or native.recorded_device(_UNKNOWN)


def max_sms() -> int:
    """How many SMs a call may take; 0 for all.

    Where the program sees several GPUs, some are left to collectives unless
    PRNN_CUDA_MAX_SMS says otherwise: their kernels wait for those on other GPUs, and
    would wait for ever if ours kept them from starting.

    Raises:
      ValueError: PRNN_CUDA_MAX_SMS is no whole number.
    """
    asked = os.environ.get(MAX_SMS_VARIABLE)
    if not asked:
        return _beside_collectives()
    if not re.fullmatch("[0-9]{1,9}", asked):
        raise ValueError(
            f"prnn_jax: {MAX_SMS_VARIABLE} must be a number of SMs, got {asked!r}."
        )
    return int(asked)


def max_sms_of(device: dict[str, Any], max_sms: int) -> int:
    """What `max_sms()` says, of this GPU.

    Raises:
      ValueError: PRNN_CUDA_MAX_SMS is more than the GPU has.
    """
    sms = device["sms"]
    if max_sms > sms and os.environ.get(MAX_SMS_VARIABLE):
        raise ValueError(
            f"prnn_jax: {MAX_SMS_VARIABLE} must be at most {sms}, the SMs of "
            f"{device['name']}, got {max_sms}; unset it for all."
        )
    return min(max_sms, sms)


def _beside_collectives() -> int:
    if cuda is None:
        return 0
    try:
        gpus: Any = jax.devices("gpu")
    except RuntimeError:
        return 0
    if len(gpus) < 2:
        return 0
    # Of a small GPU, one at least: 0 would be all.
    left = max(gpus[0].core_count - _FOR_COLLECTIVES, 1)
    other = known_device() if os.environ.get(DEVICE_VARIABLE) else None
    return left if other is None else min(left, other["sms"])


def target(name: str) -> str:
    """The custom call target of that name for CUDA."""
    return name if is_on(GRAPHS_VARIABLE, True) else f"{name}_uncaptured"


def is_on(variable: str, default: bool) -> bool:
    """What a variable of the environment says that is 0 or 1.

    Raises:
      ValueError: it is something else.
    """
    asked = os.environ.get(variable)
    if not asked:
        return default
    if asked not in ("0", "1"):
        raise ValueError(f"prnn_jax: {variable} must be 0 or 1, got {asked!r}.")
    return asked == "1"


def no_kernel(call: Call, *, has_mask: bool = False) -> str:
    """Why no GPU has a kernel for such a call, whatever is installed; or empty."""
    if "cuda" not in call.table.engines:
        return f"{call.table.described} has no CUDA kernel yet"
    if call.clip is not None and call.clip.projection is not None:
        return BETWEEN.format("clip.projection")
    if call.table.folded and has_mask:
        return BETWEEN.format("the recurrent mask of an LSTM with a projection")
    return ""


def is_measured(call: Call) -> bool:
    """Whether a GPU has run kernels of such a cell; those of others are emulated."""
    cell = call.table
    emulated = cell.norm is not None or cell.folded or cell.name == "gru_reset_before"
    return not emulated and call.clip is None


def refusal(
    call: Call,
    dtype,
    groups: int,
    hidden: int,
    batch: int,
    *,
    backward: bool,
    has_mask: bool = False,
) -> str:
    """Why no kernel is to run such a call on the target GPU; empty where one is.

    A batch that is not known is taken for a small one.
    """
    if reason := no_kernel(call, has_mask=has_mask):
        return reason
    if jnp.dtype(dtype).name not in DTYPES:
        return f"the CUDA engine takes {', '.join(DTYPES)}, not {jnp.dtype(dtype)}"
    known, max_sms = known_device(), call.max_sms
    if known is not None:
        max_sms = max_sms_of(known, max_sms)
    reasons = (
        _refusal(
            call.table.folded or call.table.name,
            "backward" if backward else "forward",
            number(call, dtype),
            groups,
            hidden,
            device=json.dumps(device),
            max_sms=min(max_sms, device["sms"]),
            batch=batch if isinstance(batch, int) else 1,
            implementation=call.implementation,
            is_stack=call.is_stack,
        )
        for device in ([known] if known else _possible_devices(call))
    )
    return next(filter(None, reasons), "")


def _possible_devices(call: Call) -> list[dict[str, Any]]:
    """Where a program may run that is made for no GPU that is known.

    What is held on chip, or not run at all, is of another size on each: it must fit on
    all. Of other cells what does not fit is streamed.
    """
    if call.table.norm is None:
        return [target_device()]
    return [*map(native.recorded_device, native.recorded_devices())]


@functools.lru_cache(maxsize=1024)
def _refusal(
    *of,
    device: str,
    max_sms: int,
    batch: int,
    implementation: str | None,
    is_stack: bool,
) -> str:
    cell, which, number, groups, hidden = of
    shape = 1, batch, groups, hidden
    planning = native.cuda_plan(
        cell, which, number, *shape, json.loads(device), max_sms, is_stack
    )
    if planning["best"] is None:
        return planning["reason"]
    return "" if implementation == "native" else prefers_scan(planning, batch)


def prefers_turns(
    call: Call,
    dtype,
    time: Any,
    batch: Any,
    layers: int,
    hidden: int,
    device: dict[str, Any] | None = None,
) -> str:
    """Why the layers of a stack run one after the other; empty where all run at once.

    Once if the GPU is known, and the model says that both passes take less.

    Args:
      call: of the stack, whose groups are its layers.
      device: by default that which programs are made for.
    """
    if not isinstance(time, int) or not isinstance(batch, int):
        return "the sizes of x are known only when the program runs"
    if jnp.dtype(dtype).name not in DTYPES:
        return f"the CUDA engine takes {', '.join(DTYPES)}, not {jnp.dtype(dtype)}"
    device = device or known_device()
    if device is None:
        return f"the GPU is not known; {DEVICE_VARIABLE} names it"
    of = number(call, dtype), time, batch
    return _prefers_turns(
        call.table.name,
        *of,
        layers,
        hidden,
        device=json.dumps(device),
        max_sms=call.max_sms,
    )


@functools.lru_cache(maxsize=1024)
def _prefers_turns(
    cell, number, time, batch, layers, hidden, *, device, max_sms
) -> str:
    for which in "forward", "backward":

        def planned(groups: int, *, is_stack: bool, which: str = which):
            shape = time, batch, groups, hidden
            given = json.loads(device), max_sms, is_stack
            return native.cuda_plan(cell, which, number, *shape, *given)

        at_once, by_turns = planned(layers, is_stack=True), planned(1, is_stack=False)
        if at_once["best"] is None:
            return at_once["reason"]
        taken = layers * by_turns["best"]["call_us"]
        if at_once["best"]["call_us"] * LEAST_GAIN > taken:
            return (
                f"{which}, {layers} layers at once would take "
                f"{at_once['best']['call_us']:.0f} us, one after the other {taken:.0f}"
            )
    return ""


def prefers_scan(planning: dict[str, Any], batch: int) -> str:
    """Why `lax.scan` runs a call though it has a plan; empty where it does not.

    What a plan streams it reads for each slice of the batch, a scan for all rows once.
    """
    best = planning["best"]
    if best is None or best["readings"] <= 1:
        return ""
    return (
        f"a batch of {batch} rows would have a kernel read the weights that the chip "
        f"does not hold {best['readings']} times a step, {best['columns']} rows each; "
        'lax.scan reads them once (implementation="native" has the kernel run)'
    )
