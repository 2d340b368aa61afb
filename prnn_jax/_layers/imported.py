"""What `from_params` of a layer takes of an imported network."""

from collections.abc import Sequence
from typing import Any

from prnn_jax._given.checks import check
from prnn_jax.convert._shared.imported import Imported

#: As `stack_of` and `layer_of` give them: a cell or parameters, and options.
Options = dict[str, Any]


def stack_of(
    op: str,
    given: Any,
    layers: Sequence[Any] | None,
    options: Options,
    *,
    time_major: bool = True,
) -> tuple[Any, Sequence[Any], Options]:
    """The cell, its layers' parameters and options, of what a stack is to be made of.

    Args:
      op: what takes it, for messages.
      given: a cell, as the stack takes it, or a network, which is all three.
      layers: the parameters, of a cell.
      options: of the stack, which override the network's.
      time_major: whether that is an option of layers, and not of their calls.

    Raises:
      ValueError: both are given, or neither; the network has states of its own.
    """
    if not isinstance(given, Imported):
        check(
            layers is not None,
            f"{op}: layers must be the parameters of each layer, got None; "
            "prnn_jax.convert.Imported alone has both.",
        )
        return given, layers or (), options
    check(
        layers is None,
        f"{op}: layers must not be given with prnn_jax.convert.Imported, which has "
        "them; dataclasses.replace(network, layers=layers) has others.",
    )
    told = _told(op, given, time_major=time_major)
    return given.cell, given.layers, told | options


def layer_of(
    op: str, cell: Any, given: Any, options: Options, *, keep_order: bool = False
) -> tuple[Any, Options]:
    """The parameters and options of a layer, of them or of a network of one layer.

    Args:
      op: what takes it, for messages.
      cell: the layer's, by its function.
      given: the parameters, or a network of one such layer.
      options: of the layer, which override the network's.
      keep_order: whether layers have that option, as Flax's, without which y of one in
        reverse is not in the order of x, and time_major.

    Raises:
      ValueError: the network is another; it has states of its own.
    """
    if not isinstance(given, Imported):
        return given, options
    check(
        (given.cell, len(given.layers)) == (cell, 1),
        f"{op}: the network must be one layer of {cell}, got {len(given.layers)} of "
        f"{given.cell}; Stack.from_params takes any.",
    )
    told = _told(op, given, time_major=keep_order) | (
        {"keep_order": True} if keep_order and given.reverse else {}
    )
    return given.layers[0], told | options


def _told(op: str, network: Imported, *, time_major: bool) -> Options:
    check(
        network.state_0 is None,
        f"{op}: the network has initial states of its own, state_0, and a layer has "
        "none; give dataclasses.replace(network, state_0=None), and the states to each "
        "call.",
    )
    options = network.options
    return {n: v for n, v in options.items() if time_major or n != "time_major"}
