"""Which engine a call would take, how it would be cut, and why."""

from dataclasses import replace
from typing import Any, get_args

import jax.numpy as jnp
from jax import lax

from prnn_jax._call.call import Call
from prnn_jax._call.choose import cell_of
from prnn_jax._call.options import Options
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import AnyCell, check_cell_name
from prnn_jax._engine import elementwise, ffi, gpu, input_projection
from prnn_jax._engine.cores import cores
from prnn_jax._engine.linear_plan import LinearName, linear_cuda_plan, linear_engine
from prnn_jax._engine.modules import missing, native
from prnn_jax._engine.plan import NO_CUDA, Plan, engine_for, lowered_as
from prnn_jax._given import checks, statics

_UNPROVED = "no GPU has run such a call yet: it is tested in an emulator"
_NOT_BUILT = "this build has no CUDA engine: on a GPU its calls take {}; " + NO_CUDA
_PROOF = (
    "the CUDA engine is tested on an H200, an earlier one on an H100, and for other "
    "GPUs in an emulator"
)


def explain(
    cell: AnyCell | LinearName,
    *,
    batch: int,
    time: int,
    hidden_size: int,
    input_size: int | None = None,
    groups: int = 1,
    layers: int = 1,
    dtype=jnp.float32,
    reset_after: bool = True,
    activation: GivenActivations = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    peepholes: bool = False,
    proj_size: int | None = None,
    training: bool = False,
    platform: str | None = None,
    device: str | None = None,
    precision: lax.PrecisionLike = None,
    max_sms: int | None = None,
) -> Plan:
    """Which engine a call would use on this machine, or on a GPU named, how, and why.

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", what `define_cell` has made, or the name of
        a function without a product in a step, such as "min_gru".
      batch: rows, all batch axes together.
      time: steps.
      hidden_size: units of a group; of "lru" complex numbers of the state.
      input_size: of x, if the call is a layer and not a recurrence alone.
      groups: independent recurrences in the call: 2 for a bidirectional layer.
      layers: of a stack that has nothing but the layers; on a GPU they may run at once,
        which PRNN_CUDA_STACKS=1 allows.
      dtype: of the arrays; complex only of "linear_recurrence".
      reset_after: of the GRU.
      activation: as in the cell's own function.
      gate_activation: as in `lstm` and `gru`.
      clip: as in `lstm`.
      peepholes: whether an LSTM or an SRU has some.
      proj_size: columns of `Params.w_hr`, of an LSTM that has a projection.
      training: plan the backward pass instead of the forward pass.
      platform: "cpu", "gpu", ...; by default JAX's, or the device's.
      device: a GPU that need not be here, such as "NVIDIA H200"; by default the one
        that PRNN_CUDA_DEVICE names, or this machine's. An unknown name is an error
        that lists those known.
      precision: of matrix products, as in the call. On a GPU, float32 is multiplied in
        TF32 unless this is "highest".
      max_sms: how many SMs of the GPU the call may take; by default PRNN_CUDA_MAX_SMS,
        or all, but for 20 where JAX sees several GPUs. Cells without a product in a
        step take what there is.

    Raises:
      ValueError: an unknown cell or device, or a size below 1.
    """
    options = Options.of(locals())
    check_cell_name("explain", cell, get_args(LinearName))
    sizes = {"batch": batch, "time": time, "hidden_size": hidden_size, "groups": groups}
    sizes["layers"] = layers
    if input_size is not None:
        sizes["input_size"] = input_size
    if proj_size is not None:
        sizes["proj_size"] = proj_size
    sizes = {name: statics.size("explain", name, n) for name, n in sizes.items()}
    if max_sms is not None:
        max_sms = statics.size("explain", "max_sms", max_sms)
    training = statics.flag("explain", "training", training)
    peepholes = statics.flag("explain", "peepholes", peepholes)
    linear: Any = cell if cell in get_args(LinearName) else None
    checks.check(
        not peepholes or cell in ("lstm", "sru"),
        f"explain: peepholes must be False, which only lstm and sru have, got True for "
        f"{cell}.",
    )
    checks.check(
        proj_size is None or cell == "lstm",
        f"explain: proj_size must be None, for only the lstm has a projection, got "
        f"{proj_size}.",
    )
    dtype = checks.dtype("explain", dtype)
    kinds = jnp.inexact if cell == "linear_recurrence" else jnp.floating
    checks.check(
        jnp.issubdtype(dtype, kinds),
        f"explain: dtype must be a floating one, such as jnp.float32, got {dtype}.",
    )
    for name, given in (("platform", platform), ("device", device)):
        checks.check(
            given is None or isinstance(given, str),
            f"explain: {name} must be a name, such as "
            f"{'cpu' if name == 'platform' else 'NVIDIA H200'!r}, got {given!r}.",
        )
    if device is not None:
        platform = platform or "gpu"
        checks.check(
            lowered_as(platform) == "cuda",
            f"explain: device={device!r} is a GPU, but platform={platform!r}; "
            "leave one of them out.",
        )
    platform = platform or checks.platform()
    is_planned = lowered_as(platform) == "cuda" and not missing
    is_planned = is_planned and not (device is None and gpu.other_gpu())
    if linear:
        parts = elementwise.of_parts(dtype).name
        if is_planned and not peepholes and parts in gpu.DTYPES:
            return _linear_on_cuda(linear, sizes, dtype, platform, device)
        engine, reasons = linear_engine(linear, dtype, platform, peepholes=peepholes)
        return Plan(engine, platform, reasons)
    gated: Any = cell
    call = Call(
        **cell_of("explain", gated, options),
        precision=statics.precision("explain", precision),
    )
    if peepholes:
        call = replace(call, cell=call.table.with_per_unit)
    if proj_size is not None:
        call = replace(call, cell=call.table.with_projection)
    if is_planned and not gpu.no_kernel(call):
        return _on_cuda(call, sizes, dtype, training, platform, device, max_sms)
    engine, reason = engine_for(call, dtype, platform)
    if engine == "scan":
        return Plan(engine, platform, (reason,))
    return _on_cpu(call, sizes, dtype, training, platform, reason)


