"""Checks of what the caller gave.

Every message says what was expected, what came, and what to do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

#: What to do with what is no array, by the name of its type.
_REMEDIES = {
    "PackedSequence": ", of PyTorch; give x and lengths=lengths of what "
    "torch.nn.utils.rnn.pad_packed_sequence makes of it",
    "dict": "",
}


def check(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def known_options(op: str, given: Mapping[str, Any], known: type) -> None:
    """All that is given beyond a signature must be a field of this TypedDict.

    Raises:
      TypeError: as of an argument that a function has not.
    """
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{op}() got an unexpected keyword argument {name!r}")


def one_of(op: str, name: str, value, options: Sequence) -> None:
    """`value` must be among `options`."""
    listed = ", ".join(repr(option) for option in options)
    is_one = value is None or isinstance(value, str)  # an array is equal to nothing
    check(
        is_one and value in options,
        f"{op}: {name} must be one of {listed}, got {value!r}.",
    )


def dtype(op: str, value) -> np.dtype:
    """`value` as a dtype."""
    try:
        return jnp.dtype(value)
    except TypeError:
        raise ValueError(
            f"{op}: dtype must be one, such as jnp.float32 or 'bfloat16', got "
            f"{value!r}."
        ) from None


def key(op: str, value, *, optional: bool = False) -> None:
    """`value` must be a key of jax.random, of either kind; or None, if optional."""
    if optional and value is None:
        return
    dtype = getattr(value, "dtype", np.dtype(np.float32))
    is_new = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    check(
        is_new or (dtype == np.uint32 and np.ndim(value) == 1),
        f"{op}: key must be of jax.random.key{', or None' if optional else ''}, got "
        f"{value!r}.",
    )


def is_array(op: str, name: str, value) -> None:
    """`value` must be an array, of a dtype that is one of JAX's or NumPy's."""
    kind = type(value).__name__
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        hint = "" if value is None else _REMEDIES.get(kind, "; wrap it in jnp.asarray")
        several = value if kind in ("tuple", "list") and value is not None else ()
        if any(hasattr(one, "shape") for one in several):
            kind, hint = f"{kind} of arrays", "; give one array"
        raise ValueError(f"{op}: {name} must be an array, got {kind}{hint}.")
    check(
        not isinstance(value, jax.ShapeDtypeStruct),
        f"{op}: {name} must be an array, got {kind}, which has no values; call inside "
        "jax.eval_shape.",
    )
    try:
        jnp.dtype(value.dtype)
    except TypeError:
        raise ValueError(
            f"{op}: {name} must be an array of JAX's or NumPy's, got {kind} of "
            f"{value.dtype}; convert it, e.g. {as_numpy(name, value)}."
        ) from None


def as_numpy(name: str, value: Any) -> str:
    """What makes an array of JAX's or NumPy's of another library's, as code."""
    if str(value.dtype).startswith("torch."):
        return f"{name}.detach().cpu().numpy()"
    return f"jnp.asarray(numpy.asarray({name}))"


def array(op: str, name: str, value, *, or_complex: bool = False) -> Array:
    """`value`, which must be an array of floats, or of complex numbers."""
    is_array(op, name, value)
    is_complex = jnp.issubdtype(value.dtype, jnp.complexfloating)
    check(
        or_complex or not is_complex,
        f"{op}: {name} must be real, got {value.dtype}; prnn_jax.linear_recurrence "
        "takes complex numbers.",
    )
    check(
        is_complex or jnp.issubdtype(value.dtype, jnp.floating),
        f"{op}: {name} must have a floating dtype, got {value.dtype}; "
        f"convert it, e.g. {name}.astype(jnp.float32).",
    )
    return value


def jax_array(op: str, name: str, value, *, or_complex: bool = False) -> Array:
    """An array as JAX's, and of its dtypes: NumPy's float64 may be float32.

    So a call means the same whether it is traced or closes over NumPy's arrays.
    """
    return jnp.asarray(array(op, name, value, or_complex=or_complex))


def canonical(tree):
    """A tree with NumPy's arrays as JAX's; all else stays, to be checked."""
    kinds = np.ndarray, np.generic
    return jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, kinds) else a, tree)


def same_dtype(op: str, arrays: dict[str, Array]) -> None:
    """All arrays must have one dtype."""
    dtypes = {name: x.dtype for name, x in arrays.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(
            f"{op}: all arrays must have the same dtype, got {listed}; cast them first."
        )


def float32_at_least(dtype: Any) -> Any:
    """What numbers of a dtype are summed in, under strict promotion, too."""
    return jnp.dtype(dtype if jnp.dtype(dtype).itemsize > 4 else jnp.float32)


def in_dtype(x: Any, dtype: Any) -> Array:
    """In that of the computation; in float32 what has more, if that has 16 bits."""
    x, wide = jnp.asarray(x), float32_at_least(dtype)
    is_wide = jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize >= wide.itemsize
    return x.astype(wide if is_wide else dtype)


def same_dtype_or_float32(
    op: str, x: tuple[str, Array], states: Mapping[str, Array]
) -> None:
    """States must have the dtype of x, by its name; of 16 bits, or else float32."""
    name, given = x
    wide = float32_at_least(given.dtype)
    others = {key: s for key, s in states.items() if s.dtype != wide}
    same_dtype(op, {name: given, **others})


def shape(
    op: str,
    name: str,
    value: Array,
    names: Sequence[str],
    sizes: Sequence[int],
    hint: str = "",
) -> None:
    """`value` must have the shape `sizes`, whose axes are called `names`.

    The hint is what to do, unless the last two axes only changed places.
    """
    if value.shape == tuple(sizes):
        return
    expected = f"[{', '.join(names)}] = {list(sizes)}"
    if len(sizes) >= 2 and value.shape == (*sizes[:-2], sizes[-1], sizes[-2]):
        hint = "; transpose its last two axes"
    raise ValueError(f"{op}: {name} must be {expected}, got {list(value.shape)}{hint}.")


def steps(op: str, name: str, value, features: str, carry: Sequence[int]) -> None:
    """`value` must have an axis of time before the batch axes that a carry has.

    Args:
      op: the module.
      name: of the value.
      value: `[time, *batch, features]`.
      features: what its last axis is called.
      carry: shape `[*batch, hidden]` of an array of the carry.

    Raises:
      ValueError: it has none, as when it is one step.
    """
    is_array(op, name, value)
    given, batch = tuple(jnp.shape(value)), tuple(carry[:-1])
    is_one = given[:-1] == batch
    hint = f"; a single step is {name}[None], resets[None]" if is_one else ""
    check(
        len(given) >= 2 and given[1:-1] == batch,
        f"{op}: {name} must be [time, *batch, {features}] with the carry's batch axes, "
        f"{list(batch)}, got {list(given)}{hint}.",
    )


def platform() -> str:
    """The platform a call would run on, as far as is known while tracing."""
    device = getattr(jax.config, "jax_default_device", None)
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform
