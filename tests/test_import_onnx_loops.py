"""Layers that tf2onnx writes as a Loop with a cell in it, against ONNX Runtime."""

import itertools

import numpy as np
import pytest
from onnx_support import (
    BATCH,
    GATES,
    HIDDEN,
    IN,
    TIME,
    helper,
    onnx,
    ort,
    random,
    value,
)
from test_import_onnx_cells import Graph, lstm

from prnn_jax.convert import import_onnx

KINDS = ["LSTM", "GRU", "GRU before", "RNN"]
X = random(TIME, BATCH, IN, seed=7)
MASK = np.arange(TIME)[:, None] < np.array([[TIME, 2, 3]])
BOOL = onnx.TensorProto.BOOL


def weights(kind: str) -> list[np.ndarray]:
    """As Keras has them: of x, of h, and the biases."""
    width = GATES[kind.split()[0]] * HIDDEN
    biases = 2 if kind == "GRU" else 1
    shapes = (IN, width), (HIDDEN, width), (biases, width)
    return [random(*shape, seed=n + 1) for n, shape in enumerate(shapes)]


def gru(graph: Graph, x: str, h: str, given: list[str], reset_after: bool) -> str:
    """As Keras writes it: z, r and the candidate, z h + (1 - z) n."""
    kernel, recurrent, *biases = given
    z, r, n = graph.split(graph("Add", graph("MatMul", x, kernel), biases[0]), 3, False)
    if reset_after:
        a = graph("Add", graph("MatMul", h, recurrent), biases[1])
        of_z, of_r, of_n = graph.split(a, 3, True)
    else:
        ends = [graph.constant([n * HIDDEN]) for n in (0, 2, 3)]
        one, slices = graph.constant([1]), list(itertools.pairwise(ends))
        gates, last = (graph("Slice", recurrent, *pair, one) for pair in slices)
        of_z, of_r = graph.split(graph("MatMul", h, gates), 2, False)
    z, r = (graph("Sigmoid", graph("Add", *pair)) for pair in ((z, of_z), (r, of_r)))
    of_n = (
        graph("Mul", r, of_n)
        if reset_after
        else graph("MatMul", graph("Mul", r, h), last)
    )
    n = graph("Tanh", graph("Add", n, of_n))
    rest = graph("Sub", graph.constant(np.float32(1)), z)
    return graph("Add", graph("Mul", z, h), graph("Mul", rest, n))


def step(graph: Graph, kind: str, x: str, states: list[str], given: list[str]):
    if kind.startswith("GRU"):
        return [gru(graph, x, states[0], given, kind == "GRU")]
    kernel, recurrent, bias = given
    a = graph("Add", graph("MatMul", x, kernel), graph("MatMul", states[0], recurrent))
    a = graph("Add", a, bias)
    if kind == "RNN":
        return [graph("Tanh", a)]
    return list(lstm(graph, a, states[1], "ifgo", sliced=False))


def masked(graph: Graph, mask: str, new: str, old: str) -> str:
    """A choice as tf2onnx writes it."""
    kept = graph("Mul", graph("Cast", mask, to=1), new)
    return graph(
        "Add", kept, graph("Mul", graph("Cast", graph("Not", mask), to=1), old)
    )


def between(way: str, graph: Graph, new: str, old: str) -> str:
    """What the next step gets of a state."""
    if way == "mask":
        return masked(graph, graph("Gather", "mask", "t", axis=0), new, old)
    if way == "gate":  # of numbers: no choice
        gate = graph("Gather", "gate", "t", axis=0)
        rest = graph("Sub", graph.constant(np.float32(1)), gate)
        return graph("Add", graph("Mul", gate, new), graph("Mul", rest, old))
    if way == "positive":  # a choice that the state makes
        return masked(
            graph, graph("Greater", new, graph.constant(np.float32(0))), new, old
        )
    return graph("Identity", new)


