"""Layers without a product in a step: what all host libraries have in common."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._call.options import Implementation, Merge, Precision
from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._linear.qrnn import Pooling

Initializer = jax.nn.initializers.Initializer
#: Options of every layer, by one name in all libraries.
_COMMON = "use_bias", "bidirectional", "merge", "precision", "implementation"
#: Of a parameter: how it begins, and its shape.
Begins = tuple[Callable[..., Array], tuple[int, ...]]


class OwnOptions(TypedDict, total=False):
    """Arguments of layers that not all of them have."""

    activation: GivenActivation
    steps: int | None
    peepholes: bool
    highway_bias: float
    width: int
    pooling: Pooling
    zoneout_rate: float
    c: float


@dataclass(frozen=True)
class LinearCell:
    """What a layer must know of its cell.

    Attributes:
      function: the function of `prnn_jax` that runs it.
      state: what that calls the initial state.
      begins: of a layer, its parameters by name.
      own: names of the layer's options that not all layers have.
      names: of all parameters that there may be.
      arguments: of a layer, arguments of the function that not all functions have.
      states: of a layer, shapes of the states without batch axes.
      bind: parameters by name as arguments of the function.
    """

    function: Callable[..., Any]
    state: str
    begins: Callable[["Spec"], dict[str, Begins]]
    own: tuple[str, ...]
    names: tuple[str, ...] = ("w_ih", "b_ih")
    arguments: Callable[["Spec"], dict[str, Any]] = lambda s: {
        "activation": s.own["activation"]
    }
    states: Callable[["Spec"], tuple[tuple[int, ...], ...]] = lambda s: (
        (s.hidden_size,),
    )
    bind: Callable[..., dict[str, Any]] = lambda **arrays: arrays


@dataclass(frozen=True)
class Spec:
    """A layer in any library: its cell, sizes and options.

    Attributes:
      name: of the layer, for messages.
      cell: its row of the table.
      sizes: what the library calls the two sizes.
      own: options that not all layers have.

    The others are described at `prnn_jax.nnx.MinGRU`. What does not fit is a ValueError
    when they are made.
    """

    name: str
    cell: LinearCell
    sizes: tuple[str, str]
    input_size: int
    hidden_size: int
    use_bias: bool
    bidirectional: bool
    merge: Merge
    reverse: bool
    precision: Precision
    implementation: Implementation | None
    own: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        layer: Any,
        cell: LinearCell,
        sizes: tuple[str, str],
        input_size: int,
        *,
        own: Mapping[str, Any] | None = None,
        reverse: bool | None = None,
    ) -> "Spec":
        """A layer's, by its attributes; own and reverse are as there if not given."""
        name = type(layer).__name__
        options = {option: getattr(layer, option) for option in _COMMON}
        options["reverse"] = layer.reverse if reverse is None else reverse
        options["own"] = own_of(name, cell, layer, {}) if own is None else own
        of_state = getattr(layer, sizes[1])
        return cls(name, cell, sizes, input_size, of_state, **options)

    def __post_init__(self):
        name, own = self.name, self.own
        known: dict[str, Any] = {
            option: statics.size(name, called, getattr(self, option))
            for option, called in zip(
                ("input_size", "hidden_size"), self.sizes, strict=True
            )
        }
        for flag in ("use_bias", "bidirectional", "reverse"):
            known[flag] = statics.flag(name, flag, getattr(self, flag))
        for option, value in known.items():
            object.__setattr__(self, option, value)
        statics.precision(name, self.precision)
        checks.one_of(name, "merge", self.merge, get_args(Merge))
        implementations = (None, *get_args(Implementation))
        checks.one_of(name, "implementation", self.implementation, implementations)
        check(
            not (self.reverse and self.bidirectional),
            f"{name}: reverse must be False in a bidirectional layer, which runs both "
            "ways, got True.",
        )
        if "activation" in own:
            applied(name, "activation", own["activation"])
        if "c" in own:
            check(
                self.input_size == self.hidden_size,
                f"{name}: {self.sizes[1]} must be {self.sizes[0]} = "
                f"{self.input_size}, for its units are the input's, got "
                f"{self.hidden_size}.",
            )
            statics.number(name, "c", own["c"])
        if "pooling" in own:
            checks.one_of(name, "pooling", own["pooling"], get_args(Pooling))
            statics.size(name, "width", own["width"])
            rate = statics.number(name, "zoneout_rate", own["zoneout_rate"])
            check(
                0 <= rate <= 1,
                f"{name}: zoneout_rate must be of numbers from 0 to 1, got {rate!r}.",
            )
        if "highway_bias" in own:
            statics.number(name, "highway_bias", own["highway_bias"])
        if own.get("steps") is not None:
            statics.size(name, "steps", own["steps"])

    # ---- parameters ------------------------------------------------------------------

    def draws(
        self,
        dtype: Any,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> dict[str, Callable[[Array], Array]]:
        """For each parameter, what draws it from a key.

        Args:
          dtype: of the parameters.
          kernel_init: in place of the cell's own, of what multiplies x.
          bias_init: in place of the cell's own.
        """
        out = {}
        for name, (init, shape) in self.cell.begins(self).items():
            is_bias = name.startswith("b_")
            if is_bias and not self.use_bias:
                continue
            is_kernel = name in ("w_ih", "w_gates", "w_skip")
            given = bias_init if is_bias else kernel_init if is_kernel else None
            out[name] = functools.partial(self._draw, given or init, shape, dtype)
        return out

    def _draw(self, init: Any, shape: tuple[int, ...], dtype: Any, key: Array) -> Array:
        if not self.bidirectional:
            return init(key, shape, dtype)
        return jnp.stack([init(one, shape, dtype) for one in jax.random.split(key)])

    # ---- states ----------------------------------------------------------------------

    def zeros(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """A state of zeros, as the function takes it."""
        lead = (2,) * self.bidirectional
        shapes = self.cell.states(self)
        states = [jnp.zeros((*lead, *batch, *shape), dtype) for shape in shapes]
        return tuple(states) if len(states) > 1 else states[0]

    def as_carry(self, state: Any) -> Any:
        """A state as Flax has it: of two directions a pair."""
        if not self.bidirectional:
            return state
        return tuple(jax.tree.map(lambda s, n=n: s[n], state) for n in range(2))

    def as_state(
        self, name: str, carry: Any, batch: tuple[int, ...], dtype: Any
    ) -> Any:
        """The inverse of `as_carry`, checked; None stays."""
        if carry is None:
            return None
        wanted = jax.eval_shape(lambda: self.as_carry(self.zeros(batch, dtype)))
        shapes = [
            jax.tree.map(lambda x: list(jnp.shape(x)), c) for c in (wanted, carry)
        ]
        check(
            jax.tree.structure(wanted) == jax.tree.structure(carry)
            and shapes[0] == shapes[1],
            f"{self.name}: {name} must have the shapes {shapes[0]}, got {shapes[1]}.",
        )
        carry = jax.tree.map(lambda x: jnp.asarray(x, dtype), carry)
        if not self.bidirectional:
            return carry
        return jax.tree.map(lambda *ways: jnp.stack(ways), *carry)

    # ---- a call ----------------------------------------------------------------------

    @property
    def has_noise(self) -> bool:
        """Whether something is dropped in training."""
        return bool(self.own.get("zoneout_rate"))

    def run(
        self, x: Array, arrays: Mapping[str, Any], state: Any, key: Any, **options: Any
    ) -> tuple[Array, Any]:
        """y and the last state.

        Args:
          x: the input.
          arrays: the parameters by name; those that are None or left out are not there.
          state: before the first step, or None.
          key: for zoneout; None where a call is deterministic.
          **options: of the call: lengths, mask, resets, reset_to, time_major.
        """
        arrays = {name: arrays.get(name) for name in self.cell.names}
        zoneout = {}
        if self.has_noise:
            rate = self.own["zoneout_rate"]
            shape = (*x.shape[:-1], self.hidden_size * (1 + self.bidirectional))
            if key is not None:
                rate = jax.random.bernoulli(key, rate, shape).astype(x.dtype)
            zoneout = {"zoneout": rate}
        return self.cell.function(
            x,
            **self.cell.bind(**arrays),
            **{self.cell.state: state},
            **self.cell.arguments(self),
            **zoneout,
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            merge=self.merge,
            precision=self.precision,
            implementation=self.implementation,
            **options,
        )


def own_of(name: str, cell: LinearCell, module: Any, given: Mapping[str, Any]) -> dict:
    """A layer's own options: those given, and the class's for the others.

    Raises:
      ValueError: one is given that is none of this layer's.
    """
    unknown = [option for option in given if option not in cell.own]
    check(
        not unknown,
        f"{name}: there is no option {', '.join(unknown)}; those that not all layers "
        f"have are here {', '.join(cell.own)}.",
    )
    own = {
        option: given.get(option, getattr(module, option, None)) for option in cell.own
    }
    if "peepholes" in own:  # the option, or what it has made
        seen = own["peepholes"]
        own["peepholes"] = seen if isinstance(seen, bool) else seen is not None
    return {option: statics.hashable(value) for option, value in own.items()}
