"""Several nodes of ONNX that are the layers, or the directions, of one network."""

import io

import numpy as np
import pytest
from onnx_support import (
    BATCH,
    HIDDEN,
    IN,
    OPSET,
    X,
    assert_computes_the_same,
    model_of,
    node_of,
    onnx,
    ort,
    random,
    value,
    weights,
)

from prnn_jax.convert import import_onnx

helper, numpy_helper = onnx.helper, onnx.numpy_helper

# ---- layers, as PyTorch writes them --------------------------------------------------


def exported(module, x) -> bytes:
    """The module's first result, by PyTorch's exporter."""
    torch = pytest.importorskip("torch")

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module

        def forward(self, x):
            return self.rnn(x)[0]

    file = io.BytesIO()
    axes = {"x": {0: "a", 1: "b"}}
    options = {"input_names": ["x"], "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(First().eval(), torch.from_numpy(x), file, **options)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("GRU", {"num_layers": 3}),
        ("GRU", {"num_layers": 2, "batch_first": True}),
        ("RNN", {"num_layers": 2, "nonlinearity": "relu"}),
    ],
    ids=str,
)
def test_layers_that_pytorch_exports(kind, options):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    module = getattr(torch.nn, kind)(IN, HIDDEN, **options)
    model = exported(module, X)
    net = import_onnx(model)
    assert len(net.layers) == options.get("num_layers", 1)
    (expected,) = ort.InferenceSession(model).run(None, {"x": X})
    # The node always has time first, whatever the module had.
    x, back = (np.swapaxes(X, 0, 1),) * 2 if options.get("batch_first") else (X, None)
    y = np.asarray(net(x)[0])
    y = y if back is None else np.swapaxes(y, 0, 1)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)


def two_layers(between, state=()) -> onnx.ModelProto:
    arrays = weights("LSTM")
    arrays |= {f"{n}_2": a for n, a in weights("LSTM", size=HIDDEN).items()}
    inputs = ["X_2", "W_2", "R_2", "B_2", "", *state][: 4 + 2 * len(state)]
    second = helper.make_node(
        "LSTM", inputs, ["Y_2"], name="second", hidden_size=HIDDEN
    )
    arrays["axis"] = np.array([1])
    return model_of([node_of("LSTM"), *between, second], arrays, (), "Y_2")


def test_layers_of_which_one_has_a_state():
    """As it lies in Y: [time, directions, batch, hidden]."""
    squeeze = helper.make_node("Squeeze", ["Y", "axis"], ["X_2"])
    model = two_layers([squeeze], ("h",))
    model.graph.initializer.append(
        numpy_helper.from_array(random(1, BATCH, HIDDEN, seed=5), "h")
    )
    net = import_onnx(model)
    assert net.state_0 is not None
    assert net.state_0[0] is None
    assert_computes_the_same(net, model, X)


def test_layers_with_something_else_between_are_not_one_network():
    squeeze = helper.make_node("Squeeze", ["Y", "axis"], ["Y_s"])
    relu = helper.make_node("Relu", ["Y_s"], ["X_2"])
    model = two_layers([squeeze, relu])
    with pytest.raises(ValueError, match=r"one of 'the' \(LSTM\), 'second' \(LSTM\)"):
        import_onnx(model)
    assert len(import_onnx(model, ["the", "second"]).layers) == 2
    # With time and batch exchanged the second layer runs over the batch.
    turned = helper.make_node("Transpose", ["Y_s"], ["X_2"], perm=[1, 0, 2])
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(two_layers([squeeze, turned]))
    right = helper.make_node("Squeeze", ["Y", "axis"], ["X_2"])
    assert len(import_onnx(two_layers([right])).layers) == 2


# ---- directions ----------------------------------------------------------------------


def node_between(operator: str, inputs: list, output: str, **attributes):
    return helper.make_node(operator, inputs, [output], name=output, **attributes)


def pair_of_nodes(n: int, cell: str, x: str, squeezed: bool, **options):
    """A layer's directions as two nodes, one of which reads x from its end."""
    nodes, sides = [node_between("Slice", [x, *"seas"], f"turned_{n}")], []
    for side, source in enumerate((x, f"turned_{n}")):
        if squeezed:
            nodes.append(node_between("Unsqueeze", [source, "one"], f"x_{n}_{side}"))
            source = f"x_{n}_{side}"
        y = f"y_{n}_{side}"
        names = [source, *(f"{k}_{n}_{side}" for k in "WRB")]
        nodes.append(
            helper.make_node(cell, names, [y], name=y, hidden_size=HIDDEN, **options)
        )
        axes = "one_two" if squeezed else "one"
        nodes.append(node_between("Squeeze", [y, axes], f"s_{n}_{side}"))
        sides.append(f"s_{n}_{side}")
    nodes.append(node_between("Slice", [sides[1], *"seas"], f"back_{n}"))
    return nodes, [sides[0], f"back_{n}"]


def pairs(cell: str, squeezed: bool, order=(0, 1), **options):
    """Two layers of such, each of which gets both directions side by side."""
    arrays = {"one": np.array([1]), "one_two": np.array([1, 2])}
    arrays |= {"s": np.array([-1]), "e": np.array([np.iinfo(np.int64).min])}
    arrays["a"] = np.array([0])
    nodes, x = [], "X"
    for n in range(2):
        made, sides = pair_of_nodes(n, cell, x, squeezed, **options)
        nodes += made
        x = "Y" if n == 1 else f"both_{n}"
        sides = [sides[i] for i in order]
        nodes.append(node_between("Concat", sides, x, axis=1 if squeezed else 2))
        for side in range(2):
            size = 2 * HIDDEN if n else IN
            of_side = weights(cell, 1, size)
            arrays |= {
                f"{k}_{n}_{side}": a * (1 + 0.1 * n - 0.3 * side)
                for k, a in of_side.items()
            }
    arrays = {k: a if a.dtype == np.int64 else a.astype("f") for k, a in arrays.items()}
    rank = (None,) * (2 if squeezed else 3)
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("X", *rank)],
        [helper.make_empty_tensor_value_info("Y")],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("squeezed", [True, False])
@pytest.mark.parametrize(
    ("cell", "options"),
    [("LSTM", {}), ("RNN", {}), ("GRU", {"linear_before_reset": 1})],
)
def test_two_nodes_are_the_directions_of_a_layer(cell, options, squeezed):
    model = pairs(cell, squeezed, **options)
    net = import_onnx(model)
    assert net.bidirectional
    assert len(net.layers) == 2
    x = X[:, :1] if squeezed else X
    session = ort.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"X": x[:, 0] if squeezed else x})
    y, _ = net(x)
    np.testing.assert_allclose(y[:, 0] if squeezed else y, wanted, rtol=0, atol=2e-6)


def test_directions_in_another_order_are_no_layer():
    """The first layer is one, but the second does not read it as ours gives it."""
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(pairs("GRU", True, order=(1, 0)))
