"""Networks as packages on PyTorch keep them: a module a layer, wrappers, integers."""

import importlib
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

from prnn_jax.convert import import_pytorch, update_pytorch

torch = library("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # of weights that are not flattened

IN, HIDDEN = 5, 7
X = np.random.default_rng(4).standard_normal((3, 6, IN)).astype(np.float32)
#: Of sums of at most 14 products below 1, in float32 on both sides.
CLOSE = {"rtol": 0, "atol": 2e-6}


def trained(net):
    return jax.tree.map(lambda array: 1.25 * array + 0.03, net)


# ---- a module for each layer ---------------------------------------------------------


class Layers(nn.Module):
    """As SpeechBrain's and espnet's: a list of networks, each of one layer or more."""

    def __init__(self, *networks):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.cells = nn.ModuleList(networks)

    def forward(self, x):
        for one in self.cells:
            if isinstance(one, nn.RNNCellBase):
                states: list[Any] = [None]
                for step in x.unbind(1):
                    states.append(one(step, states[-1]))
                hs = [s[0] if isinstance(s, tuple) else s for s in states[1:]]
                x = torch.stack(hs, 1)
            else:
                x = one(x)[0]
        return x


LAYERS = {
    "LSTM": lambda: [nn.LSTM(n, HIDDEN, batch_first=True) for n in (IN, 7, 7)],
    "GRU of other sizes": lambda: [
        nn.GRU(a, b, batch_first=True, bidirectional=True) for a, b in [(IN, 4), (8, 3)]
    ],
    "GRU of two and one": lambda: [
        nn.GRU(n, HIDDEN, m, batch_first=True) for n, m in [(IN, 2), (HIDDEN, 1)]
    ],
    "LSTMCell": lambda: [nn.LSTMCell(n, HIDDEN) for n in (IN, HIDDEN)],
    "RNNCell": lambda: [nn.RNNCell(n, HIDDEN, nonlinearity="relu") for n in (IN, 7)],
}


def y_of(module) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(X)).numpy()


@pytest.mark.parametrize("kind", ["module", "state_dict", "pt"])
@pytest.mark.parametrize("case", LAYERS)
def test_a_module_for_each_layer(case, kind, tmp_path):
    torch.manual_seed(3)
    module = Layers(*LAYERS[case]()).eval()
    model, options = module, {}
    if kind != "module":
        model = module.state_dict()
    if kind == "pt":
        torch.save(model, tmp_path / "model.pt")
        model, options = tmp_path / "model.pt", {"to": tmp_path / "new.pt"}
    names = [f"cells.{n}" for n in range(len(module.cells))]
    relu = "relu" if "RNN" in case and kind != "module" else None
    net = import_pytorch(model, names, nonlinearity=relu)
    assert net.places == tuple(names)
    np.testing.assert_allclose(net(X)[0], y_of(module), **CLOSE)
    new = trained(net)
    made = update_pytorch(model, new, **options)
    if kind == "pt":
        made = torch.load(made)
    if kind != "module":
        module.load_state_dict(made)
    np.testing.assert_allclose(new(X)[0], y_of(module), rtol=2e-6, atol=2e-6)
    assert_bitwise_equal(import_pytorch(module, names).layers, new.layers)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_states_of_all_layers(name, directions):
    """PyTorch's are one array; ours one for each layer, as docs/convert.md says."""
    torch.manual_seed(3)
    options = {"batch_first": True, "bidirectional": directions == 2}
    module = getattr(nn, name)(IN, HIDDEN, 2, **options)
    net = import_pytorch(module)
    shape = (2 * directions, 3, HIDDEN)
    given = [torch.rand(shape) for _ in ("hc" if name == "LSTM" else "h")]
    with torch.no_grad():
        state_0 = tuple(given) if name == "LSTM" else given[0]
        y, last = module(torch.from_numpy(X), state_0)
    arrays = [np.asarray(s) for s in given]
    if directions == 2:
        arrays = [s.reshape(2, 2, *s.shape[1:]) for s in arrays]
    ours = list(zip(*arrays, strict=True)) if name == "LSTM" else list(arrays[0])
    y_ours, states = net(X, ours)
    np.testing.assert_allclose(y_ours, y, **CLOSE)
    states = [s if isinstance(s, tuple) else (s,) for s in states]
    last = last if name == "LSTM" else (last,)
    for wanted, each in zip(last, zip(*states, strict=True), strict=True):
        np.testing.assert_allclose(np.stack(each).reshape(shape), wanted, **CLOSE)


