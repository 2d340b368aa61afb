"""Recurrent networks for audio as files of RTNeural, GuitarML and NAM have them."""

import math
from typing import Any, Literal

import numpy as np

from prnn_jax._given import checks
from prnn_jax._given.checks import check
from prnn_jax.convert._effect.effect import Dense, Effect
from prnn_jax.convert._effect.files import UNITS
from prnn_jax.convert._keras.params import to_keras
from prnn_jax.convert._pytorch.params import to_pytorch

_CELLS = {cell: unit for unit, cell in UNITS.items()}
_NAM_VERSION = "0.5.4"
#: What none of these files has a place for.
_PLAIN = {
    "bidirectional": False,
    "reverse": False,
    "reset_after": True,
    "activation": "tanh",
    "gate_activation": "sigmoid",
    "clip": None,
}


def export_effect(
    effect: Effect, like: Literal["rtneural", "guitarml", "nam"] = "rtneural"
) -> dict[str, Any]:
    """The inverse of `import_effect`: what such a file says, as `json.dump` takes it.

        with open("amplifier.nam", "w") as file:
            json.dump(prnn_jax.convert.export_effect(effect, like="nam"), file)

    Args:
      effect: of `import_effect`, maybe trained since, or made of layers of your own:
        `Effect(Imported((params,), "lstm"), after=(Dense(w, b),))`.
      like: whose file. "rtneural" has all that an effect of LSTM and GRU layers may
        have, with in_skip (0 or 1) and gains as AIDA-X reads them. "guitarml" has one
        dense layer, after the network; "nam" has no GRU and no skip, either. An initial
        state is lost, but in "nam": the others begin at zeros.

    Raises:
      ValueError: there is no place for something in such a file. Says what.
    """
    op = "export_effect"
    check(
        isinstance(effect, Effect),
        f"{op}: effect must be an Effect, got {type(effect).__name__}.",
    )
    writers = {"rtneural": _to_rtneural, "guitarml": _to_guitarml, "nam": _to_nam}
    checks.one_of(op, "like", like, tuple(writers))
    net = effect.network
    for name in ("input_gain", "output_gain"):
        gain = getattr(effect, name)
        check(
            isinstance(gain, (int, float))
            and not isinstance(gain, bool)
            and 0 < gain < math.inf,
            f"{op}: {name} must be a number above 0, as decibels are, got {gain!r}.",
        )
    _check_place(like, "cell", net.cell, ("lstm", "gru", "rnn"))
    for name, plain in _PLAIN.items():
        _check_place(like, name, getattr(net, name), (plain,))
    for params in net.layers:
        for name in ("peepholes", "w_hr"):
            kind = type(getattr(params, name, None)).__name__
            _check_place(like, f"{name} of type", kind, ("NoneType",))
    return writers[like](effect)


def _to_rtneural(effect: Effect) -> dict[str, Any]:
    net = effect.network
    _check_place("rtneural", "cell", net.cell, ("lstm", "gru"))
    _check_place("rtneural", "skip", effect.skip, (0, 1))
    layers = [_of_dense(layer) for layer in effect.before]
    for params in net.layers:
        kernel, recurrent, *bias = to_keras(net.cell.upper(), params)
        if not bias:
            width = kernel.shape[-1]
            bias = [np.zeros((2, width) if net.cell == "gru" else width)]
        weights = [kernel, recurrent, *bias]
        layers.append(_layer(net.cell, "tanh", len(recurrent), weights))
    layers += [_of_dense(layer) for layer in effect.after]
    inputs = (effect.before[0].w if effect.before else net.layers[0].w_ih).shape[-2]
    model: dict[str, Any] = {"in_shape": [None, None, inputs]}
    if effect.skip:
        model["in_skip"] = effect.skip
    for name in ("input_gain", "output_gain"):
        if (gain := getattr(effect, name)) != 1:
            model[name.replace("put", "")] = 20 * math.log10(gain)
    if effect.sample_rate is not None:
        model["metadata"] = {"samplerate": f"{effect.sample_rate:.12g}"}
    return model | {"layers": layers}


def _of_dense(layer: Dense) -> dict[str, Any]:
    weights = [layer.w, layer.b]
    return _layer("dense", layer.activation, len(layer.b), weights)


