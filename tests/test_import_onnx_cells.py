"""Cells that a graph of ONNX writes out, against ONNX Runtime."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from onnx_support import BATCH, GATES, HIDDEN, IN, onnx, ort, random, value
from support import assert_bitwise_equal

from prnn_jax.convert import import_onnx, import_pytorch, update_onnx

helper, numpy_helper = onnx.helper, onnx.numpy_helper

ORDERS = {"LSTM": "ifgo", "GRU": "rzn"}


class Graph:
    """Nodes, each with a name of its own; `swap`: sums and products the other way."""

    def __init__(self, swap: bool = False, prefix: str = ""):
        self.nodes, self.arrays, self.swap, self.prefix = [], {}, swap, prefix

    def constant(self, array, name: str = "") -> str:
        name = name or f"{self.prefix}constant_{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name

    def __call__(self, operator: str, *inputs: str, **options) -> str:
        if self.swap and operator in ("Add", "Mul"):
            inputs = inputs[::-1]
        output = f"{self.prefix}{operator}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=output, **options)
        )
        return output

    def split(self, a: str, gates: int, sliced: bool) -> list[str]:
        if sliced:
            ends = [self.constant([n * HIDDEN]) for n in range(gates + 1)]
            pairs, one = itertools.pairwise(ends), self.constant([1])
            return [self("Slice", a, first, last, one) for first, last in pairs]
        parts = [f"{a}_{n}" for n in range(gates)]
        self.nodes.append(
            helper.make_node("Split", [a], parts, axis=-1, num_outputs=gates)
        )
        return parts

    def linear(self, x: str, which: str, size: int, gates: int, plain: bool) -> str:
        """As PyTorch's weights and biases; plain: of matrices that are transposed."""
        seed = 1 if which == "ih" else 2
        weight, bias = random(gates * HIDDEN, size, seed=seed), random(gates * HIDDEN)
        bias = self.constant(bias * seed, f"rnn.bias_{which}")
        if not plain:
            weight = self.constant(weight, f"rnn.weight_{which}")
            return self("Gemm", x, weight, bias, transB=1)
        return self("Add", self("MatMul", x, self.constant(weight.T.copy())), bias)

    def model(self, outputs: dict[str, str], *inputs):
        for name, made in outputs.items():
            self.nodes.append(helper.make_node("Identity", [made], [name]))
        graph = helper.make_graph(
            self.nodes,
            "graph",
            list(inputs),
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in self.arrays.items()],
        )
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def lstm(graph: Graph, a: str, c: str, order: str, sliced: bool) -> tuple[str, str]:
    parts = dict(zip(order, graph.split(a, 4, sliced), strict=True))
    i, f, o = (graph("Sigmoid", parts[gate]) for gate in "ifo")
    new = graph("Mul", i, graph("Tanh", parts["g"]))
    c = graph("Add", graph("Mul", f, c), new)
    return graph("Mul", o, graph("Tanh", c)), c


def gru(
    graph: Graph, a_x: str, a_h: str, h: str, order: str, sliced: bool, linear=False
) -> str:
    x, y = (
        dict(zip(order, graph.split(a, 3, sliced), strict=True)) for a in (a_x, a_h)
    )
    r, z = (graph("Sigmoid", graph("Add", x[gate], y[gate])) for gate in "rz")
    n = graph("Add", x["n"], graph("Mul", r, y["n"]))
    n = n if linear else graph("Tanh", n)
    return graph("Add", graph("Mul", graph("Sub", h, n), z), n)


def written(cell: str, order: str, way: str, size: int = IN, names: bool = True):
    """A model of a cell: inputs x, h and for the LSTM c; outputs likewise."""
    graph, gates = Graph(swap="swapped" in way), GATES[cell]
    plain, sliced = "plain" in way, "sliced" in way
    inputs = [value(s, None, HIDDEN) for s in "hc"[: 2 if cell == "LSTM" else 1]]
    of_h = graph.linear("h", "hh", HIDDEN, gates, plain)
    of_x = graph.linear("x", "ih", size, gates, plain)
    if "unsqueezed" in way:
        first = graph.constant([0])
        of_h = graph("Squeeze", graph("Unsqueeze", of_h, first), first)
    if cell == "LSTM":
        made = lstm(graph, graph("Add", of_h, of_x), "c", order, sliced)
    else:
        made = (gru(graph, of_x, of_h, "h", order, sliced, "linear" in way),)
    outputs = {f"{name}_n": one for name, one in zip("hc", made, strict=False)}
    return graph.model(outputs, value("x", None, size), *inputs)


