"""Files of PyTorch's arrays and TorchScript, alone or in a folder of shards."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prnn_jax._given.checks import check
from prnn_jax.convert._pytorch import archives
from prnn_jax.convert._pytorch.pickles import (
    DAMAGED,
    OLD_TORCH,
    arrays_alone,
    check_names,
    numpy_arrays,
)
from prnn_jax.convert._pytorch.safetensors import read_safetensors

_INDEX = ".index.json"
#: What a folder, as of Hugging Face, has its weights in: the first that is there.
_IN_FOLDER = tuple(
    f"{name}{index}"
    for name in ("model.safetensors", "pytorch_model.bin")
    for index in ("", _INDEX)
)
#: How files of others begin, and what imports these.
_OTHERS = {b"\x89HDF": "prnn_jax.convert.import_keras"}


def read(path: Path, op: str = "import_pytorch", *, is_copied: bool = False) -> Any:
    """What a file, a folder or an index of files holds; `op` begins the messages.

    Of one that has objects of other packages beside the arrays, these are left out,
    unless it is to be copied.
    """
    path = file_in(path, op)
    if path.name.endswith(_INDEX):
        files = shards(path, op)
        arrays = [_dict(file, op, is_copied) for file in files]
        return {key: value for own in arrays for key, value in own.items()}
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (*DAMAGED, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"{op}: {path} must be a file of np.savez, of arrays alone: {error}"
            ) from error
    if path.suffix == ".safetensors":
        return read_safetensors(path, op)
    path.open("rb").close()  # or an OSError, which below says that it is damaged
    if not is_copied and (arrays := numpy_arrays(path)) is not None:
        return arrays
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"{op}: {path} needs PyTorch: pip install torch.") from error
    check(
        path.suffix != ".pt2",
        f"{op}: {path} is a program of torch.export; pass torch.export.load(path).",
    )
    check(
        not any(name.endswith("/.data/extern_modules") for name in _names_in(path)),
        f"{op}: {path} is an archive of torch.package; pass what "
        "torch.package.PackageImporter(path).load_pickle(package, resource) gives.",
    )
    try:
        inside = archives.weights_in(path)
        if inside is None:
            return _loaded(path, is_copied)
        with archives.unpacked(path, inside) as file:
            return _loaded(file, is_copied)
    except (*DAMAGED, *archives.DAMAGED) as error:
        raise ValueError(
            f"{op}: {path} must be a state_dict of torch.save, or a file of "
            f"torch.jit.save or safetensors. {_remedy(path, error)}"
        ) from error


def _loaded(path: Path, is_copied: bool) -> Any:
    import torch

    try:
        if any(name.endswith("/constants.pkl") for name in _names_in(path)):
            return torch.jit.load(path, map_location="cpu")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        check_names(loaded, path)
        return loaded
    except (*DAMAGED, zipfile.BadZipFile, OSError):
        arrays = None if is_copied else arrays_alone(path)
        if arrays is None:
            raise
        return arrays


def _remedy(path: Path, error: Exception) -> str:
    """What to do about a file that `read` does not read."""
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(OLD_TORCH))
    other = next((name for s, name in _OTHERS.items() if start.startswith(s)), "")
    if path.suffix in (".onnx", ".keras"):
        other = f"prnn_jax.convert.import_{path.suffix[1:]}"
    if other:
        return f"{other} is for such a file."
    if of_archive := archives.remedy(path):
        return f"{of_archive} What reads it says: {error}"
    if start and not start.startswith((b"PK", b"\x80")):
        return f"This one begins with {start[:8]!r}, as none of these does."
    loader = 'torch.load(path, map_location="cpu", weights_only=False)'
    if start.startswith(b"\x80") and start != OLD_TORCH:
        loader = 'pickle.load(open(path, "rb"))'
    return (
        "Of one that has more in it, and that you trust, pass "
        f"{loader}. PyTorch says: {error}"
    )


def _names_in(path: Path) -> list[str]:
    """Of the files in a ZIP archive; none where it is something else, or damaged."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                return file.namelist()
    except (*DAMAGED, zipfile.BadZipFile, OSError):
        pass  # as PyTorch will say
    return []


def file_in(path: Path, op: str) -> Path:
    """The file of a folder that has its weights, or their index; others themselves."""
    if not path.is_dir():
        return path
    there = sorted(one.name for one in path.iterdir())
    found = [name for name in _IN_FOLDER if name in there]
    listed = ", ".join([*there[:10], "..."] if there[10:] else there)
    check(
        len(found) > 0,
        f"{op}: the folder {path} must have one of {', '.join(_IN_FOLDER)}, got "
        f"{listed or 'nothing'}. Pass the path of the file with the weights.",
    )
    return path / found[0]


def shards(path: Path, op: str) -> list[Path]:
    """The files of an index; of any other file it alone."""
    if not path.name.endswith(_INDEX):
        return [path]
    try:
        index = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{op}: {path} must be JSON: {error}") from error
    files = index.get("weight_map") if isinstance(index, dict) else None
    names = list(dict.fromkeys(files.values())) if isinstance(files, dict) else []
    check(
        len(names) > 0 and all(n == Path(str(n)).name for n in names),
        f"{op}: {path} must have a weight_map of names of arrays to names of files "
        f"beside it, got {files!r:.200}.",
    )
    absent = [name for name in names if not (path.parent / name).is_file()]
    check(
        not absent,
        f"{op}: {path} names the files {', '.join(names)}, all of which must be beside "
        f"it; missing {', '.join(absent)}.",
    )
    return [path.parent / name for name in names]


def _dict(path: Path, op: str, is_copied: bool) -> Mapping[str, Any]:
    arrays = read(path, op, is_copied=is_copied)
    check(
        isinstance(arrays, Mapping),
        f"{op}: {path}, a file of an index, must be a state_dict, got "
        f"{type(arrays).__name__}.",
    )
    return arrays
