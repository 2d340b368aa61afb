"""The native calls: registration with XLA, result shapes, vmap, and choice by platform.

`forward` and `backward` take and return arrays as described in `_call`; they know
nothing of derivatives (`_recurrence` does).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from prnn_jax import _cuda, _scan
from prnn_jax._batching import batched, batched_projection
from prnn_jax._call import Call, Sizes
from prnn_jax._cells import State
from prnn_jax._controls import Controls
from prnn_jax._native import native
from prnn_jax._sharding import projection, recurrent, varying_axes

#: Platforms that have a native engine, as `lax.platform_dependent` names them.
PLATFORMS = ("cpu", "cuda") if native.cuda_targets() else ("cpu",)

#: What the CPU engine takes.
CPU_DTYPES = "float32", "bfloat16", "float16"
#: The names of all native calls.
TARGETS = tuple(sorted({*native.cpu_targets(), *native.cuda_targets()}))

Primals = tuple[Array, Array, Array, State, Controls]


def forward(
    call: Call,
    a_x: Array,
    w_hh: Array,
    b_hh: Array,
    state_0: State,
    controls: Controls,
) -> tuple[Array, State, tuple[Array, ...]]:
    """y, the last state, and what `call.save` says of the saved values."""
    return batched(_forward_anywhere, call, 2)(a_x, w_hh, b_hh, state_0, controls)


def backward(
    call: Call,
    primals: Primals,
    kept: tuple[Array, tuple[Array, ...]],
    cotangents: tuple[Array, State],
) -> tuple[Array, Array, State, State | None]:
    """Gradients of a_x, a_h, the initial state and `reset_to`.

    Args:
      call: as of the forward pass.
      primals: the arguments of the forward pass. The native engines do not read a_x;
        a program that runs them keeps none.
      kept: y and all saved values.
      cotangents: of y and of the last state.
    """
    return batched(_backward_anywhere, call, 2)(*primals, kept, cotangents)


def project(call: Call, x: Array, w: Array, b: Array) -> Array:
    """x [batch, time, input] times w [input, columns], plus b [columns].

    x and the result may be time-major.
    """
    return batched_projection(_project_anywhere, call)(x, w, b)


def _forward_anywhere(call: Call, *args):
    return recurrent(functools.partial(_forward_here, call), call, *args)


def _backward_anywhere(call: Call, *args):
    return recurrent(functools.partial(_backward_here, call), call, *args)


def _project_anywhere(call: Call, x, w, b):
    return projection(functools.partial(_project_here, call), call, x, w, b)


# ---- by platform ---------------------------------------------------------------------


def _forward_here(call: Call, *primals):
    def native_call(platform):
        return functools.partial(_forward_native, call, platform=platform)

    a_x, w_hh, *_ = primals
    platforms = _platforms(call, a_x.dtype, w_hh.shape, backward=False)
    scan_call = functools.partial(_scan.forward, call)
    return _by_platform(call, platforms, native_call, scan_call, primals)


def _backward_here(call: Call, *args):
    def native_call(platform):
        def run(a_x, w_hh, b_hh, state_0, controls, kept, cotangents):
            primals = w_hh, state_0, controls
            return _backward_native(call, primals, kept, cotangents, platform=platform)

        return run

    def scan_call(*args):
        return _scan.backward(call, args[:5], args[-1])

    a_x, w_hh, *_ = args
    platforms = _platforms(call, a_x.dtype, w_hh.shape, backward=True)
    return _by_platform(call, platforms, native_call, scan_call, args)


def _project_here(call: Call, x, w, b):
    def xla_call(x, w, b):
        return jnp.matmul(x, w, precision=call.precision) + b

    if x.dtype != jnp.float32:
        return xla_call(x, w, b)
    return lax.platform_dependent(x, w, b, cpu=_project_native, default=xla_call)


def _platforms(call: Call, dtype, w_hh_shape, *, backward: bool) -> list[str]:
    """Those whose engine can run the call, and may."""
    if call.implementation == "scan":
        return []
    groups, hidden, _ = w_hh_shape
    able = ["cpu"] if jnp.dtype(dtype).name in CPU_DTYPES else []
    if "cuda" in PLATFORMS and not _cuda.refusal(
        call, dtype, groups, hidden, backward=backward
    ):
        able.append("cuda")
    return able


def _by_platform(call: Call, platforms, native_call, scan_call, args):
    engines: Any = {platform: native_call(platform) for platform in platforms}
    if call.implementation != "native":
        engines["default"] = scan_call
    return lax.platform_dependent(*args, **engines)


# ---- the calls -----------------------------------------------------------------------


def _forward_native(
    call: Call, a_x, w_hh, b_hh, state_0, controls: Controls, *, platform="cpu"
):
    sizes = Sizes.of(call, a_x, call.table.gates)
    y = _result(a_x, sizes.sequence(call, 1))
    state_n = tuple(_result(a_x, sizes.state) for _ in state_0)
    saved = ()
    if call.saved:
        saved = (_result(a_x, sizes.sequence(call, call.saved)),)
    workspace = _workspace(call, sizes, controls, a_x, platform, backward=False)
    results = y, state_n, saved, workspace
    y, state_n, saved, _ = _ffi_call("prnn_forward", platform, results)(
        call, controls, a_x, w_hh, b_hh, *state_0
    )
    return y, state_n, saved


def _backward_native(call: Call, primals, kept, cotangents, *, platform="cpu"):
    cell = call.table
    w_hh, state_0, controls = primals
    y, saved = kept
    dy, dstate_n = cotangents
    sizes = Sizes.of(call, y, 1)
    da = _result(y, sizes.sequence(call, cell.gates))
    da_h = () if cell.same_gradient else (da,)
    dstate_0 = tuple(_result(y, sizes.state) for _ in state_0)
    # Summed over resets: in float32 whatever the dtype.
    dreset_to = ()
    if controls.reset_to is not None:
        dreset_to = tuple(_result(y, sizes.state, jnp.float32) for _ in state_0)
    workspace = _workspace(call, sizes, controls, y, platform, backward=True)
    results = da, da_h, dstate_0, dreset_to, workspace
    da_x, da_h, dstate_0, dreset_to, _ = _ffi_call("prnn_backward", platform, results)(
        call, controls, w_hh, y, *saved, *state_0, dy, *dstate_n
    )
    if controls.reset_to is None:
        dreset_to = None
    else:
        dreset_to = tuple(d.astype(y.dtype) for d in dreset_to)
    return da_x, da_h[0] if da_h else da_x, dstate_0, dreset_to


def _project_native(x, w, b):
    *order, input_size = x.shape
    rows, columns = math.prod(order), w.shape[1]
    padded = -(-columns // 16) * 16
    workspace = _result(x, (padded * (1 + input_size) + 16,))
    results = _result(x, (rows, columns)), workspace
    x = x.reshape(rows, input_size)
    a, _ = jax.ffi.ffi_call("prnn_project", results)(x, w, b)
    return a.reshape(*order, columns)


def _ffi_call(name: str, platform: str, results):
    """jax.ffi.ffi_call for results of any nesting; controls are the last arguments."""
    leaves, structure = jax.tree.flatten(results)
    target = _cuda.target(name) if platform == "cuda" else name

    def run(call: Call, controls: Controls, *args):
        attributes = call.attributes(leaves[0].dtype, controls)
        args = (*args, *jax.tree.leaves(controls))
        outputs = jax.ffi.ffi_call(target, leaves)(*args, call=attributes)
        return jax.tree.unflatten(structure, outputs)

    return run


def _workspace(
    call: Call,
    sizes: Sizes,
    controls: Controls,
    like: Array,
    platform: str,
    *,
    backward: bool,
):
    """The workspace of a call, a result that nobody reads."""
    if platform == "cuda":
        size = _cuda.workspace_bytes(
            call, sizes, controls, like.dtype, backward=backward
        )
        return _result(like, (size,), jnp.uint8)
    size = _workspace_floats(call, sizes, controls, like.dtype, backward)
    return _result(like, (size,), jnp.float32)


def _workspace_floats(
    call: Call, sizes: Sizes, controls: Controls, dtype, backward: bool
) -> int:
    """As cpu/run.cc's workspace_floats: packed weights and what steps pass on.

    Arithmetic on shapes alone: programs can be compiled and exported on any host.
    """
    gates, hidden = call.table.gates, sizes.hidden
    units = -(-hidden // 16) * 16
    per_word = 2 if dtype == jnp.bfloat16 else 1
    total = sizes.groups * units * gates * (1 - hidden // -per_word) + 16
    state = sizes.batch * sizes.groups * hidden
    if call.table.product_inputs:
        total += 3 * state
    if dtype != jnp.float32:  # what is multiplied and what is carried, in float32
        multiplied = gates if backward else 1
        total += (2 * multiplied + call.table.states - (not backward)) * state
    elif controls.changes_product_input and not backward:
        total += 2 * state
    return total


def _result(like: Array, shape: tuple[int, ...], dtype=None):
    """A result's type; inside shard_map it varies over the same mesh axes as `like`."""
    dtype = like.dtype if dtype is None else jnp.dtype(dtype)
    if not varying_axes(like):
        return jax.ShapeDtypeStruct(shape, dtype)
    typeof = jax.typeof(like)
    spec = PartitionSpec(*[None] * len(shape))
    return typeof.update(
        shape=shape, dtype=dtype, sharding=typeof.sharding.update(spec=spec)
    )
