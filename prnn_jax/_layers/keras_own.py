"""What the layers for Keras share whose cells Keras has not."""

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._cells.activations import Activation
from prnn_jax._engine.plan import Plan
from prnn_jax._given import statics
from prnn_jax._given.checks import check, float32_at_least, in_dtype
from prnn_jax._layers.keras import (
    ACTIVATIONS,
    check_backend,
    floats,
    keras,
    mask_of_rows,
)
from prnn_jax._layers.keywords import refuse_others_names
from prnn_jax._ops.explain import explain

_KINDS = "initializer", "regularizer", "constraint"


class Weight(NamedTuple):
    """A parameter as it begins: its shape, how, and whose initializer may say so."""

    shape: tuple[int, ...]
    begins: Any
    role: str = ""


class _Cell(keras.layers.Layer):
    """What `keras.layers.RNN` asks of a cell; the layer says what it is."""

    def __init__(self, units: int, states: int, **options: Any):
        super().__init__(**options)
        self.units, self.output_size = units, units
        self.state_size = [units] * states
        self.names: tuple[str, ...] = ()
        self.float32_weights: tuple[str, ...] = ()

    def call(self, inputs: Any, states: Any) -> Any:
        """No step is taken alone: the layer takes all of them."""
        return inputs, states

    def arrays(self, dtype: Any = None) -> dict[str, Array]:
        """The weights by name; in a dtype, but those that may be float32 beside it."""
        given = {name: jnp.asarray(getattr(self, name)) for name in self.names}
        if dtype is None:
            return given
        float32 = self.float32_weights
        return {
            name: in_dtype(array, dtype) if name in float32 else array.astype(dtype)
            for name, array in given.items()
        }


