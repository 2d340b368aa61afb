"""Which engine runs a call, and why."""

import os
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from prnn_jax import _checks, _cuda, _ffi, _input, _options
from prnn_jax._activations import GivenActivation, GivenActivations
from prnn_jax._call import Call
from prnn_jax._cell_options import cell_of
from prnn_jax._cells import AnyCell, check_cell_name
from prnn_jax._cores import cores
from prnn_jax._native import missing, native

#: What the native engines take, by platform as JAX names it where it lowers.
_DTYPES = {"cpu": _ffi.CPU_DTYPES, "cuda": _cuda.DTYPES}

_UNPROVEN = (
    "the CUDA engine has run on an H100 without JAX, its calls from JAX in an emulator"
)


def target_platform() -> str:
    """The platform that programs are made for, as far as is known while tracing."""
    for_a_gpu = "cuda" in _ffi.PLATFORMS and os.environ.get(_cuda.DEVICE_VARIABLE)
    return "gpu" if for_a_gpu else _checks.platform()


def engine_for(
    call: Call, dtype, platform: str, groups: int = 1, hidden: int = 1
) -> tuple[str, str]:
    """("native" or "scan", the reason) for a forward pass."""
    if call.implementation == "scan":
        return "scan", 'implementation="scan" was asked for'
    if not call.table.engines:
        described = call.table.described
        if not described:
            return "scan", f"{call.table.function} is a cell of your own"
        return "scan", f"{described} has no native engine"
    if missing:
        return "scan", missing
    lowered = _lowered(platform)
    takes = _DTYPES.get(lowered, ("float32",))
    if jnp.dtype(dtype).name not in takes:
        listed = ", ".join(takes)
        return "scan", f"the native engines take {listed}, not {jnp.dtype(dtype)}"
    if lowered == "cuda" and lowered not in _ffi.PLATFORMS:
        return "scan", (
            "this installation has no CUDA engine; pip install prnn_jax_cuda13 brings "
            "it, or PRNN_CUDA=ON pip install, with nvcc on the PATH, builds it"
        )
    if lowered not in _ffi.PLATFORMS:
        return "scan", f"there is no native engine for the platform {platform!r}"
    if lowered == "cuda" and lowered not in call.table.engines:
        return "scan", f"{call.table.described} has no CUDA kernel yet"
    if lowered == "cuda":
        refusal = _cuda.refusal(call, dtype, groups, hidden, backward=False)
        if refusal:
            return "scan", refusal.removesuffix(".")
    return "native", f"there is a native engine for {platform} and {jnp.dtype(dtype)}"


