"""Which engine runs a call, and why."""

import os
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from prnn_jax._call.call import Call
from prnn_jax._engine import ffi, gpu
from prnn_jax._engine.modules import missing
from prnn_jax._given import checks

#: What the native engines take, by platform as JAX names it where it lowers.
DTYPES = {"cpu": ffi.CPU_DTYPES, "cuda": gpu.DTYPES}
#: What brings the CUDA engine.
NO_CUDA = (
    "pip install prnn_jax_cuda13 brings it, or PRNN_CUDA=ON pip install, with nvcc on "
    "the PATH, builds it"
)


def target_platform() -> str:
    """The platform that programs are made for, as far as is known while tracing."""
    for_a_gpu = "cuda" in ffi.PLATFORMS and os.environ.get(gpu.DEVICE_VARIABLE)
    return "gpu" if for_a_gpu else checks.platform()


def engine_for(
    call: Call,
    dtype,
    platform: str,
    groups: int = 1,
    hidden: int = 1,
    batch: int = 1,
    *,
    has_mask: bool = False,
) -> tuple[str, str]:
    """("native" or "scan", the reason) for a forward pass."""
    if call.implementation == "scan":
        return "scan", 'implementation="scan" was asked for'
    if not call.table.engines:
        described = call.table.described
        if not described:
            return "scan", f"{call.table.function} is a cell of your own"
        return "scan", f"{described} has no native engine"
    lowered = lowered_as(platform)
    # What holds of the cell wherever it runs is said before what is installed here.
    if lowered == "cuda" and (reason := gpu.no_kernel(call, has_mask=has_mask)):
        return "scan", reason.removesuffix(".")
    if reason := no_engine(dtype, platform):
        return "scan", reason
    if lowered == "cuda":
        of = call, dtype, groups, hidden, batch
        refusal = gpu.refusal(*of, backward=False, has_mask=has_mask)
        if refusal:
            return "scan", refusal.removesuffix(".")
    return "native", f"there is a native engine for {platform} and {jnp.dtype(dtype)}"


def no_engine(dtype: Any, platform: str, *, is_elsewhere: bool = False) -> str:
    """Why no native engine runs anything there; empty where one does.

    Args:
      dtype: of the arrays.
      platform: as JAX names it.
      is_elsewhere: of a GPU that need not be here, where other packages may be
        installed.
    """
    lowered, name = lowered_as(platform), jnp.dtype(dtype).name
    takes = DTYPES.get(lowered, ("float32",))
    if missing:
        return missing
    if name not in takes:
        return f"the native engines take {', '.join(takes)}, not {name}"
    if lowered == "cuda" and is_elsewhere:
        return ""
    if lowered == "cuda" and (other := gpu.other_gpu()):
        return f"there is no native engine for {other}, which is not NVIDIA's"
    if lowered == "cuda" and lowered not in ffi.PLATFORMS:
        return f"this installation has no CUDA engine; {NO_CUDA}"
    if lowered not in ffi.PLATFORMS:
        return f"there is no native engine for the platform {platform!r}"
    return ""


@dataclass(frozen=True)
class Plan:
    """How a call is run. Print it.

    Attributes:
      engine: "native" or "scan"; "associative_scan" of a linear recurrence that no
        native engine runs.
      platform: "cpu", "gpu", ...
      reasons: why this engine, and why cut this way.
      instruction_set: of the CPU engine: "amx_bf16", "avx512_bf16", "avx512", "avx2",
        on Arm "neon_bf16" or "neon", or "portable".
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
      tile: rows of the matrix, and rows of the batch, that a block multiplies at once.
      units_per_block: hidden units, with all their rows.
      blocks: that hold the weights of one group, an SM each: a team.
      teams: that run side by side, each on its own group or slice of the batch.
      rounds: such jobs that a team takes one after the other.
      register_k_blocks: of a warp's share of the weights, 64 bytes deep, those in
        registers.
      shared_k_blocks: those in shared memory.
      streamed_k_blocks: those that are read from global memory in every step, where the
        chip has no room for them.
      panels: how many such sets of rows of the matrix a block multiplies one after the
        other, k blocks being those of all: 1 but where weights may be streamed.
      shared_bytes: shared memory of a block, all told.
      chunks: of a linear recurrence: into how many its steps are cut, side by side.
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
    streamed_k_blocks: int | None = None
    panels: int | None = None
    shared_bytes: int | None = None
    chunks: int | None = None
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
            if self.engine != "native":
                lines += ["the kernel that does not run:"]
            rows, columns = self.tile
            panels = f"{self.panels} panels of " if self.panels != 1 else ""
            shared, streamed = (self.shared_bytes or 0) / 1024, self.streamed_k_blocks
            parts = ", ".join(f"{name} {us:.2f}" for name, us in self.step_parts_us)
            lines += [
                f"exchange: {self.exchange}",
                f"teams x blocks: {self.teams} x {self.blocks}, rounds: {self.rounds}",
                f"block: {self.units_per_block} units, {panels}{rows} rows x {columns} "
                f"of the batch, {shared:.0f} KiB of shared memory",
                f"weights of a warp: {self.register_k_blocks} k blocks in registers, "
                f"{self.shared_k_blocks} in shared memory"
                + (f", {streamed} streamed" if streamed else ""),
                f"modelled: {self.step_us:.2f} us per step, "
                f"{self.call_us:.0f} us in all",
                f"of a round's step, in us: {parts}",
            ]
        if self.chunks:
            lines += [
                f"steps: in {self.chunks} chunks side by side"
                if self.chunks > 1
                else "steps: one after the other",
                f"modelled: {self.call_us:.0f} us in all",
            ]
        lines += [f"because {reason}" for reason in self.reasons]
        return "\n".join([*lines, *self.candidates])


def lowered_as(platform: str) -> str:
    """JAX's backend is called "gpu", its lowering rules go by "cuda"."""
    return "cuda" if platform == "gpu" else platform
