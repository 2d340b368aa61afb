"""Recurrent networks for audio from files of RTNeural, GuitarML and NAM."""

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from prnn_jax._cells.table import CellName
from prnn_jax._given.checks import check
from prnn_jax.convert._effect.effect import ACTIVATIONS, Dense, Effect
from prnn_jax.convert._keras.params import from_keras
from prnn_jax.convert._pytorch.params import from_pytorch
from prnn_jax.convert._shared.imported import Imported, joined

_OP = "import_effect"
#: By the name of a unit of GuitarML, which is PyTorch's.
UNITS: dict[str, CellName] = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
_DENSE = "dense", "time-distributed-dense"
_PART = re.compile(r"rec\.(weight|bias)_[ih]h_l\d+")
_LARGEST = np.finfo(np.float32).max


def import_effect(model: Any) -> Effect:
    """A recurrent network for audio from a file of RTNeural, AIDA-X, GuitarML or NAM.

        effect = prnn_jax.convert.import_effect("amplifier.nam")
        y, state = effect(x)            # what the plugin plays
        y, state = effect(more, state)  # its next block

    It computes what the C++ programs do that these files are for, apart from their
    approximations of tanh and σ:

    - RTNeural's JSON of a model of Keras, which AIDA-X has, too: LSTM and GRU layers
      among dense ones. in_skip, in_gain and out_gain are those of AIDA-X; RTNeural
      itself leaves them to its caller.
    - GuitarML's (Proteus, NeuralPi, Automated-GuitarAmpModelling): one LSTM, GRU or RNN
      of PyTorch, a dense layer, and x added to it unless `skip` is 0.
    - Neural Amp Modeler's `.nam` of the architecture LSTM. Its initial state is
      `effect.network.state_0`. Where the plugin begins, it plays half a second of
      silence after that.

    Args:
      model: the path of a file, or what `json.load` makes of one.

    Returns:
      The effect, with its parameters as JAX's arrays in float32.

    Raises:
      ValueError: it is no such file, has layers of other kinds, or arrays that do not
        fit together. Says what was found.
      FileNotFoundError: there is no such file.
    """
    described = _described(model)
    if "architecture" in described:
        return _of_nam(described)
    if "model_data" in described:
        return _of_guitarml(described)
    check(
        "layers" in described,
        f"{_OP}: the model must have layers (RTNeural, AIDA-X), model_data and "
        "state_dict (GuitarML) or architecture, config and weights (NAM), got "
        f"{', '.join(map(str, described)) or 'nothing':.200}. Arrays of one layer go "
        "to from_pytorch or from_keras.",
    )
    return _of_rtneural(described)


# ---- RTNeural ------------------------------------------------------------------------


def _of_rtneural(model: Mapping[str, Any]) -> Effect:
    before: list[Dense] = []
    networks: list[Imported] = []
    after: list[Dense] = []
    for n, layer in enumerate(_get(model, "layers", Sequence)):
        kind, name = _get(layer, "type", str), f"layers[{n}]"
        activation = layer.get("activation", "")
        weights = [
            _array(f"{name}.weights[{k}]", one)
            for k, one in enumerate(_get(layer, "weights", Sequence))
        ]
        is_dense = kind in _DENSE
        check(
            is_dense or (kind in ("lstm", "gru") and not after),
            f"{_OP}: {name} must be dense, lstm or gru, and all lstm and gru one after "
            f"the other, got {kind!r}. Give the arrays of a layer to from_keras, and "
            "write down what is around it.",
        )
        known = tuple(ACTIVATIONS) if is_dense else ("", "tanh")
        check(
            activation in known,
            f"{_OP}: {name}, {kind}, must have an activation of "
            f"{', '.join(map(repr, known))}, got {activation!r}.",
        )
        if is_dense:
            made = _dense(name, *weights, activation=activation)
            (after if networks else before).append(made)
            units = made.w.shape[1]
        else:
            params = _converted(name, from_keras, kind.upper(), weights)
            networks.append(Imported((params,), "gru" if kind == "gru" else "lstm"))
            units = networks[-1].layers[0].w_hh.shape[0]
        said = _last(layer, "shape", units)
        check(
            said == units,
            f"{_OP}: {name}, {kind}, has a shape of {said} units and weights of "
            f"{units}; the file is damaged.",
        )
    check(len(networks) > 0, f"{_OP}: layers must have an lstm or gru, got none.")
    effect = Effect(
        joined(_OP, networks),
        tuple(before),
        tuple(after),
        skip=_whole(model, "in_skip", 0),
        input_gain=_factor(model, "in_gain"),
        output_gain=_factor(model, "out_gain"),
        sample_rate=_sample_rate(model, model.get("metadata")),
    )
    return _checked(effect, _last(model, "in_shape", None))


