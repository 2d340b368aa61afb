"""How large what a layer computes is, and its gradients: for who looks for an overflow.

Nothing of it is in a call of any other function.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.options import (
    GivenState,
    Lengths,
    MaskedY,
    Merge,
    Precision,
    Resets,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import AnyCell, check_cell_name
from prnn_jax._engine.eager import compiled_once
from prnn_jax._given import checks, statics
from prnn_jax._given.params import Params, Prepared
from prnn_jax._ops.layer_stack import Tower, apart, tower_of
from prnn_jax._ops.run import call_of
from prnn_jax._ops.stack_parts import Layer, StackOptions, check_width
from prnn_jax._statistics.gates import activations
from prnn_jax._statistics.summaries import ValueStatistics, saturated, summary
from prnn_jax._statistics.watch import Made, Steps, run_layer, taps_of, watched

_OP = "statistics"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerStatistics:
    """What `statistics` says of a layer.

    The keys, of a bidirectional layer, are those of the direction that runs forward,
    and the same with "_reverse" after them.

    Attributes:
      forward: "a_x", what the input gives to each gate; "pre_activations", all that
        goes into the gates' activations; and each state after each step, by its letter:
        "h" (which is y), "c", ....
      saturation: by the gate's letter, the share of its pre-activations at which its
        activation is flat, float32; 0 where no step counts.
      backward: gradients of "pre_activations" (a_x, a term of them, has the same), and
        of each state as a step hands it on; None without dy.
      parameters: gradients of the layer's, by their names in `Params`, which are sums
        over all steps and rows, so that no step is the first; None without dy, and of
        what `prepare` has made, which gets none.
    """

    forward: dict[str, ValueStatistics]
    saturation: dict[str, Array]
    backward: dict[str, ValueStatistics] | None = None
    parameters: dict[str, ValueStatistics] | None = None


def statistics(
    cell: AnyCell,
    x: ArrayLike,
    layers: Params | Prepared | Layer | Sequence[Params | Prepared | Layer],
    state_0: GivenState | Sequence[GivenState | None] | None = None,
    *,
    dy: ArrayLike | None = None,
    saturated_below: float = 0.01,
    lengths: Lengths | None = None,
    mask: ArrayLike | None = None,
    masked_y: MaskedY = "hold",
    resets: Resets | None = None,
    reset_to: GivenState | Sequence[GivenState | None] | None = None,
    reverse: bool = False,
    bidirectional: bool = False,
    merge: Merge = "concat",
    dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
    zoneout: float | tuple[float, ...] = 0.0,
    key: Array | None = None,
    skip_connections: bool = False,
    time_major: bool = False,
    precision: Precision = None,
    reset_after: bool = True,
    activation: GivenActivations | None = None,
    gate_activation: GivenActivation = "sigmoid",
    clip: Clip | None = None,
    cap: float = 20.0,
    skip: float = 0.0,
) -> tuple[LayerStatistics, ...]:
    r"""How large the values of a layer or a stack are, forward and backward.

    For each layer: largest magnitudes, histograms of exponents, where values cease to
    be finite, and how many gates are saturated. A value v of a gate's pre-activation is
    counted as saturated where

    .. math:: |f'(v)| < τ

    with f the gate's activation and τ saturated_below: for τ = 0.01, :math:`|v| > 4.59`
    of σ, :math:`|v| > 2.99` of tanh, and all v ≤ 0 of a ReLU. Exponentials, as in the
    gate i of the sLSTM, are never saturated and left out, and so are the gates of cells
    that `define_cell` has made, whose activations only their steps know; the
    pre-activations of these are a_x and what their products give, added up.

    Gradients are those that a backward pass has in its hands at each step, of what goes
    into the activations, and of each state as it is handed to the next step (and, of h,
    as y); that of c does not have in it what comes through the h of the same step. And
    those of the parameters: their sums overflow first where steps are many.

    What it costs: it runs the reference, `lax.scan`, forward, and with dy backward, as
    `implementation="scan"` does; keeps all values of a layer, and with dy of all
    layers, until they have been counted; and counts them, which takes as long again as
    the scan, or twice that. Layers are compiled one by one, equal ones too. Calls of
    other functions are as fast as before. Under `jit` it gives arrays of fixed shapes,
    and nothing waits for the device. `jax_debug_nans` and `jax_debug_infs` do not stop
    it.

    Values are those of the reference, each rounded to x's dtype. Engines keep float32
    between two steps, so that an overflow of float16 here need not be one of theirs.

    Args:
      cell: "lstm", "slstm", "gru" or "rnn", or what `define_cell` has made.
      x: `[*batch, time, input]`.
      layers: parameters of one layer, or of several, as in `stack`. What `prepare` has
        made stands for the parameters in it, and gets no gradients.
      state_0: of a layer as for the cell's own function; of several, one for each.
      dy: gradient of the loss by the result, y, and shaped and typed as it is. That of
        the last state can be given as that of y at the last step. None leaves out the
        backward pass.
      saturated_below: τ.
      lengths: `[*batch]`, as in `lstm`; here and with mask, steps that do not count are
        in no number.
      mask: `[*batch, time]`, as in `stack`.
      masked_y: as in `lstm`, for every layer.
      resets: `[*batch, time]`, as in `lstm`, for all layers.
      reset_to: of the form of state_0.
      reverse: as in `lstm`, for every layer.
      bidirectional: as in `lstm`, for every layer.
      merge: as in `lstm`, for every layer.
      dropout: as in `stack`.
      recurrent_dropout: as in `stack`.
      zoneout: as in `stack`.
      key: as in `stack`.
      skip_connections: as in `stack`.
      time_major: as in `stack`.
      precision: as in `lstm`.
      reset_after: as in `gru`.
      activation: as in the cell's own function.
      gate_activation: as in `lstm` and `gru`.
      clip: as in `lstm`.
      cap: as in `rnn`.
      skip: as in `rnn`.

    Returns:
      `LayerStatistics` of each layer, from the first to the last, also of one; each of
      stacked layers has its own. `plot_statistics` draws them.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    options = StackOptions.of(locals(), implementation="scan")
    check_cell_name(_OP, cell)
    below = float(statics.number(_OP, "saturated_below", saturated_below))
    checks.check(
        below > 0, f"{_OP}: saturated_below must be positive, got {saturated_below}."
    )
    if is_one := isinstance(layers, (Params, Prepared, Layer)):
        of_one = {"state_0": state_0, "reset_to": reset_to}
        given = {n: [value] for n, value in of_one.items() if value is not None}
        layers, options = [layers], replace(options, **given)
    call = watched(call_of(_OP, cell, options))
    # Which would end a look at what they have found.
    with jax.debug_nans(False), jax.debug_infs(False):
        tower, x, form = tower_of(_OP, call, x, layers, options)
        return _of_layers(call, tower, x, form, below, dy, is_one=is_one)


