"""What vmap does to a native call.

A mapped axis of data becomes part of the batch. Where weights are mapped, it becomes
part of the groups. Either way one native call does it all.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from prnn_jax._call import Call


@functools.cache
def batched(run, call: Call, weight_arguments: int):
    """`run(call, a_x, *weights, *data)`, batched as said above."""

    @custom_vmap
    def op(a_x, *weights_and_rest):
        return run(call, a_x, *weights_and_rest)

    @op.def_vmap
    def rule(size, mapped, *args):
        weights = slice(1, 1 + weight_arguments)
        over_groups = any(jax.tree.leaves(mapped[weights]))
        axes = _Axes(call, size, over_groups)
        folded = []
        for n, (arg, is_mapped) in enumerate(zip(args, mapped, strict=True)):
            fold = axes.fold_data
            if weights.start <= n < weights.stop:
                fold = axes.fold_weights
            folded.append(jax.tree.map(fold, arg, is_mapped))
        out = op(*folded)
        out = jax.tree.map(axes.unfold_data, out)
        return out, jax.tree.map(lambda _: True, out)

    return op


@functools.cache
def batched_projection(run, call: Call):
    """`run(call, x, w, b)` for sequences x: a mapped axis of them is more batch."""

    @custom_vmap
    def op(x, w, b):
        return run(call, x, w, b)

    @op.def_vmap
    def rule(size, mapped, x, w, b):
        if any(mapped[1:]):  # a product for each w: XLA's batched one
            axes = tuple(0 if is_mapped else None for is_mapped in mapped)
            product = functools.partial(jnp.matmul, precision=call.precision)
            a = jax.vmap(lambda x, w, b: product(x, w) + b, axes)(x, w, b)
            return a, True
        axes = _Axes(call, size, over_groups=False)
        a = op(axes.fold(x, call.batch_axis), w, b)
        return axes.unfold(a, call.batch_axis), True

    return op


class _Axes:
    """Where a mapped axis goes: into the batch or into the groups, and back."""

    def __init__(self, call: Call, size: int, over_groups: bool):
        self.call, self.size, self.over_groups = call, size, over_groups

    def fold_data(self, x: Array, is_mapped: bool) -> Array:
        """A sequence (rank 4) or a state (rank 3), with the mapped axis in front."""
        if not is_mapped:
            x = jnp.broadcast_to(x, (self.size, *x.shape))
        return self.fold(x, self._axis(x.ndim - 1))

    def fold_weights(self, w: Array, is_mapped: bool) -> Array:
        if not self.over_groups:
            return w
        if not is_mapped:
            w = jnp.broadcast_to(w, (self.size, *w.shape))
        return self.fold(w, 0)

    def unfold_data(self, x: Array) -> Array:
        return self.unfold(x, self._axis(x.ndim))

    def unfold(self, x: Array, axis: int) -> Array:
        """The inverse of `fold`."""
        before, folded, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        merged = folded // self.size
        split = (self._ways, self.size, merged // self._ways)
        x = jnp.moveaxis(x.reshape(*before, *split, *after), axis + 1, 0)
        return x.reshape(self.size, *before, merged, *after)

    def _axis(self, rank: int) -> int:
        if self.over_groups:
            return rank - 2
        return self.call.batch_axis if rank == 4 else 0

    @property
    def _ways(self) -> int:
        # The direction stays the outer axis of groups: [direction, mapped, others].
        return 2 if self.over_groups and self.call.bidirectional else 1

    def fold(self, x: Array, axis: int) -> Array:
        """Merges axis 0 into what is `axis` of the array without axis 0."""
        before, merged, after = (
            x.shape[1:][:axis],
            x.shape[1 + axis],
            x.shape[2 + axis :],
        )
        x = x.reshape(self.size, *before, self._ways, merged // self._ways, *after)
        x = jnp.moveaxis(x, 0, axis + 1)
        return x.reshape(*before, self.size * merged, *after)
