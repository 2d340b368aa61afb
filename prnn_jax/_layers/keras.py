"""What the layers for Keras share: the loop over time, in place of Keras'."""

from collections.abc import Callable
from typing import Any, ClassVar, cast, get_args

import jax.numpy as jnp
from jax import Array

from prnn_jax._call.choose import cell_of
from prnn_jax._call.options import Implementation, Options
from prnn_jax._cells.clip import Clip
from prnn_jax._engine.plan import Plan
from prnn_jax._given.checks import check, in_dtype, one_of
from prnn_jax._given.params import BidirectionalParams, Params
from prnn_jax._layers.keywords import refuse_others_names
from prnn_jax._ops.explain import explain
from prnn_jax.convert import from_keras, to_keras
from prnn_jax.convert._keras.params import activations

try:
    import keras
except ModuleNotFoundError as error:
    lacking = (error.name or "").partition(".")[0]
    if lacking != "keras":
        raise ImportError(
            f"prnn_jax.keras: Keras' backend lacks the package {lacking}; set "
            "KERAS_BACKEND=jax in the environment before keras is imported."
        ) from error
    raise ImportError(
        'prnn_jax.keras needs Keras: pip install "prnn_jax[keras]".'
    ) from error

KINDS = "LSTM", "GRU", "SimpleRNN"

_OPTIONS = {"activation": "activation", "recurrent_activation": "gate_activation"}
registered = keras.saving.register_keras_serializable(package="prnn_jax")
ACTIVATIONS = {
    getattr(keras.activations, name): ours
    for name, ours in activations(of_keras_2=False).items()
    if hasattr(keras.activations, name)  # hard_tanh came after 3.0
}


def check_backend() -> None:
    """Raises ValueError where Keras does not run on JAX."""
    backend = keras.backend.backend()
    check(
        backend == "jax",
        f"prnn_jax.keras: Keras' backend must be jax, got {backend}; set "
        "KERAS_BACKEND=jax in the environment before keras is imported.",
    )


def check_built(layer: Any) -> None:
    """Raises ValueError where a layer has no weights yet."""
    check(
        layer.built,
        f"{layer.name}: the layer must be built, by a call or build(), before it has "
        "params.",
    )


def floats(sequences: Any, dtype: Any) -> Array:
    """The input in the dtype that the cell computes in, as Keras' cells have it.

    It may be of whole numbers, and of a layer with `autocast=False` wider.
    """
    return jnp.asarray(sequences).astype(dtype)


def mask_of_rows(mask: Any, x: Array) -> Array:
    """The mask of all rows; Keras takes one row for all of them, too."""
    mask = jnp.asarray(mask)
    of_all = mask.shape == (1, x.shape[1])
    return jnp.broadcast_to(mask, x.shape[:2]) if of_all else mask


