"""Networks that others have trained on speech and music, with their own runtimes."""

import ctypes
import functools
import os
import zipfile
from pathlib import Path

import numpy as np

from benchmarks._onnx_layers import session_of
from benchmarks._trained import (
    Network,
    arrays_of_h5,
    hard_sigmoid_of_keras_2,
    layers_of_keras,
    layers_of_keras_file,
    spectra,
)
from prnn_jax import convert


def resemblyzer(folder: Path) -> list[Network]:
    """Speaker embeddings: three layers of LSTM, a checkpoint of PyTorch."""
    import torch

    path = folder / "resemblyzer/pretrained.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    return [_lstm_of_pytorch(path, state, 160, (40, 256, 3))]


def beatnet(folder: Path) -> list[Network]:
    """Beats of music: two layers of LSTM behind a convolution, a state_dict."""
    import torch

    path = folder / "BeatNet/models/model_1_weights.pt"
    state = torch.load(path, map_location="cpu", weights_only=True)
    return [_lstm_of_pytorch(path, state, 500, (150, 150, 2))]


def _lstm_of_pytorch(path: Path, state: dict, steps: int, sizes: tuple) -> Network:
    """The module "lstm" of a checkpoint, batch-major."""
    import torch

    module = torch.nn.LSTM(*sizes, batch_first=True).eval()
    own = {n.removeprefix("lstm."): a for n, a in state.items() if "lstm." in n}
    module.load_state_dict(own)

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(x))[0].numpy()

    net, x = convert.import_pytorch(path), spectra(steps, sizes[0])[None]
    return Network(path.name, f'import_pytorch("{path.name}")', net, x, "torch", run)


def crema(folder: Path) -> list[Network]:
    """Chords of music: GRUs both ways with hard sigmoids, a model of Keras 2."""
    path, name = folder / "crema/models/chord/model.h5", "bidirectional_1"
    net = convert.import_keras(path, name)
    weights = arrays_of_h5(path, name, "model_weights")
    options = {"reset_after": False, "recurrent_activation": hard_sigmoid_of_keras_2}
    x = spectra(200, len(weights[0]))[None]
    run = layers_of_keras(x.shape, "GRU", [weights], both=True, **options)
    call = f'import_keras("{path.name}", "{name}")'
    return [Network(path.name, call, net, x, "Keras on JAX", run)]


def silero(folder: Path) -> list[Network]:
    """Voice activity: an LSTM cell in TorchScript, called step by step."""
    import torch

    path = folder / "silero_vad/data/silero_vad.jit"
    name = "_model.decoder.rnn"
    net = convert.import_pytorch(path, name)
    cell = functools.reduce(getattr, name.split("."), torch.jit.load(path))
    steps = 100

    def run(x: np.ndarray) -> np.ndarray:
        state, out = (torch.zeros(1, 128), torch.zeros(1, 128)), []
        with torch.no_grad():
            for x_t in torch.from_numpy(x[0]):
                state = cell(x_t[None], state)
                out.append(state[0])
        return torch.stack(out, 1).numpy()

    size = net.layers[0].w_ih.shape[-2]
    call, x = f'import_pytorch("{path.name}", "{name}")', spectra(steps, size)[None]
    return [
        Network(path.name, call, net, x, "torch", run),
        _silero_onnx(path.with_name("silero_vad_16k_sequence.onnx"), x[0][:, None]),
        _silero_cell(path.with_name("silero_vad_op18_ifless.onnx"), x),
    ]


def _silero_onnx(path: Path, x: np.ndarray) -> Network:
    """The same, of other weights: its LSTM cut out for ONNX Runtime."""
    import onnx

    model = onnx.load(path)
    (node,) = (n for n in model.graph.node if n.op_type == "LSTM")
    first, *states = node.input[0], *node.input[5:7]
    weights = [one for one in model.graph.initializer if one.name in node.input]
    info = functools.partial(onnx.helper.make_tensor_value_info, elem_type=1)
    given = [info(name, shape=[None, None, None]) for name in (first, *states)]
    y = info(node.output[0], shape=[None, None, None, None])
    graph = onnx.helper.make_graph([node], "alone", given, [y], weights)
    alone = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    session = session_of(alone.SerializeToString())
    zeros = {name: np.zeros((1, 1, 128), np.float32) for name in states}

    def run(x: np.ndarray) -> np.ndarray:
        return session.run(None, {first: x, **zeros})[0][:, 0]

    net = convert.import_onnx(path)
    call = f'import_onnx("{path.name}")'
    return Network(path.name, call, net, x, "ONNX Runtime", run)


def _silero_cell(path: Path, x: np.ndarray) -> Network:
    """The cell that is written out in products: cut out, and called step by step."""
    import onnx

    model = onnx.load(path)
    (choice,) = (n for n in model.graph.node if n.op_type == "If")
    (branch,) = (a.g for a in choice.attribute if a.name == "then_branch")
    makers = {output: node for node in branch.node for output in node.output}
    (first,) = (n.input[0] for n in branch.node if "rnn.weight_ih" in str(n.input))
    (last,) = (n for n in branch.node if n.op_type == "Concat")
    needed, todo = set(), [last.output[0]]
    while todo:
        node = makers.get(todo.pop())
        if node is not None and first not in node.output:
            needed.add(node.output[0])
            todo += node.input
    info = functools.partial(onnx.helper.make_tensor_value_info, elem_type=1)
    graph = onnx.helper.make_graph(
        [node for node in branch.node if node.output[0] in needed],
        "cell",
        [info(first, shape=[None, None]), info("state", shape=[2, None, 128])],
        [info(last.output[0], shape=[2, None, 128])],
        list(model.graph.initializer),
    )
    alone = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    session = session_of(alone.SerializeToString())

    def run(x: np.ndarray) -> np.ndarray:
        state, out = np.zeros((2, 1, 128), np.float32), []
        for x_t in x[0]:
            (state,) = session.run(None, {first: x_t[None], "state": state})
            out.append(state[0])
        return np.stack(out, 1)

    h = makers[makers[last.input[0]].input[0]]
    name = f"{choice.name}/then_branch/{h.name}"
    call = f'import_onnx("{path.name}", "{name}")'
    net = convert.import_onnx(path, name)
    return Network(path.name, call, net, x, "ONNX Runtime", run)


