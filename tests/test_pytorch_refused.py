"""What of PyTorch is not imported: messages say what it is, and what to do."""

import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

from prnn_jax.convert import import_pytorch, update_pytorch

torch = library("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # of what PyTorch will not keep

IN, HIDDEN = 5, 7


# ---- arrays beside a layer's own -----------------------------------------------------


class NormedCell(nn.Module):
    """As LayerNormLSTMCell of PyTorch's benchmarks."""

    def __init__(self):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * HIDDEN, IN))
        self.weight_hh = nn.Parameter(torch.randn(4 * HIDDEN, HIDDEN))
        self.layernorm_i = nn.LayerNorm(4 * HIDDEN)
        self.layernorm_c = nn.LayerNorm(HIDDEN)


class ResidualCell(nn.Module):
    """As ResLSTMCell of neuralforecast."""

    def __init__(self):
        super().__init__()
        for name, rows in {"ii": 3, "ic": 3, "ih": 3, "hh": 1, "ir": 1}.items():
            weight = torch.randn(rows * HIDDEN, IN if name in ("ii", "ir") else HIDDEN)
            self.register_parameter(f"weight_{name}", nn.Parameter(weight))


class WithStart(nn.LSTM):
    def __init__(self):
        super().__init__(IN, HIDDEN)
        self.h0 = nn.Parameter(torch.zeros(HIDDEN))
        self.register_buffer("steps", torch.tensor([3]))


@pytest.mark.parametrize("prefix", ["", "net.cell."])
@pytest.mark.parametrize(
    ("make", "others"),
    [
        (NormedCell, r"layernorm_i.weight \[28\], .*layernorm_c.bias \[7\] beside"),
        (ResidualCell, r"weight_ii \[21, 5\], .*weight_ic \[21, 7\], .* beside"),
        (WithStart, r"h0 \[7\] beside"),
    ],
)
def test_arrays_of_a_cell_that_computes_more(make, others, prefix):
    arrays = {f"{prefix}{key}": value for key, value in make().state_dict().items()}
    arrays["net.out.weight" if prefix else "epoch"] = torch.zeros(3).long()
    for name in (None, prefix.rstrip(".")):
        with pytest.raises(ValueError, match=rf"no others, got {prefix}{others} them"):
            import_pytorch(arrays, name, nonlinearity="tanh")


def test_arrays_that_are_known_to_be_a_layer():
    """By passing them alone; and by a network that came from there."""
    module = WithStart()
    arrays = {f"a.{key}": value for key, value in module.state_dict().items()}
    alone = {key: value for key, value in arrays.items() if key != "a.h0"}
    net = import_pytorch(alone)
    assert_bitwise_equal(net.layers, import_pytorch(module).layers)
    new = update_pytorch(arrays, net)
    assert list(new) == list(arrays)


def test_arrays_in_another_place():
    state = nn.LSTM(IN, HIDDEN).state_dict()
    arrays = {f"a.b.{key}": value for key, value in state.items()}
    more = {"a.norm.weight": torch.ones(3), "a.bias": torch.ones(3)}
    assert import_pytorch({**arrays, **more}).name == "a.b"
    short = {"w_ih": state["weight_ih_l0"], "w_hh": state["weight_hh_l0"]}
    assert import_pytorch({**short, "w_out": np.ones((2, 3))}).name == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.to_sparse(), "got Tensor of float32, sparse_coo; make one of it"),
        (
            lambda a: torch.quantize_per_tensor(a, 0.1, 0, torch.qint8),
            "Tensor of qint8",
        ),
    ],
    ids=["sparse", "quantized"],
)
def test_tensors_that_are_no_arrays(change, message):
    state = nn.LSTM(IN, HIDDEN).state_dict()
    state["weight_hh_l0"] = change(state["weight_hh_l0"])
    with pytest.raises(ValueError, match=f"hh_l0 must be a dense tensor .*{message}"):
        import_pytorch(state)


def test_tensors_of_8_bits_stay():
    state = nn.LSTM(IN, HIDDEN).to(torch.float8_e5m2).state_dict()
    (params,) = import_pytorch(state).layers
    assert params.w_hh.dtype == "float8_e5m2"
    wanted = state["weight_hh_l0"].float().T
    np.testing.assert_array_equal(params.w_hh.astype("float32"), wanted)


