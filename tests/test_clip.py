"""Bounds inside of steps: against PyTorch's autograd in float64, and the options."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import float64
from test_activations import ALL as ACTIVATIONS

import prnn_jax
from prnn_jax import Activation, Clip
from prnn_jax._cells.activations import applied

torch = pytest.importorskip("torch")

TIME, BATCH, INPUT, HIDDEN, PROJECTION = 9, 3, 4, 6, 5


@dataclass(frozen=True)
class Step:
    """A cell, its options, and how often its bounds are met."""

    cell: str
    clip: Clip
    peepholes: bool = False
    projects: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        bounds = (n for n, k in self.clip._asdict().items() if k is not None)
        flags = ["peepholes"] * self.peepholes + ["w_hr"] * self.projects
        pair = ["pair"] * isinstance(self.clip.state, tuple)
        return "-".join([self.cell, *flags, *map(str, self.options), *bounds, *pair])


ALL = Clip(pre_activations=0.6, gradients=0.02)
LSTM = Clip(pre_activations=0.9, state=0.3, gradients=0.02)
STEPS = [
    *(Step("lstm", Clip(**{name: 0.3})) for name in ("pre_activations", "state")),
    *(Step(cell, Clip(gradients=0.02)) for cell in ("lstm", "gru", "rnn")),
    *(Step(cell, Clip(pre_activations=0.5)) for cell in ("gru", "rnn")),
    Step("lstm", LSTM),
    Step("lstm", Clip(state=(-0.1, 0.4))),
    Step("lstm", LSTM, peepholes=True),
    Step("lstm", LSTM._replace(projection=0.05), projects=True),
    Step("lstm", Clip(projection=0.05), peepholes=True, projects=True),
    Step("gru", ALL),
    Step("gru", ALL, options={"reset_after": False}),
    Step("rnn", ALL, options={"skip": 0.5}),
    Step("rnn", ALL, options={"activation": "relu"}),
    Step("lstm", LSTM, options={"reverse": True}),
]


def arrays_of(step: Step) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[step.cell]
    output = PROJECTION if step.projects else HIDDEN
    shapes = {
        "x": (BATCH, TIME, INPUT),
        "w_ih": (INPUT, gates * HIDDEN),
        "w_hh": (output, gates * HIDDEN),
        "b_ih": (gates * HIDDEN,),
        "b_hh": (gates * HIDDEN,),
        "h_0": (BATCH, output),
    }
    if step.cell == "lstm":
        shapes["c_0"] = BATCH, HIDDEN
    if step.peepholes:
        shapes["peepholes"] = (3 * HIDDEN,)
    if step.projects:
        shapes["w_hr"] = HIDDEN, PROJECTION
    return {name: 0.7 * random.standard_normal(s) for name, s in shapes.items()}


def cotangent(step: Step) -> np.ndarray:
    width = PROJECTION if step.projects else HIDDEN
    return np.random.default_rng(4).standard_normal((BATCH, TIME, width))


def ours(step: Step, arrays: dict, dtype=np.float64, **options) -> tuple[Any, Any]:
    """y with the last state, and the gradients by name."""
    arrays = {name: a.astype(dtype) for name, a in arrays.items()}

    def run(a):
        names = "w_ih", "w_hh", "b_ih", "b_hh", "peepholes", "w_hr"
        params = prnn_jax.Params(*map(a.get, names))
        state = (a["h_0"], a["c_0"]) if step.cell == "lstm" else a["h_0"]
        function = getattr(prnn_jax, step.cell)
        return function(
            a["x"], params, state, clip=step.clip, **step.options, **options
        )

    (y, state), vjp = jax.vjp(run, arrays)
    zeros = jax.tree.map(jnp.zeros_like, state)
    (gradients,) = vjp((jnp.asarray(cotangent(step), y.dtype), zeros))
    return jax.tree.map(np.asarray, ((y, state), gradients))


def by_torch(step: Step, arrays: dict) -> tuple[Any, Any]:
    """The same, step by step, with PyTorch's derivatives of its own operators."""
    a = {name: torch.tensor(v, requires_grad=True) for name, v in arrays.items()}
    clip, options = step.clip, step.options
    f = torch.relu if options.get("activation") == "relu" else torch.tanh

    def enter(v):
        if clip.gradients is not None:
            v.register_hook(lambda d: d.clamp(-clip.gradients, clip.gradients))
        k = clip.pre_activations
        return v if k is None else v.clamp(-k, k)

    def sides(h):
        return a["x"][:, t] @ a["w_ih"] + a["b_ih"], h @ a["w_hh"] + a["b_hh"]

    h, c = a["h_0"], a.get("c_0")
    times = range(TIME)[:: -1 if options.get("reverse") else 1]
    ys: dict[int, Any] = {}
    for t in times:
        if step.cell == "rnn":
            h = f(enter(sum(sides(h)) + options.get("skip", 0.0) * h))
        elif step.cell == "gru":
            (x_r, x_z, x_n), (h_r, h_z, h_n) = (s.chunk(3, -1) for s in sides(h))
            r, z = torch.sigmoid(enter(x_r + h_r)), torch.sigmoid(enter(x_z + h_z))
            inner = r * h_n
            if not options.get("reset_after", True):
                inner = (r * h) @ a["w_hh"].chunk(3, -1)[2] + a["b_hh"].chunk(3)[2]
            n = torch.tanh(enter(x_n + inner))
            h = (1 - z) * n + z * h
        else:
            i, forget, g, o = sum(sides(h)).chunk(4, -1)
            p_i, p_f, p_o = a["peepholes"].chunk(3) if step.peepholes else (0, 0, 0)
            i, forget = (
                torch.sigmoid(enter(v + p * c)) for v, p in ((i, p_i), (forget, p_f))
            )
            c = forget * c + i * torch.tanh(enter(g))
            if clip.state is not None:
                is_pair = isinstance(clip.state, tuple)
                low, high = clip.state if is_pair else (-clip.state, clip.state)
                c = c.clamp(low, high)
            h = torch.sigmoid(enter(o + p_o * c)) * torch.tanh(c)
            if step.projects:
                h = h @ a["w_hr"]
                k = clip.projection
                h = h if k is None else h.clamp(-k, k)
        ys[t] = h
    y = torch.stack([ys[t] for t in range(TIME)], 1)
    y.backward(torch.tensor(cotangent(step)))
    state = h if c is None else (h, c)
    out = jax.tree.map(lambda v: v.detach().numpy(), (y, state))
    return out, {name: v.grad.numpy() for name, v in a.items()}