def assert_steps_are_the_same(net, model, size: int = IN) -> None:
    x = random(BATCH, 3, size, seed=9)
    count = 2 if net.cell == "lstm" else 1
    states = [random(BATCH, HIDDEN, seed=20 + n) for n in range(count)]
    session = ort.InferenceSession(model.SerializeToString())
    given = tuple(states) if count == 2 else states[0]
    y, (last,) = net(x, [given])
    for t in range(3):
        of_step = dict(zip("hc", states, strict=False))
        states = session.run(None, {"x": x[:, t], **of_step})
        np.testing.assert_allclose(y[:, t], states[0], rtol=0, atol=2e-6)
    if count == 2:
        np.testing.assert_allclose(last[1], states[1], rtol=0, atol=2e-6)


WAYS = ["gemm", "plain", "plain, swapped", "gemm, sliced", "gemm, unsqueezed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cell", ORDERS)
def test_a_cell_that_is_written_out(cell, way):
    model = written(cell, ORDERS[cell], way)
    net = import_onnx(model)
    assert net.cell == cell.lower()
    assert not net.time_major
    assert net.name == model.graph.node[-1 if cell == "GRU" else -2].input[0]
    assert_steps_are_the_same(net, model)


def test_a_gru_without_an_activation_of_its_candidate():
    model = written("GRU", "rzn", "gemm, linear")
    net = import_onnx(model)
    assert net.activation == "linear"
    assert_steps_are_the_same(net, model)


@pytest.mark.parametrize(("cell", "order"), [("LSTM", "ofig"), ("GRU", "nzr")])
def test_gates_in_any_order(cell, order):
    model = written(cell, order, "plain")
    assert_steps_are_the_same(import_onnx(model), model)


@pytest.mark.parametrize("cell", ORDERS)
def test_an_input_as_wide_as_the_state(cell):
    """Of the LSTM the names of the weights tell which is which, or nothing does."""
    model = written(cell, ORDERS[cell], "gemm", size=HIDDEN)
    assert_steps_are_the_same(import_onnx(model), model, HIDDEN)
    model = written(cell, ORDERS[cell], "plain", size=HIDDEN)
    if cell == "GRU":
        assert_steps_are_the_same(import_onnx(model), model, HIDDEN)
        return
    with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or an"):
        import_onnx(model)


def of_one_state(size: int):
    """As silero-vad has it: h and c are parts of one input, each branch has weights."""

    def branch(name: str, scale: float):
        graph = Graph()
        x = graph("Relu", "x")
        h, c = (graph("Gather", "state", graph.constant(n), axis=0) for n in (0, 1))
        a = [graph.constant(scale * random(4 * HIDDEN, size, seed=s)) for s in (1, 2)]
        of_h, of_x = (
            graph("Gemm", one, b, transB=1) for one, b in zip((h, x), a, strict=True)
        )
        made = lstm(graph, graph("Add", of_h, of_x), c, "ifgo", sliced=False)
        one = graph.constant([0])
        new = [graph("Unsqueeze", state, one) for state in made]
        last = graph("Concat", *new, axis=0)
        outputs = {f"y_{name}": made[0], f"state_{name}": last}
        return graph.model(outputs).graph

    choice = helper.make_node(
        "If",
        ["which"],
        ["y", "state_n"],
        name="choice",
        then_branch=branch("a", 1.0),
        else_branch=branch("b", 0.5),
    )
    graph = Graph()
    graph.nodes.append(choice)
    model = graph.model(
        {"Y": "y", "S": "state_n"}, value("x", None, size), value("state", 2, None, 7)
    )
    which = helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, [])
    model.graph.input.append(which)
    return model