def _of_layers(
    call: Call, tower: Tower, y: Array, form, below: float, dy, *, is_one: bool
) -> tuple[LayerStatistics, ...]:
    """`statistics` of layers whose arguments fit together; y is what they are given."""
    forward, pulls = [], []
    for n, part in enumerate(_parts(form)):
        op = _OP if is_one else f"{_OP}, layer {n}"
        check_width(_OP, n, call, part[0].params, y.shape[-1])
        run = functools.partial(_layer, tower, op, n, part)
        if dy is None:
            y, (made, steps) = run(y)
        else:
            given = y, taps_of(run, y), _trained(part)
            y, pull, (made, steps) = jax.vjp(run, *given, has_aux=True)
            pulls.append((pull, steps))
        forward.append(_forward(call, below, made, steps))
    if dy is None:
        return tuple(LayerStatistics(*each) for each in forward)
    d = checks.jax_array(_OP, "dy", dy)
    names = ("time", "*batch") if call.time_major else ("*batch", "time")
    checks.shape(_OP, "dy", d, (*names, "features of y"), y.shape)
    checks.same_dtype(_OP, {"y": y, "dy": d})
    backward = []
    for pull, steps in reversed(pulls):
        d, made, dparams = pull(d)
        backward.append(_backward(call, made, steps, dparams))
    both = zip(forward, reversed(backward), strict=True)
    return tuple(LayerStatistics(*each, *back) for each, back in both)


