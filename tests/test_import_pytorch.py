"""Whole models of PyTorch as networks, against PyTorch itself."""

import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_bitwise_equal, error_of

from prnn_jax.convert import Imported, import_pytorch

torch = pytest.importorskip("torch")
prune = pytest.importorskip("torch.nn.utils.prune")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # of what PyTorch will not keep

IN, HIDDEN, BATCH, TIME = 5, 7, 3, 6

NETWORKS = {
    "LSTM": lambda: nn.LSTM(IN, HIDDEN),
    "LSTM batch_first": lambda: nn.LSTM(IN, HIDDEN, batch_first=True),
    "LSTM both ways, 2 layers": lambda: nn.LSTM(
        IN, HIDDEN, 2, bidirectional=True, dropout=0.5
    ),
    "GRU": lambda: nn.GRU(IN, HIDDEN, bias=False),
    "GRU batch_first, 3 layers": lambda: nn.GRU(IN, HIDDEN, 3, batch_first=True),
    "RNN": lambda: nn.RNN(IN, HIDDEN),
    "RNN relu": lambda: nn.RNN(IN, HIDDEN, nonlinearity="relu", bidirectional=True),
}
CELLS = {
    "LSTMCell": lambda: nn.LSTMCell(IN, HIDDEN),
    "GRUCell": lambda: nn.GRUCell(IN, HIDDEN),
    "RNNCell": lambda: nn.RNNCell(IN, HIDDEN, nonlinearity="relu"),
}


class Model(nn.Module):
    """A network, and what is not one, around it."""

    def __init__(self, network):
        super().__init__()
        self.before = nn.Linear(2, IN)
        self.encoder = nn.Sequential(nn.Identity(), network)
        self.norm = nn.BatchNorm1d(HIDDEN)


def made(make) -> nn.Module:
    torch.manual_seed(3)
    return make().eval()


