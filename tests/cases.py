"""The table of cases: cells, sizes and options, each with a readable id."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

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


CELLS = {
    "lstm": CellCase(prnn_jax.lstm, 4, "lstm", states=2),
    "gru": CellCase(prnn_jax.gru, 3, "gru"),
    "gru_reset_before": CellCase(
        prnn_jax.gru, 3, "gru_reset_before", {"reset_after": False}
    ),
    "rnn_tanh": CellCase(prnn_jax.rnn, 1, "rnn_tanh"),
    "rnn_tanh_skip": CellCase(prnn_jax.rnn, 1, "rnn_tanh", {"skip": 0.7}),
    "rnn_relu": CellCase(prnn_jax.rnn, 1, "rnn_relu", {"activation": "relu"}),
    # The cap is low enough for many units to reach it.
    "rnn_clipped_relu_skip": CellCase(
        prnn_jax.rnn,
        1,
        "rnn_relu",
        {"activation": "clipped_relu", "cap": 0.4, "skip": 0.5},
    ),
}


@dataclass(frozen=True)
class Case:
    """One call: a cell, sizes and options."""

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

    def __str__(self) -> str:
        batch = "x".join(map(str, self.batch)) or "none"
        sizes = f"{self.cell}-T{self.time}-B{batch}-H{self.hidden}-I{self.input_size}"
        flags = [
            name
            for name in ("reverse", "bidirectional", "time_major", "state")
            if getattr(self, name)
        ]
        if len(self.biases) < 2:
            flags.append("only_" + self.biases[0] if self.biases else "no_bias")
        return "-".join([sizes, *flags])

    @property
    def table(self) -> CellCase:
        return CELLS[self.cell]

    @property
    def groups(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def rows(self) -> int:
        return math.prod(self.batch)

    def inputs(self, dtype=jnp.float32) -> dict[str, np.ndarray]:
        """All arrays of the call by name: the same numbers, float32's, in any dtype."""
        random = np.random.default_rng(zlib.crc32(str(self).encode()))
        lead = (2,) * self.bidirectional
        wide = self.table.gates * self.hidden
        order = (
            (self.time, *self.batch) if self.time_major else (*self.batch, self.time)
        )
        shapes = {
            "x": (*order, self.input_size),
            "w_ih": (*lead, self.input_size, wide),
            "w_hh": (*lead, self.hidden, wide),
            "b_ih": (*lead, wide),
            "b_hh": (*lead, wide),
            "h_0": (*lead, *self.batch, self.hidden),
            "c_0": (*lead, *self.batch, self.hidden),
        }
        scales = {"w_ih": self.input_size**-0.5, "w_hh": self.hidden**-0.5}
        absent = {"b_ih", "b_hh"} - set(self.biases)
        absent |= set(("h_0", "c_0")[self.table.states if self.state else 0 :])
        values = {
            name: random.standard_normal(shape) * scales.get(name, 0.5)
            for name, shape in shapes.items()
        }
        return {
            name: value.astype(np.float32).astype(dtype)
            for name, value in values.items()
            if name not in absent
        }

    def cotangents(self, dtype=jnp.float32) -> tuple:
        """For y and the last state."""
        random = np.random.default_rng(zlib.crc32(b"d" + str(self).encode()))
        arrays = self.inputs()
        lead = (2,) * self.bidirectional
        y = (*arrays["x"].shape[:-1], self.groups * self.hidden)
        shapes = (y, *((*lead, *self.batch, self.hidden),) * self.table.states)
        dy, *dstate = (
            random.standard_normal(shape).astype(np.float32).astype(dtype)
            for shape in shapes
        )
        return dy, tuple(dstate)

    def run(
        self, arrays: dict[str, Array], implementation: str | None = None
    ) -> tuple[Array, tuple[Array, ...]]:
        """y and the last state, as a tuple also where it is one array."""
        params = prnn_jax.Params(
            arrays["w_ih"], arrays["w_hh"], arrays.get("b_ih"), arrays.get("b_hh")
        )
        state_0 = None
        if "h_0" in arrays:
            state_0 = arrays["h_0"]
            if self.table.states == 2:
                state_0 = (arrays["h_0"], arrays["c_0"])
        y, state = self.table.function(
            arrays["x"],
            params,
            state_0,
            **self.table.options,
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
            Case(cell, 2, (3,), 513, state=True),  # so large that threads share units
        ]
        if cell in ("rnn_tanh", "rnn_relu"):  # the same code as with skip and cap
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
    for cell in ("lstm", "gru", "gru_reset_before", "rnn_tanh_skip"):
        cases += [
            Case(cell, reverse=True, state=True),
            Case(cell, bidirectional=True, state=True),
            Case(cell, bidirectional=True, reverse=True, time_major=True, state=True),
            Case(cell, batch=(2, 3), time_major=True, state=True),
        ]
    return [
        *cases,
        Case("lstm", 0, state=True),
        Case("gru", 0, (), bidirectional=True),
        Case("gru_reset_before", batch=(0,), time_major=True, state=True),
        Case("lstm", batch=(3, 2), bidirectional=True, state=True),
        Case("gru", time_major=True, reverse=True),
        Case("lstm", biases=()),
        Case("lstm", biases=("b_ih",), bidirectional=True),
        Case("gru", biases=("b_hh",)),
        Case("gru_reset_before", biases=("b_ih",)),
        Case("rnn_relu", biases=(), bidirectional=True),
        Case("lstm", 2, (1,), 2, 1),
        Case("lstm", 2, (2,), 16),
        Case("lstm", 33, (1,), 129),
        Case("gru", 7, (17,), 129, bidirectional=True, state=True),
        Case("rnn_tanh", 7, (1,), 257, 3),
        Case("lstm", 7, (5,), 257, reverse=True),
        Case("gru_reset_before", 7, (2,), 257, bidirectional=True, time_major=True),
    ]


CASES = [*_sizes(), *_options()]

#: One of each cell, small and with every option that adds an array: for tests of what
#: does not depend on sizes.
SMALL = [Case(cell, 5, (3,), 9, 4, state=True) for cell in CELLS]
