"""What `Stack` is in both of Flax's libraries; needs no Flax itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.noise import Noise
from prnn_jax._call.options import Lengths, Resets
from prnn_jax._cells.table import Defined
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.flax.carry import Carry, one_step
from prnn_jax._layers.flax.sequences import check_seq_lengths
from prnn_jax._layers.flax.shared import Options as WithProduct
from prnn_jax._layers.flax.shared_linear import Options as WithoutProduct
from prnn_jax._ops import layer_stack, stack_parts

Options = WithProduct | WithoutProduct


def class_of(op: str, cell: Any, known: Mapping[str, Any], layer_of: Callable) -> Any:
    """A layer's class, from that, from its cell's name, or from a cell of the user's.

    Args:
      op: what takes it, for messages.
      cell: one of these.
      known: the classes by name.
      layer_of: makes the class of a cell of the user's.

    Raises:
      ValueError: it is none of these.
    """
    if isinstance(cell, type) and hasattr(cell, "_alike"):
        return cell
    if isinstance(cell, Defined):
        return layer_of(cell)
    name: Any = cell
    checks.one_of(op, "cell", name, tuple(known))
    return known[name]


def check_rate(name: str, rate: Any, hint: str = "") -> float:
    """A share from 0 to below 1; the hint is what to do where it looks like a size.

    Raises:
      ValueError: it is none.
    """
    rate = statics.number("Stack", name, rate)
    hint = hint if isinstance(rate, int) else ""
    check(0 <= rate < 1, f"Stack: {name} must be from 0 to below 1, got {rate}{hint}.")
    return rate


def widths(options: Options, in_features: int, num_layers: int) -> list[int]:
    """The input features of each layer.

    Raises:
      ValueError: there are no layers, or they would run in reverse.
    """
    num_layers = statics.size("Stack", "num_layers", num_layers)
    check(
        not options.reverse,
        "Stack: reverse must be False, got True; flip inputs and outputs, or use "
        "bidirectional=True.",
    )
    both = options.bidirectional and options.merge == "concat"
    return [in_features] + [(1 + both) * options.output] * (num_layers - 1)


def check_width(n: int, size: int, input_size: int) -> None:
    """Layer n of given parameters must fit what comes before it.

    Raises:
      ValueError: it does not.
    """
    check(
        input_size == size,
        f"Stack.from_params: layer {n} must be for an input of {size} features, got "
        f"one for {input_size}.",
    )


def run(
    options: Options,
    inputs: ArrayLike,
    layers: Sequence[Any],
    norms: Sequence[stack_parts.Norm | None],
    *,
    dropout_rate: float,
    skip_connections: bool,
    initial_carry: Sequence[Carry] | None,
    seq_lengths: Lengths | None,
    mask: ArrayLike | None,
    resets: Resets | None,
    reset_carry: Sequence[Carry] | None,
    key: Array | None,
) -> Any:
    """y, or (carries, y) with return_carry, as `shared.Options.run` of one layer.

    Args:
      options: of the first layer, and all but the input's width of the others.
      inputs: as for the layers, and so those that are not named here.
      layers: the parameters of each.
      norms: of each one's input.
      dropout_rate: of what a layer hands on.
      skip_connections: as in `prnn_jax.stack`.
      initial_carry: one for each layer.
      seq_lengths: see `shared.Options.run`.
      mask: as in `prnn_jax.stack`.
      resets: see there.
      reset_carry: one for each layer.
      key: for all that is drawn; None where a call is deterministic.

    Raises:
      ValueError: shapes, dtypes or options do not fit; says what was expected.
    """
    batch = options.batch(inputs)
    sizes = widths(options, jnp.shape(inputs)[-1], len(layers))
    given = inputs, list(layers), list(norms)
    x, layers, norms = promoted(given, options.dtype, apart=options.float32_params)
    check_seq_lengths("Stack", seq_lengths, x, time_major=options.time_major)

    def states_of(name: str, carries: Any) -> list | None:
        if carries is None:
            return None
        check(
            isinstance(carries, (tuple, list)) and len(carries) == len(layers),
            f"Stack: {name} must be of {len(layers)} carries, one for each layer, got "
            f"{type(carries).__name__} of {len(jax.tree.leaves(carries))} arrays.",
        )
        return [
            options.resized(size).state_of(f"Stack: {name}[{n}]", carry, batch, x.dtype)
            for n, (size, carry) in enumerate(zip(sizes, carries, strict=True))
        ]

    check(
        reset_carry is None or resets is not None,
        "Stack: reset_carry is given without resets; give resets, or leave it out.",
    )
    noise = noise_of(options, dropout_rate)
    y, states = layer_stack.stack(
        options.named,
        x,
        [
            stack_parts.Layer(options.typed(params), norm)
            for params, norm in zip(layers, norms, strict=True)
        ],
        states_of("initial_carry", initial_carry),
        lengths=seq_lengths,
        mask=mask,
        resets=resets,
        reset_to=states_of("reset_carry", reset_carry),
        dropout=noise.dropout,
        recurrent_dropout=noise.recurrent_dropout,
        zoneout=noise.zoneout,
        key=key,
        skip_connections=skip_connections,
        **options.for_stack(),
    )
    carries = tuple(map(options.carry_of, states))
    return (carries, y) if options.return_carry else y


def noise_of(options: Options, dropout_rate: float) -> Noise:
    """What is dropped in a stack; it is true if anything is."""
    of_layer = options.noise
    return Noise(dropout_rate, of_layer.recurrent_dropout, of_layer.zoneout)


def initial_carry(options: Options, input_shape: tuple[int, ...], count: int) -> Any:
    """Zeros for each layer, in param_dtype."""
    *batch, in_features = one_step("Stack", input_shape)
    sizes = widths(options, in_features, count)
    return tuple(options.resized(n).initial_carry((*batch, n)) for n in sizes)


def norm_shapes(dtype: Any, width: int) -> dict[str, Any]:
    """A norm's arrays as they begin."""
    return {"scale": jnp.ones(width, dtype), "bias": jnp.zeros(width, dtype)}
