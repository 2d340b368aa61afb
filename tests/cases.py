"""The table of cases: cells, sizes and options, each with a readable id."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import prnn_jax


@dataclass(frozen=True)
class CellCase:
    """A public function with the options that make it one cell."""

    function: Callable
    gates: int
    engine: str  # the cell's name in the native engine
    options: dict = field(default_factory=dict)
    states: int = 1
    per_unit: int = 0


CELLS = {
    "lstm": CellCase(prnn_jax.lstm, 4, "lstm", states=2),
    "lstm_peephole": CellCase(prnn_jax.lstm, 4, "lstm_peephole", states=2, per_unit=3),
    "lstm_general": CellCase(
        prnn_jax.lstm,
        4,
        "lstm_general",
        {
            "gate_activation": prnn_jax.Activation("hard_sigmoid", 0.2, 0.5),
            "activation": ("elu", "tanh"),
        },
        states=2,
    ),
    "slstm": CellCase(prnn_jax.slstm, 4, "slstm", states=4),
    "gru": CellCase(prnn_jax.gru, 3, "gru"),
    "gru_general": CellCase(
        prnn_jax.gru,
        3,
        "gru_general",
        {"gate_activation": "hard_sigmoid", "activation": "softsign"},
    ),
    "gru_reset_before": CellCase(
        prnn_jax.gru, 3, "gru_reset_before", {"reset_after": False}
    ),
    "rnn_tanh": CellCase(prnn_jax.rnn, 1, "rnn_tanh"),
    "rnn_tanh_skip": CellCase(prnn_jax.rnn, 1, "rnn_tanh", {"skip": 0.7}),
    "rnn_relu": CellCase(prnn_jax.rnn, 1, "rnn_relu", {"activation": "relu"}),
    "rnn_general": CellCase(
        prnn_jax.rnn,
        1,
        "rnn_general",
        {"activation": prnn_jax.Activation("scaled_tanh", 0.75, 0.5), "skip": 0.3},
    ),
    # The cap is low enough for many units to reach it.
    "rnn_clipped_relu_skip": CellCase(
        prnn_jax.rnn,
        1,
        "rnn_relu",
        {"activation": "clipped_relu", "cap": 0.4, "skip": 0.5},
    ),
}


#: Of the states, as the arrays of a case are called.
STATES = "h", "c", "n", "m"

#: Of a sequence: arguments that make a step another than the one before it.
CONTROLS = "lengths", "resets", "reset_to", "mask", "zoneout"


@dataclass(frozen=True)
class Case:
    """One call: a cell, sizes and options. With heads, hidden is that of a head."""

    cell: str
    time: int = 7
    batch: tuple[int, ...] = (3,)
    hidden: int = 33
    input_size: int = 5
    reverse: bool = False
    bidirectional: bool = False
    time_major: bool = False
    state: bool = False
    biases: tuple[str, ...] = ("b_ih", "b_hh")
    heads: int = 0
    controls: tuple[str, ...] = ()
    lean: bool = False

    def __str__(self) -> str:
        batch = "x".join(map(str, self.batch)) or "none"
        sizes = f"{self.cell}-T{self.time}-B{batch}-H{self.hidden}-I{self.input_size}"
        flags = [
            name
            for name in ("reverse", "bidirectional", "time_major", "state", "lean")
            if getattr(self, name)
        ]
        if len(self.biases) < 2:
            flags.append("only_" + self.biases[0] if self.biases else "no_bias")
        if self.heads:
            flags.append(f"heads{self.heads}")
        return "-".join([sizes, *flags, *self.controls])

    @property
    def table(self) -> CellCase:
        return CELLS[self.cell]

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def groups(self) -> int:
        return self.directions * max(self.heads, 1)

    @property
    def features(self) -> int:
        """Of a direction's y."""
        return self.hidden * max(self.heads, 1)

    @property
    def order(self) -> tuple[int, ...]:
        """Leading axes of a sequence."""
        return (self.time, *self.batch) if self.time_major else (*self.batch, self.time)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (*(2,) * self.bidirectional, *self.batch, self.features)

    @property
    def rows(self) -> int:
        return math.prod(self.batch)

    def inputs(self, dtype=jnp.float32) -> dict[str, np.ndarray]:
        """All arrays of the call by name: the same numbers, float32's, in any dtype."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        lead = (2,) * self.bidirectional + (self.heads,) * (self.heads > 0)
        wide = self.table.gates * self.hidden
        shapes = {
            "x": (*self.order, self.input_size),
            "w_ih": (*lead, self.input_size, wide),
            "w_hh": (*lead, self.hidden, wide),
            "b_ih": (*lead, wide),
            "b_hh": (*lead, wide),
        }
        states = STATES[: self.table.states]
        shapes |= {f"{name}_0": self.state_shape for name in ("h", "c", *states[2:])}
        shapes |= {f"reset_{name}": self.state_shape for name in states}
        if per_unit := self.table.per_unit:
            shapes["peepholes"] = (*lead, per_unit * self.hidden)
        scales = {"w_ih": self.input_size**-0.5, "w_hh": self.hidden**-0.5}
        absent = {"b_ih", "b_hh"} - set(self.biases)
        absent |= {f"{name}_0" for name in STATES if name not in states}
        if not self.state:
            absent |= {f"{name}_0" for name in states}
        if "reset_to" not in self.controls:
            absent |= {f"reset_{name}" for name in states}
        values = {
            name: random.standard_normal(shape) * scales.get(name, 0.5)
            for name, shape in shapes.items()
        }
        for name in ("n_0", "reset_n"):  # the sLSTM's normalizer is positive
            if name in values:
                values[name] = np.abs(values[name]) + 0.5
        return {
            name: value.astype(np.float32).astype(dtype)
            for name, value in values.items()
            if name not in absent
        }

    def control_arrays(self, dtype=jnp.float32) -> dict[str, np.ndarray]:
        """The controls that no gradient flows to, as arguments of the function."""
        random = np.random.default_rng(zlib.crc32(b"c" + str(self).encode()))
        lengths = random.integers(0, self.time + 1, self.batch)
        if lengths.size > 1:
            lengths.flat[0], lengths.flat[-1] = 0, self.time
        y = (*self.order, self.directions * self.features)
        zoneout = tuple(
            (random.random(y) < 0.3).astype(dtype) for _ in range(self.table.states)
        )
        every = {
            "lengths": lengths,
            "resets": random.random(self.order) < 0.25,
            "mask": ((random.random(self.state_shape) < 0.7) / 0.7).astype(dtype),
            "zoneout": zoneout,
        }
        return {
            "recurrent_mask" if name == "mask" else name: every[name]
            for name in self.controls
            if name in every
        }

    def cotangents(self, dtype=jnp.float32) -> tuple:
        """For y and the last state."""
        random = np.random.default_rng(zlib.crc32(b"d" + str(self).encode()))
        arrays = self.inputs()
        y = (*arrays["x"].shape[:-1], self.directions * self.features)
        shapes = (y, *(self.state_shape,) * self.table.states)
        dy, *dstate = (
            random.standard_normal(shape).astype(np.float32).astype(dtype)
            for shape in shapes
        )
        return dy, tuple(dstate)

    def state_of(self, arrays: dict[str, Array], pattern: str = "{}_0"):
        """The state among a case's arrays as the function takes it, or None."""
        names = [pattern.format(name) for name in STATES[: self.table.states]]
        if names[0] not in arrays:
            return None
        states = tuple(arrays[name] for name in names)
        return states if len(states) > 1 else states[0]

    def params(self, arrays: dict[str, Array]) -> prnn_jax.Params:
        weights = arrays["w_ih"], arrays["w_hh"]
        of_heads = self.heads and not self.bidirectional
        kind = prnn_jax.MultiHeadParams if of_heads else prnn_jax.Params
        others = (arrays.get(name) for name in ("b_ih", "b_hh", "peepholes"))
        return kind(*weights, *others)

    def prepared(
        self,
        arrays: dict[str, Array],
        batch: int | None = None,
        time: int = 0,
        weights: Literal["int8"] | None = None,
    ) -> dict[str, Array]:
        """And the weights packed, for calls of the case's sizes or others."""
        prepared = prnn_jax.prepare(
            self.table.function.__name__,
            self.params(arrays),
            batch=batch or max(self.rows, 1),
            time=time or max(self.time, 1),
            bidirectional=self.bidirectional,
            reset_after=self.table.options.get("reset_after", True),
            weights=weights,
        )
        if weights is not None:
            rounded = prepared.params
            arrays = {**arrays, "w_ih": rounded.w_ih, "w_hh": rounded.w_hh}
        return {**arrays, "packed": prepared.packed}

    def run(
        self, arrays: dict[str, Array], implementation: str | None = None
    ) -> tuple[Array, tuple[Array, ...]]:
        """y and the last state, as a tuple also where it is one array.

        Controls are the case's own, unless they are among the arrays.
        """
        params = self.params(arrays)
        if "packed" in arrays:
            params = prnn_jax.Prepared(params, arrays["packed"])

        controls = self.control_arrays(arrays["x"].dtype)
        controls |= {name: arrays[name] for name in controls if name in arrays}
        if "reset_to" in self.controls:
            controls["reset_to"] = self.state_of(arrays, "reset_{}")
        y, state = self.table.function(
            arrays["x"],
            params,
            self.state_of(arrays),
            **self.table.options,
            **controls,
            reserve="lean" if self.lean else "fast",
            reverse=self.reverse,
            bidirectional=self.bidirectional,
            time_major=self.time_major,
            implementation=implementation,
        )
        return y, state if isinstance(state, tuple) else (state,)

    def forward(self, implementation: str | None = None) -> Callable:
        """`arrays -> (y, state)`, compiled."""
        return jax.jit(lambda arrays: self.run(arrays, implementation))

    def gradient(self, implementation: str | None = None) -> Callable:
        """`(arrays, cotangents) -> gradients of all arrays by name`, compiled."""

        def gradient(arrays, cotangents):
            _, vjp = jax.vjp(lambda a: self.run(a, implementation), arrays)
            return vjp(cotangents)[0]

        return jax.jit(gradient)


