"""Recurrent operators of OpenVINO, beside its runtime for CPUs."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import openvino_support as support
import pytest
from libraries import library
from openvino_support import (
    BATCH,
    GATES,
    HIDDEN,
    IN,
    TIME,
    Case,
    model_of,
    operators,
    parameter,
    ran,
    random,
    sequence,
    side_by_side,
)
from support import assert_as_accurate

import prnn_jax
from prnn_jax.convert import import_openvino

X = 4 * random(BATCH, TIME, IN, seed=9)


def in_float64(net: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), net)
        y, _ = wide(jnp.asarray(x, jnp.float64), implementation="scan", **options)
        return np.asarray(y)


def assert_is_openvino(net: Any, theirs: Any, x: np.ndarray, **options: Any) -> None:
    """Our y and OpenVINO's are both as exact as a scan in float32."""
    scan = np.asarray(net(x, implementation="scan", **options)[0])
    exact = in_float64(net, x, **options)
    assert_as_accurate(np.asarray(net(x, **options)[0]), scan, exact)
    assert_as_accurate(theirs, scan, exact)


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
AFTER = {"linear_before_reset": True}
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


def test_lengths_that_are_constant_and_shorter_are_refused():
    x, ops = parameter((BATCH, TIME, IN), "x"), operators()
    lengths = ops.constant(np.full(BATCH, TIME - 1))
    model = model_of([side_by_side(sequence(Case(""), x, lengths))], [x])
    with pytest.raises(ValueError, match="must have sequence_lens that are an input"):
        import_openvino(model)


def test_states_that_are_kept():
    """A stream, in two calls."""
    openvino, ops = library("openvino"), operators()
    case, zeros = Case("", batch=1, time=4), np.zeros((1, 1, HIDDEN), "f")
    x = parameter((1, 4, IN), "x")
    kept = [
        ops.read_value(ops.constant(zeros), name, np.float32, list(zeros.shape))
        for name in ("h", "c")
    ]
    lengths, weights = ops.constant(np.array([4])), case.weights()
    made = ops.lstm_sequence(x, *kept, lengths, *weights, HIDDEN, "forward")
    sinks = [
        ops.assign(
            ops.reshape(out, ops.constant(np.array([1, 1, HIDDEN])), False), name
        )
        for name, out in zip(("h", "c"), made.outputs()[1:], strict=True)
    ]
    model = model_of([side_by_side(made)], [x], sinks)
    net = import_openvino(model)
    assert net.state_0 is None
    compiled = openvino.Core().compile_model(model, "CPU", support.EXACT)
    request = compiled.create_infer_request()
    whole = 4 * random(1, 8, IN, seed=3)
    parts = [request.infer([part])[0].copy() for part in np.split(whole, 2, 1)]
    assert_is_openvino(net, np.concatenate(parts, 1), whole)


# ---- single steps, and loops ---------------------------------------------------------


def cell_of(case: Case, x: Any, states: list[Any]) -> list[Any]:
    """The states after one step of a case's cell."""
    options = dict(case.options)
    if case.cell == "RNN":
        options |= {f"activations{n}": [] for n in ("_alpha", "_beta")}
        options["activations"] = ["tanh"]
    make = getattr(operators(), f"{case.cell.lower()}_cell")
    made = make(x, *states, *case.weights(lead=False), HIDDEN, **options)
    return [made.output(n) for n in range(case.states_count)]


def states_of(case: Case) -> list[Any]:
    return [parameter((BATCH, HIDDEN), f"s{n}") for n in range(case.states_count)]


STEPS = [Case(cell, cell, states=True) for cell in GATES]
STEPS += [Case("reset-after", "GRU", options=AFTER)]


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_single_steps(case):
    x, states = parameter((BATCH, IN), "x"), states_of(case)
    model = model_of(cell_of(case, x, states), [x, *states])
    net = import_openvino(model)
    compiled = library("openvino").Core().compile_model(model, "CPU", support.EXACT)
    state, rows = [np.zeros((BATCH, HIDDEN), "f")] * case.states_count, []
    for n in range(TIME):
        state = [np.array(one) for one in compiled([X[:, n], *state]).values()]
        rows.append(state[0])
    assert_is_openvino(net, np.stack(rows, 1), X)


def written(case: Case, x: Any, states: list[Any]) -> list[Any]:
    """The states after one step of an LSTM, in products and sums."""
    ops, (h, c), (w, r, b) = operators(), states, case.weights(lead=False)
    a = ops.add(ops.matmul(x, w, False, True), ops.matmul(h, r, False, True))
    sizes = ops.constant(np.array([*[HIDDEN] * 3, -1]))
    f, i, g, o = ops.variadic_split(ops.add(a, b), ops.constant(1), sizes).outputs()
    kept = ops.multiply(ops.sigmoid(f), c)
    c = ops.add(kept, ops.multiply(ops.sigmoid(i), ops.tanh(g)))
    return [ops.multiply(ops.sigmoid(o), ops.tanh(c)), c]


