"""What vmap does to a native call.

A mapped axis of data becomes part of the batch. Where weights are mapped, it becomes
part of the groups. Either way one native call does it all.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls
from prnn_jax._call.primals import Input, Primals
from prnn_jax._engine.input_projection import pre_activations
from prnn_jax._engine.sharding import is_sharded


def whole(function):
    """The function, which JAX does not take apart where it differentiates.

    Of a function with a custom derivative it would compute beforehand what does not
    depend on the arguments, such as zeros, and then take residuals of the second
    derivative for each other (`JaxprTrace.process_custom_vjp_call` of jax 0.10).
    """
    op = custom_vmap(function)

    @op.def_vmap
    def rule(size, mapped, *args):
        axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, mapped)
        rows = jax.vmap(function, tuple(axes), axis_size=size)
        out = whole(rows)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return op


@functools.cache
def batched(run, call: Call):
    """`run(call, primals, *rest)`, batched as above."""

    @custom_vmap
    def op(*args):
        return run(call, *args)

    @op.def_vmap
    def rule(size, mapped, primals, *rest):
        if size == 0:
            return _no_rows(rule, mapped, (primals, *rest))
        is_mapped, *of_rest = mapped
        source = primals.source
        of_weights = is_mapped.w_hh, is_mapped.b_hh, is_mapped.per_unit, is_mapped.w_hr
        over_groups = any(of_weights)
        if over_groups and call.is_stack:  # whose groups are its layers
            return _one_by_one(run, call, mapped, (primals, *rest))
        if isinstance(source, Input):
            of_source = is_mapped.source
            over_groups = over_groups or of_source.w or bool(of_source.b)
            if over_groups and of_source.x:
                # The groups of a call have one x, and here each has its own.
                a_x = _each_a_x(call, size, primals, is_mapped)
                primals = primals._replace(source=a_x)
                is_mapped = is_mapped._replace(source=True)
        first_axis = (1 if over_groups else 0) + is_mapped.state_0[0]
        is_split = is_sharded(primals.state_0[0], first_axis)
        axes = _Axes(call, size, over_groups, is_split)
        folded = axes.fold_primals(primals, is_mapped)
        rest = jax.tree.map(axes.fold_data, rest, tuple(of_rest))
        out = jax.tree.map(axes.unfold_data, op(folded, *rest))
        return out, jax.tree.map(lambda _: True, out)

    return op


def _one_by_one(run, call: Call, mapped, args):
    """Calls one after the other."""
    leaves, structure = jax.tree.flatten(args)
    is_mapped = jax.tree.leaves(tuple(mapped))

    def one(each):
        own = iter(each)
        given = [next(own) if m else x for x, m in zip(leaves, is_mapped, strict=True)]
        return run(call, *jax.tree.unflatten(structure, given))

    each = [x for x, m in zip(leaves, is_mapped, strict=True) if m]
    out = lax.map(one, each)
    return out, jax.tree.map(lambda _: True, out)


def _no_rows(rule, mapped, args):
    """The results of an axis of size 0: of one row, without that row."""

    def one(x: Array, is_mapped: bool) -> Array:
        if not is_mapped:
            return x
        return lax.pad(
            x, jnp.zeros((), x.dtype), [(0, 1, 0), *[(0, 0, 0)] * (x.ndim - 1)]
        )

    out, mapped = rule(1, mapped, *jax.tree.map(one, args, tuple(mapped)))
    return jax.tree.map(lambda x: lax.slice_in_dim(x, 0, 0), out), mapped


def _each_a_x(call: Call, size: int, primals: Primals, is_mapped: Primals):
    """a_x with a mapped axis in front, of an input that has one."""
    axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, is_mapped.source)
    lengths_axis = 0 if is_mapped.controls.lengths else None

    def make(source, lengths):
        return pre_activations(call, source, Controls(lengths=lengths))

    make = jax.vmap(make, (axes, lengths_axis), axis_size=size)
    return make(primals.source, primals.controls.lengths)


class _Axes:
    """Where a mapped axis goes: into the batch or into the groups, and back.

    Outside of what is there, or, if that is split among the devices of an Explicit
    mesh, inside of it: the outer one of merged axes may be split.
    """

    def __init__(self, call: Call, size: int, over_groups: bool, is_split: bool):
        self.call, self.size, self.over_groups = call, size, over_groups
        self.is_split = is_split

    def fold_data(self, x: Array, is_mapped: bool) -> Array:
        """A sequence (rank 4) or a state (rank 3), with the mapped axis in front."""
        if not is_mapped:
            x = jnp.broadcast_to(x, (self.size, *x.shape))
        return self.fold(x, self._axis(x.ndim - 1))

    def fold_primals(self, primals: Primals, is_mapped: Primals) -> Primals:
        """As `_call.primals.axes_of` has them."""
        of_state, of_controls = (
            jax.tree.map(self.fold_data, *pair)
            for pair in zip(primals[3:5], is_mapped[3:5], strict=True)
        )
        return Primals(
            self.fold_source(primals.source, is_mapped.source),
            w_hh=self.fold_weights(primals.w_hh, bool(is_mapped.w_hh)),
            b_hh=self.fold_weights(primals.b_hh, bool(is_mapped.b_hh)),
            state_0=of_state,
            controls=of_controls,
            per_unit=self.fold_optional(primals.per_unit, is_mapped.per_unit),
            w_hr=self.fold_optional(primals.w_hr, is_mapped.w_hr),
        )

    def fold_source(self, source: Array | Input, is_mapped: Any) -> Array | Input:
        """Of an `Input`, over the groups only if there is one x for all of them."""
        if not isinstance(source, Input):
            return self.fold_data(source, is_mapped)
        x, w, b, prepared = source
        if not self.over_groups:
            if not is_mapped.x:
                x = jnp.broadcast_to(x, (self.size, *x.shape))
            prepared = None if is_mapped.prepared else prepared
            return Input(self.fold(x, self.call.batch_axis), w, b, prepared)
        if not is_mapped.w:
            w = jnp.broadcast_to(w, (self.size, *w.shape))
        return Input(x, self.fold(w, 1), self.fold_optional(b, is_mapped.b))

    def fold_optional(self, w: Array | None, is_mapped: Any) -> Array | None:
        return None if w is None else self.fold_weights(w, bool(is_mapped))

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
        pair = self.size, merged // self._ways
        pair = pair[::-1] if self.is_split else pair
        x = x.reshape(*before, self._ways, folded // self._ways, *after)
        x = x.reshape(*before, self._ways, *pair, *after)
        x = jnp.moveaxis(x, axis + 1 + self.is_split, 0)
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
        x = jnp.moveaxis(x, 0, axis + 1 + self.is_split)
        # One pair of axes at a time: the wish of Explicit meshes.
        x = x.reshape(*before, self._ways, self.size * merged // self._ways, *after)
        return x.reshape(*before, self.size * merged, *after)
