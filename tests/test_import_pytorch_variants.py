"""Models of PyTorch that are not quite its own: wrappers, hooks, weights in parts."""

import contextlib

import numpy as np
import pytest
from support import assert_bitwise_equal

from prnn_jax.convert import import_pytorch

torch = pytest.importorskip("torch")
prune = pytest.importorskip("torch.nn.utils.prune")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # of what PyTorch will not keep

IN, HIDDEN = 5, 7
X = np.random.default_rng(4).standard_normal((6, 3, IN)).astype(np.float32)


class LSTM(nn.Module):
    """A user's own, of the same name."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(IN, HIDDEN)
        self.out = nn.Linear(HIDDEN, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Doubled(nn.LSTM):
    def forward(self, x):
        return super().forward(2 * x)


class Written(nn.Module):
    """A cell in a user's own words, with arrays of PyTorch's names."""

    def __init__(self):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.zeros(4 * HIDDEN, IN))
        self.weight_hh = nn.Parameter(torch.zeros(4 * HIDDEN, HIDDEN))


def y_of(module: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(X))[0].numpy()


@pytest.mark.parametrize("around", ["itself", "another", "script"])
def test_a_users_own_class_of_the_same_name(around):
    torch.manual_seed(3)
    model = LSTM().eval()
    wanted = y_of(model.rnn)
    if around == "another":
        model = nn.Sequential(model)
    elif around == "script":
        model = torch.jit.script(model)
    net = import_pytorch(model)
    assert net.name == ("0.rnn" if around == "another" else "rnn")
    np.testing.assert_allclose(net(X)[0], wanted, atol=1e-6)


def test_a_users_own_class_of_other_parts():
    with pytest.raises(ValueError, match=r"one of torch.nn.RNN, .* it has none"):
        import_pytorch(type("LSTM", (nn.Sequential,), {})(nn.Linear(2, 3)))
    with pytest.raises(ValueError, match=r"of ''. If they are used so, import its st"):
        import_pytorch(Written())
    assert import_pytorch(Written().state_dict()).cell == "lstm"


def hooked(register, hook):
    def make():
        module = nn.LSTM(IN, HIDDEN)
        getattr(module, register)(hook)
        return module

    return make


def doubles(module, x):
    return (2 * x[0],)


def looks(module, x, y):
    return None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Doubled(IN, HIDDEN), "has a forward of its own, which is not"),
        (hooked("register_forward_pre_hook", doubles), "such as doubles. Remove"),
        (hooked("register_forward_hook", looks), "such as looks. Remove"),
    ],
    ids=["forward", "pre_hook", "hook"],
)
def test_a_module_that_computes_something_else(make, message):
    with pytest.raises(ValueError, match=message):
        import_pytorch(make())
    import_pytorch(make().state_dict())  # says nothing of what is computed


def old_norm(name: str = "weight_hh_l0", **options):
    module = nn.utils.weight_norm(nn.LSTM(IN, HIDDEN, 2), name, **options)
    getattr(module, f"{name}_g").data.mul_(1.7)
    return module


def new_norm():
    module = nn.LSTM(IN, HIDDEN, bidirectional=True)
    nn.utils.parametrizations.weight_norm(module, "weight_ih_l0_reverse")
    module.parametrizations.weight_ih_l0_reverse.original0.data.mul_(1.7)
    return module


def pruned():
    return prune.l1_unstructured(nn.GRU(IN, HIDDEN), "weight_hh_l0", 0.5)


@pytest.mark.parametrize(
    "make", [old_norm, lambda: old_norm(dim=None), lambda: old_norm(dim=1), new_norm]
)
def test_a_state_dict_with_the_parts_of_a_norm(make):
    torch.manual_seed(3)
    module = nn.Sequential(make()).eval()
    net = import_pytorch(module.state_dict())
    np.testing.assert_allclose(net(X, time_major=True)[0], y_of(module), atol=2e-6)


def test_a_state_dict_with_the_parts_of_a_pruning():
    torch.manual_seed(3)
    module = pruned().eval()
    assert_bitwise_equal(
        import_pytorch(module.state_dict()).layers, import_pytorch(module).layers
    )


def test_parts_that_only_the_module_puts_together():
    module = nn.utils.parametrizations.orthogonal(nn.LSTM(IN, HIDDEN), "weight_hh_l0")
    arrays = nn.ModuleDict({"a": module, "b": nn.GRU(IN, HIDDEN)}).state_dict()
    with pytest.raises(ValueError, match=r"a.weight_hh_l0 must be an array; .* a.pa"):
        import_pytorch(arrays)
    assert import_pytorch(arrays, "b").cell == "gru"


class LowRank(nn.Module):
    """Added to a weight, as LoRA does, some of it dropped in training."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, HIDDEN))
        self.b = nn.Parameter(torch.randn(4 * HIDDEN, 2))
        self.dropout = nn.Dropout(0.5)

    def forward(self, weight):
        return weight + self.dropout(self.b @ self.a)


