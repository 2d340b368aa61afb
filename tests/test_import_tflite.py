"""Recurrent operators of LiteRT, beside its interpreter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_as_accurate
from tflite_support import Graph, Quantized, file_of, interpreted

import prnn_jax
from prnn_jax import Activation
from prnn_jax.convert import import_tflite

BATCH, TIME, IN, HIDDEN, AUX, WIDE = 3, 7, 5, 6, 4, 4
GATES = "ifco"


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f") / 2


@dataclass
class Case:
    """An operator, and what prnn_jax is to make of it."""

    name: str
    kind: str = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    time_major: bool = False
    cifg: bool = False
    peepholes: bool = False
    projection: bool = False
    norm: bool = False
    merge: bool = True
    aux: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
    store: Callable = lambda array: array

    @property
    def both_ways(self) -> bool:
        return self.kind.startswith("BI")

    @property
    def is_lstm(self) -> bool:
        return self.kind.endswith("LSTM")

    @property
    def output(self) -> int:
        return WIDE if self.projection else HIDDEN

    @property
    def aux_width(self) -> int:
        return AUX if self.aux == "weights" else IN

    def rows(self, features: int) -> tuple[int, int, int]:
        lead = (TIME, BATCH) if self.time_major else (BATCH, TIME)
        return (*lead, features)


@dataclass
class Builder:
    """The graph of a case."""

    case: Case
    graph: Graph = field(default_factory=Graph)

    def constant(self, name: str, *shape: int, store: Callable | None = None):
        array = random(*shape, seed=sum(map(ord, name)))
        return self.graph.constant(name, store(array) if store else array)

    def gates(self, name: str, *shape: int, store=None, of=GATES) -> list:
        return [
            None
            if gate == "i" and self.case.cifg
            else self.constant(name + gate, *shape, store=store)
            for gate in of
        ]

    def lstm(self, side: str) -> list:
        case, out = self.case, self.case.output
        peepholes: list = [None] * 3
        if case.peepholes:
            peepholes = self.gates(f"{side}p", HIDDEN, of="ifo")
        projection = None
        if case.projection:
            projection = self.constant(f"{side}proj", out, HIDDEN, store=case.store)
        return [
            *self.gates(f"{side}w", HIDDEN, IN, store=case.store),
            *self.gates(f"{side}r", HIDDEN, out, store=case.store),
            *peepholes,
            *self.gates(f"{side}b", HIDDEN),
            *(projection, None),
        ]

    def states(self, side: str) -> list:
        names = [self.graph.value(f"{side}h", BATCH, self.case.output, variable=True)]
        if self.case.is_lstm:
            names.append(self.graph.value(f"{side}c", BATCH, HIDDEN, variable=True))
        return names

    def rnn(self, side: str) -> list:
        weights = self.constant(f"{side}w", HIDDEN, IN, store=self.case.store)
        recurrent = self.constant(f"{side}r", HIDDEN, HIDDEN, store=self.case.store)
        return [weights, recurrent, self.constant(f"{side}b", HIDDEN)]

    def build(self) -> bytes:
        case, graph = self.case, self.graph
        graph.value("x", *case.rows(IN))
        graph.inputs = ["x"]
        sides = "fb" if case.both_ways else "f"
        if case.is_lstm:
            inputs = [one for side in sides for one in self.lstm(side)]
            inputs += [one for side in sides for one in self.states(side)]
        else:
            parts = [(*self.rnn(side), *self.states(side)) for side in sides]
            inputs = [one for part in parts for one in part]
        if case.norm:
            inputs += self.gates("norm", HIDDEN, store=lambda a: a + 1)
        aux, weights = None, [None] * (8 if case.is_lstm else 2)
        if case.aux:
            aux = graph.value("aux", *case.rows(case.aux_width))
            graph.inputs.append(aux)
        if case.aux == "weights" and case.is_lstm:
            parts = [self.gates(f"{side}a", HIDDEN, AUX) for side in sides]
            weights = [one for part in parts for one in part]
        elif case.aux == "weights":
            weights = [self.constant(f"{side}a", HIDDEN, AUX) for side in sides]
        inputs += [aux, *weights] if case.both_ways else []
        joined = case.both_ways and case.merge
        outputs = [graph.value("y", *case.rows(case.output * (2 if joined else 1)))]
        if case.both_ways and not case.merge:
            outputs.append(graph.value("y_b", *case.rows(case.output)))
        table = {
            "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
            "BIDIRECTIONAL_SEQUENCE_LSTM": "BidirectionalSequenceLSTMOptions",
            "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
            "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions",
        }[case.kind]
        options = {"FusedActivationFunction": 4, "TimeMajor": case.time_major}
        if case.both_ways:
            options["MergeOutputs"] = case.merge
        options |= case.options
        graph.add(case.kind, ["x", *inputs], outputs, table, **options)
        graph.outputs = outputs
        return file_of(graph)


LSTM, BOTH = "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"
RNN, BOTH_RNN = "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"
CASES = [
    Case("plain"),
    Case("time-major", time_major=True, expected={"time_major": True}),
    Case("peepholes", peepholes=True),
    Case("coupled", cifg=True),
    Case("coupled-peepholes", cifg=True, peepholes=True),
    Case("projection", projection=True),
    Case(
        "all-clipped",
        cifg=True,
        peepholes=True,
        projection=True,
        options={"CellClip": 0.25, "ProjClip": 0.125},
        expected={"clip": prnn_jax.Clip(state=0.25, projection=0.125)},
    ),
    Case(
        "cell-clip",
        options={"CellClip": 0.25, "ProjClip": 0.125},
        expected={"clip": prnn_jax.Clip(state=0.25)},
    ),
    Case("norm", norm=True),
    Case("norm-coupled", norm=True, cifg=True),
    Case(
        "relu",
        options={"FusedActivationFunction": 1},
        expected={"activation": "relu"},
    ),
    Case(
        "relu6",
        options={"FusedActivationFunction": 3},
        expected={"activation": Activation("clipped_relu", 6.0)},
    ),
    Case(
        "relu1",
        options={"FusedActivationFunction": 2},
        expected={"activation": "hard_tanh"},
    ),
    # Where outputs are merged, LiteRT 2.3 reads states that nothing has written.
    Case("both", BOTH, merge=False, expected={"bidirectional": True}),
    Case("both-time", BOTH, merge=False, time_major=True),
    Case("both-cross", BOTH, merge=False, aux="weights"),
    Case("both-apart", BOTH, merge=False, aux="input"),
    Case(
        "both-all",
        BOTH,
        merge=False,
        cifg=True,
        peepholes=True,
        projection=True,
        options={"CellClip": 0.25, "ProjClip": 0.125},
    ),
    Case("rnn", RNN),
    Case("rnn-time", RNN, time_major=True),
    Case(
        "rnn-linear",
        RNN,
        options={"FusedActivationFunction": 0},
        expected={"activation": "linear"},
    ),
    Case(
        "rnn-relu6",
        RNN,
        options={"FusedActivationFunction": 3},
        expected={"activation": Activation("clipped_relu", 6.0)},
    ),
    Case("rnn-both", BOTH_RNN),
    Case("rnn-both-apart", BOTH_RNN, merge=False),
    Case("rnn-both-cross", BOTH_RNN, aux="weights"),
    Case("rnn-both-two-inputs", BOTH_RNN, time_major=True, aux="input"),
]


def in_float64(net: Any, x: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), net)
        y, _ = wide(jnp.asarray(x, jnp.float64), implementation="scan")
        return np.asarray(y)


def assert_is_litert(net: Any, data: bytes, inputs: Sequence[np.ndarray]) -> None:
    """Our y and LiteRT's are both as exact as a scan in float32."""
    x = np.concatenate(inputs, -1)
    scan, _ = net(x, implementation="scan")
    scan, exact = np.asarray(scan), in_float64(net, x)
    assert_as_accurate(np.asarray(net(x)[0]), scan, exact)
    assert_as_accurate(np.concatenate(interpreted(data, *inputs), -1), scan, exact)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_computes_what_litert_does(case):
    data = Builder(case).build()
    net = import_tflite(data)
    inputs = [random(*case.rows(IN), seed=1) * 4]
    if case.aux:
        inputs.append(random(*case.rows(case.aux_width), seed=2) * 4)
    assert_is_litert(net, data, inputs)
    for name, value in case.expected.items():
        assert getattr(net, name) == value
    assert net.name == "y"