def x_of(shape=(TIME, BATCH, IN)) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def assert_computes_the_same(net: Imported, module: nn.Module, x: np.ndarray) -> None:
    """As near to PyTorch in float64 as PyTorch in float32 is, or nearly."""
    with torch.no_grad():
        of_torch = module(torch.from_numpy(x))[0].numpy()
        exact = module.double()(torch.from_numpy(x).double())[0].numpy()
        module.float()
    y, _ = net(x)
    assert y.shape == exact.shape
    slack = 4 * np.finfo(np.float32).eps * np.abs(exact).max()
    assert error_of(y, exact) <= 2 * error_of(of_torch, exact) + slack


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scripted", [False, True], ids=["module", "script"])
def test_a_module_alone(name, scripted):
    module = made(NETWORKS[name])
    given = torch.jit.script(module) if scripted else module
    net = import_pytorch(given)
    assert net.name == ""
    assert_computes_the_same(net, module, x_of())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_only_network_of_a_model(name):
    module = made(NETWORKS[name])
    net = import_pytorch(Model(module))
    assert net.name == "encoder.1"
    assert net.time_major == (not module.batch_first)
    assert_computes_the_same(net, module, x_of())


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_a_network_of_one_layer(name):
    cell = made(CELLS[name])
    net, x = import_pytorch(cell), x_of((BATCH, TIME, IN))
    state, outputs = None, []
    for t in range(TIME):
        state = cell(torch.from_numpy(x[:, t]), state)
        h = state[0] if isinstance(state, tuple) else state
        outputs.append(h.detach().numpy())
    y, _ = net(x)
    np.testing.assert_allclose(y, np.stack(outputs, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_state_dict_with_other_keys(name):
    module = made(NETWORKS[name])
    nonlinearity = getattr(module, "nonlinearity", None)
    if nonlinearity is None and "RNN" in name:
        nonlinearity = module.mode.removeprefix("RNN_").lower()
    given = {"step": 3, "model": Model(module).state_dict()}
    net = import_pytorch(given, nonlinearity=nonlinearity)
    assert net.name == "model.encoder.1"
    expected = import_pytorch(module)
    assert net.cell == expected.cell
    assert net.bidirectional == expected.bidirectional
    assert net.activation == expected.activation
    assert_bitwise_equal(net.layers, expected.layers)
    x = x_of()
    y = net(x, time_major=expected.time_major)[0]
    assert_bitwise_equal(y, expected(x)[0])


class WithMore(nn.LSTM):
    """A layer with other arrays than PyTorch's."""

    def __init__(self):
        super().__init__(IN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.register_buffer("step", torch.zeros(1))


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.LSTM(IN, HIDDEN), "weight_hh_l0", 0.5)


@pytest.mark.parametrize(
    "make",
    [
        WithMore,
        pruned,
        lambda: nn.utils.weight_norm(nn.GRU(IN, HIDDEN), "weight_hh_l0"),
        lambda: nn.utils.parametrizations.weight_norm(
            nn.LSTM(IN, HIDDEN, bidirectional=True), "weight_ih_l0_reverse"
        ),
    ],
    ids=["subclass", "pruning", "weight_norm", "parametrization"],
)
def test_weights_as_the_module_computes_with_them(make):
    module = made(make)
    for _ in range(2):
        net = import_pytorch(Model(module))
        y, _ = net(x_of())
        with torch.no_grad():
            expected = module(torch.from_numpy(x_of()))[0].numpy()
            for parameter in module.parameters():  # trained, and not called since
                parameter.mul_(1.2)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["pt", "script.pt", "npz", "safetensors"])
def test_damaged_files(kind, tmp_path):
    path, lstm = tmp_path / f"model.{kind}", nn.LSTM(IN, HIDDEN)
    if kind == "npz":
        np.savez(path, allow_pickle=False, w=np.zeros(9))
    elif kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(lstm.state_dict(), path)
    elif kind == "pt":
        torch.save(lstm.state_dict(), path)
    else:
        torch.jit.script(lstm).save(path)
    content = path.read_bytes()
    for bad in (b"", b"hello, no model", content[: len(content) // 2]):
        path.write_bytes(bad)
        with pytest.raises(
            ValueError, match=rf"model\.{kind} must be a (file|state_d)"
        ):
            import_pytorch(path)


def test_an_archive_of_something_else(tmp_path):
    for name in ("a", "x/constants.pkl"):
        with zipfile.ZipFile(path := tmp_path / "other.pt", "w") as file:
            file.writestr(name, "no model")
        with pytest.raises(ValueError, match=r"other\.pt must be a state_dict"):
            import_pytorch(path)
    with (path := tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"array\.npz must be a file of np\.savez"):
        import_pytorch(path)


def test_one_of_several_is_chosen_by_name():
    model = nn.ModuleDict({"a": nn.LSTM(IN, HIDDEN), "b": nn.GRUCell(IN, HIDDEN)})
    for given in (model, model.state_dict()):
        with pytest.raises(ValueError, match=r"one of 'a' \(LSTM\), 'b' \(GRU"):
            import_pytorch(given)
        with pytest.raises(ValueError, match=r"one of 'a' \(LSTM\), .* got 'c'"):
            import_pytorch(given, "c")
        assert import_pytorch(given, "b").cell == "gru"
        weight = import_pytorch(given, "a").layers[0].w_hh
        np.testing.assert_array_equal(weight, model["a"].weight_hh_l0.detach().T)


def test_files(tmp_path):
    module = made(NETWORKS["LSTM both ways, 2 layers"])
    expected = import_pytorch(module)
    torch.save(Model(module).state_dict(), tmp_path / "model.pt")
    old = {"_use_new_zipfile_serialization": False}
    torch.save(Model(module).state_dict(), tmp_path / "old.pt", **old)
    torch.save(Model(module), tmp_path / "whole.pt")
    torch.jit.script(module).save(tmp_path / "script.pt")
    of_dict = import_pytorch(tmp_path / "model.pt")
    of_script = import_pytorch(str(tmp_path / "script.pt"))
    for net in (of_dict, of_script, import_pytorch(tmp_path / "old.pt")):
        assert_bitwise_equal(net.layers, expected.layers)
    assert of_script.time_major
    assert not of_dict.time_major
    with pytest.raises(ValueError, match="more in it, and that you trust"):
        import_pytorch(tmp_path / "whole.pt")
    with pytest.raises(FileNotFoundError):
        import_pytorch(tmp_path / "absent.pt")
    (tmp_path / "text.pt").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.pt must be a state_dict"):
        import_pytorch(tmp_path / "text.pt")


def test_arrays_of_numpy_by_short_names(tmp_path):
    encoder, decoder = made(lambda: nn.GRU(IN, HIDDEN)), made(lambda: nn.LSTMCell(5, 4))
    of_cell = {n: a.detach().numpy() for n, a in decoder.state_dict().items()}
    short = {
        f"enc_{n[0]}_{n.split('_')[1]}": a.detach().numpy()
        for n, a in encoder.state_dict().items()
    }
    more = {f"dec.{n}": a for n, a in of_cell.items()} | {"enc_emb": of_cell["bias_hh"]}
    np.savez(tmp_path / "model.npz", **short, **more)
    net = import_pytorch(tmp_path / "model.npz", "enc")
    assert_bitwise_equal(net.layers, import_pytorch(encoder).layers)
    assert net.cell == "gru"
    net = import_pytorch(tmp_path / "model.npz", "dec")
    assert_bitwise_equal(net.layers, import_pytorch(decoder).layers)
    with pytest.raises(ValueError, match=r"one of 'enc' \(GRU\), 'dec' \(LSTM\)"):
        import_pytorch(short | more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_safetensors(dtype, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    module = made(NETWORKS["GRU batch_first, 3 layers"]).to(dtype)
    path = tmp_path / "model.safetensors"
    save_file(Model(module).to(dtype).state_dict(), path)
    net = import_pytorch(path)
    assert net.layers[0].w_hh.dtype == str(dtype).removeprefix("torch.")
    assert_bitwise_equal(net.layers, import_pytorch(module).layers)


def test_it_is_a_pytree_of_its_parameters():
    net = import_pytorch(made(NETWORKS["LSTM"]))
    x = x_of()

    @jax.jit
    def loss(net, x):
        return jnp.sum(net(x)[0] ** 2)

    gradient = jax.grad(loss)(net, x)
    assert jax.tree.structure(gradient) == jax.tree.structure(net)
    doubled = jax.tree.map(lambda a: 2 * a, net)
    np.testing.assert_array_equal(doubled.layers[0].w_hh, 2 * net.layers[0].w_hh)


class Sub(nn.LSTM):
    """Of a user."""


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
@pytest.mark.parametrize(
    "name", ["LSTM both ways, 2 layers", "GRU batch_first, 3 layers", "LSTMCell"]
)
def test_dynamically_quantized(name, dtype):
    """The numbers that its integers stand for, in a module of floats."""
    make = {**NETWORKS, **CELLS}[name]
    quantized = torch.ao.quantization.quantize_dynamic(
        Model(made(make)), {nn.LSTM, nn.GRU, nn.LSTMCell}, dtype
    )
    net = import_pytorch(quantized)
    (module,) = (m for m in quantized.modules() if hasattr(m, "get_weight"))
    floats = made(make)
    floats.load_state_dict(
        {
            n: w.dequantize() if w.is_quantized else w.float()
            for n, w in module.get_weight().items()
        }
        | module.get_bias()
    )
    if isinstance(floats, nn.LSTMCell):
        x = x_of((BATCH, IN))
        y, _ = net(x[:, None])
        h, _ = floats(torch.from_numpy(x))
        np.testing.assert_allclose(y[:, 0], h.detach().numpy(), atol=1e-6)
        h, _ = module(torch.from_numpy(x))  # which rounds x and h, too
        np.testing.assert_allclose(y[:, 0], h.detach().numpy(), atol=0.02)
        return
    x = x_of()
    assert_computes_the_same(net, floats, x)
    y, _ = net(x)
    of_torch = module(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(y, of_torch, atol=0.02)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: nn.Linear(3, 4), "it has none"),
        (lambda: {"weight": np.zeros((3, 4))}, "it has none"),
        (lambda: {}, "it has none"),
        (lambda: 7, "must be a torch.nn.Module, TorchScript, a state_dict, or a path"),
        (lambda: nn.LSTM(IN, HIDDEN).double(), "weight_ih_l0 is float64"),
        (lambda: nn.RNN(IN, HIDDEN).state_dict(), "nonlinearity must be 'tanh' or"),
        (lambda: {"a.weight_hh": np.zeros((8, 3))}, "G = 1, 3 or 4"),
        (
            lambda: nn.LSTM(IN, HIDDEN, device="meta"),
            "on the device meta",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(given, message):
    with pytest.raises(ValueError, match=message):
        import_pytorch(given())


def test_a_subclass_is_what_it_derives_from():
    torch.manual_seed(3)
    module = Sub(IN, HIDDEN)
    assert_computes_the_same(import_pytorch(module), module, x_of())