def looped(
    case: Case, step: Any, axis: int = 1, *, back=False, is_loop=False, stride=1
):
    """A model whose loop takes steps along an axis of x, and gives h of them all."""
    openvino, ops = library("openvino"), operators()
    shape = [BATCH, TIME, IN] if axis else [TIME, BATCH, IN]
    x = parameter(shape, "x")
    shape[axis] = 1
    part, states = parameter(shape, "part"), states_of(case)
    place = ops.constant(np.array([axis]))
    made = step(case, ops.squeeze(part, place), states)
    results = [ops.result(one) for one in (ops.unsqueeze(made[0], place), *made)]
    if is_loop:
        results.append(ops.result(ops.constant(np.array([True]))))
        count = parameter((1,), "count", np.int64)
        loop = ops.loop(ops.constant(np.array(TIME)), ops.constant(np.array(True)))
        loop.set_function(openvino.Model(results, [count, part, *states], "body"))
        loop.set_special_body_ports([0, len(results) - 1])
    else:
        loop = ops.tensor_iterator()
        loop.set_body(openvino.Model(results, [part, *states], "body"))
    along = (-1, -1, 1, 0, axis) if back else (0, stride, 1, -1, axis)
    loop.set_sliced_input(part, x.output(0), *along)
    for n, state in enumerate(states):
        first = ops.constant(case.states * random(BATCH, HIDDEN, seed=30 + n))
        loop.set_merged_input(state, first.output(0), results[1 + n].output(0))
    y = loop.get_concatenated_slices(results[0].output(0), *along)
    last = loop.get_iter_value(results[1].output(0), -1)
    return model_of([y, last], [x])


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("case", STEPS[:3], ids=lambda case: case.name)
def test_a_loop_that_runs_a_cell_is_a_layer(case, axis, back):
    model = looped(case, cell_of, axis, back=back)
    net = import_openvino(model)
    assert (net.time_major, net.reverse) == (axis == 0, back)
    x = X if axis else np.swapaxes(X, 0, 1)
    assert_is_openvino(net, ran(model, x)[0], x)


@pytest.mark.parametrize("is_loop", [False, True], ids=["iterator", "loop"])
@pytest.mark.parametrize("step", [cell_of, written], ids=["cell", "written"])
def test_other_loops(step, is_loop):
    model = looped(Case(""), step, is_loop=is_loop)
    assert_is_openvino(import_openvino(model), ran(model, X)[0], X)


@pytest.mark.parametrize("step", [cell_of, written], ids=["cell", "written"])
def test_a_loop_that_changes_states_is_refused(step):
    ops = operators()

    def halved(*given):
        h, c = step(*given)
        return [ops.multiply(h, ops.constant(np.float32(0.5))), c]

    with pytest.raises(ValueError, match="must be given the states of the step before"):
        import_openvino(looped(Case(""), halved))


def test_cells_upon_one_another():
    case, x, ops = Case(""), parameter((BATCH, IN), "x"), operators()
    lower = states_of(case)
    upper = [parameter((BATCH, HIDDEN), f"upper{n}") for n in range(2)]
    made = cell_of(case, x, lower)
    weights = case.weights(HIDDEN, seed=1, lead=False)
    outputs = ops.lstm_cell(made[0], *upper, *weights, HIDDEN).outputs()
    model = model_of([*made, *outputs], [x, *lower, *upper])
    assert len(import_openvino(model).layers) == 2


@pytest.mark.parametrize("is_changed", [False, True], ids=["", "changed"])
def test_a_step_that_keeps_its_states(is_changed):
    ops, zeros = operators(), np.zeros((1, HIDDEN), "f")
    x, names = parameter((1, IN), "x"), ("h", "c")
    kept = [
        ops.read_value(ops.constant(zeros), name, np.float32, list(zeros.shape))
        for name in names
    ]
    scale, shape = ops.constant(np.float32(0.5)), ops.constant(np.array(zeros.shape))
    sinks = []
    for name, value in zip(names, made := cell_of(Case(""), x, kept), strict=True):
        state = ops.reshape(value, shape, False)
        state = ops.multiply(state, scale) if is_changed else state
        sinks.append(ops.assign(state, name))
    model = model_of(made[:1], [x], sinks)
    name = made[0].get_node().get_friendly_name()
    if is_changed:
        with pytest.raises(ValueError, match="must give back the states"):
            import_openvino(model)
    assert import_openvino(model, name if is_changed else None).name == name


def test_a_name_is_asked_for_beside_a_loop_that_is_not_read():
    openvino, ops = library("openvino"), operators()
    model = looped(Case(""), cell_of, stride=2)
    (x,) = model.get_parameters()
    lstm = sequence(Case(""), x)
    results = [*model.get_results(), ops.result(lstm.output(0))]
    both = openvino.Model(results, [x], "model")
    with pytest.raises(ValueError, match="another recurrence, in 'TensorIterator"):
        import_openvino(both)
    name = lstm.get_friendly_name()
    assert import_openvino(both, name).name == name


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
