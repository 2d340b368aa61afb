"""The cells without a product in a step: one table, for stacks, layers and `init`."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._cells.activations import GivenActivation, applied
from prnn_jax._engine.linear_plan import LinearCellName
from prnn_jax._given import checks, statics
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax._linear import initial
from prnn_jax._linear.functions import indrnn, min_gru, min_lstm
from prnn_jax._linear.initial import Begins, Sized
from prnn_jax._linear.lru import lru
from prnn_jax._linear.qrnn import Pooling, qrnn
from prnn_jax._linear.rg_lru import rg_lru
from prnn_jax._linear.sru import sru

Initializer = jax.nn.initializers.Initializer


class FunctionOptions(TypedDict, total=False):
    """Arguments of the functions that not all of them have, but activation."""

    pooling: Pooling
    skip_scale: float
    c: float
    scale_first: bool


class InitOptions(TypedDict, total=False):
    """Options by which parameters begin, that not all cells have."""

    pooling: Pooling
    width: int
    highway_bias: float
    c: float
    steps: int | None
    state_size: int | None
    r_min: float
    r_max: float
    max_phase: float


class OwnOptions(InitOptions, total=False):
    """Arguments of layers that not all of them have."""

    activation: GivenActivation
    peepholes: bool
    zoneout_rate: float
    heads: int | None
    scale_first: bool


@dataclass(frozen=True, eq=False)
class LinearCell:
    """What a layer must know of its cell.

    Attributes:
      function: the function of `prnn_jax` that runs it.
      state: what that calls the initial state.
      gates: by the options, columns of the first parameter for each unit.
      begins: of a layer, its parameters by name.
      own: the layer's options that not all layers have, and their defaults.
      names: of all parameters that there may be; what multiplies the input is first.
      axes: of that one, of one direction; by the options.
      unheaded: if there may be heads, and its units are the input's: one that has no
        axis of heads, by which these are told.
      output: that of which y is as wide as its last axis, if y is not as wide as h.
      takes: the function's arguments that not all functions have.
      arguments: of a layer, these.
      state_shapes: of a layer, shapes of the states without batch axes.
      float32_params: what the steps' factors are made of: given in float32, they may
        stay so beside 16 bits, and Flax' and Keras' layers leave them so.
      in_params: whether the function takes its parameters as `Params`.
      has_zoneout: whether it has.
    """

    function: Callable[..., Any]
    state: str
    gates: Callable[[Mapping[str, Any]], int]
    begins: Callable[[Sized], dict[str, Begins]]
    own: Mapping[str, Any]
    names: tuple[str, ...] = ("w_ih", "b_ih")
    axes: Callable[[Mapping[str, Any]], int] = lambda own: 2
    unheaded: str = ""
    output: str = ""
    takes: tuple[str, ...] = ("activation",)
    arguments: Callable[[Sized], dict[str, Any]] = lambda s: {
        "activation": s.own["activation"]
    }
    state_shapes: Callable[[Sized], tuple[tuple[int, ...], ...]] = lambda s: (
        (s.hidden_size,),
    )
    float32_params: tuple[str, ...] = ()
    in_params: bool = False
    has_zoneout: bool = False

    # As noise knows a cell of `_cells.table`.
    states: ClassVar[int] = 1
    has_product: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Of the function."""
        return self.function.__name__

    @property
    def described(self) -> str:
        """What messages call it."""
        return self.name

    def bind(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by name as arguments of the function."""
        arrays = {name: arrays.get(name) for name in self.names}
        return {"params": Params(**arrays)} if self.in_params else arrays

    def arrays(self, op: str, params: Any) -> dict[str, Any]:
        """The inverse of `bind`: parameters by name, None where there is none.

        Raises:
          ValueError: they are no arguments of the function; in the words of `op`.
        """
        if self.in_params:
            inner = params.get("params") if isinstance(params, Mapping) else params
            if isinstance(inner, Params):
                both = [b for b in (inner.b_ih, inner.b_hh) if b is not None]
                params = {"w_ih": inner.w_ih, "w_hh": inner.w_hh}
                params["b_ih"] = sum(both[1:], start=both[0]) if both else None
        names, came = ", ".join(self.names), type(params).__name__
        check(
            isinstance(params, Mapping) and set(params) <= set(self.names),
            f"{op}: params must be arguments of prnn_jax.{self.name} by name, of "
            f"{names}, such as prnn_jax.init gives, got "
            f"{', '.join(params) if isinstance(params, Mapping) else came}.",
        )
        for name in filter(None, (self.names[0], self.unheaded)):
            given = params.get(name)
            check(
                hasattr(given, "shape"),
                f"{op}: {name} must be an array, got {type(given).__name__}.",
            )
        return {name: params.get(name) for name in self.names}

    def input_size(self, arrays: Mapping[str, Any]) -> int:
        """How wide the input is, by the parameters."""
        shape = jnp.shape(arrays[self.names[0]])
        if not self.unheaded:
            return shape[-2]
        lead = max(jnp.ndim(arrays[self.unheaded]) - 1, 0)
        return math.prod(shape[lead:-1])  # heads, and units of each

    @staticmethod
    def role(name: str) -> str:
        """Of a parameter: "kernel" multiplies the input, "bias", or its own: ""."""
        if name in ("w_ih", "w_gates", "w_skip"):
            return "kernel"
        return "bias" if name.startswith("b_") else ""

    def draws(
        self,
        layer: Sized,
        dtype: Any,
        *,
        use_bias: bool,
        bidirectional: bool,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> dict[str, Callable[[Array], Array]]:
        """For each parameter, what draws it from a key.

        Args:
          layer: its sizes and own options.
          dtype: of the parameters; in 16 bits the `float32_params` are float32.
          use_bias: whether there are biases.
          bidirectional: whether there are two directions, drawn apart.
          kernel_init: in place of the cell's own, of what multiplies x.
          bias_init: in place of the cell's own.
        """
        out = {}
        for name, (init, shape) in self.begins(layer).items():
            role = self.role(name)
            if role == "bias" and not use_bias:
                continue
            given = {"kernel": kernel_init, "bias": bias_init}.get(role)
            if role == "kernel" and given and layer.own.get("heads") is not None:
                given = initial.of_each_head(given)
            is_wide = name in self.float32_params
            of_array = checks.float32_at_least(dtype) if is_wide else dtype
            draw = functools.partial(_drawn, given or init, shape, of_array)
            out[name] = functools.partial(_of_both, draw) if bidirectional else draw
        return out


def _drawn(init: Any, shape: tuple[int, ...], dtype: Any, key: Array) -> Array:
    return init(key, shape, dtype)


def _of_both(draw: Callable, key: Array) -> Array:
    return jnp.stack([draw(one) for one in jax.random.split(key)])


def check_own(op: str, layer: Sized, sizes: tuple[str, str]) -> None:
    """A layer's own options must be such; `sizes`: what messages call the two.

    Raises:
      ValueError: one is not; in the words of `op`.
    """
    own = layer.own
    if "activation" in own:
        applied(op, "activation", own["activation"])
    if "c" in own:
        check(
            layer.input_size == layer.hidden_size,
            f"{op}: {sizes[1]} must be {sizes[0]} = {layer.input_size}, for its units "
            f"are the input's, got {layer.hidden_size}.",
        )
        statics.number(op, "c", own["c"])
    if own.get("heads") is not None:
        heads = statics.size(op, "heads", own["heads"])
        check(
            layer.hidden_size % heads == 0,
            f"{op}: heads must divide {sizes[1]}={layer.hidden_size}, got {heads}.",
        )
    if "scale_first" in own:
        statics.flag(op, "scale_first", own["scale_first"])
    if "pooling" in own:
        checks.one_of(op, "pooling", own["pooling"], get_args(Pooling))
        statics.size(op, "width", own["width"])
        rate = statics.number(op, "zoneout_rate", own["zoneout_rate"])
        check(
            0 <= rate <= 1,
            f"{op}: zoneout_rate must be of numbers from 0 to 1, got {rate!r}.",
        )
    if "highway_bias" in own:
        statics.number(op, "highway_bias", own["highway_bias"])
    for name in ("steps", "state_size"):
        if own.get(name) is not None:
            statics.size(op, name, own[name])
    if "max_phase" in own:
        least, most, phase = (
            statics.number(op, name, own[name])
            for name in ("r_min", "r_max", "max_phase")
        )
        check(
            0 <= least < most <= 1 and phase > 0,
            f"{op}: r_min, r_max and max_phase must be 0 <= r_min < r_max <= 1 and "
            f"above 0, got {least!r}, {most!r} and {phase!r}.",
        )


def _arguments_of_sru(s: Sized) -> dict[str, Any]:
    """The highway's scale keeps the variance of x, as in the paper."""
    scale = math.sqrt(1 + 2 * math.exp(s.own["highway_bias"]))
    return {"activation": s.own["activation"], "skip_scale": scale}


CELLS: dict[LinearCellName, LinearCell] = {
    "min_gru": LinearCell(
        min_gru, "h_0", **initial.gated(2), own={"activation": "linear"}
    ),
    "min_lstm": LinearCell(
        min_lstm, "h_0", **initial.gated(3), own={"activation": "linear"}
    ),
    "sru": LinearCell(
        sru,
        "c_0",
        lambda own: 3,
        initial.of_sru,
        {"activation": "linear", "peepholes": False, "highway_bias": 0.0},
        names=("w_ih", "b_ih", "peepholes", "w_skip"),
        takes=("activation", "skip_scale"),
        arguments=_arguments_of_sru,
    ),
    "qrnn": LinearCell(
        qrnn,
        "state_0",
        initial.gates_of_qrnn,
        initial.of_qrnn,
        {"activation": "tanh", "width": 2, "pooling": "fo", "zoneout_rate": 0.0},
        axes=lambda own: 3,
        takes=("activation", "pooling"),
        arguments=lambda s: {k: s.own[k] for k in ("activation", "pooling")},
        state_shapes=lambda s: (
            (s.hidden_size,),
            (s.own["width"] - 1, s.input_size),
        ),
        has_zoneout=True,
    ),
    "rg_lru": LinearCell(
        rg_lru,
        "h_0",
        lambda own: 2,
        initial.of_rg_lru,
        {"c": 8.0, "heads": None, "scale_first": True},
        names=("w_gates", "b_gates", "decay"),
        float32_params=("decay",),
        axes=lambda own: 2 if own["heads"] is None else 3,
        unheaded="decay",
        takes=("c", "scale_first"),
        arguments=lambda s: {k: s.own[k] for k in ("c", "scale_first")},
    ),
    "lru": LinearCell(
        lru,
        "h_0",
        lambda own: 2,
        initial.of_lru,
        {"state_size": None, "r_min": 0.0, "r_max": 1.0, "max_phase": 2 * math.pi},
        names=("w_ih", "w_out", "nu_log", "theta_log", "gamma_log", "skip"),
        float32_params=("nu_log", "theta_log", "gamma_log"),
        output="w_out",
        takes=(),
        arguments=lambda s: {},
        state_shapes=lambda s: ((2 * initial.states_of_lru(s),),),
    ),
    "indrnn": LinearCell(
        indrnn,
        "h_0",
        lambda own: 1,
        initial.of_indrnn,
        {"activation": "relu", "steps": None},
        names=("w_ih", "b_ih", "w_hh"),
        float32_params=("w_hh",),
        in_params=True,
    ),
}