def test_options_that_are_not_there_are_zeros():
    """So LiteRT has it: batch first, and no activation."""
    builder = Builder(Case("plain", RNN))
    builder.build()
    graph = builder.graph
    kind, inputs, outputs, *_ = graph.operators[0]
    graph.operators[0] = kind, inputs, outputs, "", {}
    data = file_of(graph)
    net = import_tflite(data)
    assert not net.time_major
    assert net.activation == "linear"
    assert_is_litert(net, data, [random(BATCH, TIME, IN, seed=1)])


def test_merged_directions_are_side_by_side():
    apart = import_tflite(Builder(Case("apart", BOTH, merge=False)).build())
    merged = import_tflite(Builder(Case("merged", BOTH)).build())
    x = random(BATCH, TIME, IN)
    np.testing.assert_array_equal(apart(x)[0], merged(x)[0])


def test_a_coupled_input_gate_is_one_minus_the_forget_gate():
    params = import_tflite(Builder(Case("coupled", cifg=True)).build()).layers[0]
    i, f, *_ = jnp.split(params.w_hh, 4, -1)
    np.testing.assert_array_equal(i, -f)


@pytest.mark.parametrize("first", [1, 18], ids=["forward", "backward"])
def test_one_direction_alone_may_be_coupled(first):
    builder = Builder(Case("both", BOTH, merge=False, aux="weights"))
    builder.build()
    inputs = builder.graph.operators[0][1]
    of_aux = 40 if first == 1 else 44
    for place in (first, first + 4, first + 11, of_aux):
        inputs[place] = None
    data = file_of(builder.graph)
    x = [random(BATCH, TIME, width, seed=1) for width in (IN, AUX)]
    assert_is_litert(import_tflite(data), data, x)


