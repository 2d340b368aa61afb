"""Layers for Keras of cells that `define_cell` has made."""

import functools
from typing import Any, ClassVar, Self

import jax
from jax import Array

from prnn_jax._cells.table import CELLS
from prnn_jax._engine.plan import Plan
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._layers.arrays import begin_own, layer_arrays
from prnn_jax._layers.keras import check_built, check_told, registered
from prnn_jax._layers.keras_own import OwnLayer, Weight
from prnn_jax._ops.define import DefinedCell, check_defined


class DefinedLayer(OwnLayer):
    """What the layers of cells that `define_cell` has made share."""

    defined: ClassVar[DefinedCell]
    roles: ClassVar = ("kernel", "recurrent", "bias")

    def state_count(self) -> int:
        """How many states there are."""
        return CELLS[self.defined.row].states

    def weights_of(self, input_size: int) -> dict[str, Weight]:
        """The layer's weights by name."""
        row, init = CELLS[self.defined.row], jax.nn.initializers
        units, wide, own = self.units, row.gates * self.units, row.per_unit * self.units
        out = {
            "w_ih": Weight((input_size, wide), init.glorot_uniform(), "kernel"),
            "w_hh": Weight((units, wide), init.orthogonal(), "recurrent"),
        }
        if self.use_bias:
            out["b_ih"] = Weight((wide,), init.zeros, "bias")
        if own:
            out["peepholes"] = Weight(
                (own,), lambda _, shape, dtype: begin_own(row, shape, dtype)
            )
        return out

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        """Of the states, without the batch."""
        del input_size
        return ((self.units,),) * self.state_count()

    def run(self, x: Array, arrays: dict, state: Any, key: Any, **controls: Any) -> Any:
        """y and the last state."""
        del key
        params = Params(**arrays)
        return self.defined(x, params, state, reverse=self.go_backwards, **controls)

    @property
    def params(self) -> Params:
        """The parameters, for the cell."""
        check_built(self)
        return Params(**self._arrays())

    @classmethod
    def from_params(cls, params: Params, **options: Any) -> Self:
        """A layer with these parameters, such as the cell's `init` gives.

        Args:
          params: of one direction, without heads, and with b_hh None.
          **options: arguments of the layer but for units and use_bias, which params
            tell.

        Returns:
          The layer, built.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        check_told(name, options)
        given = layer_arrays(name, CELLS[cls.defined.row], params, {})
        check(
            given.heads is None and not given.bidirectional,
            f"{name}: params must be of one direction and one head, got w_hh "
            f"{list(given.w_hh.shape)}.",
        )
        layer = cls(given.hidden_size, use_bias=given.b_ih is not None, **options)
        kept = {n: a for n, a in params._asdict().items() if a is not None}
        count = CELLS[cls.defined.row].per_unit
        if count and "peepholes" not in kept:
            kept["peepholes"] = begin_own(
                CELLS[cls.defined.row], (count * given.hidden_size,), params.w_hh.dtype
            )
        return layer._with_arrays(given.input_size, kept)

    def explain(self, batch: int, time: int, **options: Any) -> Plan:
        """Which engine runs a call, as `prnn_jax.explain`: `lax.scan`, and why.

        Args:
          batch: rows.
          time: steps.
          **options: of `prnn_jax.explain`.

        Raises:
          ValueError: as `prnn_jax.explain`.
        """
        return self._explained(self.defined, batch, time, **options)


def layer_of(cell: DefinedCell) -> type[DefinedLayer]:
    """The layer of a cell that `prnn_jax.define_cell` has made.

        Light = prnn_jax.keras.layer_of(light)
        y = Light(256, return_sequences=True)(x)

    Args:
      cell: what `prnn_jax.define_cell` has made.

    Returns:
      A class with the arguments of `MinGRU` but activation, and initializer,
      regularizer and constraint of recurrent, w_hh; the same for the same cell. Numbers
      that each unit has for itself begin with zero. A file that was saved with it is
      loaded where this function has been called with a cell of that name.

    Raises:
      ValueError: it is no such cell.
    """
    check_defined("layer_of", cell)
    return _layer_of(cell)


@functools.cache
def _layer_of(cell: DefinedCell) -> type[DefinedLayer]:
    members = {"defined": cell, "__module__": "prnn_jax.keras"}
    return registered(type(cell.name, (DefinedLayer,), members))
