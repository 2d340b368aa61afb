"""Cases of prnn_jax.stack: the arrays, the call, and the same by hand."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import prnn_jax
from prnn_jax import Layer, Norm, Params

IN, HIDDEN, TIME, BATCH = 5, 6, 7, 2
KEY = random.key(3)
GATES = {"lstm": 4, "slstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "slstm": 4, "gru": 1, "rnn": 1}
#: Cells without a product in a step.
LINEAR = "min_gru", "min_lstm", "sru", "qrnn", "rg_lru", "lru", "indrnn"


@dataclass(frozen=True, eq=False)
class Case:
    """A stack: its layers' number and kind, and options of `stack`.

    `of_cell` goes to the cell's function too.
    """

    cell: str = "lstm"
    layers: int = 3
    heads: int = 0
    norm: bool = False
    controls: bool = False
    state: bool = False
    key: bool = True
    noise: dict[str, Any] = field(default_factory=dict)
    of_cell: dict[str, Any] = field(default_factory=dict)
    skip_connections: bool = False

    def __str__(self) -> str:
        flags = [n for n in ("norm", "controls", "state") if getattr(self, n)]
        flags += ["skip_connections"] * self.skip_connections + ["eval"] * (
            not self.key
        )
        heads = [f"heads{self.heads}"] * bool(self.heads)
        return "-".join([self.cell, *heads, *flags, *self.noise, *self.of_cell])

    @property
    def is_linear(self) -> bool:
        return self.cell in LINEAR

    @property
    def directions(self) -> int:
        return 1 + self.of_cell.get("bidirectional", False)

    def arrays(self, dtype=np.float32, input_size: int = IN) -> dict[str, Any]:
        """x, layers, and what else the stack takes as arrays."""
        input_size = HIDDEN if self.cell == "rg_lru" else input_size
        rng = np.random.default_rng(4)
        lead = (2,) * (self.directions - 1)
        heads = (self.heads,) * bool(self.heads)
        hidden = HIDDEN // (self.heads or 1)
        wide = GATES.get(self.cell, 0) * hidden
        width = HIDDEN * (self.directions if self._concat else 1)

        def normal(*shape, scale=0.5):
            drawn = scale * rng.standard_normal(shape)
            return drawn.astype(np.float32).astype(dtype)

        def params_of(size):
            if self.is_linear:
                own = {k: v for k, v in self.of_cell.items() if k == "pooling"}
                own["bidirectional"] = self.directions == 2
                drawn = prnn_jax.init(self.cell, KEY, size, HIDDEN, **own)
                return jax.tree.map(lambda array: normal(*array.shape), drawn)
            return Params(
                normal(*lead, *heads, size, wide),
                normal(*lead, *heads, hidden, wide),
                normal(*lead, *heads, wide),
                normal(*lead, *heads, wide),
            )

        def layer(size):
            params = params_of(size)
            norm = Norm(1 + normal(size), normal(size)) if self.norm else None
            return Layer(params, norm)

        sizes = [input_size] + [width] * (self.layers - 1)

        def states(size):
            if self.cell == "qrnn":  # which keeps the last input
                c = normal(*lead, BATCH, HIDDEN)
                return c, normal(*lead, BATCH, 1, size)
            if self.cell == "lru":  # of two parts
                return normal(*lead, BATCH, 2 * HIDDEN)
            count = STATES.get(self.cell, 1)
            arrays = [normal(*lead, BATCH, HIDDEN) for _ in range(count)]
            if self.cell == "slstm":
                arrays[2] = np.abs(arrays[2]) + 1  # n, which divides
            return tuple(arrays) if count > 1 else arrays[0]

        steps = (TIME, BATCH) if self.of_cell.get("time_major") else (BATCH, TIME)
        arrays: dict[str, Any] = {
            "x": normal(*steps, input_size, scale=1),
            "layers": [layer(size) for size in sizes],
        }
        if self.state:
            arrays["state_0"] = [states(size) for size in sizes]
        if self.controls:
            arrays["lengths"] = np.array([TIME, TIME - 3])
            arrays["resets"] = (rng.random(steps) < 0.3).astype(np.int32)
            arrays["reset_to"] = [states(size) for size in sizes]
        return arrays

    @property
    def _concat(self) -> bool:
        return self.of_cell.get("merge", "concat") == "concat"

    def run(self, arrays, **options) -> tuple:
        """y and the states."""
        return prnn_jax.stack(
            self.cell,
            **arrays,
            key=KEY if self.key else None,
            skip_connections=self.skip_connections,
            **self.noise,
            **{"implementation": "scan", **self.of_cell, **options},
        )

    def by_hand(self, arrays) -> tuple:
        """The same from the cell's own function, layer by layer."""
        x, states = arrays["x"], []
        count = len(arrays["layers"])
        nothing = [None] * count
        for n, layer in enumerate(arrays["layers"]):
            masks = self.masks(n, x, last=n == count - 1)
            u = x if layer.norm is None else layer_norm(x, *layer.norm)
            y, state = self._layer_by_hand(
                u,
                layer.params,
                arrays.get("state_0", nothing)[n],
                masks,
                lengths=arrays.get("lengths"),
                resets=arrays.get("resets"),
                reset_to=arrays.get("reset_to", nothing)[n],
                implementation="scan",
                **{k: v for k, v in self.of_cell.items() if k != "reserve"},
            )
            y = y * masks["dropout"]
            if self.skip_connections and y.shape == x.shape:
                if "lengths" in arrays:
                    counts = np.arange(TIME) < arrays["lengths"][:, None]
                    x = jnp.where(counts[:, :, None], x, 0)
                y = y + x
            x = y
            states.append(state)
        return x, tuple(states)

    def _layer_by_hand(self, u, params, state_0, masks, **options) -> tuple:
        function, zoneout = getattr(prnn_jax, self.cell), masks["zoneout"]
        if not self.is_linear:
            if self.cell != "slstm":
                options["zoneout"] = zoneout
            recurrent = masks["recurrent"]
            return function(u, params, state_0, recurrent_mask=recurrent, **options)
        if self.cell == "qrnn":
            is_drawn = isinstance(zoneout, tuple)
            options["zoneout"] = zoneout[0] if is_drawn else zoneout
        name = {"sru": "c_0", "qrnn": "state_0"}.get(self.cell, "h_0")
        return function(u, **params, **{name: state_0}, **options)

    def masks(self, n: int, x, *, last: bool) -> dict[str, Any]:
        """As the docstring of `stack` says they are drawn."""
        zoneout = self.noise.get("zoneout", 0.0)
        if not self.key:
            return {"dropout": 1.0, "recurrent": None, "zoneout": zoneout or None}
        keys = [random.fold_in(random.fold_in(KEY, n), kind) for kind in range(3)]

        def draw(key, share, shape):
            return random.bernoulli(key, np.float32(share), shape).astype(x.dtype)

        width = HIDDEN * self.directions
        lead = (2,) * (self.directions - 1)
        masks: dict[str, Any] = {"dropout": 1.0, "recurrent": None, "zoneout": None}
        if (rate := self.noise.get("dropout")) and not last:
            shape = (*x.shape[:-1], width if self._concat else HIDDEN)
            masks["dropout"] = draw(keys[0], 1 - rate, shape) / (1 - rate)
        if rate := self.noise.get("recurrent_dropout"):
            drawn = draw(keys[1], 1 - rate, (*lead, BATCH, HIDDEN))
            masks["recurrent"] = drawn / (1 - rate)
        if zoneout:
            count = STATES.get(self.cell, 1)
            rates = zoneout if isinstance(zoneout, tuple) else (zoneout,) * count
            masks["zoneout"] = tuple(
                draw(random.fold_in(keys[2], i), rate, (*x.shape[:-1], width))
                for i, rate in enumerate(rates)
            )
        return masks


