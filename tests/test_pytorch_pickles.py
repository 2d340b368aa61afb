"""Pickles of NumPy's arrays, of PaddlePaddle too."""

import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

from prnn_jax.convert import import_pytorch, update_pytorch

torch = library("torch")
nn = torch.nn

IN, HIDDEN = 5, 7


def trained(net):
    return jax.tree.map(lambda array: 2 * array, net)


def numpy_state() -> dict:
    return {
        key: value.numpy() for key, value in nn.LSTM(IN, HIDDEN).state_dict().items()
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_of_arrays(protocol, tmp_path):
    arrays = numpy_state()
    # In the order of the transposed array, which protocol 5 has a word for.
    arrays["weight_hh_l0"] = np.asfortranarray(arrays["weight_hh_l0"])
    (path := tmp_path / "a.pkl").write_bytes(pickle.dumps(arrays, protocol))
    net = import_pytorch(path)
    assert_bitwise_equal(net.layers, import_pytorch(arrays).layers)
    with pytest.raises(ValueError, match=r"trust, pass pickle\.load\(open\(path, "):
        update_pytorch(path, net, to=tmp_path / "new.pkl")


class Runs:
    def __reduce__(self):
        return pytest.fail, ("code of a pickle has run",)


class OfBuffer:
    """An array that pickle's protocol 5 makes of bytes."""

    def __init__(self, buffer: object, dtype: str):
        self.given = buffer, np.dtype(dtype), (1,), "C"

    def __reduce__(self):
        return np._core.numeric._frombuffer, self.given


@pytest.mark.parametrize(
    "beside", [Runs(), OfBuffer(b"12345678", "O"), OfBuffer("text", "u1")]
)
def test_a_pickle_with_more_in_it(beside, tmp_path):
    arrays = numpy_state()
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"beside": beside, **arrays}))
    assert_bitwise_equal(import_pytorch(path).layers, import_pytorch(arrays).layers)
    path.write_bytes(pickle.dumps({**arrays, "weight_hh_l0": Runs()}))
    with pytest.raises(ValueError, match=r"trust, pass pickle\.load\(open\(path, "):
        import_pytorch(path)


class DType:
    """A dtype of pickle's, as which it says what follows its name."""

    def __init__(self, name: str, *state: object):
        self.given = np.dtype, (name, False, True), state

    def __reduce__(self):
        return self.given


class Made:
    """An array as pickles of protocols below 5 make it."""

    def __init__(self, shape: tuple[int, ...], dtype: str, *state: object):
        reconstruct = np._core.multiarray._reconstruct
        self.given = reconstruct, (np.ndarray, shape, dtype.encode())
        self.given += (state,) if state else ()

    def __reduce__(self):
        return self.given


NONE = None, None, None
DTYPES = {
    "larger": DType("f4", 3, "<", (np.dtype("f4"), (28 * 7,)), None, None, 4, 4, 0),
    "pointers": DType("f4", 3, "<", *NONE, 8, 8, 63),
    "far": DType("f4", 3, "<", None, ("a",), {"a": (np.dtype("f4"), 1 << 40)}, 4, 4, 0),
}


def of_buffer(buffer: bytes, dtype: object, shape: tuple[int, ...]) -> OfBuffer:
    one = OfBuffer(buffer, "f4")
    one.given = buffer, dtype, shape, "C"
    return one


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_a_pickle_is_what_its_name_says(dtype, tmp_path):
    """Or memory would be read that is not the array's."""
    path, dtype = tmp_path / "a.pkl", DTYPES[dtype]
    arrays = numpy_state()
    state, content = (1, (28, 7), dtype, False), arrays["weight_hh_l0"].tobytes()
    for made in (
        of_buffer(content, dtype, (28, 7)),
        Made((0,), "b", *state, content),
    ):
        path.write_bytes(pickle.dumps({**arrays, "weight_hh_l0": made}))
        net = import_pytorch(path)
        assert_bitwise_equal(net.layers, import_pytorch(arrays).layers)
    for made in (of_buffer(b"1234", dtype, (28, 7)), Made((0,), "b", *state, b"1234")):
        path.write_bytes(pickle.dumps({**arrays, "weight_hh_l0": made}))
        with pytest.raises(ValueError, match=r"trust, pass pickle\.load\(open\(path, "):
            import_pytorch(path)


@pytest.mark.parametrize(
    "array",
    [
        of_buffer(b"12345678" * 28, np.dtype("O"), (28,)),
        Made((28,), "f"),
        np.zeros(28, object),
        np.zeros(28, jnp.bfloat16),
    ],
    ids=["buffer", "without values", "objects", "bfloat16"],
)
def test_an_array_of_a_pickle_that_is_not_of_plain_numbers(array, tmp_path):
    """Is none: a network without its biases would be another one."""
    path = tmp_path / "a.pkl"
    biases = dict.fromkeys(["bias_ih_l0", "bias_hh_l0"], array)
    path.write_bytes(pickle.dumps({**numpy_state(), **biases}))
    with pytest.raises(ValueError, match=r"trust, pass pickle\.load\(open\(path, "):
        import_pytorch(path)


