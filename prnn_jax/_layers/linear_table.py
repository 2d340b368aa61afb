"""Cells without a product in a step, as layers: one table for all host libraries."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from prnn_jax._given.params import Params
from prnn_jax._layers.linear import Begins, LinearCell, Spec
from prnn_jax._linear.functions import indrnn, min_gru, min_lstm, rg_lru
from prnn_jax._linear.qrnn import qrnn
from prnn_jax._linear.sru import sru

_normal, _uniform = (
    jax.nn.initializers.lecun_normal(),
    jax.nn.initializers.lecun_uniform(),
)
_zeros = jax.nn.initializers.zeros


def _gates(count: int) -> Callable[[Spec], dict[str, Begins]]:
    def begins(s: Spec) -> dict[str, Begins]:
        columns = count * s.hidden_size
        return {
            "w_ih": (_normal, (s.input_size, columns)),
            "b_ih": (_zeros, (columns,)),
        }

    return begins


def _of_sru(s: Spec) -> dict[str, Begins]:
    """Weights uniform with the variance 1/input, as the paper has them."""
    hidden = s.hidden_size

    def biases(_, shape: tuple[int, ...], dtype: Any) -> Array:
        of_r = jnp.full(hidden, s.own["highway_bias"], dtype)
        return jnp.concatenate([jnp.zeros(hidden, dtype), of_r]).reshape(shape)

    out: dict[str, Begins] = {
        "w_ih": (_uniform, (s.input_size, 3 * hidden)),
        "b_ih": (biases, (2 * hidden,)),
    }
    if s.own["peepholes"]:
        out["peepholes"] = _zeros, (2 * hidden,)
    if s.input_size != hidden:
        out["w_skip"] = _uniform, (s.input_size, hidden)
    return out


def _arguments_of_sru(s: Spec) -> dict[str, Any]:
    """The highway's scale keeps the variance of x, as in the paper."""
    scale = math.sqrt(1 + 2 * math.exp(s.own["highway_bias"]))
    return {"activation": s.own["activation"], "skip_scale": scale}


def _of_qrnn(s: Spec) -> dict[str, Begins]:
    columns = (1 + len(s.own["pooling"])) * s.hidden_size
    shape = s.own["width"], s.input_size, columns
    return {"w_ih": (_normal, shape), "b_ih": (_zeros, (columns,))}


def _of_rg_lru(s: Spec) -> dict[str, Begins]:
    hidden = s.hidden_size

    def decay(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """σ(Λ)^c uniform from 0.9 to 0.999, as the paper has it."""
        kept = jax.random.uniform(key, shape, minval=0.9, maxval=0.999)
        log_a = jnp.log(kept) / s.own["c"]
        return (log_a - jnp.log(-jnp.expm1(log_a))).astype(dtype)

    return {
        "w_gates": (_normal, (hidden, 2 * hidden)),
        "b_gates": (_zeros, (2 * hidden,)),
        "decay": (decay, (hidden,)),
    }


def _of_indrnn(s: Spec) -> dict[str, Begins]:
    most = 1.0 if s.own["steps"] is None else 2.0 ** (1 / s.own["steps"])

    def own(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return jax.random.uniform(key, shape, maxval=most).astype(dtype)

    return {**_gates(1)(s), "w_hh": (own, (s.hidden_size,))}


def _bind_params(w_ih: Any, b_ih: Any, w_hh: Any) -> dict[str, Any]:
    return {"params": Params(w_ih, w_hh, b_ih)}


CELLS = {
    "min_gru": LinearCell(min_gru, "h_0", _gates(2), ("activation",)),
    "min_lstm": LinearCell(min_lstm, "h_0", _gates(3), ("activation",)),
    "sru": LinearCell(
        sru,
        "c_0",
        _of_sru,
        ("activation", "peepholes", "highway_bias"),
        ("w_ih", "b_ih", "peepholes", "w_skip"),
        _arguments_of_sru,
    ),
    "qrnn": LinearCell(
        qrnn,
        "state_0",
        _of_qrnn,
        ("activation", "width", "pooling", "zoneout_rate"),
        arguments=lambda s: {k: s.own[k] for k in ("activation", "pooling")},
        states=lambda s: ((s.hidden_size,), (s.own["width"] - 1, s.input_size)),
    ),
    "rg_lru": LinearCell(
        rg_lru,
        "h_0",
        _of_rg_lru,
        ("c",),
        ("w_gates", "b_gates", "decay"),
        lambda s: {"c": s.own["c"]},
    ),
    "indrnn": LinearCell(
        indrnn,
        "h_0",
        _of_indrnn,
        ("activation", "steps"),
        ("w_ih", "b_ih", "w_hh"),
        bind=_bind_params,
    ),
}
