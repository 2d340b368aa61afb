"""Recurrent layers for Equinox.

Arguments, initialisation and gates are those of Equinox's cells: `LSTM(3, 5, key=key)`
has the very parameters of `eqx.nn.LSTMCell(3, 5, key=key)`. A layer runs a whole
sequence, `layer(xs) -> (ys, state)`, unbatched like a cell for use under `jax.vmap`;
leading batch axes are welcome too. What runs is `prnn_jax.lstm`, `gru` or `rnn`.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax import _checks, _ops, _weights
from prnn_jax._checks import check
from prnn_jax._ops import Activation, Implementation, Params, Precision, State

try:
    import equinox as eqx
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.equinox needs Equinox: pip install "prnn_jax[equinox]".'
    ) from error

__all__ = ["GRU", "LSTM", "RNN"]


class _Layer(eqx.Module):
    """All that the layers share; a layer is a function, two numbers and its options."""

    w_ih: Array
    w_hh: Array
    b_ih: Array | None
    b_hn: Array | None
    input_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    use_bias: bool = eqx.field(static=True)
    reverse: bool = eqx.field(static=True)
    bidirectional: bool = eqx.field(static=True)
    merge: Literal["concat", "sum"] = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)
    implementation: Implementation | None = eqx.field(static=True)

    _function: ClassVar[Callable]
    _gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        reverse: bool = False,
        bidirectional: bool = False,
        merge: Literal["concat", "sum"] = "concat",
        precision: Precision = None,
        implementation: Implementation | None = None,
        key: Array,
    ):
        name = type(self).__name__
        for side, size in (("input", input_size), ("hidden", hidden_size)):
            check(size >= 1, f"{name}: {side}_size must be at least 1, got {size}.")
        _checks.one_of(name, "merge", merge, ("concat", "sum"))
        choices = (None, *get_args(Implementation))
        _checks.one_of(name, "implementation", implementation, choices)
        check(
            not (reverse and bidirectional),
            f"{name}: reverse must be False in a bidirectional layer, which runs both "
            "ways, got True.",
        )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.use_bias = use_bias
        self.reverse = reverse
        self.bidirectional = bidirectional
        self.merge = merge
        self.precision = precision
        self.implementation = implementation

        dtype = jnp.result_type(float) if dtype is None else dtype
        draw = functools.partial(self._draw, dtype=dtype)
        if bidirectional:
            sides = [draw(key) for key in jax.random.split(key)]
            drawn = jax.tree.map(lambda *arrays: jnp.stack(arrays), *sides)
        else:
            drawn = draw(key)
        self.w_ih, self.w_hh, self.b_ih, self.b_hn = drawn

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm`, `gru` or `rnn`."""
        return _weights.join_biases(self.w_ih, self.w_hh, self.b_ih, self.b_hn)

    def __call__(
        self, xs: Array, state: State | None = None, *, key: Array | None = None
    ) -> tuple[Array, Any]:
        """Runs the layer over a whole sequence.

        Args:
          xs: `[time, input_size]`, or `[*batch, time, input_size]`.
          state: before the first step: `(h, c)` for the LSTM, h for the others, each
            `[*batch, hidden_size]`; if bidirectional, `[2, *batch, hidden_size]`,
            forward before backward. Zeros if not given.
          key: ignored, as by Equinox's cells.

        Returns:
          ys `[*batch, time, hidden_size]`, every h (twice as wide if bidirectional and
          merged by "concat"), and the last state. With arrays of several dtypes, both
          are in that to which JAX promotes them.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        del key
        shape = jnp.shape(xs)
        check(
            len(shape) >= 2 and shape[-1] == self.input_size,
            f"{type(self).__name__}: xs must be [*batch, time, input_size] with "
            f"input_size={self.input_size}, got {list(shape)}.",
        )
        arrays = (xs, self.params, state)
        dtype = jnp.result_type(*jax.tree.leaves(arrays))
        xs, params, state = jax.tree.map(lambda x: jnp.asarray(x, dtype), arrays)
        ys, state = type(self)._function(
            xs,
            params,
            state,
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            precision=self.precision,
            implementation=self.implementation,
            **self._options(),
        )
        if self.bidirectional and self.merge == "sum":
            ys = operator.add(*jnp.split(ys, 2, -1))
        return ys, state

    # ---- what a layer may say differently --------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Arguments of the function that not all cells have."""
        return {}

    def _draw(self, key: Array, dtype: Any) -> tuple[Any, ...]:
        """One direction's w_ih, w_hh, b_ih, b_hn, as Equinox's cells draw them."""
        gates, hidden = self._gates, self.hidden_size
        keys = jax.random.split(key, 4 if self._has_b_hn() is not None else 3)
        lim = math.sqrt(1 / hidden)

        def uniform(key, *shape):
            return jax.random.uniform(key, shape, dtype, minval=-lim, maxval=lim)

        return (
            uniform(keys[0], gates * hidden, self.input_size).T,
            uniform(keys[1], gates * hidden, hidden).T,
            uniform(keys[2], gates * hidden) if self.use_bias else None,
            uniform(keys[3], hidden) if self.use_bias and self._has_b_hn() else None,
        )

    def _has_b_hn(self) -> bool | None:
        """Whether there is a b_hn; None for a cell that has none in any case."""
        return None