def test_layers_go_where_names_say():
    torch.manual_seed(3)
    module = Layers(*LAYERS["LSTM"]())
    renamed = nn.ModuleDict({f"l{n}": one for n, one in enumerate(module.cells)})
    new = trained(import_pytorch(module, ["cells.0", "cells.1", "cells.2"]))
    update_pytorch(renamed, new, ["l0", "l1", "l2"])
    np.testing.assert_allclose(new(X)[0], y_of(module), **CLOSE)
    with pytest.raises(ValueError, match=r"net must have 2 layer\(s\), as 'l0' of the"):
        update_pytorch(renamed, new, ["l0", "l1"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "a list of names makes them the layers of one"),
        ([], "name must be of at least one network, got none"),
        (["cells.0", "cells.9"], r"one of 'cells.0' \(LSTM\), .* got 'cells.9'"),
        (["cells.0", "cells.1"], "must be alike; 'cells.1' is of gru with"),
        (7, r"one of 'cells.0' \(LSTM\), .* got 7"),
    ],
)
def test_names_that_make_no_network(name, message):
    module = Layers(nn.LSTM(IN, HIDDEN), nn.GRU(HIDDEN, HIDDEN))
    for model in (module, module.state_dict()):
        with pytest.raises(ValueError, match=message):
            import_pytorch(model, name)


# ---- weights that a wrapper drops some of --------------------------------------------


class WeightDropout(nn.Module):
    """As fastai's: its parameter is the weight, and the module's a tensor made of it.

    With `inside`, as that of AWD-LSTM's authors, the parameter is the module's, too.
    """

    def __init__(self, module, *names, inside=False):
        super().__init__()
        self.module, self.names = module, names
        self.owner = [module if inside else self]  # in a list, to be no part of it
        for name in names:
            weight = getattr(module, name)
            delattr(module, name)
            self.owner[0].register_parameter(f"{name}_raw", nn.Parameter(weight.data))
            setattr(module, name, weight.clone())

    def forward(self, x):
        for name in self.names:
            raw = getattr(self.owner[0], f"{name}_raw")
            dropped = nn.functional.dropout(raw, 0.5, self.training)
            setattr(self.module, name, dropped.clone())
        with warnings.catch_warnings(action="ignore"):
            return self.module(x)[0]


@pytest.mark.parametrize("inside", [False, True], ids=["fastai", "inside"])
@pytest.mark.parametrize("names", [["weight_hh_l0"], ["weight_hh_l0", "weight_ih_l1"]])
def test_weights_of_a_wrapper_that_drops_some(inside, names):
    torch.manual_seed(3)
    lstm = nn.LSTM(IN, HIDDEN, 2, batch_first=True)
    model = nn.Sequential(WeightDropout(lstm, *names, inside=inside))
    model.train()(torch.from_numpy(X))  # so that some are zero now
    model.load_state_dict({k: 1.5 * v for k, v in model.state_dict().items()})
    of_module, of_state = import_pytorch(model), import_pytorch(model.state_dict())
    assert of_module.name == of_state.name == "0.module"
    expected = y_of(model.eval())
    for net in (of_module, of_state):
        np.testing.assert_allclose(net(X)[0], expected, **CLOSE)
    new = trained(of_module)
    update_pytorch(model, new)
    np.testing.assert_allclose(new(X)[0], y_of(model), **CLOSE)
    model.load_state_dict(update_pytorch(model.state_dict(), of_module))
    np.testing.assert_allclose(y_of(model), expected, **CLOSE)


