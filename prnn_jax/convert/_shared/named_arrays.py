"""What the converters share: they check names and shapes, then the layout converts.

Messages begin with the public function, `op`, and call arrays what the library calls
them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._call.arguments import projected_sizes
from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax._given.params import MultiHeadParams, Params, described
from prnn_jax.convert._shared.layouts import (
    Layout,
    check_no_projection,
    from_params,
    to_params,
)

Tree = Mapping[str, Any]

_OURS = Layout(
    "rnn", ("w_ih",), ("w_hh",), ("b_ih",), bias_hh=("b_hh",), optional_bias=True
)


def layout_of(op: str, layouts: Mapping[str, Layout], cell: str) -> Layout:
    """The row of a library's table."""
    checks.one_of(op, "cell", cell, tuple(layouts))
    return layouts[cell]


def read(op: str, layout: Layout, arrays: Tree, lead: tuple[int, ...] = ()) -> Params:
    """The arrays of a layer, checked, as `Params`; lead: sizes of axes in front."""
    arrays = {
        name: as_array(op, name, value)
        for name, value in arrays.items()
        if value is not None
    }
    has_bias = not layout.optional_bias or any(name in arrays for name in layout.biases)
    wanted = layout.names if has_bias else layout.weights
    check_names(op, wanted, arrays, hint="pass the arrays of one layer alone")
    arrays = {name: _plain(checks.array(op, name, arrays[name])) for name in wanted}
    arrays = _of_one_dtype(arrays)
    _check_shapes(op, layout, arrays, lead)
    # Copied, lest the library change the arrays in place.
    return jax.tree.map(jnp.array, to_params(layout, arrays))


def _plain(value: Any) -> np.ndarray | Array:
    """NumPy's arrays as they are, JAX's and all else as JAX's."""
    return value if isinstance(value, np.ndarray) else jnp.asarray(value)


def _of_one_dtype(arrays: dict[str, Any]) -> dict[str, Any]:
    """NumPy's arrays in JAX's dtypes, if they are not all of one already."""
    if len({array.dtype for array in arrays.values()}) == 1:
        return arrays
    return {
        name: array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
        for name, array in arrays.items()
    }


def as_array(op: str, name: str, value: Any) -> Any:
    """An array, or a tensor of PyTorch as one; others stay, to be checked."""
    check(
        not hasattr(value, "raw_data"),
        f"{op}: {name} must be an array, got {type(value).__name__}; "
        "onnx.numpy_helper.to_array makes one.",
    )
    if not hasattr(value, "detach"):
        return value
    check(
        not getattr(value, "is_meta", False),
        f"{op}: {name} must have values, got a tensor on the device meta; load the "
        "module's weights before, e.g. with load_state_dict(..., assign=True).",
    )
    tensor = value.detach().cpu()
    kind = str(tensor.dtype).removeprefix("torch.")
    is_narrow = kind.startswith(("bfloat16", "float8")) and hasattr(jnp, kind)
    try:
        if is_narrow:  # NumPy has no such type
            return tensor.float().numpy().astype(jnp.dtype(kind))
        return tensor.numpy()
    except (RuntimeError, TypeError) as error:
        layout = str(getattr(tensor, "layout", "")).removeprefix("torch.")
        raise ValueError(
            f"{op}: {name} must be a dense tensor of floats, got "
            f"{type(value).__name__} of {kind}, {layout}; make one of it, by "
            f".dequantize(), .to_dense() or .float(). PyTorch says: {error}"
        ) from error


def check_mapping(op: str, name: str, given: Any, wanted: str) -> None:
    """What comes must have arrays by name; `wanted` is how the library gives it."""
    check(
        hasattr(given, "items") and hasattr(given, "keys"),
        f"{op}: {name} must be a mapping of names to arrays, {wanted}, got "
        f"{type(given).__name__}.",
    )


def write(
    op: str, layout: Layout, params: Params, lead: tuple[int, ...] = ()
) -> dict[str, Array]:
    """The inverse of `read`; without the arrays that the layer can do without."""
    check_params(op, layout, params, lead)
    arrays = from_params(layout, params, op)
    return {name: value for name, value in arrays.items() if value is not None}


