"""A picture of what `statistics` says."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from prnn_jax._given.checks import check
from prnn_jax._statistics.statistics import LayerStatistics
from prnn_jax._statistics.summaries import LEAST, MOST, ValueStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OP = "plot_statistics"
_WIDTH, _HEIGHT, _LINE = 4.0, 2.6, 0.25  # of a panel, and of a line, in inches


def plot_statistics(stats: LayerStatistics | Sequence[LayerStatistics]) -> "Figure":
    """A picture of `statistics`: a row for each layer, and a last one for all.

    Of a layer: the histograms of what it computes, as shares of all values, with dotted
    lines at the smallest and the largest normal number of the dtype; the same of
    gradients, if there are any; the largest magnitude at each step, of gradients if
    there are any; and the share of each gate that is saturated. In the last row: at
    which step what of which layer begins not to be finite.

    Needs Matplotlib: `pip install "prnn_jax[plot]"`.

    Args:
      stats: what `statistics` gives, or that of one layer; not traced, and of `vmap`
        one of all.

    Returns:
      A `matplotlib.figure.Figure`, which no backend shows by itself:
      `.savefig("stats.png")`, or the last line of a notebook's cell.

    Raises:
      ImportError: there is no Matplotlib.
      ValueError: stats is something else.
    """
    layers = [stats] if isinstance(stats, LayerStatistics) else stats
    is_several = isinstance(layers, (list, tuple)) and len(layers) > 0
    check(
        is_several and all(isinstance(one, LayerStatistics) for one in layers),
        f"{_OP}: stats must be what prnn_jax.statistics gives, got "
        f"{type(stats).__name__}.",
    )
    _check_numbers(layers)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f'prnn_jax.{_OP} needs Matplotlib: pip install "prnn_jax[plot]".'
        ) from error
    has_backward = any(layer.backward is not None for layer in layers)
    columns, rows = 3 + has_backward, len(layers) + 1
    wrong = _not_finite(layers)
    heights = [*(_HEIGHT,) * len(layers), max(_HEIGHT, _LINE * len(wrong))]
    figure = Figure((_WIDTH * columns, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    for n, layer in enumerate(layers):
        axes = [figure.add_subplot(grid[n, column]) for column in range(columns)]
        _histograms(axes[0], f"layer {n}: values", layer.forward)
        if layer.backward is not None:
            gradients = layer.backward | (layer.parameters or {})
            _histograms(axes[1], f"layer {n}: gradients", gradients)
        elif has_backward:
            axes[1].set_axis_off()
        _by_step(
            axes[-2], f"layer {n}: largest by step", layer.backward or layer.forward
        )
        _saturation(axes[-1], f"layer {n}: saturated", layer.saturation)
    _beginnings(figure.add_subplot(grid[-1, :]), wrong)
    return figure


def _check_numbers(layers: Sequence[LayerStatistics]) -> None:
    for array in jax.tree.leaves([(one.forward, one.backward) for one in layers]):
        check(
            not isinstance(array, Tracer),
            f"{_OP}: stats must be known numbers, got traced ones; return them from "
            "the function under jax.jit, and draw them outside.",
        )
    ranks = {
        jnp.ndim(one.saturation[gate]) for one in layers for gate in one.saturation
    }
    ranks |= {jnp.ndim(v.count) for one in layers for v in one.forward.values()}
    check(
        ranks == {0},
        f"{_OP}: stats must be of one call, got those of several, as jax.vmap gives "
        "them; take one: jax.tree.map(lambda a: a[0], stats).",
    )


def _histograms(axes: "Axes", title: str, values: dict[str, ValueStatistics]) -> None:
    for name, one in values.items():
        count = max(int(one.count), 1)
        zeros = int(one.zeros) / count
        label = f"{name}, 0: {zeros:.0%}" if zeros else name
        shares = np.asarray(one.histogram) / count
        axes.plot(one.exponents, shares, drawstyle="steps-mid", label=label)
    for info in {jnp.finfo(one.dtype) for one in values.values()}:
        for end in (int(info.minexp), int(info.maxexp)):
            if LEAST <= end <= MOST:
                axes.axvline(end, color="black", linestyle=":", linewidth=0.8)
    axes.set(title=title, xlabel="exponent: $2^e ≤ |v| < 2^{e+1}$", ylabel="share")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small")


def _by_step(axes: "Axes", title: str, values: dict[str, ValueStatistics]) -> None:
    for name, one in values.items():
        largest = np.asarray(one.largest_by_step, np.float64)
        largest[largest == 0] = np.nan  # which a logarithm has not
        axes.plot(largest, marker=".", markersize=3, linewidth=0.8, label=name)
    axes.set(title=title, xlabel="step", ylabel="largest |v|", yscale="log")
    axes.legend(fontsize="x-small")


def _saturation(axes: "Axes", title: str, shares: dict[str, Any]) -> None:
    names = list(shares)
    axes.bar(range(len(names)), [float(shares[name]) for name in names])
    axes.set(title=title, xlabel="gate", ylabel="share", ylim=(0, 1))
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0)


def _not_finite(
    layers: Sequence[LayerStatistics],
) -> list[tuple[str, str, ValueStatistics]]:
    """What has such values: what it is, of which pass, and its statistics."""
    every = [
        (f"layer {n}, {'gradient of ' * (kind != 'forward')}{name}", kind, one)
        for n, layer in enumerate(layers)
        for kind in ("forward", "backward", "parameters")
        for name, one in (getattr(layer, kind) or {}).items()
    ]
    return [(label, kind, one) for label, kind, one in every if int(one.nonfinite)]


def _beginnings(
    axes: "Axes", wrong: Sequence[tuple[str, str, ValueStatistics]]
) -> None:
    """Where values begin not to be finite."""
    from matplotlib.ticker import MaxNLocator

    axes.set(title="steps from which on some values are not finite", xlabel="step")
    if not wrong:
        axes.text(0.5, 0.5, "all values are finite", ha="center", va="center")
        axes.set_axis_off()
        return
    for row, (_, kind, one) in enumerate(wrong):
        step, marker = int(one.first_nonfinite), ">" if kind == "forward" else "<"
        of_steps = step >= 0  # and no sum over them
        axes.plot(max(step, 0), row, marker=marker if of_steps else "", color="C3")
        text = f"  {int(one.nonfinite)} values{'' if of_steps else ', of all steps'}"
        axes.annotate(text, (max(step, 0), row), va="center")
    axes.set_yticks(range(len(wrong)), [label for label, *_ in wrong])
    axes.invert_yaxis()
    axes.margins(x=0.2, y=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
