"""Recurrent operators of OpenVINO, beside its runtime for CPUs."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import openvino_support as support
import pytest
from libraries import library
from openvino_support import (
    AFTER,
    BATCH,
    GATES,
    HIDDEN,
    IN,
    TIME,
    Case,
    X,
    assert_is_openvino,
    model_of,
    operators,
    parameter,
    ran,
    random,
    sequence,
    side_by_side,
)

import prnn_jax
from prnn_jax.convert import import_openvino

# ---- sequences -----------------------------------------------------------------------


def in_float16(array: np.ndarray) -> Any:
    ops = operators()
    return ops.convert(ops.constant(array.astype("f2")), "f32")


def in_bfloat16(array: np.ndarray) -> Any:
    openvino, ops = library("openvino"), operators()
    bits = array.astype(ml_dtypes.bfloat16).view(np.uint16)
    tensor = openvino.Tensor(bits, list(array.shape), openvino.Type.bf16)
    return ops.convert(ops.constant(tensor), "f32")


def in_8_bits(array: np.ndarray) -> Any:
    """As NNCF compresses weights, with a scale for each row."""
    ops, scale = operators(), np.abs(array).max(-1, keepdims=True) / 127
    stored = ops.constant(np.round(array / scale).astype("i1"))
    return ops.multiply(ops.convert(stored, "f32"), ops.constant(scale))


def in_8_bits_with_zero(array: np.ndarray) -> Any:
    ops = operators()
    low, high = (of(array, -1, keepdims=True) for of in (np.min, np.max))
    scale = (high - low) / 255
    zero = np.round(-low / scale).astype("u1")
    numbers = np.clip(np.round(array / scale) + zero, 0, 255).astype("u1")
    stored = [ops.convert(ops.constant(one), "f32") for one in (numbers, zero)]
    return ops.multiply(ops.subtract(*stored), ops.constant(scale))


def in_steps(array: np.ndarray) -> Any:
    """As of a model that was quantized whole."""
    ops, largest = operators(), np.abs(array).max()
    bounds = [ops.constant(np.float32(one)) for one in (-largest, largest)]
    return ops.fake_quantize(ops.constant(array), *bounds, *bounds, 255)


BOTH = "bidirectional"
CASES = [
    *(
        Case(f"{cell}-{direction}", cell, direction)
        for cell in GATES
        for direction in ("forward", "reverse", BOTH)
    ),
    Case("reset-after", "GRU", options=AFTER, expected={"reset_after": True}),
    Case("reset-after-both", "GRU", BOTH, AFTER),
    *(
        Case(
            f"{cell}-clip",
            cell,
            options={"clip": 0.25},
            expected={"clip": prnn_jax.Clip(pre_activations=0.25)},
        )
        for cell in GATES
    ),
    Case("reset-after-clip", "GRU", options={"clip": 0.25, **AFTER}),
    Case(
        "activations",
        options={"activations": ["tanh", "relu", "sigmoid"]},
        expected={"activation": ("relu", "sigmoid"), "gate_activation": "tanh"},
    ),
    Case("GRU-activations", "GRU", BOTH, {"activations": ["sigmoid", "relu"]}),
    Case("RNN-relu", "RNN", options={"activations": ["relu"]}),
    Case("states", states=True),
    Case("states-both", "GRU", BOTH, states=True),
    Case("float16", store=in_float16),
    Case("bfloat16", store=in_bfloat16),
    Case("8-bits", "GRU", store=in_8_bits),
    Case("8-bits-with-zero", "LSTM", BOTH, store=in_8_bits_with_zero),
    Case("steps", "RNN", BOTH, store=in_steps),
]


def built(case: Case) -> Any:
    x = parameter((case.batch, case.time, IN), "x")
    return model_of([side_by_side(sequence(case, x))], [x])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_computes_what_openvino_does(case):
    model = built(case)
    net = import_openvino(model)
    assert_is_openvino(net, ran(model, X)[0], X)
    assert net.bidirectional == (case.direction == BOTH)
    assert net.reverse == (case.direction == "reverse")
    assert (net.state_0 is not None) == case.states
    for name, value in case.expected.items():
        assert getattr(net, name) == value


def steps_of(x: Any) -> Any:
    """The number of steps for each row, as OpenVINO's readers of models write it."""
    ops = operators()
    sizes = ops.shape_of(x)
    batch, time = (
        ops.gather(sizes, ops.constant(np.array([n])), ops.constant(0)) for n in (0, 1)
    )
    return ops.broadcast(time, batch)


@pytest.mark.parametrize("direction", ["forward", BOTH])
def test_layers_that_follow_one_another(direction):
    case = Case("", "GRU", direction)
    x = parameter((BATCH, TIME, IN), "x")
    first = side_by_side(sequence(case, x, steps_of(x)))
    width = case.directions * HIDDEN
    second = sequence(case, first, steps_of(first), width, seed=1)
    model = model_of([side_by_side(second)], [x])
    net = import_openvino(model)
    assert len(net.layers) == 2
    assert_is_openvino(net, ran(model, X)[0], X)
    assert import_openvino(model, net.places[1]).places == net.places[1:]


