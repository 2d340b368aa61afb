"""Networks that others have trained on text, with their own runtimes."""

import ast
import importlib.util
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._trained import (
    Network,
    arrays_of_h5,
    hard_sigmoid_of_keras_2,
    layers_of_keras,
    spectra,
)
from prnn_jax import convert

_TEXT = "persistent recurrent networks keep their weights on the chip"
_KERAS = "Keras on JAX"
_HARD = {"activation": "tanh", "recurrent_activation": "hard_sigmoid"}
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

    weights = [plain(*arrays_of_h5(path, name)) for name in names]
    x = _embedded(path, "textgenrnn_vocab.json")
    run = layers_of_keras(x.shape, "LSTM", weights)
    call = f'import_keras("{path.name}", ["rnn_1", "rnn_2"])'
    return [Network(path.name, call, net, x, _KERAS, run)]


def reactionrnn(folder: Path) -> list[Network]:
    """Reactions to a text: a GRU with hard sigmoids, weights alone of Keras 2."""
    (path,) = folder.rglob("reactionrnn_weights.hdf5")
    told = _HARD
    net = convert.import_keras(path, **told)
    x = _embedded(path, "reactionrnn_vocab.json")
    weights = [arrays_of_h5(path, "rnn")]

    options = {"reset_after": False, "recurrent_activation": hard_sigmoid_of_keras_2}
    run = layers_of_keras(x.shape, "GRU", weights, **options)
    given = ", ".join(f'{name}="{value}"' for name, value in told.items())
    call = f'import_keras("{path.name}", {given})'
    return [Network(path.name, call, net, x, _KERAS, run)]


def dgaintel(folder: Path) -> list[Network]:
    """Names of hosts that programs make: an LSTM behind a convolution, of Keras 2."""
    (path,) = folder.rglob("domain_classifier_model.h5")
    net = convert.import_keras(path)
    weights = arrays_of_h5(path, net.name, "model_weights")
    # What the convolution gives has no part in how the LSTM computes.
    x = spectra(40, len(weights[0]))[None]
    run = layers_of_keras(x.shape, "LSTM", [weights])
    return [Network(path.name, f'import_keras("{path.name}")', net, x, _KERAS, run)]


def rnnmorph(folder: Path) -> list[Network]:
    """Morphology of Russian: an LSTM both ways, hard sigmoids, weights of Keras 2."""
    (path,) = folder.rglob("models/ru/eval_model.h5")
    name, told = "bidirectional_1", {**_HARD, "merge_mode": "concat"}
    net = convert.import_keras(path, name, **told)
    weights = arrays_of_h5(path, name)  # forward, then backward
    x = spectra(30, len(weights[0]))[None]
    options = {"recurrent_activation": hard_sigmoid_of_keras_2, "both": True}
    run = layers_of_keras(x.shape, "LSTM", [weights], **options)
    given = ", ".join(f'{option}="{value}"' for option, value in told.items())
    call = f'import_keras("{path.name}", "{name}", {given})'
    return [Network(path.name, call, net, x, _KERAS, run)]


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


def _embedded(path: Path, vocabulary: str) -> np.ndarray:
    """Our text as the network's embedding gives it."""
    (table,) = arrays_of_h5(path, "embedding")
    numbers = json.loads((path.parent / vocabulary).read_text())
    return table[[numbers[letter] for letter in _TEXT]][None]
