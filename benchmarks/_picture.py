"""The picture of the front page: how many times as fast as others, in bars."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import _peer_tables, _plots
from benchmarks._peers import KINDS
from benchmarks._scan_points import CELLS

NAME = "speed.svg"
#: Between black and white, so that it is read on both.
_INK = "#77828c"
_COLOURS = ("#1f5f8b", "#3d7fae", "#6ba3cb", "#d08c3f", "#b5651d")
_MODES = {"forward": "forward", "train": "forward and gradients"}


def write(results: dict, folder: Path) -> Path:
    """Draws what the tables of `against_peers` call geometric means."""
    summaries = [
        s
        for s in _peer_tables.summarise(results["points"])
        if s.projection and s.dtype == "float32" and s.mode in _MODES
    ]
    modes = [mode for mode in _MODES if any(s.mode == mode for s in summaries)]
    peers = [name for name in KINDS if any(name in s.means for s in summaries)]
    figure = Figure((8.6, 3.4), layout="constrained")
    axes = figure.subplots(1, len(modes), squeeze=False, sharey=True)[0]
    for axis, mode in zip(axes, modes, strict=True):
        group = [s for s in summaries if s.mode == mode]
        _bars(axis, group, peers)
        axis.set_title(_MODES[mode], fontsize=11, color=_INK)
    axes[0].set_ylabel("times as fast", color=_INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(peers),
        frameon=False,
        labelcolor=_INK,
        fontsize=10,
    )
    device = results["device"]
    sizes = sorted({e["hidden_size"] for e in results["points"]})
    figure.supxlabel(
        f"float32, {sizes[0]} to {sizes[-1]} units, geometric mean over sizes; "
        f"{device['cpu']}, {device['cores']} cores, {device['instruction_set']}; "
        f"{results['date'][:10]}",
        fontsize=9,
        color=_INK,
    )
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "prnn_jax", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None}, transparent=True)
    _plots.shorten(path)
    return path


def _bars(axis, group: list[_peer_tables.Summary], peers: list[str]) -> None:
    width = 0.84 / len(peers)
    for number, name in enumerate(peers):
        places = [n for n, s in enumerate(group) if name in s.means]
        heights = [group[n].means[name] for n in places]
        bars = axis.bar(
            [n + (number - (len(peers) - 1) / 2) * width for n in places],
            heights,
            width * 0.9,
            color=_COLOURS[number % len(_COLOURS)],
            label=f"than {KINDS[name].title.strip('`')}",
        )
        axis.bar_label(bars, [f"{h:.1f}" for h in heights], fontsize=8, color=_INK)
    axis.axhline(1, color=_INK, linewidth=0.9, linestyle="--")
    axis.set_xticks(range(len(group)), [CELLS[s.cell].title for s in group])
    axis.tick_params(colors=_INK, length=0)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_INK)