def test_a_diagonal_is_a_matrix():
    case = Case("diagonal", options={"DiagonalRecurrentTensors": True})
    builder = Builder(case)
    builder.gates = lambda name, *shape, store=None, of=GATES: [
        builder.constant(name + g, *(shape[:1] if name == "fr" else shape), store=store)
        for g in of
    ]
    data = builder.build()
    assert_is_litert(import_tflite(data), data, [random(BATCH, TIME, IN, seed=1)])


def in_8_bits(array: np.ndarray) -> Quantized:
    scale = np.abs(array).max() / 127
    return Quantized(np.round(array / scale).astype("i1"), scale)


def in_8_bits_per_row(array: np.ndarray) -> Quantized:
    scale = np.abs(array).max(1) / 127
    return Quantized(np.round(array / scale[:, None]).astype("i1"), scale)


@pytest.mark.parametrize("kind", [LSTM, RNN])
@pytest.mark.parametrize("store", [in_8_bits, in_8_bits_per_row])
def test_weights_of_8_bits_are_what_they_stand_for(kind, store):
    """LiteRT rounds x and h to 8 bits, too, and so is less exact."""
    whole, case = Case("whole", kind), Case("8-bits", kind, store=store)
    data = Builder(case).build()
    net = import_tflite(data)
    x = random(BATCH, TIME, IN, seed=1)
    y = np.asarray(net(x)[0])
    # A weight is at most half of 1/127 of the largest away, 2e-3 here: of each of some
    # 10 products in a sum; and x and h as much.
    if store is in_8_bits:  # of which LiteRT has kernels
        np.testing.assert_allclose(interpreted(data, x)[0], y, rtol=0, atol=0.04)
    of_whole = np.asarray(import_tflite(Builder(whole).build())(x)[0])
    assert 0 < np.abs(y - of_whole).max() < 0.02


def test_float16_is_what_it_stands_for():
    case = Case("half")
    builder = Builder(case)
    plain = builder.constant

    def constant(name, *shape, store=None):
        plain(f"{name}/half", *shape, store=lambda a: a.astype("f2"))
        builder.graph.value(name, *shape)
        builder.graph.add("DEQUANTIZE", [f"{name}/half"], [name])
        return name

    builder.constant = constant
    data = builder.build()
    assert_is_litert(import_tflite(data), data, [random(BATCH, TIME, IN, seed=1)])


def test_ends_of_a_slice_that_are_offsets():
    builder = Builder(Case("sliced", RNN))
    plain, graph = builder.constant, builder.graph

    def constant(name, *shape, store=None):
        if len(shape) < 2:
            return plain(name, *shape)
        rows = plain(f"{name}/rows", shape[0] + 4, shape[1])
        numbers = {"first": [2, 0], "last": shape, "step": [1, 1]}
        bounds = [
            graph.constant(f"{name}/{what}", np.array(one, "i4"))
            for what, one in numbers.items()
        ]
        graph.value(name, *shape)
        inputs = [rows, *bounds]
        graph.add("STRIDED_SLICE", inputs, [name], "StridedSliceOptions", Offset=True)
        return name

    builder.constant = constant
    data = builder.build()
    assert_is_litert(import_tflite(data), data, [random(BATCH, TIME, IN, seed=1)])
