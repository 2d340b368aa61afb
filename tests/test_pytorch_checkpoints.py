"""Checkpoints of PyTorch in a folder, of one file or of several with an index."""

import argparse
import collections
import dataclasses
import enum
import functools
import json
import pickle
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from libraries import library
from support import assert_bitwise_equal

from prnn_jax.convert import import_pytorch, update_pytorch

torch = library("torch")
save_file = library("safetensors.torch").save_file
load_file = library("safetensors.torch").load_file
nn = torch.nn

IN, HIDDEN = 5, 7
BESIDE = {"steps": torch.tensor(3), "none": torch.zeros(0, 3), "on": torch.tensor(True)}
BESIDE["small"] = torch.ones(3).to(torch.float8_e5m2)
NAMES = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}


def module() -> nn.Module:
    torch.manual_seed(3)
    return nn.ModuleDict({"lstm": nn.LSTM(IN, HIDDEN, 2), "out": nn.Linear(3, 2)})


def save(state: dict, path: Path) -> None:
    (save_file if path.suffix == ".safetensors" else torch.save)(state, path)


def load(path: Path) -> dict:
    return (load_file if path.suffix == ".safetensors" else torch.load)(path)


def sharded(folder: Path, kind: str) -> Path:
    """The index of a checkpoint whose network lies in two of three files."""
    folder.mkdir()
    name, keys = NAMES[kind], sorted(module().state_dict())
    stem, suffix = name.rsplit(".", 1)
    at = {key: 3 if "out" in key else 1 + ("weight" in key) for key in keys}
    files = {n: f"{stem}-0000{n}-of-00003.{suffix}" for n in (1, 2, 3)}
    for n, file in files.items():
        own = {k: v for k, v in module().state_dict().items() if at[k] == n}
        save(own, folder / file)
    index = folder / f"{name}.index.json"
    weight_map = {key: files[n] for key, n in at.items()}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return index


def trained(net):
    return jax.tree.map(lambda array: 1.25 * array + 0.03, net)


def assert_is_updated(state: dict, net) -> None:
    """As PyTorch loads it, with all else as it was."""
    model, before = module(), module().state_dict()
    model.load_state_dict(state)
    x = np.random.default_rng(1).standard_normal((6, 3, IN)).astype(np.float32)
    with torch.no_grad():
        y = model["lstm"](torch.from_numpy(x))[0].numpy()
    # Of sums of at most 14 products below 1, in float32 on both sides.
    np.testing.assert_allclose(net(x, time_major=True)[0], y, rtol=0, atol=4e-6)
    for key in ("out.weight", "out.bias"):
        assert torch.equal(state[key], before[key])


@pytest.mark.parametrize("kind", NAMES)
def test_a_folder_with_one_file(kind, tmp_path):
    folder, new = tmp_path / "model", tmp_path / "new.v2"
    folder.mkdir()
    save(module().state_dict(), folder / NAMES[kind])
    (folder / "config.json").write_text("{}")
    net = import_pytorch(str(folder))
    assert_bitwise_equal(net.layers, import_pytorch(module()).layers)
    assert update_pytorch(folder, trained(net), to=new) == new
    assert_is_updated(load(new / NAMES[kind]), trained(net))
    assert (new / "config.json").read_text() == "{}"
    assert_bitwise_equal(import_pytorch(folder).layers, net.layers)


@pytest.mark.parametrize("given", ["folder", "index"])
@pytest.mark.parametrize("kind", NAMES)
def test_several_files(kind, given, tmp_path):
    index = sharded(tmp_path / "model", kind)
    folder, new = index.parent, tmp_path / "new"
    net = import_pytorch(folder if given == "folder" else index)
    assert_bitwise_equal(net.layers, import_pytorch(module()).layers)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if given == "folder":
        update_pytorch(folder, trained(net), to=new)
    else:
        new.mkdir()
        update_pytorch(index, trained(net), to=new / index.name)
        (new / "config.json").write_text("{}")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in new.iterdir()} == set(before)
    files = [path for path in new.iterdir() if path.suffix == index.suffixes[-3]]
    arrays = [load(path) for path in files]
    assert len(arrays) == 3
    for path, own in zip(files, arrays, strict=True):
        assert own.keys() == load(folder / path.name).keys()
    assert_is_updated({k: v for own in arrays for k, v in own.items()}, trained(net))


def test_a_safe_file_goes_before_another(tmp_path):
    save(module().state_dict(), tmp_path / NAMES["safetensors"])
    torch.save({"other": torch.zeros(2)}, tmp_path / NAMES["bin"])
    assert import_pytorch(tmp_path).name == "lstm"