@dataclass(frozen=True)
class Plan:
    """How a call is run. Print it.

    Attributes:
      engine: "native" or "scan".
      platform: "cpu", "gpu", ...
      reasons: why this engine, and why cut this way.
      instruction_set: of the CPU engine: "avx512_bf16", "avx512", "avx2" or
        "portable".
      partition: how the CPU engine divides work among threads: "batch", each takes rows
        through all steps; "hidden", each takes units of every step, with a barrier
        after it; "columns", the same, but products by their columns.
      threads: how many may work on a call.
      rows_per_block: rows of the batch multiplied at once.
      units_per_panel: hidden units whose weights are read together.
      weights: "packed" before the first step, "prepacked" before the call, or
        "unpacked": read as they lie in memory.
      projected_steps: of a layer, as many steps of the input projection as the CPU
        engine makes at a time.
      projection_weights: how that reads its weights: as `weights`, or "packed per
        panel", one at a time for each of its chunks; "by XLA" where that is faster, for
        all steps before the call.
      weight_bytes: recurrent weights of one group.
      weight_bits: of a weight as the CPU engine reads it.
      device: of the CUDA engine, and all that follows: the GPU planned for.
      exchange: how the blocks of a team tell each other h: within one "block", through
        the shared memory of a "cluster", or through global memory in a "grid".
      tile: rows of the matrix that a block holds, and rows of the batch it multiplies
        at once.
      units_per_block: hidden units, with all their rows.
      blocks: that hold the weights of one group, an SM each: a team.
      teams: that run side by side, each on its own group or slice of the batch.
      rounds: such jobs that a team takes one after the other.
      register_k_blocks: of a warp's share of the weights, 64 bytes deep, those in
        registers.
      shared_k_blocks: those in shared memory.
      shared_bytes: shared memory of a block, all told.
      step_us: modelled time of one step of the whole batch.
      step_parts_us: what it consists of, for one round; on a GPU product and load
        overlap, on a CPU reading and multiplying.
      call_us: modelled time of the call, the loading of the weights included.
      candidates: all that is compiled for such a call, a line each: what it would take,
        or why it cannot.
    """

    engine: str
    platform: str
    reasons: tuple[str, ...]
    instruction_set: str | None = None
    partition: str | None = None
    threads: int | None = None
    rows_per_block: int | None = None
    units_per_panel: int | None = None
    weights: str | None = None
    projected_steps: int | None = None
    projection_weights: str | None = None
    weight_bytes: int | None = None
    weight_bits: int | None = None
    device: str | None = None
    exchange: str | None = None
    tile: tuple[int, int] | None = None
    units_per_block: int | None = None
    blocks: int | None = None
    teams: int | None = None
    rounds: int | None = None
    register_k_blocks: int | None = None
    shared_k_blocks: int | None = None
    shared_bytes: int | None = None
    step_us: float | None = None
    step_parts_us: tuple[tuple[str, float], ...] = ()
    call_us: float | None = None
    candidates: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} on {self.platform}"]
        if self.instruction_set:
            lines += [
                f"instruction set: {self.instruction_set}",
                f"threads: {self.threads}, {self.partition}-parallel",
                f"block: {self.rows_per_block} rows x {self.units_per_panel} units",
                f"weights, {self.weights}: "
                f"{(self.weight_bytes or 0) / 1024:.0f} KiB per group, "
                f"{self.weight_bits} bits each",
                f"modelled: {self.step_us:.2f} us per step, "
                f"{self.call_us:.1f} us in all",
            ]
        if self.projected_steps:
            lines += [
                f"input projection: {self.projected_steps} steps at a time, "
                f"weights {self.projection_weights}"
            ]
        elif self.projection_weights:
            lines += [f"input projection: {self.projection_weights}, before the call"]
        if self.device:
            lines += [f"device: {self.device}"]
        if self.exchange and self.tile:
            rows, columns = self.tile
            parts = ", ".join(f"{name} {us:.2f}" for name, us in self.step_parts_us)
            lines += [
                f"exchange: {self.exchange}",
                f"teams x blocks: {self.teams} x {self.blocks}, rounds: {self.rounds}",
                f"block: {self.units_per_block} units, {rows} rows x {columns} of the "
                f"batch, {(self.shared_bytes or 0) / 1024:.0f} KiB of shared memory",
                f"weights of a warp: {self.register_k_blocks} k blocks in registers, "
                f"{self.shared_k_blocks} in shared memory",
                f"modelled: {self.step_us:.2f} us per step, "
                f"{self.call_us:.0f} us in all",
                f"of a round's step, in us: {parts}",
            ]
        lines += [f"because {reason}" for reason in self.reasons]
        return "\n".join([*lines, *self.candidates])