def _sizes() -> list[Case]:
    """Every cell at sizes around those of SIMD vectors, blocks and panels."""
    cases = []
    for cell in CELLS:
        cases += [
            Case(cell, 33, (5,), 17, state=True),
            Case(cell, 2, (5,), 513, state=True),  # hidden-parallel on any processor
        ]
        # The same code as with skip and cap, or at least the same loops.
        if cell in ("rnn_tanh", "rnn_relu", "rnn_general", "gru_general"):
            continue
        cases += [
            Case(cell, 1, (1,), 1, 1),
            Case(cell, 7, (), 15, state=True),
            Case(cell, 2, (17,), 64),
        ]
    return cases


def _options() -> list[Case]:
    """The other dimensions of a call, for every kind of cell."""
    cases = []
    for cell in ("lstm", "slstm", "gru", "gru_reset_before", "rnn_tanh_skip"):
        cases += [
            Case(cell, reverse=True, state=True),
            Case(cell, bidirectional=True, state=True),
            Case(cell, bidirectional=True, reverse=True, time_major=True, state=True),
            Case(cell, batch=(2, 3), time_major=True, state=True),
        ]
    return [
        *cases,
        Case("lstm", 0, state=True),
        Case("slstm", 0, (2,), lean=True),
        Case("gru", 0, (), bidirectional=True),
        Case("gru_reset_before", batch=(0,), time_major=True, state=True),
        Case("lstm", batch=(3, 2), bidirectional=True, state=True),
        Case("gru", time_major=True, reverse=True),
        Case("lstm_peephole", bidirectional=True, reverse=True, time_major=True),
        Case("lstm_peephole", 8, (1,), 160, biases=()),
        Case("lstm", biases=()),
        Case("lstm", biases=("b_ih",), bidirectional=True),
        Case("gru", biases=("b_hh",)),
        Case("gru_reset_before", biases=("b_ih",)),
        Case("rnn_relu", biases=(), bidirectional=True),
        Case("lstm", 2, (1,), 2, 1),
        Case("lstm", 2, (2,), 16),
        Case("lstm", 33, (1,), 129),
        Case("gru", 7, (17,), 129, bidirectional=True, state=True),
        Case("gru", 8, (1,), 160),  # threads share the units, on any processor
        Case("slstm", 8, (1,), 160),
        Case("lstm_general", 8, (1,), 160),
        Case("gru_general", 8, (1,), 160),
        Case("rnn_tanh", 7, (1,), 257, 3),
        Case("lstm", 7, (5,), 257, reverse=True),
        Case("gru_reset_before", 7, (2,), 257, bidirectional=True, time_major=True),
    ]


