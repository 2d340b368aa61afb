"""Layers without a product in a step: one table of cells for all host libraries."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax import _checks, _options
from prnn_jax._activations import GivenActivation, applied
from prnn_jax._checks import check
from prnn_jax._linear import indrnn, min_gru, min_lstm, rg_lru
from prnn_jax._params import Params
from prnn_jax._qrnn import Pooling, qrnn
from prnn_jax._run import Implementation, Merge, Precision
from prnn_jax._sru import sru

Initializer = jax.nn.initializers.Initializer
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

    def __post_init__(self):
        name, own = self.name, self.own
        known: dict[str, Any] = {
            option: _options.size(name, called, getattr(self, option))
            for option, called in zip(
                ("input_size", "hidden_size"), self.sizes, strict=True
            )
        }
        for flag in ("use_bias", "bidirectional", "reverse"):
            known[flag] = _options.flag(name, flag, getattr(self, flag))
        for option, value in known.items():
            object.__setattr__(self, option, value)
        _options.precision(name, self.precision)
        _checks.one_of(name, "merge", self.merge, get_args(Merge))
        implementations = (None, *get_args(Implementation))
        _checks.one_of(name, "implementation", self.implementation, implementations)
        check(
            not (self.reverse and self.bidirectional),
            f"{name}: reverse must be False in a bidirectional layer, which runs both "
            "ways, got True.",
        )
        if "activation" in own:
            applied(name, "activation", own["activation"])
        if self.cell is CELLS["rg_lru"]:
            check(
                self.input_size == self.hidden_size,
                f"{name}: {self.sizes[1]} must be {self.sizes[0]} = "
                f"{self.input_size}, for its units are the input's, got "
                f"{self.hidden_size}.",
            )
            _options.number(name, "c", own["c"])
        if "pooling" in own:
            _checks.one_of(name, "pooling", own["pooling"], get_args(Pooling))
            _options.size(name, "width", own["width"])
            rate = _options.number(name, "zoneout_rate", own["zoneout_rate"])
            check(
                0 <= rate <= 1,
                f"{name}: zoneout_rate must be of numbers from 0 to 1, got {rate!r}.",
            )
        if "highway_bias" in own:
            _options.number(name, "highway_bias", own["highway_bias"])
        if own.get("steps") is not None:
            _options.size(name, "steps", own["steps"])

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
    return {option: _options.static(value) for option, value in own.items()}


# ---- the table -----------------------------------------------------------------------

_normal, _uniform = (
    jax.nn.initializers.lecun_normal(),
    jax.nn.initializers.lecun_uniform(),
)
_zeros = jax.nn.initializers.zeros


def _gates(count: int) -> Callable[[Spec], dict[str, Begins]]:
    def begins(s: Spec) -> dict[str, Begins]:
        columns = count * s.hidden_size
        return {
            "w_ih": (_normal, (s.input_size, columns)),
            "b_ih": (_zeros, (columns,)),
        }

    return begins


def _of_sru(s: Spec) -> dict[str, Begins]:
    """Weights uniform with the variance 1/input, as the paper has them."""
    hidden = s.hidden_size

    def biases(_, shape: tuple[int, ...], dtype: Any) -> Array:
        of_r = jnp.full(hidden, s.own["highway_bias"], dtype)
        return jnp.concatenate([jnp.zeros(hidden, dtype), of_r]).reshape(shape)

    out: dict[str, Begins] = {
        "w_ih": (_uniform, (s.input_size, 3 * hidden)),
        "b_ih": (biases, (2 * hidden,)),
    }
    if s.own["peepholes"]:
        out["peepholes"] = _zeros, (2 * hidden,)
    if s.input_size != hidden:
        out["w_skip"] = _uniform, (s.input_size, hidden)
    return out


def _arguments_of_sru(s: Spec) -> dict[str, Any]:
    """The highway's scale keeps the variance of x, as in the paper."""
    scale = math.sqrt(1 + 2 * math.exp(s.own["highway_bias"]))
    return {"activation": s.own["activation"], "skip_scale": scale}


def _of_qrnn(s: Spec) -> dict[str, Begins]:
    columns = (1 + len(s.own["pooling"])) * s.hidden_size
    shape = s.own["width"], s.input_size, columns
    return {"w_ih": (_normal, shape), "b_ih": (_zeros, (columns,))}


def _of_rg_lru(s: Spec) -> dict[str, Begins]:
    hidden = s.hidden_size

    def decay(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """σ(Λ)^c uniform from 0.9 to 0.999, as the paper has it."""
        kept = jax.random.uniform(key, shape, minval=0.9, maxval=0.999)
        log_a = jnp.log(kept) / s.own["c"]
        return (log_a - jnp.log(-jnp.expm1(log_a))).astype(dtype)

    return {
        "w_gates": (_normal, (hidden, 2 * hidden)),
        "b_gates": (_zeros, (2 * hidden,)),
        "decay": (decay, (hidden,)),
    }


def _of_indrnn(s: Spec) -> dict[str, Begins]:
    most = 1.0 if s.own["steps"] is None else 2.0 ** (1 / s.own["steps"])

    def own(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return jax.random.uniform(key, shape, maxval=most).astype(dtype)

    return {**_gates(1)(s), "w_hh": (own, (s.hidden_size,))}


def _bind_params(w_ih: Any, b_ih: Any, w_hh: Any) -> dict[str, Any]:
    return {"params": Params(w_ih, w_hh, b_ih)}


CELLS = {
    "min_gru": LinearCell(min_gru, "h_0", _gates(2), ("activation",)),
    "min_lstm": LinearCell(min_lstm, "h_0", _gates(3), ("activation",)),
    "sru": LinearCell(
        sru,
        "c_0",
        _of_sru,
        ("activation", "peepholes", "highway_bias"),
        ("w_ih", "b_ih", "peepholes", "w_skip"),
        _arguments_of_sru,
    ),
    "qrnn": LinearCell(
        qrnn,
        "state_0",
        _of_qrnn,
        ("activation", "width", "pooling", "zoneout_rate"),
        arguments=lambda s: {k: s.own[k] for k in ("activation", "pooling")},
        states=lambda s: ((s.hidden_size,), (s.own["width"] - 1, s.input_size)),
    ),
    "rg_lru": LinearCell(
        rg_lru,
        "h_0",
        _of_rg_lru,
        ("c",),
        ("w_gates", "b_gates", "decay"),
        lambda s: {"c": s.own["c"]},
    ),
    "indrnn": LinearCell(
        indrnn,
        "h_0",
        _of_indrnn,
        ("activation", "steps"),
        ("w_ih", "b_ih", "w_hh"),
        bind=_bind_params,
    ),
}