def low_rank(module):
    nn.utils.parametrize.register_parametrization(module, "weight_hh_l0", LowRank())


def spectral(module):
    nn.utils.parametrizations.spectral_norm(module, "weight_hh_l0")


@pytest.mark.parametrize("is_cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("parametrize", [low_rank, spectral])
def test_parametrizations_are_those_of_evaluation(parametrize, is_cached):
    torch.manual_seed(3)
    module = nn.LSTM(IN, HIDDEN)
    parametrize(module)
    model = nn.Sequential(module).train()
    model[0].training = False  # but not what is in it: flags stay as they are
    modules = [*model.modules()]
    flags = [one.training for one in modules]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with nn.utils.parametrize.cached() if is_cached else contextlib.nullcontext():
        net = import_pytorch(model)
    assert [one.training for one in modules] == flags
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    np.testing.assert_allclose(net(X)[0], y_of(model.eval()), atol=1e-6)


def test_a_state_dict_without_one_of_its_layers():
    arrays = nn.LSTM(IN, HIDDEN, 3).state_dict()
    arrays = {key: value for key, value in arrays.items() if "_l1" not in key}
    with pytest.raises(ValueError, match="all layers from 0 on, got those of 0, 2"):
        import_pytorch(arrays)


class Several(nn.Module):
    """Layers and cells, some of them without a bias, or with weights in parts."""

    def __init__(self):
        super().__init__()
        self.a = nn.RNN(IN, IN, bias=False, nonlinearity="relu")
        self.b = nn.RNN(IN, IN, 2, batch_first=True, bidirectional=True)
        normed = nn.GRU(2 * IN, IN)
        self.c = nn.utils.parametrizations.weight_norm(normed, "weight_hh_l0")
        self.d = nn.RNNCell(IN, IN, bias=False, nonlinearity="relu")
        self.e = nn.RNNCell(IN, IN)
        self.f, self.g = nn.GRUCell(IN, IN), nn.LSTM(IN, HIDDEN, proj_size=3)
        self.twice = nn.LSTM(3, 3)

    def forward(self, x):
        y = self.c(self.b(self.a(x)[0])[0])[0]
        y = self.f(self.e(self.d(y[0])))
        y = self.g(y[None])[0]
        return self.twice(self.twice(y)[0].transpose(0, 1))[0]


@pytest.mark.parametrize("strict", [True, False])
def test_a_program_tells_what_its_operators_do(strict):
    torch.manual_seed(3)
    module = Several().eval()
    program = torch.export.export(module, (torch.from_numpy(X),), strict=strict)
    for name in ("a", "b", "c", "d", "e", "f", "g", "twice"):
        net, of_module = import_pytorch(program, name), import_pytorch(module, name)
        assert net.options == of_module.options, name
    with pytest.raises(ValueError, match="nonlinearity must be"):
        import_pytorch(program.state_dict, "a")


@pytest.mark.parametrize("loaded", [False, True])
def test_a_trace_tells_what_its_operators_do(loaded, tmp_path):
    torch.manual_seed(3)
    module = Several().eval()
    trace = torch.jit.trace(module, torch.from_numpy(X))
    if loaded:
        trace.save(tmp_path / "a.pt")
        trace = tmp_path / "a.pt"
    for name in "abdefg":
        net, of_module = import_pytorch(trace, name), import_pytorch(module, name)
        assert net.options == of_module.options, name
        assert_bitwise_equal(net.layers, of_module.layers)


@pytest.mark.parametrize("make", [lambda: old_norm(), lambda: pruned()])
def test_a_trace_with_the_parts_of_a_weight(make):
    torch.manual_seed(3)
    trace = torch.jit.trace(nn.Sequential(make()), torch.from_numpy(X))
    parts = [p for n, p in trace.named_parameters() if n.endswith(("_g", "_orig"))]
    parts[0].data.mul_(1.7)
    net = import_pytorch(trace)
    np.testing.assert_allclose(net(X)[0], y_of(trace), atol=2e-6)


class OfPacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(IN, HIDDEN)

    def forward(self, x):
        lengths = torch.tensor([5, 3, 2])
        return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths))[1]


