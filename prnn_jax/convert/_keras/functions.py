"""Which of Keras' activations a layer's functions are: by themselves, not by a name."""

import sys
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from prnn_jax._cells.activations import Activation

#: Of others that compute what Keras' of the same name does.
_OTHERS = {
    "jax.numpy": ("tanh",),
    "jax.lax": ("tanh",),
    "jax.nn": ("relu", "sigmoid", "hard_sigmoid", "softplus", "elu", "hard_tanh"),
    "torch": ("tanh", "sigmoid", "relu"),
    "tensorflow.nn": ("tanh", "sigmoid", "relu", "softplus", "softsign", "elu"),
    "keras.ops": (
        *("tanh", "relu", "sigmoid", "hard_sigmoid", "softplus", "softsign", "elu"),
        *("leaky_relu", "hard_tanh"),
    ),
}
_OPTIONS = "activation", "recurrent_activation"
_SIDES = {"layer": "forward_layer", "backward_layer": "backward_layer", "cell": "cell"}


def config_of(layer: Any, package: Any) -> dict[str, Any]:
    """A recurrent layer's configuration, with Keras' names of functions that are its.

    Keras' own has a user's function under its `__name__`, were it that of Keras'.

    Args:
      layer: of Keras: LSTM, GRU, SimpleRNN, Bidirectional of two of these, or an RNN
        of cells.
      package: Keras.
    """
    config = dict(layer.get_config())
    for name, side in _SIDES.items():
        inner = getattr(layer, side, None)
        if inner is not None and config.get(name) is not None:
            described = config_of(inner, package)
            config[name] = {**config[name], "config": described}
    if isinstance(config.get("cells"), list):
        config["cells"] = [
            {**its, "config": config_of(cell, package)}
            for its, cell in zip(config["cells"], layer.cells, strict=True)
        ]
    for option in _OPTIONS:
        function = getattr(layer, option, None)
        if option in config and callable(function):
            own = _own_name(function, package)
            # A layer's description tells enough, but for a function in it.
            config[option] = own or _foreign(function, config[option])
            held = getattr(function, "activation", None)
            if isinstance(config[option], Mapping) and hasattr(held, "__name__"):
                its = _own_name(held, package) or _foreign(held, None)
                of_layer = {**config[option]["config"], "activation": its}
                config[option] = {**config[option], "config": of_layer}
    return config


def expressed(kind: Any, config: Mapping) -> Any:
    """A layer of Keras that is an activation: its name, or ours; None of others."""

    def number(*names: str) -> float | None:
        of_names: Any = (config[n] for n in names if config.get(n) is not None)
        given: Any = next(of_names, None)
        # Keras 2 has numpy's; its description of an array is none.
        is_number = isinstance(given, Real) or getattr(given, "shape", None) == ()
        return float(given) if is_number else None

    if kind == "Activation":
        return config.get("activation")
    if kind == "ELU" and (alpha := number("alpha") or 0) > 0:
        return Activation("elu", alpha)
    slope = number("negative_slope", "alpha")
    if kind == "ReLU":
        if config.get("threshold"):
            return None
        if config.get("max_value") is not None:
            bound = number("max_value") or 0
            is_plain = bound > 0 and not config.get("negative_slope")
            return Activation("clipped_relu", bound) if is_plain else None
        slope = slope or 0.0
    if kind not in ("ReLU", "LeakyReLU") or slope is None or slope < 0:
        return None
    return Activation("leaky_relu", slope) if slope else "relu"


def _own_name(function: Any, package: Any) -> str | None:
    """The name of Keras for it; None of what is not Keras', or computes another."""
    name = getattr(function, "__name__", "")
    return name if any(function is one for one in _called(name, package)) else None


def _called(name: str, package: Any) -> Iterator[Any]:
    """The functions of that name that are Keras', or compute the same."""
    inside = getattr(package, "keras", None)  # of TensorFlow
    for keras in (package, inside):
        yield getattr(getattr(keras, "activations", None), name or "-", None)
    for path, names in _OTHERS.items():
        if name in names:
            root, *parts = path.split(".")
            module = sys.modules.get(root)
            for part in parts:
                module = getattr(module, part, None)
            yield getattr(module, name, None)


def _foreign(function: Any, described: Any) -> Any:
    """What a message calls a function that is not Keras'."""
    name = getattr(function, "__name__", None)
    if name is None:
        return described
    return f"{name} of {getattr(function, '__module__', None)}, not Keras' own"
