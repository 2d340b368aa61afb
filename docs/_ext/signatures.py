"""Docstrings as they are read in the source.

Signatures have the names of types, and what is indented is a program.
"""

import ast
import dataclasses
import inspect
import textwrap

from sphinx.pycode import ModuleAnalyzer


def of(function) -> str | None:
    """The arguments of a function in Python, as text; None where it has no source."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return None
    (node,) = ast.parse(source).body
    if not isinstance(node, ast.FunctionDef):
        return None
    arguments = node.args
    for listed in (arguments.posonlyargs, arguments.args):
        if listed and listed[0].arg in ("self", "cls"):
            del listed[0]
            break
    return f"({ast.unparse(arguments)})"


def of_fields(cls) -> str | None:
    """Of the `__init__` that a dataclass has made: its fields, as they are written.

    Without those that other libraries' bases add.
    """
    if not dataclasses.is_dataclass(cls):
        return None
    written: dict[str, ast.AnnAssign] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("prnn_jax"):
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(node, ast.ClassDef)
            for line in node.body:
                if isinstance(line, ast.AnnAssign):
                    line.value = _default(line.value)
                    written[ast.unparse(line.target)] = line
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name in written]
    texts = [ast.unparse(written[field.name]) for field in fields]
    if fields and all(field.kw_only for field in fields):
        texts.insert(0, "*")
    return f"({', '.join(texts)})"


def _default(value: ast.expr | None) -> ast.expr | None:
    """What a field begins with; of `field(default=...)`, that."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        return next((k.value for k in value.keywords if k.arg == "default"), None)
    return value


def process(app, what, name, obj, options, signature, returned):
    """Of `autodoc-process-signature`."""
    if what == "class":
        written = obj.__dict__.get("__init__")
        if written is None or not inspect.isfunction(written):
            for base in obj.__mro__[1:]:
                written = base.__dict__.get("__init__")
                if written is not None and base.__module__.startswith("prnn_jax"):
                    break
            else:
                return None
        text = of(written) or of_fields(obj)
        return (text, None) if text else None
    if what in ("function", "method"):
        text = of(getattr(obj, "__func__", obj))
        if text is None:
            return None
        result = inspect.signature(obj).return_annotation
        if result is inspect.Signature.empty:
            return text, None
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(obj)))
        node = ast.parse(source).body[0]
        return text, ast.unparse(node.returns) if node.returns else None
    return None


def programs(app, what, name, obj, options, lines):
    """Of `autodoc-process-docstring`: what is indented becomes a literal block."""
    made, before = [], ""
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and number and not lines[number - 1].strip()
        if begins and before and not before.startswith((" ", "-", "..")):
            made += ["::", ""]
        if line.strip():
            before = line
        made.append(line)
    lines[:] = made


def analyze(analyzer, whole=ModuleAnalyzer.analyze):
    """As ever, but for overloads, which are for type checkers: one is shown."""
    whole(analyzer)
    analyzer.overloads = {}


def setup(app):
    """As Sphinx calls it."""
    ModuleAnalyzer.analyze = analyze
    app.connect("autodoc-process-signature", process)
    app.connect("autodoc-process-docstring", programs, priority=400)
    return {"parallel_read_safe": True}
