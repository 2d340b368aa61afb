"""The recurrence as one differentiable operation.

The native engines do what is sequential: y forward, and backward the gradients of the
pre-activations. Products that are parallel in time are left to XLA.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from prnn_jax import _ffi, _scan
from prnn_jax._call import Call
from prnn_jax._cells import State

#: Name, for `jax.checkpoint` policies, of all that a forward pass keeps for its
#: backward pass: `jax.checkpoint_policies.save_only_these_names(prnn_jax.SAVED)`.
SAVED = "prnn_saved"


def recurrence(
    call: Call, a_x: Array, w_hh: Array, b_hh: Array, state_0: State
) -> tuple[Array, State]:
    """y and the last state. Shapes as in `_call`; all arrays of one dtype."""
    if call.implementation == "scan":
        y, state_n, _ = _scan.forward(call, a_x, w_hh, b_hh, state_0)
        return y, state_n
    out: Any = _forward(call, a_x, w_hh, b_hh, state_0)
    y, state_n, _ = out
    return y, state_n


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _forward(call: Call, a_x: Array, w_hh: Array, b_hh: Array, state_0: State):
    return _ffi.forward(call, a_x, w_hh, b_hh, state_0)


def _forward_rule(call: Call, a_x, w_hh, b_hh, state_0):
    # The operation, not the native function: a second derivative comes through here.
    out = _forward(replace(call, save=True), a_x, w_hh, b_hh, state_0)
    y, state_n, saved = checkpoint_name(out, SAVED)
    primals = a_x, w_hh, b_hh, state_0
    return (y, state_n, saved if call.save else ()), (primals, (y, saved))


def _backward_rule(call: Call, residuals, cotangents):
    (a_x, w_hh, b_hh, state_0), (y, saved) = residuals
    dy, dstate_n, _ = cotangents  # nothing but _backward depends on the saved values
    primals = a_x, w_hh, b_hh, state_0
    return _backward(call, primals, (y, saved), (dy, dstate_n))


_forward.defvjp(_forward_rule, _backward_rule)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(call: Call, primals, kept, cotangents):
    """Gradients of the primals (a_x, w_hh, b_hh, state_0)."""
    y, saved = kept
    da_x, da_h, dstate_0 = _ffi.backward(call, primals, kept, cotangents)
    # Parallel in time, so left to XLA: one large product instead of `time` small ones.
    h_0 = primals[3][0]
    dw_hh = _weight_gradient(call, _before(call, y, h_0), saved, da_h)
    return da_x, dw_hh, da_h.sum((0, 1)), dstate_0


def _backward_forward_rule(call: Call, primals, kept, cotangents):
    return _backward(call, primals, kept, cotangents), (primals, kept, cotangents)


def _backward_backward_rule(call: Call, residuals, dd):
    # The backward pass is a function of the forward pass's arguments and cotangents;
    # what was kept is a function of those arguments. So its derivative is the scan's.
    primals, kept, cotangents = residuals

    def gradients(primals, cotangents):
        _, vjp = jax.vjp(lambda *p: _scan.forward(call, *p)[:2], *primals)
        return vjp(cotangents)

    _, vjp = jax.vjp(gradients, primals, cotangents)
    dprimals, dcotangents = vjp(dd)
    return dprimals, jax.tree.map(jnp.zeros_like, kept), dcotangents


_backward.defvjp(_backward_forward_rule, _backward_backward_rule)


def _before(call: Call, y: Array, h_0: Array) -> Array:
    """h before each step, as y."""
    axis = call.time_axis
    first = jnp.expand_dims(h_0, axis)
    time = y.shape[axis]

    def shifted(y, first, against):
        if against:
            rest = jax.lax.slice_in_dim(y, 1, time, axis=axis)
            return jnp.concatenate([rest, first], axis)
        rest = jax.lax.slice_in_dim(y, 0, time - 1, axis=axis)
        return jnp.concatenate([first, rest], axis)

    if not call.bidirectional:
        return shifted(y, first, call.reverse)
    sides = jnp.split(y, 2, 2), jnp.split(first, 2, 2)
    halves = zip(*sides, (call.reverse, not call.reverse), strict=True)
    return jnp.concatenate([shifted(*half) for half in halves], 2)


def _weight_gradient(call: Call, h: Array, saved, da_h: Array) -> Array:
    """d(w_hh) [groups, hidden, gates*hidden], from h before each step."""
    product = functools.partial(_group_products, precision=call.precision)
    inputs_of = call.table.product_inputs
    if inputs_of is None:
        return product(h, da_h)
    das = jnp.split(da_h, call.table.gates, -1)
    inputs = inputs_of(h, saved[0])
    parts = [product(x, da) for x, da in zip(inputs, das, strict=True)]
    return jnp.concatenate(parts, -1)


def _group_products(h: Array, da: Array, precision) -> Array:
    """Σ over the rows (two leading axes) of h^T da, group by group."""
    if h.shape[2] == 1:
        rows = h.shape[0] * h.shape[1]
        h, da = h.reshape(rows, -1), da.reshape(rows, -1)
        return jnp.matmul(h.T, da, precision=precision)[None]
    return jnp.einsum("abgh,abgn->ghn", h, da, precision=precision)
