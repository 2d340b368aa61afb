"""Weights packed once, for calls that come again and again."""

from typing import Any, Literal

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.arguments import Arrays, Layout, check_arguments
from prnn_jax._call.call import Call
from prnn_jax._call.choose import cell_of
from prnn_jax._call.options import Options
from prnn_jax._cells.table import AnyCell, check_cell_name
from prnn_jax._engine import ffi
from prnn_jax._engine.eager import compiled_once
from prnn_jax._engine.plan import engine_for, target_platform
from prnn_jax._given import checks
from prnn_jax._given.params import Params, Prepared, check_lead, described
from prnn_jax._given.statics import flag, size
from prnn_jax._ops import rounding
from prnn_jax._ops.run import layer_input, with_own


def prepare(
    cell: AnyCell,
    params: Params,
    *,
    batch: int,
    time: int,
    bidirectional: bool = False,
    reset_after: bool = True,
    weights: Literal["int8"] | None = None,
) -> Prepared:
    """Parameters in the order in which the CPU engine reads them: for inference.

    A call packs its weights, or, where it has but a few steps, reads them as they are,
    which is slower. Where many calls have the same weights, as in streaming, pack them
    once:

        prepared = prnn_jax.prepare("lstm", params, batch=1, time=1)
        y, state = prnn_jax.lstm(x, prepared, state)

    The result stands for the params in `lstm` and the others, and in `stack`, also as
    an argument of a jitted function. It holds both, so that it takes twice their
    memory, and everything works as with the params themselves; but it is constant:
    derivatives by the parameters are zero. Results are the same to the last bit where
    the engine makes the input projection either way (of large weights, XLA may, with
    other roundings).

    With `weights="int8"` the matrices are rounded to integers of 8 bits with a scale
    for each column, `w[k, n] ≈ s[n] q[k, n]`, `s[n] = max_k |w[k, n]| / 127`, so that a
    step reads a fourth of float32's bytes: for a row or two at a time, which wait for
    weights. What they multiply is rounded to 16 bits, 64 values with a scale; sums,
    biases, gates and states are as ever. The result's `params` are the layer with such
    weights, in their own dtype: any other engine computes the same, up to roundings. A
    column with an infinity or NaN gives NaN.

    Where another engine runs the call (on a GPU, in float64, with
    `implementation="scan"`), for weights that are batched by `vmap` or sharded, where
    batch or time is symbolic, and on a processor of another kind than it was made on,
    it is as if not prepared. It is not for storing: another version of this package may
    cut the weights in another way.

    Args:
      cell: "lstm", "slstm", "gru", "rnn", or what `normed` gives; a cell of
        `define_cell` has no engine, and its weights are only rounded, if at all.
      params: `Params`.
      batch: rows of the calls to come, all batch axes together. Other sizes give the
        same results, and may take longer.
      time: their steps; likewise.
      bidirectional: as in `lstm`.
      reset_after: as in `gru`.
      weights: "int8" to round them; None as they are.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    check_cell_name("prepare", cell)
    batch, time = size("prepare", "batch", batch), size("prepare", "time", time)
    bidirectional = flag("prepare", "bidirectional", bidirectional)
    checks.one_of("prepare", "weights", weights, (None, "int8"))
    of_cell = cell_of("prepare", cell, Options(reset_after=reset_after))
    call = Call(**of_cell, bidirectional=bidirectional)
    checks.check(
        isinstance(params, Params),
        f"prepare: params must be prnn_jax.Params, got {described(params)}.",
    )
    w_ih = checks.jax_array("prepare", "w_ih", params.w_ih)
    checks.check(
        w_ih.ndim >= 2,
        f"prepare: w_ih must be [input, {call.table.gates}*hidden], got "
        f"{list(w_ih.shape)}.",
    )
    check_lead("prepare", params, params.w_hh, bidirectional=bidirectional)
    x = jnp.zeros((1, 1, *w_ih.shape[-2:-1]), w_ih.dtype)
    call = with_own("prepare", call, params)
    layout, _ = check_arguments("prepare", call, x, params, None)
    is_int8 = weights == "int8"
    deepest = max(layout.hidden, layout.output, w_ih.shape[-2])
    checks.check(
        not is_int8 or deepest <= rounding.MOST_INPUTS,
        f'prepare: weights="int8" takes up to {rounding.MOST_INPUTS} inputs and hidden '
        f"units, got {deepest}; leave weights out.",
    )
    kept = rounding.rounded(params) if is_int8 else params
    engine, _ = engine_for(
        call, x.dtype, target_platform(), layout.groups, layout.hidden
    )
    if engine == "scan" or target_platform() != "cpu" or w_ih.size == 0:
        return Prepared(kept, None)
    _, arrays = check_arguments("prepare", call, x, kept, None)  # what calls will have
    return Prepared(kept, _packed(call, layout, batch, time, is_int8, arrays))


@compiled_once(static_argnums=(0, 1, 2, 3, 4))
def _packed(
    call: Call, layout: Layout, batch: int, time: int, int8: bool, arrays: Arrays
) -> Array:
    w_ih: Any = arrays.w_ih
    x, _, w_hh, b_ih, b_hh, _, w_hr, _ = arrays.or_zeros(layout)
    if call.table.norm is not None:  # biases are among the units' shifts
        b_ih = b_hh = jnp.zeros_like(b_hh)
    elif b_ih is None:
        b_ih = jnp.zeros_like(b_hh)
    groups, hidden, output = layout.groups, layout.hidden, layout.output
    columns = call.table.gates * hidden
    return ffi.prepare(
        call,
        layer_input(layout, x, w_ih, b_ih),
        w_hh.reshape(groups, output, columns),
        b_hh.reshape(groups, columns),
        None if w_hr is None else w_hr.reshape(groups, hidden, output),
        batch,
        time,
        int8=int8,
    )
