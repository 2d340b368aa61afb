"""The LSTM with a projection beside PyTorch's, and from and to other libraries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from projected_support import HIDDEN, IN, OUT, ROWS, TIME, data, params_of
from support import assert_bitwise_equal, float64

import prnn_jax
from prnn_jax import convert


@functools.cache
def torch_network(layers: int, bidirectional: bool):
    torch = pytest.importorskip("torch")
    torch.manual_seed(layers + 2 * bidirectional)
    make = functools.partial(torch.nn.LSTM, proj_size=OUT, batch_first=True)
    return make(IN, HIDDEN, layers, bidirectional=bidirectional).double()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("implementation", [None, "scan"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_as_pytorch(layers, bidirectional, implementation):
    torch = pytest.importorskip("torch")
    module, directions = torch_network(layers, bidirectional), 1 + bidirectional
    x = data(ROWS, TIME, IN)
    h_0 = data(layers * directions, ROWS, OUT, seed=1)
    c_0 = data(layers * directions, ROWS, HIDDEN, seed=2)
    given = [torch.tensor(a, requires_grad=True) for a in (x, h_0, c_0)]
    y, (h_n, c_n) = module(given[0], tuple(given[1:]))
    weights = [data(*a.shape, seed=3) for a in (y, h_n, c_n)]
    pairs = zip((y, h_n, c_n), weights, strict=True)
    module.zero_grad()
    sum((out * torch.tensor(w)).sum() for out, w in pairs).backward()

    def per_layer(states):  # [layers*directions, ...] as ours
        states = states.reshape(layers, directions, *states.shape[1:])
        return list(states if bidirectional else states[:, 0])

    def loss(params, x, h_0, c_0):
        states = list(zip(per_layer(h_0), per_layer(c_0), strict=True))
        options = {"bidirectional": bidirectional, "implementation": implementation}
        y, states = prnn_jax.stack("lstm", x, params, states, **options)
        h_n, c_n = (
            jnp.stack(s).reshape(layers * directions, *s[0].shape[bidirectional:])
            for s in zip(*states, strict=True)
        )
        outputs = y, h_n, c_n
        return sum(map(jnp.vdot, outputs, weights)), outputs

    with float64():
        network = convert.import_pytorch(module)
        assert network.layers[0].w_hr.shape[-2:] == (HIDDEN, OUT)
        run = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)
        (_, ours), (of_params, *of_given) = run(network.layers, x, h_0, c_0)
        back = convert.to_pytorch("LSTM", of_params)
    for a, b in zip(ours, (y, h_n, c_n), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-12, atol=1e-12)
    for a, b in zip(of_given, given, strict=True):
        np.testing.assert_allclose(a, b.grad.numpy(), rtol=1e-12, atol=1e-12)
    named_parameters = dict(module.named_parameters())
    assert back.keys() == named_parameters.keys()
    for name, parameter in named_parameters.items():
        found, wanted = back[name], parameter.grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_lengths_as_pytorchs_packed_sequences():
    torch = pytest.importorskip("torch")
    rnn = torch.nn.utils.rnn
    module = torch_network(1, True)
    x, lengths = data(ROWS, TIME, IN), [6, 3, 1, 4]
    options = {"batch_first": True, "enforce_sorted": False}
    packed = rnn.pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), **options)
    y, (h_n, c_n) = module(packed)
    y, _ = rnn.pad_packed_sequence(y, batch_first=True, total_length=TIME)
    with float64():
        (params,) = convert.import_pytorch(module).layers
        ours = prnn_jax.lstm(x, params, lengths=lengths, bidirectional=True)
    for a, b in zip(jax.tree.leaves(ours), (y, h_n, c_n), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_there_and_back(bidirectional):
    module = torch_network(2, bidirectional).float()
    state_dict = {n: a.numpy() for n, a in module.state_dict().items()}
    layers = convert.from_pytorch("LSTM", state_dict)
    assert_bitwise_equal(convert.to_pytorch("LSTM", layers), state_dict)
    torch_network.cache_clear()


@pytest.mark.parametrize(
    "convert_it",
    [
        functools.partial(convert.to_onnx, "LSTM"),
        functools.partial(convert.to_keras, "LSTM"),
        functools.partial(convert.to_haiku, "LSTM"),
        functools.partial(convert.to_nnx, "LSTMCell"),
        functools.partial(convert.to_linen, "LSTMCell"),
        functools.partial(convert.to_equinox, "LSTMCell"),
    ],
    ids=lambda run: run.func.__name__,
)
def test_libraries_without_it_refuse(convert_it):
    with pytest.raises(ValueError, match=r"has no projection, so params\.w_hr must be"):
        convert_it(params_of())


def test_pytorch_refuses_what_it_has_not():
    with pytest.raises(ValueError, match=r"projection < hidden .* got \[7, 8\] in lay"):
        convert.to_pytorch("LSTM", [params_of(size=8)])
    layers = [params_of(), params_of()._replace(w_hr=None)]
    with pytest.raises(ValueError, match="None in all, got None in layer 1"):
        convert.to_pytorch("LSTM", layers)
    arrays = convert.to_pytorch("LSTM", [params_of()])
    arrays["weight_hr_l0"] = np.ones((HIDDEN, OUT), np.float32)
    with pytest.raises(ValueError, match=r"weight_hr_l0 must be \[projection, hidden"):
        convert.from_pytorch("LSTM", arrays)
    with pytest.raises(ValueError, match="unknown weight_hr_l0"):
        convert.from_pytorch("GRU", {"weight_hr_l0": np.ones((2, 3))})