class _WithCell(_Layer):
    """A layer for which Equinox has a cell."""

    _cell: ClassVar[Any]
    _cell_options: ClassVar[dict[str, Any]] = {}  # with which the layer is that cell

    __init__ = _Layer.__init__  # said again for type checkers, which make up another

    @classmethod
    def from_cell(cls, cell: Any, **options) -> Self:
        """A layer with the parameters of an Equinox cell.

        Args:
          cell: `eqx.nn.LSTMCell` for LSTM, `eqx.nn.GRUCell` for GRU; or a pair of them,
            forward and backward, for a bidirectional layer.
          **options: arguments of the layer that a cell has none of: reverse, merge,
            precision, implementation.

        Raises:
          ValueError: another kind of cell; says which was expected.
        """
        name, wanted = f"{cls.__name__}.from_cell", f"eqx.nn.{cls._cell.__name__}"
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
        layout = _weights.EQUINOX[cls._cell.__name__]
        directions = [
            _weights.to_params(
                layout, {name: operator.attrgetter(name)(one) for name in layout.names}
            )
            for one in cells
        ]
        params = _weights.stack_directions(directions)
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
            _weights.separate_biases(layout.cell, params),
            is_leaf=lambda leaf: leaf is None,
        )

    def to_cell(self) -> Any:
        """The layer's parameters as an Equinox cell; a pair if bidirectional.

        Returns:
          A cell, or `(forward, backward)`.

        Raises:
          ValueError: Equinox has no cell that computes the same; says why.
        """
        self._check_cell()
        layout = _weights.EQUINOX[self._cell.__name__]
        make = functools.partial(
            self._cell, self.input_size, self.hidden_size, self.use_bias
        )
        cells = []
        for params in _weights.split_directions(self.params, self.bidirectional):
            arrays = _weights.from_params(layout, params)
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


class LSTM(_WithCell):
    r"""Long short-term memory over a whole sequence; the equation is `prnn_jax.lstm`'s.

    Stands for `jax.lax.scan` over `eqx.nn.LSTMCell`. The state is `(h, c)`.

    Attributes:
      w_ih: `[input_size, 4*hidden_size]`, gates i f g o side by side.
      w_hh: `[hidden_size, 4*hidden_size]`.
      b_ih: `[4*hidden_size]`, the one bias of each gate, or None.
      b_hn: None; only the GRU has one.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: of the parameters; by default float32, or float64 in JAX's 64-bit mode.
      reverse: run from the last step to the first; ys stays in the order of xs.
      bidirectional: run both ways at once.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      precision: of matrix products, as in `jax.lax.dot`.
      implementation: "native", "scan" or None, as in `prnn_jax.lstm`.
      key: for the parameters, uniform between ±1/sqrt(hidden_size).

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(_ops.lstm)
    _gates = 4
    __init__ = _Layer.__init__  # said again for type checkers, which make up another
    _cell = eqx.nn.LSTMCell


class GRU(_WithCell):
    r"""Gated recurrent unit over a whole sequence; the equations are `prnn_jax.gru`'s.

    Stands for `jax.lax.scan` over `eqx.nn.GRUCell`. The state is h.

    Attributes:
      w_ih: `[input_size, 3*hidden_size]`, gates r z n side by side.
      w_hh: `[hidden_size, 3*hidden_size]`.
      b_ih: `[3*hidden_size]`, the one bias of each gate, or None.
      b_hn: `[hidden_size]`, the bias that r multiplies (`bias_n` of Equinox's cell);
        None without use_bias or reset_after.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there are biases.
      dtype: as for `LSTM`.
      reset_after: whether r multiplies the product `h w_hn + b_hn`, as in
        `eqx.nn.GRUCell`, or h before it.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    reset_after: bool = eqx.field(static=True)

    _function = staticmethod(_ops.gru)
    _gates = 3
    _cell = eqx.nn.GRUCell
    _cell_options: ClassVar[dict[str, Any]] = {"reset_after": True}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        reset_after: bool = True,
        **options: Any,
    ):
        self.reset_after = reset_after
        super().__init__(input_size, hidden_size, use_bias, dtype, **options)

    def _options(self) -> dict[str, Any]:
        return {"reset_after": self.reset_after}

    def _has_b_hn(self) -> bool:
        return self.reset_after

    def _check_cell(self) -> None:
        check(
            self.reset_after,
            "GRU.to_cell: Equinox has only the GRU with reset_after=True, got False.",
        )


class RNN(_Layer):
    r"""Elman network over a whole sequence; the equation is `prnn_jax.rnn`'s.

    Equinox has no such cell. The state is h.

    Attributes:
      w_ih: `[input_size, hidden_size]`.
      w_hh: `[hidden_size, hidden_size]`.
      b_ih: `[hidden_size]`, or None.
      b_hn: None; only the GRU has one.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      input_size: size of the input at each step.
      hidden_size: size of the state.
      use_bias: whether there is a bias.
      dtype: as for `LSTM`.
      activation: "tanh", "relu" or "clipped_relu", min(max(a, 0), cap).
      cap: of the clipped ReLU.
      skip: scale of the residual through time, inside the activation.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    activation: Activation = eqx.field(static=True)
    cap: float = eqx.field(static=True)
    skip: float = eqx.field(static=True)

    _function = staticmethod(_ops.rnn)
    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        activation: Activation = "tanh",
        cap: float = 20.0,
        skip: float = 0.0,
        **options: Any,
    ):
        _checks.one_of("RNN", "activation", activation, get_args(Activation))
        self.activation = activation
        self.cap = cap
        self.skip = skip
        super().__init__(input_size, hidden_size, use_bias, dtype, **options)

    def _options(self) -> dict[str, Any]:
        return {"activation": self.activation, "cap": self.cap, "skip": self.skip}
