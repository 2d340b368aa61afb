"""A recurrent layer of Keras, of an object or of a file, as a network of ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prnn_jax._cells.activations import Activation
from prnn_jax._cells.clip import Clip
from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax._given.params import Params
from prnn_jax.convert._keras.cudnn import from_cudnn, to_cudnn
from prnn_jax.convert._keras.functions import expressed
from prnn_jax.convert._keras.params import activations, from_keras, to_keras
from prnn_jax.convert._shared.imported import Imported, check_dtype

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
#: The directions of a Bidirectional layer, as Keras calls them.
SIDES = "forward_layer", "backward_layer"
#: In what both layers of a Bidirectional one must be alike.
_ALIKE = (
    *("units", "activation", "recurrent_activation", "use_bias", "reset_after"),
    *("time_major", "clip"),
)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer, or a Bidirectional one of two, of a file or of an object.

    Attributes:
      name: with the names of the models that it is in.
      kind: its class, of `KINDS`; "RNN" of what has other cells, or several.
      config: Keras' own; of weights alone what the caller says of them.
      weights: in the order of Keras.
      of_keras_2: whose functions it has; None where nothing tells.
      merge: of a Bidirectional layer, maybe None; otherwise empty.
      has_weights_alone: it is of a file that tells nothing of what it computes.
      source: where the weights are: Keras' layer, or the paths of a file's arrays.
      directions: of a Bidirectional layer, each by itself, first forward.
      is_overwritten: the file calls several of its arrays alike, and has one of them.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    weights: Sequence[Any]
    of_keras_2: bool | None
    merge: str | None = ""
    has_weights_alone: bool = False
    source: Any = None
    directions: "tuple[Layer, ...]" = ()
    is_overwritten: bool = False

    @property
    def is_bidirectional(self) -> bool:
        return self.merge != ""

    def __str__(self) -> str:
        wrapper = "Bidirectional " if self.is_bidirectional else ""
        return f"{self.name!r} ({wrapper}{self.kind})"


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
    elif kind == "Bidirectional":
        yield from _both_ways(name, config, weights, of_keras_2, source)


def overwritten(layer: Layer) -> Layer:
    """The layer, each of whose arrays may be that of another."""
    parts = tuple(map(overwritten, layer.directions))
    return replace(layer, directions=parts, is_overwritten=True)


def _both_ways(
    name: str, config: Mapping, weights: Sequence[Any], of_keras_2, source: Any
) -> Iterator[Layer]:
    """A Bidirectional layer, if it is of recurrent ones that are known."""
    forward = config["layer"]
    count = count_of(forward)
    if not count:
        return
    own, parts = forward["config"], (slice(0, count), slice(count, None))
    turned = {**own, "go_backwards": not own.get("go_backwards", False)}
    backward = config.get("backward_layer") or {**forward, "config": turned}
    directions: list[Layer] = []
    for side, one, part in zip(SIDES, (forward, backward), parts, strict=True):
        is_file = isinstance(source, list)
        directions += described(
            *(f"{name}/{side}", class_of(one), one["config"], weights[part]),
            *(of_keras_2, source[part] if is_file else getattr(source, side)),
        )
    is_of_cell = len(directions) == 2
    yield Layer(
        name,
        directions[0].kind if is_of_cell else class_of(forward),
        directions[0].config if is_of_cell else own,
        weights,
        of_keras_2,
        config.get("merge_mode"),
        source=source,
        directions=tuple(directions),
    )


def _of_cells(
    name: str, config: Mapping, weights: Sequence[Any], of_keras_2, source: Any
) -> Iterator[Layer]:
    """Those of an RNN: of one cell, under the RNN's name, or of several."""
    cells = cells_of(config)
    if not count_of({"class_name": "RNN", "config": config}):
        return
    is_one = class_of(config["cell"]) != "StackedRNNCells"
    first = 0
    for n, one in enumerate(cells):
        own = {**one["config"], "go_backwards": config.get("go_backwards", False)}
        last = first + count_of(one)
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


