"""Nodes of ONNX as networks, against ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest
from onnx_support import (
    BATCH,
    HIDDEN,
    IN,
    X,
    assert_computes_the_same,
    model_of,
    node_of,
    onnx,
    random,
    value,
    weights,
    y_of,
)
from support import assert_bitwise_equal

from prnn_jax.convert import import_onnx, to_onnx

TensorProto, helper = onnx.TensorProto, onnx.helper


def lstm(**options):
    return model_of([node_of("LSTM", **options)], weights("LSTM"))


def with_inputs(*inputs, **arrays):
    node = node_of("LSTM", ("X", "W", "R", "B", *inputs))
    return model_of([node], weights("LSTM") | arrays)


OPTIONS = [
    ("LSTM", {}),
    ("LSTM", {"direction": "bidirectional"}),
    ("GRU", {}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"]}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5]}),
    ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Elu"]}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "ScaledTanh", "LeakyRelu"],
            "activation_alpha": [0.3, 1.5, 0.25],
            "activation_beta": [0.4, 0.75],
        },
    ),
    (
        "GRU",
        {
            "activations": ["Sigmoid", "Softsign"] * 2,
            "linear_before_reset": 1,
            "direction": "bidirectional",
        },
    ),
    ("RNN", {"activations": ["Tanh", "Tanh"], "direction": "bidirectional"}),
    *((cell, {"clip": 0.5}) for cell in ("LSTM", "GRU", "RNN")),
    ("GRU", {"clip": 0.5, "linear_before_reset": 1}),
    ("LSTM", {"clip": 0.5, "direction": "bidirectional"}),
    (
        "RNN",
        {
            "clip": 0.5,
            "activations": ["Affine"] * 2,
            "activation_alpha": [0.5] * 2,
            "direction": "bidirectional",
        },
    ),
]


@pytest.mark.parametrize(("cell", "options"), OPTIONS, ids=str)
def test_the_only_node(cell, options, tmp_path):
    directions = 2 if options.get("direction") == "bidirectional" else 1
    model = model_of([node_of(cell, **options)], weights(cell, directions))
    net = import_onnx(model)
    assert net.name == "the"
    assert net.time_major
    assert_computes_the_same(net, model, X)
    onnx.save(model, tmp_path / "model.onnx")
    for given in (tmp_path / "model.onnx", model.SerializeToString()):
        assert_bitwise_equal(import_onnx(given).layers, net.layers)


def test_in_reverse():
    model = model_of([node_of("LSTM", direction="reverse")], weights("LSTM"))
    net = import_onnx(model)
    assert net.reverse
    assert_computes_the_same(net, model, X)


def test_batch_first_by_layout():
    arrays = weights("GRU")
    model = model_of([node_of("GRU", layout=1, linear_before_reset=1)], arrays)
    net = import_onnx(model)
    assert not net.time_major
    other = model_of([node_of("GRU", linear_before_reset=1)], arrays)
    y, _ = net(np.swapaxes(X, 0, 1))
    np.testing.assert_allclose(np.swapaxes(y, 0, 1), y_of(other, X), rtol=0, atol=2e-6)


def test_weights_that_the_model_makes_of_constants():
    arrays = weights("LSTM")
    w, r = arrays["W"][0], arrays["R"][0]
    parts = {"top": w[:10], "bottom": w[10:], "axis": np.array([0]), "R_t": r.T.copy()}
    parts |= {"B": arrays["B"].astype(np.float64), "shape": np.array([1, -1, HIDDEN])}
    nodes = [
        helper.make_node("Concat", ["top", "bottom"], ["w"], axis=0),
        helper.make_node("Unsqueeze", ["w", "axis"], ["W"]),
        helper.make_node("Transpose", ["R_t"], ["r"], perm=[1, 0]),
        helper.make_node("Reshape", ["r", "shape"], ["R"]),
        helper.make_node("Cast", ["B"], ["b"], to=TensorProto.FLOAT),
        node_of("LSTM", ("X", "W", "R", "b")),
    ]
    net = import_onnx(model_of(nodes, parts))
    assert_bitwise_equal(
        net.layers, import_onnx(model_of([node_of("LSTM")], arrays)).layers
    )


def test_quantized_weights_are_made_whole():
    arrays = weights("LSTM")
    scale = np.float32(0.02)
    int8 = np.clip(np.round(arrays["W"] / scale), -127, 127).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["int8", "scale"], ["W"]),
        node_of("LSTM"),
    ]
    given = {"int8": int8, "scale": scale, "R": arrays["R"], "B": arrays["B"]}
    net = import_onnx(model_of(nodes, given))
    exact = arrays | {"W": int8 * scale}
    expected = import_onnx(model_of([node_of("LSTM")], exact))
    assert_bitwise_equal(net.layers, expected.layers)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_in_8_bits(directions, per_channel, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    direction = "bidirectional" if directions == 2 else "forward"
    arrays = weights("LSTM", directions)
    model = model_of([node_of("LSTM", direction=direction)], arrays)
    onnx.save(model, tmp_path / "exact.onnx")
    quantization.quantize_dynamic(
        tmp_path / "exact.onnx",
        tmp_path / "model.onnx",
        op_types_to_quantize=["LSTM"],
        per_channel=per_channel,
    )
    model = onnx.load(tmp_path / "model.onnx")
    assert "DynamicQuantizeLSTM" in {node.op_type for node in model.graph.node}
    net = import_onnx(model)
    (params,), (exact,) = net.layers, import_onnx(tmp_path / "exact.onnx").layers
    for ours, of_exact in ((params.w_ih, exact.w_ih), (params.w_hh, exact.w_hh)):
        error = np.abs(ours - of_exact).max()
        assert 0 < error <= np.abs(of_exact).max() / 127
    # The node rounds x and h to 8 bits, too: it is as far from ours as from the exact.
    of_node, ours = y_of(model, X), net(X)[0]
    of_exact = y_of(onnx.load(tmp_path / "exact.onnx"), X)
    assert np.abs(ours - of_node).max() <= 1.2 * np.abs(of_exact - of_node).max()
    assert np.abs(ours - of_exact).max() < 0.02


def test_a_node_of_a_branch_whose_weights_are_outside():
    def branch(name):
        return helper.make_graph(
            [node_of("LSTM", name=name)],
            name,
            [],
            [helper.make_empty_tensor_value_info("Y")],
        )

    choice = helper.make_node(
        "If",
        ["which"],
        ["Z"],
        name="choice",
        then_branch=branch("first"),
        else_branch=branch("second"),
    )
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    model = model_of([choice], weights("LSTM"), [which], "Z")
    expected = import_onnx(model_of([node_of("LSTM")], weights("LSTM")))
    # Both are the same.
    for net in (import_onnx(model), import_onnx(model, "choice/then_branch/first")):
        assert net.name.startswith("choice/")
        assert_bitwise_equal(net.layers, expected.layers)
    more = weights("LSTM") | {"W_2": random(1, 4 * HIDDEN, IN, seed=7)}
    other = node_of("LSTM", ("Z", "W_2", "R", "B"), name="other")
    with pytest.raises(ValueError, match="one of 'choice/else_branch/second' "):
        import_onnx(model_of([choice, other], more, [which]))


def test_an_initial_state_that_is_constant():
    state = {"h": random(1, 1, HIDDEN, seed=5), "c": random(1, 1, HIDDEN, seed=6)}
    nodes = [node_of("LSTM", ("X", "W", "R", "B", "", "h", "c"))]
    net = import_onnx(model_of(nodes, weights("LSTM") | state))
    rows = {name: np.repeat(a, BATCH, 1) for name, a in state.items()}
    assert_computes_the_same(net, model_of(nodes, weights("LSTM") | rows), X)
    y, _ = net(X[:, 0])  # without an axis of a batch
    np.testing.assert_allclose(y, net(X)[0][:, 0], rtol=0, atol=1e-6)


def test_an_initial_state_that_is_an_input():
    shapes = value("h", 1, None, HIDDEN), value("c", 1, None, HIDDEN)
    nodes = [node_of("LSTM", ("X", "W", "R", "B", "", "h", "c"))]
    model = model_of(nodes, weights("LSTM"), shapes)
    h, c = random(1, BATCH, HIDDEN, seed=5), random(1, BATCH, HIDDEN, seed=6)
    y, _ = import_onnx(model)(X, [(h[0], c[0])])
    np.testing.assert_allclose(y, y_of(model, X, h=h, c=c), rtol=0, atol=2e-6)


def test_an_initial_state_that_is_a_part_of_an_input():
    nodes = [
        helper.make_node("Gather", ["both", "zero"], ["h"], axis=0),
        helper.make_node("Gather", ["both", "one"], ["c"], axis=0),
        node_of("LSTM", ("X", "W", "R", "B", "", "h", "c")),
    ]
    arrays = weights("LSTM") | {"zero": np.array(0), "one": np.array(1)}
    model = model_of(nodes, arrays, [value("both", 2, 1, None, HIDDEN)])
    both = random(2, 1, BATCH, HIDDEN, seed=5)
    y, _ = import_onnx(model)(X, [(both[0, 0], both[1, 0])])
    np.testing.assert_allclose(y, y_of(model, X, both=both), rtol=0, atol=2e-6)


def test_an_initial_state_that_is_one_of_two_inputs():
    def branch(name):
        identity = helper.make_node("Identity", [name], [f"{name}_out"])
        output = helper.make_empty_tensor_value_info(f"{name}_out")
        return helper.make_graph([identity], name, [], [output])

    options = {"then_branch": branch("a"), "else_branch": branch("b")}
    nodes = [
        helper.make_node("If", ["which"], ["h"], **options),
        node_of("RNN", ("X", "W", "R", "B", "", "h")),
    ]
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    inputs = which, value("a", 1, None, HIDDEN), value("b", 1, None, HIDDEN)
    net = import_onnx(model_of(nodes, weights("RNN"), inputs))
    assert net.state_0 is None


@pytest.mark.parametrize("directions", [1, 2])
def test_peepholes(directions):
    direction = "bidirectional" if directions == 2 else "forward"
    node = node_of("LSTM", ("X", "W", "R", "B", "", "", "", "P"), direction=direction)
    peepholes = 2 * random(directions, 3 * HIDDEN, seed=4)
    model = model_of([node], {**weights("LSTM", directions), "P": peepholes})
    net = import_onnx(model)
    assert_computes_the_same(net, model, X)
    (params,) = net.layers
    back = to_onnx("LSTM", params)
    assert_bitwise_equal(back, {**weights("LSTM", directions), "P": peepholes})


def test_peepholes_that_are_zero_are_none():
    zeros = np.zeros((1, 3 * HIDDEN), np.float32)
    net = import_onnx(with_inputs("", "", "", "P", P=zeros))
    assert_bitwise_equal(net.layers, import_onnx(lstm()).layers)


# ---- errors --------------------------------------------------------------------------


def computed_weights():
    nodes = [helper.make_node("Relu", ["V"], ["W"]), node_of("LSTM")]
    arrays = weights("LSTM")
    del arrays["W"]
    return model_of(nodes, arrays, [value("V", 1, 4 * HIDDEN, IN)])


def doubles():
    arrays = {name: array.astype(np.float64) for name, array in weights("LSTM").items()}
    return model_of([node_of("LSTM")], arrays)


def computed_state():
    nodes = [
        helper.make_node("ReduceMax", ["X"], ["h"], axes=[0], keepdims=1),
        node_of("LSTM", ("X", "W", "R", "B", "", "h")),
    ]
    return model_of(nodes, weights("LSTM"))


def without_any():
    return model_of([helper.make_node("Relu", ["X"], ["Y"])], {})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (without_any, "written out as PyTorch.s exporter or tf2onnx does, got Relu"),
        (lambda: b"no model", "the bytes must be a model of ONNX"),
        (lambda: b"", "the bytes must be a model of ONNX"),
        (lambda: 7, "model must be a path, an onnx.ModelProto or its bytes, got int"),
        (lambda: lstm(clip=-1.0), "'the' must have a positive clip, or none, got -1"),
        (lambda: lstm(input_forget=1), "'the' must have input_forget=0"),
        (
            lambda: lstm(activations=["ThresholdedRelu", "Tanh", "Tanh"]),
            "'the' must have activations of Sigmoid, .* got 'ThresholdedRelu'",
        ),
        (
            lambda: lstm(activations=["Sigmoid", "Tanh"]),
            r"'the' must have 3 activations in each direction, got \['Sigmoid', 'T",
        ),
        (
            lambda: with_inputs("", "", "", "P", P=random(1, 2 * HIDDEN)),
            r"P must be \[directions, 3\*hidden\] = \[1, 21\], got \[1, 14\]",
        ),
        (
            doubles,
            "W of the node 'the' is float64, which JAX has with jax_enable_x64 only",
        ),
        (computed_weights, "W of the node 'the', 'W', must be constant"),
        (computed_state, "the initial state of the node 'the', 'h', must be constant"),
    ],
)
def test_what_does_not_fit_is_an_error(model, message):
    with pytest.raises(ValueError, match=message):
        import_onnx(model())


def test_names_and_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"name must be of 'the' .*, got 'other'"):
        import_onnx(lstm(), "other")
    with pytest.raises(FileNotFoundError):
        import_onnx(tmp_path / "absent.onnx")


TEXTS = "onnxtxt", "onnxtext", "textproto", "prototxt", "pbtxt", "json", "onnxjson"


@pytest.mark.parametrize("suffix", ["", *(f"/m.{end}" for end in TEXTS), "/m.onnx"])
def test_folders_and_text_are_no_models(suffix, tmp_path):
    path = f"{tmp_path}{suffix}"
    if suffix:
        Path(path).write_text("no model")
    with pytest.raises(ValueError, match=f"{path} must be a model of ONNX"):
        import_onnx(path)


# ---- what does not fit ---------------------------------------------------------------


def test_a_hidden_size_that_is_not_of_the_weights():
    """As PyTorch's exporter writes an LSTM with proj_size, which ONNX has not."""
    model = lstm()
    (attribute,) = (a for a in model.graph.node[0].attribute if a.name == "hidden_size")
    attribute.i = HIDDEN + 1
    with pytest.raises(ValueError, match=r"with its hidden_size 8, got \[1, 28, 7\]"):
        import_onnx(model)


