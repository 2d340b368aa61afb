"""The recurrence as one differentiable operation.

The native engines do what is sequential: y forward, and backward the gradients of the
pre-activations. Products that are parallel in time are in `_engine.weight_products`.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from prnn_jax._autodiff import lean, per_unit
from prnn_jax._autodiff.forward_mode import reverse_mode_only
from prnn_jax._autodiff.projected import projected
from prnn_jax._call.before import before
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting
from prnn_jax._call.primals import Input, Primals
from prnn_jax._cells.table import State
from prnn_jax._engine import (
    ffi,
    input_projection,
    scan,
    scan_stack,
    weight_products,
)
from prnn_jax._engine.batching import whole
from prnn_jax._engine.input_projection import pre_activations
from prnn_jax._engine.normed import entered
from prnn_jax._engine.sharding import aligned
from prnn_jax._engine.weight_products import Weights

#: Name, for `jax.checkpoint` policies, of all that a forward pass keeps for its
#: backward pass: `jax.checkpoint_policies.save_only_these_names(prnn_jax.SAVED)`.
SAVED = "prnn_saved"


def recurrence(call: Call, primals: Primals) -> tuple[Array, State]:
    """y and the last state.

    All floating arrays of one dtype. No gradient flows to the controls but `reset_to`.
    Where the source is what a_x is made of, a_x is not kept.
    """
    primals = placed(call, primals)
    if call.implementation == "scan" and not call.lean:
        if call.clips_gradients:
            primals = reverse_mode_only(call, primals)
        a_x = pre_activations(call, primals.source, primals.controls)
        y, state_n, _ = scan.forward(call, a_x, *primals[1:])
        return y, state_n
    out: Any = _forward(call, reverse_mode_only(call, primals))
    y, state_n, _ = out
    return reverse_mode_only(call, (y, state_n))


def placed(call: Call, primals: Primals) -> Primals:
    """As the engines take them: `_engine.normed.entered`.

    On an Explicit mesh, states and controls are where the source is.
    """
    primals = entered(call, primals)
    source, state_0, controls = primals.source, primals.state_0, primals.controls
    like: Any = source
    if isinstance(source, Input):
        make = functools.partial(pre_activations, call)
        # Its sharding, too, which eval_shape has not of an axis that is not Explicit.
        (like,) = jax.make_jaxpr(make)(source, controls).out_avals
    # Lengths are the same for all groups, and x, which has none, asks for them.
    lengths = aligned(call, like, controls.lengths, "b")
    state_0, controls = aligned(call, like, (state_0, controls))
    controls = controls._replace(lengths=lengths)
    return primals._replace(state_0=state_0, controls=controls)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _forward(call: Call, primals: Primals):
    """y, the last state, and what `call.save` says of the saved values."""
    return whole(functools.partial(_forward_of, call))(primals)


def _forward_of(call: Call, primals: Primals):
    given = input_projection.native_input(primals.source)
    if given is None:
        given = pre_activations(call, primals.source, primals.controls)
    y, state_n, saved = ffi.forward(call, primals._replace(source=given))
    if call.is_stack and call.save != "nothing":
        saved = y, *saved
    return call.outer(y), state_n, saved


def _forward_rule(call: Call, primals: Primals):
    # The operation, not the native function: a second derivative comes through here.
    # Of that, bounds of the first one's gradients are no part.
    keeping = replace(call, save="states" if call.lean else "all")
    if call.clips_gradients:
        assert call.clip is not None
        clip, f = call.clip._replace(gradients=None), call.f.with_whole_gradients
        keeping = replace(keeping, clip=clip, f=f)
    y, state_n, saved = checkpoint_name(_forward(keeping, primals), SAVED)
    out = y, state_n, saved if call.save != "nothing" else ()
    source = primals.source
    if isinstance(source, Input):  # nothing else reads prepared weights
        primals = primals._replace(source=source._replace(prepared=None))
    return out, (primals, (y, saved))


def _backward_rule(call: Call, residuals, cotangents):
    primals, kept = residuals
    dy, dstate_n, _ = cotangents  # nothing but _backward depends on the saved values
    out: Any = _backward(call, primals, kept, (dy, dstate_n))
    return (out,)


_forward.defvjp(_forward_rule, _backward_rule)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(call: Call, primals, kept, cotangents):
    """Gradients of the primals; of the controls, of reset_to."""
    return whole(functools.partial(_backward_of, call))(primals, kept, cotangents)


def _backward_of(call: Call, primals, kept, cotangents):
    gradients: Any
    y, saved = kept
    if call.is_stack:
        kept = y, saved = saved[0], saved[1:]
    if call.lean:
        made_again = lean.backward(call, primals, kept, cotangents)
        gradients, saved, m, dper_unit = made_again
    else:
        gradients = ffi.backward(call, primals, kept, cotangents)
        m = projected(call, saved, primals.controls)
        own = gradients[0], gradients[-1]
        dper_unit = per_unit.gradient(call, primals, y, saved, *own)
    da_x, da_h, dstate_0, dreset_to, dh = gradients
    if call.is_stack:
        return _gradients_of_stack(call, primals, y, gradients)
    # Parallel in time: one large product instead of `time` small ones.
    weights = _multiplied(call, primals, y, saved, da_h)
    given = weights if m is None else [*weights, Weights(m, dh)]
    source, w_hh, controls = primals.source, primals.w_hh, primals.controls
    projection = input_projection.projection(call, source, controls, da_x)
    of_weights, of_source = weight_products.gradients(call, w_hh, given, projection)
    of_w_hh, of_w_hr = of_weights[: len(weights)], of_weights[len(weights) :]
    dw_hh, db_hh = (jnp.concatenate(parts, -1) for parts in zip(*of_w_hh, strict=True))
    dsource: Any = da_x
    if of_source is not None:
        dsource = input_projection.gradients(source, of_source)
    return Primals(
        dsource,
        dw_hh,
        db_hh,
        dstate_0,
        Controls(reset_to=dreset_to),
        dper_unit,
        of_w_hr[0].dw if of_w_hr else None,
    )


def _gradients_of_stack(call: Call, primals: Primals, y: Array, gradients) -> Primals:
    """Of all layers' arrays; of w_ih and a_x of the first, those of a_x."""
    da_x, da_h, dstate_0, *_ = gradients
    given = [
        Weights(before(call, y, primals.state_0[0], Controls(), 0), da_h),
        Weights(y[:, :, :-1], da_x[:, :, 1:]),  # y of the layer below
    ]
    (of_w_hh, of_w_ih), _ = weight_products.gradients(call, primals.w_hh, given, None)
    of_first = jnp.zeros_like(of_w_ih.dw[:1])
    dw_ih = jnp.concatenate([of_first, of_w_ih.dw])
    db = of_w_hh.db
    apart = primals.b_hh.shape[-1] - db.shape[-1]
    if apart:  # the bias of a product with w_ih alone; the first layer's is a_x's
        of_x = jnp.concatenate([jnp.zeros_like(db[:1]), of_w_ih.db])
        db = jnp.concatenate([db, of_x[:, -apart:]], -1)
    return Primals(
        da_x[:, :, :1],
        jnp.concatenate([of_w_hh.dw, dw_ih], 1),
        db,
        dstate_0,
        Controls(),
    )


