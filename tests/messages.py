"""The messages of the library, read off its source; … stands for what differs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# From where a message begins to the end of its statement.
_STATEMENT = re.compile(r'(?="prnn_jax: )(?:"(?:[^"\\]|\\.)*"|[^";])*;')


def of_python(folder: Path) -> Iterator[tuple[str, str]]:
    """(where, message) of each error that is raised or checked for."""
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        named: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                named.setdefault(node.targets[0].id, []).append(node.value)
        named = {
            name: [value for v in values for value in named.get(_formatted(v), [v])]
            for name, values in named.items()
        }
        for node in ast.walk(tree):
            found = _message(node)
            for text in (
                named.get(found.id, []) if isinstance(found, ast.Name) else [found]
            ):
                said = "" if text is None else _text(text)
                if re.search(r"[a-z]{3}", said):
                    yield f"{path.name}:{node.lineno}", said


def of_cpp(*folders: Path) -> Iterator[tuple[str, str]]:
    """(where, message) of each text that begins as our messages do."""
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".cc", ".h")):
            text = path.read_text()
            for match in _STATEMENT.finditer(text):
                parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^"\s()+]+)', match[0])
                said = "".join(literal or "…" for literal, _ in parts)
                said = re.sub("…+", "…", said.replace('\\"', '"').rstrip("…"))
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.name}:{line}", said


def _message(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return node.exc.args[0] if node.exc.args else None
    if isinstance(node, ast.Call) and len(node.args) > 1:
        function = node.func
        name = getattr(function, "id", getattr(function, "attr", ""))
        return node.args[1] if name == "check" else None
    return None


def _formatted(node: ast.expr) -> str:
    """The name of what `.format` is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.value
        return name.id if isinstance(name, ast.Name) else ""
    return ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        said = node.value
    elif isinstance(node, ast.JoinedStr):
        said = "".join(map(_text, node.values))
    elif isinstance(node, ast.BinOp):
        said = _text(node.left) + _text(node.right)
    else:
        said = "…"
    return re.sub("…+", "…", said)
