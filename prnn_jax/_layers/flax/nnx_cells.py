"""Layers for Flax NNX from Flax's cells, and back."""

import operator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype

from prnn_jax._cells.activations import ActivationName
from prnn_jax._given.checks import check
from prnn_jax.convert._shared import layouts

_zeros = jax.nn.initializers.zeros

#: Functions of Flax's cells, by attribute, and the options that they are.
_FUNCTIONS_OF_CELLS = {"activation_fn": "activation", "gate_fn": "gate_activation"}
_ACTIVATIONS: dict[Any, ActivationName] = {
    jnp.tanh: "tanh",
    jax.nn.sigmoid: "sigmoid",
    jax.nn.relu: "relu",
    jax.nn.hard_sigmoid: "hard_sigmoid",
    jax.nn.hard_tanh: "hard_tanh",
    jax.nn.soft_sign: "softsign",
    jax.nn.softplus: "softplus",
    jax.nn.elu: "elu",
    jax.nn.leaky_relu: "leaky_relu",
}


class Convertible:
    """A layer with the two conversions; what it may say differently comes last."""

    _cells: ClassVar[tuple[type, ...]]  # Flax's; the first is what to_cell makes

    @classmethod
    def from_cell(cls, cell: Any, *, rngs: nnx.Rngs | None = None, **options) -> Self:
        """A layer with the parameters of a Flax cell.

        Args:
          cell: `nnx.OptimizedLSTMCell` or `nnx.LSTMCell` for LSTM, `nnx.GRUCell` for
            GRU, `nnx.SimpleCell` for RNN; or a pair of them, forward and backward, for
            a bidirectional layer. Sizes and dtypes are taken over.
          rngs: for the cell's carry_init, if it has one, and for the layer's dropout.
          **options: arguments of the layer that a cell has none of, e.g. time_major,
            return_carry, reverse, keep_order, merge, zoneout_rate, implementation.

        Raises:
          ValueError: another kind of cell, or one with a function or an option that the
            layer does not have; says which.
        """
        name = f"{cls.__name__}.from_cell"
        check(bool(cls._cells), f"{name}: Flax has no cell that computes the same.")
        heads = options.get("heads")
        check(
            heads is None,
            f"{name}: heads must be None, because a cell of Flax has one matrix for "
            f"all of its state, got {heads}.",
        )
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
        settings = [cls._settings_of(cell) for cell in cells]
        check(
            settings[0] == settings[-1],
            f"{name}: both cells must have the same sizes, dtypes and functions, got "
            f"{settings[0]} and {settings[-1]}.",
        )
        make: Any = cls
        layer = make(
            **settings[0],
            kernel_init=_zeros,
            recurrent_kernel_init=_zeros,
            bidirectional=len(cells) == 2,
            rngs=nnx.Rngs(0) if rngs is None else rngs,
            **options,
        )
        directions = []
        for one in cells:
            layout = layouts.NNX[type(one).__name__]
            arrays = {name: _param(one, name)[...] for name in layout.names}
            directions.append(layouts.to_params(layout, arrays))
        params = layouts.stack_directions(directions)
        layer.w_ih[...], layer.w_hh[...], layer.b_ih[...], *_ = params
        return layer

    def to_cell(self: Any, cell_type: Any = None) -> Any:
        """The layer's parameters as a Flax cell; a pair if bidirectional.

        The cell has no dropout, even if the layer has a recurrent_dropout_rate.

        Args:
          cell_type: of the LSTM `nnx.OptimizedLSTMCell`, the default, or
            `nnx.LSTMCell`.

        Returns:
          A cell for `nnx.RNN`, or `(forward, backward)` for `nnx.Bidirectional`.

        Raises:
          ValueError: Flax has no cell that computes the same; says why.
        """
        name = f"{type(self).__name__}.to_cell"
        check(bool(self._cells), f"{name}: Flax has no cell that computes the same.")
        cell_type = self._cells[0] if cell_type is None else cell_type
        check(
            cell_type in self._cells,
            f"{name}: cell_type must be {_names(self._cells)}, got {_name(cell_type)}.",
        )
        check(
            self.heads is None,
            f"{name}: heads must be None for a cell of Flax, which has one matrix for "
            f"all of its state, got {self.heads}.",
        )
        rates = self.zoneout_rate
        check(
            not any(rates if isinstance(rates, tuple) else (rates,)),
            f"{name}: zoneout_rate must be 0 for a cell of Flax, got {rates}.",
        )
        check(
            self.clip is None,
            f"{name}: clip must be None for a cell of Flax, got {self.clip}.",
        )
        arguments = self._cell_arguments(name)
        if self.carry_init is not None:
            arguments["carry_init"] = self.carry_init
        layout = layouts.NNX[cell_type.__name__]
        cells = []
        for params in layouts.split_directions(self.params, self.bidirectional):
            cell = cell_type(
                self.in_features,
                self.hidden_features,
                kernel_init=_zeros,
                recurrent_kernel_init=_zeros,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                rngs=nnx.Rngs(0),
                **arguments,
            )
            for path, array in layouts.from_params(layout, params).items():
                _param(cell, path)[...] = array
            cells.append(cell)
        return tuple(cells) if self.bidirectional else cells[0]

    def _cell_arguments(self, name: str) -> dict[str, Any]:
        """Arguments for Flax's cell; an error if there is no such cell."""
        arguments = {}
        functions = {value: key for key, value in _ACTIVATIONS.items()}
        listed = ", ".join(map(repr, functions))
        for attribute, option in _FUNCTIONS_OF_CELLS.items():
            given = getattr(self, option)
            check(
                given in functions,
                f"{name}: {option} must be one of {listed} for a cell of Flax, got "
                f"{given!r}.",
            )
            arguments[attribute] = functions[given]
        return arguments

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        """Arguments of the layer that a cell determines, after checking the cell."""
        name = f"{cls.__name__}.from_cell"
        check(
            type(cell) in cls._cells,
            f"{name}: cell must be {_names(cls._cells)} (no subclass, which may "
            f"compute something else), got {_name(type(cell))}{_inside(cell)}.",
        )
        promote = getattr(cell, "promote_dtype", promote_dtype)
        check(
            promote is promote_dtype,
            f"{name}: promote_dtype must be Flax's own, got {_name(promote)}; give the "
            "layer a dtype instead.",
        )
        names = ("in_features", "hidden_features", "dtype", "param_dtype", "carry_init")
        settings = {name: getattr(cell, name) for name in names}
        for attribute, option in _FUNCTIONS_OF_CELLS.items():
            if hasattr(cell, attribute):
                function = getattr(cell, attribute)
                listed = ", ".join(_name(known) for known in _ACTIVATIONS)
                check(
                    function in _ACTIVATIONS,
                    f"{name}: {attribute} must be one of {listed}, got "
                    f"{_name(function)}; keep nnx.RNN for other functions.",
                )
                settings[option] = _ACTIVATIONS[function]
        return settings


