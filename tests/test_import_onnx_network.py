"""Several nodes of ONNX that are the layers, or the directions, of one network."""

import io

import numpy as np
import pytest
from onnx_support import (
    BATCH,
    HIDDEN,
    IN,
    TIME,
    X,
    assert_computes_the_same,
    model_of,
    node_between,
    node_of,
    onnx,
    ort,
    pairs,
    random,
    weights,
    y_of,
)
from support import run_python

from prnn_jax.convert import import_onnx, update_onnx

helper, numpy_helper = onnx.helper, onnx.numpy_helper

# ---- layers, as PyTorch writes them --------------------------------------------------


def exported(module, x, dynamo=False) -> bytes:
    """The module's first result, of dynamic sizes, by one of PyTorch's exporters."""
    torch = pytest.importorskip("torch")

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = module

        def forward(self, x):
            return self.rnn(x)[0]

    file = io.BytesIO()
    axes = {"x": {0: "a", 1: "b"}}
    options = {"dynamic_axes": axes}
    if dynamo:
        size = torch.export.Dim.DYNAMIC
        options = {"dynamic_shapes": ({0: size, 1: size},), "verbose": False}
    options |= {"input_names": ["x"], "dynamo": dynamo}
    torch.onnx.export(First().eval(), (torch.from_numpy(x),), file, **options)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_exports_without_a_file():
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(1)
    module = torch.nn.GRU(IN, HIDDEN).eval()
    options = {"dynamo": True, "verbose": False}
    program = torch.onnx.export(module, (torch.from_numpy(X),), **options)
    net = import_onnx(program)
    with torch.no_grad():
        np.testing.assert_allclose(net(X)[0], module(torch.from_numpy(X))[0], atol=1e-6)
    assert import_onnx(update_onnx(program, net)).places == net.places


