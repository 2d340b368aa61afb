"""Parameters to and from other libraries' layers, against the libraries themselves."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import (
    BATCH,
    HIDDEN,
    IN,
    TIME,
    Equinox,
    Haiku,
    Keras,
    KerasFloat32,
    Layer,
    Linen,
    Nnx,
    OnnxReference,
    OnnxRuntime,
    PyTorch,
    library,
)
from support import assert_bitwise_equal, float64, quick_jit

import prnn_jax
from prnn_jax import Params, convert

NO_BIAS = {"bias": False}
BEFORE = {"reset_after": False}
RELU = {"activation": "relu"}
TWO = {"bidirectional": True}

LAYERS = [
    # PyTorch: one, several, both ways, without bias
    PyTorch("LSTM", b_hh="keep"),
    PyTorch("LSTM", layers=3, b_hh="keep", **TWO),
    PyTorch("LSTM", NO_BIAS, layers=2),
    PyTorch("GRU", layers=2, b_hh="keep"),
    PyTorch("GRU", b_hh="keep", **TWO),
    PyTorch("GRU", NO_BIAS, layers=2, **TWO),
    PyTorch("RNN", layers=2, b_hh="keep"),
    PyTorch("RNN", {"nonlinearity": "relu"}, RELU, b_hh="keep", **TWO),
    # Keras
    Keras("LSTM"),
    Keras("LSTM", **TWO),
    Keras("LSTM", {"use_bias": False}),
    Keras("LSTM", {"go_backwards": True}, {"reverse": True}),
    Keras("GRU", b_hh="keep"),
    Keras("GRU", b_hh="keep", **TWO),
    Keras("GRU", {"use_bias": False}, **TWO),
    Keras("GRU", BEFORE, BEFORE),
    Keras("GRU", BEFORE, BEFORE, **TWO),
    Keras("GRU", {**BEFORE, "use_bias": False}, BEFORE),
    Keras("SimpleRNN"),
    Keras("SimpleRNN", RELU, RELU, **TWO),
    *(KerasFloat32(cell, **TWO) for cell in ("LSTM", "SimpleRNN")),
    KerasFloat32("GRU", b_hh="keep"),
    # Haiku
    Haiku("LSTM"),
    Haiku("GRU", {}, BEFORE),
    Haiku("VanillaRNN", {}, RELU, b_hh="keep"),
    Haiku("VanillaRNN", {"double_bias": False}, RELU, b_hh="none"),
]

BOTH = {"direction": "bidirectional"}
AFTER = {"linear_before_reset": 1}

for evaluator in (OnnxReference, OnnxRuntime):
    LAYERS += [
        evaluator("LSTM", BOTH, b_hh="keep", **TWO),
        evaluator("GRU", {**BOTH, **AFTER}, b_hh="keep", **TWO),
        evaluator("GRU", BOTH, BEFORE, b_hh="keep", **TWO),
        evaluator("RNN", b_hh="keep"),
    ]

LAYERS += [
    OnnxRuntime("LSTM", b_hh="keep"),
    OnnxRuntime("LSTM", {"direction": "reverse"}, {"reverse": True}),
    OnnxRuntime("GRU", AFTER, b_hh="keep"),
    OnnxRuntime("GRU", {}, BEFORE),
    OnnxRuntime("RNN", {"activations": ["Relu"]}, RELU),
    # Cells of Flax and Equinox
    *(Linen(cell) for cell in ("LSTMCell", "OptimizedLSTMCell", "GRUCell")),
    Linen("LSTMCell", **TWO),
    Linen("GRUCell", **TWO),
    Linen("SimpleCell"),
    Linen("SimpleCell", {"residual": True}, {"skip": 1.0}),
    *(Nnx(cell) for cell in ("LSTMCell", "OptimizedLSTMCell")),
    Nnx("GRUCell", b_hh="none"),
    Nnx("SimpleCell", {"dtype": "float64"}),
    *(Equinox(cell) for cell in ("LSTMCell", "GRUCell")),
    *(Equinox(cell, {"use_bias": False}) for cell in ("LSTMCell", "GRUCell")),
]


@pytest.fixture(autouse=True)
def _float64():
    with float64():
        yield


every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)


def drawer(seed: int, dtype: str = "float64"):
    generator = np.random.default_rng(seed)
    return lambda shape: generator.standard_normal(shape).astype(dtype)


def sequence(layer: Layer):
    """x, and an initial state, in which no two numbers are the same."""
    draw = drawer(1, layer.dtype)
    steps = (TIME, BATCH) if layer.time_major else (BATCH, TIME)
    states = 2 if layer.function == "lstm" else 1
    shape = (layer.layers * layer.directions, BATCH, HIDDEN)
    return draw((*steps, IN)), tuple(draw(shape) for _ in range(states))


@functools.partial(quick_jit, static_argnames=("function", "options"))
def _run(function, options, x, layers, states):
    if len(layers) > 1:
        return prnn_jax.stack(function, x, layers, states, **dict(options))
    y, state = getattr(prnn_jax, function)(x, *layers, *states, **dict(options))
    return y, (state,)


def ours(layer: Layer, layers: tuple[Params, ...], x, state):
    """What we compute, with states in the library's form."""
    options = {
        "implementation": "scan",
        "precision": "highest",
        "time_major": layer.time_major,
        "bidirectional": layer.bidirectional,
        **layer.ours,
    }
    lead = (2,) if layer.bidirectional else ()
    each = [s.reshape(layer.layers, *lead, BATCH, HIDDEN) for s in state]
    states = list(zip(*each, strict=True)) if len(each) > 1 else list(each[0])
    results = _run(layer.function, tuple(options.items()), x, layers, states)
    y, states = jax.tree.map(np.asarray, results)
    arrays = zip(*(s if isinstance(s, tuple) else (s,) for s in states), strict=True)
    return y, tuple(np.stack(a).reshape(-1, BATCH, HIDDEN) for a in arrays)


