"""ONNX models of which a guess would be wrong: not quite layers, or more of them."""

import dataclasses
import io

import numpy as np
import pytest
from onnx_support import (
    BATCH,
    HIDDEN,
    IN,
    TIME,
    X,
    helper,
    model_of,
    node_of,
    ort,
    random,
    weights,
)

from prnn_jax.convert import import_onnx, update_onnx

torch = pytest.importorskip("torch")
WHICH = "name must say which node is meant"
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(torch.nn.Module):
    """Two GRUs as wide as x, and what is done with them."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b = (torch.nn.GRU(IN, IN) for _ in range(2))
        self.cell = torch.nn.LSTMCell(IN, IN)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def unrolled(module, x):
    state, out = None, []
    for step in x:
        state = module.cell(step, state)
        out.append(state[0])
    return module.a(torch.stack(out))[0]


def exported(forward, time=30, dynamic=True) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The model, an x `[time, batch, features]`, and what it makes of it."""
    torch.manual_seed(0)
    module = Module(forward).eval()
    x, file = torch.randn(time, BATCH, IN), io.BytesIO()
    axes = {"x": [0, 1]} if dynamic else None
    options = {"input_names": ["x"], "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(module, (x,), file, **options)
    with torch.no_grad():
        return file.getvalue(), x.numpy(), module(x).numpy()


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.b(m.a(x)[0][-10:])[0],
        lambda m, x: m.b(m.a(x)[0][:20])[0],
        lambda m, x: m.b(m.a(x)[0][:, :2])[0],
        lambda m, x: m.b(m.a(x)[0].reshape(-1, 1, IN))[0],
    ],
    ids=["last steps", "first steps", "rows", "one row"],
)
def test_a_part_of_a_sequence_is_no_change_of_layout(forward, dynamic):
    model, _, _ = exported(forward, dynamic=dynamic)
    with pytest.raises(ValueError, match=WHICH):
        import_onnx(model)


def test_weights_that_are_used_twice_are_two_layers():
    model, x, wanted = exported(lambda m, x: m.a(m.a(x)[0])[0])
    net = import_onnx(model)
    assert len(net.layers) == 2
    np.testing.assert_allclose(net(x)[0], wanted, atol=1e-5)


def test_weights_that_are_used_both_ways_are_two_directions():
    def both(m, x):
        return torch.cat([m.a(x)[0], m.a(x.flip(0))[0].flip(0)], -1)

    model, x, wanted = exported(both)
    np.testing.assert_allclose(import_onnx(model)(x)[0], wanted, atol=1e-5)


def test_a_state_of_x_itself_is_none_of_the_callers():
    model, _, _ = exported(lambda m, x: m.a(x, x[:1])[0])
    with pytest.raises(ValueError, match="must be constant, zero or an input"):
        import_onnx(model)


def test_what_is_random_is_not_constant():
    model, _, _ = exported(lambda m, x: m.a(x, torch.randn(1, BATCH, IN))[0])
    with pytest.raises(ValueError, match="must be constant, zero or an input"):
        import_onnx(model)


def test_an_unrolled_cell_that_begins_with_zeros():
    """Its h times weights is constant, the same in each row."""
    model, x, wanted = exported(unrolled, TIME, dynamic=False)
    with pytest.raises(ValueError, match=WHICH) as raised:
        import_onnx(model)
    assert "LSTM" in str(raised.value)
    gru = import_onnx(model, "/a/GRU")
    cell = import_onnx(model, str(raised.value).split("'")[3])
    assert (gru.time_major, cell.time_major) == (True, False)
    y, _ = cell(x.swapaxes(0, 1))
    np.testing.assert_allclose(gru(y.swapaxes(0, 1))[0], wanted, atol=1e-5)


def two_states():
    """Two nodes that differ in their initial states alone."""
    states = {"h_a": random(1, BATCH, HIDDEN, seed=4)}
    states["h_b"] = random(1, BATCH, HIDDEN, seed=5)
    nodes = []
    for name in "ab":
        node = node_of("GRU", ("X", "W", "R", "B", "", f"h_{name}"), name)
        node.output[0] = f"Y_{name}"
        nodes.append(node)
    both = helper.make_node("Concat", ["Y_a", "Y_b"], ["Y"], axis=1)
    return model_of([*nodes, both], weights("GRU") | states)


def test_nodes_of_different_states_are_not_one():
    model = two_states()
    with pytest.raises(ValueError, match=WHICH):
        import_onnx(model)
    net = import_onnx(model, "b")
    assert net.state_0 is not None
    half = dataclasses.replace(net, state_0=tuple(s / 2 for s in net.state_0))
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(None, {"X": X})[0]
        for m in (model, update_onnx(model, half))
    )
    np.testing.assert_array_equal(before[:, 0], after[:, 0])
    np.testing.assert_allclose(after[:, 1], half(X)[0], atol=1e-5)


def test_one_of_two_states_where_batches_come_first():
    state = random(BATCH, 2, HIDDEN, seed=4)
    given = "X", "W", "R", "B", "", "h"
    options = {"direction": "bidirectional", "layout": 1}
    arrays = weights("LSTM", 2) | {"h": state}
    net = import_onnx(model_of([node_of("LSTM", given, **options)], arrays))
    assert net.state_0 is not None
    ((h, c),) = net.state_0
    np.testing.assert_array_equal(h, np.moveaxis(state, 0, 1))
    assert not np.asarray(c).any()


def test_constant_lengths_that_differ_are_refused():
    arrays = weights("GRU") | {"lengths": np.array([6, 2, 4], np.int32)}
    node = node_of("GRU", ("X", "W", "R", "B", "lengths"))
    with pytest.raises(ValueError, match=r"sequence_lens .* got the constants \[6 2 4"):
        import_onnx(model_of([node], arrays))
    arrays["lengths"][:] = TIME
    assert import_onnx(model_of([node], arrays)).cell == "gru"


class Projected(torch.nn.Module):
    """An LSTM whose h is a product, with states of its own or the caller's."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(IN, HIDDEN, proj_size=3, batch_first=True)

    def forward(self, x, h=None, c=None):
        return self.lstm(x, None if h is None else (h, c))[0]


@pytest.mark.parametrize("states", ["fixed", "dynamic", "given"])
def test_a_projection_that_the_exporter_cuts_off(states, tmp_path):
    """Of W, R and B it keeps the first rows; only the state's size tells."""
    pytest.importorskip("onnxscript")
    given = torch.zeros(BATCH, TIME, IN), torch.zeros(1, BATCH, 3)
    args = given[:1] if states != "given" else (*given, torch.zeros(1, BATCH, HIDDEN))
    shapes = ({0: "batch"},)
    options = {"dynamic_shapes": shapes} if states == "dynamic" else {}
    path, exporter = tmp_path / "model.onnx", torch.onnx.export
    exporter(Projected().eval(), args, path, dynamo=True, verbose=False, **options)
    message = r"must be \[1, batch, 3\], .* got \[1, [3?], 7\]. PyTorch's exporter lo"
    with pytest.raises(ValueError, match=message):
        import_onnx(path)


def test_no_names():
    model = model_of([node_of("LSTM")], weights("LSTM"))
    with pytest.raises(ValueError, match="of at least one network, got none"):
        import_onnx(model, [])