class WeightDropGRU(nn.GRU):
    """As pytorch-nlp's: a class of its own, which takes its forward's place."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        _weight_drop(self, [f"weight_hh_l{n}" for n in range(self.num_layers)], 0.5)


def _weight_drop(module, weights, dropout):
    for name in weights:
        weight = module._parameters.pop(name)
        module.register_parameter(f"{name}_raw", nn.Parameter(weight))
    of_class = module.forward

    def forward(*args):
        for name in weights:
            raw = getattr(module, f"{name}_raw")
            setattr(module, name, nn.functional.dropout(raw, dropout, module.training))
        return of_class(*args)

    module.forward = forward


def test_a_class_that_drops_weights_of_its_own():
    torch.manual_seed(3)
    model = WeightDropGRU(IN, HIDDEN, 2, batch_first=True)
    net = import_pytorch(model)
    model.train()(torch.from_numpy(X))  # so that some are zero now
    assert_bitwise_equal(import_pytorch(model).layers, net.layers)
    model.eval()
    np.testing.assert_allclose(
        net(X)[0], model(torch.from_numpy(X))[0].detach(), **CLOSE
    )
    new = trained(net)
    update_pytorch(model, new)
    np.testing.assert_allclose(
        new(X)[0], model(torch.from_numpy(X))[0].detach(), **CLOSE
    )


class Doubling(WeightDropGRU):
    def forward(self, x):
        return super().forward(2 * x)


def test_but_not_one_whose_class_computes_something_else():
    with pytest.raises(ValueError, match="has a forward of its own"):
        import_pytorch(Doubling(IN, HIDDEN))
    model = WeightDropGRU(IN, HIDDEN)
    model.forward = lambda x: nn.GRU.forward(model, 2 * x)
    with pytest.raises(ValueError, match="has a forward of its own"):
        import_pytorch(model)


def test_a_weight_that_is_a_tensor():
    """And no parameter, so that only what made it can be given another."""
    torch.manual_seed(3)
    module = nn.GRU(IN, HIDDEN, batch_first=True)
    weight = module.weight_hh_l0
    del module.weight_hh_l0
    module.weight_hh_l0 = weight * 1.5
    net = import_pytorch(module)
    with torch.no_grad():
        expected = module(torch.from_numpy(X))[0].numpy()
    np.testing.assert_allclose(net(X)[0], expected, **CLOSE)
    with pytest.raises(ValueError, match="must have the parameter weight_hh_l0, which"):
        update_pytorch(module, trained(net))


def test_weights_that_are_not_there():
    module = nn.LSTM(IN, HIDDEN)
    for name in ("bias_hh_l0", "weight_hh_l0"):
        delattr(module, name)
        with pytest.raises(
            ValueError, match=rf"missing {name}.*; the model \(LSTM\) must have"
        ):
            import_pytorch(module)
    there = r"got weight_ih_l0 \[28, 5\], bias_ih_l0 \[28\]; of a checkpoint in several"
    with pytest.raises(ValueError, match=rf"'' must have weight_hh .*{there}"):
        import_pytorch(module.state_dict())


@pytest.mark.parametrize("kind", ["module", "trace", "state_dict"])
def test_a_module_that_was_made_in_inference_mode(kind):
    torch.manual_seed(3)
    with torch.inference_mode():
        model = Layers(*LAYERS["GRU of two and one"]()).eval()
        given = model
        if kind == "trace":
            given = torch.jit.trace(model, torch.from_numpy(X))
    assert model.cells[0].weight_hh_l1.is_inference()
    new = trained(import_pytorch(given, ["cells.0", "cells.1"]))
    if kind == "state_dict":
        state = update_pytorch(model.state_dict(), new)
    else:
        assert update_pytorch(given, new) is given
        state = given.state_dict()
    with torch.inference_mode():
        given.load_state_dict(state)
        np.testing.assert_allclose(new(X)[0], y_of(given), **CLOSE)


# ---- integers, constants -------------------------------------------------------------


@pytest.mark.parametrize("name", ["LSTM", "LSTMCell"])
@pytest.mark.parametrize("package", ["quantizable", "quantized.reference"])
def test_modules_that_compute_with_integers(package, name):
    of = importlib.import_module(f"torch.ao.nn.{package}")
    module = nn.ModuleDict({"a": getattr(of, name)(IN, HIDDEN)})
    where = rf"a \(torch.ao.nn.{package}.{name}\) must be of torch.nn.RNN, .*floats"
    with pytest.raises(ValueError, match=where):
        import_pytorch(module)
    module["b"] = nn.LSTM(IN, HIDDEN)
    assert import_pytorch(module, "b").cell == "lstm"


@pytest.mark.parametrize("freeze", ["freeze", "optimize_for_inference"])
def test_torchscript_whose_weights_are_constants(freeze):
    script = torch.jit.script(nn.Sequential(nn.LSTM(IN, HIDDEN)).eval())
    with pytest.raises(
        ValueError, match=r"as parameters, .*Import the module that was"
    ):
        import_pytorch(getattr(torch.jit, freeze)(script))
    assert import_pytorch(script).cell == "lstm"


# ---- tensors in several processes ----------------------------------------------------


@pytest.fixture
def mesh(tmp_path):
    """Of this process alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("PyTorch was built without processes")
    store = {"init_method": f"file://{tmp_path}/store", "rank": 0, "world_size": 1}
    distributed.init_process_group("gloo", **store)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_module_of_fully_shard(mesh):
    """FSDP2; its message says what to import."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    state_dict = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    torch.manual_seed(3)
    module = nn.Sequential(nn.LSTM(IN, HIDDEN))
    expected = import_pytorch(module)
    fsdp.fully_shard(module[0], mesh=mesh)
    for given in (module, module.state_dict()):
        with pytest.raises(
            ValueError, match="_l0 must be a whole tensor, got a DTensor"
        ):
            import_pytorch(given)
    options = state_dict.StateDictOptions(full_state_dict=True)
    arrays = state_dict.get_model_state_dict(module, options=options)
    assert_bitwise_equal(import_pytorch(arrays).layers, expected.layers)