def layer_norm(x, scale, bias):
    centred = x - jnp.mean(x, -1, keepdims=True)
    return (
        centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * scale
        + bias
    )


def gradients_of(run):
    """y, the states, and gradients of all floating arrays, by some function of both."""

    def of(arrays):
        floats = {k: v for k, v in arrays.items() if k not in ("lengths", "resets")}
        rest = {k: v for k, v in arrays.items() if k in ("lengths", "resets")}

        def loss(floats):
            out = run({**floats, **rest})
            return sum(jnp.sum(jnp.sin(3 * a + 1)) for a in jax.tree.leaves(out)), out

        grads, out = jax.grad(loss, has_aux=True)(floats)
        return out, grads

    return of


def restack(tree: dict[str, Any], first: int) -> dict[str, Any]:
    """The arrays of a stack with the layers from `first` on stacked."""

    def join(parts):
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *parts)

    tree = dict(tree)
    for name in {"layers", "state_0", "reset_to"} & set(tree):
        joined = join(tree[name][first:])
        if name == "layers":
            joined = Layer(joined.params, joined.norm, stacked=True)
        tree[name] = [*tree[name][:first], joined]
    return tree


def restack_out(out: tuple, first: int) -> tuple:
    """What `stack` returns for stacked layers, from what it returns for the others."""
    y, states = out
    return y, tuple(restack({"state_0": states}, first)["state_0"])