def assert_same(layer: Layer, params, arrays):
    """Both compute the same y and the same last states."""
    x, state = sequence(layer)
    y, state_n = ours(layer, params, x, state)
    their_y, their_state_n = layer.run(arrays, x, state)
    for mine, their in zip((y, *state_n), (their_y, *their_state_n), strict=True):
        mine, their = np.asarray(mine), np.asarray(their)
        assert mine.dtype == their.dtype == layer.dtype
        np.testing.assert_allclose(mine, their, rtol=0, atol=layer.tolerance)


# ---- with the libraries --------------------------------------------------------------


@every_layer
def test_we_compute_what_the_library_does(layer):
    arrays = layer.arrays(drawer(2, layer.dtype))
    params = layer.read(arrays)
    assert len(params) == layer.layers
    assert_same(layer, params, arrays)


@every_layer
def test_the_library_computes_what_we_do(layer):
    params = random_params(layer)
    assert_same(layer, params, layer.write(params))


def random_params(layer: Layer) -> tuple[Params, ...]:
    """With each bias that the library can have, in the sizes that the layer has."""
    draw = drawer(3, layer.dtype)

    def like(params: Params) -> Params:
        b_hh = None
        if params.b_ih is not None and layer.b_hh != "none":
            b_hh = draw(params.b_ih.shape)
        params = jax.tree.map(lambda array: draw(array.shape), params)
        return jax.tree.map(jnp.asarray, params._replace(b_hh=b_hh))

    return tuple(map(like, layer.read(layer.arrays(draw))))


@every_layer
def test_round_trips(layer):
    arrays = layer.arrays(drawer(2, layer.dtype))
    params = layer.read(arrays)
    back = layer.write(params)
    if isinstance(layer, Haiku) and layer.cell == "LSTM":
        # 1 is added to f's bias and taken away again: once each rounded.
        eps = np.finfo(layer.dtype).eps
        for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(back), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=4 * eps)
        return
    assert_bitwise_equal(back, jax.tree.map(np.asarray, arrays))
    assert_bitwise_equal(layer.read(back), params)
    if layer.b_hh == "keep":
        params = random_params(layer)
        assert_bitwise_equal(layer.read(layer.write(params)), params)


# ---- what the libraries' own objects need --------------------------------------------


def test_pytorch_tensors_of_all_kinds():
    torch = library("torch")
    module = torch.nn.GRU(IN, HIDDEN)
    (of_state,) = convert.from_pytorch("GRU", module.state_dict())
    (of_parameters,) = convert.from_pytorch("GRU", dict(module.named_parameters()))
    assert_bitwise_equal(
        of_state, of_parameters
    )  # these ask for gradients, which NumPy refuses
    bias = module.bias_ih_l0.detach().clone().numpy()
    with torch.no_grad():
        module.bias_ih_l0 += 1  # in place, as an optimizer does it
    assert_bitwise_equal(of_state.b_ih, bias)

    half = module.to(torch.bfloat16)
    (params,) = convert.from_pytorch("GRU", half.state_dict())
    assert params.w_hh.dtype == jnp.bfloat16
    assert_bitwise_equal(
        params.b_ih.astype(np.float32), half.bias_ih_l0.detach().float().numpy()
    )

    meta = torch.nn.GRU(IN, HIDDEN, device="meta")
    with pytest.raises(ValueError, match="weight_ih_l0 must have values, got a tens"):
        convert.from_pytorch("GRU", meta.state_dict())

    with jax.enable_x64(False):  # as for all arrays of JAX
        (params,) = convert.from_pytorch("GRU", module.double().state_dict())
        assert params.w_ih.dtype == np.float32