APART = """
import ast, pathlib, sys, torch
import test_import_onnx_network as tests
kind, options, path = sys.argv[1:]
torch.manual_seed(1)
module = getattr(torch.nn, kind)(tests.IN, tests.HIDDEN, **ast.literal_eval(options))
pathlib.Path(path).write_bytes(tests.exported(module, tests.X, True))
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options", "dynamo"),
    [
        ("LSTM", {}, False),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, False),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, True),
        ("GRU", {"num_layers": 3}, False),
        ("GRU", {"num_layers": 2, "batch_first": True}, False),
        ("GRU", {"num_layers": 2, "batch_first": True}, True),
        ("RNN", {"num_layers": 2, "nonlinearity": "relu"}, False),
    ],
    ids=str,
)
def test_layers_that_pytorch_exports(kind, options, dynamo, tmp_path):
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
        # After an export of fixed sizes, PyTorch fixes those of the next one, too.
        made = tmp_path / "made.onnx"
        run_python(APART, kind, repr(options), str(made))
        model = made.read_bytes()
    else:
        torch.manual_seed(1)
        model = exported(getattr(torch.nn, kind)(IN, HIDDEN, **options), X)
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


@pytest.mark.parametrize("time_fixed", [TIME, TIME + 1])
def test_layers_of_sizes_that_are_fixed(time_fixed):
    """As PyTorch's exporter writes them, where it is not told of dynamic ones."""
    arrays = weights("LSTM", 2) | {"shape": np.array([time_fixed, BATCH, 2 * HIDDEN])}
    arrays |= {f"{n}_2": a for n, a in weights("LSTM", 2, 2 * HIDDEN).items()}
    options = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    nodes = [
        node_of("LSTM", direction="bidirectional"),
        helper.make_node("Transpose", ["Y"], ["Y_t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["Y_t", "shape"], ["X_2"]),
        helper.make_node("LSTM", ["X_2", "W_2", "R_2", "B_2"], ["Y_2"], **options),
    ]
    sizes = time_fixed, BATCH, X.shape[-1]
    model = model_of(nodes, arrays, (), "Y_2", sizes)
    net = import_onnx(model)
    assert len(net.layers) == 2
    if time_fixed == TIME:
        assert_computes_the_same(net, model, X)
    # A shape alone does not tell that it is time and batch, and not another's.
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(model_of(nodes, arrays, (), "Y_2"))
    # Without the change of layout the same shape has other numbers in it.
    nodes[2].input[0] = "Y"
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(model_of(nodes, arrays, (), "Y_2", sizes))


def test_a_reshape_that_mixes_time_and_batch_is_no_change_of_layout():
    mixing = np.array([BATCH, TIME, HIDDEN])
    arrays = weights("LSTM", 1) | {"shape": mixing}
    arrays |= {f"{n}_2": a for n, a in weights("LSTM", 1, HIDDEN).items()}
    nodes = [
        node_of("LSTM"),
        helper.make_node("Reshape", ["Y", "shape"], ["X_2"]),
        helper.make_node(
            "LSTM", ["X_2", "W_2", "R_2", "B_2"], ["Y_2"], hidden_size=HIDDEN
        ),
    ]
    for sizes in ((TIME, BATCH, X.shape[-1]), (None, None, None)):
        with pytest.raises(ValueError, match="name must say which node is meant"):
            import_onnx(model_of(nodes, arrays, (), "Y_2", sizes))


@pytest.mark.parametrize("fixed", ["none", "batch", "all"])
@pytest.mark.parametrize("order", [[0, 2, 3], [2, 0, 3]], ids=["as it is", "mixing"])
def test_a_reshape_by_sizes_that_the_model_works_out(order, fixed):
    """As PyTorch's newer exporter writes one between layers of dynamic sizes."""
    arrays = weights("LSTM", 1) | {"order": np.array(order), "end": np.array([2])}
    arrays |= {f"{n}_2": a for n, a in weights("LSTM", 1, HIDDEN).items()}
    arrays |= {"begin": np.array([0]), "last": np.array([HIDDEN])}
    nodes = [
        node_of("LSTM"),
        helper.make_node("Shape", ["Y"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "order"], ["gathered"]),
        helper.make_node("Slice", ["gathered", "begin", "end"], ["rows"]),
        helper.make_node("Concat", ["rows", "last"], ["shape"], axis=0),
        helper.make_node("Reshape", ["Y", "shape"], ["X_2"]),
        helper.make_node(
            "LSTM", ["X_2", "W_2", "R_2", "B_2"], ["Y_2"], hidden_size=HIDDEN
        ),
    ]
    sizes = {"none": (None, None, IN), "batch": (None, BATCH, IN)}
    model = model_of(nodes, arrays, (), "Y_2", sizes.get(fixed, (TIME, BATCH, IN)))
    if order[0] == 0:
        assert_computes_the_same(import_onnx(model), model, X)
        return
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(model)


@pytest.mark.parametrize(
    ("first", "second"), [("lens", ""), ("", "lens"), ("lens", "other")]
)
def test_layers_of_which_one_has_other_lengths(first, second):
    squeeze = helper.make_node("Squeeze", ["Y", "axis"], ["X_2"])
    model = two_layers([squeeze])
    for node, lens in ((model.graph.node[0], first), (model.graph.node[-1], second)):
        node.input.append(lens)
    lens = [helper.make_tensor_value_info(n, 6, (BATCH,)) for n in ("lens", "other")]
    model.graph.input.extend(lens)
    for name in (None, ["the", "second"]):
        with pytest.raises(ValueError, match="must have the same sequence_lens"):
            import_onnx(model, name)
    assert len(import_onnx(model, "second").layers) == 1
    for node in (model.graph.node[0], model.graph.node[-1]):
        node.input[4] = "lens"
    net = import_onnx(model)
    lengths = np.array([TIME, 2, 4], np.int32)
    y = y_of(model, X, lens=lengths, other=lengths)
    np.testing.assert_allclose(
        net(X, lengths=lengths, masked_y="zero")[0], y, atol=2e-6
    )


def test_a_function_of_the_model():
    """As exporters write modules: a function of the model's own, called twice."""
    made = two_layers([helper.make_node("Squeeze", ["Y", "axis"], ["X_2"])])
    node = node_of("LSTM", ("x", "w", "r", "b"), name="")
    node.output[0] = "y"
    function = helper.make_function(
        "own", "Layer", ["x", "w", "r", "b"], ["y"], [node], made.opset_import
    )
    calls = [
        helper.make_node("Layer", ["X", "W", "R", "B"], ["Y"], "one", domain="own"),
        made.graph.node[1],
        helper.make_node(
            *("Layer", ["X_2", "W_2", "R_2", "B_2"], ["Y_2"], "two"), domain="own"
        ),
    ]
    arrays = {one.name: numpy_helper.to_array(one) for one in made.graph.initializer}
    model = model_of(calls, arrays, (), "Y_2")
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    net = import_onnx(model)
    assert len(net.layers) == 2
    assert_computes_the_same(net, model, X)


# ---- directions ----------------------------------------------------------------------


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


@pytest.mark.parametrize("fixed", [False, True])
def test_two_nodes_of_batch_first_are_directions(fixed):
    """ONNX Runtime has no such nodes, so each direction is the oracle's."""
    arrays = {f"{n}_f": a for n, a in weights("LSTM").items()}
    arrays |= {f"{n}_b": a * 0.5 for n, a in weights("LSTM").items()}
    last, least = np.array([-1]), np.array([np.iinfo(np.int64).min])
    arrays |= {"from": last, "to": least, "axis": np.array([1]), "by": last}
    nodes = [node_between("Slice", ["X", "from", "to", "axis", "by"], "turned")]
    for side, x in (("f", "X"), ("b", "turned")):
        names = [x, *(f"{letter}_{side}" for letter in "WRB")]
        of_side = {"hidden_size": HIDDEN, "layout": 1, "name": side}
        nodes.append(helper.make_node("LSTM", names, [f"Y_{side}"], **of_side))
    nodes.append(node_between("Concat", ["Y_f", "Y_b"], "Y", axis=2))
    sizes = (BATCH, TIME, IN) if fixed else (None, None, IN)
    model = model_of(nodes, arrays, sizes=sizes)
    net, x = import_onnx(model), np.moveaxis(X, 0, 1)
    assert net.places == ("f", "b")
    y = np.split(np.asarray(net(x)[0]), 2, -1)
    forward, backward = import_onnx(model, "f"), import_onnx(model, "b")
    np.testing.assert_allclose(y[0], forward(x)[0], rtol=0, atol=1e-6)
    turned = backward(x[:, ::-1])[0][:, ::-1]
    np.testing.assert_allclose(y[1], turned, rtol=0, atol=1e-6)


def test_directions_in_another_order_are_no_layer():
    """The first layer is one, but the second does not read it as ours gives it."""
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(pairs("GRU", True, order=(1, 0)))


def test_directions_that_the_model_slices_apart():
    """As tf2onnx does with Bidirectional layers, whose y it puts together again."""
    arrays = weights("LSTM", 2)
    arrays |= {f"{n}_2": a for n, a in weights("LSTM", 2, 2 * HIDDEN).items()}
    arrays |= {f"n_{n}": np.array([n]) for n in range(3)}
    nodes = [node_of("LSTM", direction="bidirectional")]
    for n in range(2):
        bounds = f"n_{n}", f"n_{n + 1}", "n_1"
        nodes.append(node_between("Slice", ["Y", *bounds], f"side_{n}"))
        nodes.append(node_between("Squeeze", [f"side_{n}", "n_1"], f"y_{n}"))
    nodes.append(node_between("Concat", ["y_0", "y_1"], "X_2", axis=2))
    of_second = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    names = "X_2", "W_2", "R_2", "B_2"
    nodes.append(helper.make_node("LSTM", names, ["Y_2"], name="b", **of_second))
    model = model_of(nodes, arrays, (), "Y_2")
    net = import_onnx(model)
    assert net.places == ("the", "b")
    assert_computes_the_same(net, model, X)
    nodes[1].input[2] = "n_0"  # of none
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(model_of(nodes, arrays, (), "Y_2"))
