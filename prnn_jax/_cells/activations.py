"""What cells put their pre-activations through: names as callers write them.

The same functions as core/activations.h, whose numbers an `Applied` holds.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._cells.clip import Clip, bounded, with_bounded_gradient
from prnn_jax._given import statics
from prnn_jax._given.checks import check

ActivationName = Literal[
    "sigmoid",
    "tanh",
    "relu",
    "hard_sigmoid",
    "hard_tanh",
    "linear",
    "softsign",
    "softplus",
    "elu",
    "leaky_relu",
    "affine",
    "scaled_tanh",
    "clipped_relu",
]


class Activation(NamedTuple):
    r"""An activation with numbers of its own; a name alone has those in brackets.

    ================  =====================================================
    "sigmoid"         :math:`σ(a)`
    "tanh"            :math:`\tanh(a)`
    "relu"            :math:`\max(a, 0)`
    "hard_sigmoid"    :math:`\min(\max(α a + β, 0), 1)` (1/6, 1/2, as in
                      `jax.nn`, PyTorch and Keras 3; Keras 2 and ONNX: 0.2, 0.5)
    "hard_tanh"       :math:`\min(\max(a, -1), 1)`
    "linear"          a
    "softsign"        :math:`a / (1 + |a|)`
    "softplus"        :math:`\log(1 + e^a)`
    "elu"             a, below zero :math:`α (e^a - 1)` (1)
    "leaky_relu"      a, below zero :math:`α a` (0.01)
    "affine"          :math:`α a + β` (1, 0)
    "scaled_tanh"     :math:`α \tanh(β a)` (1, 1)
    "clipped_relu"    :math:`\min(\max(a, 0), α)` (20)
    ================  =====================================================

    Where one is flat, its derivative is zero, at the ends of that too. The engines make
    derivatives of outputs: near ±1 that of a softsign, :math:`(1 - |y|)^2`, is as
    exact as a rounding of y allows.

    Attributes:
      name: which.
      alpha: α, where it has one; positive.
      beta: β, where it has one.
    """

    name: ActivationName
    alpha: float | None = None
    beta: float | None = None


#: As callers give one.
GivenActivation = ActivationName | Activation
#: The LSTM's may be two: of the candidate and of the state.
GivenActivations = GivenActivation | tuple[GivenActivation, GivenActivation]


class Applied(NamedTuple):
    """An activation as the engines know it (`AnyActivation` of core/activations.h).

    The last two are of `Clip`: what bounds its argument, and the gradient of that.
    """

    kind: str
    alpha: float = 1.0
    beta: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    bound: float = math.inf
    gradient_bound: float = math.inf

    def __call__(self, a: Array) -> Array:
        """Of any floating dtype; NaN of NaN.

        Of a bound and what is beyond, the very number of `ends`: by it the engines tell
        in the backward pass.
        """
        if self.gradient_bound < math.inf:
            a = with_bounded_gradient(a, self.gradient_bound)
        if self.bound == math.inf:
            return _FUNCTIONS[self.kind](self, a)
        made = _FUNCTIONS[self.kind](self, bounded(a, -self.bound, self.bound))
        for end, is_there in (
            (-self.bound, a <= -self.bound),
            (self.bound, a >= self.bound),
        ):
            value = _OF_NUMBERS[self.kind](self, end)
            made = jnp.where(is_there, jnp.asarray(value, a.dtype), made)
        return made

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest that it makes of its argument: of the bounds."""
        if self.bound == math.inf:
            return -math.inf, math.inf
        of_number = _OF_NUMBERS[self.kind]
        low, high = sorted(of_number(self, a) for a in (-self.bound, self.bound))
        return low, high

    def clipped(self, clip: Clip | None) -> Self:
        """With the bounds of a call."""
        if clip is None:
            return self
        bounds = clip.pre_activations, clip.gradients
        bound, gradient = (math.inf if b is None else b for b in bounds)
        return self._replace(bound=bound, gradient_bound=gradient)


SIGMOID = Applied("sigmoid", 1.0, 0.0, 0.0, 1.0)
TANH = Applied("tanh", 1.0, 1.0, -1.0, 1.0)
RELU = Applied("clipped", low=0.0)


class Activations(NamedTuple):
    """Those of a gated cell; an RNN has the candidate's."""

    gate: Applied = SIGMOID
    candidate: Applied = TANH
    output: Applied = TANH

    def clipped(self, clip: Clip | None) -> Self:
        """With the bounds of a call; the state's own are none of them."""
        gate, candidate = self.gate.clipped(clip), self.candidate.clipped(clip)
        return self._replace(gate=gate, candidate=candidate)

    @property
    def with_whole_gradients(self) -> Self:
        """Without the bounds of gradients."""
        gate, candidate = (
            one._replace(gradient_bound=math.inf) for one in (self.gate, self.candidate)
        )
        return self._replace(gate=gate, candidate=candidate)


USUAL = Activations()


