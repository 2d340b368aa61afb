"""What the layers for Flax NNX and for Flax Linen share; needs no Flax itself."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from prnn_jax._call.call import Call
from prnn_jax._call.choose import GATED, cell_of
from prnn_jax._call.noise import Noise
from prnn_jax._call.options import (
    Implementation,
    Lengths,
    Merge,
    Precision,
    Reserve,
    Resets,
)
from prnn_jax._call.options import Options as CallOptions
from prnn_jax._cells.activations import GivenActivation, GivenActivations
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import AnyCell
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params, typed
from prnn_jax._layers.arrays import checked_proj_size
from prnn_jax._layers.dtypes import promoted
from prnn_jax._layers.flax.carry import Carry, Form, one_step
from prnn_jax._layers.flax.kinds import Kind
from prnn_jax._layers.flax.sequences import (
    batch_of,
    check_seq_lengths,
    in_order_of_processing,
)

Initializer = jax.nn.initializers.Initializer

_FLAGS = "bidirectional", "time_major", "return_carry", "reverse", "keep_order"


def orthogonal(key: Array, shape, dtype=jnp.float32, out_sharding=None) -> Array:
    """Orthogonal, drawn in at least float32: there is no QR in half precision."""
    del out_sharding
    wide = jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


@dataclass(frozen=True)
class Options:
    """A layer's options in either library, and how a call with them runs.

    Attributes:
      name: of the layer, for messages.
      kind: of its cell.
      features: hidden units.
      features_name: what the library calls them.
      cell_options: arguments of the function that not all cells have.

    The others are options of the layers, described at `prnn_jax.nnx.LSTM`. What does
    not fit is a ValueError when they are made.
    """

    float32_params: ClassVar[tuple[str, ...]] = ()  # none may stay so beside 16 bits
    name: str
    kind: Kind
    features: int
    features_name: str
    bidirectional: bool
    merge: Merge
    heads: int | None
    time_major: bool
    return_carry: bool
    reverse: bool
    keep_order: bool
    recurrent_dropout_rate: float
    zoneout_rate: float | tuple[float, ...]
    dtype: Any
    param_dtype: Any
    carry_init: Initializer | None
    reserve: Reserve
    precision: Precision
    implementation: Implementation | None
    activation: GivenActivations
    gate_activation: GivenActivation
    clip: Clip | None
    proj_size: int | None
    cell_options: Mapping[str, Any]

    @classmethod
    def of(cls, module: Any, **others: Any) -> Self:
        """From the attributes of a module; others that are not None come first."""
        kind = module._kind
        others["kind"] = kind
        others["cell_options"] = {name: getattr(module, name) for name in kind.options}
        given = {name: value for name, value in others.items() if value is not None}
        names = {one.name for one in fields(cls)} - {*given, "name"}
        return cls(
            name=type(module).__name__,
            **{name: getattr(module, name) for name in names},
            **given,
        )

    def __post_init__(self):
        name = self.name
        known: dict[str, Any] = {
            "features": statics.size(name, self.features_name, self.features),
            "precision": statics.precision(name, self.precision),
            "recurrent_dropout_rate": self._rate("recurrent_dropout_rate"),
            "zoneout_rate": self._rate("zoneout_rate"),
        }
        for flag in _FLAGS:
            known[flag] = statics.flag(name, flag, getattr(self, flag) or False)
        if self.heads is not None:
            known["heads"] = statics.hashable(self.heads)
        for option, value in known.items():
            object.__setattr__(self, option, value)
        features, heads = self.features, self.heads
        of_all = {option: getattr(self, option) for option in GATED}
        of_all["reserve"] = self.reserve
        of_cell = CallOptions(**of_all | dict(self.cell_options))
        cell_of(name, self.kind.named, of_cell)
        checks.one_of(name, "merge", self.merge, get_args(Merge))
        checks.one_of(name, "reserve", self.reserve, get_args(Reserve))
        implementations = (None, *get_args(Implementation))
        checks.one_of(name, "implementation", self.implementation, implementations)
        check(
            heads is None
            or (isinstance(heads, int) and heads >= 1 and features % heads == 0),
            f"{name}: heads must be None or a divisor of {self.features_name}="
            f"{features}, got {heads}.",
        )
        check(
            not (self.reverse and self.bidirectional),
            f"{name}: reverse must be False in a bidirectional layer, which runs both "
            "ways, got True.",
        )
        check(
            self.kind.has_carry_init or self.carry_init is None,
            f"{name}: carry_init must be None, because its states are not independent "
            "numbers; pass an initial_carry.",
        )
        proj_size = checked_proj_size(name, self.kind.cell, self.proj_size, heads)
        object.__setattr__(self, "proj_size", proj_size)
        self._check_rates()

    def _rate(self, option: str) -> Any:
        """A rate, or several, as Python's numbers."""
        given = getattr(self, option)
        if not isinstance(given, (tuple, list)):
            return statics.number(self.name, option, given)
        return tuple(statics.number(self.name, option, rate) for rate in given)

    def _check_rates(self) -> None:
        rate = self.recurrent_dropout_rate
        check(
            not isinstance(rate, tuple) and 0 <= rate < 1,
            f"{self.name}: recurrent_dropout_rate must be a number from 0 to below 1, "
            f"got {rate!r}.",
        )
        for rate in self.zoneout_rates:
            check(
                0 <= rate <= 1,
                f"{self.name}: zoneout_rate must be of numbers from 0 to 1, got "
                f"{rate!r}.",
            )
        projects, cell = self.proj_size is not None, self.kind.cell.function
        check(
            (self.kind.cell.has_zoneout and not projects)
            or not any(self.zoneout_rates),
            f"{self.name}: zoneout_rate must be 0, got {self.zoneout_rate}; "
            f"{cell}{' with proj_size' if projects else ''} has no zoneout.",
        )

    @property
    def zoneout_rates(self) -> tuple[float, ...]:
        """One for each state, in the order of a carry.

        Raises:
          ValueError: there are more or fewer.
        """
        count = len(self.kind.carry)
        if not isinstance(self.zoneout_rate, tuple):
            return (self.zoneout_rate,) * count
        check(
            len(self.zoneout_rate) == count,
            f"{self.name}: zoneout_rate must be a number, or {count} of them, one for "
            f"each array of the carry, got {len(self.zoneout_rate)} values.",
        )
        return self.zoneout_rate

    @property
    def noise(self) -> Noise:
        """What is dropped; it is true if anything is."""
        stay = self.carries.in_state_order(self.zoneout_rates)
        return Noise(recurrent_dropout=self.recurrent_dropout_rate, zoneout=stay)

    # ---- parameters ------------------------------------------------------------------

    @property
    def output(self) -> int:
        """Values of h, of all heads."""
        return self.features if self.proj_size is None else self.proj_size

    @property
    def width(self) -> int:
        """Hidden units of a head, or all."""
        return self.features // (self.heads or 1)

    @property
    def output_width(self) -> int:
        """Values of h of a head, or all: rows of w_hh."""
        return self.output // (self.heads or 1)

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading axes of the parameters: directions, heads."""
        directions = (2,) if self.bidirectional else ()
        return directions if self.heads is None else (*directions, self.heads)

    def draw(
        self,
        init: Initializer,
        key: Array,
        rows: tuple[int, ...],
        gates: int,
        width: int | None = None,
    ) -> Any:
        """A parameter `[*lead, *rows, gates*width]`, each gate drawn by itself.

        In a box with the names of its axes, if the initializer gives such.
        """
        from prnn_jax._layers.flax import boxes  # needs Flax, whose absence others name

        width = self.width if width is None else width
        keys = jax.random.split(key, math.prod(self.lead) * gates)
        boxed = [init(key, (*rows, width), self.param_dtype) for key in keys]
        drawn = list(map(boxes.opened, boxed))
        groups = [
            jnp.concatenate(drawn[first : first + gates], -1)
            for first in range(0, len(drawn), gates)
        ]
        whole = jnp.stack(groups).reshape(*self.lead, *rows, gates * width)
        return boxes.closed(boxed[0], whole, len(self.lead))

    def draw_w_hr(self, init: Initializer, key: Array) -> Any:
        """`[*lead, width, output_width]`."""
        return self.draw(init, key, (self.width,), 1, self.output_width)

    def typed(self, params: Params) -> Params:
        """The same by the type that says what `lead` is."""
        heads = self.heads is not None
        return typed(params, bidirectional=self.bidirectional, heads=heads)

    # ---- carries ---------------------------------------------------------------------

    @property
    def carries(self) -> Form:
        """What they look like."""
        return Form(self.kind.carry, self.bidirectional, self.kind.cell.state_names)

    def initial_carry(
        self, input_shape: tuple[int, ...], key: Callable[[], Array] | None = None
    ) -> Carry:
        """A carry in param_dtype, of zeros or as carry_init draws it.

        Args:
          input_shape: of one time step, `[*batch, in_features]`.
          key: makes one key after the other, for carry_init.
        """
        batch = one_step(self.name, input_shape)[:-1]
        shapes, init = self._shapes(batch), self.carry_init
        if init is None or key is None:
            return self.carries.make(lambda s: jnp.zeros(shapes[s], self.param_dtype))
        return self.carries.make(lambda s: init(key(), shapes[s], self.param_dtype))

    def carry_of(self, state: Any) -> Carry:
        """The inverse of `state_of`."""
        return self.carries.from_state(state)

    def state_of(self, name: str, carry: Carry, batch: tuple[int, ...], dtype) -> Any:
        """A carry as the function takes it; messages begin with the name."""
        axes = dict.fromkeys(self.kind.carry, f"[*batch, {self.features_name}]")
        if self.proj_size is not None:
            axes["h"] = "[*batch, proj_size]"
        return self.carries.to_state(name, carry, self._shapes(batch), axes, dtype)

    def _shapes(self, batch: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Of a carry's arrays, by name."""
        shapes = dict.fromkeys(self.kind.carry, (*batch, self.features))
        return shapes | {"h": (*batch, self.output)}

    # ---- a call ----------------------------------------------------------------------

    def batch(self, inputs: Any, in_features: int | None = None) -> tuple[int, ...]:
        """Sizes of the batch axes of inputs.

        Raises:
          ValueError: inputs have too few axes or not as many features.
        """
        of = self.name, inputs, in_features
        return batch_of(*of, time_major=self.time_major)

    def run(
        self,
        inputs: ArrayLike,
        params: Params,
        *,
        initial_carry: Carry | None,
        seq_lengths: Lengths | None,
        mask: ArrayLike | None,
        resets: Resets | None,
        reset_carry: Carry | None,
        key: Array | None,
    ) -> Any:
        """y, or (carry, y) with return_carry, of inputs with as many features as fit.

        Args:
          inputs: as for the layers, and so the next six.
          params: see there.
          initial_carry: see there.
          seq_lengths: see there.
          mask: see there.
          resets: see there.
          reset_carry: see there.
          key: for dropout and zoneout; None where a call is deterministic.

        Raises:
          ValueError: shapes, dtypes or options do not fit; says what was expected.
        """
        batch = self.batch(inputs)
        arrays = promoted((inputs, *params), self.dtype)
        x, params = arrays[0], self.typed(Params(*arrays[1:]))
        check_seq_lengths(self.name, seq_lengths, x, time_major=self.time_major)
        check(
            reset_carry is None or resets is not None,
            f"{self.name}: reset_carry is given without resets; give resets, or leave "
            "it out.",
        )

        def state_of(name: str, carry: Carry | None) -> Any:
            if carry is None:
                return None
            return self.state_of(f"{self.name}: {name}", carry, batch, x.dtype)

        call = Call(
            self.kind.cell.name,
            time_major=self.time_major,
            bidirectional=self.bidirectional,
        )
        noise = self.noise.controls(key, 0, call, x, self.output)
        y, state = self.kind.function(
            x,
            params,
            state_of("initial_carry", initial_carry),
            lengths=seq_lengths,
            mask=mask,
            resets=resets,
            reset_to=state_of("reset_carry", reset_carry),
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            merge=self.merge,
            time_major=self.time_major,
            reserve=self.reserve,
            precision=self.precision,
            implementation=self.implementation,
            **{name: value for name, value in noise.items() if value is not None},
            **self.cell_options,
        )
        if self.reverse and not self.keep_order:
            y = in_order_of_processing(y, seq_lengths, time_major=self.time_major)
        return (self.carry_of(state), y) if self.return_carry else y

    # ---- in a stack ------------------------------------------------------------------

    def resized(self, input_size: int) -> Self:
        """The same layer for an input of another width, which it need not know."""
        del input_size
        return self

    @property
    def named(self) -> AnyCell:
        """The cell as `prnn_jax.stack` takes it."""
        return self.kind.named

    def for_stack(self) -> dict[str, Any]:
        """Arguments of `prnn_jax.stack` that each layer has."""
        names = "bidirectional", "merge", "time_major", "reserve", "precision"
        same = {name: getattr(self, name) for name in (*names, "implementation")}
        return same | dict(self.cell_options)
