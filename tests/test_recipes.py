"""Every program of examples/recipes, which asserts what it shows."""

import ast
import runpy
from pathlib import Path

import pytest
from libraries import library

FOLDER = Path(__file__).parent.parent / "examples/recipes"
RECIPES = sorted(FOLDER.glob("*.py"))
NEEDS = {"pytorch_to_layers": ("torch", "keras"), "packed_sequences": ("torch",)}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_runs(recipe, capsys):
    for name in NEEDS.get(recipe.stem, ()):
        library(name)
    runpy.run_path(str(recipe), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_is_short_and_listed(recipe):
    tree = ast.parse(recipe.read_text())
    lines = {line for node in ast.walk(tree) for line in [getattr(node, "lineno", 0)]}
    assert len(lines) <= 40
    assert f"]({recipe.name})" in (FOLDER / "README.md").read_text()
    assert ast.get_docstring(tree)