def test_one_of_several_files(tmp_path):
    index = sharded(tmp_path / "model", "safetensors")
    with pytest.raises(
        ValueError, match=r"weight_hh .*got bias_.*several files, impor"
    ):
        import_pytorch(index.parent / "model-00001-of-00003.safetensors")
    with pytest.raises(ValueError, match="none"):
        import_pytorch(index.parent / "model-00003-of-00003.safetensors")
    state = module().state_dict()
    for absent, message in (
        (
            "bias_hh_l1",
            "missing bias_hh_l1; these are of 'lstm'; of a checkpoint in sev",
        ),
        (
            "weight_hh_l1",
            "missing weight_hh_l1; these are of 'lstm'; of a checkpoint in",
        ),
        ("l0", "all layers from 0 on, got those of 1; these are of 'lstm'; of a check"),
    ):
        part = {k: v for k, v in state.items() if not k.endswith(absent)}
        with pytest.raises(ValueError, match=message):
            import_pytorch(part)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"index.json must be JSON: Expecting"),
        ("[]", "must have a weight_map of names of arrays to names of files beside it"),
        ('{"weight_map": {}}', "must have a weight_map .*, got {}"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "of files beside it, got {'a': "),
        ('{"weight_map": {"a": 3}}', "of files beside it, got {'a': 3}"),
        (
            '{"weight_map": {"a": "a.bin", "b": "b.safetensors"}}',
            r"names the files a.bin, b.safetensors, .*; missing b.safetensors\.",
        ),
        (
            '{"weight_map": {"a": "a.bin"}}',
            "a.bin, a file of an index, must be a state_",
        ),
    ],
)
def test_an_index_that_is_none(content, message, tmp_path):
    torch.save([1, 2], tmp_path / "a.bin")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        import_pytorch(tmp_path)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(ValueError, match=r"one of model.safetensors, .*, got nothing"):
        import_pytorch(tmp_path)
    for n in range(12):
        (tmp_path / f"epoch_{n:02}.ckpt").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"got epoch_00.ckpt, .*_09.ckpt, \.\.\.\. Pass"
    ):
        import_pytorch(tmp_path)


def test_where_new_files_go(tmp_path):
    index = sharded(tmp_path / "model", "bin")
    net = import_pytorch(index)
    for to in (None, tmp_path, index.parent, index.parent / "inside"):
        with pytest.raises(ValueError, match="to must be the path of a new folder, wh"):
            update_pytorch(index.parent, net, to=to)
    for to in (tmp_path / "a.json", index.parent / "a.json"):
        with pytest.raises(ValueError, match=r"bin.index.json in another folder than"):
            update_pytorch(index, net, to=to)
    with pytest.raises(ValueError, match=r"to must be another file \.json than"):
        update_pytorch(index, net, to=index)


def test_safetensors_of_float64(tmp_path):
    """They are no float32 by themselves; and what others there are is left alone."""
    path, to = tmp_path / "model.safetensors", tmp_path / "new.safetensors"
    small = module()["lstm"].state_dict()
    state = {key: value.double() for key, value in small.items()}
    save_file({f"a.{key}": value for key, value in state.items()} | BESIDE, path)
    with pytest.raises(ValueError, match="is float64, which JAX has with jax_enable_x"):
        import_pytorch(path)
    with jax.enable_x64(True):
        net = import_pytorch(path)
        assert net.layers[0].w_hh.dtype == np.float64
        update_pytorch(path, trained(net), to=to)
        assert_bitwise_equal(import_pytorch(to).layers, trained(net).layers)
    save_file({f"a.{key}": value for key, value in small.items()} | BESIDE, path)
    assert_bitwise_equal(import_pytorch(path).layers, import_pytorch(small).layers)


# ---- objects of other packages beside the arrays -------------------------------------


@dataclasses.dataclass
class Specifications:
    classes: list


class AttributeDict(dict):
    """As Lightning's of old."""


class Classes(list):
    pass


class Problem(enum.Enum):
    MONO = 1


class Runs:
    """What must not happen while a file is read."""

    def __reduce__(self):
        return pytest.fail, ("code of a checkpoint has run",)


