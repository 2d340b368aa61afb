"""Cells that a file of LiteRT writes out, unrolled or in a WHILE."""

import numpy as np
import pytest
from test_import_tflite import HIDDEN, IN, TIME, assert_is_litert, random
from tflite_support import Graph, file_of, interpreted

from prnn_jax import Activation
from prnn_jax.convert import import_tflite
from prnn_jax.convert._tflite.file import subgraphs
from prnn_jax.convert._tflite.graph import as_onnx
from prnn_jax.convert._tflite.operators import TRANSLATORS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HARD = Activation("hard_sigmoid", np.float32(0.2).item(), 0.5)


class Writer:
    """Operators of a graph, each of which gives a value that is named for it."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def __call__(self, kind, inputs, *shape, table="", outputs=1, **options):
        """The value, or the values, that an operator makes."""
        base = f"{self.graph.name}/{kind}_{len(self.graph.operators)}"
        names = [base + (f":{n}" if outputs > 1 else "") for n in range(outputs)]
        for name in names:
            self.graph.value(name, *shape, dtype=options.pop("dtype", "f4"))
        self.graph.add(kind, inputs, names, table, **options)
        return names if outputs > 1 else names[0]

    def constant(self, array, dtype="f4"):
        name = f"{self.graph.name}/constant_{len(self.graph.tensors)}"
        return self.graph.constant(name, np.asarray(array, dtype))

    def two(self, kind, a, b, *shape, **options):
        table = f"{kind.capitalize()}Options"
        return self(kind, [a, b], *(shape or (1, HIDDEN)), table=table, **options)

    def linear(self, x, weight, bias, width):
        inputs = [x, self.constant(weight), bias and self.constant(bias)]
        inputs = inputs if bias is not None else inputs[:2]
        return self("FULLY_CONNECTED", inputs, 1, width, table="FullyConnectedOptions")


def hard_sigmoid(write, a):
    """As TensorFlow's converter writes that of Keras 2."""
    a = write.two("MUL", a, write.constant(0.2))
    a = write.two("ADD", a, write.constant(0.5))
    a = write("MINIMUM", [a, write.constant(1.0)], 1, HIDDEN)
    return write("RELU", [a], 1, HIDDEN)


def sigmoid(write, a):
    return write("LOGISTIC", [a], 1, HIDDEN)


def tanh(write, a):
    return write("TANH", [a], 1, HIDDEN)


def same(write, a):
    return a


def step(write, cell, x, h, c, size, seed, gate=sigmoid, squash=tanh):
    """The next h, and c of the LSTM, as the converter writes Keras' cells."""
    count, wide = GATES[cell], GATES[cell] * HIDDEN
    kernel = random(wide, size, seed=seed + 1)
    recurrent = random(wide, HIDDEN, seed=seed + 2)
    bias = random(wide, seed=seed + 3)
    of_h = write.linear(h, recurrent, None, wide)
    of_x = write.linear(x, kernel, None, wide)
    # What a batch of 1 may lose on the way, as with Keras 3.
    row = [of_h, write.constant([wide], "i4")]
    of_h = write("RESHAPE", row, wide, table="ReshapeOptions")
    if cell == "GRU":
        axis = write.constant(1, "i4")
        of_x = write.two("ADD", of_x, write.constant(bias), 1, wide)
        row = [of_h, write.constant([1, wide], "i4")]
        of_h = write("RESHAPE", row, 1, wide, table="ReshapeOptions")
        sizes = write.constant([HIDDEN, HIDDEN, -1], "i4")  # the rest
        parts = {"table": "SplitVOptions", "outputs": count, "NumSplits": count}
        of_h = write("SPLIT_V", [of_h, sizes, axis], 1, HIDDEN, **parts)
        parts = {"table": "SplitOptions", "outputs": count, "NumSplits": count}
        of_x = write("SPLIT", [axis, of_x], 1, HIDDEN, **parts)
        z, r = (
            gate(write, write.two("ADD", *both))
            for both in list(zip(of_x, of_h, strict=True))[:2]
        )
        n = write.two("ADD", of_x[2], write.two("MUL", r, of_h[2]))
        n = squash(write, n)
        rest = write.two("SUB", write.constant(1.0), z)
        return write.two("ADD", write.two("MUL", z, h), write.two("MUL", rest, n)), None
    a = write.two("ADD", of_x, of_h, 1, wide)
    a = write.two("ADD", a, write.constant(bias), 1, wide)
    if cell == "RNN":
        return squash(write, a), None
    parts = {"table": "SplitOptions", "outputs": count, "NumSplits": count}
    a = write("SPLIT", [write.constant(1, "i4"), a], 1, HIDDEN, **parts)
    i, f, o = (gate(write, a[n]) for n in (0, 1, 3))
    new = write.two("MUL", i, squash(write, a[2]))
    c = write.two("ADD", write.two("MUL", f, c), new)
    return write.two("MUL", o, squash(write, c)), c


