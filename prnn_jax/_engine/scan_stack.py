"""Layers of a stack, one after the other by `lax.scan`: what a GPU runs at once.

The arrays of a call that `is_stack` (`_call.call`): its groups are the layers.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call
from prnn_jax._call.primals import Primals
from prnn_jax._cells.table import State
from prnn_jax._engine import scan


def forward(
    call: Call, primals: Primals, taps: tuple[Array, Array] | None = None
) -> tuple[Array, State, tuple[Array, ...]]:
    """As `scan.forward`: y, states and saved values of all layers.

    Args:
      taps: added to a_x, and to the products with h, of all layers.
    """
    a_x: Any = primals.source
    hidden = primals.w_hh.shape[1] // 2
    columns = call.table.gates * hidden
    one = replace(call, is_stack=False)
    layers: list[Any] = []
    for n in range(len(primals.w_hh)):
        w, b = primals.w_hh[n : n + 1], primals.b_hh[n : n + 1]
        if n > 0:
            a_x = scan.grouped_product(layers[-1][0], w[:, hidden:], call.precision)
        if b.shape[-1] > columns:  # what the last product is of w_ih alone begins with
            a_x = a_x.at[..., columns - hidden :].add(b[:, columns:])
        of_x, of_h = [
            None if t is None else t[:, :, n : n + 1] for t in taps or (None,) * 2
        ]
        layer = scan.forward(
            one,
            a_x if of_x is None else a_x + of_x,
            w[:, :hidden],
            b[:, :columns],
            tuple(state[:, n : n + 1] for state in primals.state_0),
            a_h=of_h,
        )
        layers.append(layer)
    return jax.tree.map(lambda *each: jnp.concatenate(each, -2), *layers)


def backward(
    call: Call, primals: Primals, cotangents: tuple[Array, State]
) -> tuple[Array, Array, State, None, None]:
    """As `scan.backward`: gradients of a_x and a_h of all layers, and of state_0."""

    def run(taps, state_0):
        y, state_n, _ = forward(call, primals._replace(state_0=state_0), taps)
        return call.outer(y), state_n

    a_x: Any = primals.source
    zeros = jnp.zeros_like(a_x, shape=(*a_x.shape[:2], len(primals.w_hh), a_x.shape[3]))
    _, vjp = jax.vjp(run, (zeros, zeros), primals.state_0)
    (da_x, da_h), dstate_0 = vjp(cotangents)
    return da_x, da_h, dstate_0, None, None
