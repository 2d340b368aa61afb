"""Archives of other packages that have a file of `torch.save` in them.

NeMo's are tar files, Stable-Baselines3's ZIP files. Of neither is anything else read.
"""

import contextlib
import copy
import gzip
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Literal

#: What readers of archives raise of those that are damaged.
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error),
    lzma.LZMAError,
    *(OSError, EOFError, LookupError, RuntimeError, NotImplementedError),
)
_IN_NEMO = "model_weights.ckpt"
_IN_STABLE_BASELINES = "policy.pth"
_Mode = Literal["w", "w:gz", "w:bz2", "w:xz"]
#: How compressed tar files begin, and the mode that writes such a one.
_COMPRESSED: dict[bytes, _Mode] = {
    b"\x1f\x8b": "w:gz",
    b"BZh": "w:bz2",
    b"\xfd7zXZ": "w:xz",
}


def weights_in(path: Path) -> str | None:
    """The name in such an archive of the file with the weights; of others None."""
    found = _found(path)
    return found[0] if found and len(found) == 1 else None


def remedy(path: Path) -> str:
    """What to do about such an archive that is not read; of others ""."""
    found = _found(path)
    if found is None or (not found and not tarfile.is_tarfile(path)):
        return ""
    return (
        f"Of an archive the one file {_IN_NEMO} (of NeMo, a tar file) or "
        f"{_IN_STABLE_BASELINES} (of Stable-Baselines3, a ZIP file) is read, got "
        f"{', '.join(found) or 'none'}; unpack it, and pass the path of its weights."
    )


def _found(path: Path) -> list[str] | None:
    """The files in an archive that are called as such weights; None if it is none."""
    try:
        # First, for a tar file whose last part is a ZIP file seems to be one.
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                names, wanted = archive.getnames(), _IN_NEMO
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names, wanted = archive.namelist(), _IN_STABLE_BASELINES
        else:
            return None
    except DAMAGED:
        return None  # as its reader will say
    return [name for name in names if PurePosixPath(name).name == wanted]


@contextlib.contextmanager
def unpacked(path: Path, name: str) -> Iterator[Path]:
    """That file of the archive, alone in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, PurePosixPath(name).name)
        with contextlib.ExitStack() as stack:
            archive: zipfile.ZipFile | tarfile.TarFile
            member: IO[bytes] | None
            if tarfile.is_tarfile(path):
                archive = stack.enter_context(tarfile.open(path))
                member = archive.extractfile(name)
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                member = archive.open(name)
            if member is None:  # a folder, or a link to what is not there
                raise tarfile.ReadError
            with member, file.open("wb") as to:
                shutil.copyfileobj(member, to)
        yield file


def repacked(path: Path, to: Path, name: str, file: Path) -> None:
    """A copy of the archive with another file in the place of that one."""
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as old, tarfile.open(to, _mode(path)) as new:
            for info in old:
                if info.name == name:
                    info = copy.copy(info)
                    info.size = file.stat().st_size
                    # It may have been a link, or its size have been told beside it.
                    info.type, info.linkname = tarfile.REGTYPE, ""
                    info.pax_headers = {
                        key: value
                        for key, value in info.pax_headers.items()
                        if key != "size"
                    }
                    with file.open("rb") as member:
                        new.addfile(info, member)
                else:
                    new.addfile(info, old.extractfile(info) if info.isreg() else None)
        return
    with zipfile.ZipFile(path) as of_old, zipfile.ZipFile(to, "w") as of_new:
        of_new.comment = of_old.comment
        for one in of_old.infolist():
            is_new = one.filename == name
            with file.open("rb") if is_new else of_old.open(one) as member:
                one = copy.copy(one)  # whose sizes `open` sets
                with of_new.open(one, "w", force_zip64=is_new) as copied:
                    shutil.copyfileobj(member, copied)


def _mode(path: Path) -> _Mode:
    """To write a tar file as this one is compressed, or is not."""
    with path.open("rb") as file:
        start = file.read(max(map(len, _COMPRESSED)))
    for begins, mode in _COMPRESSED.items():
        if start.startswith(begins):
            return mode
    return "w"