def test_pytorch_may_write_to_what_we_give():
    torch = library("torch")
    draw = drawer(2)
    params = Params(draw((IN, HIDDEN)), draw((HIDDEN, HIDDEN)), draw(HIDDEN))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that an array must not be written to
        arrays = convert.to_pytorch("RNN", jax.tree.map(jnp.asarray, params))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    module = torch.nn.RNN(IN, HIDDEN).double()
    module.load_state_dict(tensors)


def test_keras_weights_are_without_seeds():
    zeros = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}
    layer = library("keras").layers.GRU(HIDDEN, dropout=0.5, seed=0, **zeros)
    layer.build((BATCH, TIME, IN))
    with pytest.warns(DeprecationWarning, match="copy"):  # Keras' own
        weights = layer.get_weights()
    assert convert.from_keras("GRU", weights).b_hh.shape == (3 * HIDDEN,)


def test_haiku_finds_a_core_in_a_model():
    hk = library("haiku")

    class Net(hk.Module):
        def __init__(self):
            super().__init__("net")
            self.cores = [hk.LSTM(HIDDEN), hk.LSTM(HIDDEN, name="second")]

        def __call__(self, x, state):
            for core in self.cores:
                x, _ = core(x, state)
            return hk.Linear(2)(x)

    model = hk.transform(lambda x, state: Net()(x, state))
    x, h = jnp.ones((BATCH, HIDDEN)), jnp.ones((BATCH, HIDDEN))
    init = functools.partial(model.init, jax.random.key(0))
    draw = drawer(2)
    params = jax.eval_shape(init, x, hk.LSTMState(h, h))
    params = jax.tree.map(lambda array: draw(array.shape), params)
    for module in ("net/~/lstm", "net/~/second"):
        found = convert.from_haiku("LSTM", params, module)
        back = convert.to_haiku("LSTM", found, module)
        (linear,) = back
        assert linear == f"{module}/linear"
        assert_bitwise_equal(back[linear]["w"], params[linear]["w"])
        merged = hk.data_structures.merge(params, back)
        assert jax.tree.structure(merged) == jax.tree.structure(params)
        assert_bitwise_equal(
            back[f"{module}/linear"]["w"], params[f"{module}/linear"]["w"]
        )
    with pytest.raises(ValueError, match=r"module 'lstm', got .*'net/~/second/linear'"):
        convert.from_haiku("LSTM", params)


def test_objects_instead_of_arrays():
    """Each is told what it should have been."""
    torch, onnx = library("torch"), library("onnx")
    module = torch.nn.GRU(IN, HIDDEN)
    with pytest.raises(ValueError, match=r"module.state_dict\(\), got GRU"):
        convert.from_pytorch("GRU", module)
    arrays = convert.to_onnx("GRU", convert.from_pytorch("GRU", module.state_dict())[0])
    protos = {n: onnx.numpy_helper.from_array(a) for n, a in arrays.items()}
    with pytest.raises(ValueError, match=r"W must be .*TensorProto; onnx.numpy_helper"):
        convert.from_onnx("GRU", protos)
    tensors = {n: torch.from_numpy(a).requires_grad_() for n, a in arrays.items()}
    assert_bitwise_equal(
        convert.from_onnx("GRU", tensors), convert.from_onnx("GRU", arrays)
    )


def test_nnx_state_as_it_is():
    library("flax")
    nnx = library("flax.nnx")
    ones = jax.nn.initializers.ones
    cell = nnx.GRUCell(IN, HIDDEN, recurrent_kernel_init=ones, rngs=nnx.Rngs(0))
    params = convert.from_nnx("GRUCell", nnx.state(cell, nnx.Param))
    assert_bitwise_equal(
        params, convert.from_nnx("GRUCell", convert.to_nnx("GRUCell", params))
    )
    assert_bitwise_equal(params.w_hh, cell.dense_h.kernel[...])