class OwnLayer(keras.layers.RNN):
    """What these layers share; a layer says its weights, states and how it runs."""

    #: What has an initializer, a regularizer and a constraint.
    roles: ClassVar[tuple[str, ...]] = ("kernel", "bias")

    def __init__(
        self,
        units: int,
        use_bias: bool = True,
        seed: int | None = None,
        **options: Any,
    ):
        check_backend()
        refuse_others_names(type(self), options)
        units = statics.size(type(self).__name__, "units", units)
        own = self.own_options()
        known = {name: options.pop(name, usual) for name, usual in own.items()}
        if "activation" in known:
            known["activation"] = _activation(known["activation"])
        given = {n: options.pop(n, None) for role in self.roles for n in _named(role)}
        self.check_options(options)
        of_cell = {n: options[n] for n in ("dtype", "trainable") if n in options}
        cell = _Cell(units, self.state_count(), name="cell", **of_cell)
        super().__init__(cell, **options)
        self.units, self.use_bias, self.seed = units, use_bias, seed
        self.input_spec = keras.layers.InputSpec(ndim=3)
        for name, value in given.items():
            kind = getattr(keras, f"{name.rpartition('_')[2]}s")
            setattr(self, name, kind.get(value))
        self.own = tuple(known.items())
        self.seed_generator = keras.random.SeedGenerator(seed)

    # ---- what a layer says -----------------------------------------------------------

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for options that Keras' layers have and these cannot."""

    def own_options(self) -> Mapping[str, Any]:
        """Options that not all layers have, and their defaults."""
        return {}

    def state_count(self) -> int:
        """How many states there are."""
        return 1

    def float32_weights(self) -> tuple[str, ...]:
        """Weights that stay float32 where the layer computes in 16 bits."""
        return ()

    def weights_of(self, input_size: int) -> dict[str, Weight]:
        """The layer's weights by name."""
        raise NotImplementedError

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        """Of the states, without the batch."""
        raise NotImplementedError

    def run(self, x: Array, arrays: dict, state: Any, key: Any, **controls: Any) -> Any:
        """y and the last state."""
        raise NotImplementedError

    @property
    def params(self) -> Any:
        """The parameters, as the function takes them."""
        raise NotImplementedError

    # ---- what Keras asks -------------------------------------------------------------

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        """Makes the weights, of sequences `[batch, time, features]`."""
        cell: Any = self.cell
        cell.float32_weights = self.float32_weights()
        input_size = sequences_shape[-1]
        shapes = self.state_shapes(input_size)
        self.state_size = cell.state_size = [_flat(shape) for shape in shapes]
        for name, weight in self.weights_of(input_size).items():
            begins = functools.partial(self._drawn, weight.begins)
            own = {}
            if weight.role:
                own = {kind: getattr(self, f"{weight.role}_{kind}") for kind in _KINDS}
                begins = own.pop("initializer") or begins
            if name in cell.float32_weights:
                wide = float32_at_least(jnp.dtype(cell.variable_dtype))
                own |= {"autocast": False, "dtype": wide.name}
            made = cell.add_weight(
                shape=weight.shape, name=name, initializer=begins, **own
            )
            setattr(cell, name, made)
            cell.names += (name,)
        cell.built = True
        super().build(sequences_shape, initial_state_shape)

    def _drawn(self, begins: Any, shape: Any, dtype: Any = None) -> Any:
        return begins(self._key(), tuple(shape), jnp.dtype(dtype or "float32"))

    def _key(self) -> Array:
        return jax.random.wrap_key_data(jnp.asarray(self.seed_generator.next()))

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[Any, Any, list[Any]]:
        """All steps, for `call`: the last output, all of them, the last states."""
        if keras.tree.is_nested(mask):
            mask = mask[0]
        x = floats(sequences, self.cell.compute_dtype)
        shapes = self.state_shapes(x.shape[-1])
        given = map(jnp.asarray, keras.tree.flatten(initial_state))
        states = [
            array.astype(x.dtype).reshape(-1, *shape)
            for array, shape in zip(given, shapes, strict=True)
        ]
        arrays = self.cell.arrays(x.dtype)
        masked_y = "zero" if self.zero_output_for_mask else "hold"
        controls = {}
        if mask is not None:
            controls = {"mask": mask_of_rows(mask, x), "masked_y": masked_y}
        key = self._key() if training and self._draws() else None
        state_0 = tuple(states) if len(states) > 1 else states[0]
        y, state = self.run(x, arrays, state_0, key, **controls)
        if self.go_backwards:  # the outputs are in the order of processing
            y = jnp.flip(y, 1)
        last = state if isinstance(state, tuple) else (state,)
        return y[:, -1], y, [s.reshape(s.shape[0], -1) for s in last]

    def _draws(self) -> bool:
        return False

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config = super().get_config()
        del config["cell"]
        config |= {"units": self.units, "use_bias": self.use_bias, "seed": self.seed}
        for name in (name for role in self.roles for name in _named(role)):
            kind, value = (
                getattr(keras, f"{name.rpartition('_')[2]}s"),
                getattr(self, name),
            )
            config[name] = None if value is None else kind.serialize(value)
        return config | dict(self.own)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer with these arguments, as `get_config` gives them."""
        return cls(**config)

    # ---- parameters ------------------------------------------------------------------

    @classmethod
    def from_params(cls, params: Any, **options: Any) -> Self:
        """A layer with these parameters, built."""
        raise NotImplementedError

    @property
    def input_size(self) -> int:
        """Features of the input, of a layer that is built."""
        return getattr(self.cell, self.cell.names[0]).shape[-2]

    def explain(self, batch: int, time: int, **options: Any) -> Plan:
        """Which engine runs a call, as `prnn_jax.explain`."""
        raise NotImplementedError

    def _with_arrays(self, input_size: int, arrays: Mapping[str, Any]) -> Self:
        """The layer, built, with these weights."""
        self.build((None, None, input_size))
        for name in self.cell.names:
            getattr(self.cell, name).assign(arrays[name])
        return self

    def _arrays(self) -> dict[str, Array]:
        check(
            self.cell.built,
            f"{self.name}: the layer must be built, by a call or build(), before it "
            "has parameters.",
        )
        return self.cell.arrays()

    def _explained(self, cell: Any, batch: int, time: int, **options: Any) -> Plan:
        sizes = {"batch": batch, "time": time, "hidden_size": self.units}
        given = {**sizes, "dtype": self.cell.compute_dtype, **options}
        return explain(cell, **given)


def _named(role: str) -> tuple[str, ...]:
    """Options about one kind of weight."""
    return tuple(f"{role}_{kind}" for kind in _KINDS)


def _flat(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _activation(given: Any) -> Any:
    """Keras' function, a name or numbers of a saved `Activation`, as ours."""
    if given is None:
        return "linear"
    if isinstance(given, list):
        return Activation(*given)
    return ACTIVATIONS.get(given, given) if callable(given) else given
