"""How the parameters of cells without a product in a step begin."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

#: Of a parameter: how it begins, and its shape.
Begins = tuple[Callable[..., Array], tuple[int, ...]]


class Sized(Protocol):
    """A layer as the table knows it: two sizes, and options that not all have."""

    @property
    def input_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def own(self) -> Mapping[str, Any]: ...


_normal, _uniform = (
    jax.nn.initializers.lecun_normal(),
    jax.nn.initializers.lecun_uniform(),
)
_zeros = jax.nn.initializers.zeros


def gated(count: int) -> dict[str, Any]:
    """Of a cell all of whose gates see the input alone: the row's gates and begins."""

    def begins(s: Sized) -> dict[str, Begins]:
        columns = count * s.hidden_size
        return {
            "w_ih": (_normal, (s.input_size, columns)),
            "b_ih": (_zeros, (columns,)),
        }

    return {"gates": lambda own: count, "begins": begins}


def of_sru(s: Sized) -> dict[str, Begins]:
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


def gates_of_qrnn(own: Mapping[str, Any]) -> int:
    """The candidate's and those of its pooling."""
    return 1 + len(own["pooling"])


def of_qrnn(s: Sized) -> dict[str, Begins]:
    """Weights of a convolution."""
    columns = gates_of_qrnn(s.own) * s.hidden_size
    shape = s.own["width"], s.input_size, columns
    return {"w_ih": (_normal, shape), "b_ih": (_zeros, (columns,))}


def of_each_head(init: Callable[..., Array]) -> Callable[..., Array]:
    """An initializer of a matrix, for as many as the first axis says."""

    def draw(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return jnp.stack(
            [init(one, shape[1:], dtype) for one in jax.random.split(key, shape[0])]
        )

    return draw


def of_rg_lru(s: Sized) -> dict[str, Begins]:
    """Two gates, and what decays."""
    hidden = s.hidden_size

    def decay(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """σ(Λ)^c uniform from 0.9 to 0.999, as the paper has it."""
        kept = jax.random.uniform(key, shape, minval=0.9, maxval=0.999)
        log_a = jnp.log(kept) / s.own["c"]
        return (log_a - jnp.log(-jnp.expm1(log_a))).astype(dtype)

    gates = _normal, (hidden, 2 * hidden)
    if s.own["heads"] is not None:
        size = hidden // s.own["heads"]
        gates = of_each_head(_normal), (s.own["heads"], size, 2 * size)
    return {
        "w_gates": gates,
        "b_gates": (_zeros, (2 * hidden,)),
        "decay": (decay, (hidden,)),
    }


def states_of_lru(s: Sized) -> int:
    """Complex numbers of its state."""
    return s.own["state_size"] or s.hidden_size


def of_lru(s: Sized) -> dict[str, Begins]:
    """λ in a ring, with a phase up to a bound, as the paper has it.

    The radii are its distribution's quantiles, not drawn: γ begins as they have it.
    """
    size, least, most = states_of_lru(s), s.own["r_min"], s.own["r_max"]
    squares = (np.arange(size) + 0.5) / size * (most**2 - least**2) + least**2

    def known(values: np.ndarray) -> Callable[..., Array]:
        return lambda key, shape, dtype: jnp.asarray(values, dtype).reshape(shape)

    def phase(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        u = jax.random.uniform(key, shape, minval=jnp.finfo(jnp.float32).tiny)
        return jnp.log(u * s.own["max_phase"]).astype(dtype)

    def normal(variance: float) -> Callable[..., Array]:
        return jax.nn.initializers.normal(math.sqrt(variance))

    out = {
        "w_ih": (normal(0.5 / s.input_size), (s.input_size, 2 * size)),
        "w_out": (normal(1 / size), (2 * size, s.hidden_size)),
        "nu_log": (known(np.log(-0.5 * np.log(squares))), (size,)),
        "theta_log": (phase, (size,)),
        "gamma_log": (known(0.5 * np.log1p(-squares)), (size,)),
    }
    if s.input_size == s.hidden_size:
        out["skip"] = normal(1.0), (s.hidden_size,)
    return out


def of_indrnn(s: Sized) -> dict[str, Begins]:
    """u from 0 on, so far that nothing grows beyond twofold in so many steps."""
    most = 1.0 if s.own["steps"] is None else 2.0 ** (1 / s.own["steps"])

    def own(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return jax.random.uniform(key, shape, maxval=most).astype(dtype)

    return {**gated(1)["begins"](s), "w_hh": (own, (s.hidden_size,))}
