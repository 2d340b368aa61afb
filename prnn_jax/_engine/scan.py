"""The recurrence by `lax.scan`: the reference, and the engine where there is no other.

Any floating dtype, any platform, any order of differentiation.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from prnn_jax._call.call import Call, Sizes
from prnn_jax._call.controls import NONE, Controls, counting, valid_steps
from prnn_jax._call.primals import Primals
from prnn_jax._cells.normed import of_x
from prnn_jax._cells.table import State
from prnn_jax._engine.sharding import aligned
from prnn_jax._given.checks import float32_at_least


def forward(
    call: Call,
    a_x: Array,
    w_hh: Array,
    b_hh: Array,
    state_0: State,
    controls: Controls = NONE,
    per_unit: Array | None = None,
    w_hr: Array | None = None,
    **more: Any,
) -> tuple[Array, State, tuple[Array, ...]]:
    """Runs the cell over time, of what the engines take.

    As `steps`, but for a cell with layer norm, of which a_x is not normalised yet.
    """
    norm, gates = call.table.norm, call.table.gates
    if norm is None or per_unit is None:
        given = w_hh, b_hh, state_0, controls, per_unit, w_hr
        return steps(call, a_x, *given, **more)
    raw = counting(call, a_x, controls)
    a_x, own = of_x(norm, gates, raw, per_unit, call.time_axis)
    y, state_n, saved = steps(call, a_x, w_hh, b_hh, state_0, controls, own, **more)
    if call.save == "all" and norm.of == "parts":
        before, after = jnp.split(saved[0], [2 * raw.shape[-1]], -1)
        saved = (jnp.concatenate([before, raw, after], -1),)
    return y, state_n, saved


def steps(
    call: Call,
    a_x: Array,
    w_hh: Array,
    b_hh: Array,
    state_0: State,
    controls: Controls = NONE,
    per_unit: Array | None = None,
    w_hr: Array | None = None,
    a_h: Array | None = None,
    h_more: Array | None = None,
    taps: State | None = None,
) -> tuple[Array, State, tuple[Array, ...]]:
    """Runs the cell's steps; shapes as in `_call.call`.

    Args:
      per_unit: or, of a cell with layer norm, of each row: as states.
      a_h: as a_x; added to the products, one number to each.
      h_more: as y; added to the products that are h.
      taps: sequences, one for each state: added to what each step hands on.

    Returns:
      y, the last state, and what `call.save` says of the saved values (a tuple of one
      array; else empty).
    """
    cell = call.table
    sizes = Sizes.of(call, a_x, w_hh)
    hidden = sizes.hidden
    lengths = aligned(call, a_x, controls.lengths)
    mask, reset_to = controls.mask, controls.reset_to
    if lengths is not None:  # what does not count may be no number
        counts = valid_steps(lengths, sizes.time, time_major=call.time_major)
        a_x = jnp.where(counts, a_x, 0)

    def step(state, inputs):
        n, a_x_t, a_h_t, h_more_t, taps_t, reset, zoneout = inputs
        before, mask_t = state, mask
        if reset is not None:
            state = _select(reset, reset_to, state)
        if lengths is not None:  # nor may it reach gradients, as 0 * NaN
            counts = n < lengths
            state = tuple(jnp.where(counts, s, 0) for s in state)
            mask_t = None if mask is None else jnp.where(counts, mask, 0)
            zoneout = None if zoneout is None else jnp.where(counts, zoneout, 0)

        def product(h, first, last):
            gates = slice(first * hidden, last * hidden)
            h = h if mask_t is None else mask_t * h
            a = grouped_product(h, w_hh[..., gates], call.precision)
            a = a + b_hh[None, :, gates]
            return a if a_h_t is None else a + a_h_t[..., gates]

        def project(m):
            assert w_hr is not None
            h = grouped_product(m, w_hr, call.precision)
            return h if h_more_t is None else h + h_more_t

        own: tuple[Array, ...] = ()
        if per_unit is not None:
            own = (per_unit if per_unit.ndim == 3 else per_unit[None],)
        by_name = {"project": project} if cell.projects else {}
        given = a_x_t, state, product, *own
        after, reserve = mixed(cell.step, state)(call, *given, **by_name)
        if zoneout is not None:
            if cell.keeps_made:
                reserve = after[:1]
            stays = jnp.split(zoneout, cell.states, -1)
            after = tuple(
                _mixture(k.astype(old.dtype), old, new)
                for k, old, new in zip(stays, state, after, strict=True)
            )
        if taps_t is not None:
            after = tuple(s + tap for s, tap in zip(after, taps_t, strict=True))
        y = after[0]
        if lengths is not None:
            after = _select(n < lengths, after, before)
            y = jnp.where(n < lengths, y, 0)
        handed_on = tuple(s.astype(y.dtype) for s in after[1:])
        saved = (*reserve, *handed_on) if call.save == "all" else handed_on
        saved = saved if call.save != "nothing" else ()
        return after, (y, (jnp.concatenate(saved, -1),) if saved else ())

    # A scan goes one way: groups that go the other are turned round before and after;
    # where all do, and over all steps, the scan itself is reversed.
    against = call.reversed_groups(sizes.groups)
    in_reverse = bool(against.all()) and lengths is None
    order = None
    if against.any() and not in_reverse:
        order = _time_of_step(call, sizes, lengths)

    def oriented(x):
        if order is None:
            return x
        if not isinstance(sizes.time, int):  # of what may be empty nothing can be taken
            one_more = jnp.zeros((1, *x.shape[1:]), x.dtype)
            x = jnp.concatenate([x, one_more])
        return jnp.take_along_axis(x, order, 0)

    numbers = jnp.arange(sizes.time, dtype=jnp.int32)
    sequences = jax.tree.map(
        lambda x: oriented(jnp.moveaxis(x, call.time_axis, 0)),
        (a_x, a_h, h_more, taps, controls.resets, controls.zoneout),
    )
    inputs = (numbers, *sequences)
    state_n, outputs = lax.scan(step, state_0, inputs, reverse=in_reverse)
    y, saved = jax.tree.map(
        lambda x: jnp.moveaxis(oriented(x), 0, call.time_axis), outputs
    )
    return y, state_n, saved


def backward(
    call: Call,
    primals: Primals,
    cotangents: tuple[Array, State],
) -> tuple[Array, Array, State, State | None, Array | None]:
    """Gradients of a_x, of a_h (one number for each product), state_0 and reset_to.

    And of h, all that each step's has, where the cell projects; or of the numbers that
    units have, by each row, where it normalises.
    """
    dy, _ = cotangents

    def run(a_x, a_h, state_0, reset_to, h_more, own):
        controls = primals.controls._replace(reset_to=reset_to)
        given = primals._replace(state_0=state_0, controls=controls)
        given = given if own is None else given._replace(per_unit=own)
        y, state_n, _ = forward(call, a_x, *given[1:], a_h=a_h, h_more=h_more)
        return y, state_n

    a_x: Any = primals.source
    h_more = jnp.zeros_like(dy) if call.table.projects else None
    state_0, reset_to = primals.state_0, primals.controls.reset_to
    own = None
    if call.table.norm is not None:
        of_all: Any = primals.per_unit
        own = jnp.broadcast_to(of_all, (state_0[0].shape[0], *of_all.shape))
    given = a_x, jnp.zeros_like(a_x), state_0, reset_to, h_more, own
    _, vjp = jax.vjp(run, *given)
    *gradients, dh, down = vjp(cotangents)
    if down is not None:
        dh = down.astype(float32_at_least(down.dtype))
    return (*gradients, dh)


def _time_of_step(call: Call, sizes: Sizes, lengths: Array | None) -> Array:
    """[time, batch or 1, groups, 1]: where each step of a group lies, and vice versa.

    Groups that go against time begin at the end of what counts.
    """
    time, groups = sizes.time, sizes.groups
    steps = jnp.arange(time, dtype=jnp.int32)[:, None, None, None]
    count = time if lengths is None else lengths[None]
    turned = jnp.where(steps < count, count - 1 - steps, steps)
    second = (jnp.arange(groups) >= groups // 2)[None, None, :, None]
    against = (second != call.reverse) if call.bidirectional else call.reverse
    return jnp.where(against, turned, steps)


def mixed(step: Callable, state: State) -> Callable:
    """A cell's step for states of which those but h may be wider than all else.

    It is in the wider dtype then; what it multiplies, h and the reserve are not.
    """
    narrow, wide = state[0].dtype, state[-1].dtype
    if narrow == wide:
        return step

    def run(call: Call, a_x, state, product, *own, **by_name):
        def in_wide(function):
            return lambda x, *given: function(x.astype(narrow), *given).astype(wide)

        by_name = {name: in_wide(function) for name, function in by_name.items()}
        a_x, state, own = jax.tree.map(lambda x: x.astype(wide), (a_x, state, own))
        after, reserve = step(call, a_x, state, in_wide(product), *own, **by_name)
        h, *others = after
        reserve = tuple(value.astype(narrow) for value in reserve)
        return (h.astype(narrow), *others), reserve

    return run


def _mixture(k: Array, old: Array, new: Array) -> Array:
    """k old + (1 - k) new, of which 0 parts are none, whatever they are none of."""
    return jnp.where(k == 0, new, jnp.where(k == 1, old, k * old + (1 - k) * new))


def _select(condition: Array, yes, no):
    return tuple(jnp.where(condition, a, b) for a, b in zip(yes, no, strict=True))


def grouped_product(h: Array, w: Array, precision) -> Array:
    """h [..., groups, k] times w [groups, k, n], group by group."""
    if w.shape[0] == 1:  # one product, which XLA runs faster than a batch of one
        return jnp.matmul(h[..., 0, :], w[0], precision=precision)[..., None, :]
    return jnp.einsum("...gh,ghn->...gn", h, w, precision=precision)
