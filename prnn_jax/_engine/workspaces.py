"""Sizes of what native calls are given besides their arrays, as C++ states them.

Of any time and batch, symbolic ones of `jax.export` among them: sizes are linear in
each, so that a program can be made before they are known.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.call import Call, Sizes
from prnn_jax._call.controls import Controls
from prnn_jax._engine.modules import native

Pairs = Sequence[tuple[Array, Array]]


def cpu_floats(
    call: Call,
    sizes: Sizes,
    controls: Controls,
    dtype,
    *,
    backward: bool,
    input_size: int = 0,
) -> int:
    """Workspace of a call of the CPU engine.

    Args:
      input_size: of a call that makes its own a_x, whose time and batch are known.
    """
    has_mask = controls.mask is not None

    def floats(time: int, batch: int) -> int:
        shape = time, batch, sizes.groups, sizes.hidden, sizes.projection(call)
        of = call.table.name, jnp.dtype(dtype).name, *shape
        return native.cpu_workspace_floats(*of, backward, has_mask, input_size)

    return _of_any(sizes, floats)


def cuda_bytes(
    call: Call, sizes: Sizes, controls: Controls, dtype, *, backward: bool
) -> int:
    """Workspace of a call of the CUDA engine: what a grid's blocks exchange."""

    def of(time: int, batch: int) -> int:
        return native.cuda_workspace_bytes(
            call.table.name,
            jnp.dtype(dtype).name,
            *(time, batch, sizes.groups, sizes.hidden),
            backward,
            controls.lengths is not None,
            call.reverse or call.bidirectional,
            controls.changes_product_input,
            call.is_stack,
        )

    return _of_any(sizes, of)


def prepacked_words(call: Call, w_hh: Array, input_size: int, *, int8: bool) -> int:
    """Of the array that `prnn_jax.prepare` gives a layer of these weights."""
    groups, output, columns = w_hh.shape
    sizes = Sizes(0, 0, groups, columns // call.table.gates, output)
    of = call.table.name, jnp.dtype(w_hh.dtype).name, groups, sizes.hidden
    return native.cpu_prepacked_words(*of, sizes.projection(call), input_size, int8)


def products_floats(over_rows: Pairs, over_columns: Pairs) -> int:
    """Workspace of the products of `_engine.weight_products`."""
    rows = [(True, a.shape[1], a.shape[2], b.shape[2], len(a)) for a, b in over_rows]
    columns = [(False, a.shape[1], len(a), len(b), a.shape[2]) for a, b in over_columns]
    (first, _), *_ = *over_rows, *over_columns
    dtype = jnp.dtype(first.dtype).name
    return native.products_workspace_floats(dtype, rows + columns)


def _of_any(sizes: Sizes, size: Callable[[int, int], int]) -> int:
    """`size(time, batch)`; where one of them is symbolic, as an expression of them."""
    time, batch = sizes.time, sizes.batch
    if isinstance(time, int) and isinstance(batch, int):
        return size(time, batch)
    constant, row, step = size(0, 0), size(0, 1), size(1, 0)
    both = size(1, 1) - row - step + constant
    row, step = row - constant, step - constant
    terms = ((row, batch), (step, time), (both, time * batch))
    return constant + sum(each * number for each, number in terms if each)
