"""Cells whose steps ONNX has one by one or in a loop, and what is between the steps."""

import io

import numpy as np
import pytest
from onnx_support import BATCH, HIDDEN, IN, helper, onnx

from prnn_jax.convert import import_onnx

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
TIME = 4
CELLS = ["LSTMCell", "GRUCell"]
EXPORTERS = [False, True]


def exported(module, *given, dynamo=False, axes=None) -> bytes:
    if dynamo:
        pytest.importorskip("onnxscript")
    file = io.BytesIO()
    options = {"dynamic_shapes": axes, "verbose": False} if dynamo else {}
    if axes is not None and not dynamo:
        names = [f"x_{n}" for n in range(len(given))]
        of_names = dict(zip(names, axes, strict=True))
        options = {"input_names": names, "dynamic_axes": of_names}
    torch.onnx.export(module, given, file, dynamo=dynamo, **options)
    return file.getvalue()


def zoneout(_, old, new):
    return tuple(0.3 * one + 0.7 * other for one, other in zip(old, new, strict=True))


BETWEEN = {
    "zoneout": zoneout,
    "norm": lambda m, _, new: (m.norm(new[0]), *new[1:]),
    "residual": lambda m, _, new: (new[0] + 0.5, *new[1:]),
    "rolled": lambda m, _, new: (new[0].roll(1, -1), *new[1:]),
    "clamped": lambda m, _, new: (*new[:-1], new[-1].clamp(-0.2, 0.2)),
    "masked": lambda _, old, new: (
        *new[:-1],
        torch.where(new[0] > 0, new[-1], old[-1]),
    ),
}


class Loop(torch.nn.Module):
    """A cell's steps, with something between them."""

    def __init__(self, cell, between=None):
        super().__init__()
        torch.manual_seed(0)
        self.cell = getattr(torch.nn, cell)(IN, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.between = between

    def step(self, x, state):
        given = state if isinstance(self.cell, torch.nn.LSTMCell) else state[0]
        new = self.cell(x, given)
        new = new if isinstance(new, tuple) else (new,)
        return new if self.between is None else self.between(self, state, new)

    def forward(self, x, *state):
        out = []
        for one in x:
            state = self.step(one, state)
            out.append(state[0])
        return torch.stack(out)


class Step(Loop):
    """One step: its states, and what the model gives besides."""

    def __init__(self, cell, between=None, out=False, states=True):
        super().__init__(cell, between)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN) if out else None
        self.states = states

    def forward(self, x, *state):
        state = self.step(x, state)
        y = () if self.out is None else (self.out(state[0]),)
        return (*y, *state) if self.states else y


def given(cell, time=TIME):
    torch.manual_seed(1)
    states = [torch.randn(BATCH, HIDDEN) for _ in range(2 if cell == "LSTMCell" else 1)]
    x = torch.randn(time, BATCH, IN)
    return (x if time > 1 else x[0], *states)


def assert_steps_are_those_of(net, module, x, *state) -> None:
    states = tuple(one.detach().numpy() for one in state)
    given = None if not states else [states if net.cell == "lstm" else states[0]]
    x_first = x.numpy().swapaxes(0, 1)
    y, _ = net(x.numpy() if net.time_major else x_first, given)
    y = y if net.time_major else np.swapaxes(y, 0, 1)
    wanted = module(x, *state).detach().numpy()
    # A few roundings of sums below 4, in another order than PyTorch's.
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)


# ---- steps one by one ----------------------------------------------------------------


@pytest.mark.parametrize("dynamo", EXPORTERS)
@pytest.mark.parametrize("cell", CELLS)
def test_steps_that_are_given_the_states_as_they_are(cell, dynamo):
    module, inputs = Loop(cell), given(cell)
    net = import_onnx(exported(module, *inputs, dynamo=dynamo))
    assert_steps_are_those_of(net, module, *inputs)