def cells_of(config: Mapping) -> list[Mapping]:
    """The descriptions of an RNN's cells; none of a layer that only derives from it."""
    cell = config.get("cell")
    if cell is None:
        return []
    return cell["config"]["cells"] if class_of(cell) == "StackedRNNCells" else [cell]


def count_of(description: Mapping) -> int:
    """How many arrays a recurrent layer or a cell has; 0 of one that is not known."""
    kind, config = class_of(description), description["config"]
    if kind in KINDS or kind in CELLS:
        return 3 if config.get("use_bias", True) else 2
    parts: Sequence[Mapping] = ()
    if kind == "RNN":
        parts = cells_of(config)
    elif kind == "Bidirectional":
        parts = config["layer"], config.get("backward_layer") or config["layer"]
    counts = [count_of(one) for one in parts]
    return sum(counts) if all(counts) else 0


def class_of(description: Mapping) -> str:
    """The class of a layer, of ours that of Keras from which it derives.

    One's own of the same name has that of its package or module in front.
    """
    name, registered = description["class_name"], description.get("registered_name")
    if registered and not _is_of_keras(description.get("module")):
        package = "" if ">" in registered else f"{description.get('module')}>"
        name = f"{package}{registered}"
    return str(name).removeprefix("prnn_jax>")


def _is_of_keras(module: Any) -> bool:
    return str(module).partition(".")[0] in ("keras", "tf_keras")


def is_of_keras_2(version: str) -> bool:
    return version.partition(".")[0] in ("1", "2")


