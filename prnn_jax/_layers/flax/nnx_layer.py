"""What the layers for Flax NNX share."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, Unpack, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.options import (
    Implementation,
    Lengths,
    Merge,
    Precision,
    Reserve,
    Resets,
)
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._given import statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._layers import imported
from prnn_jax._layers.arrays import (
    alike,
    begin_own,
    check_kept,
    layer_arrays,
    own_numbers,
)
from prnn_jax._layers.flax import shared
from prnn_jax._layers.flax.carry import Carry, LayerCallOptions
from prnn_jax._layers.flax.kinds import Kind
from prnn_jax._layers.flax.nnx_shared import (
    Rngs,
    refuse_params,
    rngs_with_params,
    stream_for,
)
from prnn_jax._layers.flax.shared import Initializer
from prnn_jax._layers.keywords import in_its_own_name
from prnn_jax._layers.made import made_class
from prnn_jax._ops.define import DefinedCell, check_defined
from prnn_jax.convert import Imported
from prnn_jax.convert._shared import layouts

_ARRAYS = "w_ih", "w_hh", "b_ih", "b_hn", "peepholes", "w_hr"
_zeros = jax.nn.initializers.zeros


class _CallOptions(LayerCallOptions, total=False):
    rngs: Rngs | None


class Layer(nnx.Module):
    """All that the layers share; a layer is a kind of cell and its options."""

    _kind: ClassVar[Kind]

    recurrent_bias: bool = False
    #: Arguments with which nothing is drawn that takes long.
    _quick: ClassVar[dict[str, Any]] = {
        "kernel_init": _zeros,
        "recurrent_kernel_init": _zeros,
    }

    @in_its_own_name
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),  # noqa: B008
        recurrent_kernel_init: Initializer = shared.orthogonal,
        bias_init: Initializer = _zeros,
        bidirectional: bool = False,
        merge: Merge = "concat",
        heads: int | None = None,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        recurrent_dropout_rate: float = 0.0,
        zoneout_rate: float | tuple[float, ...] = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        carry_init: Initializer | None = None,
        reserve: Reserve = "fast",
        precision: Precision = None,
        implementation: Implementation | None = None,
        activation: GivenActivations = "tanh",
        gate_activation: GivenActivation = "sigmoid",
        clip: Clip | None = None,
        peepholes: bool = False,
        proj_size: int | None = None,
        rngs: nnx.Rngs,
    ):
        name, static = type(self).__name__, statics.hashable
        self.in_features = statics.size(name, "in_features", in_features)
        self.hidden_features = static(hidden_features)
        self.bidirectional = static(bidirectional)
        self.merge = merge
        self.heads = static(heads)
        self.time_major = static(time_major)
        self.return_carry = static(return_carry)
        self.reverse = static(reverse)
        self.keep_order = static(keep_order)
        self.recurrent_dropout_rate = static(recurrent_dropout_rate)
        self.zoneout_rate = static(zoneout_rate)
        self.deterministic = static(deterministic)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.carry_init = carry_init
        self.reserve = reserve
        self.precision = static(precision)
        self.implementation = implementation
        self.activation = static(activation)
        self.gate_activation = gate_activation
        self.clip = static(clip)
        self.proj_size = static(proj_size)
        options = self._options()
        # A random stream only for who needs it: it is state, and splits graph and jit.
        self.rngs = nnx.data(None) if carry_init is None else rngs.carry.fork()
        self.dropout_rngs = rngs.dropout.fork() if options.noise else nnx.data(None)

        def draw(init: Initializer, rows: tuple[int, ...], gates: int) -> nnx.Param:
            return nnx.Param(options.draw(init, rngs.params(), rows, gates))

        gates = self._kind.cell.gates
        self.w_ih = draw(kernel_init, (in_features,), gates)
        self.w_hh = draw(recurrent_kernel_init, (options.output_width,), gates)
        self.b_ih = draw(bias_init, (), gates)
        self.b_hn = draw(bias_init, (), 1) if self.recurrent_bias else nnx.data(None)
        own = own_numbers(name, self._kind.cell, peepholes)
        self.peepholes = nnx.data(None)
        if own:
            shape = (*options.lead, own * options.width)
            own = begin_own(self._kind.cell, shape, options.param_dtype)
            self.peepholes = nnx.Param(own)
        self.w_hr = nnx.data(None)
        if options.proj_size is not None:
            w_hr = options.draw_w_hr(recurrent_kernel_init, rngs.params())
            self.w_hr = nnx.Param(w_hr)

    @classmethod
    def from_params(
        cls, params: Params | Imported, *, rngs: nnx.Rngs | None = None, **options: Any
    ) -> Self:
        """A layer with these parameters, such as `prnn_jax.convert` gives.

        Args:
          params: of one layer, gates in the order of w_ih below; or a network of one,
            with its options. Of two biases the layer has the sum, but for the GRU's
            b_hn. Their type says what a leading axis is: `BidirectionalParams` make a
            bidirectional layer, `MultiHeadParams` one with heads.
          rngs: for the layer's dropout and carry_init.
          **options: other arguments of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        function = cls._kind.cell.function
        params, options = imported.layer_of(
            name, function, params, options, keep_order=True
        )
        given = layer_arrays(name, cls._kind.cell, params, options)
        if given.b_hn is not None:
            options.setdefault("recurrent_bias", True)
        if given.peepholes is not None:
            options.setdefault("peepholes", True)
        options.setdefault("proj_size", given.proj_size)
        make: Any = cls
        layer = make(
            given.input_size,
            given.hidden_size,
            **{
                **cls._quick,
                "bidirectional": given.bidirectional,
                "heads": given.heads,
                "param_dtype": given.w_hh.dtype,
                "rngs": rngs_with_params(rngs),
                **options,
            },
        )
        check(
            given.b_hn is None or layer.b_hn is not None,
            f"{name}: recurrent_bias must be True for params with b_hh, got False.",
        )
        check_kept(name, given, layer.peepholes, layer.proj_size)
        for of_layer, array in zip(_ARRAYS, given, strict=False):
            if array is not None:
                getattr(layer, of_layer)[...] = array
        return layer

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm`, `slstm`, `gru` or `rnn`."""
        held = (getattr(self, name) for name in _ARRAYS)
        arrays: Any = (None if param is None else param[...] for param in held)
        return self._options().typed(layouts.join_biases(*arrays))

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_params(self, name)
        super().__setattr__(name, value)

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: Literal[True],
        **options: Unpack[_CallOptions],
    ) -> tuple[Carry, Array]: ...

    @overload
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        return_carry: bool | None = None,
        **options: Unpack[_CallOptions],
    ) -> Any: ...

    @in_its_own_name
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        initial_carry: Carry | None = None,
        seq_lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_carry: Carry | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | None = None,
    ) -> Any:
        """Runs the layer over whole sequences, as `nnx.RNN` does.

        Args:
          inputs: `[*batch, time, in_features]`, any number of batch axes, also none;
            `[time, *batch, in_features]` if time_major.
          initial_carry: the state before the first step, each array
            `[*batch, hidden_features]`: `(c, h)` for the LSTM, `(h, c, n, m)` for the
            sLSTM, h for the others, and a pair of these, forward and backward, if
            bidirectional. By default zeros, or what `carry_init` draws.
          seq_lengths: whole numbers `[*batch]`: how many steps of each row count, from
            its beginning. The carry is that after the last step that counts, and
            `reverse` begins there, as in `nnx.RNN`. Other than there, outputs past the
            end are zero, whether or not the carry is returned, and what inputs hold
            there, NaN too, has no effect; a length of 0 leaves the initial carry.
          mask: `[*batch, time]` (`[time, *batch]` if time_major), of any dtype: where
            zero, the step does not count: the carry stays as it is, and the output is
            the last one before it. In place of seq_lengths, and without resets.
          resets: `[*batch, time]` (`[time, *batch]` if time_major), of any dtype: where
            not zero, the state is replaced before that step, in the order of
            processing, and no gradient crosses.
          reset_carry: what it is replaced with, like initial_carry. By default zeros.
          return_carry: overrides the layer's own, as do the next four.
          time_major: overrides the layer's own.
          reverse: overrides the layer's own.
          keep_order: overrides the layer's own.
          deterministic: overrides the layer's own.
          rngs: in place of the layer's own streams, `carry` for carry_init and
            `dropout` for dropout and zoneout; a single stream is for carry_init.

        Returns:
          `[*batch, time, hidden_features]` (or proj_size), every h (twice as wide if
          bidirectional and merged by "concat"), or `(carry, outputs)` with
          return_carry. Both are in the dtype of the computation; if that has 16 bits,
          an initial_carry in float32 stays so.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        options = self._options(
            return_carry=return_carry,
            time_major=time_major,
            reverse=reverse,
            keep_order=keep_order,
        )
        batch = options.batch(inputs, self.in_features)
        if initial_carry is None and self.carry_init is not None:
            initial_carry = self.initialize_carry((*batch, self.in_features), rngs)
        if deterministic is None:
            deterministic = self.deterministic
        key = None
        if options.noise and not deterministic:
            stream = rngs.dropout if isinstance(rngs, nnx.Rngs) else self.dropout_rngs
            key = stream_for(self, "dropout", stream)()
        return options.run(
            inputs,
            self.params,
            initial_carry=initial_carry,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_carry=reset_carry,
            key=key,
        )

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
          ValueError: carry_init is given, but nothing to draw from, or it is an sLSTM.
        """
        options = self._options(carry_init=carry_init)
        if options.carry_init is None:
            return options.initial_carry(input_shape)
        stream = self.rngs if rngs is None else rngs
        stream = stream.carry if isinstance(stream, nnx.Rngs) else stream
        return options.initial_carry(
            input_shape, stream_for(self, "carry_init", stream)
        )

    def set_view(self, deterministic: bool | None = None) -> None:
        """What `nnx.view` may change.

        Args:
          deterministic: if True, no dropout, and zoneout by its mean.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def _options(self, **call: Any) -> shared.Options:
        """All options, with what a call overrides."""
        return shared.Options.of(
            self,
            features=self.hidden_features,
            features_name="hidden_features",
            **call,
        )

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        return alike(op, layers)

    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        names = "bidirectional", "heads", "proj_size"
        return {name: getattr(self, name) for name in names}


def layer_of(cell: DefinedCell) -> type[Layer]:
    """The layer of a cell that `prnn_jax.define_cell` has made.

        Light = prnn_jax.nnx.layer_of(light)
        y = Light(80, 256, bidirectional=True, rngs=rngs)(x)

    Args:
      cell: what `prnn_jax.define_cell` or `normed` has made.

    Returns:
      A class like `LSTM`, with its arguments but activations, proj_size and, unless
      the cell is of `normed`, a lean reserve; the same for the same cell. A carry has
      the states in the order of the step. Numbers that each unit has for itself are its
      `peepholes` `[per_unit*hidden_features]`, which begin with zero. `Stack` takes the
      class, or the cell itself.

    Raises:
      ValueError: it is no such cell.
    """
    check_defined("layer_of", cell)
    return _layer_of(cell)


@functools.cache
def _layer_of(cell: DefinedCell) -> type[Layer]:
    members = {"_kind": Kind.of_defined(cell), "__module__": "prnn_jax.nnx"}
    return made_class(layer_of, cell, Layer, members)