def loop(name: str, cell: str, size: int, seed: int, **functions) -> list[Graph]:
    """The condition and the body of a WHILE: count, states, y so far, x."""
    graphs = []
    count = 2 if cell == "LSTM" else 1
    for what in ("cond", "body"):
        graph = Graph(f"{name}_{what}")
        graph.value(f"{graph.name}/n", dtype="i4")
        graph.inputs = [f"{graph.name}/n"]
        for state in "hc"[:count]:
            graph.inputs.append(graph.value(f"{graph.name}/{state}", 1, HIDDEN))
        graph.inputs.append(graph.value(f"{graph.name}/y", TIME, 1, HIDDEN))
        graph.inputs.append(graph.value(f"{graph.name}/x", TIME, 1, size))
        graphs.append(graph)
    condition, body = graphs
    write = Writer(condition)
    limit = write.constant(TIME, "i4")
    less = write("LESS", [condition.inputs[0], limit], dtype="?")
    condition.outputs = [less]
    write = Writer(body)
    n, *states, y, x = body.inputs
    x_t = write("GATHER", [x, n], 1, size, table="GatherOptions")
    h, c = step(write, cell, x_t, states[0], states[-1], size, seed, **functions)
    following = write.two("ADD", n, write.constant(1, "i4"), *[], dtype="i4")
    body.tensors[following]["shape"] = ()
    row = write("EXPAND_DIMS", [h, write.constant(0, "i4")], 1, 1, HIDDEN)
    at = write("PACK", [n, *[write.constant(0, "i4")] * 2], 3, table="PackOptions",
               dtype="i4", ValuesCount=3)  # fmt: skip
    y = write("DYNAMIC_UPDATE_SLICE", [y, row, at], TIME, 1, HIDDEN)
    body.outputs = [following, h, *([c] if c else []), y, x]
    return [condition, body]


def add_loop(graph: Graph, name: str, x: str, cell: str, place: int) -> str:
    """A WHILE that runs the subgraphs from a place on; its y."""
    write = Writer(graph)
    count = 2 if cell == "LSTM" else 1
    size = graph.tensors[x]["shape"][-1]
    inputs = [
        write.constant(0, "i4"),
        *(write.constant(np.zeros((1, HIDDEN))) for _ in range(count)),
        write.constant(np.zeros((TIME, 1, HIDDEN))),
        x,
    ]
    outputs = [graph.value(f"{name}", dtype="i4")]
    outputs += [graph.value(f"{name}:{n}", 1, HIDDEN) for n in range(count)]
    outputs += [graph.value(f"{name}:y", TIME, 1, HIDDEN)]
    outputs += [graph.value(f"{name}:x", TIME, 1, size)]
    options = {"CondSubgraphIndex": place, "BodySubgraphIndex": place + 1}
    graph.add("WHILE", inputs, outputs, "WhileOptions", **options)
    return f"{name}:y"


def of_loop(cell: str, **functions) -> bytes:
    graph = Graph(inputs=["x"])
    graph.value("x", TIME, 1, IN)
    graph.outputs = [add_loop(graph, "while", "x", cell, 1)]
    return file_of(graph, *loop("while", cell, IN, 0, **functions))


def batch_first(net, x):
    return np.moveaxis(np.asarray(net(np.moveaxis(x, 0, 1))[0]), 1, 0)