def test_a_cell_in_a_branch_whose_states_are_one_input():
    model = of_one_state(HIDDEN)
    with pytest.raises(ValueError, match=r"one of 'choice/.*' \(LSTM\), 'choice"):
        import_onnx(model)
    session = ort.InferenceSession(model.SerializeToString())
    x, state = random(BATCH, HIDDEN, seed=5), random(2, BATCH, HIDDEN, seed=6)
    for branch, which in (("then", True), ("else", False)):
        graph = {a.name: a.g for a in model.graph.node[0].attribute}[f"{branch}_branch"]
        name = next(n for n in graph.node if n.op_type == "Identity").input[0]
        net = import_onnx(model, f"choice/{branch}_branch/{name}")
        given = {"x": x, "state": state, "which": np.array(which)}
        wanted = session.run(None, given)
        y, ((h, c),) = net(np.maximum(x, 0)[:, None], [tuple(state)])
        np.testing.assert_allclose(y[:, 0], wanted[0], rtol=0, atol=2e-6)
        np.testing.assert_allclose(np.stack([h, c]), wanted[1], rtol=0, atol=2e-6)


def test_steps_that_are_unrolled_are_one_cell():
    graph = Graph()
    h, c, a = "h", "c", [random(28, size, seed=size) for size in (IN, HIDDEN)]
    weights = [graph.constant(one, f"w{len(one.T)}") for one in a]
    for t in range(3):
        x = graph("Gather", "x", graph.constant(t), axis=1)
        parts = [
            graph("Gemm", one, weight, transB=1)
            for one, weight in zip((x, h), weights, strict=True)
        ]
        h, c = lstm(graph, graph("Add", *parts), c, "ifgo", sliced=False)
    states = [value(name, None, HIDDEN) for name in "hc"]
    model = graph.model({"h_n": h, "c_n": c}, value("x", None, 3, IN), *states)
    net = import_onnx(model)
    x, states = random(BATCH, 3, IN), [random(BATCH, HIDDEN, seed=n) for n in (1, 2)]
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": x, "h": states[0], "c": states[1]})
    _, (last,) = net(x, [tuple(states)])
    np.testing.assert_allclose(np.stack(last), wanted, rtol=0, atol=2e-6)


def test_steps_of_two_cells_are_two():
    graph = Graph()
    for n in range(2):
        h, c = "h", "c"
        for t in range(3):
            x = graph("Gather", "x", graph.constant(t), axis=1)
            of_x = graph("Gemm", x, f"w{IN}_{n}", transB=1)
            of_h = graph("Gemm", h, f"w{HIDDEN}_{n}", transB=1)
            h, c = lstm(graph, graph("Add", of_x, of_h), c, "ifgo", sliced=False)
        for size in (IN, HIDDEN):
            graph.constant(random(28, size, seed=n), f"w{size}_{n}")
    states = [value(name, None, HIDDEN) for name in "hc"]
    model = graph.model({"h_n": h}, value("x", None, 3, IN), *states)
    with pytest.raises(ValueError, match="name must say") as error:
        import_onnx(model)
    assert str(error.value).count("(LSTM)") == 2


@pytest.mark.parametrize("cell", ORDERS)
def test_what_computes_something_else_is_no_cell(cell):
    """One operator is another, wherever it is."""
    model = written(cell, ORDERS[cell], "gemm")
    count = len(model.graph.node)
    other = {"Sigmoid": "HardSigmoid", "Tanh": "Erf", "Sub": "Add", "Gemm": None}
    other |= {"Add": "Sub", "Mul": "Div"}
    tried = 0
    for n in range(count):
        one = type(model)()
        one.CopyFrom(model)
        node = one.graph.node[n]
        if node.op_type not in other:
            continue
        if node.op_type == "Gemm":
            node.attribute.append(helper.make_attribute("alpha", 2.0))
        else:
            node.op_type = other[node.op_type]
        tried += 1
        with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or"):
            import_onnx(one)
    assert tried > 10


def test_a_sum_of_sums_is_soon_read():
    """Its terms are 2 to the 60th."""
    graph = Graph()
    a = graph("MatMul", "x", graph.constant(random(IN, HIDDEN)))
    for _ in range(60):
        a = graph("Add", a, a)
    model = graph.model({"y": graph("Relu", a)}, value("x", None, IN))
    with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or"):
        import_onnx(model)


