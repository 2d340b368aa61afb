"""Recurrent layers for Flax NNX, drop-in for `nnx.RNN` around a cell.

`LSTM(3, 5, rngs=rngs)` stands for `nnx.RNN(nnx.OptimizedLSTMCell(3, 5, rngs=rngs))`,
and with `bidirectional=True` for `nnx.Bidirectional` around two of them: the arguments
and the order of carries and outputs are the same, and `from_cell` and `to_cell` convert
the parameters. What runs is `prnn_jax.lstm`, `gru` or `rnn`.
"""

import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax import _checks, _ops, _weights
from prnn_jax._checks import check
from prnn_jax._ops import Activation, Implementation, Params, Precision

try:
    from flax import nnx
    from flax.nnx.nn.dtypes import promote_dtype
except ModuleNotFoundError as error:
    raise ImportError(
        'prnn_jax.nnx needs Flax: pip install "prnn_jax[flax]".'
    ) from error

__all__ = ["GRU", "LSTM", "RNN"]

Initializer = jax.nn.initializers.Initializer
Carry = Any  # h, or Flax's (c, h); a pair of these if bidirectional
Rngs = nnx.Rngs | nnx.RngStream

_IMPLEMENTATIONS = (None, *get_args(Implementation))
_zeros = jax.nn.initializers.zeros


def _orthogonal(key: Array, shape, dtype=jnp.float32, out_sharding=None) -> Array:
    """Orthogonal, drawn in at least float32: there is no QR in half precision."""
    del out_sharding
    wide = jnp.promote_types(dtype, jnp.float32)
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


