"""On a GPU, an LSTM with a projection as one without, whose w_hh is w_hr w_hh.

A step multiplies h = m w_hr by w_hh, which is m times w_hr w_hh: one product where the
cell as it is written has two in series, each with an exchange between the parts of the
chip. y is then one product of all steps. An h that no m has made, the initial one and
what it is reset to, is multiplied beforehand and added to a_x. A mask on h would stand
between the two matrices, and so would `Clip.projection`: calls with one run `lax.scan`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.before import before
from prnn_jax._call.call import Call
from prnn_jax._call.controls import Controls, counting
from prnn_jax._call.primals import Primals
from prnn_jax._engine.scan import grouped_product
from prnn_jax._given.checks import float32_at_least


def forward(call: Call, primals: Primals, run: Callable):
    """As `_engine.ffi.forward`, of a cell that projects.

    Args:
      primals: whose source is a_x.
      run: the same for the cell without a projection.
    """
    a_x: Any = primals.source
    h_0, _ = primals.state_0
    controls = primals.controls
    w_hr: Any = primals.w_hr
    a_x = _with_first(call, a_x, primals)
    m, (m_n, c_n), saved = run(*_folded(call, primals, a_x))
    y, h_n = (grouped_product(x, w_hr, call.precision) for x in (m, m_n))
    never = _count(call, a_x, controls) == 0
    return y, (jnp.where(never, h_0, h_n), c_n), saved


def backward(call: Call, primals: Primals, kept, cotangents, run: Callable):
    """As `_engine.ffi.backward`, likewise."""
    y, saved = kept
    dy, (dh_n, dc_n) = cotangents
    controls, w_hh, w_hr = primals.controls, primals.w_hh, primals.w_hr
    values = jnp.split(saved[0], call.table.reserve + 1, -1)
    make_m: Any = call.table.project_input
    m = counting(call, make_m(call, tuple(values[:-1]), (values[-1],)), controls)

    count = _count(call, y, controls)
    dy = counting(call, dy, controls) + _at_last_step(call, y, count, dh_n)
    dm = grouped_product(dy, _transposed(w_hr), call.precision)
    of_m = dm, (jnp.zeros_like(dc_n, dy.dtype), dc_n)
    out = run(*_folded(call, primals, primals.source), (m, saved), of_m)
    da, _, (_, dc_0), dreset_to, _ = out

    # Of the h that each step has multiplied; then of what it was, in float32, for a
    # reset's is a sum over steps.
    wide = float32_at_least(dy.dtype)
    through = grouped_product(da, _transposed(w_hh), call.precision).astype(wide)
    firsts = primals.state_0[0], controls.reset_to and controls.reset_to[0]

    def started_from(y, h_0, reset_h):
        return before(call, y, h_0, _of_h(controls, reset_h), 0)

    like = jax.tree.map(lambda x: jnp.zeros_like(x, wide), (y, *firsts))
    _, vjp = jax.vjp(started_from, *like)
    dh, dh_0, dreset_h = vjp(through)
    dh = counting(call, dy + dh, controls).astype(dy.dtype)
    dh_0 = jnp.where(count == 0, dh_n, dh_0).astype(dy.dtype)
    if dreset_to is not None:
        dreset_to = dreset_h.astype(dy.dtype), dreset_to[1]
    return da, da, (dh_0, dc_0), dreset_to, dh


def _folded(call: Call, primals: Primals, source) -> tuple[Call, Primals]:
    """The call without a projection, and its primals."""
    w_hr: Any = primals.w_hr
    w_hh = jnp.einsum("nhp,npg->nhg", w_hr, primals.w_hh, precision="highest")
    h_0, c_0 = primals.state_0  # of which c_0 may be float32 where h_0 has 16 bits
    zeros = jnp.zeros_like(c_0, h_0.dtype)
    controls = primals.controls
    if controls.reset_to is not None:
        controls = controls._replace(reset_to=(zeros, controls.reset_to[1]))
    given = Primals(
        source,
        w_hh.astype(w_hr.dtype),
        primals.b_hh,
        (zeros, c_0),
        controls,
        primals.per_unit,
    )
    folded: Any = call.table.folded
    return replace(call, cell=folded), given


def _with_first(call: Call, a_x: Array, primals: Primals) -> Array:
    """With the products of what h begins with, where it does."""
    controls = primals.controls

    def product(h):
        return grouped_product(h, primals.w_hh, call.precision)

    first = product(primals.state_0[0])
    time = a_x.shape[call.time_axis]
    if controls.lengths is None and controls.resets is None and isinstance(time, int):
        if time == 0:
            return a_x
        middle = a_x.shape[2] // 2
        sides = [(slice(None), call.reverse)]
        if call.bidirectional:
            sides = [
                (slice(None, middle), call.reverse),
                (slice(middle, None), not call.reverse),
            ]
        for groups, against in sides:  # a step of each, and not all of a_x
            at: list[Any] = [slice(None), slice(None), groups]
            at[call.time_axis] = time - 1 if against else 0
            a_x = a_x.at[tuple(at)].add(first[:, groups])
        return a_x
    reset_h = None if controls.reset_to is None else product(controls.reset_to[0])
    zeros = jnp.zeros_like(a_x)
    return a_x + before(call, zeros, first, _of_h(controls, reset_h), 0)


def _of_h(controls: Controls, reset_h: Array | None) -> Controls:
    reset_to = None if reset_h is None else (reset_h,)
    return Controls(controls.lengths, controls.resets, reset_to)


def _count(call: Call, sequence: Array, controls: Controls) -> Array:
    """How many steps count: `[batch, N, 1]`, or of all rows."""
    if controls.lengths is not None:
        return controls.lengths
    return jnp.asarray(sequence.shape[call.time_axis], jnp.int32)


def _at_last_step(call: Call, like: Array, count: Array, dh_n: Array) -> Array:
    """A sequence: dh_n at the step that each row ends with, zero elsewhere."""
    axis = call.time_axis
    steps = jnp.arange(like.shape[axis], dtype=jnp.int32)
    steps = jnp.expand_dims(steps, tuple(n for n in range(4) if n != axis))
    count = jnp.expand_dims(count, axis) if count.ndim else count
    groups = like.shape[2]
    second = (jnp.arange(groups) >= groups // 2)[None, None, :, None]
    against = (second != call.reverse) if call.bidirectional else call.reverse
    last = jnp.where(against, 0, count - 1)
    is_last = (steps == last) & (steps < count)
    return jnp.where(is_last, jnp.expand_dims(dh_n, axis), 0)


def _transposed(w: Array | None) -> Any:
    assert w is not None
    return jnp.swapaxes(w, 1, 2)
