"""What `with_partitioning` of Linen and of NNX puts an initializer's draws into."""

import dataclasses
from typing import Any

from flax.core import meta
from flax.nnx.variablelib import VariableMetadata
from jax import Array

#: Under which NNX keeps the names of a mesh's axes.
_NAMES = "out_sharding", "sharding_names", "sharding"


def opened(drawn: Any) -> Array:
    """What an initializer has drawn, without a box."""
    if isinstance(drawn, VariableMetadata):
        return drawn.raw_value
    if isinstance(drawn, meta.Partitioned):  # unboxed, it would be laid out by a mesh
        return drawn.value
    return drawn.unbox() if isinstance(drawn, meta.AxisMetadata) else drawn


def closed(like: Any, array: Array, lead: int) -> Any:
    """An array in such a box as `like` is, if it is one.

    Args:
      like: what an initializer has drawn.
      array: made of that.
      lead: axes in front of those that were drawn, directions and heads, which are on
        no axis of a mesh.
    """
    if isinstance(like, VariableMetadata):
        names = {
            key: (*(None,) * lead, *value)
            for key, value in like.metadata.items()
            if key in _NAMES and isinstance(value, tuple)
        }
        metadata = {**like.metadata, **names}
        return dataclasses.replace(like, raw_value=array, metadata=metadata)
    if isinstance(like, meta.AxisMetadata):
        box = like.replace_boxed(array)
        for _ in range(lead):
            box = box.add_axis(0, {meta.PARTITION_NAME: None})
        return box
    return array
