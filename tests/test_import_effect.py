"""import_effect, export_effect: beside PyTorch, Keras and the C++ programs themselves.

`COMPUTED` is the end of what RTNeural (commit 1fb1f07, Eigen) and NeuralAmpModelerCore
(daae2d0) in C++ made of `X`, of the files that are written here.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

import prnn_jax
from prnn_jax.convert import Dense, Effect, Imported, export_effect, import_effect

TIME, HIDDEN = 9, 6
X = np.random.default_rng(1).standard_normal((TIME, 1)).astype(np.float32)
#: Of sums of a few products near 1, in float32 on both sides.
CLOSE = {"rtol": 0, "atol": 2e-6}


def drawn(*shape: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed).standard_normal(shape)
    return (0.6 * draw).astype(np.float32)


# ---- files, as the programs of others write them -------------------------------------


def rtneural(kind: str, inputs: int = 1, **more) -> dict:
    """A dense layer, two recurrent ones, and a dense one."""
    gates = {"lstm": 4, "gru": 3}[kind]
    layers = [("dense", "tanh", (inputs, 5), (5,))]
    bias = (4 * HIDDEN,) if kind == "lstm" else (2, 3 * HIDDEN)
    for width in (5, HIDDEN):
        shapes = (width, gates * HIDDEN), (HIDDEN, gates * HIDDEN), bias
        layers.append((kind, "tanh", *shapes))
    layers.append(("time-distributed-dense", "", (HIDDEN, 1), (1,)))
    described = [
        {
            "type": kind,
            "activation": activation,
            "shape": [None, None, len(drawn(*shapes[1], seed=0).reshape(-1))],
            "weights": [
                drawn(*shape, seed=10 * n + k).tolist()
                for k, shape in enumerate(shapes)
            ],
        }
        for n, (kind, activation, *shapes) in enumerate(layers)
    ]
    for one, units in zip(described, (5, HIDDEN, HIDDEN, 1), strict=True):
        one["shape"][-1] = units
    return {"in_shape": [None, None, inputs], **more, "layers": described}


def guitarml(unit: str, inputs: int = 1, layers: int = 1, skip: int = 1) -> dict:
    torch = library("torch")
    torch.manual_seed(2)
    rec = getattr(torch.nn, unit)(inputs, HIDDEN, layers)
    lin = torch.nn.Linear(HIDDEN, 1)
    arrays = {f"rec.{n}": a for n, a in rec.state_dict().items()}
    arrays |= {f"lin.{n}": a for n, a in lin.state_dict().items()}
    said = {"model": "SimpleRNN", "input_size": inputs, "skip": skip}
    said |= {"output_size": 1, "unit_type": unit, "num_layers": layers}
    said |= {"hidden_size": HIDDEN, "bias_fl": True}
    state_dict = {name: a.tolist() for name, a in arrays.items()}
    return {"model_data": said, "state_dict": state_dict}


def nam(layers: int = 2) -> dict:
    """Weights one after the other, and an initial state that is not zero."""
    count = 4 * HIDDEN * (HIDDEN + 2) + 2 * HIDDEN + HIDDEN + 1
    count += (layers - 1) * (4 * HIDDEN * (2 * HIDDEN + 1) + 2 * HIDDEN)
    config = {"input_size": 1, "hidden_size": HIDDEN, "num_layers": layers}
    named = {"version": "0.5.4", "metadata": {}, "architecture": "LSTM"}
    weights = drawn(count, seed=5).tolist()
    return named | {"config": config, "weights": weights, "sample_rate": 48000}


# ---- what they compute ---------------------------------------------------------------

# fmt: off
COMPUTED = {
    "lstm": [-0.5377252, -0.5294069, -0.5235937, -0.5182048],
    "gru": [-0.8863387, -0.8156718, -0.8518121, -0.8553864],
    "nam": [0.6663912, 0.7078331, 0.7075229, 0.7205623],
}
# fmt: on
FILES = {"lstm": lambda: rtneural("lstm"), "gru": lambda: rtneural("gru"), "nam": nam}


@pytest.mark.parametrize("name", FILES)
def test_computes_what_the_program_does(name, tmp_path):
    path = tmp_path / "effect.json"
    path.write_text(json.dumps(FILES[name]()))
    y, _ = import_effect(path)(X)
    np.testing.assert_allclose(y[-4:, 0], COMPUTED[name], **CLOSE)


@pytest.mark.parametrize("unit", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("inputs", "layers", "skip"), [(1, 1, 1), (2, 2, 1), (1, 1, 0)]
)
def test_pytorch_computes_the_same(unit, inputs, layers, skip):
    torch = library("torch")
    file = guitarml(unit, inputs, layers, skip)
    rec = getattr(torch.nn, unit)(inputs, HIDDEN, layers)
    lin = torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.ModuleDict({"rec": rec, "lin": lin})
    model.load_state_dict({n: torch.tensor(a) for n, a in file["state_dict"].items()})
    x = drawn(TIME, 3, inputs, seed=7)
    with torch.no_grad():
        expected = lin(rec(torch.tensor(x))[0]).numpy() + skip * x[..., :1]
    y, _ = import_effect(file)(x, time_major=True)
    np.testing.assert_allclose(y, expected, **CLOSE)


def test_x_is_added_where_the_file_does_not_say():
    """As by the class of the trainer, whose skip is 1, and by the plugins."""
    file = guitarml("LSTM")
    said = import_effect(file)
    del file["model_data"]["skip"]
    assert (import_effect(file).skip, said.skip) == (1, 1)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_keras_computes_the_same(kind):
    keras = library("keras")
    file = rtneural(kind, inputs=2)
    layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[kind]
    model = keras.Sequential(
        [
            keras.layers.Dense(5, activation="tanh"),
            layer(HIDDEN, return_sequences=True),
            layer(HIDDEN, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )
    x = drawn(3, TIME, 2, seed=8)
    model(x)
    for one, described in zip(model.layers, file["layers"], strict=True):
        one.set_weights([np.array(a, np.float32) for a in described["weights"]])
    y, _ = import_effect(file)(x)
    np.testing.assert_allclose(y, np.asarray(model(x)), **CLOSE)


def test_gains_and_the_signal_that_aida_x_adds():
    plain = import_effect(rtneural("lstm", inputs=2))
    more = {"in_skip": 1, "in_gain": -6, "out_gain": 3.5}
    metadata = {"metadata": {"samplerate": "48000"}}
    effect = import_effect(rtneural("lstm", inputs=2, **more, **metadata))
    x = drawn(TIME, 2, seed=3)
    louder = np.stack([10 ** (-6 / 20) * x[:, 0], x[:, 1]], 1)
    expected = 10 ** (3.5 / 20) * (np.asarray(plain(louder)[0])[:, 0] + louder[:, 0])
    np.testing.assert_allclose(effect(x)[0][:, 0], expected, **CLOSE)
    assert effect.sample_rate == 48000


def test_the_initial_state_of_a_nam():
    file = nam(layers=1)
    effect = import_effect(file)
    assert effect.network.state_0 is not None
    ((h, c),) = effect.network.state_0
    at = 4 * HIDDEN * (HIDDEN + 2)
    wanted = np.array(file["weights"][at : at + 2 * HIDDEN], np.float32)
    np.testing.assert_array_equal(np.concatenate([h, c]), wanted)
    of_zeros, _ = effect(X, [(0 * h, 0 * c)])
    assert np.abs(np.asarray(effect(X)[0]) - of_zeros).max() > 0.1
    several, _ = effect(np.stack([X, -X]))
    np.testing.assert_allclose(several[0], effect(X)[0], **CLOSE)


def test_blocks_of_a_signal():
    effect = import_effect(nam())
    y, state = effect(X)
    parts, last = [], None
    for n in range(0, TIME, 2):
        part, last = effect(X[n : n + 2], last)
        parts.append(part)
    assert_bitwise_equal(jnp.concatenate(parts), y)
    assert_bitwise_equal(last, state)


# ---- and back ------------------------------------------------------------------------

WRITTEN = {
    "rtneural": {
        "lstm": lambda: rtneural("lstm"),
        "gru": lambda: rtneural("gru", in_skip=1, in_gain=-3.5, out_gain=2),
        "a GRU": lambda: guitarml("GRU", layers=2),
    },
    "guitarml": {
        "LSTM": lambda: guitarml("LSTM"),
        "GRU": lambda: guitarml("GRU", inputs=2, layers=2),
        "RNN": lambda: guitarml("RNN", skip=0),
    },
    "nam": {"nam": nam, "LSTM": lambda: guitarml("LSTM", layers=2, skip=0)},
}


@pytest.mark.parametrize(
    ("like", "name"),
    [(like, name) for like, names in WRITTEN.items() for name in names],
)
def test_written_down_and_read_again(like, name):
    effect = import_effect(WRITTEN[like][name]())
    file = json.loads(json.dumps(export_effect(effect, like=like)))
    again = import_effect(file)
    x = drawn(TIME, 2, seed=3)[:, : effect.network.layers[0].w_ih.shape[0]]
    x = x[:, :1] if effect.before else x
    # Two biases of PyTorch may have become one; gains went through decibels.
    np.testing.assert_allclose(again(x)[0], effect(x)[0], **CLOSE)
    assert again.sample_rate == effect.sample_rate


def test_the_very_file():
    for file, like in ((rtneural("gru"), "rtneural"), (nam(), "nam")):
        again = export_effect(import_effect(file), like=like)
        for name in ("layers", "weights", "config", "architecture"):
            assert again.get(name) == file.get(name) or name == "layers"
        for one, its in zip(
            again.get("layers", []), file.get("layers", []), strict=True
        ):
            for name in ("weights", "shape", "activation"):
                assert one[name] == its[name]


def test_layers_of_ones_own():
    params = prnn_jax.init("lstm", jax.random.key(0), 1, HIDDEN, bias=False)
    head = Dense(jnp.ones((HIDDEN, 1)), jnp.zeros(1))
    effect = Effect(Imported((params,), "lstm"), after=(head,))
    for like in ("rtneural", "guitarml", "nam"):
        again = import_effect(export_effect(effect, like=like))
        np.testing.assert_allclose(again(X)[0], effect(X)[0], **CLOSE)


def test_gradients_and_jit():
    effect = import_effect(nam())

    @jax.jit
    def loss(effect):
        return (effect(X)[0] ** 2).sum()

    gradients = jax.grad(loss)(effect)
    step = 1e-3
    moved = jax.tree.map(lambda p, g: p - step * g, effect, gradients)
    # By less than all of the first order, which is the sum of the squares.
    assert loss(effect) - loss(moved) > 0


# ---- what is refused -----------------------------------------------------------------


def changed(file: dict, **entries) -> dict:
    return file | entries


def of_layers(*kept: int, **entries) -> dict:
    file = rtneural("lstm")
    layers = [file["layers"][n] for n in kept]
    layers[-1] = layers[-1] | entries
    return file | {"layers": layers}


REFUSED = {
    "must have layers": lambda: {"rec.weight_ih_l0": [[1.0]]},
    "layers must be there, of JSON's arrays, got 3": lambda: {"layers": 3},
    "type must be there": lambda: of_layers(0, 1, type=None),
    "must be dense, lstm or gru.*got 'conv1d'": lambda: of_layers(0, type="conv1d"),
    "one after the other": lambda: of_layers(0, 1, 3, 2),
    r"layers\[1\], lstm, must have an activation of '', 'tanh', got 'relu'": (
        lambda: of_layers(0, 1, activation="relu")
    ),
    "got 'selu'": lambda: of_layers(0, activation="selu"),
    "a shape of 7 units and weights of 6": lambda: of_layers(0, 1, shape=[None, 7]),
    "must have an lstm or gru, got none": lambda: of_layers(0),
    r"layers\[1\]: from_keras: ": lambda: of_layers(0, 1, weights=[[[1.0]]]),
    r"weights\[0\] must be numbers": lambda: of_layers(0, weights=[[[1], [1, 2]]]),
    "must have a matrix, and a bias": lambda: of_layers(0, weights=[[1.0]]),
    "must fit on one another, beginning with 1 inputs, got 5 to 6": (
        lambda: of_layers(1, 3)
    ),
    "skip must be 0, 1 or the number of outputs, 1, got 2": (
        lambda: changed(rtneural("lstm"), in_skip=2)
    ),
    "the model SimpleRNN .* got 'GatedConvNet' and None": (
        lambda: {"model_data": {"model": "GatedConvNet"}, "state_dict": {}}
    ),
    "rec: from_pytorch: ": lambda: changed(guitarml("GRU"), state_dict={}),
    "architecture must be LSTM, got 'WaveNet'": (
        lambda: changed(nam(), architecture="WaveNet")
    ),
    r"weights must be \[.*\] for 1 layers of 6 units": (
        lambda: changed(nam(), config=nam(layers=1)["config"])
    ),
    "hidden_size must be there, of JSON's numbers, got None": (
        lambda: changed(nam(), config={"input_size": 1})
    ),
    "must be a path or a dict": lambda: [1.0],
    "in_channels is 2, and input_size 1": (
        lambda: of_nam(input_size=1, hidden_size=HIDDEN, num_layers=2, in_channels=2)
    ),
    # As many layers as no list has.
    "for 1000000000000 layers": (
        lambda: of_nam(input_size=1, hidden_size=HIDDEN, num_layers=10**12)
    ),
    r"weights\[1\] must be numbers that float32 has": (
        lambda: of_layers(0, weights=[[[1.0]], [None]])
    ),
}


def of_nam(**config) -> dict:
    return nam() | {"config": config}


@pytest.mark.parametrize("said", REFUSED)
def test_refused(said):
    with pytest.raises(ValueError, match=f"import_effect: .*{said}"):
        import_effect(REFUSED[said]())


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_effect(tmp_path / "absent.nam")
    path = tmp_path / "damaged.nam"
    path.write_text('{"architecture":')
    with pytest.raises(ValueError, match=r"damaged\.nam must be JSON"):
        import_effect(str(path))


def with_network(**options) -> Effect:
    params = prnn_jax.init("lstm", jax.random.key(0), 1, HIDDEN)
    net = Imported((params,), "lstm", **options)
    return Effect(net, after=(Dense(jnp.ones((HIDDEN, 1)), jnp.zeros(1)),))


NO_PLACE = {
    "effect must be an Effect, got dict": ({}, "nam"),
    "like must be one of": (with_network(), "wavenet"),
    "'rtneural' has no place for reverse=True": (
        with_network(reverse=True),
        "rtneural",
    ),
    "no place for activation='relu', only for 'tanh'": (
        with_network(activation="relu"),
        "nam",
    ),
    "no place for the number of layers after=0": (
        Effect(with_network().network),
        "guitarml",
    ),
}


def test_parameters_that_a_file_has_no_place_for():
    effect = with_network()
    (params,) = effect.network.layers
    peepholes = params._replace(peepholes=jnp.ones((3, HIDDEN)))
    wider = prnn_jax.init("lstm", jax.random.key(1), HIDDEN, 2 * HIDDEN)
    for layers, said in (
        ((peepholes,), "peepholes of type"),
        ((params, wider), r"hidden_size of layers\[1\]=12, only for 6"),
    ):
        other = dataclasses.replace(effect.network, layers=layers)
        with pytest.raises(ValueError, match=f"'nam' has no place for {said}"):
            export_effect(dataclasses.replace(effect, network=other), like="nam")


@pytest.mark.parametrize("said", NO_PLACE)
def test_no_place_for(said):
    effect, like = NO_PLACE[said]
    with pytest.raises(ValueError, match=f"export_effect: .*{said}"):
        export_effect(effect, like=like)


@pytest.mark.parametrize("like", ["nam", "rtneural"])
def test_cells_that_a_file_has_no_place_for(like):
    effect = import_effect(guitarml("RNN", skip=0))
    with pytest.raises(ValueError, match="no place for cell='rnn'"):
        export_effect(effect, like=like)
    skipping = import_effect(guitarml("LSTM"))
    with pytest.raises(ValueError, match="'nam' has no place for skip=1"):
        export_effect(skipping, like="nam")


def test_another_number_of_inputs():
    with pytest.raises(ValueError, match="Effect: x must be"):
        import_effect(nam())(drawn(TIME, 2, seed=1))