def _backward_forward_rule(call: Call, primals, kept, cotangents):
    return _backward(call, primals, kept, cotangents), (primals, kept, cotangents)


def _backward_backward_rule(call: Call, residuals, dd):
    # The backward pass is a function of the forward pass's arguments and cotangents;
    # what was kept is a function of those arguments. So its derivative is the scan's.
    primals, kept, cotangents = residuals
    controls = primals.controls
    floats = primals._replace(controls=Controls(reset_to=controls.reset_to))

    def gradients(floats, cotangents):
        def run(floats):
            of_floats = controls._replace(reset_to=floats.controls.reset_to)
            a_x = pre_activations(call, floats.source, of_floats)
            given = floats._replace(source=a_x, controls=of_floats)
            if call.is_stack:
                y, state_n, _ = scan_stack.forward(call, given)
                return call.outer(y), state_n
            return scan.forward(call, *given)[:2]

        _, vjp = jax.vjp(run, floats)
        return vjp(cotangents)[0]

    _, vjp = jax.vjp(gradients, floats, cotangents)
    dprimals, dcotangents = vjp(dd)
    return dprimals, jax.tree.map(jnp.zeros_like, kept), dcotangents


_backward.defvjp(_backward_forward_rule, _backward_backward_rule)


def _multiplied(call: Call, primals, y: Array, saved, da_h: Array) -> list[Weights]:
    """What w_hh multiplied: all of it h, or each gate's columns something else."""
    state_0, controls = primals.state_0, primals.controls
    h = before(call, y, state_0[0], controls, 0)
    if controls.mask is not None:
        h = h * jnp.expand_dims(controls.mask, call.time_axis)
    h = counting(call, h, controls)
    inputs_of = call.table.product_inputs
    if inputs_of is None:
        return [Weights(h, da_h)]
    inputs = inputs_of(h, counting(call, saved[0], controls))
    das = jnp.split(da_h, call.table.gates, -1)
    return [Weights(x, da) for x, da in zip(inputs, das, strict=True)]
