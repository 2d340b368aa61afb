"""The documentation has every public name and message, and its links lead somewhere."""

import importlib
import importlib.util
import re
from pathlib import Path

import messages
import pytest
from libraries import library

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(
    not DOCS.exists(), reason="a source distribution has no docs/"
)
NEEDS = {"nnx": "flax", "linen": "flax", "equinox": "equinox", "keras": "keras"}
PAGES = [
    *(path for path in DOCS.rglob("*.md") if "made" not in path.parts),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "cuda").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]


def described() -> set[str]:
    """The names that the reference describes."""
    names = set()
    for path in (DOCS / "api").glob("*.md"):
        module = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"\.\. (\w+:)?(\w+):: ([\w.]+)", line):
                if match[2] == "currentmodule":
                    module = match[3]
                elif match[2] in ("autofunction", "autoclass", "autodata", "data"):
                    names.add(f"{module}.{match[3]}")
    return names


@pytest.mark.parametrize("module", ["", "convert", "testing", *NEEDS])
def test_every_public_name_is_in_the_reference(module):
    if module in NEEDS:
        library(NEEDS[module])
    name = f"prnn_jax.{module}".rstrip(".")
    public = {f"{name}.{n}" for n in importlib.import_module(name).__all__}
    known = {n for n in described() if n.rpartition(".")[0] == name}
    assert public == known - {"prnn_jax.__version__"}


def entries() -> dict[str, str]:
    """Messages that the page explains, with what it says of them."""
    text = (DOCS / "troubleshooting.md").read_text()
    return dict(re.findall(r"^`(.+)`\n: (.+)$", text, re.MULTILINE))


def test_every_message_is_explained():
    known = entries()
    said = [
        *messages.of_python(ROOT / "prnn_jax"),
        *messages.of_cpp(ROOT / "ffi", ROOT / "cpu", ROOT / "cuda"),
    ]
    assert len(said) > 200
    unexplained = [(w, m) for w, m in said if not any(entry in m for entry in known)]
    assert not unexplained, "add these to docs/troubleshooting.md"
    outlived = [entry for entry in known if not any(entry in m for _, m in said)]
    assert not outlived, "no message says so any more; take them out"


def test_every_setting_of_the_cuda_engine_is_on_its_page():
    sources = [*(ROOT / "prnn_jax").rglob("*.py"), *(ROOT / "ffi").glob("*.cc")]
    read = {
        name
        for path in sources
        for name in re.findall(r'"(PRNN_CUDA_[A-Z_]+)"', path.read_text())
    }
    assert len(read) == 6
    table = (DOCS / "gpu.md").read_text()
    assert [name for name in sorted(read) if f"| `{name}` |" not in table] == []


def headings(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found]
    return {heading.replace(" ", "-") for heading in words}


def links(path: Path) -> list[tuple[str, str]]:
    """Targets of a page's links, and their anchors."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text)
    return [(target, anchor) for target, anchor in found if ":" not in target]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target, anchor in links(path):
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), target
        if anchor:
            assert anchor in headings(file), f"{target}#{anchor}"


def test_pages_are_in_a_table_of_contents():
    listed = {"index"}
    for path in DOCS.rglob("*.md"):
        for toctree in re.findall(r"```{toctree}(.*?)```", path.read_text(), re.DOTALL):
            for line in filter(None, toctree.splitlines()):
                page = re.sub(r".*<(.+)>", r"\1", line)  # with a title in front
                listed.add((path.parent / page).relative_to(DOCS).as_posix())
    pages = {
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")
    }
    pages = {page for page in pages if not page.startswith("made/")}
    assert pages <= listed


def test_links_between_pages_are_those_of_the_site():
    spec = importlib.util.spec_from_file_location("pages", DOCS / "_ext/pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    text = "[a](../cuda/README.md) [b](convert.md#x) [c](https://x.y) [`d`](../LICENSE)"
    made = pages.with_links(text, "docs/page.md")
    assert made == "[a](/made/cuda.md) [b](/convert.md#x) [c](https://x.y) " + (
        f"[`d`]({address}/LICENSE)" if (address := pages.source_address()) else "`d`"
    )
    image = pages.with_links("![a](b.png)", "examples/speech/README.md")
    assert image == "![a](../../examples/speech/b.png)"  # of a page in docs/made
    for file in pages.PAGES:
        assert (ROOT / file).exists()
