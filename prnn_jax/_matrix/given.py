"""Checks of the calls whose state is a matrix."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._call.controls import checked_lengths, steps_that_count
from prnn_jax._given import checks
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._matrix.terms import Memory

_FEATURES = {"q": "d_k", "k": "d_k", "v": "d_v"}


class Given(NamedTuple):
    """The arrays of a call, of equally many axes.

    Attributes:
      q, k, v: `[*batch, time, features]`, where a batch axis may be 1.
      gates: by name, `[*batch, time]` likewise, in the dtype of sums.
      counts: bool `[*batch, time]`: which steps count; or None for all.
      resets: before which the state is replaced; or None.
      batch: all batch axes.
    """

    q: Array
    k: Array
    v: Array
    gates: dict[str, Array]
    counts: Array | None
    resets: Array | None
    batch: tuple[int, ...]

    @classmethod
    def of(
        cls,
        op: str,
        qkv: Mapping[str, Any],
        gates: Mapping[str, Any],
        lengths: Any,
        resets: Any,
        *,
        time_major: bool,
    ) -> "Given":
        arrays = {name: checks.jax_array(op, name, x) for name, x in qkv.items()}
        checks.same_dtype(op, arrays)
        for name, gate in gates.items():
            one = {name: checks.jax_array(op, name, gate)}
            checks.same_dtype_or_float32(op, ("q", arrays["q"]), one)
            arrays |= one
        if resets is not None:
            arrays["resets"] = jnp.asarray(resets)
        arrays = {
            name: _time_last(op, name, x, time_major=time_major)
            for name, x in arrays.items()
        }
        sizes = {
            name: x.shape[:-1] if name in _FEATURES else x.shape
            for name, x in arrays.items()
        }
        batch, time = _batch_and_time(op, sizes, time_major=time_major)
        d_k, others = arrays["q"].shape[-1], arrays["k"].shape[-1]
        check(
            d_k == others > 0,
            f"{op}: q and k must have equally many features, at least 1, got {d_k} "
            f"and {others}.",
        )
        wide = float32_at_least(arrays["q"].dtype)
        q, k, v = (_ranked(arrays.pop(name), len(batch) + 2) for name in _FEATURES)
        steps = {name: _ranked(x, len(batch) + 1) for name, x in arrays.items()}
        replaced = steps.pop("resets", None)
        return cls(
            *(q, k, v),
            {name: gate.astype(wide) for name, gate in steps.items()},
            _counts(op, lengths, batch, time),
            None if replaced is None else replaced.astype(bool),
            batch,
        )

    def memory(self, op: str, state: Any, *, is_normalised: bool) -> Memory | None:
        """The initial state in the dtype of sums, or None if it is not given."""
        if state is None:
            return None
        d_k, d_v = self.q.shape[-1], self.v.shape[-1]
        axes = {"S": ("d_k", "d_v"), "n": ("d_k",), "m": ()}
        sizes = {"S": (d_k, d_v), "n": (d_k,), "m": ()}
        wide, names = (
            float32_at_least(self.q.dtype),
            tuple("Snm" if is_normalised else "S"),
        )
        shapes = {name: (*self.batch, *sizes[name]) for name in names}
        given = {"state_0": state}
        if is_normalised:
            check(
                isinstance(state, tuple | list) and len(state) == len(names),
                f"{op}: state_0 must be the three arrays S, n and m, got "
                f"{type(state).__name__}.",
            )
            given = {f"state_0: {n}": x for n, x in zip(names, state, strict=True)}
        parts = []
        for name, (called, part) in zip(names, given.items(), strict=True):
            array = checks.jax_array(op, called, part)
            checks.same_dtype_or_float32(op, ("q", self.q), {called: array})
            checks.shape(op, called, array, ("*batch", *axes[name]), shapes[name])
            parts.append(array.astype(wide))
        return Memory(*parts)


def _time_last(op: str, name: str, x: Array, *, time_major: bool) -> Array:
    """With time after the batch axes."""
    features = [_FEATURES[name]] if name in _FEATURES else []
    axes = ["time", "*batch"] if time_major else ["*batch", "time"]
    check(
        x.ndim > len(features),
        f"{op}: {name} must be [{', '.join(axes + features)}], got {list(x.shape)}.",
    )
    return jnp.moveaxis(x, 0, -1 - len(features)) if time_major else x


def _batch_and_time(
    op: str, sizes: Mapping[str, tuple[int, ...]], *, time_major: bool
) -> tuple[tuple[int, ...], int]:
    """Of arrays that each have `[*batch, time]`, some of a batch axis of 1."""
    axes = "[time, *batch]" if time_major else "[*batch, time]"
    given = ", ".join(
        f"{name} {[size[-1], *size[:-1]] if time_major else list(size)}"
        for name, size in sizes.items()
    )
    try:
        batch = jnp.broadcast_shapes(*(size[:-1] for size in sizes.values()))
    except ValueError:
        batch = None
    check(
        batch is not None and len({size[-1] for size in sizes.values()}) == 1,
        f"{op}: {', '.join(sizes)} must have the same {axes}, where a batch axis may "
        f"be 1 or be left out, got {given}.",
    )
    return batch or (), sizes["q"][-1]


def _ranked(x: Array, rank: int) -> Array:
    """With axes of 1 in front of the others."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _counts(op: str, lengths: Any, batch: tuple[int, ...], time: int) -> Array | None:
    if lengths is None:
        return None
    shape = np.shape(lengths)
    fits = len(shape) <= len(batch) and all(
        size in (1, whole)
        for size, whole in zip(shape[::-1], batch[::-1], strict=False)
    )
    lengths = checked_lengths(op, lengths, shape if fits else batch, time)
    counts = steps_that_count(lengths, time, time_major=False)[..., 0]
    return _ranked(counts, len(batch) + 1)
