"""import_rnnoise: weights in the format of RNNoise, written here as its tools do."""

import struct

import jax
import numpy as np
import pytest

import prnn_jax
from prnn_jax.convert import import_rnnoise

IN, HIDDEN, TIME, BATCH = 12, 16, 7, 3


def random(*shape: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed).standard_normal(shape)
    return (0.4 * draw).astype(np.float32)


def of_gates(array: np.ndarray) -> np.ndarray:
    """From ours, r z n, to z r n, or back."""
    r, z, n = np.split(array, 3, -1)
    return np.concatenate([z, r, n], -1)


def blocks(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 4 inputs by 8 outputs that are not all zero, and where they are."""
    values, index = [], []
    for row in range(0, matrix.shape[1], 8):
        columns = [
            c
            for c in range(0, len(matrix), 4)
            if matrix[c : c + 4, row : row + 8].any()
        ]
        index += [len(columns), *columns]
        values += [matrix[c : c + 4, row : row + 8] for c in columns]
    return np.array(values), np.array(index, np.int32)


def matrix(name: str, of: np.ndarray, form: str) -> dict[str, np.ndarray]:
    """A matrix in our order of gates, as a file has it."""
    of = of_gates(of)
    if form == "dense":
        return {f"{name}_weights_float": of.reshape(-1)}
    values, index = blocks(of)
    if form == "sparse":
        made = {f"{name}_weights_float": values.reshape(-1)}
    else:
        scale = np.abs(of).max(0) / 127
        whole = np.rint(of / scale)
        values, index = blocks(whole)
        quantised = values.swapaxes(1, 2).astype(np.int8)
        made = {
            f"{name}_weights_int8": quantised.reshape(-1),
            f"{name}_scale": (scale / 127).astype(np.float32),
        }
    return made if form == "dense int8" else made | {f"{name}_weights_idx": index}


def layer(name: str, inputs: int, form: str, seed: int = 0):
    """Parameters, and the arrays of a file that has them."""
    w_ih = random(inputs, 3 * HIDDEN, seed=seed)
    w_hh = random(HIDDEN, 3 * HIDDEN, seed=seed + 1)
    if "sparse" in form:
        w_ih[4:8, : 2 * HIDDEN] = 0
        w_hh[:8, HIDDEN:] = 0
    b_ih, b_hh = (random(3 * HIDDEN, seed=seed + n) for n in (2, 3))
    # As the tools do: the diagonal is apart, and the rest has none.
    diagonal = np.zeros_like(w_hh)
    units = np.arange(HIDDEN)
    for gate in range(3):
        diagonal[units, gate * HIDDEN + units] = random(HIDDEN, seed=seed + 4 + gate)
        w_hh[units, gate * HIDDEN + units] = 0
    arrays = {
        f"{name}_input_bias": of_gates(b_ih),
        f"{name}_recurrent_bias": of_gates(b_hh),
        **matrix(f"{name}_input", w_ih, form),
        **matrix(f"{name}_recurrent", w_hh, form),
        f"{name}_recurrent_weights_diag": of_gates(diagonal.sum(0)),
    }
    return prnn_jax.Params(w_ih, w_hh + diagonal, b_ih, b_hh), arrays


def file_of(arrays: dict[str, np.ndarray]) -> bytes:
    data = b""
    for name, array in arrays.items():
        kind = {"float32": 0, "int32": 1, "int8": 3}[array.dtype.name]
        size = array.nbytes
        padding = -size % 64
        head = (b"DNNw", 0, kind, size, size + padding, name.encode())
        data += struct.pack("<4s4i44s", *head) + array.tobytes() + bytes(padding)
    return data


def assert_close(params, expected, rtol: float) -> None:
    for ours, wanted in zip(
        jax.tree.leaves(params), jax.tree.leaves(expected), strict=True
    ):
        error = np.abs(np.asarray(ours) - wanted).max()
        assert error <= rtol * np.abs(wanted).max()


@pytest.mark.parametrize("form", ["dense", "sparse", "dense int8", "sparse int8"])
def test_a_layer(form, tmp_path):
    params, arrays = layer("gru1", IN, form)
    (tmp_path / "weights_blob.bin").write_bytes(file_of(arrays))
    # Of 8 bits: half a step of 127 to the largest of a column.
    rtol = 0.5 / 127 if "int8" in form else 1e-7
    for given in (arrays, file_of(arrays), tmp_path / "weights_blob.bin"):
        net = import_rnnoise(given)
        assert (net.name, net.cell, net.reset_after) == ("gru1", "gru", True)
        assert_close(net.layers, (params,), rtol)
    x = random(BATCH, TIME, IN, seed=9)
    y, _ = net(x)
    np.testing.assert_array_equal(y, prnn_jax.gru(x, net.layers[0])[0])


def test_layers_of_a_network():
    first, arrays = layer("gru1", IN, "sparse")
    second, more = layer("gru2", HIDDEN, "dense", seed=20)
    other = {"conv1_bias": np.zeros(5, np.float32)}
    data = file_of(other | arrays | more)
    net = import_rnnoise(data, ["gru1", "gru2"])
    assert_close(net.layers, (first, second), 1e-7)
    assert_close(import_rnnoise(data, "gru2").layers, (second,), 1e-7)
    with pytest.raises(ValueError, match="one of 'gru1', 'gru2'"):
        import_rnnoise(data)
    with pytest.raises(ValueError, match="of 'gru1', 'gru2', got 'gru3'"):
        import_rnnoise(data, "gru3")


def test_floats_count_where_there_are_both():
    params, arrays = layer("gru1", IN, "sparse")
    _, rounded = layer("gru1", IN, "sparse int8")
    assert_close(import_rnnoise(rounded | arrays).layers, (params,), 1e-7)


def test_last_inputs_without_weights():
    _, arrays = layer("gru1", IN, "sparse")
    net = import_rnnoise(arrays, input_size=IN + 8)
    assert net.layers[0].w_ih.shape == (IN + 8, 3 * HIDDEN)
    assert not np.any(net.layers[0].w_ih[IN:])
    with pytest.raises(ValueError, match="places of inputs below 8"):
        import_rnnoise(arrays, input_size=8)


def without(name: str):
    arrays = layer("gru1", IN, "sparse int8")[1]
    return {key: array for key, array in arrays.items() if key != name}


def with_(**changed):
    return layer("gru1", IN, "dense")[1] | changed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: 7, "a path, bytes, or arrays by name, got int"),
        (lambda: b"RIFF" * 30, "begin with DNNw; there is none at byte 0"),
        (lambda: file_of(with_())[:-1], "there is none at byte"),
        (lambda: file_of(with_()) + b"DNNw", "there is none at byte"),
        (dict, "it has none"),
        (lambda: without("gru1_input_scale"), "gru1_input_scale must be there"),
        (
            lambda: without("gru1_recurrent_weights_int8"),
            "gru1_recurrent_weights_float or gru1_recurrent_weights_int8 must be",
        ),
        (
            lambda: with_(gru1_recurrent_bias=np.zeros(4, np.float32)),
            r"gru1_recurrent_bias must be \[48\], got \[4\]",
        ),
        (
            lambda: with_(gru1_input_bias=np.zeros(4), gru1_recurrent_bias=np.zeros(4)),
            r"must be \[3\*hidden\], got \[4\]",
        ),
        (
            lambda: with_(gru1_recurrent_weights_float=np.zeros((16, 48))),
            "must be flat",
        ),
        (
            lambda: with_(gru1_recurrent_weights_float=np.zeros(99)),
            r"gru1_recurrent_weights_float must be \[768\], got \[99\]",
        ),
        (
            lambda: (
                without("gru1_input_weights_idx")
                | {"gru1_input_weights_idx": np.array([5, 0, 4], np.int32)}
            ),
            "must have, for each 8 of 48 outputs, a number of blocks",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(given, message):
    with pytest.raises(ValueError, match=message):
        import_rnnoise(given())


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        import_rnnoise(tmp_path / "absent.bin")
