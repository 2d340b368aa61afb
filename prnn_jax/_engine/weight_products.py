"""The products of a backward pass that are parallel in time: gradients of weights.

XLA makes them, or, where it takes less time, the CPU engine.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from prnn_jax._call.call import Call
from prnn_jax._engine import workspaces
from prnn_jax._engine.by_platform import DEFAULT, by_platform
from prnn_jax._engine.cores import cores
from prnn_jax._engine.modules import native
from prnn_jax._engine.sharding import sharding_of_sum, varying_axes

#: Of how many multiply-adds the CPU engine makes them. XLA's products take some 50 µs
#: each besides their arithmetic, and 10 % longer where they are large
#: (benchmarks/products.py); but they have threads for any number of cores, the engine's
#: for 16.
MAX_MULTIPLY_ADDS = math.inf if cores() <= 16 else 1e9
#: Of which dtypes: bfloat16 where the processor has an instruction for its products.
DTYPES = "float32", *(["bfloat16"] * (native.sums_pairs()))


class Weights(NamedTuple):
    """Weights [N, k, n], or some of their columns, and what they multiplied.

    Attributes:
      h: a sequence [k].
      da: of what they gave, a sequence [n].
    """

    h: Array
    da: Array


class Projection(NamedTuple):
    """The same of weights that all groups' pre-activations come from.

    Attributes:
      x: `[batch, time, input]`, or time-major; zero at steps that do not count.
      w: `[input, N, n]`.
      da: a sequence [n].
    """

    x: Array
    w: Array
    da: Array


class OfWeights(NamedTuple):
    """Gradients of `Weights`, and of a bias: `[N, k, n]`, `[N, n]`."""

    dw: Array
    db: Array


class OfProjection(NamedTuple):
    """Gradients of `Projection`, and of a bias: as x, as w, `[N, n]`."""

    dx: Array
    dw: Array
    db: Array


Results = tuple[tuple[OfWeights, ...], OfProjection | None]


def gradients(
    call: Call, w_hh: Array, weights: Sequence[Weights], projection: Projection | None
) -> Results:
    """Of each, summed over all steps and rows."""
    given = tuple(weights), projection
    if call.implementation == "scan" or not _is_native(w_hh, given):
        return _by_xla(call.precision, sharding_of_sum(w_hh, weights[0].da), *given)
    return _anywhere(call.precision)(*given)


def _is_native(w_hh: Array, given) -> bool:
    """Whether there is one CPU, and it is faster."""
    arrays = jax.tree.leaves(given)
    sizes: list[Any] = [n for x in arrays for n in x.shape]
    # Sizes may be known only when the program runs.
    if not all(isinstance(n, int) and n > 0 for n in sizes):
        return False
    is_single = sharding_of_sum(w_hh, *arrays) is None and not varying_axes(w_hh)
    dtype, *more = {x.dtype.name for x in arrays}
    if not is_single or more or dtype not in DTYPES:
        return False
    weights, projection = given
    work = sum(da.size * h.shape[-1] for h, da in weights)
    if projection is not None:
        work += 2 * projection.da.size * projection.x.shape[-1]
    return work <= MAX_MULTIPLY_ADDS and _has_one_cpu()


def _has_one_cpu() -> bool:
    """XLA shares its own products among devices, and could not share the call."""
    try:
        return jax.device_count("cpu") == 1
    except RuntimeError:  # JAX was told to do without
        return False


@functools.cache
def _anywhere(precision):
    """Native on a CPU, outside of vmap."""
    by_xla = functools.partial(_by_xla, precision, None)

    @custom_vmap
    def op(weights, projection):
        functions = {"cpu": _by_engine, DEFAULT: by_xla}
        results = _results(weights, projection)
        return by_platform(functions, (), results, weights, projection)

    @op.def_vmap
    def rule(size, mapped, *given):
        axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, mapped)
        out = jax.vmap(by_xla, tuple(axes), axis_size=size)(*given)
        return out, jax.tree.map(lambda _: True, out)

    return op


def _results(weights, projection) -> Any:
    """The types of what `gradients` returns."""

    def result(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, weights[0].h.dtype)

    of_weights = []
    for h, da in weights:
        (groups, size), (_, columns) = h.shape[2:], da.shape[2:]
        one = OfWeights(result(groups, size, columns), result(groups, columns))
        of_weights.append(one)
    if projection is None:
        return tuple(of_weights), None
    x, w, da = projection
    of_x = OfProjection(result(*x.shape), result(*w.shape), result(*da.shape[2:]))
    return tuple(of_weights), of_x


# ---- by XLA --------------------------------------------------------------------------


def _by_xla(precision, out_sharding, weights, projection) -> Results:
    of_weights = tuple(
        OfWeights(_group_products(h, da, precision, out_sharding), da.sum((0, 1)))
        for h, da in weights
    )
    if projection is None:
        return of_weights, None
    x, w, da = projection
    if out_sharding is None:
        columns = w.reshape(len(w), da.shape[2] * da.shape[3])
        da_x = da.reshape(*da.shape[:2], columns.shape[1])
        dx = jnp.matmul(da_x, columns.T, precision=precision)
    else:  # heads may be on several devices, and x is all of theirs
        dx = jnp.einsum(
            "abgc,igc->abi", da, w, precision=precision, out_sharding=sharding_of_sum(x)
        )
    dw = jnp.einsum(
        "abi,abgc->igc",
        x,
        da,
        precision=precision,
        out_sharding=sharding_of_sum(w, da),
    )
    return of_weights, OfProjection(dx, dw, da.sum((0, 1)))


def _group_products(h: Array, da: Array, precision, out_sharding) -> Array:
    """Σ over the rows (two leading axes) of h^T da, group by group."""
    if h.shape[2] == 1 and out_sharding is None:  # XLA is faster without a batch of one
        h, da = h[:, :, 0], da[:, :, 0]
        return jnp.einsum("abh,abn->hn", h, da, precision=precision)[None]
    return jnp.einsum(
        "abgh,abgn->ghn", h, da, precision=precision, out_sharding=out_sharding
    )


# ---- by the CPU engine ---------------------------------------------------------------


def _by_engine(weights, projection) -> Results:
    """In two calls, for a layer whose input is data has no use for dx."""
    over_rows = [(_rows(h), _rows(da)) for h, da in weights]
    if projection is None:
        sums, _ = _native(over_rows, [])
        return tuple(OfWeights(*out) for out in sums), None
    x, w, da = projection
    da = da.reshape(-1, 1, w[0].size)
    over_rows.append((x.reshape(-1, 1, x.shape[-1]), da))
    sums, _ = _native(over_rows, [])
    *of_weights, (dw, db) = sums
    _, (dx,) = _native([], [(da, w.reshape(len(w), 1, -1))], before=db)
    return tuple(OfWeights(*out) for out in of_weights), OfProjection(
        dx.reshape(x.shape), dw.reshape(w.shape), db.reshape(w.shape[1:])
    )


def _rows(sequence: Array) -> Array:
    return sequence.reshape(-1, *sequence.shape[2:])


def _native(over_rows, over_columns, before: Array | None = None):
    """Products of matrices `[rows, groups, columns]`, as in cpu/matrix_product.h.

    Args:
      over_rows: pairs of [r, g, m] and [r, g, n].
      over_columns: pairs of [r, g, k] and [n, g, k].
      before: what another call makes, at the same time as which this would be slower.

    Returns:
      For each of the first `[g, m, n]` and the sums of its right one, `[g, n]`; for
      each of the others `[r, g, n]`.
    """

    def result(*shape: int):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    sums = [
        (result(*a.shape[1:], b.shape[2]), result(*b.shape[1:])) for a, b in over_rows
    ]
    products = [result(*a.shape[:2], len(b)) for a, b in over_columns]
    workspace = result(workspaces.products_floats(over_rows, over_columns))
    leaves, structure = jax.tree.flatten((sums, products, workspace))
    kinds = [1] * len(over_rows) + [0] * len(over_columns)
    matrices = jax.tree.leaves((over_rows, over_columns))
    out = jax.ffi.ffi_call("prnn_products", leaves)(
        *matrices,
        *jax.tree.leaves(before),
        over_rows=np.array(kinds, np.int64),
    )
    sums, products, _ = jax.tree.unflatten(structure, out)
    dtype = matrices[0].dtype  # of sums of float32
    return jax.tree.map(lambda x: x.astype(dtype), (sums, products))
