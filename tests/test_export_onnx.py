"""Layers as models of ONNX, run by ONNX Runtime."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax.convert import Imported, export_onnx, import_onnx, import_pytorch

onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

IN, HIDDEN, TIME, BATCH = 5, 7, 6, 3
X = np.random.default_rng(0).standard_normal((BATCH, TIME, IN)).astype(np.float32)
#: Of sums of a few products below 4, in float32 on both sides.
CLOSE = {"rtol": 0, "atol": 2e-6}


def layers_of(cell: str, count: int, bidirectional=False, width: int = 0, **options):
    layers = []
    for n in range(count):
        key = jax.random.key(n)
        size = width or HIDDEN * (1 + bidirectional)
        layers.append(
            prnn_jax.init(
                cell,
                key,
                size if n else IN,
                HIDDEN,
                scheme="pytorch",
                bidirectional=bidirectional,
                **options,
            )
        )
    return layers


def run(model, feeds: dict) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


KINDS = [
    ("lstm", 2, {}, {}),
    ("lstm", 2, {"bidirectional": True}, {}),
    ("lstm", 2, {"bidirectional": True, "merge": "sum"}, {}),
    ("lstm", 1, {}, {"peepholes": True}),
    ("lstm", 1, {"bidirectional": True}, {"peepholes": True, "bias": False}),
    ("gru", 2, {}, {}),
    ("gru", 1, {"reset_after": False}, {}),
    ("gru", 3, {"bidirectional": True, "time_major": True}, {}),
    ("rnn", 2, {}, {"bias": False}),
    ("rnn", 2, {"activation": "relu"}, {}),
    (
        "lstm",
        1,
        {"gate_activation": "hard_sigmoid", "activation": ("elu", "linear")},
        {"peepholes": True},
    ),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_computes_what_the_stack_does(kind):
    cell, count, options, drawn = kind
    bidirectional = options.get("bidirectional", False)
    width = HIDDEN if options.get("merge") == "sum" else 0
    layers = layers_of(cell, count, bidirectional, width, **drawn)
    if drawn.get("peepholes"):  # such as matter
        layers = [p._replace(peepholes=4 * p.peepholes) for p in layers]
    model = export_onnx(cell, layers, **options)
    assert export_onnx(Imported(tuple(layers), cell, **options)) == model
    x = np.moveaxis(X, 1, 0) if options.get("time_major") else X
    wanted, _ = prnn_jax.stack(cell, x, layers, **options)
    np.testing.assert_allclose(run(model, {"x": x})["y"], wanted, **CLOSE)
    # Another batch and time: they are no part of the model.
    wanted, _ = prnn_jax.stack(cell, x[:2, :2], layers, **options)
    np.testing.assert_allclose(run(model, {"x": x[:2, :2]})["y"], wanted, **CLOSE)


def test_in_reverse():
    (params,) = layers_of("gru", 1)
    y = run(export_onnx("gru", [params], reverse=True), {"x": X})["y"]
    np.testing.assert_allclose(y, prnn_jax.gru(X, params, reverse=True)[0], **CLOSE)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_stream_by_its_states(cell):
    layers = layers_of(cell, 2)
    model = export_onnx(cell, layers, state=True)
    names = [f"{s}_{n}" for n in range(2) for s in ("hc" if cell == "lstm" else "h")]
    state = {name: np.zeros((1, BATCH, HIDDEN), np.float32) for name in names}
    pieces = []
    for t in range(0, TIME, 2):
        out = run(model, {"x": X[:, t : t + 2], **state})
        pieces.append(out["y"])
        state = {name: out[f"{name}_out"] for name in names}
    y, states = prnn_jax.stack(cell, X, layers)
    np.testing.assert_allclose(np.concatenate(pieces, 1), y, **CLOSE)
    last = [state[name][0] for name in names]
    for ours, theirs in zip(jax.tree.leaves(states), last, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_there_and_back():
    layers = layers_of("lstm", 2, bidirectional=True)
    network = import_onnx(export_onnx("lstm", layers, bidirectional=True))
    assert network.bidirectional
    assert_bitwise_equal(list(network.layers), layers)


def test_activations_there_and_back():
    (params,) = layers_of("gru", 1)
    chosen = {
        "activation": prnn_jax.Activation("scaled_tanh", 1.5, 0.75),
        "gate_activation": "hard_sigmoid",
    }
    network = import_onnx(export_onnx("gru", [params], **chosen))
    assert network.activation == chosen["activation"]
    y, _ = network(np.moveaxis(X, 1, 0))
    wanted, _ = prnn_jax.gru(X, params, **chosen)
    np.testing.assert_allclose(np.moveaxis(y, 0, 1), wanted, **CLOSE)
    with pytest.raises(ValueError, match=r"one that ONNX has, .* got 'hard_tanh"):
        export_onnx("gru", [params], activation="hard_tanh")


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_clip_there_and_back(cell):
    layers = layers_of(cell, 1, bidirectional=True, peepholes=cell == "lstm")
    layers = [jax.tree.map(lambda w: 2 * w, layer) for layer in layers]
    clip = prnn_jax.Clip(pre_activations=0.25, gradients=1.0)
    model = export_onnx(cell, layers, bidirectional=True, clip=clip)
    wanted, _ = prnn_jax.stack(cell, X, layers, bidirectional=True, clip=clip)
    plain, _ = prnn_jax.stack(cell, X, layers, bidirectional=True)
    assert abs(wanted - plain).max() > 0.1  # most pre-activations are above it
    np.testing.assert_allclose(run(model, {"x": X})["y"], wanted, **CLOSE)
    network = import_onnx(model)
    assert network.clip == prnn_jax.Clip(pre_activations=0.25)
    y, _ = network(np.moveaxis(X, 1, 0))
    np.testing.assert_allclose(np.moveaxis(y, 0, 1), wanted, **CLOSE)


def test_a_network_brings_its_options():
    network = Imported(tuple(layers_of("rnn", 1)), "rnn", activation="relu")
    for others in ({"layers": network.layers}, {"activation": "tanh", "reverse": True}):
        with pytest.raises(ValueError, match="of a network only state may be given"):
            export_onnx(network, **others)
    begun = dataclasses.replace(network, state_0=(jnp.ones(HIDDEN),))
    with pytest.raises(ValueError, match="initial states of its own"):
        export_onnx(begun)


def test_of_a_network_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.GRU(IN, HIDDEN, 2, batch_first=True).eval()
    network = import_pytorch(module)
    onnx.save(export_onnx(network), tmp_path / "gru.onnx")
    session = ort.InferenceSession(tmp_path / "gru.onnx")
    with torch.no_grad():
        wanted, _ = module(torch.from_numpy(X))
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], wanted, **CLOSE)


def test_a_projection_is_a_layer_without_and_a_product():
    """Which is what the message says to write."""
    torch = pytest.importorskip("torch")
    module = torch.nn.LSTM(IN, HIDDEN, proj_size=3, batch_first=True).eval()
    (params,) = import_pytorch(module).layers
    with pytest.raises(
        ValueError, match=r"export_onnx: ONNX's .* got \[7, 3\]. The sam"
    ):
        export_onnx("lstm", [params])
    w_hr = params.w_hr
    assert w_hr is not None
    without = params._replace(w_hh=w_hr @ params.w_hh, w_hr=None)
    with torch.no_grad():
        wanted, _ = module(torch.from_numpy(X))
    y = run(export_onnx("lstm", [without]), {"x": X})["y"] @ np.asarray(w_hr)
    np.testing.assert_allclose(y, wanted, **CLOSE)


@pytest.mark.parametrize(
    ("cell", "layers", "options", "message"),
    [
        ("slstm", layers_of("lstm", 1), {}, "cell must be .*'rnn'.*got 'slstm'"),
        ("lstm", [], {}, "at least one, got none"),
        (
            "lstm",
            layers_of("lstm", 1) * 2,
            {},
            "layer 1 must be for an input of 7 features",
        ),
        ("gru", layers_of("gru", 1, True), {}, "layer 0 has two directions"),
        (
            "gru",
            layers_of("gru", 1, dtype=jnp.bfloat16),
            {},
            "layer 0 must be of 1 direction.* in float32, got .* of bfloat16",
        ),
        ("gru", layers_of("gru", 2), {"reverse": True}, "reverse must be False"),
        ("rnn", layers_of("rnn", 1), {"activation": "clipped_relu"}, "activation must"),
        (
            "lstm",
            layers_of("lstm", 1),
            {"clip": prnn_jax.Clip(state=1.0)},
            "clip must be of pre_activations alone",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(cell, layers, options, message):
    with pytest.raises(ValueError, match=message):
        export_onnx(cell, layers, **options)
