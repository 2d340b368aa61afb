"""A recurrent layer of Keras, of an object or of a file, as a network of ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._imported import Imported, check_dtype
from prnn_jax.convert._keras import activations, from_keras, to_keras

OP = "import_keras"
#: By class: the layer that has its arrays in our converter's order, and its cell.
KINDS: dict[str, tuple[str, CellName]] = {
    "LSTM": ("LSTM", "lstm"),
    "GRU": ("GRU", "gru"),
    "SimpleRNN": ("SimpleRNN", "rnn"),
    "CuDNNLSTM": ("LSTM", "lstm"),
    "CuDNNGRU": ("GRU", "gru"),
}
#: What may be around one of these.
WRAPPERS = "Bidirectional", "TimeDistributed", "RNN"
#: What those of cuDNN have.
CUDNN = {"activation": "tanh", "recurrent_activation": "sigmoid"}
#: By class: the layer that has a cell's arrays and options.
CELLS = {"LSTMCell": "LSTM", "GRUCell": "GRU", "SimpleRNNCell": "SimpleRNN"}
#: In what both layers of a Bidirectional one must be alike.
_ALIKE = (
    *("units", "activation", "recurrent_activation", "use_bias", "reset_after"),
    *("time_major", "clip"),
)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer, maybe in a Bidirectional one, of a file or of an object.

    Attributes:
      name: with the names of the models that it is in.
      kind: its class, of `KINDS`.
      config: Keras' own; of weights alone what the caller says of them.
      weights: in the order of Keras.
      of_keras_2: whose functions it has; None where nothing tells.
      merge: of a Bidirectional layer; otherwise empty.
      has_weights_alone: it is of a file that tells nothing of what it computes.
      source: where the weights are: Keras' layer, or the paths of a file's arrays.
      backward: Keras' description of a Bidirectional layer's own backward_layer.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    weights: Sequence[Any]
    of_keras_2: bool | None
    merge: str = ""
    has_weights_alone: bool = False
    source: Any = None
    backward: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.name!r} ({'Bidirectional ' if self.merge else ''}{self.kind})"


def described(
    name: str,
    kind: str,
    config: Mapping,
    weights: Sequence[Any],
    of_keras_2: bool | None,
    source: Any,
) -> Iterator[Layer]:
    """The layers that a configuration describes, if it is of recurrent ones."""
    if kind in KINDS:
        yield Layer(name, kind, config, weights, of_keras_2, source=source)
    elif kind == "RNN":
        yield from _of_cells(name, config, weights, of_keras_2, source)
    elif kind in ("Bidirectional", "TimeDistributed"):
        inner = config["layer"]
        inside, own = class_of(inner), inner["config"]
        if kind == "TimeDistributed":
            inner_name = f"{name}/{own.get('name', '')}"
            yield from described(inner_name, inside, own, weights, of_keras_2, source)
        elif inside in KINDS:
            merge, backward = config.get("merge_mode"), config.get("backward_layer")
            yield Layer(
                *(name, inside, own, weights, of_keras_2, str(merge)),
                source=source,
                backward=backward,
            )


def _of_cells(
    name: str, config: Mapping, weights: Sequence[Any], of_keras_2, source: Any
) -> Iterator[Layer]:
    """Those of an RNN: of one cell, under the RNN's name, or of several."""
    cell = config.get("cell")
    if cell is None:  # a layer of another kind that derives from RNN
        return
    is_one = class_of(cell) != "StackedRNNCells"
    cells = [cell] if is_one else cell["config"]["cells"]
    if not all(class_of(one) in CELLS for one in cells):
        return  # how many arrays another has, nobody knows
    first = 0
    for n, one in enumerate(cells):
        own = {**one["config"], "go_backwards": config.get("go_backwards", False)}
        last = first + (3 if own.get("use_bias", True) else 2)
        its: Any = source if is_one else None
        if isinstance(source, list):
            its = source[first:last]
        elif not is_one:
            its = source.cell.cells[n]
        yield Layer(
            name if is_one else f"{name}/{own.get('name', n)}",
            CELLS[class_of(one)],
            own,
            weights[first:last],
            of_keras_2,
            source=its,
        )
        first = last


def class_of(description: Mapping) -> str:
    """The class of a layer, of ours that of Keras from which it derives."""
    return str(description["class_name"]).removeprefix("prnn_jax>")


def network(layer: Layer) -> Imported:
    """What computes the same as the layer.

    Raises:
      ValueError: nothing does.
    """
    converted, cell = KINDS[layer.kind]
    check(
        layer.merge in ("", "concat", "sum"),
        f"{OP}: {layer} must have merge_mode 'concat' or 'sum', got {layer.merge!r}"
        f"{_ask(layer, 'merge_mode')}.",
    )
    _check_directions(layer)
    chosen = _activations(layer)
    weights = list(layer.weights)
    check(len(weights) > 0, f"{OP}: {layer} must have weights, and has none yet.")
    reset_after = has_reset_after(layer)
    if layer.kind.startswith("CuDNN"):
        weights = _from_cudnn(layer, weights, converted)
    for array in weights:
        check_dtype(OP, f"a weight of {layer}", array, "build it with dtype")
    params = from_keras(converted, weights, reset_after=reset_after)
    return Imported(
        layers=(params,),
        cell=cell,
        name=layer.name,
        places=(layer.name,),
        bidirectional=bool(layer.merge),
        merge="sum" if layer.merge == "sum" else "concat",
        reverse=bool(layer.config.get("go_backwards", False)),
        time_major=bool(layer.config.get("time_major", False)),
        reset_after=reset_after or cell != "gru",
        clip=_clip(layer.config.get("clip")),
        **chosen,
    )