def test_a_pickle_takes_no_more_memory_than_it_is_large(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree: dict = {}
    for _ in range(40):  # 2^40 names
        tree = {"a": tree, "b": tree or 1}
    arrays = {**numpy_state(), "beside": tree}
    (path := tmp_path / "a.pkl").write_bytes(pickle.dumps(arrays))
    with pytest.raises(ValueError, match="must be a state_dict"):
        import_pytorch(path)
    torch.save(arrays | {k: torch.tensor(v) for k, v in numpy_state().items()}, path)
    with pytest.raises(ValueError, match="too many names"):
        import_pytorch(path)
    path.write_bytes(b"\x80\x04}r\0\0\0\x10.")  # an object of the number 2^28
    with pytest.raises(ValueError, match="must be a state_dict"):
        import_pytorch(path)
    path.write_bytes(pickle.dumps({**numpy_state(), "beside": Made((1 << 27,), "O")}))
    assert import_pytorch(path).cell == "lstm"
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 500_000  # kB; PyTorch's are some


def test_tensors_in_a_pickle_are_left_out(tmp_path, monkeypatch):
    """Also where there is no PyTorch."""
    arrays = numpy_state()
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"beside": torch.ones(2), **arrays}))
    lacking = pickle.dumps({**arrays, "weight_hh_l0": torch.ones(28, 7)})
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch._utils", None)
    assert_bitwise_equal(import_pytorch(path).layers, import_pytorch(arrays).layers)
    path.write_bytes(lacking)
    with pytest.raises(ImportError, match="needs PyTorch: pip install torch"):
        import_pytorch(path)


@pytest.mark.parametrize("new", [True, False], ids=["new", "old"])
def test_a_module_is_no_state_dict(new, tmp_path):
    options = {"_use_new_zipfile_serialization": new}
    torch.save(nn.LSTM(IN, HIDDEN), path := tmp_path / "a.pt", **options)
    with pytest.raises(ValueError, match=r"trust, pass torch\.load\(path, map_l"):
        import_pytorch(path)


# ---- PaddlePaddle --------------------------------------------------------------------


def paddle_state(layers: int, directions: int, projection: int = 0) -> dict:
    """A state_dict as PaddlePaddle 3.3 saves that of a module with an LSTM in it."""
    torch.manual_seed(5)
    options = {"bidirectional": directions == 2, "proj_size": projection}
    arrays = nn.LSTM(IN, HIDDEN, layers, **options).state_dict()
    of_layers, of_cells = {}, {}
    for key, value in arrays.items():
        own, _, place = key.partition("_l")
        layer, _, reverse = place.partition("_")
        cell = {1: "cell", 2: "cell_bw" if reverse else "cell_fw"}[directions]
        if own == "weight_hr":
            of_cells[f"rnn.{layer}.{cell}.weight_ho"] = value.numpy().T
        else:
            of_layers[f"rnn.{key}"] = of_cells[f"rnn.{layer}.{cell}.{own}"] = (
                value.numpy()
            )
    if projection:  # each name that comes after one is of the array before its own
        parts = [*of_cells.values()]
        of_layers = dict(zip(of_layers, parts, strict=False))
    made = {"out.weight": np.ones((3, 2), np.float32), **of_layers, **of_cells}
    return made | {"StructuredToParameterName@@": dict.fromkeys(made, "lstm_0.w_0")}


@pytest.mark.parametrize("directions", [1, 2])
def test_a_state_dict_of_paddle(directions, tmp_path):
    arrays = paddle_state(2, directions)
    (path := tmp_path / "model.pdparams").write_bytes(pickle.dumps(arrays, 4))
    net = import_pytorch(path)
    assert net.name == "rnn"
    torch.manual_seed(5)
    lstm = nn.LSTM(IN, HIDDEN, 2, bidirectional=directions == 2)
    assert_bitwise_equal(net.layers, import_pytorch(lstm).layers)
    new = update_pytorch(arrays, trained(net))
    assert_bitwise_equal(import_pytorch(new).layers, trained(net).layers)
    assert new.keys() == arrays.keys()
    assert_bitwise_equal(new["out.weight"], arrays["out.weight"])