LINEAR_CASES = [
    Case(
        "min_gru",
        norm=True,
        controls=True,
        state=True,
        noise={"dropout": 0.3},
        skip_connections=True,
    ),
    Case("min_lstm", norm=True, of_cell={"bidirectional": True, "activation": "tanh"}),
    Case("sru", state=True, of_cell={"activation": "tanh", "skip_scale": 1.2}),
    Case(
        "qrnn",
        controls=True,
        state=True,
        noise={"dropout": 0.3, "zoneout": 0.25},
        of_cell={"pooling": "ifo", "bidirectional": True},
    ),
    Case("qrnn", norm=True, key=False, noise={"dropout": 0.3, "zoneout": 0.25}),
    Case("lru", controls=True, state=True, of_cell={"bidirectional": True}),
    Case("lru", norm=True, skip_connections=True),
    Case("rg_lru", skip_connections=True, of_cell={"c": 4.0}),
    Case(
        "indrnn",
        controls=True,
        state=True,
        of_cell={"bidirectional": True, "merge": "sum", "time_major": True},
    ),
]
ALL = {"dropout": 0.3, "recurrent_dropout": 0.2, "zoneout": 0.25}
CASES = [
    Case(),
    Case(norm=True, state=True, noise={"dropout": 0.5}),
    Case(norm=True, controls=True, state=True, noise=ALL, skip_connections=True),
    Case(norm=True, controls=True, key=False, noise=ALL, skip_connections=True),
    Case(noise={"zoneout": (0.1, 0.4)}, of_cell={"reserve": "lean"}),
    Case(
        "gru",
        state=True,
        noise=ALL,
        of_cell={"bidirectional": True, "time_major": True},
    ),
    Case(
        "gru",
        heads=2,
        controls=True,
        noise=ALL,
        of_cell={"bidirectional": True, "reset_after": False},
    ),
    Case(
        "rnn",
        norm=True,
        state=True,
        noise=ALL,
        skip_connections=True,
        of_cell={
            "bidirectional": True,
            "merge": "sum",
            "activation": "clipped_relu",
            "cap": 0.8,
            "skip": 0.5,
        },
    ),
    Case(
        "slstm",
        heads=3,
        controls=True,
        state=True,
        noise={"dropout": 0.3, "recurrent_dropout": 0.2},
    ),
]
