"""The cells without a product in a step as loops over time, and calls of them."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import assert_as_accurate, float64

import prnn_jax
from prnn_jax import Params

BATCH, TIME, INPUT, HIDDEN, WIDTH = 3, 7, 4, 5, 3


@dataclass(frozen=True)
class Cell:
    """A cell, by its equations and as we have it.

    Attributes:
      shapes: of its parameters, by name.
      step: `(xp, x, weights, state, zoneout) -> (y, state)`, one step in the words of
        NumPy or jax.numpy.
      call: `(x, weights, state, **options)`.
      states: shapes of its states, without batch axes.
      holds: whether y before the first step that counts is the first state.
      input: size of x.
    """

    shapes: dict[str, tuple[int, ...]]
    step: Callable
    call: Callable
    states: tuple[tuple[int, ...], ...] = ((HIDDEN,),)
    holds: bool = True
    input: int = INPUT
    options: dict[str, Any] = field(default_factory=dict)


def _sigmoid(xp, v):
    return 1 / (1 + xp.exp(-v))


def _min_gru(xp, x, w, state, _):
    (h,) = state
    z, candidate = xp.split(x @ w["w_ih"] + w["b_ih"], 2, -1)
    z = _sigmoid(xp, z)
    h = (1 - z) * h + z * xp.tanh(candidate)
    return h, (h,)


def _min_lstm(xp, x, w, state, _):
    (h,) = state
    i, f, g = xp.split(x @ w["w_ih"] + w["b_ih"], 3, -1)
    i, f = _sigmoid(xp, i), _sigmoid(xp, f)
    h = (f * h + i * g) / (f + i)
    return h, (h,)


def _rg_lru(xp, x, w, state, _):
    (h,) = state
    r, i = xp.split(x @ w["w_gates"] + w["b_gates"], 2, -1)
    a = _sigmoid(xp, w["decay"]) ** (8 * _sigmoid(xp, r))
    h = a * h + xp.sqrt(1 - a * a) * (_sigmoid(xp, i) * x)
    return h, (h,)


def _lru(xp, x, w, state, _):
    """Of real numbers: λ turns the two parts of h and makes them shorter."""
    ((real, imaginary),) = (xp.split(h, 2, -1) for h in state)
    b_real, b_imaginary = xp.split(x @ w["w_ih"], 2, -1)
    length, angle = xp.exp(-xp.exp(w["nu_log"])), xp.exp(w["theta_log"])
    cos, sin, gamma = (
        length * xp.cos(angle),
        length * xp.sin(angle),
        xp.exp(w["gamma_log"]),
    )
    real, imaginary = (
        cos * real - sin * imaginary + gamma * b_real,
        sin * real + cos * imaginary + gamma * b_imaginary,
    )
    c_real, c_imaginary = xp.split(w["w_out"], 2)
    y = real @ c_real - imaginary @ c_imaginary + w["skip"] * x
    return y, (xp.concatenate([real, imaginary], -1),)


def _indrnn(xp, x, w, state, _):
    (h,) = state
    h = xp.tanh(x @ w["w_ih"] + w["b_ih"] + w["w_hh"] * h)
    return h, (h,)


def _sru(xp, x, w, state, _):
    (c,) = state
    own = xp.split(w["peepholes"], 2) if "peepholes" in w else (0, 0)
    of_b = xp.split(w["b_ih"], 2)
    candidate, *gates = xp.split(x @ w["w_ih"], 3, -1)
    f, r = (
        _sigmoid(xp, a + b + v * c) for a, b, v in zip(gates, of_b, own, strict=True)
    )
    c = f * c + (1 - f) * candidate
    skip = x @ w["w_skip"] if "w_skip" in w else x
    return r * xp.tanh(c) + (1 - r) * 1.5 * skip, (c,)


def _qrnn(pooling):
    def step(xp, x, w, state, k):
        c, seen = state
        seen = xp.concatenate([seen, x[:, None]], 1)
        a = w["b_ih"] + sum(seen[:, n] @ w["w_ih"][n] for n in range(WIDTH))
        z, *gates = xp.split(a, 1 + len(pooling), -1)
        f, *others = (_sigmoid(xp, a) for a in gates)
        enters = others[1] if pooling == "ifo" else 1 - f
        c = k * c + (1 - k) * (f * c + enters * xp.tanh(z))
        return (c if pooling == "f" else others[0] * c), (c, seen[:, 1:])

    return step


def _plain(function, **own):
    """A call with parameters by name and one state."""

    def call(x, weights, state, **options):
        name = "c_0" if function is prnn_jax.sru else "h_0"
        return function(x, **weights, **{name: state[0]}, **own, **options)

    return call


def _call_indrnn(x, weights, state, **options):
    params = Params(weights["w_ih"], weights["w_hh"], weights["b_ih"])
    return prnn_jax.indrnn(x, params, state[0], activation="tanh", **options)


def _qrnn_cell(pooling):
    wide = (1 + len(pooling)) * HIDDEN

    def call(x, weights, state, **options):
        return prnn_jax.qrnn(x, **weights, state_0=state, pooling=pooling, **options)

    return Cell(
        {"w_ih": (WIDTH, INPUT, wide), "b_ih": (wide,)},
        _qrnn(pooling),
        call,
        states=((HIDDEN,), (WIDTH - 1, INPUT)),
        holds=pooling == "f",
    )


def _gated(gates: int) -> dict:
    return {"w_ih": (INPUT, gates * HIDDEN), "b_ih": (gates * HIDDEN,)}


_OF_SRU = {"w_ih": (INPUT, 3 * HIDDEN), "b_ih": (2 * HIDDEN,)}
_CALL_SRU = _plain(prnn_jax.sru, activation="tanh", skip_scale=1.5)

CELLS = {
    "min_gru": Cell(_gated(2), _min_gru, _plain(prnn_jax.min_gru, activation="tanh")),
    "min_lstm": Cell(_gated(3), _min_lstm, _plain(prnn_jax.min_lstm)),
    "rg_lru": Cell(
        {"w_gates": (5, 10), "b_gates": (10,), "decay": (5,)},
        _rg_lru,
        _plain(prnn_jax.rg_lru),
        input=HIDDEN,
    ),
    "lru": Cell(
        {
            **{"w_ih": (5, 6), "w_out": (6, 5), "nu_log": (3,), "theta_log": (3,)},
            **{"gamma_log": (3,), "skip": (5,)},
        },
        _lru,
        _plain(prnn_jax.lru),
        states=((6,),),
        holds=False,
        input=HIDDEN,
    ),
    "indrnn": Cell({**_gated(1), "w_hh": (HIDDEN,)}, _indrnn, _call_indrnn),
    "sru": Cell(
        {"w_ih": (5, 15), "b_ih": (10,)}, _sru, _CALL_SRU, holds=False, input=HIDDEN
    ),
    "sru-peepholes": Cell(
        {**_OF_SRU, "w_skip": (INPUT, HIDDEN), "peepholes": (2 * HIDDEN,)},
        _sru,
        _CALL_SRU,
        holds=False,
    ),
    **{f"qrnn-{pooling}": _qrnn_cell(pooling) for pooling in ("f", "fo", "ifo")},
}


def arrays_of(name: str, controls=(), *, directions: int = 1) -> dict:
    """Arguments of a call: x, weights, state, and what bends it."""
    cell, random = CELLS[name], np.random.default_rng(len(name))
    lead = (2,) * (directions - 1)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal((*lead, *shape)).astype(np.float32)

    def states() -> tuple:
        return tuple(normal(BATCH, *shape) for shape in cell.states)

    out = {
        "x": normal(BATCH, TIME, cell.input)[(0,) * len(lead)],
        "weights": {k: normal(*shape) for k, shape in cell.shapes.items()},
        "state": states(),
    }
    if "resets" in controls:
        out["resets"] = random.uniform(size=(BATCH, TIME)) < 0.3
        out["reset_to"] = states()
    if "lengths" in controls:
        out["lengths"] = np.array([7, 0, 4], np.int32)
    if "mask" in controls:
        out["mask"] = np.array([[1] * 7, [0] * 7, [0, 1, 1, 0, 0, 1, 0]])
    if "zoneout" in controls:
        shape = BATCH, TIME, HIDDEN * directions
        out["zoneout"] = (random.uniform(size=shape) < 0.4).astype(np.float32)
    return out


def by_loop(name: str, arrays: dict, *, xp=np, reverse=False, masked_y="hold"):
    """y and the last state by the equations; xp is NumPy, or jax.numpy to derive."""
    cell, state = CELLS[name], arrays["state"]
    time = arrays["x"].shape[1]
    counts = np.ones((len(arrays["x"]), time), bool)
    if "lengths" in arrays:
        counts = np.arange(time) < arrays["lengths"][:, None]
    if "mask" in arrays:
        counts = arrays["mask"] != 0
    is_held = "mask" in arrays and masked_y == "hold"

    def where(condition, new, old):
        return xp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    def step(carry, of_step):
        state, last = carry
        x, now, is_reset, k = of_step
        before = state
        if is_reset is not None:
            pairs = zip(arrays["reset_to"], state, strict=True)
            before = tuple(where(is_reset, *both) for both in pairs)
        k = 0.0 if k is None else k
        out, made = cell.step(xp, x, arrays["weights"], before, k)
        state = tuple(where(now, *both) for both in zip(made, state, strict=True))
        last = where(now, out, last)
        return (state, last), last if is_held else where(now, out, xp.zeros_like(out))

    sequences = arrays["x"], counts, arrays.get("resets"), arrays.get("zoneout")
    by_time = jax.tree.map(lambda v: xp.moveaxis(xp.asarray(v), 1, 0), sequences)
    first = state[0]
    if not cell.holds:  # as wide as y
        first = xp.zeros((*first.shape[:-1], HIDDEN), first.dtype)
    carry = state, first
    if xp is jnp:
        (state, _), y = jax.lax.scan(step, carry, by_time, reverse=reverse)
        return jnp.moveaxis(y, 0, 1), state
    y = {}
    for t in reversed(range(time)) if reverse else range(time):
        carry, y[t] = step(carry, jax.tree.map(lambda v, t=t: v[t], by_time))
    return np.stack([y[t] for t in range(time)], 1), carry[0]


def both_by_loop(name: str, arrays: dict, *, reverse=False, **options):
    """Two directions of the loop, y side by side and the states stacked."""
    out = []
    for n in range(2):
        sides = ("weights", "state", "reset_to")
        own = {
            k: jax.tree.map(operator.itemgetter(n), v) if k in sides else v
            for k, v in arrays.items()
        }
        if "zoneout" in own:
            own["zoneout"] = np.split(own["zoneout"], 2, -1)[n]
        out.append(by_loop(name, own, reverse=reverse != bool(n), **options))
    xp = options.get("xp", np)
    (y, state), (y_back, state_back) = out
    states = tuple(xp.stack(both) for both in zip(state, state_back, strict=True))
    return xp.concatenate([y, y_back], -1), states


def ours(name: str, arrays: dict, **options):
    """y and the state, as a tuple also where there is but one."""
    cell = CELLS[name]
    controls = {k: v for k, v in arrays.items() if k not in ("x", "weights", "state")}
    if "reset_to" in controls and len(cell.states) == 1:
        (controls["reset_to"],) = controls["reset_to"]
    y, state = cell.call(
        arrays["x"], arrays["weights"], arrays["state"], **controls, **options
    )
    return y, state if isinstance(state, tuple) else (state,)


def wide(arrays: dict) -> dict:
    """The same in float64."""
    return jax.tree.map(
        lambda v: v.astype(np.float64) if v.dtype.kind == "f" else v, arrays
    )


def with_gradients(run: Callable, arrays: dict):
    """What `run` gives, and gradients of weights, x and states; jitted."""
    names = [k for k in ("x", "weights", "state", "reset_to") if k in arrays]
    others = {k: v for k, v in arrays.items() if k not in names}

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(of_floats):
        out, vjp = jax.vjp(lambda floats: run({**floats, **others}), of_floats)
        weights = jax.tree.map(
            lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(y.dtype), out
        )
        return out, vjp(weights)[0]

    return both({name: arrays[name] for name in names})


def check(name: str, arrays: dict, loop=by_loop, *, of_ours=None, **options) -> None:
    """Outputs against NumPy in float64, gradients against jax.numpy in float64."""
    run = functools.partial(ours, name, **options, **(of_ours or {}))
    derived = functools.partial(loop, name, xp=jnp, **options)
    exact = loop(name, wide(arrays), **options)
    with float64():
        both = with_gradients(derived, wide(arrays))
        of_jax, gradients = jax.tree.map(np.asarray, both)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12),
        of_jax,
        exact,
    )
    of_loop = with_gradients(derived, arrays)
    # Sums over batch, steps and inputs are taken in another order than by the loop.
    found = with_gradients(run, arrays)
    assert_as_accurate(found, of_loop, (exact, gradients))