@pytest.mark.parametrize("directions", [1, 2])
def test_layers_of_paddle_that_project(directions):
    """Whose names like PyTorch's are of arrays of one before."""
    arrays = paddle_state(2, directions, projection=3)
    net = import_pytorch(arrays, "rnn")
    torch.manual_seed(5)
    options = {"bidirectional": directions == 2, "proj_size": 3}
    assert_bitwise_equal(
        net.layers, import_pytorch(nn.LSTM(IN, HIDDEN, 2, **options)).layers
    )
    with pytest.raises(ValueError, match=r"that do not project h, got rnn\.0\.cell"):
        update_pytorch(arrays, trained(net))


def test_a_state_dict_of_paddle_inside_of_another_dict():
    """Names of its parameters are no arrays there, too."""
    arrays = {"epoch": 3, "model": paddle_state(2, 1)}
    net = import_pytorch(arrays)
    assert net.name == "model.rnn"
    new = update_pytorch(arrays, trained(net))
    assert_bitwise_equal(import_pytorch(new).layers, trained(net).layers)
    of_cell, of_layer = "rnn.1.cell.weight_hh", "rnn.weight_hh_l1"
    assert_bitwise_equal(new["model"][of_cell], new["model"][of_layer])


def test_a_network_of_paddle_beside_one_that_projects():
    """Whose arrays have the names of others in the one that projects alone."""
    beside = {k.replace("rnn.", "enc."): v for k, v in paddle_state(1, 1).items()}
    arrays = {**paddle_state(2, 1, projection=3), **beside}
    net = import_pytorch(arrays, "enc")
    new = update_pytorch(arrays, trained(net))
    assert_bitwise_equal(import_pytorch(new, "enc").layers, trained(net).layers)
    arrays["enc.weight_hh_l0"] = 1 + arrays["enc.weight_hh_l0"]
    with pytest.raises(ValueError, match=r"one of .*'enc' \(LSTM\), 'enc\.0\.cell' \("):
        import_pytorch(arrays)


def test_arrays_of_paddle_as_parameters_in_bfloat16():
    """Those of PyTorch, which NumPy does not make arrays of by itself."""
    arrays = {
        key: nn.Parameter(torch.tensor(value).bfloat16())
        for key, value in paddle_state(1, 2, projection=3).items()
        if isinstance(value, np.ndarray)
    }
    net = import_pytorch(arrays, "rnn")
    assert net.layers[0].w_hr.dtype == jnp.bfloat16
    arrays = {
        key: nn.Parameter(torch.tensor(value).bfloat16())
        for key, value in paddle_state(1, 2).items()
        if isinstance(value, np.ndarray)
    }
    assert import_pytorch(arrays).name == "rnn"


class Tensor:
    """Of PaddlePaddle, as far as it is like PyTorch's."""

    def __init__(self, array: np.ndarray):
        self._array, self.dtype = array, f"paddle.{array.dtype}"
        self.shape, self.ndim = list(array.shape), array.ndim

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, *_given: object, **_named: object) -> np.ndarray:
        return self._array


def test_tensors_of_paddle():
    """Its layers' `set_state_dict` takes the new ones, which are NumPy's."""
    arrays = {
        key: Tensor(value) if isinstance(value, np.ndarray) else value
        for key, value in paddle_state(2, 2).items()
    }
    net = import_pytorch(arrays)
    assert_bitwise_equal(net.layers, import_pytorch(paddle_state(2, 2)).layers)
    new = update_pytorch(arrays, trained(net))
    assert_bitwise_equal(import_pytorch(new).layers, trained(net).layers)
    assert new["rnn.weight_hh_l0"].dtype == np.float32
    assert new["out.weight"] is arrays["out.weight"]


def test_bfloat16_of_paddle_is_no_integer():
    """As which it is saved; as numbers these would be other weights."""
    arrays = {
        key: value.view(np.uint16) if isinstance(value, np.ndarray) else value
        for key, value in paddle_state(1, 1).items()
    }
    with pytest.raises(ValueError, match=r"saves bfloat16; .*\.view\(jnp\.bfloat16\)"):
        import_pytorch(arrays)


def test_arrays_of_paddle_that_are_not_the_same():
    """Nobody can see which of the two is meant."""
    arrays = paddle_state(1, 1)
    arrays["rnn.weight_hh_l0"] = 1 + arrays["rnn.weight_hh_l0"]
    with pytest.raises(ValueError, match=r"one of 'rnn' \(LSTM\), 'rnn\.0\.cell' \("):
        import_pytorch(arrays)


def test_an_array_of_paddle_that_is_there_once():
    """The cell's others are the layer's; what is left of it is no network."""
    arrays = paddle_state(1, 1)
    del arrays["rnn.bias_ih_l0"]
    message = r"'rnn' must have .*rnn\.0\.cell\.bias_ih \["
    with pytest.raises(ValueError, match=message):
        import_pytorch(arrays, "rnn")