@pytest.mark.parametrize("cell", GATES)
def test_a_cell_in_a_while(cell):
    data, x = of_loop(cell), random(TIME, 1, IN, seed=9) * 4
    net = import_tflite(data)
    assert net.cell == cell.lower()
    assert net.name.startswith("while/body/")
    # Sums of some 10 numbers near 1 in float32, by both.
    want = interpreted(data, x)[0]
    np.testing.assert_allclose(batch_first(net, x), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("squash", [tanh, same])
def test_activations_of_several_operators(cell, squash):
    data = of_loop(cell, gate=hard_sigmoid, squash=squash)
    x = random(TIME, 1, IN, seed=9)
    net = import_tflite(data)
    assert net.gate_activation == HARD
    assert net.activation == ("tanh" if squash is tanh else "linear")
    want = interpreted(data, x)[0]
    np.testing.assert_allclose(batch_first(net, x), want, rtol=0, atol=2e-6)


def listed(data: bytes) -> list[str]:
    """The names of cells in loops, one of which is asked for."""
    with pytest.raises(ValueError, match="name must say which node is meant") as error:
        import_tflite(data)
    return [one for one in str(error.value).split("'") if "/body/" in one]


@pytest.mark.parametrize("cell", GATES)
def test_layers_in_two_loops_are_named(cell):
    """Of the second, whose x is as wide as h, the loop tells which is which."""
    graph = Graph(inputs=["x"])
    graph.value("x", TIME, 1, IN)
    first = add_loop(graph, "one", "x", cell, 1)
    graph.outputs = [add_loop(graph, "two", first, cell, 3)]
    bodies = [*loop("one", cell, IN, 0), *loop("two", cell, HIDDEN, 5)]
    data, x = file_of(graph, *bodies), random(TIME, 1, IN, seed=9)
    names = listed(data)
    assert [name.split("/")[0] for name in names] == ["one", "two"]
    net = import_tflite(data, names)
    want = interpreted(data, x)[0]
    np.testing.assert_allclose(batch_first(net, x), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("cell", GATES)
def test_loops_of_one_body_are_several(cell):
    """Layers of the same weights, which are no branches that exclude one another."""
    graph = Graph(inputs=["x"])
    graph.value("x", TIME, 1, HIDDEN)
    first = add_loop(graph, "one", "x", cell, 1)
    graph.outputs = [add_loop(graph, "two", first, cell, 1)]
    data = file_of(graph, *loop("shared", cell, HIDDEN, 0))
    names = listed(data)
    net, x = import_tflite(data, names), random(TIME, 1, HIDDEN, seed=9)
    assert len(net.layers) == 2
    want = interpreted(data, x)[0]
    np.testing.assert_allclose(batch_first(net, x), want, rtol=0, atol=2e-6)


def test_a_state_that_a_loop_changes_is_told():
    graph = Graph(inputs=["x"])
    graph.value("x", TIME, 1, IN)
    graph.outputs = [add_loop(graph, "while", "x", "GRU", 1)]
    condition, body = loop("while", "GRU", IN, 0)
    write = Writer(body)
    halved = write.two("MUL", body.outputs[1], write.constant(0.5))
    body.outputs[1] = halved
    with pytest.raises(ValueError, match="must be given the states of the step before"):
        import_tflite(file_of(graph, condition, body))


def unrolled(cell: str) -> bytes:
    graph = Graph(inputs=["x"])
    graph.value("x", 1, 3, IN)
    write = Writer(graph)
    parts = write(
        "UNPACK", ["x"], 1, IN, table="UnpackOptions", outputs=3, Axis=1, Num=3
    )
    h = write.constant(np.zeros((1, HIDDEN)))
    c, rows = h, []
    for x_t in parts:
        h, c = step(write, cell, x_t, h, c or h, IN, 0)
        rows.append(h)
    y = write("PACK", rows, 1, 3, HIDDEN, table="PackOptions", Axis=1, ValuesCount=3)
    graph.outputs = [y]
    return file_of(graph)


@pytest.mark.parametrize("cell", GATES)
def test_a_cell_that_is_unrolled(cell):
    data = unrolled(cell)
    net = import_tflite(data)
    assert net.cell == cell.lower()
    assert_is_litert(net, data, [random(1, 3, IN, seed=9)])


def test_weights_of_a_cell_that_are_not_read():
    graph = Graph(inputs=["x"])
    graph.value("x", TIME, 1, IN)
    graph.outputs = [add_loop(graph, "while", "x", "GRU", 1)]
    condition, body = loop("while", "GRU", IN, 0)
    shape = 3 * HIDDEN, IN
    (name,) = (name for name, one in body.tensors.items() if one["shape"] == shape)
    body.tensors[name]["sparse"] = True
    words = f"must have a recurrent operator.*'{name}': sparse, which is not read"
    with pytest.raises(ValueError, match=words):
        import_tflite(file_of(graph, condition, body))


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_of_x_with_all_rows_of_h_are_no_cell(batch):
    """Of sums of [batch, features] and [batch, 1, features]; of one row it is one."""
    graph = Graph(inputs=["x", "h"])
    graph.value("x", batch, IN)
    graph.value("h", batch, HIDDEN)
    write, both = Writer(graph), (batch, batch, HIDDEN)
    sums = []
    for n in range(3):
        weights = random(HIDDEN, IN, seed=n), random(HIDDEN, HIDDEN, seed=n)
        bias = write.constant(random(HIDDEN, seed=n))
        of_x, of_h = (
            write("FULLY_CONNECTED", [name, write.constant(w), bias], batch, HIDDEN)
            for name, w in zip("xh", weights, strict=True)
        )
        shape = [batch, 1, HIDDEN]
        row = [of_h, write.constant(shape, "i4")]
        sums.append((of_x, write("RESHAPE", row, *shape, table="ReshapeOptions")))
    z, r = (
        write("LOGISTIC", [write.two("ADD", *pair, *both)], *both) for pair in sums[:2]
    )
    of_x, of_h = sums[2]
    n = write.two("ADD", of_x, write.two("MUL", r, of_h, *both), *both)
    n = write("TANH", [n], *both)
    rest = write.two("SUB", write.constant(1.0), z, *both)
    kept = write.two("MUL", z, "h", *both)
    new = write.two("MUL", rest, n, *both)
    graph.outputs = [write.two("ADD", kept, new, *both)]
    data = file_of(graph)
    if batch > 1:
        with pytest.raises(ValueError, match="must have a recurrent operator"):
            import_tflite(data)
        return
    x, h = random(1, IN, seed=7), random(1, HIDDEN, seed=8)
    y, _ = import_tflite(data)(x[:, None], [h])
    np.testing.assert_allclose(y, interpreted(data, x, h)[0], rtol=0, atol=1e-6)


def of_variable(factor: float) -> bytes:
    """One step whose state is kept as it is, or times a factor."""
    graph = Graph(inputs=["x"])
    graph.value("x", 1, IN)
    write = Writer(graph)
    handle = graph.value("handle", dtype="i4")
    graph.tensors[handle]["kind"] = 13  # a resource
    graph.add("VAR_HANDLE", [], [handle], "VarHandleOptions")
    h = write("READ_VARIABLE", [handle], 1, HIDDEN)
    new, _ = step(write, "GRU", "x", h, None, IN, 0)
    kept = new
    if factor != 1:
        kept = write.two("MUL", new, write.constant(factor))
    graph.add("ASSIGN_VARIABLE", [handle, kept], [])
    graph.outputs = [new]
    return file_of(graph)


def test_a_state_that_the_model_keeps_is_the_callers():
    net = import_tflite(of_variable(1.0))
    assert net.cell == "gru"
    assert net.state_0 is None


def test_a_state_that_is_changed_before_it_is_kept_is_told():
    with pytest.raises(ValueError, match=r"as they are, got 'main/MUL_\d+'"):
        import_tflite(of_variable(0.5))


def test_a_condition_of_one_axis_selects_rows():
    """Not columns, as of `SELECT_V2`, where there are as many."""
    reference = pytest.importorskip("onnx.reference")
    graph = Graph("main")
    graph.inputs = [graph.value("rows", 3, dtype="?")]
    graph.inputs += [graph.value(name, 3, 3) for name in "ab"]
    graph.outputs = [graph.value("y", 3, 3)]
    graph.add("SELECT", graph.inputs, graph.outputs)
    data = file_of(graph)
    rows = np.array([True, False, True])
    a, b = random(3, 3, seed=1), random(3, 3, seed=2)
    (expected,) = interpreted(data, rows, a, b)
    np.testing.assert_array_equal(expected, np.where(rows[:, None], a, b))
    (model,), _ = as_onnx(subgraphs(data), TRANSLATORS)
    (ours,) = reference.ReferenceEvaluator(model).run(
        None, {"rows": rows, "a": a, "b": b}
    )
    np.testing.assert_array_equal(ours, expected)
