"""Which engine runs a call, and why."""

import os
from dataclasses import dataclass

import jax.numpy as jnp

from prnn_jax import _checks, _ffi
from prnn_jax._call import Call


def engine_for(call: Call, dtype, platform: str) -> tuple[str, str]:
    """("native" or "scan", the reason)."""
    if call.implementation == "scan":
        return "scan", 'implementation="scan" was asked for'
    if jnp.dtype(dtype) != jnp.float32:
        return "scan", f"the native engines take float32, not {jnp.dtype(dtype)}"
    if platform not in _ffi.PLATFORMS:
        return "scan", f"there is no native engine for the platform {platform!r}"
    return "native", f"there is a native engine for {platform} and float32"


@dataclass(frozen=True)
class Plan:
    """How a call is run. Print it.

    Attributes:
      engine: "native" or "scan".
      platform: "cpu", "gpu", ...
      reasons: why this engine, and why cut this way.
      instruction_set: of the CPU engine: "avx512", "avx2" or "portable".
      split: how the CPU engine spreads work: "rows" of the batch, or hidden "units"
        (threads meet after every step).
      threads: how many may work on a call.
      rows_per_block: rows of the batch multiplied at once.
      units_per_panel: hidden units whose weights are read together.
      weight_bytes: packed recurrent weights of one group.
    """

    engine: str
    platform: str
    reasons: tuple[str, ...]
    instruction_set: str | None = None
    split: str | None = None
    threads: int | None = None
    rows_per_block: int | None = None
    units_per_panel: int | None = None
    weight_bytes: int | None = None

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} on {self.platform}"]
        if self.instruction_set:
            lines += [
                f"instruction set: {self.instruction_set}",
                f"threads: {self.threads}, split by {self.split}",
                f"block: {self.rows_per_block} rows x {self.units_per_panel} units",
                f"packed weights: {(self.weight_bytes or 0) / 1024:.0f} KiB per group",
            ]
        return "\n".join([*lines, *(f"because {reason}" for reason in self.reasons)])


def explain(
    cell: str,
    *,
    batch: int,
    time: int,
    hidden_size: int,
    groups: int = 1,
    dtype=jnp.float32,
    reset_after: bool = True,
    training: bool = False,
    platform: str | None = None,
) -> Plan:
    """Which engine a call would use on this machine, how, and why.

    Args:
      cell: "lstm", "gru" or "rnn".
      batch: rows, all batch axes together.
      time: steps.
      hidden_size: units of a group.
      groups: independent recurrences in the call: 2 for a bidirectional layer.
      dtype: of the arrays.
      reset_after: of the GRU.
      training: plan the backward pass instead of the forward pass.
      platform: "cpu", "gpu", ...; by default JAX's.

    Raises:
      ValueError: an unknown cell, or a size below 1.
    """
    _checks.one_of("explain", "cell", cell, ("lstm", "gru", "rnn"))
    sizes = {"batch": batch, "time": time, "hidden_size": hidden_size, "groups": groups}
    for name, size in sizes.items():
        _checks.check(size >= 1, f"explain: {name} must be at least 1, got {size}.")
    names = {"rnn": "rnn_tanh", "gru": "gru" if reset_after else "gru_reset_before"}
    call = Call(names.get(cell, cell))
    platform = platform or _checks.platform()
    engine, reason = engine_for(call, dtype, platform)
    if engine == "scan":
        return Plan(engine, platform, (reason,))
    threads = len(os.sched_getaffinity(0))
    plan = _ffi.native.cpu_plan(
        call.cell, time, batch, groups, hidden_size, training, threads
    )
    cache = plan["cache_bytes"]
    weights = f"{plan['weight_bytes'] / 1024:.0f} KiB of packed weights"
    if plan["split"] == "units":
        why = f"{weights} are too many for each thread's {cache // 1024} KiB of cache"
        if plan["weight_bytes"] <= cache * 3 // 4:
            why = f"{batch * groups} rows are too few for {threads} threads"
    elif plan["threads"] == 1 and threads > 1:
        why = "a step is too short for more than one thread"
    else:
        why = f"{weights} stay in each thread's {cache // 1024} KiB of cache"
    return Plan(
        engine,
        platform,
        (reason, why),
        **{
            name: plan[name]
            for name in (
                "instruction_set",
                "split",
                "threads",
                "rows_per_block",
                "units_per_panel",
                "weight_bytes",
            )
        },
    )
