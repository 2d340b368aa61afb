"""A layer by the reference, with what its steps make, and taps for its gradients."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._autodiff.recurrence import placed
from prnn_jax._call.call import Call
from prnn_jax._call.controls import counting, valid_steps
from prnn_jax._call.options import Options
from prnn_jax._cells.normed import of_x
from prnn_jax._cells.table import Cell, State
from prnn_jax._engine import scan
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.input_projection import pre_activations as projected_input
from prnn_jax._engine.sharding import aligned
from prnn_jax._ops.run import Checked, checked_layer
from prnn_jax._statistics.gates import pre_activations


class Made(NamedTuple):
    """What the steps of a layer have made, or gradients of it; sequences.

    Attributes:
      a_x: what the input gives to each gate, None where these are gradients.
      pre_activations: what goes into each gate's activation. Its gradient is that of
        a_x, which is a term of it.
      states: after each step.
    """

    a_x: Array | None
    pre_activations: Array
    states: State

    def named(self, call: Call) -> dict[str, Array]:
        """Those that there are, by name."""
        of_all = {} if self.a_x is None else {"a_x": self.a_x}
        of_all["pre_activations"] = self.pre_activations
        return of_all | dict(zip(call.table.state_names, self.states, strict=True))


class Steps(NamedTuple):
    """Of each step of each row.

    Attributes:
      counts: bool `[batch, time, N, 1]`, or time-major; of all alike 1 in place of an
        axis.
      at: int32, likewise, where it is in x.
    """

    counts: Array
    at: Array


@dataclass(frozen=True)
class _Watched(Call):
    """A call whose forward pass keeps pre-activations in place of the gates."""

    @property
    def table(self) -> Cell:
        """The cell's row, with a step that gives pre-activations as the reserve."""
        cell = super().table
        plain = Call(**vars(self))
        step = functools.partial(_watched_step, plain)
        return replace(cell, step=step, reserve=cell.gates, keeps_made=False)


def watched(call: Call) -> Call:
    """The same call by the reference, which keeps pre-activations."""
    return _Watched(**{**vars(call), "save": "all", "implementation": "scan"})


def _watched_step(plain, call, a_x, state, product, own=None, **by_name):
    """A step as in `_cells.table`, with pre-activations as its reserve."""
    del call
    cell = plain.table
    a_h: list[Array | None] = [None] * cell.gates

    def seen(h, first: int, last: int) -> Array:
        out = product(h, first, last)
        for gate, part in enumerate(jnp.split(out, last - first, -1), first):
            before = a_h[gate]
            a_h[gate] = part if before is None else before + part
        return out

    given = () if own is None else (own,)
    after, reserve = cell.step(plain, a_x, state, seen, *given, **by_name)
    each = jnp.split(a_x, cell.gates, -1)
    return after, tuple(pre_activations(plain, each, a_h, state, reserve, own))


def run_layer(
    taps: Made | None, op: str, call: Call, x, params, options: Options
) -> tuple[Array, tuple[Any, Made, Steps]]:
    """As `_ops.run.run_layer`, by the reference; with the state, what its steps made.

    Args:
      taps: zeros, added to what steps make, of which these have the gradients.
      call: `watched`.
    """
    given = checked_layer(op, call, x, params, options)
    y, state_n, made, steps = _run(*given, taps)
    return y, (state_n, made, steps)


@compiled_once(static_argnums=(0, 1, 2, 3))
def _run(*given) -> tuple[Array, Any, Made, Steps]:
    *called, taps = given
    called = Checked(*called).varying()
    call, primals = called.call, placed(called.call, called.primals())
    a_x = projected_input(call, primals.source, primals.controls)
    norm = call.table.norm
    if norm is not None:
        a_x = counting(call, a_x, primals.controls)
        own: Any = primals.per_unit
        a_x, own = of_x(norm, call.table.gates, a_x, own, call.time_axis)
        primals = primals._replace(per_unit=own)
    more = None
    if taps is not None:
        taps = aligned(call, a_x, taps)
        a_x, more = a_x + taps.pre_activations, taps.states
    y, state_n, saved = scan.steps(call, a_x, *primals[1:], taps=more)
    cell = call.table
    hidden = a_x.shape[-1] // cell.gates
    inputs, *states = jnp.split(
        saved[0], [(cell.gates + n) * hidden for n in range(cell.states - 1)], -1
    )
    made = Made(a_x, inputs, (y, *states))
    return *called.results(primals, y, state_n), made, _steps(called, primals, a_x)


def _steps(called: Checked, primals, a_x: Array) -> Steps:
    call, lengths = called.call, primals.controls.lengths
    time = a_x.shape[call.time_axis]
    counts = jnp.ones((1, 1, 1, 1), bool)
    if lengths is not None:
        counts = valid_steps(lengths, time, time_major=call.time_major)
    if called.steps is not None:
        at = called.steps.order.reshape(*called.layout.order, 1, 1)
    else:
        others = tuple(axis for axis in range(4) if axis != call.time_axis)
        at = jnp.expand_dims(jnp.arange(time, dtype=jnp.int32), others)
    return Steps(counts, at)


def taps_of(layer: Callable, x: Array) -> Made:
    """Zeros like what a layer makes: `layer(x) -> (y, (made, ...))`."""
    made = jax.eval_shape(layer, x)[1][0]
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), made._replace(a_x=None))
