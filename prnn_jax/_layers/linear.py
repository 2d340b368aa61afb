"""Layers without a product in a step: what all host libraries have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, get_args

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.noise import Noise
from prnn_jax._call.options import Implementation, Merge, Options, Precision
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._linear.call import LinearCall
from prnn_jax._linear.lru import gamma_log_of
from prnn_jax._linear.table import Initializer, LinearCell, check_own

#: Options of layers with a product that none of these has, and why.
_NO_PRODUCT = "it is about the product in a step, and there is none"
_NOT_HERE = {
    **dict.fromkeys(("heads", "proj_size", "reserve"), _NO_PRODUCT),
    **dict.fromkeys(("recurrent_dropout", "recurrent_dropout_rate"), _NO_PRODUCT),
    **dict.fromkeys(("recurrent_kernel_init", "recurrent_bias"), _NO_PRODUCT),
    **dict.fromkeys(("recurrent_initializer", "reset_after"), _NO_PRODUCT),
    **dict.fromkeys(("gate_activation", "recurrent_activation"), "gates are σ"),
    **dict.fromkeys(("zoneout", "zoneout_rate"), "only QRNN has a zoneout_rate"),
    "clip": "LSTM, GRU and RNN have it",
    "dropout": "a layer of dropout before this one does it",
    "carry_init": "a carry that is not zero is a call's initial_carry",
}


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
        cls, layer: Any, sizes: tuple[str, str], input_size: int, **others: Any
    ) -> Self:
        """By a layer's attributes; others that are not None come first.

        Of these, zoneout_rate and recurrent_dropout_rate are a stack's.
        """
        name, cell = type(layer).__name__, layer._cell
        given = {n: value for n, value in others.items() if value is not None}
        own = given.pop("own", None)
        own = own_of(name, cell, layer, {}) if own is None else own
        rate = given.pop("recurrent_dropout_rate", 0.0)
        check(
            not rate,
            f"{name}: recurrent_dropout_rate must be 0, got {rate!r}; {cell.name} has "
            "no product in a step.",
        )
        rate = given.pop("zoneout_rate", None)
        check(
            not rate or cell.has_zoneout,
            f"{name}: zoneout_rate must be 0, got {rate!r}; {cell.name} has no "
            "zoneout.",
        )
        if rate is not None and cell.has_zoneout:
            own = {**own, "zoneout_rate": rate}
        given |= {"name": name, "cell": cell, "own": own, "sizes": sizes}
        given |= {"input_size": input_size, "hidden_size": getattr(layer, sizes[1])}
        rest = {one.name for one in fields(cls)} - set(given)
        return cls(**given, **{option: getattr(layer, option) for option in rest})

    def __post_init__(self):
        name = self.name
        known: dict[str, Any] = {
            option: statics.size(name, called, getattr(self, option))
            for option, called in zip(
                ("input_size", "hidden_size"), self.sizes, strict=True
            )
        }
        for flag in self._flags():
            known[flag] = statics.flag(name, flag, getattr(self, flag) or False)
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
        check_own(name, self, self.sizes)

    @staticmethod
    def _flags() -> tuple[str, ...]:
        """Options that are True or False."""
        return "use_bias", "bidirectional", "reverse"

    @property
    def output(self) -> int:
        """Values of one direction's y."""
        return self.hidden_size

    @property
    def told(self) -> dict[str, Any]:
        """Options of each layer of a stack that parameters tell, or go with these."""
        own = {n: value for n, value in self.own.items() if n != "zoneout_rate"}
        return {"use_bias": self.use_bias, "bidirectional": self.bidirectional, **own}

    def resized(self, input_size: int) -> Self:
        """The same layer for an input of another width."""
        return replace(self, input_size=input_size)

    # ---- parameters ------------------------------------------------------------------

    def draws(
        self,
        dtype: Any,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> dict[str, Callable[[Array], Array]]:
        """For each parameter, what draws it from a key; see the cell's."""
        return self.cell.draws(
            self,
            dtype,
            use_bias=self.use_bias,
            bidirectional=self.bidirectional,
            kernel_init=kernel_init,
            bias_init=bias_init,
        )

    def kept(self, op: str, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """Given parameters as the layer keeps them: all, where some may be left out.

        Raises:
          ValueError: there is one too many or too few, or it has another shape; in the
            words of `op`.
        """
        out = {}
        lead = (2,) * self.bidirectional
        begins = self.cell.begins(self)
        for name, array in arrays.items():
            shape = (*lead, *begins[name][1]) if name in begins else None
            is_bias = self.cell.role(name) == "bias"
            if shape is None or (is_bias and not self.use_bias):
                check(
                    array is None,
                    f"{op}: {name} must be None for a layer without, got an array.",
                )
                continue
            if array is None and (is_bias or name in ("peepholes", "skip")):
                array = jnp.zeros(shape, arrays[self.cell.names[0]].dtype)
            if array is None and name == "gamma_log":
                array = gamma_log_of(arrays["nu_log"])
            came = None if array is None else list(jnp.shape(array))
            check(
                came == list(shape),
                f"{op}: {name} must be {list(shape)}, got {came}.",
            )
            out[name] = array
        return out

    # ---- states ----------------------------------------------------------------------

    def zeros(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """A state of zeros, as the function takes it."""
        lead = (2,) * self.bidirectional
        shapes = self.cell.state_shapes(self)
        states = [jnp.zeros((*lead, *batch, *shape), dtype) for shape in shapes]
        return tuple(states) if len(states) > 1 else states[0]

    # ---- a call ----------------------------------------------------------------------

    @property
    def noise(self) -> Noise:
        """What is dropped in training; it is true if anything is."""
        return Noise(zoneout=(self.own.get("zoneout_rate", 0.0),))

    @property
    def named(self) -> LinearCellName:
        """The cell as `prnn_jax.stack` takes it."""
        name: Any = self.cell.name
        return name

    def for_stack(self) -> dict[str, Any]:
        """Arguments of `prnn_jax.stack` that each layer has."""
        names = "bidirectional", "merge", "precision", "implementation"
        same = {name: getattr(self, name) for name in names}
        return same | self.cell.arguments(self)

    def run(
        self,
        x: Array,
        arrays: Mapping[str, Any],
        key: Any,
        *,
        time_major: bool,
        **options: Any,
    ) -> tuple[Array, Any]:
        """y and the last state.

        Args:
          x: the input.
          arrays: the parameters by name; those that are None or left out are not there.
          key: for zoneout; None where a call is deterministic.
          time_major: whether time is the first axis.
          **options: of the call: state_0, lengths, mask, resets, reset_to.
        """
        call = LinearCall(
            self.named,
            tuple(self.cell.arguments(self).items()),
            time_major=time_major,
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            precision=self.precision,
            implementation=self.implementation,
        )
        noise = self.noise.controls(key, 0, call, x, self.hidden_size)
        of_call = Options(merge=self.merge, **noise, **options)
        return call.run(self.name, x, arrays, of_call)


def check_option(name: str, option: str) -> None:
    """Raises ValueError for an option that only layers with a product have."""
    why = _NOT_HERE.get(option)
    check(why is None, f"{name}: there is no option {option} here: {why}.")


def own_of(name: str, cell: LinearCell, module: Any, given: Mapping[str, Any]) -> dict:
    """A layer's own options: those given, and the class's for the others.

    Raises:
      ValueError: one is given that is none of this layer's.
    """
    for option in given:
        if option not in cell.own:
            check_option(name, option)
        check(
            option in cell.own,
            f"{name}: there is no option {option}; those that not all layers have are "
            f"here {', '.join(cell.own)}.",
        )
    own = {
        option: given.get(option, getattr(module, option, None)) for option in cell.own
    }
    if "peepholes" in own:  # the option, or what it has made
        seen = own["peepholes"]
        own["peepholes"] = seen if isinstance(seen, bool) else seen is not None
    return {option: statics.hashable(value) for option, value in own.items()}


# ---- parameters that are given -------------------------------------------------------


class Given(NamedTuple):
    """Parameters of a layer, and what they tell of it.

    Attributes:
      arrays: by name.
      input_size: of x.
      hidden_size: of y.
      options: of the layer that the parameters tell.
      dtype: of the parameters, but those that may be float32 beside it.
    """

    arrays: dict[str, Any]
    input_size: int
    hidden_size: int
    options: dict[str, Any]
    dtype: Any

    @classmethod
    def of(cls, op: str, cell: LinearCell, params: Any, options: Mapping) -> Self:
        """Of arguments of the cell's function; `options` are those of the layer.

        Raises:
          ValueError: they are none, in the words of `op`.
        """
        arrays = cell.arrays(op, params)
        name = cell.names[0]
        shape = jnp.shape(arrays[name])
        own = {k: options.get(k, usual) for k, usual in cell.own.items()}
        told: dict[str, Any] = {"use_bias": _has_bias(arrays)}
        if "heads" in own:
            # A first axis of 2 may be of heads; Λ has none of these.
            both = jnp.ndim(arrays[cell.unheaded]) > 1
            heads = shape[both] if len(shape) > 2 + both else None
            told["heads"] = own["heads"] = heads
        axes = cell.axes(own)
        both = len(shape) == axes + 1 and shape[0] == 2
        told["bidirectional"] = both
        if "pooling" in own:
            checks.one_of(op, "pooling", own["pooling"], ("f", "fo", "ifo"))
        gates = cell.gates(own)
        of_one = shape[both:]
        check(
            len(of_one) == axes and of_one[-1] > 0 and of_one[-1] % gates == 0,
            f"{op}: {name} must have {axes} axes, the last of {gates}*hidden, and "
            f"before these one of 2 if bidirectional, got {list(shape)}.",
        )
        if "peepholes" in own:
            told["peepholes"] = arrays["peepholes"] is not None
        if "width" in own:
            told["width"] = of_one[0]
        hidden, takes = of_one[-1] // gates, cell.input_size(arrays)
        if "state_size" in own:
            told["state_size"] = hidden
        if cell.output:
            hidden = (jnp.shape(arrays[cell.output]) or (0,))[-1]
        if cell.unheaded:
            hidden = takes
        of_dtype = [
            array
            for name, array in arrays.items()
            if array is not None and name not in cell.float32_params
        ]
        return cls(arrays, takes, hidden, told, jnp.result_type(*of_dtype))


def alike(op: str, cell: LinearCell, layers: Sequence[Any]) -> dict[str, Any]:
    """Options that all layers of a stack have, as far as parameters tell."""
    each = [cell.arrays(f"{op}, layer {n}", given) for n, given in enumerate(layers)]
    out = {"use_bias": any(map(_has_bias, each))}
    if "peepholes" in cell.own:
        out["peepholes"] = any(arrays["peepholes"] is not None for arrays in each)
    return out


def _has_bias(arrays: Mapping[str, Any]) -> bool:
    return any(a is not None for name, a in arrays.items() if name.startswith("b_"))