def test_zeros_of_a_state_that_do_not_fit():
    model = with_inputs("", "h", "c", h=np.zeros((1, BATCH, HIDDEN), np.float32))
    zeros = np.zeros((1, BATCH, HIDDEN + 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(zeros, "c"))
    with pytest.raises(ValueError, match=r"must be \[1, batch, 7\], .* \[1, 3, 8\]"):
        import_onnx(model)


def test_constant_lengths_below_the_steps_of_the_model():
    node = node_of("LSTM", ("X", "W", "R", "B", "lens"))
    arrays = weights("LSTM") | {"lens": np.full(BATCH, len(X) - 1, np.int32)}
    with pytest.raises(ValueError, match="must have sequence_lens that are an input"):
        import_onnx(model_of([node], arrays, sizes=X.shape))
    arrays["lens"] += 1
    assert_computes_the_same(
        import_onnx(model_of([node], arrays, sizes=X.shape)),
        model_of([node], arrays, sizes=X.shape),
        X,
    )


@pytest.mark.parametrize("name", ["Affine", "ScaledTanh"])
def test_activations_without_the_numbers_that_they_need(name):
    model = model_of([node_of("RNN", activations=[name])], weights("RNN"))
    with pytest.raises(ValueError, match=f"activation_beta for {name}, for which ONNX"):
        import_onnx(model)


def test_weights_in_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(lstm(), path, location="weights.bin", **options)
    content, proto = path.read_bytes(), onnx.load(path, load_external_data=False)
    assert_computes_the_same(import_onnx(path), lstm(), X)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ValueError, match=r"model.onnx must be a model of ONNX: .*bin"):
        import_onnx(path)
    for model in (content, proto):
        with pytest.raises(ValueError, match="a file beside it; give the model's path"):
            import_onnx(model)
