"""Options as callers write them, as Python's own values.

NumPy's and JAX's scalars stand for Python's where their value is known. All is static:
what comes back is hashable.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from prnn_jax._given.checks import check

#: Where all of float32 is asked for, of a product of two such matrices.
_FULL = lax.Precision.HIGHEST
_EXACT = (
    _FULL,
    (_FULL, _FULL),
    lax.DotAlgorithmPreset.F32_F32_F32,
    lax.DotAlgorithmPreset.F64_F64_F64,
)


def flag(op: str, name: str, value: Any) -> bool:
    """A bool, or what can only be one: 0, 1, NumPy's or JAX's scalars of these."""
    known = scalar(value)
    check(
        isinstance(known, (bool, int)) and known in (0, 1),
        f"{op}: {name} must be True or False, known when tracing, got {value!r}"
        f"{_static_hint(value, name)}.",
    )
    return bool(known)


def number(op: str, name: str, value: Any) -> int | float:
    """A number, known when tracing."""
    known = scalar(value)
    if known is None:
        shape = getattr(value, "shape", ())
        of_shape = f" {list(shape)}" if shape else ""
        raise ValueError(
            f"{op}: {name} must be a number, known when tracing, got "
            f"{type(value).__name__}{of_shape}{_static_hint(value, name)}."
        )
    return known


def size(op: str, name: str, value: Any) -> int:
    """A whole number, at least 1."""
    return whole(op, name, value, least=1)


def whole(op: str, name: str, value: Any, *, least: int = 0) -> int:
    """A whole number, at least so much."""
    try:
        known = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{op}: {name} must be a whole number, at least {least}, got {value!r}"
            f"{_static_hint(value, name)}."
        ) from None
    check(known >= least, f"{op}: {name} must be at least {least}, got {value}.")
    return known


def precision(op: str, value: Any) -> Any:
    """A precision as `jax.lax.dot` takes it, its names and lists replaced."""
    of_jax = (lax.Precision, lax.DotAlgorithm, lax.DotAlgorithmPreset)
    if value is None or isinstance(value, of_jax):
        return value
    if isinstance(value, str) and value in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[value]
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    named = tuple(_precision_named(one) for one in (value if is_pair else (value,)))
    check(
        None not in named,
        f"{op}: precision must be one of None, 'default', 'high', 'highest', "
        "'bfloat16', 'tensorfloat32', 'float32', a pair of these, or a jax.lax."
        f"Precision or DotAlgorithmPreset, as jax.lax.dot takes it, got {value!r}.",
    )
    return named if is_pair else named[0]


def is_exact(precision: Any) -> bool:
    """Whether this precision asks for float32's own products and sums."""
    if isinstance(precision, lax.DotAlgorithm):
        inside = (
            precision.lhs_precision_type,
            precision.rhs_precision_type,
            precision.accumulation_type,
        )
        return all(jnp.dtype(kind) in (jnp.float32, jnp.float64) for kind in inside)
    return precision in _EXACT


def scalar(value: Any) -> Any:
    """The Python number that a known scalar is; None where it is something else."""
    if isinstance(value, (bool, int, float)):
        return value
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    if not is_array or isinstance(value, Tracer) or np.shape(value) != ():
        return None
    kinds = jnp.bool_, jnp.integer, jnp.floating
    if not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
        return None
    item = np.asarray(value).item()
    return item if isinstance(item, (bool, int, float)) else float(item)


def hashable(value: Any) -> Any:
    """An option as what a pytree may hold beside its leaves: hashable.

    Lists become tuples, known arrays of no axes numbers; all else stays.
    """
    if isinstance(value, (tuple, list)):
        made = map(hashable, value)
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        known = scalar(value)
        return value if known is None else known
    return value


def _precision_named(value: Any) -> lax.Precision | None:
    """A precision by its name or itself; None for what is neither."""
    if not isinstance(value, (str, lax.Precision)):
        return None
    try:
        return lax.Precision(value)
    except ValueError:
        return None


def _static_hint(value: Any, name: str) -> str:
    """What to do with a value that is traced."""
    if not isinstance(value, Tracer):
        return ""
    argument, *_ = name.split(".")
    return f"; jax.jit(..., static_argnames={argument!r}) makes it known"
