"""Plots of the benchmarks' JSON: panels with lines, as SVG that is always the same."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._scan_points import CELLS

#: Points (x, y) of each line of each panel.
Panels = dict[str, dict[str, list[tuple[float, float]]]]


@dataclass(frozen=True)
class Plot:
    """What of a benchmark's results is drawn.

    Attributes:
      benchmark: whose results they are.
      title: of the plot.
      file: its name, without a folder.
      x: what runs along the horizontal axis; its scale is logarithmic if `log_x`.
      y: what runs along the vertical axis, whose scale is logarithmic.
      read: the panels in the results.
      level: where a horizontal line parts good from bad.
    """

    benchmark: str
    title: str
    file: str
    x: str
    y: str
    read: Callable[[dict], Panels]
    log_x: bool = True
    level: float | None = None


def _panels(rows: Iterable[tuple[str, str, float, float | None]]) -> Panels:
    """Rows of panel, line, x and y; those without y are left out."""
    panels: Panels = {}
    for panel, line, x, y in rows:
        if y is not None:
            panels.setdefault(panel, {}).setdefault(line, []).append((x, y))
    return panels


def _by_size(
    value: Callable[[dict], float | None],
    kind: str,
    chosen: Callable[[dict], bool] = lambda _: True,
) -> Callable[[dict], Panels]:
    """A panel for each cell and kind, a line for each batch, over the hidden size."""
    return lambda results: _panels(
        (
            f"{CELLS[point['cell']].title}, {point[kind].replace('_', ' ')}",
            f"B={point['batch']}",
            point["hidden_size"],
            value(point),
        )
        for point in results["points"]
        if chosen(point)
    )


def _scan_ratio(point: dict) -> float | None:
    return point["ratio"]["scan"]["median"]


def _best_ratio(point: dict) -> float | None:
    best = point["best_peer"]
    return best and best["ratio"]["median"]


def _is_usual(point: dict) -> bool:
    return point["projection"] and point["dtype"] == "float32"


def _perplexity(results: dict) -> Panels:
    return _panels(
        (kind, name, number, value)
        for kind, curves in results["perplexity"].items()
        for name, curve in curves.items()
        for number, value in enumerate(curve, 1)
    )


def _flops(results: dict) -> Panels:
    return _panels(
        (point["part"].replace("_", " "), name, point["batch"], value)
        for point in results["points"]
        for name, value in point["gflops"].items()
    )


_SIZE = "hidden size"
_FASTER = "times as fast"
PLOTS = (
    Plot(
        "against_peers",
        "ours against lax.scan",
        "against_peers-scan.svg",
        _SIZE,
        _FASTER,
        _by_size(_scan_ratio, "mode", _is_usual),
        level=1,
    ),
    Plot(
        "against_peers",
        "ours against the best that is not written in JAX",
        "against_peers-best.svg",
        _SIZE,
        _FASTER,
        _by_size(_best_ratio, "mode", _is_usual),
        level=1,
    ),
    Plot(
        "against_scan",
        "ours against lax.scan",
        "against_scan.svg",
        _SIZE,
        _FASTER,
        _by_size(lambda point: point["ratio"]["median"], "mode"),
        level=1,
    ),
    Plot(
        "prnn_figure",
        "a ReLU layer's three products",
        "prnn_figure.svg",
        "batch",
        "GFLOP/s",
        _flops,
    ),
    Plot(
        "roofline",
        "how near to the limit",
        "roofline.svg",
        _SIZE,
        "limit / measured",
        _by_size(lambda point: point["share"], "part"),
        level=1,
    ),
    Plot(
        "language_model",
        "a word model learns",
        "language_model.svg",
        "batch",
        "perplexity",
        _perplexity,
        log_x=False,
    ),
)


def write(plot: Plot, results: dict, folder: Path) -> Path:
    """Draws the plot into a file in the folder."""
    panels = plot.read(results)
    columns = 2 if len(panels) % 2 == 0 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure((3.6 * columns, 2.8 * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    figure.suptitle(plot.title)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        _draw(axis, plot, lines)
        axis.set_title(title, fontsize="medium")
    path = folder / plot.file
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text as text, names of parts from a fixed salt, no date: the file changes only
    # with the results.
    with mpl.rc_context({"svg.hashsalt": "prnn_jax", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    shorten(path)
    return path


def shorten(path: Path) -> None:
    """Rounds an SVG's numbers to a hundredth of a point; a path on one line."""
    text = re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", path.read_text())
    text = re.sub(r" *\n(?=[A-Zz][ \n])", " ", text)
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def _draw(axis: Axes, plot: Plot, lines: dict[str, list[tuple[float, float]]]) -> None:
    colours = mpl.colormaps["viridis"].resampled(len(lines) + 1)
    for number, (name, points) in enumerate(lines.items()):
        xs, ys = zip(*sorted(points), strict=True)
        style = {
            "marker": "." if len(points) < 20 else "",
            "linestyle": ("-", "--", ":")[number % 3],  # for lines that coincide
        }
        axis.plot(xs, ys, color=colours(number), label=name, **style)
    if plot.level is not None:
        axis.axhline(plot.level, color="black", linewidth=0.8, linestyle="--")
    if plot.log_x:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_yscale("log")
    for set_formatter in (
        axis.yaxis.set_major_formatter,
        axis.yaxis.set_minor_formatter,
    ):
        set_formatter("{x:g}")
    axis.set(xlabel=plot.x, ylabel=plot.y)
    axis.grid(visible=True, linewidth=0.3)
    axis.legend(fontsize="x-small")
