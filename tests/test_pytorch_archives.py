"""Files of packages beside PyTorch: archives with its arrays in them, plain pickles."""

import gzip
import io
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

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
CONFIG = b"name: transducer\n"


def state(name: str) -> dict:
    torch.manual_seed(3)
    modules = {name: nn.LSTM(IN, HIDDEN, 2), "out": nn.Linear(3, 2)}
    return nn.ModuleDict(modules).state_dict()


def nemo(path: Path, mode: str = "w", folders: tuple[str, ...] = ("./",)) -> dict:
    """A model as NeMo saves it; its state_dict."""
    torch.save(state("decoder"), weights := io.BytesIO())
    files = {"./model_config.yaml": CONFIG}
    files |= {f"{one}model_weights.ckpt": weights.getvalue() for one in folders}
    with tarfile.open(path, mode) as archive:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return state("decoder")


def stable_baselines(path: Path) -> dict:
    """An agent as Stable-Baselines3 saves it; its state_dict."""
    torch.save(state("lstm_actor"), weights := io.BytesIO())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", weights.getvalue())
        archive.writestr("policy.optimizer.pth", weights.getvalue())
    return state("lstm_actor")


def contents(path: Path) -> dict[str, bytes]:
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            files = [info for info in archive if info.isreg()]
            return {info.name: archive.extractfile(info).read() for info in files}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def trained(net):
    return jax.tree.map(lambda array: 2 * array, net)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.nemo", nemo),
        ("old.nemo", lambda path: nemo(path, "w:gz")),
        ("part.nemo", lambda path: nemo(path, folders=("mp_rank_00/",))),
        ("agent.zip", stable_baselines),
    ],
    ids=["nemo", "gzip", "folder", "stable_baselines"],
)
def test_from_and_to_an_archive(name, make, tmp_path):
    """The copy has all else as it was."""
    arrays = make(path := tmp_path / name)
    net = import_pytorch(path)
    assert_bitwise_equal(net.layers, import_pytorch(arrays).layers)
    new = update_pytorch(path, trained(net), to=tmp_path / f"new{path.suffix}")
    assert_bitwise_equal(import_pytorch(new).layers, trained(net).layers)
    old, made = contents(path), contents(new)
    assert [*old] == [*made]
    changed = [name for name in old if old[name] != made[name]]
    assert len(changed) == 1
    assert changed[0].endswith(("model_weights.ckpt", "policy.pth"))
    beside = torch.load(io.BytesIO(made[changed[0]]), weights_only=True)
    assert_bitwise_equal(beside["out.weight"].numpy(), arrays["out.weight"].numpy())
    assert path.read_bytes()[:2] == new.read_bytes()[:2]  # as it was compressed


def test_an_archive_of_parts(tmp_path):
    """Of a model on several devices no part is the network."""
    nemo(path := tmp_path / "a.nemo", folders=("mp_rank_00/", "mp_rank_01/"))
    with pytest.raises(ValueError, match=r"must be a state_dict of torch\.save, or"):
        import_pytorch(path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("kept", [0.2, 0.4])
def test_a_damaged_archive(mode, kept, tmp_path):
    nemo(path := tmp_path / "a.nemo", mode)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"a\.nemo must be a state_dict of torch\.sav"):
        import_pytorch(path)


def test_a_compressed_file_that_is_no_archive(tmp_path):
    (path := tmp_path / "a.pt.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(ValueError, match=r"begins with b'\\x1f\\x8b"):
        import_pytorch(path)


# ---- pickles of NumPy's arrays -------------------------------------------------------


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


def test_arrays_of_paddle_that_are_not_the_same():
    """Nobody can see which of the two is meant."""
    arrays = paddle_state(1, 1)
    arrays["rnn.weight_hh_l0"] = 1 + arrays["rnn.weight_hh_l0"]
    with pytest.raises(ValueError, match=r"one of 'rnn' \(LSTM\), 'rnn\.0\.cell' \("):
        import_pytorch(arrays)