def _on_cpu(
    call: Call,
    sizes: dict[str, int],
    dtype,
    training: bool,
    platform: str,
    reason: str,
) -> Plan:
    batch, groups = sizes["batch"], sizes["groups"]
    inputs = sizes.get("input_size", 0)
    weights = inputs * groups * call.table.gates * sizes["hidden_size"]
    rows = batch * sizes["time"]
    is_by_xla = not input_projection.is_native_faster(rows, weights, jnp.dtype(dtype))
    plan = native.cpu_plan(
        call.table.name,
        sizes["time"],
        batch,
        groups,
        sizes["hidden_size"],
        sizes.get("proj_size", 0),
        training,
        _threads(),
        jnp.dtype(dtype).name,
        0 if is_by_xla else inputs,
    )
    if is_by_xla:
        plan["projection_weights"] = "by XLA"
    same = (
        *("instruction_set", "partition", "threads", "rows_per_block"),
        *("units_per_panel", "weights", "projected_steps", "projection_weights"),
        *("weight_bytes", "weight_bits", "step_us", "call_us"),
    )
    return Plan(
        "native",
        platform,
        (reason, plan["reason"], f"the model's rates are {plan['rates']}"),
        **{name: plan[name] for name in same},
        step_parts_us=tuple(plan["parts_us"].items()),
        candidates=tuple(plan["table"]),
    )


def _threads() -> int:
    """Of a call on the CPU: the engine's own and the caller's, or XLA's."""
    available, workers = cores(), native.cpu_workers()
    return min(available, 1 + workers) if native.has_own_threads() else available


