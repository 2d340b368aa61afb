"""Archives of packages beside PyTorch with its arrays in them."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import jax
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
        ("b.nemo", lambda path: nemo(path, "w:bz2")),
        ("x.nemo", lambda path: nemo(path, "w:xz")),
        ("part.nemo", lambda path: nemo(path, folders=("mp_rank_00/",))),
        ("agent.zip", stable_baselines),
    ],
    ids=["nemo", "gzip", "bz2", "xz", "folder", "stable_baselines"],
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
    with pytest.raises(ValueError, match=r"is read, got mp_rank_00/.*, mp_rank_01/"):
        import_pytorch(path)
    nemo(path := tmp_path / "a.nemo", folders=())
    with pytest.raises(ValueError, match=r"is read, got none; unpack it, and pass"):
        import_pytorch(path)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE], ids=["l", "s"])
def test_a_link_becomes_a_file(kind, tmp_path):
    torch.save(state("decoder"), weights := io.BytesIO())
    path, content = tmp_path / "a.nemo", weights.getvalue()
    with tarfile.open(path, "w") as archive:
        file, link = tarfile.TarInfo("real"), tarfile.TarInfo("model_weights.ckpt")
        # As of files of more than 8 GB the size is.
        file.size, file.pax_headers = len(content), {"size": str(len(content))}
        link.type, link.linkname = kind, "real"
        link.pax_headers = {"size": "0"}
        archive.addfile(file, io.BytesIO(content))
        archive.addfile(link)
    net = trained(import_pytorch(path))
    new = update_pytorch(path, net, to=tmp_path / "new.nemo")
    assert_bitwise_equal(import_pytorch(new).layers, net.layers)
    assert contents(new)["real"] == content


def test_a_link_to_the_archive_is_no_other_file(tmp_path):
    """It would be written while it is read."""
    nemo(path := tmp_path / "a.nemo")
    (link := tmp_path / "b.nemo").symlink_to(path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"to must be another file \.nemo"):
        update_pytorch(path, trained(import_pytorch(path)), to=link)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", ["w:xz", zipfile.ZIP_LZMA])
def test_an_archive_whose_compressed_bytes_are_damaged(mode, tmp_path):
    torch.save(state("decoder"), weights := io.BytesIO())
    path = tmp_path / "a.zip"
    if mode == "w:xz":
        nemo(path, mode)
    else:
        with zipfile.ZipFile(path, "w", mode) as archive:
            archive.writestr("policy.pth", weights.getvalue())
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 50] = b"\xff" * 50
    path.write_bytes(content)
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