def test_two_that_are_directions():
    ops, case = operators(), Case("")
    x = parameter((BATCH, TIME, IN), "x")

    def turned(value):
        return ops.reverse_sequence(value, ops.constant(np.full(BATCH, TIME)), 0, 1)

    back = turned(side_by_side(sequence(case, turned(x), seed=1)))
    both = ops.concat([side_by_side(sequence(case, x)), back], 2)
    model = model_of([both], [x])
    net = import_openvino(model)
    assert net.bidirectional
    assert_is_openvino(net, ran(model, X)[0], X)


@pytest.mark.parametrize("direction", ["forward", "reverse", BOTH])
def test_lengths_that_are_an_input(direction):
    x = parameter((BATCH, TIME, IN), "x")
    given = parameter((BATCH,), "lengths", np.int64)
    operator = sequence(Case("", direction=direction), x, given)
    model = model_of([side_by_side(operator)], [x, given])
    lengths = np.array([TIME, 3, 1])
    net = import_openvino(model)
    assert_is_openvino(net, ran(model, X, lengths)[0], X, lengths=lengths)


@pytest.mark.parametrize("axis", [0, 2])
def test_lengths_that_are_another_size_of_x_are_refused(axis):
    x, ops = parameter((BATCH, TIME, IN), "x"), operators()
    place, zero = (ops.constant(np.array(one)) for one in ([axis], 0))
    size = ops.gather(ops.shape_of(x), place, zero)
    lengths = ops.broadcast(size, ops.constant(np.array([BATCH])))
    model = model_of([side_by_side(sequence(Case(""), x, lengths))], [x])
    with pytest.raises(ValueError, match="must have sequence_lens that are an input"):
        import_openvino(model)


def test_lengths_that_are_constant_and_shorter_are_refused():
    x, ops = parameter((BATCH, TIME, IN), "x"), operators()
    lengths = ops.constant(np.full(BATCH, TIME - 1))
    model = model_of([side_by_side(sequence(Case(""), x, lengths))], [x])
    with pytest.raises(ValueError, match="must have sequence_lens that are an input"):
        import_openvino(model)


def stream(first: float = 0, of_x: float = 0, names: str = "hc") -> Any:
    """A model that keeps its states from one call to the next.

    Args:
      first: what they begin with.
      of_x: how much of the mean of x is added to that.
      names: in the order in which h and c are given back.
    """
    ops, case = operators(), Case("", batch=1, time=4)
    x = parameter((1, 4, IN), "x")
    begins = ops.constant(np.full((1, 1, HIDDEN), first, "f"))
    if of_x:
        mean = ops.reduce_mean(x, ops.constant(np.arange(3)), True)
        begins = ops.add(begins, ops.multiply(mean, ops.constant(np.float32(of_x))))
    kept = [ops.read_value(begins, one, np.float32, [1, 1, HIDDEN]) for one in "hc"]
    lengths, weights = ops.constant(np.array([4])), case.weights()
    made = ops.lstm_sequence(x, *kept, lengths, *weights, HIDDEN, "forward")
    sinks = [
        ops.assign(
            ops.reshape(out, ops.constant(np.array([1, 1, HIDDEN])), False), name
        )
        for name, out in zip(names, made.outputs()[1:], strict=True)
    ]
    return model_of([side_by_side(made)], [x], sinks)


@pytest.mark.parametrize("first", [0, 0.5])
def test_states_that_are_kept(first):
    """A stream, in two calls."""
    model = stream(first)
    net = import_openvino(model)
    assert (net.state_0 is not None) == bool(first)
    compiled = library("openvino").Core().compile_model(model, "CPU", support.EXACT)
    request = compiled.create_infer_request()
    whole = 4 * random(1, 8, IN, seed=3)
    parts = [request.infer([part])[0].copy() for part in np.split(whole, 2, 1)]
    assert_is_openvino(net, np.concatenate(parts, 1), whole)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"of_x": 1.0}, "must be constant, zero or an input of the model"),
        ({"names": "ch"}, "must give back the states after the steps of"),
    ],
    ids=["worked out", "exchanged"],
)
def test_states_that_are_kept_otherwise_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        import_openvino(stream(**options))


# ---- what other tools make -----------------------------------------------------------


@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "float16"])
def test_a_file_that_was_made_of_onnx(is_half, tmp_path):
    openvino = library("openvino")
    key = jax.random.key(0)
    layers = [
        prnn_jax.init("lstm", key, size, HIDDEN, bidirectional=True)
        for size in (IN, 2 * HIDDEN)
    ]
    onnx = prnn_jax.convert.export_onnx("lstm", layers, bidirectional=True)
    (source := tmp_path / "model.onnx").write_bytes(onnx.SerializeToString())
    path = tmp_path / "model.xml"
    model = openvino.Core().read_model(source)
    openvino.save_model(model, path, compress_to_fp16=is_half)
    net = import_openvino(str(path))
    assert (len(net.layers), net.bidirectional) == (2, True)
    assert_is_openvino(net, ran(openvino.Core().read_model(path), X)[0], X)
