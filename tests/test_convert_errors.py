"""What the converters do without a library: merged biases, transformations, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_bitwise_equal, float64, run_python

import prnn_jax
from prnn_jax import Params, convert

IN, HIDDEN = 4, 3
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@pytest.fixture(autouse=True)
def _float64():
    with float64():
        yield


def some_params(function: str, *lead: int, b_hh: bool = True) -> Params:
    draw, wide = np.random.default_rng(0).standard_normal, GATES[function] * HIDDEN
    shapes = [(*lead, IN, wide), (*lead, HIDDEN, wide), (*lead, wide), (*lead, wide)]
    return Params(*map(draw, shapes[: 4 if b_hh else 3]))


def converter(way: str, library: str):
    return getattr(convert, f"{way}_{library}")


def test_nothing_is_imported():
    script = """
import sys
import prnn_jax.convert
libraries = {"equinox", "flax", "haiku", "keras", "onnx", "onnxruntime", "torch"}
print(libraries & set(sys.modules))
"""
    assert run_python(script).strip() == "set()"


@pytest.mark.parametrize(
    ("library", "cell", "function"),
    [
        ("linen", "LSTMCell", "lstm"),
        ("linen", "SimpleCell", "rnn"),
        ("haiku", "GRU", "gru"),
        ("equinox", "LSTMCell", "lstm"),
        ("keras", "SimpleRNN", "rnn"),
    ],
)
def test_two_biases_become_their_sum(library, cell, function):
    params = some_params(function)
    back = converter("from", library)(cell, converter("to", library)(cell, params))
    total = params.b_ih + params.b_hh
    assert_bitwise_equal(back, params._replace(b_ih=total, b_hh=None))


def test_the_part_of_b_hh_that_stays_apart():
    params = some_params("gru")
    back = convert.from_linen("GRUCell", convert.to_linen("GRUCell", params))
    n = np.s_[2 * HIDDEN :]
    assert_bitwise_equal(back.b_hh[n], params.b_hh[n])
    assert_bitwise_equal(back.b_ih[n], params.b_ih[n])
    assert_bitwise_equal(back.b_hh[: 2 * HIDDEN], np.zeros(2 * HIDDEN))


def test_pytorch_has_all_biases_or_none():
    first = some_params("gru", b_hh=False)
    second = Params(first.w_hh, first.w_hh)
    arrays = convert.to_pytorch("GRU", [first, second])
    zeros = np.zeros(3 * HIDDEN)
    for name in ("bias_hh_l0", "bias_ih_l1", "bias_hh_l1"):
        assert_bitwise_equal(arrays[name], zeros)
    assert_bitwise_equal(arrays["bias_ih_l0"], np.asarray(first.b_ih))
    arrays = convert.to_pytorch("GRU", [first._replace(b_ih=None), second])
    assert not any("bias" in name for name in arrays)


def test_biases_that_a_cell_must_have():
    params = some_params("lstm")._replace(b_ih=None, b_hh=None)
    assert_bitwise_equal(
        convert.to_nnx("LSTMCell", params)["hf"]["bias"], jnp.zeros(HIDDEN)
    )
    gru = convert.to_linen("GRUCell", some_params("gru", b_hh=False))
    assert_bitwise_equal(gru["hn"]["bias"], jnp.zeros(HIDDEN))
    bias = convert.to_haiku("LSTM", params)["lstm/linear"]["b"]
    f = np.s_[2 * HIDDEN : 3 * HIDDEN]  # gates are i g f o
    assert (bias[f] == -1).all()
    assert bias.sum() == -HIDDEN


def test_they_can_be_transformed():
    params = some_params("lstm", 6)  # an ensemble
    write = jax.jit(jax.vmap(functools.partial(convert.to_haiku, "LSTM")))
    read = jax.jit(jax.vmap(functools.partial(convert.from_haiku, "LSTM")))
    arrays = write(params)
    assert arrays["lstm/linear"]["w"].shape == (6, IN + HIDDEN, 4 * HIDDEN)
    assert_bitwise_equal(read(arrays).w_hh, params.w_hh)


def test_directions():
    forward, backward = some_params("gru"), some_params("gru")
    both = convert.stack_directions(forward, backward)
    assert both.b_hh.shape == (2, 3 * HIDDEN)
    assert_bitwise_equal(convert.split_directions(both), (forward, backward))


# ---- what they refuse ----------------------------------------------------------------

LSTM, GRU = some_params("lstm"), some_params("gru")
TORCH = convert.to_pytorch("LSTM", [LSTM])
ONNX = convert.to_onnx("LSTM", LSTM)
KERAS = {after: convert.to_keras("GRU", GRU, reset_after=after) for after in (1, 0)}
WIDE = [np.zeros(shape) for shape in ((IN, 20), (5, 20), 20)]
LINEN = convert.to_linen("GRUCell", GRU)
EQUINOX = convert.to_equinox("GRUCell", GRU)
BIDIRECTIONAL = some_params("gru", 2)


class Proto:
    """What a TensorProto of ONNX looks like."""

    raw_data = b""


def renamed(arrays, old: str, new: str):
    return {name.replace(old, new): array for name, array in arrays.items()}


def haiku(w: tuple[int, ...], b: tuple[int, ...] = (12,)):
    arrays = {"lstm/linear": {"w": np.zeros(w), "b": np.zeros(b)}}
    return convert.from_haiku("LSTM", arrays)


REFUSED = {
    "cell": (
        lambda: convert.from_keras("LSTMs", []),
        r"from_keras: cell must be one of 'LSTM', 'GRU', 'SimpleRNN', got 'LSTMs'",
    ),
    # PyTorch
    "projection": (
        lambda: convert.from_pytorch("LSTM", {**TORCH, "weight_hr_l0": np.zeros(1)}),
        r"weight_hr_l0 must have 2 axes, none of size 0, got \[1\]",
    ),
    "prefix": (
        lambda: convert.from_pytorch("LSTM", renamed(TORCH, "w", "rnn.w")),
        r"expected .*weight_hh_l0.*; missing weight_ih_l0, .*; unknown rnn.weight_ih_l0"
        r".*; pass the state_dict of the layer itself, with no prefix",
    ),
    "no-bias": (
        lambda: convert.from_pytorch("LSTM", renamed(TORCH, "bias_hh", "bias")),
        "missing bias_hh_l0; unknown bias_l0;",
    ),
    "no-layer": (
        lambda: convert.from_pytorch("LSTM", {**TORCH, **renamed(TORCH, "l0", "l2")}),
        "missing weight_ih_l1, .*; unknown weight_ih_l2",
    ),
    "no-arrays": (
        lambda: convert.from_pytorch("LSTM", {}),
        "missing weight_ih_l0, weight_hh_l0;",
    ),
    "other-cell": (
        lambda: convert.from_pytorch("GRU", TORCH),
        r"weight_hh_l0 must be \[3\*hidden, hidden\] = \[9, 3\], got \[12, 3\]",
    ),
    "transposed": (
        lambda: convert.from_pytorch(
            "LSTM", {**TORCH, "weight_ih_l0": TORCH["weight_ih_l0"].T}
        ),
        r"weight_ih_l0 must be \[4\*hidden, input\] = \[12, 4\], got \[4, 12\]; "
        "transpose",
    ),
    "dtypes": (
        lambda: convert.from_pytorch(
            "LSTM", {**TORCH, "bias_ih_l0": np.zeros(12, np.float16)}
        ),
        "the same dtype, got .*bias_ih_l0 float16.*; cast them",
    ),
    "no-floats": (
        lambda: convert.from_pytorch("LSTM", {**TORCH, "bias_ih_l0": np.arange(12)}),
        "bias_ih_l0 must have a floating dtype, got int64",
    ),
    "too-many-inputs": (
        lambda: convert.from_pytorch("LSTM", {**TORCH, **renamed(TORCH, "l0", "l1")}),
        "layer 1 must have as many inputs as the one before has outputs, 3, got 4",
    ),
    "unequal-layers": (
        lambda: convert.to_pytorch("GRU", [GRU, BIDIRECTIONAL]),
        r"w_hh \[3, 9\] float64, got \[2, 3, 9\] float64 in layer 1",
    ),
    "no-layers": (lambda: convert.to_pytorch("GRU", []), "at least one Params, got no"),
    "no-params": (
        lambda: convert.to_pytorch("GRU", [tuple(GRU)]),
        "params must be prnn_jax.Params, got tuple",
    ),
    "ensemble": (
        lambda: convert.to_pytorch("GRU", [some_params("gru", 3)]),
        r"w_hh must be .* or \[2, hidden, G\*hidden\] .*, got \[3, 3, 9\]",
    ),
    "a-module": (
        lambda: convert.from_pytorch("LSTM", object()),
        r"state_dict must be a mapping of names to arrays, module.state_dict\(\), got "
        "object",
    ),
    "named-parameters": (
        lambda: convert.from_pytorch("LSTM", list(TORCH.items())),
        r"must be a mapping .*, module.state_dict\(\), got list",
    ),
    "one-layer": (
        lambda: convert.to_pytorch("GRU", prnn_jax.Layer(GRU)),
        "layers must be a sequence of prnn_jax.Params, got Layer; pass its .params",
    ),
    "prepared": (
        lambda: convert.to_pytorch("GRU", [prnn_jax.Prepared(GRU, None)]),
        "params must be prnn_jax.Params, got Prepared; pass its .params",
    ),
    "layers-by-name": (
        lambda: convert.to_pytorch("GRU", GRU._asdict()),
        r"a sequence of prnn_jax.Params, got dict; write prnn_jax.Params\(\*\*params\)",
    ),
    "no-values": (
        lambda: convert.from_pytorch(
            "LSTM",
            {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in TORCH.items()},
        ),
        "weight_ih_l0 must be an array, got ShapeDtypeStruct, which has no values",
    ),
    # Keras
    "a-layer": (
        lambda: convert.from_keras("LSTM", object()),
        r"weights must be a list of arrays, layer.get_weights\(\), got object",
    ),
    "reset-after-of-what": (
        lambda: convert.from_keras("GRU", KERAS[1], reset_after="yes"),
        "from_keras: reset_after must be True or False, .* got 'yes'",
    ),
    "count": (
        lambda: convert.from_keras("GRU", KERAS[True][:1]),
        "weights must be kernel, recurrent_kernel .*, got 1; pass layer.get_weights",
    ),
    "reset-after": (
        lambda: convert.from_keras("GRU", KERAS[False]),
        r"bias must be \[2, 3\*hidden\] with reset_after=True, got \[9\]",
    ),
    "reset-before": (
        lambda: convert.from_keras("GRU", KERAS[True], reset_after=False),
        r"bias must be \[3\*hidden\] with reset_after=False, got \[2, 9\]",
    ),
    "backward": (
        lambda: convert.from_keras(
            "LSTM", [*convert.to_keras("LSTM", LSTM), *KERAS[1]]
        ),
        r"backward bias must have 1 axis, .* got \[2, 9\]",
    ),
    "unequal-sides": (
        lambda: convert.from_keras("LSTM", convert.to_keras("LSTM", LSTM) + WIDE),
        r"from_keras: both directions must have .* backward",
    ),
    # Haiku
    "module": (
        lambda: convert.from_haiku("GRU", convert.to_haiku("LSTM", LSTM)),
        "must have a module 'gru', got 'lstm/linear'; name the core's with module=",
    ),
    "module-by-another-name": (
        lambda: convert.from_haiku("GRU", convert.to_haiku("GRU", GRU, "net/~/memory")),
        "must have a module 'gru', got 'net/~/memory'; name the core's with "
        "module='net/~/memory'",
    ),
    "haiku-part-of-a-core": (
        lambda: convert.from_haiku(
            "LSTM", convert.to_haiku("LSTM", LSTM, "a/b"), "a/b/linear"
        ),
        "module must be the core's name, 'a/b', got 'a/b/linear', which is a part of",
    ),
    "module-of-another-name": (
        lambda: convert.from_haiku("LSTM", convert.to_haiku("LSTM", LSTM, "a/b")),
        "got 'a/b/linear'; name the core's with module='a/b'",
    ),
    "module-itself": (
        lambda: convert.from_haiku("LSTM", convert.to_haiku("LSTM", LSTM), object()),
        "from_haiku: module must be its name among params, got object",
    ),
    "to-haiku": (
        lambda: convert.to_haiku("VanillaRNN", tuple(GRU)),
        "to_haiku: params must be prnn_jax.Params, got tuple",
    ),
    "haiku-s-arrays": (
        lambda: convert.from_haiku("LSTM", [np.zeros(3)]),
        "params must be a mapping .*, as hk.transform.* makes it, got list",
    ),
    "other-module": (
        lambda: convert.from_haiku("GRU", convert.to_haiku("LSTM", LSTM), "lstm"),
        "missing w_i, w_h, b; unknown linear/w, linear/b;",
    ),
    "both-transposed": (
        lambda: haiku((12, 7)),
        r"linear/w must be \[input\+hidden, 4\*hidden\] = \[7, 12\], .*; transpose",
    ),
    "no-inputs": (lambda: haiku((3, 12)), r"= \[4, 12\], got \[3, 12\]"),
    "scalar": (lambda: haiku((7, 12), ()), "linear/b must have 1 axis, .* got"),
    # ONNX
    "peepholes": (
        lambda: convert.from_onnx("LSTM", {**ONNX, "P": np.zeros((1, 8))}),
        r"P must be \[directions, 3\*hidden\] = \[1, 9\], got \[1, 8\]",
    ),
    "unknown": (
        lambda: convert.from_onnx("LSTM", {**ONNX, "X": np.zeros((1, 9))}),
        "expected the arrays W, R, B; unknown X",
    ),
    "no-directions": (
        lambda: convert.from_onnx("LSTM", {n: a[0] for n, a in ONNX.items()}),
        r"W must be \[directions, .* with 1 or 2 directions, got \[12, 4\]",
    ),
    "directions": (
        lambda: convert.from_onnx("LSTM", {**ONNX, "R": ONNX["R"].repeat(2, 0)}),
        r"R must be \[directions, 4\*hidden, hidden\] = \[1, 12, 3\], got \[2, 12, 3\]",
    ),
    "initializers": (
        lambda: convert.from_onnx("LSTM", dict.fromkeys("WRB", Proto())),
        "from_onnx: W must be an array, got Proto; onnx.numpy_helper.to_array makes",
    ),
    "node": (
        lambda: convert.from_onnx("LSTM", [ONNX["W"], ONNX["R"]]),
        "inputs must be a mapping of names to arrays, such as .*, got list",
    ),
    # Flax and Equinox
    "linen-s-cell": (
        lambda: convert.from_linen("GRUCell", object()),
        r"params must be a mapping .*variables\[.params.\].*, got object",
    ),
    "nnx-s-cell": (
        lambda: convert.from_nnx("GRUCell", object()),
        r"state must be a mapping .*, nnx.state\(cell, nnx.Param\), got object",
    ),
    "equinox-s-cell": (
        lambda: convert.from_equinox("GRUCell", object()),
        r"arrays must be a mapping .*, vars\(cell\), got object",
    ),
    "above": (
        lambda: convert.from_linen("GRUCell", {"cell": LINEN}),
        "missing ir.kernel, .*; unknown cell.ir.*; pass the arrays of one layer alone",
    ),
    "bidirectional": (
        lambda: convert.to_linen("GRUCell", BIDIRECTIONAL),
        r"w_hh must be \[hidden, G\*hidden\], one direction, got \[2, 3, 9\]; split_",
    ),
    "no-place": (
        lambda: convert.to_nnx("GRUCell", GRU),
        "to_nnx: the cell has no bias inside the product with r, so b_hh must be None",
    ),
    "no-bias_n": (
        lambda: convert.from_equinox("GRUCell", renamed(EQUINOX, "bias_n", "b_n")),
        "missing bias_n; unknown b_n",
    ),
    "no-w_hh": (
        lambda: convert.to_equinox("GRUCell", GRU._replace(w_hh=None)),
        "w_hh must be an array, got NoneType",
    ),
    # directions
    "unequal-directions": (
        lambda: convert.stack_directions(GRU, some_params("gru", b_hh=False)),
        r"must have the same arrays, got .* b_hh \[9\] float64 forward and",
    ),
    "one-direction": (
        lambda: convert.split_directions(GRU),
        r"w_hh must be \[2, hidden, G\*hidden\], got \[3, 9\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_they_refuse(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_float64_of_numpy_among_jax_s_arrays(kind):
    """As JAX takes it, with 64 bits or without."""
    with jax.enable_x64(False):
        mixed = {n: kind(a) if "ih" in n else jnp.asarray(a) for n, a in TORCH.items()}
        (params,) = convert.from_pytorch("LSTM", mixed)
        (expected,) = convert.from_pytorch("LSTM", jax.tree.map(jnp.asarray, TORCH))
        assert {array.dtype.name for array in jax.tree.leaves(params)} == {"float32"}
        assert_bitwise_equal(params, expected)