@functools.cache
def exact(step_id: str) -> tuple[Any, Any]:
    step = next(s for s in STEPS if str(s) == step_id)
    return by_torch(step, arrays_of(step))


@pytest.mark.parametrize("reserve", ["fast", "lean"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_scan_is_what_pytorch_makes_of_the_equations(step, reserve):
    options = {"implementation": "scan", "reserve": reserve}
    with float64():
        ours_now = ours(step, arrays_of(step), **options)
    # Sums in another order, in float64.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-13),
        ours_now,
        exact(str(step)),
    )


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_bounds_are_met(step):
    """Else the test above would see nothing of them."""
    arrays = arrays_of(step)
    for name, bound in step.clip._asdict().items():
        if bound is None:
            continue
        rest = step.clip._replace(**{name: None})
        without = Step(step.cell, rest, step.peepholes, step.projects, step.options)
        (y, _), gradients = exact(str(step))
        (y_without, _), others = by_torch(without, arrays)
        assert (name == "gradients") == np.array_equal(y, y_without)
        assert abs(gradients["w_hh"] - others["w_hh"]).max() > 1e-3


BAD = {
    "a number": ("lstm", 3.0, "clip must be a prnn_jax.Clip"),
    "zero": ("gru", Clip(0.0), "clip.pre_activations must be positive and finite"),
    "infinite": ("rnn", Clip(gradients=np.inf), "clip.gradients must be positive"),
    "three ends": ("lstm", Clip(state=(1.0, 2.0, 3.0)), "must be a number or a pair"),
    "ends in disorder": ("lstm", Clip(state=(1.0, -1.0)), "the smaller one first"),
    "ends of an array": (
        "lstm",
        Clip(state=np.array([1, -1])),
        "the smaller one first",
    ),
    "c of a GRU": ("gru", Clip(state=1.0), "clip.state must be None for the gru"),
    "h of an RNN": ("rnn", Clip(projection=1.0), "clip.projection must be None for"),
    "no projection": ("lstm", Clip(projection=1.0), "must be None without params.w_hr"),
    "sLSTM": ("slstm", Clip(1.0), "clip must be None for the slstm"),
    "no product": ("min_gru", Clip(1.0), "clip must be"),
}


@pytest.mark.parametrize(("cell", "clip", "message"), BAD.values(), ids=BAD)
def test_bad_bounds_are_named(cell, clip, message):
    params = prnn_jax.init(cell, jax.random.key(0), 4, 8)
    with pytest.raises(ValueError, match=f"stack.*: .*{message}"):
        prnn_jax.stack(cell, jnp.zeros((2, 4)), [params], clip=clip)


def test_a_cell_of_ones_own_has_none():
    cell = prnn_jax.normed("lstm")
    params = cell.init(jax.random.key(0), 4, 8)
    with pytest.raises(ValueError, match="layer_norm_lstm has no clip"):
        prnn_jax.stack(cell, jnp.zeros((2, 4)), [params], clip=Clip(1.0))


def test_no_bounds_are_no_clip():
    params = prnn_jax.init("lstm", jax.random.key(0), 4, 8)
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))
    program = jax.jit(functools.partial(prnn_jax.lstm, clip=Clip())).lower(x, params)
    plain = jax.jit(functools.partial(prnn_jax.lstm, clip=None)).lower(x, params)
    assert program.as_text() == plain.as_text()