#: One of each family; the others differ in numbers alone.
_MADMOM = (
    *("beats/2015/beats_blstm_1", "beats/2016/beats_lstm_1"),
    *("downbeats/2016/downbeats_blstm_1", "downbeats/2016/downbeats_bgru_harmonic_0"),
    *("notes/2013/notes_brnn", "onsets/2013/onsets_brnn_1", "onsets/2013/onsets_rnn_1"),
)


def madmom(folder: Path) -> list[Network]:
    """Music: LSTM with peepholes, GRU and RNN, directions apart, as ONNX."""
    import onnx

    found = []
    for name in _MADMOM:
        (path,) = folder.glob(f"*/madmom/models/{name}.onnx")
        net = convert.import_onnx(path)
        model = onnx.load(path)
        # What the layer after the recurrent ones reads.
        (last,) = {n.input[0] for n in model.graph.node if n.op_type == "MatMul"}
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(last))
        session = session_of(model.SerializeToString())
        state = {
            one.name: np.zeros([n if isinstance(n, int) else 1 for n in one.shape], "f")
            for one in session.get_inputs()[1:]
        }
        first = session.get_inputs()[0].name

        def run(x, session=session, state=state, first=first, last=last):
            (y,) = session.run([last], {first: x[:, 0], **state})
            return y[:, None]

        size = net.layers[0].w_ih.shape[-2]
        shown = f"{Path(name).name}.onnx"
        call, x = f'import_onnx("{shown}")', spectra(500, size)[:, None]
        found.append(Network(shown, call, net, x, "ONNX Runtime", run))
    return found


def sleepecg(folder: Path) -> list[Network]:
    """Stages of sleep from heart beats: two layers of GRU both ways, of Keras 3."""
    with zipfile.ZipFile(folder / "sleepecg/classifiers/ws-gru-mesa.zip") as archive:
        path = Path(archive.extract("classifier.keras", folder))
    names = ["bidirectional", "bidirectional_1"]
    os.environ.setdefault("KERAS_BACKEND", "jax")
    net = convert.import_keras(path, names)
    x = spectra(480, net.layers[0].w_ih.shape[-2])[None]
    call = f'import_keras("{path.name}", ["bidirectional", "bidirectional_1"])'
    run = layers_of_keras_file(path, names, x.shape)
    return [Network(path.name, call, net, x, "Keras on JAX", run)]


def rnnoise(folder: Path) -> list[Network]:
    """Noise suppression: three GRUs with sparse weights, inside a C library."""
    (path,) = folder.rglob("librnnoise.so")
    library = ctypes.CDLL(str(path))
    table = ctypes.c_char.in_dll(library, "rnnoise_arrays")
    names = ["gru1", "gru2", "gru3"]
    net = convert.import_rnnoise(_arrays_at(ctypes.addressof(table)), names)
    size = net.layers[0].w_hh.shape[0]

    def linear(of: str) -> ctypes.Array:
        """The library's own description of a product, made by the library."""
        layer = ctypes.create_string_buffer(7 * ctypes.sizeof(ctypes.c_void_p) + 8)
        ends = "bias", "subias", "weights_int8", "weights_float", "weights_idx"
        arrays = [f"{of}_{end}".encode() for end in ends]
        arrays += [f"{of}_weights_diag".encode() if "recurrent" in of else None]
        arrays += [f"{of}_scale".encode()]
        sizes = size, 3 * size
        if library.rnn_linear_init(layer, ctypes.byref(table), *arrays, *sizes):
            raise OSError(f"{path.name} has no {of}")
        return layer

    layers = [(linear(f"{n}_input"), linear(f"{n}_recurrent")) for n in names]
    step = library.rnn_compute_generic_gru

    def run(x: np.ndarray) -> np.ndarray:
        states, out = [np.zeros(size, np.float32) for _ in layers], []
        for x_t in x[0]:
            given = x_t
            for layer, state in zip(layers, states, strict=True):
                step(*layer, state.ctypes, given.ctypes, 0)
                given = state
            out.append(given.copy())
        return np.stack(out)[None]

    x = spectra(200, size)[None]
    call = 'import_rnnoise(weights, ["gru1", "gru2", "gru3"])'
    # It takes σ and tanh from a rational function.
    return [Network(path.name, call, net, x, "its C code", run, approximates=5e-3)]


class _Array(ctypes.Structure):
    """An entry of the library's table of weights."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("size", ctypes.c_int),
        ("data", ctypes.c_void_p),
    )


def _arrays_at(address: int) -> dict[str, np.ndarray]:
    dtypes, arrays = (np.float32, np.int32, np.int8, np.int8), {}
    while (entry := _Array.from_address(address)).name is not None:
        data = ctypes.string_at(entry.data, entry.size)
        arrays[entry.name.decode()] = np.frombuffer(data, dtypes[entry.type])
        address += ctypes.sizeof(_Array)
    return arrays