# ---- GuitarML ------------------------------------------------------------------------


def _of_guitarml(model: Mapping[str, Any]) -> Effect:
    said, arrays = (_get(model, name, Mapping) for name in ("model_data", "state_dict"))
    unit = said.get("unit_type")
    check(
        said.get("model") == "SimpleRNN" and isinstance(unit, str) and unit in UNITS,
        f"{_OP}: model_data must have the model SimpleRNN and a unit_type of "
        f"{', '.join(UNITS)}, got {said.get('model')!r} and {unit!r}.",
    )
    given = {name: _array(name, value) for name, value in arrays.items()}
    head_names = "lin.weight", "lin.bias"
    more = [n for n in given if n not in head_names and not _PART.fullmatch(n)]
    check(
        not more,
        f"{_OP}: state_dict must have the arrays of rec, one way and without "
        f"projection, and of lin, got {', '.join(map(str, more)):.200}.",
    )
    own = {n.removeprefix("rec."): a for n, a in given.items() if n.startswith("rec.")}
    layers = _converted("rec", from_pytorch, unit, own)
    head = [given[name] for name in head_names if name in given]
    head[:1] = [one.T for one in head[:1]]
    effect = Effect(
        Imported(layers, UNITS[unit], "rec"),  # type: ignore[arg-type]
        after=(_dense("lin", *head),),
        skip=_whole(said, "skip", 1),
        sample_rate=_sample_rate(model, said),
    )
    found = {
        "num_layers": len(layers),
        "hidden_size": layers[0].w_hh.shape[-2],
        "output_size": effect.after[0].w.shape[-1],
    }
    for name, size in found.items():
        told = _whole(said, name, size)
        check(
            told == size,
            f"{_OP}: {name} is {told}, and of the arrays {size}; the file is damaged.",
        )
    return _checked(effect, _whole(said, "input_size", 1))


# ---- Neural Amp Modeler --------------------------------------------------------------


def _of_nam(model: Mapping[str, Any]) -> Effect:
    kind = model["architecture"]
    check(
        kind == "LSTM",
        f"{_OP}: architecture must be LSTM, got {kind!r}; of models in a container "
        "pass the one.",
    )
    said = _get(model, "config", Mapping)
    sizes = ("input_size", "hidden_size", "num_layers")
    inputs, hidden, layers = (_whole(said, name, None) for name in sizes)
    outputs = _whole(said, "out_channels", 1)
    channels = _whole(said, "in_channels", inputs)
    check(
        channels == inputs,
        f"{_OP}: in_channels is {channels}, and input_size {inputs}; the file is "
        "damaged.",
    )
    weights = _array("weights", _get(model, "weights", Sequence))
    # Without a list of so many layers: no file has them.
    count = layers * (4 * hidden * (2 * hidden + 1) + 2 * hidden)
    count += 4 * hidden * (inputs - hidden) + outputs * (hidden + 1)
    check(
        min(inputs, hidden, layers, outputs) > 0 and weights.shape == (count,),
        f"{_OP}: weights must be [{count}] for {layers} layers of {hidden} units, "
        f"{inputs} inputs and {outputs} outputs, got {list(weights.shape)}.",
    )
    widths = [(inputs if n == 0 else hidden) + hidden for n in range(layers)]
    at = 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += math.prod(shape)
        return weights[at - math.prod(shape) : at].reshape(shape)

    params, states = [], []
    for width in widths:
        w, b = take(4 * hidden, width), take(4 * hidden)
        own = {"weight_ih_l0": w[:, :-hidden], "weight_hh_l0": w[:, -hidden:]}
        own |= {"bias_ih_l0": b, "bias_hh_l0": np.zeros_like(b)}
        params += from_pytorch("LSTM", own)
        states.append((jnp.array(take(hidden)), jnp.array(take(hidden))))
    head = _dense("head", take(outputs, hidden).T, take(outputs))
    network = Imported(tuple(params), "lstm", state_0=tuple(states))
    rate = _sample_rate(model)
    return _checked(Effect(network, after=(head,), sample_rate=rate), inputs)


# ---- of all of them ------------------------------------------------------------------


def _described(model: Any) -> Mapping[str, Any]:
    where = "the model"
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.exists():
            raise FileNotFoundError(path)
        where = str(path)
        try:
            model = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{_OP}: {where} must be JSON: {error}") from error
    check(
        isinstance(model, Mapping),
        f"{_OP}: {where} must be a path or a dict, as json.load makes one of such a "
        f"file, got {type(model).__name__}.",
    )
    return model