def _controlled() -> list[Case]:
    """Lengths, resets, masks, heads, the lean reserve."""
    cases = []
    full = {"state": True, "controls": CONTROLS}
    some = {"controls": CONTROLS}
    kinds = "lstm", "lstm_peephole", "slstm", "gru", "gru_reset_before", "rnn_tanh_skip"
    general = "lstm_general", "gru_general", "rnn_general"
    for cell in kinds:
        if cell == "slstm":
            some = {"controls": ("lengths", "resets", "reset_to", "mask")}
        every = {"state": True, **some}
        cases += [
            Case(cell, batch=(5,), **every),
            Case(cell, batch=(5,), reverse=True, time_major=True, lean=True, **every),
            Case(cell, batch=(2, 3), bidirectional=True, heads=2, hidden=19, **every),
            Case(cell, 40, (3,), lean=True, reverse=cell == "lstm", **every),
            Case(cell, batch=(4,), reverse=True, state=True, controls=("lengths",)),
        ]
    for cell in general:
        cases += [
            Case(cell, batch=(5,), **full),
            Case(cell, 40, (3,), lean=True, reverse=True, **full),
        ]
    return [
        *cases,
        Case("lstm", batch=(17,), hidden=130, state=True, controls=("lengths",)),
        Case("lstm", 3, (4,), 513, state=True, controls=("resets", "mask")),
        Case("gru", 3, (4,), 520, controls=("lengths", "resets"), reverse=True),
        Case("rnn_clipped_relu_skip", 9, (5,), controls=("zoneout",)),
        Case("rnn_relu", 9, (5,), controls=("resets",), bidirectional=True),
        Case("lstm", 9, (), 20, state=True, controls=("lengths", "resets")),
        Case("lstm", heads=3, hidden=17, state=True),
        Case("slstm", heads=4, hidden=32, batch=(2,)),
        Case("gru", 50, (2,), 20, lean=True, bidirectional=True, state=True),
        Case("lstm", 53, (4,), 6, lean=True, bidirectional=True, reverse=True, **full),
        Case("rnn_tanh", 35, (3,), 6, heads=2, lean=True, **full),
        Case("lstm", 1, (1,), 1, 1, controls=("resets",)),
    ]


CASES = [*_sizes(), *_options(), *_controlled()]

#: One of each cell, small and with every option that adds an array: for tests of what
#: does not depend on sizes.
SMALL = [Case(cell, 5, (3,), 9, 4, state=True) for cell in CELLS]
