"""Networks that others have trained on text, with their own runtimes."""

import ast
import importlib.util
import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._trained import Network
from prnn_jax import convert

_TEXT = "persistent recurrent networks keep their weights on the chip"
_CHINESE = "\u4eca\u5929\u94f6\u884c\u7684\u957f\u5ea6\u4e0d\u91cd\u8981\u3002"


def g2p_en(folder: Path) -> list[Network]:
    """Letters to phonemes of English: GRU cells in NumPy, from an `.npz` file."""
    path = folder / "g2p_en/checkpoint20.npz"
    arrays = np.load(path)
    theirs = _methods(folder / "g2p_en/g2p.py", "G2p", ("sigmoid", "grucell", "gru"))
    letters = [3 + "abcdefghijklmnopqrstuvwxyz".index(c) for c in "reparametrisation"]
    # What the decoder is told has no part in how it computes: any phonemes will do.
    inputs = {"enc": letters, "dec": list(range(4, 24))}

    def of(name: str) -> Network:
        names = (f"{name}_{n}" for n in ("w_ih", "w_hh", "b_ih", "b_hh"))
        own = [arrays[n] for n in names]

        def run(x: np.ndarray) -> np.ndarray:
            return theirs.gru(x, x.shape[1], *own)

        net = convert.import_pytorch(path, name)
        x = arrays[f"{name}_emb"][inputs[name]][None]
        call = f'import_pytorch("{path.name}", "{name}")'
        return Network(f"{path.name}: {name}", call, net, x, "NumPy", run)

    return [of("enc"), of("dec")]


def g2p_m(folder: Path) -> list[Network]:
    """Characters to pinyin of Chinese: an LSTM both ways in NumPy, from a pickle."""
    path = folder / "g2pM/np_ckpt.pkl"
    spec = importlib.util.spec_from_file_location(
        "g2pM_its_own", folder / "g2pM/g2pM.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = module.G2pM()
    arrays = pickle.loads(path.read_bytes())
    net = convert.import_pytorch(arrays)
    words = np.array([[theirs.char2idx[c] for c in _CHINESE if c in theirs.char2idx]])

    def run(x: np.ndarray) -> np.ndarray:
        """Its prediction up to the layer that reads the LSTM."""
        read = []
        theirs.fc_layer = lambda hidden: read.append(hidden) or hidden
        theirs.predict(words, list(range(words.shape[1])))
        return read[0][None]

    x = theirs.get_embedding(words)
    return [Network(path.name, "import_pytorch(arrays)", net, x, "NumPy", run)]


def textgenrnn(folder: Path) -> list[Network]:
    """Text, letter by letter: two layers of CuDNNLSTM, weights alone of Keras 2."""
    (path,) = folder.rglob("textgenrnn_weights.hdf5")
    names = "rnn_1", "rnn_2"
    net = convert.import_keras(path, names)

    def plain(kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> list:
        """Of cuDNN as the LSTM of Keras has them, as Keras 2 did on loading."""
        gates = [k.T.reshape(k.shape, order="F") for k in np.split(kernel, 4, 1)]
        turned = [k.T for k in np.split(recurrent, 4, 1)]
        return [np.hstack(gates), np.hstack(turned), bias.reshape(2, -1).sum(0)]

    weights = [plain(*_of_layer(path, name)) for name in names]
    x = _embedded(path, "textgenrnn_vocab.json")
    run = _keras(x.shape, "LSTM", weights)
    call = f'import_keras("{path.name}", ["rnn_1", "rnn_2"])'
    return [Network(path.name, call, net, x, "Keras on JAX", run)]


def reactionrnn(folder: Path) -> list[Network]:
    """Reactions to a text: a GRU with hard sigmoids, weights alone of Keras 2."""
    (path,) = folder.rglob("reactionrnn_weights.hdf5")
    told = {"activation": "tanh", "recurrent_activation": "hard_sigmoid"}
    net = convert.import_keras(path, **told)
    x = _embedded(path, "reactionrnn_vocab.json")
    weights = [_of_layer(path, "rnn")]

    def hard_sigmoid(a: Any) -> Any:  # of Keras 2
        import keras

        return keras.ops.clip(0.2 * a + 0.5, 0, 1)

    options = {"reset_after": False, "recurrent_activation": hard_sigmoid}
    run = _keras(x.shape, "GRU", weights, **options)
    given = ", ".join(f'{name}="{value}"' for name, value in told.items())
    call = f'import_keras("{path.name}", {given})'
    return [Network(path.name, call, net, x, "Keras on JAX", run)]


def _methods(path: Path, owner: str, names: Sequence[str]) -> Any:
    """An object with some methods of a class whose file needs more than there is."""
    (found,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == owner
    )
    found.body = [n for n in found.body if getattr(n, "name", "") in names]
    made = {"np": np}
    exec(compile(ast.Module([found], []), str(path), "exec"), made)
    return made[owner]()


def _of_layer(path: Path, layer: str) -> list[np.ndarray]:
    import h5py

    with h5py.File(path) as file:
        group: Any = file[layer]
        return [np.asarray(group[name]) for name in group.attrs["weight_names"]]


def _embedded(path: Path, vocabulary: str) -> np.ndarray:
    """Our text as the network's embedding gives it."""
    (table,) = _of_layer(path, "embedding")
    numbers = json.loads((path.parent / vocabulary).read_text())
    return table[[numbers[letter] for letter in _TEXT]][None]


def _keras(shape: tuple[int, ...], kind: str, weights: list, **options: Any):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    layers = [
        getattr(keras.layers, kind)(len(w[1]), return_sequences=True, **options)
        for w in weights
    ]
    model = keras.Sequential([keras.Input(shape[1:]), *layers])
    for layer, arrays in zip(layers, weights, strict=True):
        layer.set_weights(arrays)
    return model.predict_on_batch
