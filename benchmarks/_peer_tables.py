"""Tables of `against_peers`, made of its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import _harness as harness
from benchmarks import _limits
from benchmarks._peers import KINDS, OURS, SCAN
from benchmarks._points import CELLS

#: The sizes at which ours should be slower than nothing else.
GOAL_HIDDEN_SIZES = (128, 256, 512, 1024, 1152)
GOAL_BATCHES = (1, 2, 4, 8, 16)

#: A ratio below this is slower, not noise.
SLOWER = 1 / 1.05


@dataclass(frozen=True)
class Summary:
    """A cell in one mode, one dtype, with or without the input projection.

    Attributes:
      means: geometric, of the ratios to each candidate.
      best_mean: the same for the better of those that are not written in JAX; None if
        there are none.
      worst: the smallest ratio, to which candidate, and the entry.
      slower: how many points have a ratio below SLOWER.
      count: how many points there are.
    """

    cell: str
    mode: str
    dtype: str
    projection: bool
    means: dict[str, float]
    best_mean: float | None
    worst: tuple[float, str, dict]
    slower: int
    count: int


def in_goal(entry: dict) -> bool:
    """Whether the entry is of a size that counts."""
    sizes = entry["hidden_size"] in GOAL_HIDDEN_SIZES, entry["batch"] in GOAL_BATCHES
    return all(sizes)


def summarise(entries: Sequence[dict]) -> list[Summary]:
    """Of the goal's sizes, or of all where there are none, in the entries' order."""
    return [_summary(*kind, group) for kind, group in _by_kind(entries).items()]


def _by_kind(entries: Sequence[dict]) -> dict[tuple, list[dict]]:
    """Those of the goal's sizes, or all: of a cell, mode, dtype and projection each."""
    kinds: dict[tuple, list[dict]] = {}
    for entry in [e for e in entries if in_goal(e)] or entries:
        kind = (entry["cell"], entry["mode"], entry["dtype"], entry["projection"])
        kinds.setdefault(kind, []).append(entry)
    return kinds


def _summary(
    cell: str, mode: str, dtype: str, projection: bool, group: list[dict]
) -> Summary:
    names = [n for n in KINDS if any(n in entry["ratio"] for entry in group)]
    worst = [_worst(entry) for entry in group]
    return Summary(
        cell=cell,
        mode=mode,
        dtype=dtype,
        projection=projection,
        means={
            name: harness.geometric_mean(
                e["ratio"][name]["median"] for e in group if name in e["ratio"]
            )
            for name in names
        },
        best_mean=harness.geometric_mean(
            e["best_peer"]["ratio"]["median"] for e in group if e["best_peer"]
        ),
        worst=min(worst, key=lambda found: found[0]),
        slower=sum(found[0] < SLOWER for found in worst),
        count=len(group),
    )


def _worst(entry: dict) -> tuple[float, str, dict]:
    ratios = entry["ratio"]
    name = min(ratios, key=lambda name: ratios[name]["median"])
    return ratios[name]["median"], name, entry


def table(results: dict) -> str:
    """Markdown: a row for each cell and mode; again, of limits, if there are any."""
    tables = [_ratios_table(results["points"])]
    if (measured := results.get("limits")) is not None:
        tables.append(_limits_table(results["points"], _limits.limits_of(measured)))
    return "\n\n".join(tables)


def _ratios_table(entries: Sequence[dict]) -> str:
    summaries = summarise(entries)
    names = [n for n in KINDS if any(n in s.means for s in summaries)]
    names.remove(SCAN)
    header = (
        "cell",
        "mode",
        f"against {KINDS[SCAN].title}",
        *(KINDS[name].title for name in names),
        "best not in JAX",
        "worst",
        "slower by > 5 %",
    )
    rows = [
        (
            CELLS[s.cell].title,
            _variant(s.mode, s.dtype, s.projection),
            *(_times(s.means.get(name)) for name in (SCAN, *names)),
            _times(s.best_mean),
            _worst_text(*s.worst),
            f"{s.slower} of {s.count}",
        )
        for s in summaries
    ]
    return harness.markdown(header, rows)


