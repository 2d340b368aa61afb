"""The native calls: registration with XLA, result shapes, vmap, and choice by platform.

`forward` and `backward` take and return arrays as described in `_call.call`; they know
nothing of derivatives (`_autodiff.recurrence` does).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jax.sharding import PartitionSpec

from prnn_jax._call.call import Call, Sizes
from prnn_jax._call.controls import Controls
from prnn_jax._call.primals import Input, Primals, axes_of
from prnn_jax._cells.table import State
from prnn_jax._engine import folded, gpu, scan, scan_stack, workspaces
from prnn_jax._engine.batching import batched
from prnn_jax._engine.by_platform import DEFAULT, by_platform
from prnn_jax._engine.input_projection import pre_activations
from prnn_jax._engine.modules import cuda, missing, native
from prnn_jax._engine.sharding import partitioned, varying_axes
from prnn_jax._given.checks import float32_at_least

#: Platforms that have a native engine, as JAX names them where it lowers.
PLATFORMS = tuple(
    name for name, is_there in (("cpu", not missing), ("cuda", cuda)) if is_there
)

#: What the CPU engine takes.
CPU_DTYPES = "float32", "bfloat16", "float16"
#: The names of all native calls.
TARGETS = tuple(
    sorted({*native.cpu_targets(), *(cuda.cuda_targets() if cuda is not None else ())})
)


def forward(call: Call, primals: Primals) -> tuple[Array, State, tuple[Array, ...]]:
    """y, the last state, and what `call.save` says of the saved values.

    Args:
      primals: whose source is a_x, or `_engine.input_projection.native_input`.
    """
    return batched(_forward_anywhere, call)(primals)


def backward(
    call: Call,
    primals: Primals,
    kept: tuple[Array, tuple[Array, ...]],
    cotangents: tuple[Array, State],
) -> tuple[Array, Array, State, State | None, Array | None]:
    """Gradients of a_x, a_h, the initial state, `reset_to`, and h at every step.

    The last, where the cell projects, is all of it, with what comes back through w_hh;
    zero at steps that do not count. Of a cell with layer norm it is that of the numbers
    that units have, by each row `[batch, N, U*hidden]`, in float32 at least.

    Args:
      call: as of the forward pass.
      primals: those of the forward pass. The native engines do not read the
        source; a program that runs them keeps no a_x.
      kept: y and all saved values.
      cotangents: of y and of the last state.
    """
    return batched(_backward_anywhere, call)(primals, kept, cotangents)


def _forward_anywhere(call: Call, primals: Primals):
    run = functools.partial(_forward_here, call)
    return partitioned(run, call, (primals,), axes_of(call, primals))


def _backward_anywhere(call: Call, *args):
    run = functools.partial(_backward_here, call)
    return partitioned(run, call, args, axes_of(call, *args))


# ---- by platform ---------------------------------------------------------------------


def _forward_here(call: Call, primals: Primals):
    results = _forward_results(call, primals)
    return _by_platform(call, _forward_on, results, primals, backward=False)


def _backward_here(call: Call, primals: Primals, kept, cotangents):
    results = _backward_results(call, primals, kept)
    rest = kept, cotangents
    return _by_platform(call, _backward_on, results, primals, *rest, backward=True)


def _by_platform(call: Call, on, results, primals: Primals, *rest, backward: bool):
    platforms = _platforms(call, primals, backward=backward)
    if not platforms:
        return on(DEFAULT)(call, primals, *rest)
    if call.implementation != "native":
        platforms.append(DEFAULT)
    functions = {platform: on(platform) for platform in platforms}
    return by_platform(functions, (call,), results, primals, *rest)


@functools.cache
def _forward_on(platform: str):
    """The forward pass of a platform, a function of the call and the primals."""
    if platform == "cpu":
        return _forward_native

    def on_a_x(call: Call, primals: Primals):
        a_x = pre_activations(call, primals.source, primals.controls)
        if platform == DEFAULT and call.is_stack:
            return scan_stack.forward(call, primals)
        if platform == DEFAULT:
            return scan.forward(call, a_x, *primals[1:])
        primals = primals._replace(source=a_x)
        run = functools.partial(_forward_native, platform=platform)
        if call.table.folded:
            return folded.forward(call, primals, run)
        return run(call, primals)

    return on_a_x


@functools.cache
def _backward_on(platform: str):
    """The backward pass of a platform, a function of the call and what it is given."""

    def native_call(call: Call, primals: Primals, kept, cotangents):
        run = functools.partial(_backward_native, platform=platform)
        if platform == "cuda" and call.table.folded:
            return folded.backward(call, primals, kept, cotangents, run)
        return run(call, primals, kept, cotangents)

    def scan_call(call: Call, primals: Primals, _, cotangents):
        if call.is_stack:
            return scan_stack.backward(call, primals, cotangents)
        a_x = pre_activations(call, primals.source, primals.controls)
        return scan.backward(call, primals._replace(source=a_x), cotangents)

    return scan_call if platform == DEFAULT else native_call


def _platforms(call: Call, primals: Primals, *, backward: bool) -> list[str]:
    """Those whose engine can run the call, and may."""
    if call.implementation == "scan":
        return []
    w_hh, (state, *_) = primals.w_hh, primals.state_0
    there = [name for name in PLATFORMS if name in call.table.engines]
    on_cpu = "cpu" in there and w_hh.dtype.name in CPU_DTYPES and not call.is_stack
    able = ["cpu"] if on_cpu else []
    groups, hidden = w_hh.shape[0], w_hh.shape[2] // call.table.gates
    of = call, w_hh.dtype, groups, hidden, state.shape[0]
    has_mask = primals.controls.mask is not None
    if "cuda" in there and not gpu.refusal(*of, backward=backward, has_mask=has_mask):
        able.append("cuda")
    return able


# ---- what they return ----------------------------------------------------------------


def _forward_results(call: Call, primals: Primals):
    """The types of y, the last state and the saved values."""
    like, *_ = jax.tree.leaves(primals.source)
    sizes = Sizes.of(call, like, primals.w_hh)
    y = _result(like, sizes.y(call))
    state_n = _states_like(primals.state_0)
    values = call.saved(zoneout=primals.controls.zoneout is not None)
    saved = (_result(like, sizes.sequence(call, values)),) if values else ()
    return y, state_n, saved


def _backward_results(call: Call, primals: Primals, kept):
    """The types of what `backward` returns."""
    y, _ = kept
    sizes = Sizes.of(call, y, primals.w_hh)
    da = _result(y, sizes.sequence(call, call.table.gates))
    dstate_0 = _states_like(primals.state_0)
    dreset_to = None if primals.controls.reset_to is None else dstate_0
    dh = _result(y, sizes.y(call)) if call.table.projects else None
    if call.table.norm is not None:
        wide = float32_at_least(y.dtype)
        numbers: Any = primals.per_unit
        dh = _result(y, (sizes.batch, *numbers.shape), wide)
    return da, da, dstate_0, dreset_to, dh


# ---- the calls -----------------------------------------------------------------------


def _forward_native(call: Call, primals: Primals, *, platform="cpu"):
    source, w_hh, b_hh, state_0, controls, *own = primals
    if isinstance(source, Input) and not _is_prepared_for(call, source, w_hh):
        source = source._replace(prepared=None)
    given = jax.tree.leaves(source)
    like, *_ = given
    projects = isinstance(source, Input)
    workspace = _workspace_of(
        call,
        Sizes.of(call, like, w_hh),
        controls,
        like,
        platform,
        backward=False,
        input_size=like.shape[-1] if projects else 0,
    )
    if projects:
        given[1] = _flat(given[1])
    y, state_n, saved = _forward_results(call, primals)
    results = y, _with_floats(state_n, _as_float), saved, workspace
    is_prepared = isinstance(source, Input) and source.prepared is not None
    run = _ffi_call("prnn_forward", platform, results, projects, is_prepared)
    weights = w_hh, b_hh, *jax.tree.leaves(own)
    state_0 = _with_floats(state_0)
    controls = controls._replace(reset_to=_narrow(controls.reset_to, y.dtype))
    y, states, saved, _ = run(call, controls, *given, *weights, *state_0)
    return y, _as_types(states, state_n), saved


def _backward_native(call: Call, primals: Primals, kept, cotangents, *, platform="cpu"):
    _, w_hh, _, state_0, controls, *own = primals
    y, saved = kept
    dy, dstate_n = cotangents
    sizes = Sizes.of(call, y, w_hh)
    da, _, of_states, of_resets, dh = _backward_results(call, primals, kept)
    da_h = () if call.table.same_gradient else (da,)
    dstate_0 = _with_floats(of_states, _as_float)
    # Summed over resets: in float32 whatever the dtype.
    dreset_to = tuple(map(_as_float, of_resets or ()))
    controls = controls._replace(reset_to=_narrow(controls.reset_to, y.dtype))
    workspace = _workspace_of(call, sizes, controls, y, platform, backward=True)
    results = da, da_h, dh, dstate_0, dreset_to, workspace
    run = _ffi_call("prnn_backward", platform, results)
    da_x, da_h, dh, dstate_0, dreset_to, _ = run(
        call,
        controls,
        w_hh,
        *jax.tree.leaves(own),
        y,
        *saved,
        *_narrow(state_0, y.dtype),
        dy,
        *_with_floats(dstate_n),
    )
    dstate_0 = _as_types(dstate_0, of_states)
    dreset_to = None if of_resets is None else _as_types(dreset_to, of_resets)
    return da_x, da_h[0] if da_h else da_x, dstate_0, dreset_to, dh


def prepare(
    call: Call,
    source: Input,
    w_hh: Array,
    b_hh: Array,
    w_hr: Array | None,
    batch: int,
    time: int,
    *,
    int8: bool,
) -> Array:
    """The weights of calls of so many rows and steps, as the CPU engine reads them.

    Args:
      source: whose x is not looked at.
      int8: whether to round them to integers of 8 bits.
    """
    w_ih, b_ih = source.w, source.b
    words = workspaces.prepacked_words(call, w_hh, w_ih.shape[0], int8=int8)
    result = jax.ShapeDtypeStruct((words,), jnp.uint32)
    functions = {"cpu": _prepare_native, DEFAULT: _prepare_nowhere}
    static = call, words, batch, time, int8
    run = functools.partial(by_platform, functions, static, result)
    own = jax.tree.leaves(w_hr)
    return sequential_vmap(run)(_flat(w_ih), b_ih, w_hh, b_hh, *own)


def _prepare_native(call: Call, words: int, batch: int, time: int, int8: bool, *arrays):
    result = jax.ShapeDtypeStruct((words,), jnp.uint32)
    attributes = call.attributes(arrays[0].dtype, Controls())
    run = jax.ffi.ffi_call("prnn_prepare", result)
    return run(*arrays, call=attributes, batch=batch, time=time, int8=int8)


def _prepare_nowhere(call: Call, words: int, *_):
    return jnp.zeros(words, jnp.uint32)


def _flat(w_ih: Array) -> Array:
    """An axis of size 1 would make XLA copy bfloat16 weights."""
    return w_ih.reshape(w_ih.shape[0], -1)


def _is_prepared_for(call: Call, source: Input, w_hh: Array) -> bool:
    """Not where this is a part of the groups, or more of them than were prepared."""
    if source.prepared is None:
        return False
    return any(
        source.prepared.shape
        == (workspaces.prepacked_words(call, w_hh, source.w.shape[0], int8=int8),)
        for int8 in (False, True)
    )


def _ffi_call(
    name: str, platform: str, results, projects: bool = False, prepared: bool = False
):
    """jax.ffi.ffi_call for results of any nesting; controls are the last arguments."""
    leaves, structure = jax.tree.flatten(results)
    target = gpu.target(name) if platform == "cuda" else name

    def run(call: Call, controls: Controls, *args):
        dtype = leaves[0].dtype
        attributes = call.attributes(
            dtype, controls, projects=projects, prepared=prepared
        )
        args = (*args, *jax.tree.leaves(controls))
        outputs = jax.ffi.ffi_call(target, leaves)(*args, call=attributes)
        return jax.tree.unflatten(structure, outputs)

    return run


def _workspace_of(
    call: Call,
    sizes: Sizes,
    controls: Controls,
    like: Array,
    platform: str,
    *,
    backward: bool,
    input_size: int = 0,
):
    """The workspace of a call, a result that nobody reads.

    Args:
      input_size: of a call that makes its own a_x.
    """
    options = call, sizes, controls, like.dtype
    if platform == "cuda":
        size = workspaces.cuda_bytes(*options, backward=backward)
        return _result(like, (size,), jnp.uint8)
    size = workspaces.cpu_floats(*options, backward=backward, input_size=input_size)
    return _result(like, (size,), jnp.float32)


# States but h are float32 in a native call, whatever the dtype: as many calls one after
# the other then are one.


def _with_floats(states: State, as_float: Callable | None = None) -> State:
    """As a native call takes them, or returns them."""
    h, *others = states
    change = as_float or (lambda state: state.astype(jnp.float32))
    return (h, *map(change, others))


def _as_float(result: Any) -> Any:
    """A result's type, in float32."""
    return result.update(dtype=jnp.dtype(jnp.float32))


def _as_types(states: Sequence[Array], types: State) -> State:
    return tuple(s.astype(t.dtype) for s, t in zip(states, types, strict=True))


def _narrow(states: Any, dtype: Any) -> Any:
    """In the dtype of what is kept of the steps, among which they are read; or None."""
    return None if states is None else tuple(s.astype(dtype) for s in states)


def _states_like(states: State) -> Any:
    return tuple(_result(state, state.shape) for state in states)


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
