"""Which engine runs a recurrence without a product in a step, and why."""

from typing import Any, Literal

import jax.numpy as jnp

from prnn_jax._cells.activations import applied
from prnn_jax._engine.elementwise import Elementwise, cuda_plan, of_parts
from prnn_jax._engine.plan import no_engine
from prnn_jax._given.checks import check, float32_at_least

#: The functions that are a layer with such a recurrence.
LinearCellName = Literal[
    "min_gru", "min_lstm", "rg_lru", "lru", "sru", "qrnn", "indrnn"
]
#: And all that are such recurrences.
LinearName = Literal["linear_recurrence", LinearCellName]

#: Why no engine runs an SRU with peepholes.
BY_SCAN = "with peepholes the forget gate sees the state, which takes a lax.scan"

_STEPS = {
    "native": "its steps, forward and backward, are one pass over memory; all that is "
    "made of the input alone is made before, for all steps at once",
    "associative_scan": "h' = a h + b is associative: jax.lax.associative_scan takes "
    "log(time) rounds over all steps",
    "scan": "lax.scan takes one step after the other",
}


def linear_engine(
    name: LinearName,
    dtype: Any,
    platform: str,
    *,
    peepholes: bool,
    is_elsewhere: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """What `explain` says of such a function: the engine, and the reasons.

    Args:
      name: of the function.
      dtype: of the arrays.
      platform: as JAX names it.
      peepholes: whether an SRU has some.
      is_elsewhere: as of `no_engine`.
    """
    if peepholes:
        return "scan", (BY_SCAN, _STEPS["scan"])
    # Any activation: which it is makes no difference.
    of = _how(name), dtype, platform
    engine, reason = engine_of(*of, is_elsewhere=is_elsewhere)
    return engine, (reason, _STEPS[engine])


def _how(name: LinearName) -> Elementwise:
    f = applied("explain", "activation", "tanh") if name == "indrnn" else None
    return Elementwise(f=f)


def linear_cuda_plan(
    name: LinearName, shape: tuple[int, int, int], dtype: Any, device: dict[str, Any]
) -> dict[str, Any]:
    """What a GPU does of such a function's steps, rows, steps and units by shape."""
    constant = name in ("indrnn", "lru")
    if name == "lru":
        dtype = jnp.complex64
    elif name not in ("indrnn", "linear_recurrence"):  # factors of gates
        dtype = float32_at_least(dtype)
    return cuda_plan(_how(name), shape, dtype, device, constant=constant)


def engine_of(
    how: Elementwise, dtype: Any, platform: str = "cpu", *, is_elsewhere: bool = False
) -> tuple[str, str]:
    """("native", "associative_scan" or "scan", the reason)."""
    if how.implementation == "scan":
        return "scan", 'implementation="scan" was asked for'
    reason = no_engine(of_parts(dtype), platform, is_elsewhere=is_elsewhere)
    if reason and jnp.dtype(dtype) == jnp.complex128:
        reason = "of complex numbers the native engines take complex64, not complex128"
    if not reason:
        described = jnp.dtype(dtype).name
        return "native", f"there is a native engine for {platform} and {described}"
    return "associative_scan" if how.f is None else "scan", reason


def check_native(op: str, how: Elementwise, dtype: Any, refusal: str = "") -> None:
    """Raises ValueError if the native engine is asked for and there is none.

    Args:
      op: the function, for messages.
      how: the call.
      dtype: of its arrays.
      refusal: why there is none in any case.
    """
    if how.implementation != "native":
        return
    engine, reason = engine_of(how, dtype)
    reason = refusal or reason
    check(
        engine == "native" and not refusal,
        f'{op}: implementation="native" is not available: {reason}. '
        'implementation="scan" always runs; None chooses.',
    )