def _get(model: Any, name: str, kind: type) -> Any:
    value = model.get(name) if isinstance(model, Mapping) else None
    check(
        isinstance(value, kind) and not (kind is Sequence and isinstance(value, str)),
        f"{_OP}: {name} must be there, of JSON's {_JSON[kind]}, got {value!r:.60}.",
    )
    return value


_JSON = {Mapping: "objects", Sequence: "arrays", str: "strings", int: "numbers"}


def _number(model: Mapping[str, Any], name: str, default: float | None) -> Any:
    """A number, or what stands for one that is not there, or null."""
    value = model.get(name)
    if value is None and default is not None:
        return default
    check(
        type(value) in (int, float) and abs(value or 0) < math.inf,
        f"{_OP}: {name} must be there, of JSON's numbers, got {value!r:.60}.",
    )
    return value


def _whole(model: Mapping[str, Any], name: str, default: int | None) -> int:
    value = _number(model, name, default)
    check(
        value == int(value), f"{_OP}: {name} must be a whole number, got {value!r:.60}."
    )
    return int(value)


def _last(model: Mapping[str, Any], name: str, default: int | None) -> int:
    """Of a shape as Keras has it, whose other entries may be null."""
    if default is not None and not model.get(name):
        return default
    shape = _get(model, name, Sequence)
    return _whole({name: shape[-1] if shape else None}, name, None)


def _factor(model: Mapping[str, Any], name: str) -> float:
    """Of decibels, which beyond a thousand no signal survives."""
    decibels = _number(model, name, 0)
    check(
        abs(decibels) <= 1000,
        f"{_OP}: {name} must be in decibels, up to 1000, got {decibels!r:.60}.",
    )
    return 10 ** (decibels / 20)


def _sample_rate(*described: Any) -> float | None:
    """By its names in these files, of which some have it as a string."""
    for one in described:
        for name in ("sample_rate", "samplerate"):
            value = one.get(name) if isinstance(one, Mapping) else None
            if value in (None, "", 0):
                continue
            try:
                rate = float(value)
            except (TypeError, ValueError, OverflowError):
                rate = math.nan
            check(
                0 < rate < math.inf and not isinstance(value, bool),
                f"{_OP}: {name} must be in Hz, a number above 0, got {value!r:.60}.",
            )
            return rate
    return None


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{_OP}: {name} must be numbers, as many in each row: {error}"
        ) from error
    # Of null and of integers that are too large NumPy makes objects, of words strings.
    check(
        array.dtype.kind in "iuf" and bool(np.all(np.abs(array) <= _LARGEST)),
        f"{_OP}: {name} must be numbers that float32 has, as many in each row.",
    )
    return array.astype(np.float32)


def _converted(name: str, convert: Callable, cell: str, arrays: Any) -> Any:
    """What a converter makes of a layer's arrays; its error says which layer it was."""
    try:
        return convert(cell, arrays)
    except ValueError as error:
        raise ValueError(f"{_OP}: {name}: {error}") from error


def _dense(name: str, *weights: np.ndarray, activation: Any = "") -> Dense:
    w = weights[0] if weights else np.zeros(0)
    b = weights[1] if weights[1:] else np.zeros(w.shape[-1:], np.float32)
    check(
        w.ndim == 2 and b.shape == w.shape[1:] and len(weights) <= 2,
        f"{_OP}: {name} must have a matrix, and a bias of as many outputs, got "
        f"{', '.join(str(list(one.shape)) for one in weights) or 'nothing'}.",
    )
    return Dense(jnp.array(w), jnp.array(b), activation)


def _checked(effect: Effect, inputs: float) -> Effect:
    """The effect, whose layers fit on one another."""
    net = effect.network
    sizes = [layer.w.shape for layer in effect.before]
    sizes += [(p.w_ih.shape[-2], p.w_hh.shape[-2]) for p in net.layers]
    sizes += [layer.w.shape for layer in effect.after]
    outputs = [int(inputs), *(one[1] for one in sizes)]
    check(
        all(one[0] == there for one, there in zip(sizes, outputs, strict=False)),
        f"{_OP}: layers must fit on one another, beginning with {outputs[0]} inputs, "
        f"got {', '.join(f'{i} to {o}' for i, o in sizes)}.",
    )
    check(
        effect.skip in (0, 1) or effect.skip == outputs[-1] <= outputs[0],
        f"{_OP}: skip must be 0, 1 or the number of outputs, {outputs[-1]}, got "
        f"{effect.skip}.",
    )
    return effect
