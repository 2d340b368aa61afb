"""What the layers for Flax Linen share."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Literal, Self, Unpack, overload

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict
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
from prnn_jax._layers.flax.shared import Initializer
from prnn_jax._layers.flax.variables import check_initializers, params_of
from prnn_jax._layers.keywords import InTheirOwnName, in_its_own_name
from prnn_jax._layers.made import made_class
from prnn_jax._ops.define import DefinedCell, check_defined
from prnn_jax.convert import Imported
from prnn_jax.convert._shared import layouts


def make_hashable(module: nn.Module) -> None:
    """Lists, dicts and arrays among a module's options, as what can be hashed.

    A module is a part of what `jax.jit` compares, in a `TrainState` for example.
    """
    for one in fields(module):
        if one.name not in ("parent", "name"):
            value = _frozen(getattr(module, one.name))
            object.__setattr__(module, one.name, value)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenDict({name: _frozen(option) for name, option in value.items()})
    return statics.hashable(value)


class _CallOptions(LayerCallOptions, total=False):
    init_key: Array | None


class Layer(InTheirOwnName, nn.Module):
    """All that the layers share; a layer is a kind of cell and its options."""

    features: int
    kernel_init: Initializer = jax.nn.initializers.lecun_normal()
    recurrent_kernel_init: Initializer = shared.orthogonal
    bias_init: Initializer = jax.nn.initializers.zeros
    bidirectional: bool = False
    merge: Merge = "concat"
    heads: int | None = None
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    recurrent_dropout_rate: float = 0.0
    zoneout_rate: float | tuple[float, ...] = 0.0
    deterministic: bool | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Initializer | None = None
    reserve: Reserve = "fast"
    precision: Precision = None
    implementation: Implementation | None = None
    activation: GivenActivations = "tanh"
    gate_activation: GivenActivation = "sigmoid"
    clip: Clip | None = None
    peepholes: bool = False
    proj_size: int | None = None

    _kind: ClassVar[Kind]

    def __post_init__(self):
        make_hashable(self)
        super().__post_init__()

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

    @nn.compact
    @in_its_own_name
    def __call__(
        self,
        inputs: ArrayLike,
        *,
        initial_carry: Carry | None = None,
        init_key: Array | None = None,
        seq_lengths: Lengths | None = None,
        mask: ArrayLike | None = None,
        resets: Resets | None = None,
        reset_carry: Carry | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        deterministic: bool | None = None,
    ) -> Any:
        """Runs the layer over whole sequences, as `linen.RNN` does.

        Args:
          inputs: `[*batch, time, in_features]`, any number of batch axes, also none;
            `[time, *batch, in_features]` if time_major.
          initial_carry: the state before the first step, each array
            `[*batch, features]`: `(c, h)` for the LSTM, `(h, c, n, m)` for the sLSTM, h
            for the others, and a pair of these, forward and backward, if bidirectional.
            By default zeros, or what `carry_init` draws.
          init_key: for carry_init; by default `jax.random.key(0)`.
          seq_lengths: whole numbers `[*batch]`: how many steps of each row count, from
            its beginning. The carry is that after the last step that counts, and
            `reverse` begins there, as in `linen.RNN`. Other than there, outputs past
            the end are zero, whether or not the carry is returned, and what inputs hold
            there, NaN too, has no effect; a length of 0 leaves the initial carry.
          mask: `[*batch, time]` (`[time, *batch]` if time_major), of any dtype: where
            zero, the step does not count: the carry stays as it is, and the output is
            the last one before it. In place of seq_lengths, and without resets.
          resets: `[*batch, time]` (`[time, *batch]` if time_major), of any dtype: where
            not zero, the state is replaced before that step, in the order of
            processing, and no gradient crosses.
          reset_carry: what it is replaced with, like initial_carry. By default zeros.
          return_carry: overrides the layer's own, as do the next three.
          time_major: overrides the layer's own.
          reverse: overrides the layer's own.
          keep_order: overrides the layer's own.
          deterministic: to be given here or to the layer, if that has dropout or
            zoneout; whose random numbers are those of `dropout`.

        Returns:
          `[*batch, time, features]` (or proj_size), every h (twice as wide if
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
        batch = options.batch(inputs)
        in_features = jnp.shape(inputs)[-1]

        params = self._draw(self.param, in_features)
        if initial_carry is None and self.carry_init is not None:
            init_key = jax.random.key(0) if init_key is None else init_key
            initial_carry = self.initialize_carry(init_key, (*batch, in_features))
        key = None
        if options.noise:
            is_off = nn.merge_param("deterministic", self.deterministic, deterministic)
            key = None if is_off else self.make_rng("dropout")
        return options.run(
            inputs,
            params,
            initial_carry=initial_carry,
            seq_lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_carry=reset_carry,
            key=key,
        )

    @classmethod
    def from_params(
        cls, params: Params | Imported, **options: Any
    ) -> tuple[Self, dict[str, Any]]:
        """A layer for these parameters, such as `prnn_jax.convert` gives, and they.

            layer, variables = LSTM.from_params(params)
            y = layer.apply(variables, x)

        Args:
          params: of one layer, or a network of one, with its options. Of two biases the
            layer has the sum, but for the GRU's b_hn. Their type says what a leading
            axis is: `BidirectionalParams` make a bidirectional layer,
            `MultiHeadParams` one with heads.
          **options: other attributes of the layer.

        Raises:
          ValueError: shapes do not fit the cell or the options; says what was expected.
        """
        name = f"{cls.__name__}.from_params"
        function = cls._kind.cell.function
        params, options = imported.layer_of(
            name, function, params, options, keep_order=True
        )
        given = layer_arrays(name, cls._kind.cell, params, options)
        if cls._kind.cell.function == "gru":
            options.setdefault("recurrent_bias", given.b_hn is not None)
        if given.peepholes is not None:
            options.setdefault("peepholes", True)
        options.setdefault("proj_size", given.proj_size)
        make: Any = cls
        layer = make(
            given.hidden_size,
            **{
                "bidirectional": given.bidirectional,
                "heads": given.heads,
                "param_dtype": given.w_hh.dtype,
                **options,
            },
        )
        check(
            given.b_hn is None or layer._has_b_hn(),
            f"{name}: recurrent_bias must be True for params with b_hh, got False.",
        )
        count = own_numbers(name, cls._kind.cell, layer.peepholes)
        check_kept(name, given, count or None, layer.proj_size)
        arrays = {"w_ih": given.w_ih, "w_hh": given.w_hh, "b_ih": given.b_ih}
        if given.b_ih is None:
            arrays["b_ih"] = jnp.zeros_like(given.w_hh[..., 0, :])
        if layer._has_b_hn():
            zeros = jnp.zeros_like(given.w_hh[..., :, 0])
            arrays["b_hn"] = zeros if given.b_hn is None else given.b_hn
        if count:
            own = count * given.w_hh.shape[-1] // cls._kind.cell.gates
            begins = begin_own(
                cls._kind.cell, (*given.w_hh.shape[:-2], own), given.w_hh.dtype
            )
            arrays["peepholes"] = begins if given.peepholes is None else given.peepholes
        if given.w_hr is not None:
            arrays["w_hr"] = given.w_hr
        return layer, {"params": arrays}

    @nn.nowrap
    def to_params(self, variables: Mapping[str, Any]) -> Params:
        """The layer's parameters, for `prnn_jax.lstm`, `slstm`, `gru` or `rnn`.

        Args:
          variables: of the layer, as `init` gives them.
        """
        arrays = params_of(type(self).__name__, variables, "w_ih")
        names = "w_ih", "w_hh", "b_ih", "b_hn", "peepholes", "w_hr"
        return self._options().typed(layouts.join_biases(*map(arrays.get, names)))

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[int, ...]) -> Carry:
        """The carry before the first step, as Flax's cells make it.

        Args:
          rng: for carry_init.
          input_shape: of one time step, `[*batch, in_features]`.

        Returns:
          A carry in param_dtype, with the structure that `__call__` describes.
        """
        options = self._options()
        return options.initial_carry(input_shape, options.carries.keys(rng))

    @nn.nowrap
    def _draw(self, make: Callable, in_features: int) -> Params:
        """The parameters, each by `make(name, draw)`, where draw is of a key."""
        options, gates = self._options(), self._kind.cell.gates
        own = own_numbers(options.name, self._kind.cell, self.peepholes)
        names = "kernel_init", "recurrent_kernel_init", "bias_init"
        check_initializers(options.name, **{n: getattr(self, n) for n in names})

        def param(name: str, init: Initializer, rows: tuple[int, ...], gates: int):
            return make(name, lambda key: options.draw(init, key, rows, gates))

        def begin(_: Array) -> Array:
            shape = (*options.lead, own * options.width)
            return begin_own(self._kind.cell, shape, options.param_dtype)

        def draw_w_hr(key: Array) -> Array:
            return options.draw_w_hr(self.recurrent_kernel_init, key)

        return layouts.join_biases(
            param("w_ih", self.kernel_init, (in_features,), gates),
            param("w_hh", self.recurrent_kernel_init, (options.output_width,), gates),
            param("b_ih", self.bias_init, (), gates),
            param("b_hn", self.bias_init, (), 1) if self._has_b_hn() else None,
            make("peepholes", begin) if own else None,
            make("w_hr", draw_w_hr) if options.proj_size is not None else None,
        )

    @nn.nowrap
    def _options(self, in_features: int | None = None, **call: Any) -> shared.Options:
        """All options, with what a call overrides."""
        del in_features  # which only other layers need to know
        return shared.Options.of(
            self,
            features_name="features",
            **call,
        )

    @nn.nowrap
    def _has_b_hn(self) -> bool:
        """Whether there is a bias that the GRU's r multiplies."""
        return False

    # ---- in a stack ------------------------------------------------------------------

    @classmethod
    def _alike(cls, op: str, layers: Sequence[Any]) -> dict[str, Any]:
        """Options that all layers of a stack have, by their parameters."""
        options: dict[str, Any] = alike(op, layers)
        if cls._kind.cell.function == "gru":
            has_bias = any(
                getattr(params, "b_hh", None) is not None for params in layers
            )
            options["recurrent_bias"] = has_bias
        return options

    @classmethod
    def _takes(cls, arrays: Mapping[str, Array]) -> int:
        """Input features, by the parameters."""
        return arrays["w_ih"].shape[-2]

    @nn.nowrap
    def _told(self) -> dict[str, Any]:
        """The layer's options that parameters tell."""
        names = "bidirectional", "heads", "proj_size", "param_dtype"
        return {name: getattr(self, name) for name in names}


def layer_of(cell: DefinedCell) -> type[Layer]:
    """The layer of a cell that `prnn_jax.define_cell` has made.

        Light = prnn_jax.linen.layer_of(light)
        y = Light(256, bidirectional=True).apply(variables, x)

    Args:
      cell: what `prnn_jax.define_cell` or `normed` has made.

    Returns:
      A class like `LSTM`, with its attributes but activations, proj_size and, unless
      the cell is of `normed`, a lean reserve; the same for the same cell. A carry has
      the states in the order of the step. Numbers that each unit has for itself are the
      parameter `peepholes` `[per_unit*features]`, which begin with zero. `Stack` takes
      the class, or the cell itself.

    Raises:
      ValueError: it is no such cell.
    """
    check_defined("layer_of", cell)
    return _layer_of(cell)


@functools.cache
def _layer_of(cell: DefinedCell) -> type[Layer]:
    members = {"_kind": Kind.of_defined(cell), "__module__": "prnn_jax.linen"}
    return made_class(layer_of, cell, Layer, members)
