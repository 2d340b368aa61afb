"""The way of every public call: options, checks, the projection, the recurrence."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._autodiff.recurrence import recurrence
from prnn_jax._call.arguments import Arrays, Layout, check_arguments
from prnn_jax._call.call import Call
from prnn_jax._call.choose import cell_of
from prnn_jax._call.controls import Controls, check_controls
from prnn_jax._call.options import MaskedY, Merge, Options
from prnn_jax._call.primals import Input, Primals
from prnn_jax._call.step_mask import StepMask, check_alone, which_count
from prnn_jax._cells.table import AnyCell, State
from prnn_jax._engine import gpu
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.plan import engine_for, target_platform
from prnn_jax._engine.sharding import match_varying
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check, float32_at_least
from prnn_jax._given.params import Params, Prepared, check_lead, described


def run_layer(op: str, call: Call, x, params, options: Options) -> tuple[Array, Any]:
    """A layer on input x."""
    return _compiled(*checked_layer(op, call, x, params, options))


def checked_layer(op: str, call: Call, x, params, options: Options) -> "Checked":
    """What `run_layer` runs."""
    packed = None
    if isinstance(params, Prepared):
        packed = params.packed
        check(
            packed is None or getattr(packed, "dtype", None) == jnp.uint32,
            f"{op}: what prnn_jax.prepare gave has been changed: packed must be "
            f"uint32, got {getattr(packed, 'dtype', type(packed).__name__)}. "
            "Prepare the changed parameters instead.",
        )
        params = jax.tree.map(lax.stop_gradient, params.params)
    is_several = isinstance(params, Iterable) and not hasattr(params, "shape")
    is_several = is_several and not isinstance(params, Mapping)
    values: Any = tuple(params) if is_several else ()
    check(
        len(values) in (4, 5, 6),
        f"{op}: params must be prnn_jax.Params(w_ih, w_hh, b_ih, b_hh), got "
        f"{described(params)}.",
    )
    params = params if isinstance(params, Params) else Params(*values)
    check_lead(op, params, params.w_hh, bidirectional=call.bidirectional)
    checks.array(op, "w_ih", params.w_ih)  # None is for `recurrence`
    return checked(op, call, x, params, options, packed)


def common(op: str, options: Options) -> dict[str, Any]:
    """The fields of `Call` that all functions have, checked."""
    names = "reverse", "bidirectional", "time_major"
    flags = {name: statics.flag(op, name, getattr(options, name)) for name in names}
    implementation = options.implementation
    checks.one_of(op, "implementation", implementation, (None, "native", "scan"))
    checks.one_of(op, "reserve", options.reserve, ("fast", "lean"))
    checks.one_of(op, "merge", options.merge, ("concat", "sum"))
    precision = statics.precision(op, options.precision)
    if precision is None:
        default = statics.precision(op, _default_precision())
        if statics.is_exact(default):
            precision = default  # the native engines must know, too
    return {
        **flags,
        "lean": options.reserve == "lean",
        "precision": precision,
        "implementation": implementation,
        "max_sms": gpu.max_sms(),
    }


def call_of(op: str, function: AnyCell, options: Options) -> Call:
    """The call of a cell's public function."""
    return Call(**cell_of(op, function, options), **common(op, options))


def with_own(op: str, call: Call, params: Params) -> Call:
    """The call of the cell that has peepholes or a projection, if there are such."""
    call = _with_projection(op, _with_per_unit(op, call, params.peepholes), params.w_hr)
    clips_h = call.clip is not None and call.clip.projection is not None
    check(
        not clips_h or call.table.projects,
        f"{op}: clip.projection must be None without params.w_hr, got {call.clip}.",
    )
    return call


def _with_projection(op: str, call: Call, w_hr: Any) -> Call:
    if w_hr is None:
        return call
    cell = call.table.with_projection
    check(
        cell is not None,
        f"{op}: w_hr must be None, which only prnn_jax.lstm has, got "
        f"{type(w_hr).__name__}.",
    )
    return replace(call, cell=cell)


def _with_per_unit(op: str, call: Call, peepholes: Any) -> Call:
    if call.table.per_unit:  # of a cell that is not without
        check(
            peepholes is not None,
            f"{op}: params.peepholes must be the units' own numbers, "
            f"[{call.table.per_unit}*hidden], got None.",
        )
        return call
    if peepholes is None:
        return call
    cell = call.table.with_per_unit
    check(
        cell is not None,
        f"{op}: peepholes must be None, which only prnn_jax.lstm has, got "
        f"{type(peepholes).__name__}.",
    )
    return replace(call, cell=cell)


