"""The package's folders know each other in one way: a call goes down through them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "prnn_jax"

#: From top to bottom: a module imports of its own folder and of those that follow.
ORDER = (
    "",  # public modules, which have what users import
    "_layers/equinox",
    "_layers/flax",
    "_layers",
    "convert",
    "convert/_xlstm",
    "convert/_effect",
    "convert/_tflite",
    "convert/_openvino",
    "convert/_onnx",
    "convert/_keras",
    "convert/_pytorch",
    "convert/_shared",
    "_statistics",
    "_ops",
    "_matrix",
    "_linear",
    "_autodiff",
    "_engine",
    "_call",
    "_cells",
    "_given",
)
COMPILED = "_prnn", "_prnn_cuda"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def folder(module: Path) -> str:
    return "" if module.parent == Path() else module.parent.as_posix()


def found(*parts: str) -> str | None:
    """The folder of what a dotted name of this package is, or None for no module."""
    path = PACKAGE.joinpath(*parts)
    if path.is_dir():
        return path.relative_to(PACKAGE).as_posix()
    is_module = path.with_suffix(".py").exists()
    return folder(path.relative_to(PACKAGE)) if is_module else None


def imported(module: Path, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What a module imports of the package, anywhere in it, and that one's folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package != "prnn_jax" or (parts[-1:] and parts[-1] in COMPILED):
                continue
            of = found(*parts) or found(*parts[:-1])
            assert of is not None, f"{module}: {name}"
            yield name, "" if of == "." else of


def backwards(module: Path, tree: ast.AST) -> list[str]:
    """What a module imports from above it."""
    below = ORDER[ORDER.index(folder(module)) :]
    return [name for name, of in imported(module, tree) if of not in below]


def test_every_folder_has_its_place():
    assert {folder(module) for module in MODULES} == set(ORDER)
    for name in filter(None, ORDER):
        assert (PACKAGE / name / "__init__.py").exists(), name


def test_what_is_private_is_in_a_folder():
    (above,) = {name for name in MODULES if not folder(name) and name.stem[0] == "_"}
    assert above.name == "__init__.py"


@pytest.mark.parametrize("name", ORDER, ids=lambda name: name or "public")
def test_imports_go_one_way(name):
    for module in MODULES:
        if folder(module) == name:
            tree = ast.parse((PACKAGE / module).read_text())
            assert not backwards(module, tree), f"{module} is below these"


def test_an_import_from_above_is_found():
    text = """
def later():
    from prnn_jax._ops import run
    from prnn_jax._engine.ffi import forward
    from prnn_jax import _prnn
    from prnn_jax._call.call import Call
    import prnn_jax.nnx
"""
    found = backwards(Path("_engine/scan.py"), ast.parse(text))
    assert found == ["prnn_jax._ops.run", "prnn_jax.nnx"]