@pytest.mark.parametrize("implementation", [None, "scan"])
def test_nan_passes(implementation):
    step = Step("lstm", LSTM)
    arrays = arrays_of(step)
    arrays["x"][0, 2] = np.nan
    (y, (_, c)), gradients = ours(
        step, arrays, np.float32, implementation=implementation
    )
    assert np.isnan(y[0, 2:]).all()
    assert np.isnan(c[0]).all()
    assert np.isfinite(y[1:]).all()
    assert np.isnan(gradients["w_hh"]).any()


@pytest.mark.parametrize("implementation", [None, "scan"])
def test_forward_mode_is_of_values_alone(implementation):
    params = prnn_jax.init("gru", jax.random.key(0), 4, 8)
    x = jax.random.normal(jax.random.key(1), (3, 5, 4))

    def tangent(clip):
        def run(x):
            return prnn_jax.gru(x, params, clip=clip, implementation=implementation)[0]

        return jax.jvp(run, (x,), (jnp.ones_like(x),))[1]

    with pytest.raises(
        TypeError, match=r"does not go through Clip\(gradients=...\); p"
    ):
        tangent(ALL)
    if implementation == "scan":
        assert jnp.isfinite(tangent(Clip(0.6))).all()


FALLS = Activation("scaled_tanh", 1.5, -0.75)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, FALLS], ids=str)
def test_ends_of_activations_are_theirs(activation):
    for bound in (0.3, 3.0, 50.0):
        f = applied("", "activation", activation).clipped(Clip(bound))
        with float64():
            wanted = jnp.sort(f(jnp.asarray([-bound, bound])))
        np.testing.assert_allclose(f.ends, wanted, rtol=1e-12)
