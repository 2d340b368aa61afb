"""What bounds values and gradients inside of a step."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from prnn_jax._given import statics
from prnn_jax._given.checks import check


class Clip(NamedTuple):
    r"""Bounds inside of the steps of `lstm`, `gru` and `rnn`: their option `clip`.

    With :math:`\mathrm{clip}_k(v) = \min(\max(v, -k), k)`, all by value, one number for
    all units:

    - ``pre_activations``: σ and tanh are of :math:`\mathrm{clip}_k(a)` in place of a
      sum a, peepholes and the residual among it; of the GRU's candidate,
      :math:`a_{xn} + r a_{hn}`. What an LSTM's c' goes through is not clipped. It is
      ``clip`` of ONNX's LSTM, GRU and RNN, as ONNX Runtime has it.
    - ``state``: :math:`c' = \mathrm{clip}_k(f c + i \tanh(a_g))`, which is handed on,
      and which the output and :math:`p_o` see; c_0 and reset_to stay as given. Only the
      LSTM has it: ``cell_clip`` of TensorFlow's LSTMCell; with a pair, from the first
      to the second, cudnnRNNSetClip, of which NaN passes (CUDNN_PROPAGATE_NAN).
    - ``projection``: :math:`h' = \mathrm{clip}_k((o \tanh(c')) W_{hr})`, of an LSTM
      with w_hr: TensorFlow's ``proj_clip`` (Sak et al. 2014, arXiv:1402.1128).
    - ``gradients``: :math:`\mathrm{clip}_k(∂L/∂a)` takes the place of :math:`∂L/∂a` at
      each step, before it goes to weights, to x, to peepholes and to earlier steps. It
      changes no result. So Graves (2013, arXiv:1308.0850) trained his
      LSTMs, and Lasagne has it as ``grad_clipping``. There is no forward mode then.

    Where a value is not between its bounds, or on one of them, its derivative is zero.
    The engines take it from what is kept for the backward pass: in 16 bits, a value
    that is rounded to a bound is on it.

    Attributes:
      pre_activations: k; None: no bound.
      state: k, or a pair.
      projection: k.
      gradients: k.
    """

    pre_activations: float | None = None
    state: float | tuple[float, float] | None = None
    projection: float | None = None
    gradients: float | None = None


def checked(op: str, given: Any) -> Clip | None:
    """The same with Python's numbers, in `state` a pair; None where nothing is bound.

    Raises:
      ValueError: it is no `Clip`, or one of bounds that bound nothing.
    """
    if given is None:
        return None
    check(
        isinstance(given, Clip),
        f"{op}: clip must be a prnn_jax.Clip, such as prnn_jax.Clip(state=3.0), or "
        f"None, got {given!r}.",
    )
    state = given.state
    if isinstance(state, (tuple, list)) or np.ndim(state) == 1:
        check(
            len(state) == 2,
            f"{op}: clip.state must be a number or a pair, the least and the largest, "
            f"got {len(state)} values.",
        )
        low, high = (float(statics.number(op, "clip.state", end)) for end in state)
        check(
            -math.inf < low < high < math.inf,
            f"{op}: clip.state must be a pair of finite numbers, the smaller one "
            f"first, got {(low, high)}.",
        )
        state = low, high
    elif state is not None:
        most = _bound(op, "state", state)
        state = -most, most
    others = {
        name: _bound(op, name, value)
        for name, value in given._asdict().items()
        if name != "state" and value is not None
    }
    clip = Clip(**others, state=state)
    return None if clip == Clip() else clip


def _bound(op: str, name: str, value: Any) -> float:
    bound = float(statics.number(op, f"clip.{name}", value))
    check(
        0 < bound < math.inf,
        f"{op}: clip.{name} must be positive and finite, got {bound}; None is for no "
        "bound.",
    )
    return bound


def bounded(v: Array, low: float, high: float) -> Array:
    """min(max(v, low), high). NaN passes; a gradient only between the ends."""
    inside = (v > low) & (v < high)
    return jnp.where(inside, v, jax.lax.stop_gradient(jnp.clip(v, low, high)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def with_bounded_gradient(a: Array, most: float) -> Array:
    """`a`, whose gradient is bounded to [-most, most]; NaN passes."""
    del most
    return a


def _forward(a: Array, most: float):
    del most
    return a, None


def _backward(most: float, _, da: Array):
    return (bounded(da, -most, most),)


with_bounded_gradient.defvjp(_forward, _backward)
