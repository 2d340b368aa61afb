"""Layers of a stack in one call: on a GPU, each a step behind the one below.

A layer by itself uses a part of a GPU, and waits in each step for its own blocks; all
layers together take as many steps as one, and a few more (the wavefront of Appleyard et
al. 2016, arXiv:1604.01946). Each has the weights of its own h and of the y below it on
the chip, and reads y as the layer below publishes it, step by step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._autodiff.recurrence import recurrence
from prnn_jax._call.call import Call
from prnn_jax._call.options import Options
from prnn_jax._engine import gpu
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.input_projection import pre_activations
from prnn_jax._engine.plan import target_platform
from prnn_jax._engine.sharding import match_varying
from prnn_jax._given.params import Params, Prepared
from prnn_jax._ops.run import Checked, checked_layer
from prnn_jax._ops.stack_parts import Layer


def layers_at_once(
    call: Call, x: Array, layers: Sequence[Layer], states: Sequence
) -> tuple[Array, list] | None:
    """y of the last layer and the last state of each; None where each has its turn.

    Args:
      call: of a stack without controls, noise and skip connections.
      x: the first layer's input.
      layers: one layer each.
      states: of each the initial one, or None.
    """
    if not _is_asked_for(call) or len(layers) < 2:
        return None
    if any(layer.norm is not None or layer.stacked for layer in layers):
        return None
    given: Any = [layer.params for layer in layers]
    # What is wrong with an argument is said where each layer has its turn.
    options = Options(state_0=states[0])
    outer = checked_layer("stack, layer 0", call, x, given[0], options)
    if outer.call.implementation == "scan":
        return None
    params = [
        jax.tree.map(lax.stop_gradient, each.params)
        if isinstance(each, Prepared)
        else each
        for each in given
    ]
    of_layers = [_as_state(state) for state in states]
    if not _are_alike(outer, params, of_layers):
        return None
    layout = outer.layout
    sizes = layout.time, math.prod(layout.batch), len(layers), layout.hidden
    if gpu.prefers_turns(
        replace(outer.call, is_stack=True), outer.arrays.x.dtype, *sizes
    ):
        return None
    return _compiled(*outer, params[1:], of_layers[1:])


def _is_asked_for(call: Call) -> bool:
    return (
        gpu.is_on(gpu.STACKS_VARIABLE, False)
        and target_platform() == "gpu"
        and call.implementation != "scan"
        and not (call.lean or call.bidirectional)
    )


def _as_state(state: Any) -> tuple | None:
    return state if state is None or isinstance(state, tuple) else (state,)


def _are_alike(outer: Checked, params: Sequence[Params], states: Sequence) -> bool:
    """Whether all layers are as the first, each on what the one below gives."""
    call, layout, x = outer.call, outer.layout, outer.arrays.x
    hidden, columns = layout.hidden, call.table.gates * layout.hidden
    matrix, bias = (hidden, columns), (columns,)
    one = matrix, matrix, bias, bias, None, None

    def fits(array: Any, shape: tuple[int, ...] | None) -> bool:
        is_there = shape is not None and getattr(array, "shape", None) == shape
        return is_there and getattr(array, "dtype", None) == x.dtype

    for n, given in enumerate(params):
        arrays = list(zip(given, one, strict=True))
        if n > 0 and not all(fits(*pair) for pair in arrays[:2]):
            return False
        if any(a is not None and not fits(a, s) for a, s in arrays[2:]):
            return False
    shapes = layout.state_shapes
    return layout.heads is None and all(
        state is None or (len(state) == len(shapes) and all(map(fits, state, shapes)))
        for state in states
    )


def _biases(call: Call, b_ih: Array, b_hh: Array) -> Array:
    """Of the products of a layer's unit, of which a GRU's candidate has two."""
    if call.table.same_gradient:
        return b_ih + b_hh
    last = b_hh.size // call.table.gates
    both = b_ih[:-last] + b_hh[:-last]
    return jnp.concatenate([both, b_hh[-last:], b_ih[-last:]])


@compiled_once(static_argnums=(0, 1, 2, 3))
def _compiled(
    call, layout, merge, masked_y, arrays, packed, controls, steps, params, states
) -> tuple[Array, list]:
    static = call, layout, merge, masked_y
    outer = Checked(*static, arrays, packed, controls, steps).varying()
    *given, params, states = match_varying((*outer[4:], params, states))
    outer = Checked(*static, *given)
    first = outer.primals()
    (w_hh,), (b_hh,), state_0 = first.w_hh, first.b_hh, first.state_0
    a_x = pre_activations(call, first.source, first.controls)

    def bias(b: Array | None) -> Array:
        return jnp.zeros_like(b_hh) if b is None else b

    def initial(state: tuple | None) -> tuple:
        if state is None:
            return tuple(map(jnp.zeros_like, state_0))
        return tuple(map(layout.state_to_native, state))

    weights = [jnp.concatenate([w_hh, jnp.zeros_like(w_hh)])]
    weights += [jnp.concatenate([p.w_hh, p.w_ih]) for p in params]
    biases = [_biases(call, jnp.zeros_like(b_hh), b_hh)]
    biases += [_biases(call, bias(p.b_ih), bias(p.b_hh)) for p in params]
    each = [state_0, *map(initial, states)]
    stack = first._replace(
        source=a_x,
        w_hh=jnp.stack(weights),
        b_hh=jnp.stack(biases),
        state_0=tuple(jnp.concatenate(s, 1) for s in zip(*each, strict=True)),
    )
    y, state_n = recurrence(replace(call, is_stack=True), stack)
    own = [tuple(s[:, n : n + 1] for s in state_n) for n in range(len(each))]
    y, state = outer.results(first, y, own[0])
    return y, [state, *(outer.results(first, y, s)[1] for s in own[1:])]