class Chunked(torch.nn.LSTMCell):
    """As users write one: chunk is exported as slices by the sizes of what it cuts."""

    def forward(self, x, state):
        (h, c), linear = state, torch.nn.functional.linear
        a = linear(x, self.weight_ih, self.bias_ih)
        i, f, g, o = (a + linear(h, self.weight_hh, self.bias_hh)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


@pytest.mark.parametrize("axes", [None, [{1: "b"}, {0: "b"}, {0: "b"}]], ids=str)
def test_steps_of_a_cell_that_chunks(axes):
    module, inputs = Loop("LSTMCell"), given("LSTMCell")
    module.cell = Chunked(IN, HIDDEN)
    net = import_onnx(exported(module, *inputs, axes=axes))
    assert_steps_are_those_of(net, module, *inputs)


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("cell", CELLS)
def test_steps_whose_states_are_changed_are_no_layer(cell, between):
    """By name neither: what follows the first step is not what a network does."""
    model = exported(Loop(cell, BETWEEN[between]), *given(cell))
    with pytest.raises(ValueError, match="states of the step before as they") as raised:
        import_onnx(model)
    with pytest.raises(ValueError, match="states of the step before as they"):
        import_onnx(model, str(raised.value).split("'")[1])


def test_states_that_are_moved_and_come_back():
    def stacked(_, old, new):
        return tuple(torch.stack(new).transpose(1, 2).transpose(1, 2).unbind())

    module, inputs = Loop("LSTMCell", stacked), given("LSTMCell")
    assert_steps_are_those_of(import_onnx(exported(module, *inputs)), module, *inputs)


class Two(torch.nn.Module):
    """Two cells: each step of both, or all of one before all of the other."""

    def __init__(self, turns):
        super().__init__()
        self.a, self.b = (torch.nn.GRUCell(IN, HIDDEN) for _ in range(2))
        self.turns = turns

    def forward(self, x, h):
        if self.turns:
            for one in x:
                h = self.b(one, self.a(one, h))
            return h[None]
        for one in x:
            h = self.a(one, h)
        out = []
        for one in x:
            out.append(h := self.b(one, h))
        return torch.stack(out)


def test_cells_that_take_turns_are_no_layers():
    model = exported(Two(turns=True), *given("GRUCell"))
    with pytest.raises(ValueError, match="name must say which") as raised:
        import_onnx(model)
    for name in str(raised.value).split("'")[1::2]:
        with pytest.raises(ValueError, match="states of the step before as they"):
            import_onnx(model, name)


def test_a_cell_that_begins_with_anothers_last_state():
    module, (x, h) = Two(turns=False), given("GRUCell")
    model = exported(module, x, h)
    with pytest.raises(ValueError, match="name must say which") as raised:
        import_onnx(model)
    net = import_onnx(model, str(raised.value).split("'")[3])
    last = h
    for one in x:
        last = module.a(one, last)
    y, _ = net(x.numpy().swapaxes(0, 1), [last.detach().numpy()])
    wanted = module(x, h).detach().numpy().swapaxes(0, 1)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-6)


# ---- one step ------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("between", ["zoneout", "norm", "clamped"])
def test_one_step_that_gives_other_states_back(cell, between):
    model = exported(Step(cell, BETWEEN[between]), *given(cell, time=1))
    with pytest.raises(ValueError, match="must give back the states after") as raised:
        import_onnx(model)
    name = str(raised.value).split("'")[1]
    assert import_onnx(model, name).cell == cell[:-4].lower()


@pytest.mark.parametrize("cell", CELLS)
def test_one_step_that_gives_its_states_back(cell):
    inputs = given(cell, time=1)
    for options in ({}, {"out": True}):
        assert import_onnx(exported(Step(cell, **options), *inputs)).name


def test_one_step_that_gives_no_state_back():
    step = Step("LSTMCell", out=True, states=False)
    assert import_onnx(exported(step, *given("LSTMCell", time=1))).name


