"""The activations of ONNX's LSTM, GRU and RNN, and ours."""

from collections.abc import Iterator, Sequence
from typing import Any

from prnn_jax._cells.activations import (
    Activation,
    ActivationName,
    GivenActivations,
    named,
)
from prnn_jax._given.checks import check

#: By ONNX's name: ours, and ONNX's own numbers where none are given; None where it has
#: none, and runtimes differ.
_KNOWN: dict[str, tuple[ActivationName, tuple[float | None, ...]]] = {
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
    "Relu": ("relu", ()),
    "HardSigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "Softsign": ("softsign", ()),
    "Softplus": ("softplus", ()),
    "Elu": ("elu", (1.0,)),
    "LeakyRelu": ("leaky_relu", (0.01,)),
    "Affine": ("affine", (None, 0.0)),
    "ScaledTanh": ("scaled_tanh", (None, None)),
}
_BY_LOWER = {name.lower(): name for name in _KNOWN}
_BY_OURS = {ours: name for name, (ours, _) in _KNOWN.items()}
_USUAL = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}


def options_of(
    op: str,
    where: str,
    operator: str,
    names: Sequence[str] | None,
    alphas: Sequence[float],
    betas: Sequence[float],
    directions: int,
) -> dict[str, Any]:
    """Our options for the attributes of a node.

    Args:
      op: for messages, with `where`, the node.
      operator: LSTM, GRU or RNN.
      names: of all directions, or None for the usual.
      alphas: numbers of those that have one, in their order.
      betas: likewise.
      directions: of the node, which must be alike.
    """
    usual = _USUAL[operator]
    names = list(names or usual * directions)
    count = len(usual)
    check(
        len(names) == count * directions,
        f"{op}: {where} must have {count} activations in each direction, got {names}.",
    )
    numbers = iter(alphas), iter(betas)
    given = [_ours(op, where, name, *numbers) for name in names]
    check(
        given[:count] * directions == given,
        f"{op}: {where} must have the same activations in both directions, got "
        f"{names}, alpha {list(alphas)}, beta {list(betas)}.",
    )
    if operator == "RNN":
        return {"activation": _short(given[0])}
    gate, candidate, *output = map(_short, given[:count])
    pair = candidate if output in ([], [candidate]) else (candidate, *output)
    return {"activation": pair, "gate_activation": gate}


def _ours(
    op: str, where: str, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    known = _BY_LOWER.get(name.lower())
    check(
        known is not None,
        f"{op}: {where} must have activations of {', '.join(_KNOWN)}, got {name!r}.",
    )
    ours, usual = _KNOWN[str(known)]
    given = [
        next(numbers, default)
        for numbers, default in zip((alphas, betas), usual, strict=False)
    ]
    check(
        None not in given,
        f"{op}: {where} must have activation_alpha and activation_beta for {known}, "
        "for which ONNX says no default.",
    )
    return named(op, f"the activation of {where}", Activation(ours, *given))


def _short(one: Activation) -> Any:
    """A name alone, where it says all."""
    if one == Activation("affine", 1.0, 0.0):
        return "linear"
    return one.name if one == named("", "", one.name) else one


def attributes_of(
    op: str,
    operator: str,
    activation: GivenActivations,
    gate_activation: Any,
    directions: int,
) -> dict[str, Any]:
    """Attributes of a node for our options; none where they are usual."""
    is_one = isinstance(activation, (str, Activation))
    candidate, output = (activation, activation) if is_one else activation
    given = {
        "LSTM": (gate_activation, candidate, output),
        "GRU": (gate_activation, candidate),
        "RNN": (candidate,),
    }[operator]
    names, alphas, betas = [], [], []
    for one in given:
        name, alpha, beta = named(op, "activation", one)
        if name == "linear":
            name, alpha, beta = "affine", 1.0, 0.0
        check(
            name in _BY_OURS,
            f"{op}: activation must be one that ONNX has, of "
            f"{', '.join(map(repr, _BY_OURS))}, got {name!r}.",
        )
        names.append(_BY_OURS[name])
        alphas += [] if alpha is None else [alpha]
        betas += [] if beta is None else [beta]
    attributes = {
        "activations": names * directions,
        "activation_alpha": alphas * directions,
        "activation_beta": betas * directions,
    }
    if tuple(names) == _USUAL[operator]:
        return {}
    return {name: values for name, values in attributes.items() if values}