def network(op: str, layer: Layer) -> Imported:
    """What computes the same as the layer.

    Raises:
      ValueError: nothing does; in the words of `op`.
    """
    _check_kind(op, layer)
    converted, cell = KINDS[layer.kind]
    given = _got(layer, "merge_mode", layer.merge)
    check(
        layer.merge in ("", "concat", "sum"),
        f"{op}: {layer} must have merge_mode 'concat' or 'sum'{given}, or import its "
        f"directions one by one, by name: {_names(layer.directions)}.",
    )
    _check_directions(op, layer)
    chosen = _activations(op, layer)
    weights = list(layer.weights)
    check(
        len(weights) > 0,
        f"{op}: {layer} must have weights, and has none yet, or in a file none that "
        "can be told from another layer's; build the model, and give its layers names "
        "of their own.",
    )
    reset_after = has_reset_after(layer)
    if layer.kind.startswith("CuDNN"):
        weights = from_cudnn(op, layer, weights, converted)
    for array in weights:
        check_dtype(op, f"a weight of {layer}", array, "build it with dtype")
    params = from_keras(converted, weights, reset_after=reset_after)
    return Imported(
        layers=(params,),
        cell=cell,
        name=layer.name,
        places=(layer.name,),
        bidirectional=layer.is_bidirectional,
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


def _check_kind(op: str, layer: Layer) -> None:
    """A layer of a kind of ours, or what is to be imported instead."""
    check(
        not layer.is_overwritten,
        f"{op}: {layer} must have a name for each of its arrays in the file, which has "
        "one array for several of the same name, so that the others are lost; save "
        'the model itself as "model.keras" or by save_weights, and take that file.',
    )
    check(
        not layer.is_bidirectional or len(layer.directions) == 2,
        f"{op}: {layer} must have one cell of Keras in each direction; import the "
        f"cells one by one, by name: {_names(layer.directions)}.",
    )
    if not layer.has_weights_alone:
        return
    check(
        layer.kind in KINDS,
        f"{op}: {layer} must have a recurrent kernel [hidden, G*hidden] of G = 1, 3 "
        f"or 4 gates, got {list(layer.weights[1].shape)}.",
    )
    check(
        layer.kind != "GRU" or layer.config["reset_after"] is not None,
        f"{op}: {layer} must have a bias, which tells whether it has reset_after; "
        "without one give its arrays to from_keras, with reset_after=.",
    )


def _names(layers: Sequence[Layer]) -> str:
    return ", ".join(repr(one.name) for one in layers)


def _check_directions(op: str, layer: Layer) -> None:
    """A Bidirectional layer's two must compute the same, which `Imported` does."""
    if not layer.is_bidirectional:
        return
    forward, backward = layer.directions
    ways = {"class": (forward.kind, backward.kind)} | {
        name: tuple(_name_of(one.config.get(name)) for one in layer.directions)
        for name in _ALIKE
    }
    for name, (one, its) in ways.items():
        check(
            one == its,
            f"{op}: {layer} must have a backward_layer like its layer, whose {name} is "
            f"{one!r}, got {its!r}; import them one by one, by name: "
            f"{_names(layer.directions)}.",
        )


def has_reset_after(layer: Layer) -> bool:
    """Whether it is a GRU with two biases."""
    if layer.kind == "CuDNNGRU":
        return True
    return layer.kind == "GRU" and bool(layer.config.get("reset_after", False))


def _activations(op: str, layer: Layer) -> dict[str, Any]:
    """Ours, for arrays do not tell them."""
    ours = {"activation": "activation"}
    if layer.kind != "SimpleRNN":
        ours["recurrent_activation"] = "gate_activation"
    if layer.kind.startswith("CuDNN"):
        for keras_name, its in CUDNN.items():
            given = layer.config.get(keras_name)
            check(
                given in (None, its) or not layer.has_weights_alone,
                f"{op}: {layer} must have {keras_name} {its!r}, as cuDNN has, whose "
                f"arrays it has, got {given!r}.",
            )
        return {}
    known = activations(of_keras_2=bool(layer.of_keras_2))
    options = {}
    for keras_name, option in ours.items():
        given: Any = _name_of(layer.config.get(keras_name))
        is_ours = isinstance(given, Activation)
        check(
            is_ours or given in known,
            f"{op}: {layer} must have {keras_name} one of "
            f"{', '.join(map(repr, known))}{_got(layer, keras_name, given)}.",
        )
        check(
            given != "hard_sigmoid" or layer.of_keras_2 is not None,
            f"{op}: {layer} has hard_sigmoid, which Keras 2 and 3 define differently, "
            "but the file must have the attribute keras_version to tell which; add it: "
            'with h5py.File(path, "a") as file: file.attrs["keras_version"] = "2.15.0" '
            'or "3.0.0", as the Keras that wrote it.',
        )
        options[option] = given if is_ours else known[given]
    return options


def _got(layer: Layer, option: str, given: Any) -> str:
    """What came, and what to do about an option that weights alone do not tell."""
    if not layer.has_weights_alone:
        return f", got {given!r}"
    got = "" if given is None else f", got {given!r}"
    return f"{got}; the file has weights alone, which do not tell it: pass {option}="


def _name_of(activation: Any) -> Any:
    """Keras' name of a function, if it is one of Keras' own; else what it is instead.

    A layer that is an activation may be one of ours. A function of Keras is a name in a
    description. What has more to it is another one, whatever its name; unless its
    module, which some releases write, is Keras'.
    """
    if not isinstance(activation, Mapping):
        return activation
    inner, module = activation.get("config"), activation.get("module")
    if not isinstance(inner, str):
        kind = activation.get("class_name")
        its = None
        if isinstance(inner, Mapping) and _is_of_keras(module):
            its = expressed(kind, inner)
        return kind if its is None else _name_of(its)
    return inner if _is_of_keras(module) else f"{inner} of {module}, not Keras' own"


def weights_of(layer: Layer, params: Params) -> list[np.ndarray]:
    """The arrays that the layer has for some parameters: the inverse of `network`."""
    converted, _ = KINDS[layer.kind]
    arrays = to_keras(converted, params, reset_after=has_reset_after(layer))
    return to_cudnn(arrays) if layer.kind.startswith("CuDNN") else arrays