def _parts(form) -> list:
    """`(layer, state_0, reset_to)` of each layer, stacked ones taken apart."""
    parts = []
    for part in zip(*form, strict=True):
        layer = part[0]
        if not layer.stacked:
            parts.append(part)
            continue
        size = jax.tree.leaves(layer)[0].shape[0]
        parts += apart(part, size)
    return parts


def _trained(part) -> Params | None:
    """The parameters of a layer, if they get gradients."""
    params = part[0].params
    return None if isinstance(params, Prepared) else params


def _layer(
    tower: Tower,
    op: str,
    n: int,
    part,
    x: Array,
    taps: Made | None = None,
    params: Params | None = None,
) -> tuple[Array, tuple[Made, Steps]]:
    """A layer's y, and what its steps have made; with these parameters, if given."""
    if params is not None:
        part = (replace(part[0], params=params), *part[1:])
    watching = tower._replace(run_layer=functools.partial(run_layer, taps))
    y, (_, made, steps) = watching.layer(op, x, n, part)
    return y, (made, steps)


@compiled_once(static_argnums=(0, 1))
def _forward(call: Call, below: float, made: Made, steps: Steps) -> tuple[dict, dict]:
    """`LayerStatistics.forward` and saturation."""
    values, saturation = {}, {}
    time = made.pre_activations.shape[call.time_axis]
    for suffix, against, own, (counts, at) in _directions(call, made, steps):
        for name, array in own.named(call).items():
            given = array, counts, at
            values[name + suffix] = summary(*given, last=against, time=time)
        gates = jnp.split(own.pre_activations, call.table.gates, -1)
        inputs = dict(zip(call.table.gate_names, gates, strict=True))
        for gate, function in activations(call).items():
            share = saturated(function, inputs[gate], counts, below)
            saturation[gate + suffix] = share
    return values, saturation


@compiled_once(static_argnums=(0,))
def _backward(
    call: Call, made: Made, steps: Steps, params: Params | None
) -> tuple[dict, dict | None]:
    """`LayerStatistics.backward` and parameters, of gradients of what was made."""
    time = made.pre_activations.shape[call.time_axis]
    values = {
        name + suffix: summary(array, counts, at, last=not against, time=time)
        for suffix, against, own, (counts, at) in _directions(call, made, steps)
        for name, array in own.named(call).items()
    }
    if params is None:
        return values, None
    whole, never = jnp.ones((), bool), jnp.full((), -1, jnp.int32)
    given = {k: v for k, v in params._asdict().items() if v is not None}
    return values, {
        name: summary(array, whole, never, last=True, time=None)
        for name, array in given.items()
    }


def _directions(
    call: Call, made: Made, steps: Steps
) -> Iterator[tuple[str, bool, Made, Steps]]:
    """Of each: what is after its names, whether it runs against time, and its part."""
    if not call.bidirectional:
        yield "", call.reverse, made, steps
        return
    half = made.pre_activations.shape[2] // 2
    for suffix, against, groups in (
        ("", call.reverse, slice(half)),
        ("_reverse", not call.reverse, slice(half, None)),
    ):

        def own(array: Array, groups=groups) -> Array:
            return array if array.shape[2] == 1 else array[:, :, groups]

        yield suffix, against, *jax.tree.map(own, (made, steps))