def named(op: str, option: str, given: Any) -> Activation:
    """An activation as a caller gives it, checked, with all its numbers."""
    known = get_args(ActivationName)
    name, *numbers = given if isinstance(given, Activation) else (given, None, None)
    came = repr(given)
    if callable(given):
        own = str(getattr(given, "__name__", "")).replace("soft_sign", "softsign")
        came = f"the function {own}; activations are given by name: {option}="
        came += repr(own if own in known else "tanh")
    check(
        isinstance(name, str) and name in known,
        f"{op}: {option} must be one of {', '.join(map(repr, known))}, or a prnn_jax."
        f"Activation of such a name, got {came}.",
    )
    values: list[float | None] = []
    defaults = (*_NUMBERS.get(name, ()), None, None)
    for letter, value, default in zip(
        ("alpha", "beta"), numbers, defaults, strict=False
    ):
        check(
            value is None or default is not None,
            f"{op}: {option} {name!r} has no {letter}, got {value!r}.",
        )
        value = default if value is None else value
        if value is not None:
            value = float(statics.number(op, f"{option}'s {letter}", value))
            check(
                math.isfinite(value) and (letter == "beta" or value > 0),
                f"{op}: {option}'s {letter} must be "
                f"{'finite' if letter == 'beta' else 'positive'}, got {value}.",
            )
        values.append(value)
    known_name: Any = name
    return Activation(known_name, *values)


def applied(op: str, option: str, given: Any) -> Applied:
    """The same as the engines know it."""
    name, *numbers = named(op, option, given)
    return _MAKERS[name](*(value for value in numbers if value is not None))


def activations_of(op: str, activation: Any, gate_activation: Any) -> Activations:
    """Those of a gated cell; `activation` is one, or two where `op` allows it."""
    pair = (activation, activation)
    if isinstance(activation, (tuple, list)) and not isinstance(activation, Activation):
        check(
            len(activation) == 2,
            f"{op}: activation must be one, or two, of the candidate and of the state "
            f"where it leaves the cell, got {len(activation)}.",
        )
        pair = tuple(activation)
    candidate, output = (applied(op, "activation", one) for one in pair)
    gate = applied(op, "gate_activation", gate_activation)
    return Activations(gate, candidate, output)


_NUMBERS: dict[str, tuple[float, ...]] = {
    "hard_sigmoid": (1 / 6, 0.5),
    "elu": (1.0,),
    "leaky_relu": (0.01,),
    "affine": (1.0, 0.0),
    "scaled_tanh": (1.0, 1.0),
    "clipped_relu": (20.0,),
}
_MAKERS: dict[str, Callable[..., Applied]] = {
    "sigmoid": lambda: SIGMOID,
    "tanh": lambda: TANH,
    "relu": lambda: RELU,
    "hard_sigmoid": lambda a, b: Applied("clipped", a, b, 0.0, 1.0),
    "hard_tanh": lambda: Applied("clipped", low=-1.0, high=1.0),
    "linear": lambda: Applied("clipped"),
    "softsign": lambda: Applied("softsign"),
    "softplus": lambda: Applied("softplus"),
    "elu": lambda a: Applied("elu", a),
    "leaky_relu": lambda a: Applied("leaky_relu", a),
    "affine": lambda a, b: Applied("clipped", a, b),
    "scaled_tanh": lambda a, b: Applied("tanh", a, b, -a, a),
    "clipped_relu": lambda a: Applied("clipped", low=0.0, high=a),
}


def _tanh(f: Applied, a: Array) -> Array:
    if (f.alpha, f.beta) == (1.0, 1.0):
        return jnp.tanh(a)
    return f.alpha * jnp.tanh(f.beta * a)


def _clipped(f: Applied, a: Array) -> Array:
    v = a if (f.alpha, f.beta) == (1.0, 0.0) else f.alpha * a + f.beta
    return bounded(v, f.low, f.high)


def _elu(f: Applied, a: Array) -> Array:
    return jnp.where(a < 0, f.alpha * jnp.expm1(jnp.where(a < 0, a, 0)), a)


_FUNCTIONS: dict[str, Callable[[Applied, Array], Array]] = {
    "sigmoid": lambda f, a: jax.nn.sigmoid(a),
    "tanh": _tanh,
    "clipped": _clipped,
    "leaky_relu": lambda f, a: jnp.where(a < 0, f.alpha * a, a),
    "elu": _elu,
    "softsign": lambda f, a: a / (1 + jnp.abs(a)),
    "softplus": lambda f, a: -jax.nn.log_sigmoid(-a),
}


def _sigmoid_of(a: float) -> float:
    e = math.exp(-abs(a))
    return 1 / (1 + e) if a > 0 else e / (1 + e)


#: The same of a number that is known, by no arrays: while a program is traced, these
#: are a part of it.
_OF_NUMBERS: dict[str, Callable[[Applied, float], float]] = {
    "sigmoid": lambda f, a: _sigmoid_of(a),
    "tanh": lambda f, a: f.alpha * math.tanh(f.beta * a),
    "clipped": lambda f, a: min(max(f.alpha * a + f.beta, f.low), f.high),
    "leaky_relu": lambda f, a: f.alpha * a if a < 0 else a,
    "elu": lambda f, a: f.alpha * math.expm1(a) if a < 0 else a,
    "softsign": lambda f, a: a / (1 + abs(a)),
    "softplus": lambda f, a: max(a, 0.0) + math.log1p(math.exp(-abs(a))),
}