def explain(
    cell: AnyCell,
    *,
    batch: int,
    time: int,
    hidden_size: int,
    input_size: int | None = None,
    groups: int = 1,
    dtype=jnp.float32,
    reset_after: bool = True,
    activation: GivenActivations = "tanh",
    gate_activation: GivenActivation = "sigmoid",
    proj_size: int | None = None,
    training: bool = False,
    platform: str | None = None,
    device: str | None = None,
    precision: lax.PrecisionLike = None,
    max_sms: int | None = None,
) -> Plan:
    """Which engine a call would use on this machine, or on a GPU named, how, and why.

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", or what `define_cell` has made.
      batch: rows, all batch axes together.
      time: steps.
      hidden_size: units of a group.
      input_size: of x, if the call is a layer and not a recurrence alone.
      groups: independent recurrences in the call: 2 for a bidirectional layer.
      dtype: of the arrays.
      reset_after: of the GRU.
      activation: as in the cell's own function.
      gate_activation: as in `lstm` and `gru`.
      proj_size: columns of `Params.w_hr`, of an LSTM that has a projection.
      training: plan the backward pass instead of the forward pass.
      platform: "cpu", "gpu", ...; by default JAX's, or the device's.
      device: a GPU that need not be here, such as "NVIDIA H200"; by default the one
        that PRNN_CUDA_DEVICE names, or this machine's. An unknown name is an error
        that lists those known.
      precision: of matrix products, as in the call. On a GPU, float32 is multiplied in
        TF32 unless this is "highest".
      max_sms: how many SMs of the GPU the call may take; by default PRNN_CUDA_MAX_SMS,
        or all.

    Raises:
      ValueError: an unknown cell or device, or a size below 1.
    """
    arguments = locals()
    check_cell_name("explain", cell)
    sizes = {"batch": batch, "time": time, "hidden_size": hidden_size, "groups": groups}
    if input_size is not None:
        sizes["input_size"] = input_size
    if proj_size is not None:
        sizes["proj_size"] = proj_size
    sizes = {name: _options.size("explain", name, n) for name, n in sizes.items()}
    if max_sms is not None:
        max_sms = _options.size("explain", "max_sms", max_sms)
    training = _options.flag("explain", "training", training)
    call = Call(
        **cell_of("explain", cell, arguments),
        precision=_options.precision("explain", precision),
        max_sms=_cuda.max_sms() if max_sms is None else max_sms,
    )
    if proj_size is not None:
        projected = call.table.with_projection
        _checks.check(
            projected is not None,
            f"explain: proj_size must be None, for only the lstm has a projection, got "
            f"{proj_size}.",
        )
        call = replace(call, cell=projected)
    dtype = _checks.dtype("explain", dtype)
    for name, given in (("platform", platform), ("device", device)):
        _checks.check(
            given is None or isinstance(given, str),
            f"explain: {name} must be a name, such as "
            f"{'cpu' if name == 'platform' else 'NVIDIA H200'!r}, got {given!r}.",
        )
    if device is not None:
        platform = platform or "gpu"
        _checks.check(
            _lowered(platform) == "cuda",
            f"explain: device={device!r} is a GPU, but platform={platform!r}; "
            "leave one of them out.",
        )
    platform = platform or _checks.platform()
    if missing:
        return Plan("scan", platform, (missing,))
    if _lowered(platform) == "cuda" and call.table.engines:
        return _on_cuda(call, sizes, dtype, training, platform, device)
    engine, reason = engine_for(call, dtype, platform)
    if engine == "scan":
        return Plan(engine, platform, (reason,))
    return _on_cpu(call, sizes, dtype, training, platform, reason)


def _lowered(platform: str) -> str:
    """JAX's backend is called "gpu", its lowering rules go by "cuda"."""
    return "cuda" if platform == "gpu" else platform


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
    is_by_xla = not _input.is_native_faster(rows, weights, jnp.dtype(dtype))
    plan = native.cpu_plan(
        call.cell,
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
    return min(available, 1 + workers) if workers else available


def _on_cuda(
    call: Call,
    sizes: dict[str, int],
    dtype,
    training: bool,
    platform: str,
    device: str | None,
) -> Plan:
    if jnp.dtype(dtype).name not in _cuda.DTYPES:
        return Plan("scan", platform, (engine_for(call, dtype, platform)[1],))
    listed = native.recorded_devices()
    if device is not None:
        _checks.one_of("explain", "device", device, listed)
        known = _cuda.recorded(device)
    elif os.environ.get(_cuda.DEVICE_VARIABLE):
        known = _cuda.target_device()
    else:
        known = _cuda.local_device()
    if known is None:
        raise ValueError(
            "explain: this machine has no GPU to plan for; name one with device=, of "
            f"{', '.join(map(repr, listed))}."
        )
    planning = native.cuda_plan(
        call.cell,
        "backward" if training else "forward",
        _cuda.number(call, dtype),
        sizes["time"],
        sizes["batch"],
        sizes["groups"],
        sizes["hidden_size"],
        known,
        call.max_sms,
    )
    _checks.check(planning["is_valid"], planning["reason"])
    engine, reasons = "native", [planning["reason"].removesuffix(".")]
    best = planning["best"]
    if best is None:
        engine = "scan"
    else:
        reasons.append(_UNPROVEN)
    if "cuda" not in _ffi.PLATFORMS:
        reasons.append(
            "this build has no CUDA engine: on a GPU its calls take the scan"
        )
        engine = "scan" if device is None else engine
    return Plan(
        engine,
        platform,
        tuple(reasons),
        device=known["name"],
        candidates=tuple(planning["text"].splitlines()[1:]),
        **_fields(best),
    )


def _fields(best: dict[str, Any] | None) -> dict[str, Any]:
    """Of a `Plan`, from the planner's best."""
    if best is None:
        return {}
    same = "exchange", "blocks", "teams", "rounds", "shared_k_blocks", "shared_bytes"
    return {name: best[name] for name in (*same, "step_us", "call_us")} | {
        "tile": (best["rows"], best["columns"]),
        "units_per_block": best["units"],
        "register_k_blocks": best["k_blocks"] - best["shared_k_blocks"],
        "step_parts_us": tuple(best["parts_us"].items()),
    }