def model_of(kind: str, way: str = "", begin: str = "zeros"):
    """A layer with time first; its weights go through the Loop as they are."""
    outer, inner, arrays = Graph(), Graph(prefix="in_"), weights(kind)
    carried = [*arrays[:2], *arrays[2]]
    states = ["h", "c"][: 2 if kind == "LSTM" else 1]
    through = [f"w{n}" for n in range(len(carried))]
    x = inner("Gather", "x", "t", axis=0)
    made = step(inner, kind, x, states, [inner("Identity", w) for w in through])
    fed = [between(way, inner, *pair) for pair in zip(made, states, strict=True)]
    ends = [inner("Identity", one) for one in ("more", *through, fed[0])]
    body = helper.make_graph(
        inner.nodes,
        "body",
        [
            helper.make_tensor_value_info("t", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("more", BOOL, []),
            *(value(state, None, HIDDEN) for state in states),
            *(value(w, *a.shape) for w, a in zip(through, carried, strict=True)),
        ],
        [
            helper.make_empty_tensor_value_info(name)
            for name in (ends[0], *fed, *ends[1:])
        ],
        [onnx.numpy_helper.from_array(a, n) for n, a in inner.arrays.items()],
    )
    shape = outer("Shape", "x")
    time, batch = (outer("Gather", shape, outer.constant([n])) for n in (0, 1))
    sizes = outer("Concat", batch, outer.constant([HIDDEN]), axis=0)
    row = np.zeros(1) if begin == "zeros" else random(HIDDEN, seed=40)
    row = outer.constant(row.astype(np.float32))
    first = [outer("Expand", row, sizes) for _ in states]
    given = [outer.constant(array) for array in carried]
    outputs = [f"loop_{n}" for n in range(len(states) + len(given) + 1)]
    time = outer("Squeeze", time)
    names = [time, outer.constant(np.array(True)), *first, *given]
    outer.nodes.append(helper.make_node("Loop", names, outputs, name="loop", body=body))
    inputs = [value("x", None, None, IN)]
    if way == "mask":
        inputs.append(helper.make_tensor_value_info("mask", BOOL, [None, None, 1]))
    if way == "gate":
        inputs.append(value("gate", None, None, 1))
    return outer.model({"y": outputs[-1]}, *inputs)


def y_of(model, **others) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": X, **others})[0]


@pytest.mark.parametrize("begin", ["zeros", "row"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_is_a_loop(kind, begin):
    model = model_of(kind, begin=begin)
    net = import_onnx(model)
    assert net.cell == kind.split()[0].lower()
    assert (net.state_0 is None) == (begin == "zeros")
    y, _ = net(X.swapaxes(0, 1))
    np.testing.assert_allclose(y.swapaxes(0, 1), y_of(model), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_the_callers(kind):
    model = model_of(kind, "mask")
    y, _ = import_onnx(model)(X.swapaxes(0, 1), mask=MASK.T)
    wanted = y_of(model, mask=MASK[..., None])
    np.testing.assert_allclose(y.swapaxes(0, 1), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("way", ["gate", "positive"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_choice_between_states_is_no_mask(kind, way):
    message = "states of the step before as they are"
    if kind == "RNN":
        message = "the model must have a node LSTM, GRU or RNN"
    with pytest.raises(ValueError, match=message):
        import_onnx(model_of(kind, way))


def test_a_mask_that_keeps_h_alone_is_none(monkeypatch):
    ways = iter(["mask", ""])
    one = between
    monkeypatch.setitem(globals(), "between", lambda _, *given: one(next(ways), *given))
    model = model_of("LSTM", "mask")
    with pytest.raises(ValueError, match="states of the step before as they are"):
        import_onnx(model)


def unrolled(kind: str, follow: bool = True):
    graph, states = Graph(), ["h"]
    given = [graph.constant(array) for array in weights(kind)]
    for t in range(3):
        x = graph("Gather", "x", graph.constant(t), axis=0)
        made = step(graph, kind, x, states, given)
        states = made if follow else states
    return graph.model(
        {"y": made[0]}, value("x", 3, None, IN), value("h", None, HIDDEN)
    )


def test_an_rnn_whose_steps_follow_one_another():
    """Where they do not, as in an attention, the tanh of a sum is none."""
    model, h = unrolled("RNN"), random(BATCH, HIDDEN, seed=30)
    y, _ = import_onnx(model)(X[:3].swapaxes(0, 1), [h])
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": X[:3], "h": h})[0]
    np.testing.assert_allclose(y[:, -1], wanted, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match="the model must have a node LSTM, GRU or RNN"):
        import_onnx(unrolled("RNN", follow=False))


def test_an_rnn_whose_first_step_is_folded():
    """Of a state of zeros nothing is left but what the second step adds."""
    graph, h = Graph(), ""
    kernel, recurrent, bias = map(graph.constant, weights("RNN"))
    for t in range(3):
        x = graph("Gather", "x", graph.constant(t), axis=0)
        a = graph("Add", graph("MatMul", x, kernel), bias)
        h = graph("Tanh", graph("Add", a, graph("MatMul", h, recurrent)) if h else a)
    model = graph.model({"y": h}, value("x", 3, BATCH, IN))
    y, _ = import_onnx(model)(X[:3].swapaxes(0, 1))
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": X[:3]})[0]
    np.testing.assert_allclose(y[:, -1], wanted, rtol=0, atol=2e-6)


# ---- other activations ---------------------------------------------------------------


def hard_sigmoid(graph: Graph, a: str, way: str) -> str:
    """As TensorFlow writes that of Keras 2, and that of Keras 3."""
    scale, shift, low, high, six = (
        graph.constant(np.float32(n)) for n in (0.2, 0.5, 0, 1, 6)
    )
    if way == "Keras 2":
        a = graph("Add", graph("Mul", a, scale), shift)
        return graph("Max", graph("Min", a, high), low)
    if way == "Keras 2, by LiteRT":
        a = graph("Add", graph("Mul", a, scale), shift)
        return graph("Relu", graph("Min", a, high))
    a = graph("Add", a, graph.constant(np.float32(3)))
    return graph("Mul", graph("Clip", a, low, six), graph.constant(np.float32(1 / 6)))


def of_activations(gate, candidate, output):
    """One step of an LSTM, whose states are the model's."""
    graph, (kernel, recurrent, bias) = Graph(), weights("LSTM")
    names = [graph.constant(a) for a in (kernel, recurrent, bias[0])]
    # A sum as the bias of a product, and an h of which dropout keeps all.
    ones = graph("ConstantOfShape", graph("Shape", "h"), value=ONES)
    of_x = graph("Gemm", "x", names[0], names[2])
    a = graph("Gemm", graph("Mul", "h", ones), names[1], of_x)
    i, f, g, o = graph.split(a, 4, sliced=False)
    i, f, o = (gate(graph, one) for one in (i, f, o))
    c = graph("Add", graph("Mul", f, "c"), graph("Mul", i, candidate(graph, g)))
    h = graph("Mul", o, output(graph, c))
    inputs = [value(name, None, HIDDEN) for name in "hc"]
    return graph.model({"h_n": h, "c_n": c}, value("x", None, IN), *inputs)


ONES = onnx.numpy_helper.from_array(np.ones(1, np.float32))


def operator(name: str, **options):
    if name == "Linear":
        return lambda graph, a: a
    return lambda graph, a: graph(name, a, **options)


@pytest.mark.parametrize(
    "activations",
    [
        ("Sigmoid", "Relu", "Relu"),
        ("Sigmoid", "Softsign", "Tanh"),
        ("HardSigmoid", "Softplus", "Elu"),
        ("Keras 2", "Tanh", "Tanh"),
        ("Keras 3", "Tanh", "Relu"),
        ("Keras 2, by LiteRT", "Tanh", "Tanh"),
        ("Sigmoid", "Linear", "Tanh"),
        ("HardSigmoid", "Tanh", "Linear"),
    ],
    ids=str,
)
def test_other_activations(activations):
    gate, *others = activations
    made = [operator(name) for name in others]
    first = operator(gate)
    if gate.startswith("Keras"):
        first = lambda graph, a: hard_sigmoid(graph, a, gate)  # noqa: E731
    model = of_activations(first, *made)
    net = import_onnx(model)
    x, h, c = (random(BATCH, n, seed=n) * 4 for n in (IN, HIDDEN, HIDDEN))
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": x, "h": h, "c": c})
    _, (last,) = net(x[:, None], [(h, c)])
    np.testing.assert_allclose(np.stack(last), wanted, rtol=0, atol=4e-6)


@pytest.mark.parametrize("way", ["the larger alone", "one that is worked out"])
def test_other_bounds_make_no_hard_sigmoid(way):
    def gate(graph, a):
        a = graph("Add", a, graph.constant(np.float32(0.5)))
        low, high, half = (graph.constant(np.float32(n)) for n in (0, 1, 0.6))
        if way == "the larger alone":
            return graph("Clip", graph("Clip", a, "", half), low, high)
        worked_out = graph("ReduceMax", "x", keepdims=0)
        return graph("Max", graph("Clip", a, worked_out, high), low)

    model = of_activations(gate, operator("Tanh"), operator("Tanh"))
    with pytest.raises(ValueError, match="the model must have a node LSTM, GRU or RNN"):
        import_onnx(model)


# ---- what is not read ----------------------------------------------------------------


def test_another_recurrence_besides_is_told():
    """What is read is not taken for it."""
    model, other = model_of("GRU"), model_of("LSTM", "gate")
    (loop,) = (n for n in other.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in loop.attribute)
    for node in body.node:  # a gate that prnn_jax has not
        node.op_type = "Sin" if node.op_type == "Sigmoid" else node.op_type
    both, other = type(model)(), onnx.compose.add_prefix(other, "other/")
    both.CopyFrom(model)
    for field in ("node", "initializer", "input", "output"):
        getattr(both.graph, field).extend(getattr(other.graph, field))
    with pytest.raises(ValueError, match="has another recurrence, in 'other/loop'"):
        import_onnx(both)
    (name,) = (n for n in import_onnx(model).places)
    assert import_onnx(both, name).cell == "gru"


def test_another_recurrence_in_the_same_loop_is_told():
    model = model_of("GRU")
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in loop.attribute)
    body.input.append(value("q", None, HIDDEN))
    body.node.append(helper.make_node("MatMul", ["q", "w_q"], ["of_q"]))
    body.node.append(helper.make_node("Sin", ["of_q"], ["next_q"]))
    weight = onnx.numpy_helper.from_array(random(HIDDEN, HIDDEN), "w_q")
    body.initializer.append(weight)
    body.output.insert(len(body.output) - 1, value("next_q", None, HIDDEN))
    loop.input.append(loop.input[2])
    loop.output.insert(len(loop.output) - 1, "last_q")
    with pytest.raises(ValueError, match="has another recurrence, in 'loop'"):
        import_onnx(model)


def test_a_state_that_the_model_works_out_before_a_loop():
    model = model_of("GRU", begin="row")
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    model.graph.node.insert(
        len(model.graph.node) - 2,
        helper.make_node("ReduceSum", ["x", "first_axis"], ["sum"], keepdims=0),
    )
    weight = onnx.numpy_helper.from_array(random(IN, HIDDEN), "some_weight")
    axis = onnx.numpy_helper.from_array(np.array([0]), "first_axis")
    model.graph.initializer.extend([weight, axis])
    product = helper.make_node("MatMul", ["sum", "some_weight"], ["worked_out"])
    model.graph.node.insert(len(model.graph.node) - 2, product)
    loop.input[2] = "worked_out"
    with pytest.raises(ValueError, match="but the model works it out") as raised:
        import_onnx(model)
    name = str(raised.value).split("name='")[1].split("'")[0]
    assert import_onnx(model, name).state_0 is None
