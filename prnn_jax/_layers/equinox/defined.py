"""Layers for Equinox of cells that `define_cell` has made."""

import functools

from prnn_jax._layers.equinox.layer import Layer
from prnn_jax._layers.made import made_class
from prnn_jax._ops.define import DefinedCell, check_defined


def layer_of(cell: DefinedCell) -> type[Layer]:
    """The layer of a cell that `prnn_jax.define_cell` has made.

        Light = prnn_jax.equinox.layer_of(light)
        ys, state = Light(80, 256, bidirectional=True, key=key)(xs)

    Args:
      cell: what `prnn_jax.define_cell` or `normed` has made.

    Returns:
      A class like `LSTM`, with its arguments but activations, proj_size and, unless
      the cell is of `normed`, a lean reserve; the same for the same cell. Numbers that
      each unit has for itself are its `peepholes` `[per_unit*hidden_size]`, which begin
      with zero. `Stack` takes the class, or the cell itself.

    Raises:
      ValueError: it is no such cell.
    """
    check_defined("layer_of", cell)
    return _layer_of(cell)


@functools.cache
def _layer_of(cell: DefinedCell) -> type[Layer]:
    members = {
        "_function": staticmethod(cell),
        "_cell_name": cell.row,
        "_option_names": (),
        "_named": classmethod(lambda cls: cell),
        "__init__": Layer.__init__,
        "__module__": "prnn_jax.equinox",
    }
    return made_class(layer_of, cell, Layer, members)