class LikeLSTM(Convertible):
    """The LSTM's conversions."""

    _cells = (nnx.OptimizedLSTMCell, nnx.LSTMCell)


class LikeSLSTM(Convertible):
    """The sLSTM's conversions: none."""

    _cells = ()


class LikeGRU(Convertible):
    """The GRU's conversions."""

    _cells = (nnx.GRUCell,)
    reset_after: bool
    recurrent_bias: bool

    def _cell_arguments(self, name: str) -> dict[str, Any]:
        check(
            self.reset_after,
            f"{name}: Flax has only the GRU with reset_after=True, got False.",
        )
        check(
            not self.recurrent_bias,
            f"{name}: nnx.GRUCell has no bias that r multiplies; the layer must have "
            "recurrent_bias=False, got True.",
        )
        return super()._cell_arguments(name)

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        return super()._settings_of(cell) | {"reset_after": True}


class LikeRNN(Convertible):
    """The Elman network's conversions."""

    _cells = (nnx.SimpleCell,)
    skip: float

    def _cell_arguments(self, name: str) -> dict[str, Any]:
        check(
            self.skip in (0.0, 1.0),
            f"{name}: skip must be 0 or 1 for a cell of Flax (residual=True), got "
            f"{self.skip}.",
        )
        arguments = super()._cell_arguments(name) | {"residual": self.skip == 1.0}
        del arguments["gate_fn"]
        return arguments

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        settings = super()._settings_of(cell)
        settings["skip"] = 1.0 if cell.residual else 0.0
        return settings


def _inside(cell: Any) -> str:
    """What to do with what has cells in it."""
    if isinstance(cell, nnx.RNN):
        return "; pass its .cell"
    if isinstance(cell, nnx.Bidirectional):
        return "; pass a pair, (it.forward_rnn.cell, it.backward_rnn.cell)"
    return ""


def _param(cell: Any, path: str) -> nnx.Param:
    return operator.attrgetter(path)(cell)


def _name(thing: Any) -> str:
    """A class or function as a message calls it."""
    return getattr(thing, "__name__", repr(thing))


def _names(types: tuple[type, ...]) -> str:
    return " or ".join(f"nnx.{one.__name__}" for one in types)