HYPER = {
    "task": Specifications([Problem.MONO]),
    "lstm": AttributeDict(hidden_size=HIDDEN, more=Classes([1, 2])),
    "at": Path("a/b"),
    "loss": np.float64(0.25),
    "options": argparse.Namespace(rate=0.1),
    "make": functools.partial(dict, a=1),
    "by_name": collections.defaultdict(list, a=[1]),
    "names": {Problem.MONO},
    "runs": Runs(),
}


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_checkpoint_of_lightning(is_new, tmp_path):
    """As pyannote's and flair's; none of whose packages need be there."""
    lstm = module()["lstm"]
    state = {f"model.{key}": value for key, value in lstm.state_dict().items()}
    moments = {n: {"exp_avg": value} for n, value in enumerate(state.values())}
    checkpoint = {
        "epoch": 3,
        "state_dict": state,
        "optimizer_states": [{"state": moments}],
        "hyper_parameters": HYPER,
    }
    options = {"_use_new_zipfile_serialization": is_new}
    torch.save(checkpoint, path := tmp_path / "epoch=3.ckpt", **options)
    net = import_pytorch(path)
    assert net.name == "state_dict.model"
    assert_bitwise_equal(net.layers, import_pytorch(state).layers)
    with pytest.raises(ValueError, match=r'"cpu", weights_only=False\)\. PyTorch says'):
        update_pytorch(path, net, to=tmp_path / "new.ckpt")
    new = update_pytorch(checkpoint, trained(net))
    assert_bitwise_equal(import_pytorch(new).layers, trained(net).layers)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_checkpoint_of_other_arrays(is_new, tmp_path):
    state = {k: v.numpy() for k, v in module()["lstm"].state_dict().items()}
    options = {"_use_new_zipfile_serialization": is_new}
    path = tmp_path / "arrays.pt"
    torch.save({"arrays": state, "at": Path("a")}, path, **options)
    assert_bitwise_equal(import_pytorch(path).layers, import_pytorch(state).layers)
    for key in ("weight_hh_l1", "weight_hh_l0_v"):  # which are to be of the network
        torch.save({"arrays": {**state, key: Specifications([1])}}, path, **options)
        with pytest.raises(ValueError, match="has more in it"):
            import_pytorch(path)


def test_a_file_that_changes_functions(tmp_path):
    """PyTorch would write a patch of their sources where their name says."""

    def part(value):
        return pickle.dumps(value, 2)[2:-1]

    function = b"ctorch._utils\n_rebuild_tensor\n"
    state = {"dump_patches": True}, {"__name__": str(tmp_path / "written")}
    source = part("a.py") + part("not its source")
    lent = b"(" + part("module") + function + part(state) + b"b" + source + b"tQ0"
    sizes = {"short": 2, "int": 4, "long": 4}
    head = {"protocol_version": 1001, "little_endian": True, "type_sizes": sizes}
    parts = [pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, head)]
    parts += [b"\x80\x02" + lent + part({}) + b".", pickle.dumps([], 2)]
    (path := tmp_path / "a.pt").write_bytes(b"".join(parts))
    with pytest.raises(ValueError, match="has more in it"):
        import_pytorch(path)
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]
    assert torch._utils._rebuild_tensor.__name__ == "_rebuild_tensor"


@pytest.mark.parametrize("beside", [{}, {"at": Path("a")}], ids=["arrays", "more"])
def test_a_damaged_file_of_old(beside, tmp_path):
    """PyTorch has an assertion for a storage that nothing is made of."""
    path, state = tmp_path / "a.pt", module().state_dict()
    torch.save({**state, **beside}, path, _use_new_zipfile_serialization=False)
    content = bytearray(path.read_bytes())
    *_, last = re.finditer(rb"X.\0\0\0\d{6,}", content, re.DOTALL)
    content[last.end() - 1] = ord("X")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a state_dict of torch\.save, or"):
        import_pytorch(path)


class CountedWrong:
    """An array of 1000 objects, of which there is none: NumPy reads what is no list."""

    def __reduce__(self):
        make, given, _ = np.zeros(0).__reduce__()
        return make, given, (1, (1000,), np.dtype(object), False, [])


def test_arrays_of_anything_but_numbers(tmp_path):
    state = module()["lstm"].state_dict()
    beside = {"wrong": CountedWrong(), "names": np.array(["a"]), "at": Path("a")}
    torch.save({"lstm": state, **beside}, path := tmp_path / "a.pt")
    assert_bitwise_equal(import_pytorch(path).layers, import_pytorch(state).layers)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.onnx", b"\x08\x06\x12", r"prnn_jax\.convert\.import_onnx is for such a fi"),
        ("a.keras", b"PK\x03\x04", r"prnn_jax\.convert\.import_keras is for such a fi"),
        ("a.pt", b"\x89HDF\r\n", r"prnn_jax\.convert\.import_keras is for such a file"),
        (
            "a.mlmodel",
            b"\x08\x02\x12\xe8",
            r"begins with b'\\x08\\x02\\x12\\xe8', as non",
        ),
        ("a.pt", b"", r"pass torch\.load\(path, map_location=.cpu., weights_only"),
    ],
)
def test_files_of_others(name, content, message, tmp_path):
    """Of which PyTorch says that weights_only=False will likely succeed."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        import_pytorch(tmp_path / name)