def _limits_table(entries: Sequence[dict], limits: _limits.Limits) -> str:
    """How near ours is to the limit, and how many times as fast as others that is."""
    header = (
        "cell",
        "mode",
        "of the limit",
        "machine's peak meanwhile",
        f"limit against {KINDS[SCAN].title}",
        "limit against best not in JAX",
        "nearest",
        "farthest",
    )
    rows = []
    for kind, group in _by_kind(entries).items():
        cell, mode, dtype, projection = kind
        if dtype != "float32":
            continue
        shares = [_share(entry, limits) for entry in group]
        scan, best = (
            harness.geometric_mean(
                ratio["median"] / share
                for ratio, share in zip(map(of, group), shares, strict=True)
                if ratio
            )
            for of in (_scan_ratio, _best_ratio)
        )
        ends = (
            pick(zip(shares, map(_shape_text, group), strict=True))
            for pick in (max, min)
        )
        rows.append(
            (
                CELLS[cell].title,
                _variant(mode, dtype, projection),
                _percent(harness.geometric_mean(shares)),
                _percent(_peak_meanwhile(group, limits)),
                _times(scan),
                _times(best),
                *(f"{_percent(share)} ({shape})" for share, shape in ends),
            )
        )
    return harness.markdown(header, rows)


def _share(entry: dict, limits: _limits.Limits) -> float:
    """The limit's part of what a step of ours takes."""
    limit_us = _limits.layer_us(
        CELLS[entry["cell"]].gates * entry["hidden_size"] ** 2,
        entry["batch"],
        limits,
        trains=entry["mode"] == "train",
        projects=entry["projection"],
    )
    return limit_us / entry["step_us"][OURS]["median"]


def _peak_meanwhile(entries: Sequence[dict], limits: _limits.Limits) -> float | None:
    """What of its best peak the machine had while the entries were measured."""
    best = max(limits.float32_gflops.values())
    peaks = [entry["peak_gflops"] for entry in entries if entry.get("peak_gflops")]
    return harness.geometric_mean(peak["median"] / best for peak in peaks)


def _scan_ratio(entry: dict) -> dict | None:
    return entry["ratio"].get(SCAN)


def _best_ratio(entry: dict) -> dict | None:
    return entry["best_peer"] and entry["best_peer"]["ratio"]


def full_table(results: dict) -> str:
    """Markdown: a row for each point."""
    entries = results["points"]
    names = [n for n in KINDS if any(n in e["step_us"] for e in entries)]
    titles = (f"{KINDS[name].title}, µs per step" for name in names)
    header = ("cell", "mode", "hidden", "batch", "time", *titles, "worst ratio")
    rows = []
    for entry in entries:
        sizes = (str(entry[key]) for key in ("hidden_size", "batch", "time"))
        mode = _variant(entry["mode"], entry["dtype"], entry["projection"])
        us = (microseconds(entry, name) for name in names)
        worst, name, _ = _worst(entry)
        text = f"{_times(worst)} ({KINDS[name].title})"
        rows.append((CELLS[entry["cell"]].title, mode, *sizes, *us, text))
    return harness.markdown(header, rows)


def caption(results: dict) -> str:
    """What the numbers of a table are, and where they come from."""
    entries = results["points"]
    goal = sum(map(in_goal, entries))
    count = f"{goal} points of the goal" if goal else f"{len(entries)} points"
    return f"How many times as fast, {count}. {harness.provenance(results)}."


def _variant(mode: str, dtype: str, projection: bool) -> str:
    words = [mode, *([] if dtype == "float32" else [dtype])]
    return " ".join(words) + ("" if projection else ", without projection")


def _worst_text(ratio: float, name: str, entry: dict) -> str:
    return f"{_times(ratio)} ({KINDS[name].title}, {_shape_text(entry)})"


def _shape_text(entry: dict) -> str:
    return f"H={entry['hidden_size']}, B={entry['batch']}"


def microseconds(entry: dict, name: str) -> str:
    """A candidate's median for a step."""
    spread = entry["step_us"].get(name)
    return "–" if spread is None else harness.number(spread["median"])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"
