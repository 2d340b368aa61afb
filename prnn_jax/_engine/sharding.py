"""One operation that is right under every kind of mesh.

Batch and groups are independent of each other, so each device takes its own; time and
features are whole on every device. Under an Auto mesh XLA is told so by a custom
partitioning, under an Explicit one the operation is a `shard_map`, and inside a user's
`shard_map` there is nothing to do.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from prnn_jax._call.call import Axes, Call


def partitioned(run: Callable, call: Call, args: tuple, names: list[Axes]) -> Any:
    """`run(*args)`, each device on its part of the batch and of the groups.

    Args:
      run: gives trees of sequences and states, as `_call.call` has them.
      names: the axes of all leaves of the arguments.
    """
    kinds = call.data_axes
    leaves, structure = jax.tree.flatten(args)

    if varying_axes(leaves[0]):  # inside a shard_map: this is a device's part already
        return run(*args)
    if _explicit_spec(leaves[0]) is not None:
        return _by_shard_map(run, call, args, names, kinds)

    results, outputs = jax.tree.flatten(jax.eval_shape(run, *args))

    def flat(*leaves):
        return tuple(jax.tree.leaves(run(*jax.tree.unflatten(structure, leaves))))

    result_names = [kinds[x.ndim] for x in results]
    rule, whole = _rule(call, names, result_names)
    operation = custom_partitioning(flat)
    partition = functools.partial(_partition, call, flat, names, result_names)
    operation.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda *given: partition(*given)[2],  # of GSPMD
        sharding_rule=rule,
        need_replication_factors=whole,
    )
    return jax.tree.unflatten(outputs, operation(*leaves))


def aligned(call: Call, sequence: Any, tree, apart: Axes = "bg"):
    """States and sequences sharded as `sequence` is, where the mesh is Explicit.

    What a caller leaves out, such as the initial state, is whole on every device.

    Args:
      call: whose arrays they are.
      sequence: an array or its type.
      tree: states and sequences.
      apart: the axes that are split.
    """
    spec = _explicit_spec(sequence)
    if spec is None:
        return tree
    kinds, mesh = call.data_axes, _mesh_of(sequence)
    by_axis = dict(zip(kinds[4], spec, strict=True))

    def align(x: Array) -> Array:
        axes = (by_axis[axis] if axis in apart else None for axis in kinds[x.ndim])
        return jax.sharding.reshard(x, NamedSharding(mesh, P(*axes)))

    return jax.tree.map(align, tree)


def aligned_state(sequence: Array, axis: int, state: Array) -> Array:
    """A state of a sequence, without its axis of time, sharded as that is.

    Where the mesh is Explicit. The state may have axes of its own before the features.
    """
    spec = _explicit_spec(sequence)
    if spec is None:
        return state
    batch = [*spec[:axis], *spec[axis + 1 : -1]]
    own = [None] * (state.ndim - len(batch) - 1)
    wanted = NamedSharding(_mesh_of(sequence), P(*batch, *own, spec[-1]))
    return jax.sharding.reshard(state, wanted)


def match_varying(arrays):
    """Inside shard_map: makes all arrays vary over the mesh axes that any varies over.

    To be called outside the custom derivatives: the transpose of this cast is the sum
    over devices that the gradient of a replicated weight needs.
    """
    axes = frozenset().union(*(varying_axes(x) for x in jax.tree.leaves(arrays)))

    def cast(x):
        missing = tuple(sorted(axes - varying_axes(x)))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, arrays)


def varying_axes(x: Array) -> frozenset:
    """The mesh axes of a shard_map over which x differs from device to device."""
    typeof = jax.typeof(x)
    manual = getattr(typeof, "manual_axis_type", None)
    varying = getattr(typeof, "vma", None) if manual is None else manual.varying
    return frozenset(varying or ())


def sharding_of_sum(x: Array, *terms: Array):
    """`out_sharding` of the gradient of x, a sum over batch and time; or None.

    Of an x that is on no mesh, where `terms` are, every device has the whole of it.
    """
    sharding, *others = (getattr(jax.typeof(a), "sharding", None) for a in (x, *terms))
    if _is_explicit(sharding):
        return sharding
    meshes = [other.mesh for other in others if _is_explicit(other)]
    return NamedSharding(meshes[0], P()) if meshes else None


def is_sharded(x: Array, axis: int) -> bool:
    """Whether an axis is split among the devices of an Explicit mesh."""
    spec = _explicit_spec(x)
    return spec is not None and spec[axis] is not None


# ---- Auto ----------------------------------------------------------------------------


def _rule(
    call: Call, names: list[Axes], result_names: list[Axes]
) -> tuple[str, tuple[str, ...]]:
    """Shardy's rule, and the factors that must be whole on every device."""
    features = itertools.count()
    whole = []

    def factors(axes: Axes) -> str:
        out = []
        for axis in axes:
            factor = f"x{next(features)}" if axis == "x" else axis
            # The second half of the groups runs the other way: a device with a part of
            # them could not tell.
            is_whole = axis in "tx" or (axis == "g" and call.bidirectional)
            if is_whole and factor not in whole:
                whole.append(factor)
            out.append(factor)
        return " ".join(out)

    inputs = ", ".join(map(factors, names))
    whole_inputs = tuple(whole)  # a factor of results alone may not be among them
    return f"{inputs} -> {', '.join(map(factors, result_names))}", whole_inputs