def write_numpy(
    op: str, layout: Layout, params: Params, lead: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """The same as NumPy's arrays, which the library may keep and change."""
    check_params(op, layout, params, lead)
    arrays = write(op, layout, jax.tree.map(np.asarray, params), lead)
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def check_params(
    op: str, layout: Layout, params: Params, lead: tuple[int, ...]
) -> None:
    """Params must be one layer's, with the gates that the layout has."""
    check_is_params(op, params)
    check(
        params.w_hh.ndim == 2 + len(lead),
        f"{op}: w_hh must be [hidden, G*hidden], one direction, got "
        f"{list(params.w_hh.shape)}; split_directions makes two of a bidirectional "
        "layer, and jax.vmap takes an ensemble.",
    )
    if not layout.w_hr:
        check_no_projection(op, params)
    arrays = {
        name: value for name, value in params._asdict().items() if value is not None
    }
    ours = replace(_OURS, cell=layout.cell, w_hr=("w_hr",) if layout.w_hr else ())
    _check_shapes(op, ours, arrays, lead)


def check_is_params(op: str, params: Params) -> None:
    """Params must be so by type and have arrays in it."""
    check(
        isinstance(params, Params),
        f"{op}: params must be prnn_jax.Params, got {described(params)}.",
    )
    for name, value in params._asdict().items():
        if value is not None or name in _OURS.weights:
            checks.array(op, name, value)
    check(
        not isinstance(params, MultiHeadParams) or params.w_hh.ndim != 3,
        f"{op}: params must be of a layer without heads, which no library has, got "
        f"MultiHeadParams, w_hh {list(params.w_hh.shape)}. If the axis is directions, "
        "write prnn_jax.BidirectionalParams(*params).",
    )


def check_names(
    op: str, wanted: Collection[str], given: Collection[str], *, hint: str
) -> None:
    """All arrays of a layer must be there, and no others."""
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    faults = {"missing": missing, "unknown": unknown}
    listed = [f"{fault} {', '.join(names)}" for fault, names in faults.items() if names]
    check(
        not listed,
        f"{op}: expected the arrays {', '.join(wanted)}; {'; '.join(listed)}; {hint}.",
    )


def flat(tree: Tree, separator: str) -> dict[str, Any]:
    """A tree of mappings as one mapping, with names such as `a.b`."""
    arrays: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            below = flat(value, separator)
            arrays |= {f"{name}{separator}{key}": leaf for key, leaf in below.items()}
        else:
            arrays[str(name)] = value
    return arrays


def nested(arrays: Tree, separator: str) -> dict[str, dict[str, Any]]:
    """The inverse of `flat`, for names with at least one separator; the last counts."""
    tree: dict[str, dict[str, Any]] = {}
    for path, array in arrays.items():
        where, _, name = path.rpartition(separator)
        tree.setdefault(where, {})[name] = array
    return tree


def lead_of(op: str, params: Params) -> tuple[int, ...]:
    """(2,) for the params of a bidirectional layer, else ()."""
    check_is_params(op, params)
    lead = tuple(params.w_hh.shape[:-2])
    check(
        lead in ((), (2,)),
        f"{op}: w_hh must be [hidden, G*hidden], or [2, hidden, G*hidden] if "
        f"bidirectional, got {list(params.w_hh.shape)}.",
    )
    return lead


# ---- shapes --------------------------------------------------------------------------


def _check_shapes(
    op: str, layout: Layout, arrays: Mapping[str, Any], lead: tuple[int, ...]
) -> None:
    """Arrays must have one dtype, and shapes that fit together."""
    checks.same_dtype(op, dict(arrays))
    for name, array in arrays.items():
        axes = len(lead) + (2 if name in layout.weights else 1)
        check(
            array.ndim == axes and 0 not in array.shape,
            f"{op}: {name} must have {axes} {'axes' if axes > 1 else 'axis'}, none of "
            f"size 0, got {list(array.shape)}.",
        )
    expected = _expected(layout, *_sizes(layout, arrays))
    for name in [name for name in expected if name in arrays]:
        axes, sizes = expected[name]
        lead_axes = ("directions",) * len(lead)
        checks.shape(op, name, arrays[name], (*lead_axes, *axes), (*lead, *sizes))


def _sizes(layout: Layout, arrays: Mapping[str, Any]) -> tuple[int, int, int]:
    """Inputs, hidden units, values of h; also of a matrix transposed by mistake."""

    def rows(name: str, columns: int) -> int:
        sides = arrays[name].shape[-2:]
        sides = sides[::-1] if layout.transposed else sides
        return sides[1] if sides[0] == columns != sides[1] else sides[0]

    if layout.w_ih == layout.w_hh:
        columns = arrays[layout.bias[0]].shape[-1]
        hidden = columns // layout.gates
        return max(rows(layout.w_hh[0], columns) - hidden, 1), hidden, hidden
    hidden = output = min(arrays[layout.w_hh[0]].shape[-2:])
    if layout.w_hr:
        shapes = [arrays[name].shape[-2:] for name in (*layout.w_hh, *layout.w_hr)]
        w_hh, w_hr = (s[::-1] if layout.transposed else s for s in shapes)
        hidden, output = projected_sizes(w_hh, w_hr, layout.gates)
    columns = layout.gates * hidden // len(layout.w_ih)
    return rows(layout.w_ih[0], columns), hidden, output


def _expected(
    layout: Layout, input_size: int, hidden: int, output: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Axes of all arrays, by name and by size; w_hh comes first."""

    def columns(names: tuple[str, ...], joined: bool = False) -> tuple[str, int]:
        count = (2 if joined else 1) * layout.gates // len(names)
        return f"{count}*hidden" if count > 1 else "hidden", count * hidden

    of_h = "projection" if layout.w_hr else "hidden", output
    rows = {"w_hh": of_h, "w_ih": ("input", input_size)}
    if layout.w_ih == layout.w_hh:
        rows = {"w_hh": ("input+hidden", input_size + hidden)}
    shapes = {}
    parts = [(getattr(layout, n), rows[n], columns(getattr(layout, n))) for n in rows]
    for names, *sides in [*parts, (layout.w_hr, ("hidden", hidden), of_h)]:
        axes, sizes = zip(*(sides[::-1] if layout.transposed else sides), strict=True)
        shapes |= dict.fromkeys(names, (axes, sizes))
    for names in (layout.bias, layout.bias_hh):
        if names:
            axis, size = columns(names, joined=layout.bias == layout.bias_hh)
            shapes |= dict.fromkeys(names, ((axis,), (size,)))
    if layout.bias_n is not None:
        shapes[layout.bias_n] = (("hidden",), (hidden,))
    return shapes