def _layer(kind: str, activation: str, units: int, weights: list) -> dict[str, Any]:
    shape = [None, None, units]
    arrays = [np.asarray(one).tolist() for one in weights]
    return {"type": kind, "activation": activation, "shape": shape, "weights": arrays}


def _to_guitarml(effect: Effect) -> dict[str, Any]:
    net, like = effect.network, "guitarml"
    head = _only_head(like, effect)
    _check_alike(like, effect)
    unit, params = _CELLS[net.cell], net.layers[0]
    arrays = {f"rec.{n}": a for n, a in to_pytorch(unit, net.layers).items()}
    for name in [*arrays]:  # PyTorch's layers have all biases, or none
        bias = name.replace("weight", "bias")
        arrays.setdefault(bias, np.zeros(len(arrays[name]), np.float32))
    arrays |= {"lin.weight": head.w.T, "lin.bias": head.b}
    said = {
        "model": "SimpleRNN",
        "input_size": params.w_ih.shape[-2],
        "skip": effect.skip,
        "output_size": len(head.b),
        "unit_type": unit,
        "num_layers": len(net.layers),
        "hidden_size": params.w_hh.shape[-2],
        "bias_fl": True,
    }
    if effect.sample_rate is not None:
        said["samplerate"] = effect.sample_rate
    state_dict = {name: np.asarray(array).tolist() for name, array in arrays.items()}
    return {"model_data": said, "state_dict": state_dict}


def _to_nam(effect: Effect) -> dict[str, Any]:
    net, like = effect.network, "nam"
    head = _only_head(like, effect)
    _check_place(like, "cell", net.cell, ("lstm",))
    _check_place(like, "skip", effect.skip, (0,))
    _check_alike(like, effect)
    arrays = []
    for n, params in enumerate(net.layers):
        own = to_pytorch("LSTM", (params,))
        hidden = params.w_hh.shape[-2]
        state = net.state_0[n] if net.state_0 else None
        states = (np.zeros(hidden),) * 2 if state is None else state
        for one in states:
            _check_place(like, "the rows of state_0", np.size(one) // hidden, (1,))
        b = [value for name, value in own.items() if name.startswith("bias")]
        arrays += [np.concatenate([own["weight_ih_l0"], own["weight_hh_l0"]], 1)]
        arrays += [np.sum([*b, np.zeros(4 * hidden)], 0), *states]
    arrays += [head.w.T, head.b]
    hidden, inputs = net.layers[0].w_hh.shape[-2], net.layers[0].w_ih.shape[-2]
    config = {"input_size": inputs, "hidden_size": hidden}
    config |= {"num_layers": len(net.layers)}
    if (inputs, len(head.b)) != (1, 1):
        config |= {"in_channels": inputs, "out_channels": len(head.b)}
    flat = np.concatenate([np.ravel(one) for one in arrays])
    model = {
        "version": _NAM_VERSION,
        "metadata": {},
        "architecture": "LSTM",
        "config": config,
        "weights": flat.astype(np.float32).tolist(),
    }
    rate = effect.sample_rate
    return model if rate is None else model | {"sample_rate": rate}


def _check_alike(like: str, effect: Effect) -> None:
    """Layers must be as wide as the first: the file says it once."""
    first, *rest = (params.w_hh.shape[-2] for params in effect.network.layers)
    for n, hidden in enumerate(rest, 1):
        _check_place(like, f"hidden_size of layers[{n}]", hidden, (first,))


def _only_head(like: str, effect: Effect) -> Dense:
    """The one layer that there may be beside the network."""
    _check_place(like, "the number of layers before", len(effect.before), (0,))
    _check_place(like, "the number of layers after", len(effect.after), (1,))
    _check_place(like, "the activation after", effect.after[0].activation, ("",))
    for name in ("input_gain", "output_gain"):
        _check_place(like, name, getattr(effect, name), (1,))
    return effect.after[0]


def _check_place(like: str, name: str, value: Any, options: tuple) -> None:
    listed = " or ".join(map(repr, options))
    check(
        any(value is one or value == one for one in options),
        f"export_effect: a file like {like!r} has no place for {name}={value!r}, only "
        f"for {listed}.",
    )
