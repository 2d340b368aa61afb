"""Pages made of files that lie elsewhere in the repository, and links between them.

The recipes are pages that are executed; READMEs are pages as they are. A link of a page
to a file that is a page leads there; to another file, to the repository, where
pyproject.toml says its address (`Source` of `[project.urls]`), and else it is text.
"""

import ast
import posixpath
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MADE = "made"  # folder of the pages that are made here, which git ignores

#: Files outside of docs/ that are pages, and their names.
PAGES = {
    "CHANGELOG.md": f"{MADE}/changelog",
    "CONTRIBUTING.md": f"{MADE}/contributing",
    "benchmarks/README.md": f"{MADE}/measuring",
    "cuda/README.md": f"{MADE}/cuda",
    "examples/recipes/README.md": "recipes",
    "examples/recurrent_ppo/README.md": f"{MADE}/recurrent_ppo",
    "examples/speech/README.md": f"{MADE}/speech",
    "README.md": "index",
}
RECIPES = sorted((ROOT / "examples/recipes").glob("*.py"))
PAGES |= {
    path.relative_to(ROOT).as_posix(): f"{MADE}/recipe_{path.stem}" for path in RECIPES
}

# Code, which stays as it is, or a link.
_LINK = re.compile(
    r"```.*?```|`[^`\n]*`|(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)", re.DOTALL
)


def source_address() -> str | None:
    """Where the repository can be read, if pyproject.toml says so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Source")
    return address and address.rstrip("/")


def page_of(path: str) -> str | None:
    """The name of the page that a file of the repository is."""
    for file in (path, f"{path}/README.md"):
        if file in PAGES:
            return PAGES[file]
        if file.startswith("docs/") and file.endswith(".md") and (ROOT / file).exists():
            return file.removeprefix("docs/").removesuffix(".md")
    return None


def with_links(text: str, origin: str) -> str:
    """The text of a file of the repository, with links that a page can have."""
    source = source_address()

    def link(match: re.Match) -> str:
        image, words, target, anchor = match.groups()
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if image:
            # Files outside of docs/ are reached from the folder of the pages made.
            return (
                match[0] if origin.startswith("docs/") else f"![{words}](../../{path})"
            )
        page = page_of(path)
        if page is not None:
            return f"[{words}](/{page}.md{anchor or ''})"
        if source is not None:
            return f"[{words}]({source}/{path})"
        return words if "`" in words else f"`{words}`" if "/" in words else words

    return _LINK.sub(link, text)


def recipe(path: Path) -> str:
    """A recipe as a page: what it is for, and the program, executed."""
    text = path.read_text()
    says = ast.get_docstring(ast.parse(text)) or ""
    name, _, more = says.partition(":")
    body = text.split('"""', 2)[2].strip()
    lines = [
        "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---",
        f"# {name.strip().rstrip('.')}",
        more.strip()[:1].upper() + more.strip()[1:] if more else "",
        f"`examples/recipes/{path.name}` in the repository:",
        f"```{{code-cell}} ipython3\n{body}\n```",
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def write(app, config):
    """Makes the pages; those that are the same stay, so that they are not read anew."""
    texts = {PAGES[p.relative_to(ROOT).as_posix()]: recipe(p) for p in RECIPES}
    for file, page in PAGES.items():
        if page.startswith(MADE) and page not in texts:
            texts[page] = with_links((ROOT / file).read_text(), file)
    for page, text in texts.items():
        path = DOCS / f"{page}.md"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in (DOCS / MADE).glob("*.md"):
        if f"{MADE}/{path.stem}" not in texts:
            path.unlink()


def read(app, page, source):
    """Of `source-read`: links of the pages in docs/."""
    if not page.startswith(MADE):
        source[0] = with_links(source[0], f"docs/{page}.md")


def setup(app):
    """As Sphinx calls it."""
    app.connect("config-inited", write)
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