class Halved(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0] / 2


class Begun(nn.LSTM):
    def forward(self, x):
        state = torch.ones(1, x.shape[1], self.hidden_size)
        return super().forward(x, (state, state))


def test_a_trace_with_a_state():
    class Stated(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(IN, HIDDEN), nn.GRU(IN, HIDDEN)

        def forward(self, x, h):
            return self.lstm(x, (h, h))[1], self.gru(x, h)[0]

    x = torch.from_numpy(X)
    trace = torch.jit.trace(Stated(), (x, torch.ones(1, x.shape[1], HIDDEN)))
    for name in ("lstm", "gru"):
        assert import_pytorch(trace, name).options["time_major"]


def test_a_trace_of_what_was_not_called():
    module = Several()
    module.other, module.cell = nn.GRU(IN, HIDDEN), nn.RNNCell(IN, HIDDEN)
    module.second = module.a
    trace = torch.jit.trace(module, torch.from_numpy(X))
    for name in ("other", "second", "cell"):
        with pytest.raises(ValueError, match="does not tell"):
            import_pytorch(trace, name)


def test_a_trace_that_does_not_tell():
    trace = torch.jit.trace(OfPacked(), torch.from_numpy(X))
    others = [type("LSTM", (own,), {})(IN, HIDDEN) for own in (Doubled, Halved, Begun)]
    traces = [torch.jit.trace(own, torch.from_numpy(X)) for own in others]
    for one in (trace, *traces):
        with pytest.raises(ValueError, match="does not tell batch_first, as modules"):
            import_pytorch(one)
        assert import_pytorch(one.state_dict()).layers


def test_a_program_does_not_tell_what_its_operators_do_not_agree_on():
    from prnn_jax.convert._pytorch.graphs import told_by

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.RNN(3, 3), nn.RNN(3, 3, batch_first=True)
            for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                setattr(self.b, name, getattr(self.a, name))

        def forward(self, x):
            return self.b(self.a(x)[0])[0]

    program = torch.export.export(Twice(), (torch.zeros(2, 3, 3),))
    told = told_by(program)
    assert {*map(str, told.values())} == {"{'activation': 'tanh'}"}


@pytest.mark.parametrize("loaded", [False, True])
def test_a_program_tells_of_each_name_of_a_module(loaded, tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.RNN(IN, HIDDEN, nonlinearity="relu")
            self.b = self.a

        def forward(self, x):
            return self.b(x)[0]

    module = Named().eval()
    program = torch.export.export(module, (torch.from_numpy(X),))
    if loaded:
        torch.export.save(program, tmp_path / "a.pt2")
        program = torch.export.load(tmp_path / "a.pt2")
    for name in ("a", "b"):
        net = import_pytorch(program, name)
        np.testing.assert_allclose(net(X)[0], y_of(module.a), atol=1e-6)


def test_a_program_of_torch_export(tmp_path):
    torch.manual_seed(3)
    module = LSTM().eval()
    program = torch.export.export(module, (torch.from_numpy(X),))
    net = import_pytorch(program)
    np.testing.assert_allclose(net(X)[0], y_of(module.rnn), atol=1e-6)
    with pytest.raises(ValueError, match=r"of 'rnn'. If they are used so, import its"):
        import_pytorch(program.module())
    (tmp_path / "model.pt2").write_bytes(b"")
    with pytest.raises(ValueError, match=r"pass torch.export.load\(path\)"):
        import_pytorch(tmp_path / "model.pt2")