def _clip(described: Sequence[Any] | None) -> Clip | None:
    """That of a layer of `prnn_jax.keras`; Keras' own have none."""
    if described is None:
        return None
    pre_activations, state, *others = described
    state = tuple(state) if isinstance(state, list) else state
    return Clip(pre_activations, state, *others)


def _check_directions(layer: Layer) -> None:
    """A Bidirectional layer's two must compute the same, which `Imported` does."""
    if layer.backward is None:
        return
    kind, other = class_of(layer.backward), layer.backward["config"]
    ways = {"class": (layer.kind, kind)} | {
        name: tuple(_name_of(config.get(name)) for config in (layer.config, other))
        for name in _ALIKE
    }
    for name, (one, its) in ways.items():
        check(
            one == its,
            f"{OP}: {layer} must have a backward_layer like its layer, whose {name} is "
            f"{one!r}, got {its!r}.",
        )


def has_reset_after(layer: Layer) -> bool:
    """Whether it is a GRU with two biases."""
    if layer.kind == "CuDNNGRU":
        return True
    return layer.kind == "GRU" and bool(layer.config.get("reset_after", False))


def _activations(layer: Layer) -> dict[str, Any]:
    """Ours, for arrays do not tell them."""
    ours = {"activation": "activation"}
    if layer.kind != "SimpleRNN":
        ours["recurrent_activation"] = "gate_activation"
    if layer.kind.startswith("CuDNN"):
        for keras_name, its in CUDNN.items():
            given = layer.config.get(keras_name)
            check(
                given in (None, its) or not layer.has_weights_alone,
                f"{OP}: {layer} must have {keras_name} {its!r}, as cuDNN has, whose "
                f"arrays it has, got {given!r}.",
            )
        return {}
    known = activations(of_keras_2=bool(layer.of_keras_2))
    options = {}
    for keras_name, option in ours.items():
        given: Any = _name_of(layer.config.get(keras_name))
        check(
            given in known,
            f"{OP}: {layer} must have {keras_name} one of "
            f"{', '.join(map(repr, known))}, got {given!r}"
            f"{_ask(layer, keras_name)}.",
        )
        check(
            given != "hard_sigmoid" or layer.of_keras_2 is not None,
            f"{OP}: {layer} has hard_sigmoid, which Keras 2 and 3 define differently, "
            "but the file must have the attribute keras_version to tell which; add it.",
        )
        options[option] = known[given]
    return options


def _ask(layer: Layer, option: str) -> str:
    """What to do about an option that weights alone do not tell."""
    if not layer.has_weights_alone:
        return ""
    return f"; the file has weights alone, which do not tell it: pass {option}="


def _name_of(activation: Any) -> Any:
    """Keras' name of a function, if it is one of Keras' own; else what it is instead.

    A function of Keras is a name in a description. What has more to it is another one,
    whatever its name; unless its module, which some releases write, is Keras'.
    """
    if not isinstance(activation, Mapping):
        return activation
    inner, module = activation.get("config"), str(activation.get("module"))
    if not isinstance(inner, str):
        return activation.get("class_name")
    is_keras = module.partition(".")[0] in ("keras", "tf_keras")
    return inner if is_keras else f"{inner} of {module}, not Keras' own"


def _from_cudnn(layer: Layer, weights: list, converted: str) -> list[np.ndarray]:
    """The arrays of CuDNNLSTM and CuDNNGRU as those of LSTM and GRU.

    Each gate's kernel is cuDNN's `[hidden, input]` under the shape of Keras', its
    recurrent kernel transposed; there are two biases, one after the other.
    """
    gates = {"LSTM": 4, "GRU": 3}[converted]
    check(
        len(weights) in (3, 6),
        f"{OP}: {layer} must have a kernel, a recurrent kernel and a bias for each "
        f"direction, got {len(weights)} arrays.",
    )
    made: list[np.ndarray] = []
    for first in range(0, len(weights), 3):
        kernel, recurrent, bias = (np.asarray(w) for w in weights[first : first + 3])
        inputs, hidden = len(kernel), len(recurrent)
        shapes = [
            (inputs, gates * hidden),
            (hidden, gates * hidden),
            (2 * gates * hidden,),
        ]
        check(
            [kernel.shape, recurrent.shape, bias.shape] == shapes,
            f"{OP}: {layer} must have arrays of the shapes {shapes}, got "
            f"{[kernel.shape, recurrent.shape, bias.shape]}.",
        )
        of_gates = np.split(kernel, gates, 1)
        made.append(np.concatenate([k.reshape(hidden, inputs).T for k in of_gates], 1))
        made.append(np.concatenate([k.T for k in np.split(recurrent, gates, 1)], 1))
        two = bias.reshape(2, -1)
        made.append(two if converted == "GRU" else two.sum(0))
    return made


def weights_of(layer: Layer, params: Params) -> list[np.ndarray]:
    """The arrays that the layer has for some parameters: the inverse of `network`."""
    converted, _ = KINDS[layer.kind]
    arrays = to_keras(converted, params, reset_after=has_reset_after(layer))
    return _to_cudnn(arrays) if layer.kind.startswith("CuDNN") else arrays


def _to_cudnn(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inverse of `_from_cudnn`; of an LSTM's two biases the second is zero."""
    made: list[np.ndarray] = []
    for first in range(0, len(arrays), 3):
        kernel, recurrent, bias = arrays[first : first + 3]
        gates = recurrent.shape[1] // len(recurrent)
        of_gates = np.split(kernel, gates, 1)
        made.append(np.concatenate([k.T.reshape(k.shape) for k in of_gates], 1))
        made.append(np.concatenate([k.T for k in np.split(recurrent, gates, 1)], 1))
        two = bias if bias.ndim == 2 else np.stack([bias, np.zeros_like(bias)])
        made.append(two.reshape(-1))
    return made