def _partition(call: Call, run, names, result_names, mesh, arg_shapes, _):
    """What each device does, and with which parts."""
    split = {}
    if mesh.empty:  # where no argument has a sharding, JAX does not tell the mesh
        devices = sorted(arg_shapes[0].sharding.device_set, key=lambda d: d.id)
        mesh = Mesh(np.array(devices), ("devices",))
    else:
        # GSPMD, while it spreads shardings, does not know all of them yet.
        given = [() if x.sharding is None else x.sharding.spec for x in arg_shapes]
        split = _split(call, names, given)

    def spec(axes: Axes) -> NamedSharding:
        return NamedSharding(mesh, P(*(split.get(axis) for axis in axes)))

    parts = tuple(tuple(map(spec, axes)) for axes in (result_names, names))
    return mesh, run, *parts


def _split(call: Call, names: list[Axes], specs: list) -> dict[str, Any]:
    """The mesh axes over which batch and groups are split."""
    out: dict[str, Any] = {}
    for axes, spec in zip(names, specs, strict=True):
        for axis, over in zip(axes, spec, strict=False):
            if over is not None and axis in ("b" if call.bidirectional else "bg"):
                out.setdefault(axis, over)
    both = [set(over if isinstance(over, tuple) else (over,)) for over in out.values()]
    if len(both) == 2 and both[0] & both[1]:
        del out["g"]
    return out


# ---- Explicit ------------------------------------------------------------------------


def _is_explicit(sharding) -> TypeGuard[NamedSharding]:
    if sharding is None or sharding.mesh.empty:
        return False
    return any(kind == AxisType.Explicit for kind in sharding.mesh.axis_types)


def _explicit_spec(x: Any) -> tuple | None:
    typeof = jax.typeof(x) if isinstance(x, Array) else x
    sharding = getattr(typeof, "sharding", None)
    if not _is_explicit(sharding):
        return None
    return (*sharding.spec, *(None,) * x.ndim)[: x.ndim]


def _mesh_of(x: Any) -> Any:
    """That of an array on an Explicit mesh: its devices, where they are known.

    It need not be the one that `jax.set_mesh` has set, for there may be none.
    """
    own: Any = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
    return own.mesh


def _by_shard_map(run, call: Call, args, names: list[Axes], kinds: dict[int, Axes]):
    leaves = jax.tree.leaves(args)
    specs, mesh = [_explicit_spec(x) or () for x in leaves], _mesh_of(leaves[0])
    split = _split(call, names, specs)
    for axis, over in zip(names[0], specs[0], strict=True):
        what = {"t": "time", "x": "feature", "g": "direction"}.get(axis, "batch")
        if over is not None and axis not in split:
            raise ValueError(
                f"prnn_jax: the {what} axis must not be sharded, but is over mesh axis "
                f"{over!r}; reshard the input, e.g. with jax.sharding.reshard."
            )

    def spec(axes: Axes) -> P:
        return P(*(split.get(axis) for axis in axes))

    def local(*args):
        return run(*match_varying(args))

    in_specs = jax.tree.unflatten(jax.tree.structure(args), list(map(spec, names)))
    args = jax.tree.map(
        lambda x, axes: jax.sharding.reshard(x, NamedSharding(mesh, axes)),
        args,
        in_specs,
    )
    # The results' specs follow from their ranks, which do not depend on the mesh.
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        results = jax.eval_shape(run, *shapes)
    out_specs = jax.tree.map(lambda x: spec(kinds[x.ndim]), results)
    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(
        *args
    )