class _Layer(nnx.Module):
    """All that the layers share; a layer is a function, two numbers and its options."""

    _function: ClassVar[Callable]
    _gates: ClassVar[int]
    _states: ClassVar[int] = 1
    _cells: ClassVar[tuple[type, ...]]  # Flax's; the first is what to_cell makes

    recurrent_bias: bool = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),  # noqa: B008
        recurrent_kernel_init: Initializer = _orthogonal,
        bias_init: Initializer = _zeros,
        bidirectional: bool = False,
        merge: Literal["concat", "sum"] = "concat",
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        carry_init: Initializer | None = None,
        precision: Precision = None,
        implementation: Implementation | None = None,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        for key, size in (("in", in_features), ("hidden", hidden_features)):
            check(size >= 1, f"{name}: {key}_features must be at least 1, got {size}.")
        _checks.one_of(name, "merge", merge, ("concat", "sum"))
        _checks.one_of(name, "implementation", implementation, _IMPLEMENTATIONS)
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.bidirectional = bidirectional
        self.merge = merge
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.carry_init = carry_init
        self.precision = precision
        self.implementation = implementation
        self._check_one_way(reverse)
        # A random stream only for who needs it: it is state, and splits graph and jit.
        self.rngs = nnx.data(None) if carry_init is None else rngs.carry.fork()

        def draw(init, rows: tuple[int, ...], gates: int) -> nnx.Param:
            """Gate by gate: [rows, gates*hidden], by direction if bidirectional."""
            directions = 2 if bidirectional else 1
            keys = jax.random.split(rngs.params(), directions * gates)
            shape = (*rows, hidden_features)
            drawn = [init(key, shape, param_dtype) for key in keys]
            sides = [
                jnp.concatenate(drawn[first : first + gates], -1)
                for first in range(0, directions * gates, gates)
            ]
            return nnx.Param(jnp.stack(sides) if bidirectional else sides[0])

        self.w_ih = draw(kernel_init, (in_features,), self._gates)
        self.w_hh = draw(recurrent_kernel_init, (hidden_features,), self._gates)
        self.b_ih = draw(bias_init, (), self._gates)
        self.b_hn = draw(bias_init, (), 1) if self.recurrent_bias else nnx.data(None)

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm`, `gru` or `rnn`."""
        b_hn = None if self.b_hn is None else self.b_hn[...]
        return _weights.join_biases(
            self.w_ih[...], self.w_hh[...], self.b_ih[...], b_hn
        )

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Carry | None = None,
        seq_lengths: None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | None = None,
    ) -> Any:
        """Runs the layer over whole sequences, as `nnx.RNN` does.

        Args:
          inputs: `[*batch, time, in_features]`, any number of batch axes, also none;
            `[time, *batch, in_features]` if time_major.
          initial_carry: the state before the first step, each array
            `[*batch, hidden_features]`: `(c, h)` for the LSTM, h for the others, and a
            pair of these, forward and backward, if bidirectional. By default zeros, or
            what `carry_init` draws.
          seq_lengths: only None, so that the layer fits where `nnx.RNN` does.
          return_carry: overrides the layer's own, as do the next three.
          time_major: overrides the layer's own.
          reverse: overrides the layer's own.
          keep_order: overrides the layer's own.
          rngs: for `carry_init`, in place of the layer's own stream.

        Returns:
          `[*batch, time, hidden_features]`, every h (twice as wide if bidirectional and
          merged by "concat"), or `(carry, outputs)` with return_carry. Both are in the
          dtype of the computation.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        name = type(self).__name__
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order
        self._check_one_way(reverse)
        check(
            seq_lengths is None,
            f"{name}: seq_lengths must be None, got {type(seq_lengths).__name__}; "
            "sequences of different lengths are not supported.",
        )
        shape = jnp.shape(inputs)
        axes = "time, *batch" if time_major else "*batch, time"
        check(
            len(shape) >= 2 and shape[-1] == self.in_features,
            f"{name}: inputs must be [{axes}, in_features] with "
            f"in_features={self.in_features}, got {list(shape)}.",
        )
        batch = shape[1:-1] if time_major else shape[:-2]

        arrays: Any = promote_dtype((inputs, *self.params), dtype=self.dtype)
        x, params = arrays[0], Params(*arrays[1:])
        if initial_carry is None and self.carry_init is not None:
            initial_carry = self.initialize_carry((*batch, self.in_features), rngs)
        state_0 = None
        if initial_carry is not None:
            state_0 = self._state_of(initial_carry, batch, x.dtype)
        y, state = type(self)._function(
            x,
            params,
            state_0,
            reverse=reverse,
            bidirectional=self.bidirectional,
            time_major=time_major,
            precision=self.precision,
            implementation=self.implementation,
            **self._options(),
        )
        if reverse and not keep_order:
            y = jnp.flip(y, 0 if time_major else -2)
        if self.bidirectional and self.merge == "sum":
            y = operator.add(*jnp.split(y, 2, -1))
        return (self._carry_of(state), y) if return_carry else y

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | None = None,
        carry_init: Initializer | None = None,
    ) -> Carry:
        """The carry before the first step, as Flax's cells make it.

        Args:
          input_shape: of one time step, `[*batch, in_features]`.
          rngs: for carry_init; by default the layer's own stream.
          carry_init: in place of the layer's own; zeros if there is none.

        Returns:
          A carry in param_dtype, with the structure that `__call__` describes.

        Raises:
          ValueError: carry_init is given, but nothing to draw from.
        """
        init = self.carry_init if carry_init is None else carry_init
        stream = self.rngs if rngs is None else rngs
        stream = stream.carry if isinstance(stream, nnx.Rngs) else stream
        shape = (*input_shape[:-1], self.hidden_features)
        if init is None:
            return self._carry(lambda: jnp.zeros(shape, self.param_dtype))
        if stream is None:
            raise ValueError(
                f"{type(self).__name__}: carry_init needs random numbers, but the "
                "layer was made without carry_init and keeps none; pass "
                "rngs=nnx.Rngs(...)."
            )
        return self._carry(lambda: init(stream(), shape, self.param_dtype))

    @classmethod
    def from_cell(cls, cell: Any, *, rngs: nnx.Rngs | None = None, **options) -> Self:
        """A layer with the parameters of a Flax cell.

        Args:
          cell: `nnx.OptimizedLSTMCell` or `nnx.LSTMCell` for LSTM, `nnx.GRUCell` for
            GRU, `nnx.SimpleCell` for RNN; or a pair of them, forward and backward, for
            a bidirectional layer. Sizes and dtypes are taken over.
          rngs: for the cell's carry_init, if it has one.
          **options: arguments of the layer that a cell has none of: time_major,
            return_carry, reverse, keep_order, merge, precision, implementation.

        Raises:
          ValueError: another kind of cell, or one with a function or an option that the
            layer does not have; says which.
        """
        cells = cell if isinstance(cell, tuple) else (cell,)
        check(
            len(cells) in (1, 2),
            f"{cls.__name__}.from_cell: cell must be a cell or a pair (forward, "
            f"backward), got {len(cells)} values.",
        )
        settings = [cls._settings_of(cell) for cell in cells]
        check(
            settings[0] == settings[-1],
            f"{cls.__name__}.from_cell: both cells must have the same sizes, dtypes "
            f"and functions, got {settings[0]} and {settings[-1]}.",
        )
        layer = cls(
            **settings[0],
            kernel_init=_zeros,
            recurrent_kernel_init=_zeros,
            bidirectional=len(cells) == 2,
            rngs=nnx.Rngs(0) if rngs is None else rngs,
            **options,
        )
        directions = []
        for one in cells:
            layout = _weights.NNX[type(one).__name__]
            arrays = {name: _param(one, name)[...] for name in layout.names}
            directions.append(_weights.to_params(layout, arrays))
        params = _weights.stack_directions(directions)
        layer.w_ih[...], layer.w_hh[...], layer.b_ih[...], _ = params
        return layer

    def to_cell(self, cell_type: type | None = None) -> Any:
        """The layer's parameters as a Flax cell; a pair if bidirectional.

        Args:
          cell_type: of the LSTM `nnx.OptimizedLSTMCell`, the default, or
            `nnx.LSTMCell`.

        Returns:
          A cell for `nnx.RNN`, or `(forward, backward)` for `nnx.Bidirectional`.

        Raises:
          ValueError: Flax has no cell that computes the same; says why.
        """
        cell_type = self._cells[0] if cell_type is None else cell_type
        name = f"{type(self).__name__}.to_cell"
        check(
            cell_type in self._cells,
            f"{name}: cell_type must be {_names(self._cells)}, got {_name(cell_type)}.",
        )
        arguments = self._cell_arguments(name)
        if self.carry_init is not None:
            arguments["carry_init"] = self.carry_init
        layout = _weights.NNX[cell_type.__name__]
        cells = []
        for params in _weights.split_directions(self.params, self.bidirectional):
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
            for path, array in _weights.from_params(layout, params).items():
                _param(cell, path)[...] = array
            cells.append(cell)
        return tuple(cells) if self.bidirectional else cells[0]

    # ---- what a layer may say differently --------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Arguments of the function that not all cells have."""
        return {}

    def _cell_arguments(self, name: str) -> dict[str, Any]:
        """Arguments for Flax's cell; an error if there is no such cell."""
        del name
        return {}

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        """Arguments of the layer that a cell determines, after checking the cell."""
        name = f"{cls.__name__}.from_cell"
        check(
            type(cell) in cls._cells,
            f"{name}: cell must be {_names(cls._cells)} (no subclass, which may "
            f"compute something else), got {_name(type(cell))}.",
        )
        if hasattr(cell, "gate_fn"):
            check(
                cell.gate_fn is jax.nn.sigmoid,
                f"{name}: gate_fn must be jax.nn.sigmoid, got {_name(cell.gate_fn)}; "
                "keep nnx.RNN for other functions.",
            )
        promote = getattr(cell, "promote_dtype", promote_dtype)
        check(
            promote is promote_dtype,
            f"{name}: promote_dtype must be Flax's own, got {_name(promote)}; give the "
            "layer a dtype instead.",
        )
        activations = cls._activations()
        listed = " or ".join(_name(function) for function in activations)
        check(
            cell.activation_fn in activations,
            f"{name}: activation_fn must be {listed}, got "
            f"{_name(cell.activation_fn)}; keep nnx.RNN for other functions.",
        )
        names = ("in_features", "hidden_features", "dtype", "param_dtype", "carry_init")
        return {name: getattr(cell, name) for name in names}

    @classmethod
    def _activations(cls) -> dict[Callable, Activation]:
        """The functions that a cell may have as its activation_fn."""
        return {jnp.tanh: "tanh"}

    # ---- carries ---------------------------------------------------------------------

    def _check_one_way(self, reverse: bool) -> None:
        check(
            not (reverse and self.bidirectional),
            f"{type(self).__name__}: reverse must be False in a bidirectional layer, "
            "which runs both ways, got True.",
        )

    def _carry(self, make: Callable[[], Any]) -> Carry:
        """A carry of what `make()` returns."""

        def one():
            return (make(), make()) if self._states == 2 else make()

        return (one(), one()) if self.bidirectional else one()

    def _state_of(self, carry: Carry, batch: tuple[int, ...], dtype) -> Any:
        """A carry as the functions take it: (h, c), directions on a leading axis."""
        expected = (*batch, self.hidden_features)
        one = "(c, h)" if self._states == 2 else "h"
        wanted = (
            f"a pair {one}, {one} (forward, backward)" if self.bidirectional else one
        )
        check(
            jax.tree.structure(carry) == jax.tree.structure(self._carry(lambda: 0))
            and all(jnp.shape(x) == expected for x in jax.tree.leaves(carry)),
            f"{type(self).__name__}: initial_carry must be {wanted}, each [*batch, "
            f"hidden_features] = {list(expected)}, got "
            f"{jax.tree.map(lambda x: list(jnp.shape(x)), carry)}.",
        )
        leaves = [jnp.asarray(x, dtype) for x in jax.tree.leaves(carry)]
        states = [leaves[k :: self._states] for k in reversed(range(self._states))]
        states = [jnp.stack(s) if self.bidirectional else s[0] for s in states]
        return tuple(states) if self._states == 2 else states[0]

    def _carry_of(self, state: Any) -> Carry:
        """The inverse of `_state_of`."""

        def one(state):
            return state[::-1] if self._states == 2 else state

        if not self.bidirectional:
            return one(state)
        return tuple(one(jax.tree.map(operator.itemgetter(d), state)) for d in (0, 1))


class LSTM(_Layer):
    r"""Long short-term memory over whole sequences; the equation is `prnn_jax.lstm`'s.

    Drop-in for `nnx.RNN(nnx.OptimizedLSTMCell(...))` and `nnx.RNN(nnx.LSTMCell(...))`.
    A carry is Flax's `(c, h)`, and if bidirectional a pair of them, forward and
    backward, as `nnx.Bidirectional` has it.

    Outputs and carries are in the dtype of the computation. Those of Flax's layers are
    in param_dtype where that is wider, because their carry starts in it.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 4*hidden_features]`, gates i f g o side by side.
      w_hh: `nnx.Param` `[hidden_features, 4*hidden_features]`.
      b_ih: `nnx.Param` `[4*hidden_features]`, the one bias of each gate.
      b_hn: None; only the GRU may have one.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      kernel_init: of w_ih, called for each gate (and direction) with the shape
        `[in_features, hidden_features]`.
      recurrent_kernel_init: of w_hh, called likewise. By default each gate's matrix is
        orthogonal, as in `nnx.LSTMCell` (and Linen's cells); `nnx.OptimizedLSTMCell`
        and `nnx.GRUCell` draw one wide matrix instead, whose blocks are smaller.
      bias_init: of the biases, called likewise with `[hidden_features]`.
      bidirectional: run both ways at once, as `nnx.Bidirectional`.
      merge: of a bidirectional layer's outputs: "concat" (forward first) or "sum".
      time_major: inputs and outputs are `[time, *batch, features]`.
      return_carry: return `(carry, outputs)`.
      reverse: run from the last step to the first.
      keep_order: of a reversed layer's outputs: whether they are in the order of the
        inputs. By default, as in Flax, they are in the order of processing.
      dtype: of the computation; by default that of inputs and params together.
      param_dtype: of the parameters.
      carry_init: draws the carry where no initial_carry is given; zeros without it.
      precision: of matrix products, as in `jax.lax.dot`.
      implementation: "native", "scan" or None, as in `prnn_jax.lstm`.
      rngs: for the parameters, and for carry_init its stream `carry`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(_ops.lstm)
    _gates = 4
    _states = 2
    _cells = (nnx.OptimizedLSTMCell, nnx.LSTMCell)


class GRU(_Layer):
    r"""Gated recurrent unit over whole sequences; the equations are `prnn_jax.gru`'s.

    Drop-in for `nnx.RNN(nnx.GRUCell(...))`. A carry is h, and if bidirectional a pair
    of them, forward and backward. As for dtypes, what `LSTM` says holds.

    Attributes:
      w_ih: `nnx.Param` `[in_features, 3*hidden_features]`, gates r z n side by side.
      w_hh: `nnx.Param` `[hidden_features, 3*hidden_features]`.
      b_ih: `nnx.Param` `[3*hidden_features]`, the one bias of each gate.
      b_hn: `nnx.Param` `[hidden_features]` with recurrent_bias, else None.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      reset_after: whether r multiplies the product `h w_hn + b_hn`, as in
        `nnx.GRUCell`, or h before it.
      recurrent_bias: whether there is a b_hn, the bias that r multiplies, as in cuDNN,
        PyTorch, Linen and Equinox; `nnx.GRUCell` has none. Other biases of w_hh would
        only be added to b_ih, so there are none.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(_ops.gru)
    _gates = 3
    _cells = (nnx.GRUCell,)

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        reset_after: bool = True,
        recurrent_bias: bool = False,
        **options: Any,
    ):
        check(
            reset_after or not recurrent_bias,
            "GRU: recurrent_bias must be False without reset_after, where it would "
            "only be added to b_ih, got True.",
        )
        self.reset_after = reset_after
        self.recurrent_bias = recurrent_bias
        super().__init__(in_features, hidden_features, **options)

    def _options(self) -> dict[str, Any]:
        return {"reset_after": self.reset_after}

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
        return {}

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        return super()._settings_of(cell) | {"reset_after": True}


class RNN(_Layer):
    r"""Elman network over whole sequences; the equation is `prnn_jax.rnn`'s.

    Drop-in for `nnx.RNN(nnx.SimpleCell(...))`, whose `residual=True` is `skip=1.0`
    here. A carry is h, and if bidirectional a pair of them, forward and backward. As
    for dtypes, what `LSTM` says holds.

    Attributes:
      w_ih: `nnx.Param` `[in_features, hidden_features]`.
      w_hh: `nnx.Param` `[hidden_features, hidden_features]`.
      b_ih: `nnx.Param` `[hidden_features]`.
      b_hn: None; only the GRU may have one.

    If bidirectional, each has a leading axis of 2: forward, backward.

    Args:
      in_features: size of the input at each step.
      hidden_features: size of the state.
      activation: "tanh", "relu" or "clipped_relu", min(max(a, 0), cap).
      cap: of the clipped ReLU.
      skip: scale of the residual through time, inside the activation.
      **options: all other arguments of `LSTM`.

    Raises:
      ValueError: sizes or options do not fit; says what was expected.
    """

    _function = staticmethod(_ops.rnn)
    _gates = 1
    _cells = (nnx.SimpleCell,)

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        activation: Activation = "tanh",
        cap: float = 20.0,
        skip: float = 0.0,
        **options: Any,
    ):
        _checks.one_of("RNN", "activation", activation, get_args(Activation))
        self.activation: Activation = activation
        self.cap = cap
        self.skip = skip
        super().__init__(in_features, hidden_features, **options)

    def _options(self) -> dict[str, Any]:
        return {"activation": self.activation, "cap": self.cap, "skip": self.skip}

    def _cell_arguments(self, name: str) -> dict[str, Any]:
        functions = {value: key for key, value in self._activations().items()}
        check(
            self.activation in functions,
            f'{name}: activation must be "tanh" or "relu" for a cell of Flax, got '
            f"{self.activation!r}.",
        )
        check(
            self.skip in (0.0, 1.0),
            f"{name}: skip must be 0 or 1 for a cell of Flax (residual=True), got "
            f"{self.skip}.",
        )
        residual = self.skip == 1.0
        return {"activation_fn": functions[self.activation], "residual": residual}

    @classmethod
    def _settings_of(cls, cell: Any) -> dict[str, Any]:
        settings = super()._settings_of(cell)
        settings["activation"] = cls._activations()[cell.activation_fn]
        settings["skip"] = 1.0 if cell.residual else 0.0
        return settings

    @classmethod
    def _activations(cls) -> dict[Callable, Activation]:
        return {jnp.tanh: "tanh", jax.nn.relu: "relu"}


def _param(cell: Any, path: str) -> nnx.Param:
    return operator.attrgetter(path)(cell)


def _name(thing: Any) -> str:
    """A class or function as a message calls it."""
    return getattr(thing, "__name__", repr(thing))


def _names(types: tuple[type, ...]) -> str:
    return " or ".join(f"nnx.{one.__name__}" for one in types)
