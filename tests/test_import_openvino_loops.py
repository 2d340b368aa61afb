"""Cells of OpenVINO, step by step and in loops, beside its runtime for CPUs."""

from collections.abc import Sequence
from typing import Any

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
)

from prnn_jax.convert import import_openvino


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
    case: Case,
    step: Any,
    axis: int = 1,
    *,
    back: bool = False,
    is_loop: bool = False,
    stride: int = 1,
    count: int = TIME,
    goes_on: bool = True,
    anew: Sequence[int] = (),
):
    """A model whose loop takes steps along an axis of x, and gives h of them all.

    Args:
      count: of its steps, of a Loop.
      goes_on: whether such goes on after a step.
      anew: the states that each step begins anew with.
    """
    openvino, ops = library("openvino"), operators()
    shape = [BATCH, TIME, IN] if axis else [TIME, BATCH, IN]
    x = parameter(shape, "x")
    shape[axis] = 1
    part, states = parameter(shape, "part"), states_of(case)
    place = ops.constant(np.array([axis]))
    made = step(case, ops.squeeze(part, place), states)
    results = [ops.result(one) for one in (ops.unsqueeze(made[0], place), *made)]
    if is_loop:
        results.append(ops.result(ops.constant(np.array([goes_on]))))
        place_of_step = parameter((1,), "count", np.int64)
        given = [place_of_step, part, *states]
        loop = ops.loop(ops.constant(np.array(count)), ops.constant(np.array(True)))
        loop.set_function(openvino.Model(results, given, "body"))
        loop.set_special_body_ports([0, len(results) - 1])
    else:
        loop = ops.tensor_iterator()
        loop.set_body(openvino.Model(results, [part, *states], "body"))
    along = (-1, -1, 1, 0, axis) if back else (0, stride, 1, -1, axis)
    loop.set_sliced_input(part, x.output(0), *along)
    for n, state in enumerate(states):
        first = ops.constant(case.states * random(BATCH, HIDDEN, seed=30 + n))
        if n in anew:
            loop.set_invariant_input(state, first.output(0))
            continue
        loop.set_merged_input(state, first.output(0), results[1 + n].output(0))
    y = loop.get_concatenated_slices(results[0].output(0), *along)
    # What is in no later step is none of the loop's own.
    last = [] if 0 in anew else [loop.get_iter_value(results[1].output(0), -1)]
    return model_of([y, *last], [x])


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


@pytest.mark.parametrize("anew", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("step", [cell_of, written], ids=["cell", "written"])
def test_a_loop_whose_steps_begin_anew_is_refused(step, anew):
    with pytest.raises(ValueError, match="must be given the states of the step before"):
        import_openvino(looped(Case(""), step, anew=anew))


@pytest.mark.parametrize("options", [{"count": 3}, {"goes_on": False}])
@pytest.mark.parametrize("step", [cell_of, written], ids=["cell", "written"])
def test_a_loop_that_ends_before_x_does_is_refused(step, options):
    model = looped(Case(""), step, is_loop=True, **options)
    with pytest.raises(ValueError, match="must have a recurrent operator"):
        import_openvino(model)


def test_two_that_are_fed_by_one():
    """Of a loop that keeps h in two places, of which a cell reads one."""
    openvino, ops, place = library("openvino"), operators(), np.array([1])
    x, part = parameter((BATCH, TIME, IN), "x"), parameter((BATCH, 1, IN), "part")
    (h, c), other = states_of(Case("")), parameter((BATCH, HIDDEN), "other")
    place = ops.constant(place)
    made = written(Case(""), ops.squeeze(part, place), [h, c])
    shown = [ops.unsqueeze(one, place) for one in (made[0], ops.add(made[0], other))]
    results = [ops.result(one) for one in (*shown, *made)]
    loop, along = ops.tensor_iterator(), (0, 1, 1, -1, 1)
    loop.set_body(openvino.Model(results, [part, other, h, c], "body"))
    loop.set_sliced_input(part, x.output(0), *along)
    zeros = ops.constant(np.zeros((BATCH, HIDDEN), "f")).output(0)
    for state, n in ((h, 2), (c, 3), (other, 2)):
        loop.set_merged_input(state, zeros, results[n].output(0))
    outputs = [
        loop.get_concatenated_slices(one.output(0), *along) for one in results[:2]
    ]
    model = model_of(outputs, [x])
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


def test_a_name_is_asked_for_beside_an_if_with_a_recurrence():
    openvino, ops = library("openvino"), operators()
    x, is_one = parameter((BATCH, TIME, IN), "x"), parameter((), "is_one", np.bool_)
    lstm, made = sequence(Case(""), x), ops.if_op(is_one)
    inner = [parameter((BATCH, TIME, IN), f"x{n}") for n in range(2)]
    results = [
        ops.result(sequence(Case(""), one, seed=n).output(0))
        for n, one in enumerate(inner)
    ]
    made.set_then_body(openvino.Model(results[:1], inner[:1], "then"))
    made.set_else_body(openvino.Model(results[1:], inner[1:], "else"))
    made.set_input(x.output(0), *inner)
    output = made.set_output(*results)
    model = model_of([lstm.output(0), output], [x, is_one])
    with pytest.raises(ValueError, match="another recurrence, in 'If"):
        import_openvino(model)
    name = lstm.get_friendly_name()
    assert import_openvino(model, name).name == name
