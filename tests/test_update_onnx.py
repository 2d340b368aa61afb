"""Networks back into models of ONNX, against ONNX Runtime."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from onnx_support import (
    BATCH,
    HIDDEN,
    X,
    assert_computes_the_same,
    model_of,
    node_of,
    onnx,
    ort,
    pairs,
    random,
    value,
    weights,
    y_of,
)
from support import assert_bitwise_equal

from prnn_jax import Clip
from prnn_jax.convert import Imported, import_onnx, update_onnx

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper

ALL = "X", "W", "R", "B", "", "h", "c", "P"


def trained(net: Imported) -> Imported:
    """With other numbers everywhere."""
    return jax.tree.map(lambda array: 1.25 * array + 0.03, net)


def with_another_bias(net: Imported) -> Imported:
    (params,) = net.layers
    b_ih = np.asarray(params.b_ih) + 1
    return replace(net, layers=(params._replace(b_ih=b_ih),))


def arrays_of(model) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def operators(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


NODES = {
    "LSTM": ("LSTM", {}),
    "LSTM both ways": ("LSTM", {"direction": "bidirectional"}),
    "GRU": ("GRU", {"direction": "reverse"}),
    "GRU, reset after": ("GRU", {"linear_before_reset": 1}),
    "RNN": ("RNN", {"activations": ["Relu"]}),
    "clip": ("LSTM", {"clip": 0.5}),
}


@pytest.mark.parametrize("name", NODES)
def test_the_only_node(name, tmp_path):
    cell, options = NODES[name]
    directions = 2 if options.get("direction") == "bidirectional" else 1
    model = model_of([node_of(cell, **options)], weights(cell, directions))
    before = model.SerializeToString()
    net = import_onnx(model)
    assert update_onnx(model, net).SerializeToString() == before
    new = trained(net)
    made = update_onnx(model, new)
    assert model.SerializeToString() == before
    assert_computes_the_same(new, made, X)
    assert_bitwise_equal(import_onnx(made).layers, new.layers)
    assert list(arrays_of(made)) == ["W", "R", "B"]
    ort.InferenceSession(made.SerializeToString())
    onnx.save(model, path := tmp_path / "model.onnx")
    to = tmp_path / "trained.onnx"
    assert update_onnx(path, new, to=to) == to
    assert onnx.load(to).SerializeToString() == made.SerializeToString()
    assert update_onnx(before, new).SerializeToString() == made.SerializeToString()


def test_peepholes_and_initial_states():
    """Only the first is constant: nothing is made of the other."""
    arrays = weights("LSTM", 2) | {"P": random(2, 3 * HIDDEN, seed=4)}
    arrays |= {s: random(2, BATCH, HIDDEN, seed=n) for n, s in enumerate("hc", 5)}
    model = model_of([node_of("LSTM", ALL, direction="bidirectional")], arrays)
    new = trained(import_onnx(model))
    made = update_onnx(model, new)
    assert all(not np.array_equal(a, arrays[n]) for n, a in arrays_of(made).items())
    assert_computes_the_same(new, made, X)
    node = node_of("LSTM", ALL[:7], direction="bidirectional")
    of_caller = {name: array for name, array in arrays.items() if name not in "cP"}
    model = model_of([node], of_caller, [value("c", 2, BATCH, HIDDEN)])
    net = import_onnx(model)
    assert net.state_0 is not None
    ((h, c),) = net.state_0
    made = update_onnx(model, replace(net, state_0=((h + 1, c),)))
    np.testing.assert_array_equal(arrays_of(made)["h"], arrays["h"] + 1)
    with pytest.raises(ValueError, match="'c', is none of the model's, but its caller"):
        update_onnx(model, replace(net, state_0=((h, c + 1),)))


def test_a_layout_with_the_batch_first():
    """ONNX Runtime has no such LSTM: its state goes there and back."""
    arrays = weights("GRU") | {"h": random(BATCH, 1, HIDDEN, seed=5)}
    node = node_of("GRU", ALL[:6], layout=1, linear_before_reset=1)
    model = model_of([node], arrays)
    new = trained(import_onnx(model))
    made = update_onnx(model, new)
    assert arrays_of(made)["h"].shape == (BATCH, 1, HIDDEN)
    assert_bitwise_equal(import_onnx(made).state_0, new.state_0)


@pytest.mark.parametrize("squeezed", [True, False])
def test_directions_and_layers_in_nodes_of_their_own(squeezed):
    model = pairs("GRU", squeezed, linear_before_reset=1)
    net = import_onnx(model)
    assert net.places == ("y_0_0", "y_0_1", "y_1_0", "y_1_1")
    new = trained(net)
    made = update_onnx(model, new)
    x = X[:, :1] if squeezed else X
    session = ort.InferenceSession(made.SerializeToString())
    (wanted,) = session.run(None, {"X": x[:, 0] if squeezed else x})
    y, _ = new(x)
    np.testing.assert_allclose(y[:, 0] if squeezed else y, wanted, rtol=0, atol=4e-6)
    # By name, as if the nodes had others in this model.
    renamed = replace(new, places=("a", "b", "c", "d"))
    again = update_onnx(model, renamed, net.places)
    assert again.SerializeToString() == made.SerializeToString()
    with pytest.raises(ValueError, match="name must be a node for each of the 2 layer"):
        update_onnx(model, renamed, net.places[:3])
    with pytest.raises(ValueError, match=r"name must be of 'y_0_0', .* got 'a'"):
        update_onnx(model, renamed)


def test_what_others_read_stays_for_them():
    """A tensor of two nodes: the one that is not trained computes what it did."""
    other = helper.make_node(
        "LSTM", ["X", "W", "R", "B"], ["Z"], name="other", hidden_size=HIDDEN
    )
    ours = node_of("LSTM", ("X", "W", "R", "B2"))
    more = weights("LSTM") | {"B2": random(1, 8 * HIDDEN, seed=8)}
    model = model_of([ours, other], more)
    model.graph.output.append(helper.make_empty_tensor_value_info("Z"))
    net = import_onnx(model, "the")
    made = update_onnx(model, new := trained(net))
    arrays = arrays_of(made)
    assert set(arrays) == {"W", "R", "B", "B2", "W_updated", "R_updated"}
    np.testing.assert_array_equal(arrays["W"], more["W"])
    assert_bitwise_equal(import_onnx(made, "the").layers, new.layers)
    before, after = (import_onnx(one, "other").layers for one in (model, made))
    assert_bitwise_equal(after, before)
    ort.InferenceSession(made.SerializeToString())


def test_what_is_made_of_constants_is_replaced():
    """And what it was made of goes, unless it is read."""
    arrays = weights("LSTM")
    scale = np.float32(0.02)
    int8 = np.clip(np.round(arrays["W"] / scale), -127, 127).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["int8", "scale"], ["W"]),
        helper.make_node("Transpose", ["R_t"], ["R"], perm=[0, 2, 1]),
        node_of("LSTM"),
    ]
    given = {"int8": int8, "scale": scale, "B": arrays["B"]}
    given["R_t"] = np.swapaxes(arrays["R"], 1, 2).copy()
    model = model_of(nodes, given)
    net = import_onnx(model)
    made = update_onnx(model, trained(net))
    assert operators(made) == ["LSTM"]
    assert set(arrays_of(made)) == {"B", "W_updated", "R_updated"}
    assert_computes_the_same(trained(net), made, X)
    # Of what is not trained nothing changes: the 8 bits stay.
    biased = with_another_bias(net)
    made = update_onnx(model, biased)
    assert operators(made) == operators(model)
    assert_computes_the_same(biased, made, X)


def test_weights_in_8_bits_are_refused_where_they_are_new(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(model_of([node_of("LSTM")], weights("LSTM")), tmp_path / "exact.onnx")
    quantization.quantize_dynamic(
        tmp_path / "exact.onnx", tmp_path / "m.onnx", op_types_to_quantize=["LSTM"]
    )
    model = onnx.load(tmp_path / "m.onnx")
    net = import_onnx(model)
    with pytest.raises(ValueError, match=r"W of the node .*, 'W_quantized', must be"):
        update_onnx(model, trained(net))
    biased = with_another_bias(net)
    made = update_onnx(model, biased)
    assert_bitwise_equal(import_onnx(made).layers, biased.layers)


def branches(*inputs):
    """Both of an If have the same LSTM, of weights that are outside or their own."""
    own = weights("LSTM") if inputs else {}

    def branch(name):
        return helper.make_graph(
            [node_of("LSTM", inputs or ("X", "W", "R", "B"), name=name)],
            name,
            [],
            [helper.make_empty_tensor_value_info("Y")],
            [numpy_helper.from_array(own[n], f"{n}_own") for n in own],
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
    return model_of([choice], {} if inputs else weights("LSTM"), [which], "Z")


@pytest.mark.parametrize("inputs", [(), ("X", "W_own", "R_own", "B_own")], ids=len)
def test_branches_that_are_the_same_are_replaced_together(inputs):
    model = branches(*inputs)
    new = trained(import_onnx(model))
    made = update_onnx(model, new)
    for which in (True, False):
        y = y_of(made, X, which=np.array(which))
        np.testing.assert_allclose(new(X)[0], y, rtol=0, atol=2e-6)
    assert import_onnx(made).name == new.name


def test_models_of_old_versions_list_initializers_as_inputs():
    arrays = weights("LSTM")
    arrays["R_t"] = np.swapaxes(arrays.pop("R"), 1, 2).copy()
    turn = helper.make_node("Transpose", ["R_t"], ["R"], perm=[0, 2, 1])
    inputs = [value(name, *array.shape) for name, array in arrays.items()]
    model = model_of([turn, node_of("LSTM")], arrays, inputs)
    model.ir_version = 3
    model.opset_import[0].version = 7
    new = trained(import_onnx(model))
    made = update_onnx(model, new)
    assert [one.name for one in made.graph.input] == ["X", "W", "B", "R_updated"]
    ort.InferenceSession(made.SerializeToString())
    assert_bitwise_equal(import_onnx(made).layers, new.layers)


def test_what_does_not_fit_is_an_error(tmp_path):
    model = model_of([node_of("GRU")], weights("GRU"))
    net = import_onnx(model)
    for change, message in (
        ({"reset_after": True}, "has reset_after=False, got True"),
        ({"reverse": True}, "has reverse=False, got True"),
        ({"clip": Clip(0.5)}, r"has clip=None, got Clip\(pre_activations=0.5"),
        ({"places": ("x",)}, "name must be of 'the', got 'x'"),
        ({"places": ()}, "got none"),
    ):
        with pytest.raises(ValueError, match=f"update_onnx: .*{message}"):
            update_onnx(model, replace(net, **change))
    with pytest.raises(ValueError, match="to must be the path of the new file"):
        update_onnx(model, net, to=tmp_path / "new.onnx")
    with pytest.raises(FileNotFoundError):
        update_onnx(tmp_path / "absent.onnx", net, to=tmp_path / "new.onnx")