def test_a_difference_from_something_else_is_no_gru():
    model = written("GRU", "rzn", "gemm")
    (difference,) = (n for n in model.graph.node if n.op_type == "Sub")
    difference.input[1] = "h"
    with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or"):
        import_onnx(model)
    model.producer_name = "pytorch"
    with pytest.raises(ValueError, match=r"\. import_pytorch takes the model itself"):
        import_onnx(model)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gates_that_are_cut_along_another_axis_are_none(axis):
    """Of rows from the last to the first; and of sequences that keep an axis of 1."""
    graph, least = Graph(), np.iinfo(np.int64).min
    of_x = graph("MatMul", "x", graph.constant(random(IN, 4 * HIDDEN, seed=1)))
    of_h = graph("MatMul", "h", graph.constant(random(HIDDEN, 4 * HIDDEN, seed=2)))
    a = graph("Add", of_x, of_h)
    if axis == 0:
        bounds = [graph.constant([n]) for n in (-1, least, 0, -1)]
        a = graph("Slice", a, *bounds)
    ends = [graph.constant([n * HIDDEN]) for n in range(5)]
    along = graph.constant([max(axis, 1) if axis else -1])
    parts = [graph("Slice", a, *pair, along) for pair in itertools.pairwise(ends)]
    i, f, g, o = (
        graph("Tanh" if n == 2 else "Sigmoid", part) for n, part in enumerate(parts)
    )
    c = graph("Add", graph("Mul", f, "c"), graph("Mul", i, g))
    h = graph("Mul", o, graph("Tanh", c))
    sizes = {"x": IN, "h": HIDDEN, "c": HIDDEN}
    inputs = [value(name, 1, None, size) for name, size in sizes.items()]
    model = graph.model({"h_n": h, "c_n": c}, *inputs)
    if axis == 2:
        assert import_onnx(model).cell == "lstm"
        return
    with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or"):
        import_onnx(model)


def test_it_is_not_put_back():
    model = written("GRU", "rzn", "gemm")
    net = import_onnx(model)
    assert update_onnx(model, net).SerializeToString() == model.SerializeToString()
    (params,) = net.layers
    params = params._replace(b_ih=np.asarray(params.b_ih) + 1)
    new = replace(net, layers=(params,))
    with pytest.raises(ValueError, match="and is a cell that is written out"):
        update_onnx(model, new)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", ORDERS)
def test_a_cell_that_pytorch_exports(cell, tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    module = getattr(torch.nn, f"{cell}Cell")(IN, HIDDEN)
    h, c = torch.zeros(2, HIDDEN), torch.zeros(2, HIDDEN)
    state = (h, c) if cell == "LSTM" else h
    torch.onnx.export(module, (torch.zeros(2, IN), state), tmp_path / "cell.onnx")
    net = import_onnx(tmp_path / "cell.onnx")
    assert_bitwise_equal(net.layers, import_pytorch(module).layers)


@pytest.mark.parametrize("read", ["h", "q", "x"])
def test_a_gru_whose_candidate_reads_another_state_is_none(read):
    graph, sizes = Graph(), {"h": HIDDEN, "q": HIDDEN, "x": IN}

    def product(of: str, seed: int) -> str:
        weight = random(sizes[of], HIDDEN, seed=seed)
        return graph("MatMul", of, graph.constant(weight))

    z, r = (
        graph("Sigmoid", graph("Add", product("x", n), product("h", n + 1)))
        for n in (1, 3)
    )
    reset = graph("Mul", r, product(read, 5))
    n = graph("Tanh", graph("Add", product("x", 6), reset))
    h = graph("Add", n, graph("Mul", z, graph("Sub", "h", n)))
    inputs = [value(name, None, size) for name, size in sizes.items()]
    model = graph.model({"h_n": h}, *inputs)
    if read == "h":
        assert import_onnx(model).cell == "gru"
        return
    with pytest.raises(ValueError, match="must have a node LSTM, GRU or RNN, or"):
        import_onnx(model)
