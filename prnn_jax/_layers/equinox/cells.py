"""Layers for which Equinox has a cell, and the way from cell to layer and back."""

import functools
import operator
from typing import Any, ClassVar, Self

import equinox as eqx
import jax

from prnn_jax._given.checks import check
from prnn_jax._layers.equinox.layer import Layer
from prnn_jax.convert._shared import layouts


class WithCell(Layer):
    """A layer for which Equinox has a cell."""

    _cell: ClassVar[Any]
    _cell_options: ClassVar[dict[str, Any]] = {}  # with which the layer is that cell

    __init__ = Layer.__init__  # said again for type checkers, which make up another

    @classmethod
    def from_cell(cls, cell: Any, **options) -> Self:
        """A layer with the parameters of an Equinox cell.

        Args:
          cell: `eqx.nn.LSTMCell` for LSTM, `eqx.nn.GRUCell` for GRU; or a pair of them,
            forward and backward, for a bidirectional layer.
          **options: arguments of the layer that a cell has none of: reverse, merge,
            recurrent_dropout, zoneout, inference, reserve, precision, implementation.

        Raises:
          ValueError: another kind of cell; says which was expected.
        """
        name, wanted = f"{cls.__name__}.from_cell", f"eqx.nn.{cls._cell.__name__}"
        proj_size = options.get("proj_size")
        check(
            proj_size is None,
            f"{name}: proj_size must be None, because no cell has a projection, got "
            f"{proj_size}.",
        )
        cells = cell if isinstance(cell, tuple) else (cell,)
        check(
            len(cells) in (1, 2),
            f"{name}: cell must be a cell or a pair (forward, backward), got "
            f"{len(cells)} values.",
        )
        for one in cells:
            check(
                type(one) is cls._cell,
                f"{name}: cell must be {wanted} (no subclass, which may compute "
                f"something else), got {type(one).__name__}.",
            )
        sizes = [(c.input_size, c.hidden_size, c.use_bias) for c in cells]
        check(
            sizes[0] == sizes[-1],
            f"{name}: both cells must have the same (input_size, hidden_size, "
            f"use_bias), got {sizes[0]} and {sizes[-1]}.",
        )
        layout = layouts.EQUINOX[cls._cell.__name__]
        directions = [
            layouts.to_params(
                layout, {name: operator.attrgetter(name)(one) for name in layout.names}
            )
            for one in cells
        ]
        params = layouts.stack_directions(directions)
        make = functools.partial(
            cls,
            *sizes[0],
            bidirectional=len(cells) == 2,
            **cls._cell_options,
            **options,
        )
        layer = eqx.filter_eval_shape(make, key=jax.random.key(0))
        return eqx.tree_at(
            lambda layer: (layer.w_ih, layer.w_hh, layer.b_ih, layer.b_hn),
            layer,
            layouts.separate_biases(layout.cell, params),
            is_leaf=lambda leaf: leaf is None,
        )

    def to_cell(self) -> Any:
        """The layer's parameters as an Equinox cell; a pair if bidirectional.

        Returns:
          A cell, or `(forward, backward)`. Recurrent dropout is not part of it.

        Raises:
          ValueError: Equinox has no cell that computes the same; says why.
        """
        self._check_cell()
        layout = layouts.EQUINOX[self._cell.__name__]
        make = functools.partial(
            self._cell, self.input_size, self.hidden_size, self.use_bias
        )
        cells = []
        for params in layouts.split_directions(self.params, self.bidirectional):
            arrays = layouts.from_params(layout, params)
            cell = eqx.filter_eval_shape(make, key=jax.random.key(0))
            cell = eqx.tree_at(
                lambda cell: [operator.attrgetter(name)(cell) for name in layout.names],
                cell,
                [arrays[name] for name in layout.names],
                is_leaf=lambda leaf: leaf is None,
            )
            cells.append(cell)
        return tuple(cells) if self.bidirectional else cells[0]

    def _check_cell(self) -> None:
        """An error if Equinox has no cell that computes the same."""
        name = f"{type(self).__name__}.to_cell"
        check(
            self.heads == 1,
            f"{name}: Equinox has no cell with heads; heads must be 1, got "
            f"{self.heads}.",
        )
        given = self.activation, self.gate_activation
        check(
            given == ("tanh", "sigmoid"),
            f"{name}: Equinox's cells have activation 'tanh' and gate_activation "
            f"'sigmoid', got {given[0]!r} and {given[1]!r}.",
        )
        check(
            self.clip is None,
            f"{name}: Equinox has no cell with bounds; clip must be None, got "
            f"{self.clip}.",
        )
        zoneout = () if self.training is None else self.training.noise.zoneout
        check(
            not any(zoneout),
            f"{name}: Equinox has no cell with zoneout, which is there at inference, "
            f"too; zoneout must be 0, got {zoneout}.",
        )