class Layer:
    """What the layers share."""

    _function: ClassVar[Callable]

    # Of keras.layers.RNN:
    cell: Any
    go_backwards: bool
    zero_output_for_mask: bool
    name: str

    def __init__(
        self, *args: Any, clip: Any = None, implementation: Any = None, **options: Any
    ):
        check_backend()
        if isinstance(implementation, int):  # of Keras' cells, about masks of dropout
            options["implementation"] = implementation
            implementation = None
        refuse_others_names(type(self), options)
        super().__init__(*args, **options)
        if isinstance(clip, list):  # of a configuration
            clip = Clip(*clip)
        name, function = type(self).__name__, type(self)._function.__name__
        made = cell_of(name, cast("Any", function), Options(clip=clip))
        self.clip = made.get("clip")
        check(
            self.clip is None or self.clip.projection is None,
            f"{name}: clip.projection must be None, for Keras' layers have no "
            f"projection, got {clip}.",
        )
        choices = (None, *get_args(Implementation))
        one_of(name, "implementation", implementation, choices)
        self.implementation = implementation
        if self.clip is not None or implementation is not None:
            # Or keras.layers.Bidirectional calls cuDNN where it can, not the layer.
            self.use_cudnn = False

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        keras_own: Any = super()
        config = keras_own.get_config()
        if self.implementation is not None:
            config["implementation"] = self.implementation
        return config if self.clip is None else config | {"clip": list(self.clip)}

    @classmethod
    def from_params(cls, params: Params, **options: Any) -> Any:
        """A layer with these parameters, such as `prnn_jax.convert` gives.

        Args:
          params: of one direction. A layer has one bias, the sum of two, but for the
            GRU with reset_after.
          **options: arguments of the layer but for units and use_bias, which params
            tell: return_sequences, activations, the GRU's reset_after.

        Returns:
          The layer, built.

        Raises:
          ValueError: params are of both directions, or have what Keras' layer has not;
            options have units or use_bias.
        """
        name = f"{cls.__name__}.from_params"
        check_told(name, options)
        check(
            not isinstance(params, BidirectionalParams),
            f"{name}: params must be of one direction; Bidirectional.from_params takes "
            "both.",
        )
        return with_weights(cls(**sizes(params), **options), params)

    @property
    def params(self) -> Params:
        """The parameters, for `prnn_jax.lstm`, `gru` or `rnn`."""
        check_built(self)
        return self._params(self.cell.variable_dtype)

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> tuple[Any, Any, list[Any]]:
        """All steps, for `call`: the last output, all of them, the last states."""
        if keras.tree.is_nested(mask):
            mask = mask[0]
        rank = None if mask is None else jnp.ndim(mask)
        if why := self._refusal(bool(training), rank):
            check(
                self.clip is None,
                f"{self.name}: clip must be None where Keras' own code runs, as here: "
                f"{why}.",
            )
            check(
                self.implementation != "native",
                f"{self.name}: implementation must not be 'native' where Keras' own "
                f"code runs, as here: {why}; None chooses.",
            )
            loop: Any = super()
            return loop.inner_loop(sequences, initial_state, mask, training=training)
        x, cell = self._floats(sequences), self.cell
        states = [in_dtype(s, x.dtype) for s in keras.tree.flatten(initial_state)]
        masks = self._masks(mask, x)
        if training and cell.dropout:
            x = x * jnp.expand_dims(cell.get_dropout_mask(x[:, 0, :]), 1)
        if training and cell.recurrent_dropout:
            masks["recurrent_mask"] = cell.get_recurrent_dropout_mask(states[0])
        y, state = type(self)._function(
            x,
            self._params(x.dtype),
            state_of(states),
            reverse=self.go_backwards,
            implementation=self.implementation,
            **masks,
            **self._cell_options(),
        )
        if self.go_backwards:  # the outputs are in the order of processing
            y = jnp.flip(y, 1)
        return y[:, -1], y, list(state) if isinstance(state, tuple) else [state]

    def explain(
        self, batch: int, time: int, *, training: bool = False, **options: Any
    ) -> Plan:
        """Which engine runs a call, as `prnn_jax.explain`.

        "scan" is Keras' own code, or what the layer's implementation asks for.

        Args:
          batch: rows.
          time: steps.
          training: as in the call.
          **options: of `prnn_jax.explain`, such as platform and device.

        Raises:
          ValueError: the layer has no weights yet, or as `prnn_jax.explain`.
        """
        cell: Any = self.cell
        check(
            cell.built,
            f"{self.name}: the layer must be built, by a call or build(), before it "
            "can explain one.",
        )
        why = self._refusal(training, None)
        function: Any = type(self)._function.__name__
        plan = explain(
            function,
            batch=batch,
            time=time,
            hidden_size=cell.units,
            input_size=cell.kernel.shape[0],
            dtype=cell.compute_dtype,
            training=training,
            **({} if why else self._cell_options()),
            **options,
        )
        if why:
            return Plan("scan", plan.platform, (f"Keras' own code: {why}",))
        return as_asked(plan, self.implementation)

    def _refusal(self, training: bool, mask_rank: int | None) -> str:
        """Why Keras' own code must run; empty where it need not."""
        cell: Any = self.cell
        for name in _OPTIONS:
            given = getattr(cell, name, keras.activations.tanh)
            if given not in ACTIVATIONS:
                own = getattr(given, "__name__", given)
                known = ", ".join(function.__name__ for function in ACTIVATIONS)
                return f"{name} must be one of {known}, got {own}"
        drops = training and (cell.recurrent_dropout or cell.dropout)
        if drops and getattr(cell, "dropout_mask_count", None):
            return "each gate has a dropout mask of its own"
        if mask_rank not in (None, 2):
            return f"the mask must be [batch, time], got {mask_rank} axes"
        return ""

    def _floats(self, sequences: Any) -> Array:
        return floats(sequences, self.cell.compute_dtype)

    def _masks(self, mask: Any, x: Array) -> dict[str, Any]:
        """Arguments of the function about Keras' mask."""
        if mask is None:
            return {}
        masked_y = "zero" if self.zero_output_for_mask else "hold"
        return {"mask": mask_of_rows(mask, x), "masked_y": masked_y}

    def _params(self, dtype: Any) -> Any:
        weights = [self.cell.kernel, self.cell.recurrent_kernel]
        if self.cell.use_bias:
            weights.append(self.cell.bias)
        arrays: list[Array] = [jnp.asarray(w, dtype) for w in weights]
        after = getattr(self.cell, "reset_after", True)
        return from_keras(_kind(self), arrays, reset_after=after)

    def _cell_options(self) -> dict[str, Any]:
        """Arguments of the function, and of `explain`, that not all cells have."""
        return {
            option: ACTIVATIONS[getattr(self.cell, name)]
            for name, option in _OPTIONS.items()
            if hasattr(self.cell, name)
        } | {"clip": self.clip}


def _kind(layer: Any) -> str:
    """The name of Keras' layer."""
    return next(k.__name__ for k in type(layer).__mro__ if k.__name__ in KINDS)


def check_told(name: str, options: dict[str, Any]) -> None:
    told = sorted({"units", "use_bias"} & set(options))
    check(
        not told,
        f"{name}: options must not have {', '.join(told)}, which params tell.",
    )


def sizes(params: Params) -> dict[str, Any]:
    has_bias = params.b_ih is not None or params.b_hh is not None
    return {"units": params.w_hh.shape[-2], "use_bias": has_bias}


def with_weights(layer: Any, params: Params) -> Any:
    """The layer, built, with these parameters."""
    one = getattr(layer, "forward_layer", layer)
    after = getattr(one.cell, "reset_after", True)
    arrays = to_keras(_kind(one), params, reset_after=after)
    layer.build((None, None, params.w_ih.shape[-2]))
    layer.set_weights(arrays)
    return layer


def as_asked(plan: Plan, implementation: str | None) -> Plan:
    """The plan of a layer whose implementation may be given."""
    if implementation != "scan":
        return plan
    return Plan("scan", plan.platform, ('the layer has implementation="scan"',))


def state_of(arrays: list[Any]) -> Any:
    """A state as the functions take it."""
    return tuple(arrays) if len(arrays) > 1 else arrays[0]
