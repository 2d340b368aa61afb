"""First states that a model of ONNX has, repeats, folds, or works out."""

import dataclasses
import io

import numpy as np
import pytest
from onnx_support import BATCH, HIDDEN, IN, onnx
from test_import_onnx_steps import CELLS, TIME, assert_steps_are_those_of, exported

from prnn_jax.convert import import_onnx, update_onnx

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.from_numpy(np.random.default_rng(3).normal(size=(TIME, BATCH, IN))).float()
DYNAMIC = [{1: "batch"}]


class Begun(torch.nn.Module):
    """A cell's steps, from zeros, nothing, or a row of the model's own."""

    def __init__(self, cell, begin):
        super().__init__()
        torch.manual_seed(0)
        self.cell = getattr(torch.nn, cell)(IN, HIDDEN)
        self.begin = begin
        self.h, self.c = (torch.nn.Parameter(torch.randn(1, HIDDEN)) for _ in "hc")

    def forward(self, x):
        state = None
        if self.begin != "none":
            both = torch.zeros(2, 1, HIDDEN), torch.stack([self.h, self.c])
            rows = both[self.begin == "row"].expand(-1, x.shape[1], -1).unbind()
            state = rows if isinstance(self.cell, torch.nn.LSTMCell) else rows[0]
        out = []
        for one in x.unbind():
            state = self.cell(one, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("axes", [None, DYNAMIC], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("begin", ["none", "zeros", "row"])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_from_what_the_model_has(cell, begin, axes, dynamo):
    """Without a dynamic batch the newer exporter folds what the first step has of h."""
    module = Begun(cell, begin)
    model = exported(module, X, dynamo=dynamo, axes=axes)
    if (begin, axes, dynamo) == ("row", None, True):
        with pytest.raises(ValueError, match="because the exporter has folded the fi"):
            import_onnx(model)
        return
    net = import_onnx(model)
    assert (net.state_0 is None) == (begin != "row")
    assert_steps_are_those_of(net, module, X)


def test_a_folded_step_whose_state_is_changed():
    """The second step does not get what a first one would give."""
    pytest.importorskip("onnxscript")

    class Doubled(Begun):
        def forward(self, x):
            h = self.cell(x[1], 2 * self.cell(x[0]))
            return h[None]

    model = exported(Doubled("GRUCell", "none"), X, dynamo=True)
    with pytest.raises(ValueError, match="must be constant, zero or an input"):
        import_onnx(model)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_from_zeros_that_is_alone(cell):
    """The weights of h are in the model no more."""
    pytest.importorskip("onnxscript")
    model = exported(Begun(cell, "none"), X[:1], dynamo=True)
    with pytest.raises(ValueError, match="Nor is a cell's only step, from zeros"):
        import_onnx(model)


def test_an_rnn_that_is_written_out():
    pytest.importorskip("onnxscript")
    module = torch.nn.RNN(IN, HIDDEN)
    with pytest.raises(ValueError, match="import_keras one of Keras") as raised:
        import_onnx(exported(module, X, dynamo=True))
    assert "dynamo=False exports torch.nn.RNN as a node" in str(raised.value)
    assert import_onnx(exported(module, X)).cell == "rnn"


class Learned(torch.nn.Module):
    """Layers whose first state is one row for all of a batch."""

    def __init__(self, rows, layers=1, both=False, repeat=False):
        super().__init__()
        torch.manual_seed(0)
        options = {"num_layers": layers, "bidirectional": both}
        self.rnn = torch.nn.LSTM(IN, HIDDEN, **options)
        self.h, self.c = (torch.nn.Parameter(torch.randn(*rows, HIDDEN)) for _ in "hc")
        self.count, self.repeat = layers * (1 + both), repeat

    def forward(self, x):
        if self.repeat:
            both = [one.repeat(1, x.shape[1], 1) for one in (self.h, self.c)]
        else:
            sizes = self.count, x.shape[1], HIDDEN
            both = [one.expand(*sizes).contiguous() for one in (self.h, self.c)]
        return self.rnn(x, tuple(both))[0]


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ((1, 1), {}),
        ((1, 1), {"repeat": True}),
        ((1,), {}),
        ((2, 1), {"both": True}),
        ((1, 1), {"both": True}),
        ((4, 1), {"layers": 2, "both": True}),
    ],
    ids=str,
)
def test_a_row_for_all_of_a_batch(rows, options, dynamo):
    module = Learned(rows, **options)
    model = exported(module, X, dynamo=dynamo, axes=DYNAMIC)
    nodes = onnx.load_from_string(model).graph.node
    names = [node.name for node in nodes if node.op_type == "LSTM"]
    net = import_onnx(model, names)
    wide = torch.cat([X, X + 1], 1)
    # A few roundings of sums below 4, in another order than PyTorch's.
    y = net(wide.numpy())[0]
    np.testing.assert_allclose(y, module(wide).detach().numpy(), rtol=0, atol=2e-6)


def test_such_a_row_is_not_put_back():
    model = exported(Learned((1, 1)), X, axes=DYNAMIC)
    net = import_onnx(model)
    assert update_onnx(model, net).ByteSize() == len(model)
    assert net.state_0 is not None
    ((h, c),) = net.state_0
    new = dataclasses.replace(net, state_0=((h + 1, c),))
    with pytest.raises(ValueError, match="is a row that the model repeats for each"):
        update_onnx(model, new)


class Decoder(torch.nn.Module):
    """A layer that begins with another's last state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = (torch.nn.LSTM(IN, HIDDEN) for _ in range(2))

    def forward(self, x, y):
        return self.decoder(y, self.encoder(x)[1])[0]


def test_a_decoder_by_its_name():
    module, file = Decoder(), io.BytesIO()
    torch.onnx.export(module, (X, X[:2]), file, dynamo=False)
    model = file.getvalue()
    with pytest.raises(ValueError, match="name must say which node is meant"):
        import_onnx(model)
    nodes = onnx.load_from_string(model).graph.node
    name = [node.name for node in nodes if node.op_type == "LSTM"][1]
    net = import_onnx(model, name)
    assert net.state_0 is None
    h, c = (one[0].detach().numpy() for one in module.encoder(X)[1])
    wanted = module(X, X[:2]).detach().numpy()
    y = net(X[:2].numpy(), [(h, c)])[0]
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)