@pytest.mark.parametrize("between", [None, "norm"])
def test_one_step_as_a_node(between):
    """As the exporter writes a cell of TorchScript."""

    class Scripted(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.cell, self.norm = torch.nn.LSTMCell(IN, HIDDEN), norm

        def forward(self, x, h, c):
            h, c = self.cell(x, (h, c))
            return self.norm(h), c

    norm = torch.nn.LayerNorm(HIDDEN) if between else torch.nn.Identity()
    model = exported(torch.jit.script(Scripted(norm)), *given("LSTMCell", time=1))
    if between is None:
        assert import_onnx(model).cell == "lstm"
        return
    with pytest.raises(ValueError, match="must give back the states after"):
        import_onnx(model)


# ---- loops ---------------------------------------------------------------------------


class InALoop(torch.nn.Module):
    def __init__(self, between):
        super().__init__()
        self.cell, self.between = torch.nn.LSTMCell(IN, HIDDEN), between

    def forward(self, x, h, c):
        out = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            h = self.between(h)
            out.append(h)
        return torch.stack(out)


@pytest.mark.parametrize("changed", [False, True])
def test_a_loop_that_changes_states(changed):
    between = torch.nn.LayerNorm(HIDDEN) if changed else torch.nn.Identity()
    module, inputs = InALoop(between), given("LSTMCell")
    model = exported(torch.jit.script(module), *inputs, axes=[{0: "time"}, {}, {}])
    nodes = onnx.load_from_string(model).graph.node
    assert "Loop" in [node.op_type for node in nodes]
    if not changed:
        net = import_onnx(model)
        assert_steps_are_those_of(net, module, *inputs)
        return
    with pytest.raises(ValueError, match="states of the step before as they"):
        import_onnx(model)


def test_a_scan_of_sequences():
    """Each turn has all steps of one, from the same state: none is to be carried."""
    steps = onnx.load_from_string(exported(Loop("GRUCell"), *given("GRUCell")))
    body = steps.graph
    h = body.input.pop()
    scan = helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body)
    value = helper.make_tensor_value_info
    inputs = [value("x", 1, (2, TIME, BATCH, IN)), value(h.name, 1, (BATCH, HIDDEN))]
    outputs = [value("y", 1, (2, TIME, BATCH, HIDDEN))]
    graph = helper.make_graph([scan], "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=steps.opset_import)
    assert import_onnx(model).cell == "gru"


@pytest.mark.parametrize("way", ["as it is", "changed", "another", "none"])
def test_a_scan_of_a_written_cell(way):
    """Its states are the first inputs of the body, and the first outputs."""
    step = onnx.load_from_string(exported(Step("LSTMCell"), *given("LSTMCell", time=1)))
    body = step.graph
    x, h, c = body.input
    h_n, c_n = body.output
    del body.input[:], body.output[:]
    if way == "none":  # each step begins with the same
        body.initializer.append(
            onnx.numpy_helper.from_array(np.zeros((BATCH, HIDDEN), "f"), h.name)
        )
    body.input.extend([*([] if way == "none" else [h]), c, x])
    body.output.extend([h_n, c_n] if way != "none" else [c_n])
    if way == "changed":
        body.node.append(helper.make_node("Tanh", [h_n.name], ["changed"]))
        body.output[0].name = "changed"
    if way == "another":
        body.output[0].name = c_n.name
    states = ["h", "c"] if way != "none" else ["c"]
    scan = helper.make_node(
        *("Scan", [*states, "x"], [f"{one}_n" for one in states]),
        name="scan",
        num_scan_inputs=1,
        body=body,
    )
    value = helper.make_tensor_value_info
    sizes = {"x": (TIME, BATCH, IN), "h": (BATCH, HIDDEN), "c": (BATCH, HIDDEN)}
    inputs = [value(one, 1, sizes[one]) for one in (*states, "x")]
    outputs = [value(f"{one}_n", 1, sizes[one]) for one in states]
    graph = helper.make_graph([scan], "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=step.opset_import)
    if way == "as it is":
        assert import_onnx(model).cell == "lstm"
        return
    with pytest.raises(ValueError, match="states of the step before as they"):
        import_onnx(model)
