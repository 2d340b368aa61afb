"""What the layers without a product in a step share for NNX and Linen."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import Lengths, Resets
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._layers.flax.carry import Carry
from prnn_jax._layers.flax.shared import in_order_of_processing, promoted
from prnn_jax._layers.linear import Spec


def batch_of(spec: Spec, inputs: Any, *, time_major: bool) -> tuple[int, ...]:
    """Sizes of the batch axes of inputs, checked."""
    checks.is_array(spec.name, "inputs", inputs)
    shape = jnp.shape(inputs)
    axes = "time, *batch" if time_major else "*batch, time"
    check(
        len(shape) >= 2 and shape[-1] == spec.input_size,
        f"{spec.name}: inputs must be [{axes}, in_features] with in_features="
        f"{spec.input_size}, got {list(shape)}.",
    )
    return shape[1:-1] if time_major else shape[:-2]


def run(
    layer: Any,
    spec: Spec,
    inputs: ArrayLike,
    arrays: Mapping[str, Array | None],
    key: Array | None,
    *,
    return_carry: bool | None,
    time_major: bool | None,
    keep_order: bool | None,
    initial_carry: Carry | None = None,
    seq_lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    resets: Resets | None = None,
    reset_carry: Carry | None = None,
) -> Any:
    """y, or (carry, y) with return_carry.

    Args:
      layer: whose own options are those that are not given.
      spec: of the layer.
      inputs: as for the layers, and so the last five.
      arrays: the parameters by name.
      key: for zoneout; None where a call is deterministic.
      return_carry: whether the carry is returned, too.
      time_major: whether time is the first axis.
      keep_order: of a reversed layer's outputs.
      initial_carry: see there.
      seq_lengths: see there.
      mask: see there.
      resets: see there.
      reset_carry: see there.
    """
    given = {"return_carry": return_carry, "time_major": time_major}
    given["keep_order"] = keep_order
    chosen = {k: getattr(layer, k) if v is None else v for k, v in given.items()}
    flags = {k: statics.flag(spec.name, k, v or False) for k, v in chosen.items()}
    time_major = flags["time_major"]
    batch = batch_of(spec, inputs, time_major=time_major)
    x, *of_layer = promoted((inputs, *arrays.values()), layer.dtype)
    check(
        reset_carry is None or resets is not None,
        f"{spec.name}: reset_carry is given without resets; give resets, or leave it "
        "out.",
    )
    y, state = spec.run(
        x,
        dict(zip(arrays, of_layer, strict=True)),
        spec.as_state("initial_carry", initial_carry, batch, x.dtype),
        key,
        lengths=seq_lengths,
        mask=mask,
        resets=resets,
        reset_to=spec.as_state("reset_carry", reset_carry, batch, x.dtype),
        time_major=time_major,
    )
    if spec.reverse and not flags["keep_order"]:
        y = in_order_of_processing(y, seq_lengths, time_major=time_major)
    return (spec.as_carry(state), y) if flags["return_carry"] else y
