"""Networks back into models of PyTorch, against PyTorch itself."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

from prnn_jax.convert import Imported, import_pytorch, update_pytorch

torch = library("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # of what PyTorch will not keep

IN, HIDDEN, BATCH, TIME = 5, 7, 3, 6
X = np.random.default_rng(4).standard_normal((TIME, BATCH, IN)).astype(np.float32)

NETWORKS = {
    "LSTM": lambda: nn.LSTM(IN, HIDDEN, batch_first=True),
    "LSTM both ways, 2 layers": lambda: nn.LSTM(IN, HIDDEN, 2, bidirectional=True),
    "LSTM projected": lambda: nn.LSTM(IN, HIDDEN, 2, proj_size=4),
    "GRU": lambda: nn.GRU(IN, HIDDEN, 2, bias=False),
    "RNN relu": lambda: nn.RNN(IN, HIDDEN, nonlinearity="relu", bidirectional=True),
}
TIME_MAJOR = [name for name in NETWORKS if name != "LSTM"]
CELLS = {
    "LSTMCell": lambda: nn.LSTMCell(IN, HIDDEN),
    "GRUCell": lambda: nn.GRUCell(IN, HIDDEN),
    "RNNCell": lambda: nn.RNNCell(IN, HIDDEN),
}


class Model(nn.Module):
    """A network, and what is not one, around it."""

    def __init__(self, network):
        super().__init__()
        self.before = nn.Linear(2, IN)
        self.encoder = nn.Sequential(nn.Identity(), network)
        self.norm = nn.BatchNorm1d(HIDDEN)


def made(name: str) -> Model:
    torch.manual_seed(3)
    return Model({**NETWORKS, **CELLS}[name]()).eval()


def trained(net: Imported) -> Imported:
    """With other numbers everywhere."""
    return jax.tree.map(lambda array: 1.25 * array + 0.03, net)


def arrays_of(state: dict) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.float()) for name, tensor in state.items()}


def assert_runs_as(module, net: Imported, is_cell: bool) -> None:
    x = X[0] if is_cell else X
    with torch.no_grad():
        y = module(torch.from_numpy(x))
    y = (y[0] if isinstance(y, tuple) else y).numpy()
    ours = net(x[:, None])[0][:, 0] if is_cell else net(x)[0]
    # A few roundings of sums of at most 14 products in float32, of both.
    np.testing.assert_allclose(ours, y, rtol=0, atol=4e-6 * np.abs(y).max())


@pytest.mark.parametrize("scripted", [False, True], ids=["module", "script"])
@pytest.mark.parametrize("name", [*NETWORKS, *CELLS])
def test_a_module_in_a_model(name, scripted):
    model = made(name)
    own = model.encoder[1]
    if scripted:
        model = torch.jit.script(own)  # which has the same parameters
    before = arrays_of(model.state_dict())
    net = import_pytorch(model)
    assert update_pytorch(model, net) is model
    assert_bitwise_equal(arrays_of(model.state_dict()), before)
    new = trained(net)
    update_pytorch(model, new)
    assert_runs_as(own, new, name in CELLS)
    assert_bitwise_equal(import_pytorch(model).layers, new.layers)
    for key, array in arrays_of(model.state_dict()).items():
        is_of_network = scripted or key.startswith("encoder.")
        assert np.array_equal(array, before[key]) != is_of_network, key


@pytest.mark.parametrize("name", [*NETWORKS, *CELLS])
def test_a_state_dict_with_other_keys(name):
    model = made(name)
    given = {"step": 3, "model": model.state_dict(), "more": {"lr": [0.1]}}
    relu = "relu" if "relu" in name else "tanh"
    net = import_pytorch(given, nonlinearity=relu if "RNN" in name else None)
    before = arrays_of(model.state_dict())
    new = trained(net)
    made_of_it = update_pytorch(given, new)
    assert_bitwise_equal(arrays_of(given["model"]), before)
    assert made_of_it["step"] == 3
    assert made_of_it["more"] == {"lr": [0.1]}
    assert list(made_of_it["model"]) == list(before)
    same = made_of_it["model"]["norm.running_mean"]
    assert same is given["model"]["norm.running_mean"]
    model.load_state_dict(made_of_it["model"])
    new = replace(new, time_major=name in TIME_MAJOR)
    assert_runs_as(model.encoder[1], new, name in CELLS)


@pytest.mark.parametrize("kind", ["pt", "npz", "safetensors", "script"])
def test_files(kind, tmp_path):
    model = made("LSTM both ways, 2 layers")
    state = {**model.state_dict(), "count": torch.tensor(2**40)}
    path = tmp_path / f"model.{'pt' if kind == 'script' else kind}"
    to = tmp_path / f"trained{path.suffix}"
    if kind == "pt":
        torch.save({"model": state}, path)
    elif kind == "npz":
        arrays: dict[str, Any] = {n: np.array(a) for n, a in state.items()}
        np.savez(path, **arrays)
    elif kind == "safetensors":
        library("safetensors.torch").save_file(state, path, {"made by": "us"})
    else:
        torch.jit.script(model.encoder[1]).save(path)
    before = path.read_bytes()
    net = import_pytorch(path)
    new = trained(net)
    assert update_pytorch(path, new, to=str(to)) == to
    assert path.read_bytes() == before
    assert_bitwise_equal(import_pytorch(to).layers, new.layers)
    if kind == "safetensors":
        with library("safetensors").safe_open(to, "pt") as file:
            assert file.metadata() == {"made by": "us"}
            assert file.get_tensor("count") == 2**40
            same = file.get_tensor("before.weight")
        np.testing.assert_array_equal(same, state["before.weight"])
        update_pytorch(path, net, to=to)
        assert to.read_bytes() == before


def test_half_precision_stays(tmp_path):
    """And numbers that float32 has are rounded to what the model has."""
    model = made("GRU").bfloat16()
    net = import_pytorch(model)
    new = jax.tree.map(lambda array: 1.25 * array.astype(jnp.float32), net)
    rounded = jax.tree.map(lambda array: array.astype(jnp.bfloat16), new)
    path, to = tmp_path / "model.safetensors", tmp_path / "new.safetensors"
    library("safetensors.torch").save_file(model.state_dict(), path)
    update_pytorch(path, new, to=to)
    update_pytorch(model, new)
    state = update_pytorch(model.state_dict(), new)
    for given in (to, model, state):
        assert_bitwise_equal(import_pytorch(given).layers, rounded.layers)


class Tied(nn.Module):
    """One network in two places, and a tensor that is a view of one of its."""

    def __init__(self):
        super().__init__()
        self.a = self.b = nn.GRU(IN, HIDDEN)
        self.last = nn.Linear(3 * HIDDEN, HIDDEN)
        self.last.weight = nn.Parameter(self.a.weight_hh_l0.detach().T)


@pytest.mark.parametrize("name", ["a", "b"])
def test_tied_modules_stay_tied(name, tmp_path):
    model = Tied()
    path, to = tmp_path / "model.pt", tmp_path / "new.pt"
    state = model.state_dict()
    before = arrays_of(state)
    torch.save(state, path)
    net = import_pytorch(path, name)
    new = trained(net)
    update_pytorch(path, new, to=to)
    made_of_file, made_of_state = torch.load(to), update_pytorch(state, new)
    assert_bitwise_equal(arrays_of(state), before)
    for made_of_it in (made_of_file, made_of_state):
        for one in ("a", "b"):
            found = import_pytorch(made_of_it, one)
            assert_bitwise_equal(found.layers, new.layers)
        its = made_of_it[f"{name}.weight_hh_l0"]
        assert torch.equal(made_of_it["last.weight"], its.T)
        assert its.data_ptr() == made_of_it["last.weight"].data_ptr()
        model.load_state_dict(made_of_it)
        assert_bitwise_equal(import_pytorch(model).layers, new.layers)


def test_arrays_of_one_memory_must_agree():
    state = nn.GRU(IN, HIDDEN).state_dict()
    state["bias_hh_l0"] = state["bias_ih_l0"]
    net = import_pytorch(state)
    assert update_pytorch(state, trained(net))["bias_hh_l0"].shape == (3 * HIDDEN,)
    new = with_layers(net, lambda p: p._replace(b_ih=p.b_ih + 1, b_hh=p.b_hh - 1))
    with pytest.raises(ValueError, match=r"bias_.h_l0 shares its memory with another"):
        update_pytorch(state, new)


def test_a_tied_module_has_several_names():
    """As layers that share their weights: each is a layer of the network."""
    module = nn.GRU(IN, IN)
    model = nn.ModuleDict({"a": module, "b": module, "c": nn.RNN(IN, IN)})
    model["c"].weight_hh_l0 = model["c"].weight_ih_l0
    assert import_pytorch(nn.ModuleList([module, module])).places == ("0",)
    with pytest.raises(ValueError, match=r"one of 'a' \(GRU\), 'c' \(RNN\), got 'd'"):
        import_pytorch(model, "d")
    net = import_pytorch(model, ["a", "b"])
    one = import_pytorch(model, "b")
    assert one.places == ("b",)
    assert_bitwise_equal(net.layers, one.layers * 2)
    new = replace(net, layers=(*one.layers, *trained(one).layers))
    for given in (model, model.state_dict()):
        with pytest.raises(ValueError, match="_l0 shares its memory with another"):
            update_pytorch(given, new)
    for name in ("b", "c"):
        new = jax.tree.map(lambda array: 1.25 * array, import_pytorch(model, name))
        update_pytorch(model, new)
        assert_bitwise_equal(import_pytorch(model, name).layers, new.layers)


def test_arrays_that_are_transposes_of_one_another_are_two():
    module = nn.RNN(IN, IN)
    module.weight_hh_l0 = nn.Parameter(module.weight_ih_l0.detach().T)
    net = jax.tree.map(lambda array: 1.25 * array, import_pytorch(module))
    update_pytorch(module, net)
    assert_bitwise_equal(import_pytorch(module).layers, net.layers)


def test_a_weight_that_is_made_of_others_is_refused():
    module = nn.utils.parametrizations.weight_norm(nn.LSTM(IN, HIDDEN), "weight_hh_l0")
    net = import_pytorch(module)
    before = arrays_of(module.state_dict())
    with pytest.raises(ValueError, match=r"must have the parameter weight_hh_l0, wh"):
        update_pytorch(module, trained(net))
    assert_bitwise_equal(arrays_of(module.state_dict()), before)
    assert update_pytorch(module, net) is module


def pruned(module):
    return library("torch.nn.utils.prune").l1_unstructured(module, "weight_hh_l0", 0.5)


@pytest.mark.parametrize(
    "form",
    [
        lambda module: nn.utils.weight_norm(module, "weight_hh_l0"),
        lambda module: nn.utils.parametrizations.weight_norm(module, "weight_hh_l0"),
        pruned,
    ],
    ids=["weight_norm", "parametrization", "pruning"],
)
@pytest.mark.parametrize("kind", ["state_dict", "pt", "npz", "safetensors"])
def test_so_are_arrays_in_parts(form, kind, tmp_path):
    """But what is no part of these is written."""
    module = form(nn.LSTM(IN, HIDDEN))
    state, options = {"a." + k: v for k, v in module.state_dict().items()}, {}
    if kind != "state_dict":
        path, options = tmp_path / f"model.{kind}", {"to": tmp_path / f"new.{kind}"}
        if kind == "pt":
            torch.save(state, path)
        elif kind == "npz":
            arrays: dict[str, Any] = {**arrays_of(state)}
            np.savez(path, **arrays)
        else:
            library("safetensors.torch").save_file(state, path)
        state = path
    net = import_pytorch(state)
    with pytest.raises(ValueError, match="a must have the parameter weight_hh_l0, whi"):
        update_pytorch(state, trained(net), **options)
    new = with_layers(net, lambda p: p._replace(w_ih=2 * p.w_ih))
    of_it = import_pytorch(update_pytorch(state, new, **options))
    assert_bitwise_equal(of_it.layers, tuple(new.layers))


class Alone(nn.Module):
    """With y alone, as torch.export wants it."""

    def __init__(self, network):
        super().__init__()
        self.rnn = network
        self.requires_grad_(False)
        self.rnn.weight_hh_l0.requires_grad_(True)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_of_torch_export(name, tmp_path):
    torch.manual_seed(3)
    module = Alone(NETWORKS[name]()).eval()
    before = arrays_of(module.state_dict())
    program = torch.export.export(module, (torch.from_numpy(X),))
    net = import_pytorch(program)
    assert net.options == import_pytorch(module).options
    new = trained(net)
    assert update_pytorch(program, new) is program
    assert_runs_as(program.module(), new, False)
    assert program.state_dict["rnn.weight_hh_l0"].requires_grad
    assert_bitwise_equal(arrays_of(module.state_dict()), before)
    torch.export.save(program, tmp_path / "new.pt2")
    assert_runs_as(torch.export.load(tmp_path / "new.pt2").module(), new, False)


@pytest.mark.parametrize("kind", ["trace", "pt"])
@pytest.mark.parametrize("name", [*NETWORKS, *CELLS])
def test_a_traced_module(name, kind, tmp_path):
    """It tells nothing but its arrays, so those of its state_dict are imported."""
    own = made(name).encoder[1]
    x = torch.from_numpy(X[0] if name in CELLS else X)
    traced = torch.jit.trace(nn.Sequential(own), x)
    relu = {"RNN relu": "relu", "RNNCell": "tanh"}.get(name)
    net = import_pytorch(traced.state_dict(), nonlinearity=relu)
    new = trained(replace(net, time_major=name in TIME_MAJOR))
    if kind == "pt":
        traced.save(tmp_path / "old.pt")
        path = update_pytorch(tmp_path / "old.pt", new, to=tmp_path / "new.pt")
        traced = torch.jit.load(path)
    else:
        assert update_pytorch(traced, new) is traced
    assert_runs_as(traced, new, name in CELLS)
    with pytest.raises(ValueError, match="name must be of at least one network"):
        update_pytorch(traced, new, [])


def test_what_has_no_arrays():
    net = import_pytorch(made("LSTM"))
    with pytest.raises(ValueError, match="must be what import_pytorch takes, got int"):
        update_pytorch(7, net)


def test_what_was_not_trained_is_not_written():
    """Nothing can be written to a module in 8 bits."""
    torch.manual_seed(3)
    quantized = torch.ao.quantization.quantize_dynamic(made("LSTM"), {nn.LSTM})
    net = import_pytorch(quantized)
    update_pytorch(quantized, net)
    with pytest.raises(ValueError, match=r"encoder\.1 must have the parameter weight"):
        update_pytorch(quantized, trained(net))


def test_another_place_in_another_model():
    module = made("LSTM")
    net = import_pytorch({"model": module.state_dict()})
    assert net.name == "model.encoder.1"
    with pytest.raises(ValueError, match=r"of 'encoder\.1' \(LSTM\), got 'model"):
        update_pytorch(module, net)
    new = trained(net)
    update_pytorch(module, new, "encoder.1")
    assert_bitwise_equal(import_pytorch(module).layers, new.layers)


def with_layers(net: Imported, change) -> Imported:
    return replace(net, layers=[change(params) for params in net.layers])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: net.layers, "net must be prnn_jax.convert.Imported, got tuple"),
        (lambda net: replace(net, layers=[{"w": 1}]), "params must be prnn_jax.Params"),
        (lambda net: replace(net, cell="gru"), "has cell='rnn', got 'gru'"),
        (lambda net: replace(net, activation="tanh"), "activation='relu', got 'tanh'"),
        (lambda net: replace(net, layers=net.layers * 2), "1 layer.s., .* got 2"),
        (
            lambda net: with_layers(net, lambda p: p._replace(b_ih=None)),
            "layer 0 must have the arrays of 'encoder.1' .* b_ih .*, got w_ih",
        ),
        (lambda net: replace(net, state_0=(jnp.zeros(7),)), "state_0 must be like"),
    ],
)
def test_networks_that_do_not_fit(change, message):
    model = made("RNN relu")
    with pytest.raises(ValueError, match=f"update_pytorch: .*{message}"):
        update_pytorch(model, change(import_pytorch(model)))


def test_traced_networks_and_wrong_destinations(tmp_path):
    model = made("LSTM")
    net = import_pytorch(model)
    with pytest.raises(ValueError, match="net must have values, got tracers"):
        jax.jit(lambda net: update_pytorch(model, net))(net)
    with pytest.raises(ValueError, match="to must be the path of the new file"):
        update_pytorch(model, net, to="model.pt")
    torch.save(model.state_dict(), path := tmp_path / "model.pt")
    with pytest.raises(ValueError, match="to must be the path of the new file"):
        update_pytorch(path, net)
    for wrong in (path, tmp_path / "model.npz"):
        with pytest.raises(ValueError, match=r"to must be another file \.pt"):
            update_pytorch(path, net, to=wrong)
    with pytest.raises(FileNotFoundError):
        update_pytorch(tmp_path / "absent.pt", net, to=tmp_path / "new.pt")
