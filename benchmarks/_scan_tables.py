"""Tables of `against_scan`, made of its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import _harness as harness
from benchmarks._scan_points import BASELINE, CELLS, OURS

#: Up to here a forward pass answers someone, rather than working off a queue.
SMALL_BATCH = 4


@dataclass(frozen=True)
class Summary:
    """A cell in one mode.

    Attributes:
      mean: geometric, of the ratios of all points.
      small_batch_mean: the same for small batches; None if there are none.
      minimum: the entry with the smallest ratio.
      losses: how many ratios are below 1.
      count: how many points there are.
    """

    cell: str
    mode: str
    mean: float
    small_batch_mean: float | None
    minimum: dict
    losses: int
    count: int


def summarise(entries: Sequence[dict]) -> list[Summary]:
    """A summary for each cell and mode, in the order of the entries."""
    kinds: dict[tuple[str, str], list[dict]] = {}
    for entry in entries:
        kinds.setdefault((entry["cell"], entry["mode"]), []).append(entry)
    summaries = []
    for (cell, mode), group in kinds.items():
        small = [ratio_of(e) for e in group if e["batch"] <= SMALL_BATCH]
        summary = Summary(
            cell=cell,
            mode=mode,
            mean=harness.geometric_mean(map(ratio_of, group)),
            small_batch_mean=harness.geometric_mean(small),
            minimum=min(group, key=ratio_of),
            losses=sum(ratio_of(e) < 1 for e in group),
            count=len(group),
        )
        summaries.append(summary)
    return summaries


def compact_table(results: dict) -> str:
    """Markdown: a row for each cell and mode."""
    header = (
        "cell",
        "mode",
        "geometric mean",
        f"geometric mean, batch ≤ {SMALL_BATCH}",
        "minimum",
    )
    rows = [
        (
            CELLS[s.cell].title,
            s.mode,
            times(s.mean),
            times(s.small_batch_mean),
            f"{times(ratio_of(s.minimum))} ({shape_of(s.minimum)})",
        )
        for s in summarise(results["points"])
    ]
    return harness.markdown(header, rows)


def full_table(results: dict) -> str:
    """Markdown: a row for each point."""
    header = (
        "cell",
        "mode",
        "hidden",
        "batch",
        "time",
        "native, µs per step",
        "scan, µs per step",
        "ratio",
        "quartiles",
    )
    rows = []
    for entry in results["points"]:
        sizes = (str(entry[key]) for key in ("hidden_size", "batch", "time"))
        us = (
            harness.number(entry["step_us"][name]["median"])
            for name in (OURS, BASELINE)
        )
        quartiles = "–".join(f"{q:.2f}" for q in entry["ratio"]["quartiles"])
        title = CELLS[entry["cell"]].title
        ratio = times(ratio_of(entry))
        rows.append((title, entry["mode"], *sizes, *us, ratio, quartiles))
    return harness.markdown(header, rows)


def caption(results: dict) -> str:
    """What the numbers of a table are, and where they come from."""
    device, versions = results["device"], results["versions"]
    cores = f"{device['cores']} core{'s' if device['cores'] > 1 else ''}"
    where = f"{device['cpu']}, {cores}, {device['instruction_set']}"
    with_what = f"jax {versions['jax']}, prnn_jax {versions['prnn_jax']}"
    commit = results["commit"]
    if commit:
        changed = " with changes" if commit["dirty"] else ""
        with_what += f" at {commit['name']}{changed}"
    return (
        f"Times as fast as `lax.scan`, {len(results['points'])} points: "
        f"{where}; {with_what}; {results['date'][:10]}."
    )


def ratio_of(entry: dict) -> float:
    """The median: how many times as fast as the scan."""
    return entry["ratio"]["median"]


def shape_of(entry: dict) -> str:
    """What tells the entry from others of its summary."""
    return f"H={entry['hidden_size']}, B={entry['batch']}"


def times(value: float | None) -> str:
    """As a factor; a dash for None."""
    return "–" if value is None else f"{value:.2f}×"
