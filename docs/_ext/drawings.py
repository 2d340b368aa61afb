"""The directive `drawing NAME`: boxes, arrows and words, as SVG in the page.

In the page, and not beside it, so that its colours are the theme's, light or dark.
"""

from collections.abc import Callable
from html import escape

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Drawing:
    """Lines of SVG. Sizes are pixels; y grows downwards."""

    def __init__(self, width: int, height: int, says: str):
        self.size, self.says = (width, height), says
        self.lines: list[str] = []

    def text(self, x, y, words, kind="", anchor="middle"):
        """Words, centred on x unless `anchor` says otherwise."""
        self.lines.append(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def box(self, x, y, width, height, *words, kind=""):
        """A box with lines of words in its middle; the second and later are small."""
        self.lines.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
            f'class="box {kind}"/>'
        )
        first = y + height / 2 + 5 - 8.5 * (len(words) - 1)
        for number, line in enumerate(words):
            self.text(x + width / 2, first + 17 * number, line, "small" * bool(number))

    def arrow(self, *points, kind=""):
        """Through points (x, y), with a head at the last."""
        path = " L".join(f"{x} {y}" for x, y in points)
        self.lines.append(f'<path d="M{path}" class="arrow {kind}"/>')

    def svg(self) -> str:
        """The whole."""
        width, height = self.size
        return (
            f'<svg viewBox="-1 0 {width + 2} {height}" role="img" class="drawing" '
            f'style="max-width: {width}px" aria-label="{escape(self.says)}">'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0 0 L8 4 L0 8 z" class="head"/></marker></defs>'
            + "".join(self.lines)
            + "</svg>"
        )


def weights() -> Drawing:
    """Where the recurrent weights are, step by step."""
    d = Drawing(
        720, 330, "A loop that loads its weights in each step, and one that keeps them"
    )
    for top, name, kept in (
        (0, "a loop in the program", False),
        (170, "persistent", True),
    ):
        d.text(0, top + 18, name, "name", "start")
        d.box(0, top + 30, 96, 100, "memory", "W_hh", kind="weights")
        for n in range(4):
            x = 190 + 132 * n
            d.box(x, top + 88, 92, 42, f"step {n + 1}")
            if n < 3:
                d.arrow((x + 92, top + 109), (x + 132, top + 109))
                d.text(x + 112, top + 102, "h", "small")
            if not kept:
                d.arrow(
                    (96, top + 52),
                    (x + 46, top + 52),
                    (x + 46, top + 88),
                    kind="weights",
                )
        if kept:
            d.box(
                190,
                top + 32,
                488,
                40,
                "on chip: registers, shared memory",
                kind="weights",
            )
            d.arrow((96, top + 52), (190, top + 52), kind="weights")
            d.text(143, top + 44, "once", "small")
            for n in range(4):
                d.arrow(
                    (236 + 132 * n, top + 72), (236 + 132 * n, top + 88), kind="weights"
                )
        else:
            d.text(143, top + 44, "every step", "small")
    return d


def exchanges() -> Drawing:
    """How blocks on a GPU tell each other h."""
    d = Drawing(
        720, 300, "Exchange within a block, within a cluster, over the whole GPU"
    )
    d.text(100, 18, "block", "name")
    d.box(20, 34, 160, 130, kind="outer")
    d.text(100, 54, "one SM", "small")
    for n in range(4):
        d.box(34 + 34 * n, 66, 28, 34, kind="weights")
        d.arrow((48 + 34 * n, 100), (48 + 34 * n, 122))
    d.box(34, 122, 130, 28, "h, shared")
    d.text(100, 192, "small layers", "small")
    d.text(100, 209, "a step ends with", "small")
    d.text(100, 226, "__syncthreads", "small")

    d.text(340, 18, "cluster", "name")
    d.box(220, 34, 240, 130, kind="outer")
    d.text(340, 54, "up to 16 SMs", "small")
    for n in range(3):
        d.box(234 + 74 * n, 66, 62, 34, "W", kind="weights")
        d.box(234 + 74 * n, 122, 62, 28, "h")
        for m in range(3):
            d.arrow((265 + 74 * n, 100), (265 + 74 * m, 121))
    d.text(340, 192, "each block writes its part of h into", "small")
    d.text(340, 209, "the shared memory of the others,", "small")
    d.text(340, 226, "which wait for the bytes (mbarrier)", "small")

    d.text(600, 18, "grid", "name")
    d.box(500, 34, 200, 130, kind="outer")
    d.text(600, 54, "all SMs", "small")
    for n in range(4):
        d.box(512 + 46 * n, 66, 38, 34, "W", kind="weights")
        d.arrow((524 + 46 * n, 100), (524 + 46 * n, 121))
        d.arrow((538 + 46 * n, 122), (538 + 46 * n, 101))
    d.box(512, 122, 176, 28, "y, in the L2 cache")
    d.text(600, 192, "y is the mailbox: filled with a", "small")
    d.text(600, 209, "pattern that no result has, written", "small")
    d.text(600, 226, "once, polled until it is there", "small")
    d.text(
        360,
        275,
        "The planner takes the one by which a step takes least time; "
        "prnn_jax.explain says which, and why.",
        "small",
    )
    return d


def way() -> Drawing:
    """The way of a call."""
    d = Drawing(720, 400, "From a layer through XLA to the step of a cell, and back")
    rows = (
        (
            "nnx.LSTM, linen.LSTM, equinox.LSTM, keras.LSTM",
            "parameters, the host library's names",
        ),
        ("prnn_jax.lstm", "checks; x W_ih + b by XLA or the engine"),
        ("recurrence", "the one custom_vjp"),
        ("forward, backward", "one native call, or lax.scan by platform"),
    )
    for n, words in enumerate(rows):
        d.box(110, 10 + 62 * n, 400, 46, *words)
        if n:
            d.arrow((310, 10 + 62 * n - 16), (310, 10 + 62 * n))
    d.box(10, 268, 210, 46, "CPU engine", "plan, panels, threads", kind="weights")
    d.box(240, 268, 210, 46, "CUDA engine", "plan, launch, exchange", kind="weights")
    d.box(470, 268, 210, 46, "lax.scan", "anywhere else")
    for x in (115, 345, 575):
        d.arrow((310, 242), (310, 255), (x, 255), (x, 268))
    d.box(
        10,
        342,
        440,
        46,
        "Lstm::step, Lstm::step_grad",
        "the gate math, once for both (core/cells.h)",
    )
    d.box(470, 342, 210, 46, "_cells/table.py", "the same in jax.numpy")
    for x in (115, 345, 575):
        d.arrow((x, 314), (x, 342))
    d.box(560, 60, 150, 64, "gradients", "the same engine", "backwards", kind="outer")
    d.arrow((510, 157), (635, 157), (635, 124), kind="back")
    d.arrow((560, 92), (535, 92), (535, 219), (510, 219), kind="back")
    return d


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "weights": weights,
    "exchanges": exchanges,
    "way": way,
}


class DrawingDirective(SphinxDirective):
    """Puts one of `DRAWINGS` into a page, with what is said of it below."""

    required_arguments = 1
    has_content = True

    def run(self):
        """As docutils calls it."""
        figure = nodes.figure(classes=["drawing"])
        figure += nodes.raw("", DRAWINGS[self.arguments[0]]().svg(), format="html")
        caption = nodes.caption()
        caption += nodes.Text(" ".join(self.content))
        figure += caption
        return [figure]


def setup(app):
    """As Sphinx calls it."""
    app.add_directive("drawing", DrawingDirective)
    return {"parallel_read_safe": True}