class Checked(NamedTuple):
    """A call whose arguments fit together; the first four are static."""

    call: Call
    layout: Layout
    merge: Merge
    masked_y: MaskedY
    arrays: Arrays
    packed: Array | None
    controls: Controls
    steps: StepMask | None

    def varying(self) -> "Checked":
        """With no array left out, and inside shard_map all of them varying alike."""
        static, (arrays, *others) = self[:4], self[4:]
        return Checked(*static, *match_varying((arrays.or_zeros(self.layout), *others)))

    def primals(self) -> Primals:
        """The same as the recurrence takes it; of a call that is `varying`."""
        call, given, _, _, arrays, packed, controls, steps = self
        x, w_ih, w_hh, b_ih, b_hh, peepholes, w_hr, states = arrays
        groups, hidden, output = given.groups, given.hidden, given.output
        columns = call.table.gates * hidden
        if steps is not None:
            x = steps.together(call, x)
            controls = steps.controls(call, given, controls)
        if w_ih is None:
            source = x.reshape(*given.order, groups, columns)
        else:
            source = layer_input(given, x, w_ih, b_ih)._replace(prepared=packed)
        no_zeros: Any = b_hh, states  # None of them is None any more
        b_hh, states = no_zeros
        states = self._typed(given.state_to_native(state) for state in states)
        if controls.reset_to is not None:
            controls = controls._replace(reset_to=self._typed(controls.reset_to))
        return Primals(
            source,
            w_hh=w_hh.reshape(groups, output, columns),
            b_hh=b_hh.reshape(groups, columns),
            state_0=states,
            controls=controls,
            per_unit=None if peepholes is None else peepholes.reshape(groups, -1),
            w_hr=None if w_hr is None else w_hr.reshape(groups, hidden, output),
        )

    def _typed(self, states: Iterable[Array]) -> State:
        """States as the recurrence takes them.

        h as y has it, and the others in float32, if one of them was given so.
        """
        given: Any = self.arrays.states
        h, *others = states
        dtype = self.arrays.x.dtype
        wide = float32_at_least(dtype)
        of_others = wide if any(s.dtype == wide for s in given[1:]) else dtype
        return (h.astype(dtype), *(s.astype(of_others) for s in others))

    def results(self, primals: Primals, y: Array, state_n) -> tuple[Array, Any]:
        """y and the state as the caller sees them, of what the recurrence gives."""
        call, given, steps = self.call, self.layout, self.steps
        if steps is not None:
            y = steps.apart(call, given, y, primals.state_0[0], self.masked_y)
        features = given.groups * given.output
        y = y.reshape(*given.order, features)  # one axis at a time: the mesh's wish
        y = y.reshape(*self.arrays.x.shape[:-1], features)
        if self.merge == "sum":
            forward, backward = jnp.split(y, 2, -1)
            y = forward + backward
        states: Any = tuple(
            given.state_from_native(state).astype(first.dtype)
            for state, first in zip(state_n, self.arrays.states or (), strict=True)
        )
        return y, states if len(states) > 1 else states[0]


def run(op: str, call: Call, x, params: Params, options: Options) -> tuple[Array, Any]:
    """The way of every call; with w_ih None, x is a_x already."""
    return _compiled(*checked(op, call, x, params, options))


def checked(
    op: str, call: Call, x, params: Params, options: Options, packed=None
) -> Checked:
    """What `run` runs."""
    call = with_own(op, call, params)
    layout, arrays = check_arguments(op, call, x, params, options.state_0)
    x = arrays.x
    check_alone(op, options)
    lengths, steps = options.lengths, None
    if options.mask is not None:
        counts = which_count(op, options.mask, layout.batch, layout.time, call)
        steps = StepMask.of(counts, call)
        lengths = steps.lengths(call)
    controls = check_controls(
        op,
        call,
        layout,
        x,
        lengths=lengths,
        resets=options.resets,
        reset_to=options.reset_to,
        recurrent_mask=options.recurrent_mask,
        zoneout=options.zoneout,
    )
    engine, reason = engine_for(
        *(call, x.dtype, target_platform(), layout.groups, layout.hidden),
        batch=math.prod(layout.batch),
        has_mask=controls.mask is not None,
    )
    check(
        call.implementation != "native" or engine == "native",
        f'{op}: implementation="native" is not available: {reason}. '
        'implementation="scan" always runs; None chooses.',
    )
    if engine == "scan":
        call = replace(call, implementation="scan")
    if layout.is_empty:  # there is no step to be made, nor to be made again
        call = replace(call, implementation="scan", lean=False)
    merge = options.merge if call.bidirectional else "concat"
    masked_y = options.masked_y
    return Checked(call, layout, merge, masked_y, arrays, packed, controls, steps)


@compiled_once(static_argnums=(0, 1, 2, 3))
def _compiled(*given) -> tuple[Array, Any]:
    """y and the state as the caller sees them."""
    called = Checked(*given).varying()
    primals = called.primals()
    return called.results(primals, *recurrence(called.call, primals))


def layer_input(given: Layout, x: Array, w_ih: Array, b_ih: Array | None) -> Input:
    """x as a sequence, and the weights of all groups side by side."""
    w_ih = jnp.moveaxis(w_ih.reshape(given.groups, *w_ih.shape[-2:]), 0, 1)
    b_ih = None if b_ih is None else b_ih.reshape(given.groups, -1)
    return Input(x.reshape(*given.order, x.shape[-1]), w_ih, b_ih)


def _default_precision() -> str | None:
    """What `jax.default_matmul_precision` says."""
    return getattr(jax.config, "jax_default_matmul_precision", None)