def test_a_checkpoint_with_a_whole_module():
    checkpoint = {"epoch": 3, "model": nn.Sequential(nn.LSTM(IN, HIDDEN))}
    with pytest.raises(ValueError, match=r"has whole modules, 'model'\. Pass one"):
        import_pytorch(checkpoint)


# ---- dynamically quantized -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["script", "trace", "state_dict", "ts"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LSTMCell", "RNNCell"])
def test_dynamically_quantized_without_the_module(name, kind, tmp_path):
    of = getattr(nn, name)
    model = nn.Sequential(of(IN, HIDDEN))
    model = torch.ao.quantization.quantize_dynamic(model, {of})
    if kind == "state_dict":
        given = {"model": model.state_dict()}
    elif kind == "trace":
        x = torch.zeros((3, IN) if "Cell" in name else (2, 3, IN))
        given = torch.jit.trace(model, x)
    else:
        given = torch.jit.script(model)
    if kind == "ts":
        given.save(tmp_path / "model.ts")
        given = tmp_path / "model.ts"
    for asked in (None, "model.0" if kind == "state_dict" else "0"):
        with pytest.raises(
            ValueError, match=r"is dynamically quantized, .*; import that module"
        ):
            import_pytorch(given, asked)


def test_one_that_is_quantized_of_two():
    model = nn.Sequential(nn.LSTM(IN, HIDDEN), nn.GRU(IN, HIDDEN))
    model = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
    state = model.state_dict()
    with pytest.raises(ValueError, match=r"'1' \(GRU\), '0' \(dynamically quantized\)"):
        import_pytorch(state)
    assert_bitwise_equal(
        import_pytorch(state, "1").layers, import_pytorch(model, "1").layers
    )


# ---- files ---------------------------------------------------------------------------


def test_an_archive_of_torch_package(tmp_path):
    with torch.package.PackageExporter(path := tmp_path / "a.pt") as exporter:
        exporter.save_pickle("model", "arrays.pkl", {"a": 1})
    with pytest.raises(ValueError, match=r"torch\.package\.PackageImporter\(path\)"):
        import_pytorch(path)


# ---- other networks ------------------------------------------------------------------


class LiGRULayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(IN, 2 * HIDDEN)
        self.u = nn.Linear(HIDDEN, 2 * HIDDEN)

    def forward(self, x):
        return self.w(x)


class LiGRU(nn.Sequential):
    """As SpeechBrain's."""


@pytest.mark.parametrize("scripted", [False, True], ids=["module", "script"])
def test_networks_of_others_are_named(scripted):
    model = LiGRU(LiGRULayer(), nn.Linear(2, 3))
    model = torch.jit.script(model) if scripted else model
    with pytest.raises(
        ValueError, match="has none; it is of LiGRU, with '0' of LiGRULayer"
    ):
        import_pytorch(model)


def test_an_xlstm_is_for_another_importer():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 3), nn.Module()])})
    model["blocks"][1].slstm_cell = nn.Module()
    kernel = nn.Parameter(torch.zeros(2, 3, 12))
    model["blocks"][1].slstm_cell.register_parameter("_recurrent_kernel_", kernel)
    for given in (model, model.state_dict()):
        with pytest.raises(ValueError, match=r"'blocks.1': prnn_jax.convert.import_xl"):
            import_pytorch(given)


@pytest.mark.parametrize("both", [False, True])
def test_layers_that_do_not_fit_on_one_another(both):
    outputs = 2 * HIDDEN if both else HIDDEN
    make = [nn.LSTM(n, HIDDEN, bidirectional=both) for n in (IN, outputs, outputs + 1)]
    model = nn.ModuleDict(dict(zip("abc", make, strict=True)))
    assert import_pytorch(model, ["a", "b"]).places == ("a", "b")
    message = f"'c' has {outputs + 1} inputs, 'b' before it {outputs} outputs. Import"
    for given in (model, model.state_dict()):
        with pytest.raises(ValueError, match=message):
            import_pytorch(given, ["a", "b", "c"])


def test_a_packed_sequence():
    net = import_pytorch(nn.LSTM(IN, HIDDEN, batch_first=True))
    x = torch.randn(2, 6, IN)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4]), True)
    with pytest.raises(ValueError, match=r"got PackedSequence, .*give x and lengths="):
        net(packed)
    x, lengths = nn.utils.rnn.pad_packed_sequence(packed, True)
    net(x.numpy(), lengths=lengths.numpy())