def _on_cuda(
    call: Call,
    sizes: dict[str, int],
    dtype,
    training: bool,
    platform: str,
    device: str | None,
    max_sms: int | None,
) -> Plan:
    if jnp.dtype(dtype).name not in gpu.DTYPES:
        return Plan("scan", platform, (engine_for(call, dtype, platform)[1],))
    known = _known_device(device)
    if max_sms is None:
        max_sms = gpu.max_sms_of(known, gpu.max_sms())
    call = replace(call, max_sms=max_sms)
    rows, groups, layers = sizes["batch"], sizes["groups"], sizes["layers"]
    of_turns = ""
    if layers > 1:
        of = sizes["time"], rows, layers, sizes["hidden_size"], known
        of_turns = (
            "a GPU runs layers of one direction at once"
            if groups > 1
            else (gpu.prefers_turns(replace(call, is_stack=True), dtype, *of))
        )
        if not (of_turns or gpu.is_on(gpu.STACKS_VARIABLE, False)):
            of_turns = f"{gpu.STACKS_VARIABLE}=1 would have them run at once"
    is_at_once = layers > 1 and not of_turns
    planning = native.cuda_plan(
        call.table.folded or call.table.name,
        "backward" if training else "forward",
        gpu.number(call, dtype),
        sizes["time"],
        rows,
        layers if is_at_once else groups,
        sizes["hidden_size"],
        known,
        call.max_sms,
        is_at_once,
    )
    checks.check(planning["is_valid"], planning["reason"])
    engine, reasons = "native", [planning["reason"].removesuffix(".")]
    if call.table.folded:
        reasons.append(
            "w_hr w_hh is one matrix there, but for calls with a recurrent mask, which "
            "lax.scan runs"
        )
    if is_at_once:
        reasons.append(f"all {layers} layers run at once")
    elif of_turns:
        reasons.append(f"one layer after the other: {of_turns.removesuffix('.')}")
    best = planning["best"]
    if best is None:
        engine = "scan"
    else:
        is_proved = gpu.is_measured(call) and not is_at_once
        reasons.append(_PROOF if is_proved else _UNPROVED)
    if call.implementation != "native" and (
        why := gpu.prefers_scan(planning, sizes["batch"])
    ):
        engine = "scan"
        reasons.append(why)
    if "cuda" not in ffi.PLATFORMS:
        reasons.append(_NOT_BUILT.format("the scan"))
        engine = "scan" if device is None else engine
    return Plan(
        engine,
        platform,
        tuple(reasons),
        device=known["name"],
        candidates=tuple(planning["text"].splitlines()[1:]),
        **_fields(best),
    )


def _linear_on_cuda(
    name: LinearName, sizes: dict[str, int], dtype, platform: str, device: str | None
) -> Plan:
    known = _known_device(device)
    here, reasons = linear_engine(name, dtype, platform, peepholes=False)
    is_built = "cuda" in ffi.PLATFORMS
    if not is_built and device is None:
        return Plan(here, platform, reasons)
    of = name, dtype, platform
    engine, reasons = linear_engine(*of, peepholes=False, is_elsewhere=True)
    shape = sizes["batch"] * sizes["groups"], sizes["time"], sizes["hidden_size"]
    plan = linear_cuda_plan(name, shape, dtype, known)
    of_here = () if is_built else (_NOT_BUILT.format(f"jax.lax.{here}"),)
    return Plan(
        engine,
        platform,
        (*reasons, _UNPROVED, *of_here),
        device=known["name"],
        chunks=plan["chunks"],
        call_us=plan["call_us"],
    )


def _known_device(device: str | None) -> dict[str, Any]:
    """The GPU of that name on record, or the one that programs are made for."""
    listed = native.recorded_devices()
    if device is not None:
        checks.one_of("explain", "device", device, listed)
        known = gpu.recorded(device)
    else:
        known = gpu.known_device()
    if known is None:
        raise ValueError(
            "explain: this machine has no GPU to plan for; name one with device=, of "
            f"{', '.join(map(repr, listed))}."
        )
    return known


def _fields(best: dict[str, Any] | None) -> dict[str, Any]:
    """Of a `Plan`, from the planner's best."""
    if best is None:
        return {}
    same = "exchange", "blocks", "teams", "rounds", "shared_k_blocks", "shared_bytes"
    same += "streamed_k_blocks", "panels", "step_us", "call_us"
    elsewhere = best["shared_k_blocks"] + best["streamed_k_blocks"]
    return {name: best[name] for name in same} | {
        "tile": (best["rows"], best["columns"]),
        "units_per_block": best["units"] * best["panels"],
        "register_k_blocks": best["k_blocks"] - elsewhere,
        "step_parts_us": tuple(best["parts_us"].items()),
    }
